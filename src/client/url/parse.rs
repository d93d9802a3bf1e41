//! Turns a URL into an address: one server, the sentinels that know it, or nodes of a cluster.
//!
//! The `redis` crate parses the URL. It knows no list of hosts, so a URL with several hosts is
//! taken apart here, and the `redis` crate gets the rest of it. No error shows a password, wherever
//! in the URL it stands.

use crate::base::error::Error;
use crate::client::url::address::Address;
use crate::client::url::one::one;
use crate::client::url::several::several;

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Address, Error> {
        several(url).unwrap_or_else(|| one(url))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::client::url::address::Servers;
    use crate::client::wire::endpoint::Place;
    #[cfg(feature = "tls-no-provider")]
    use crate::client::wire::tls::Tls;

    fn parse(url: &str) -> Address {
        Address::parse(url).expect(url)
    }

    /// The servers, as text.
    fn named(address: &Address) -> String {
        let all = |hosts: &[Place]| {
            let hosts: Vec<_> = hosts.iter().map(Place::to_string).collect();
            hosts.join(", ")
        };
        match &address.servers {
            Servers::One(place) => place.to_string(),
            Servers::Sentinels { hosts, name } => {
                format!("{name}: {}", all(hosts))
            }
            Servers::Cluster { hosts } => {
                format!("cluster: {}", all(hosts))
            }
        }
    }

    fn assert_login(address: &Address, user: Option<&str>, password: &str) {
        let login = address.login.as_ref().expect("a login");
        assert_eq!(
            (login.username.as_deref(), login.password.as_str()),
            (user, password)
        );
    }

    #[test]
    fn a_url_is_taken_apart() {
        let address = parse("redis://user:p%40ss@example.org:7000/3");
        assert_eq!(
            (named(&address).as_str(), address.db),
            ("example.org:7000", 3)
        );
        assert_login(&address, Some("user"), "p@ss");
        assert_eq!(named(&parse("redis://[::1]")), "[::1]:6379");
        #[cfg(unix)]
        assert_eq!(parse("unix:///run/redis.sock?db=2").db, 2);
    }

    #[test]
    #[cfg(unix)]
    fn the_path_of_a_socket_may_have_any_character_but_a_question_mark() {
        for path in [
            "/run/a@b.sock",
            "/run/#1.sock",
            "/run/@#/a b.sock",
            "/run/a%20b.sock",
        ] {
            let address = parse(&format!("unix://{path}?db=2&pass=p@#1"));
            assert_eq!((named(&address), address.db), (path.replace("%20", " "), 2));
            assert_login(&address, None, "p@#1");
        }
        assert_login(&parse("unix:///run/a?pass=%26%2B%20"), None, "&+ ");
        let error = Address::parse("unix:///run/a?b.sock")
            .expect_err("the path ends there")
            .to_string();
        assert!(error.contains("%3F"), "{error}");
    }

    #[test]
    fn a_url_of_another_kind_is_refused_with_what_to_write() {
        for (url, form) in [
            ("redis-sentinel://s:26379/m", " redis+sentinel://"),
            ("SENTINEL://s/m", " redis+sentinel://"),
            ("redis-cluster://a,b", " redis+cluster://"),
            ("redis-socket:///run/redis.sock", " unix:///"),
            ("unix://run/redis.sock", " unix:///"),
            ("http://host:6379/", "none of redis, rediss, unix"),
            ("tcp://host:6379/", "none of redis, rediss, unix"),
            ("host:6379", "is none of redis, rediss, unix"),
            ("localhost", ": it is redis://"),
            ("redis://user:pass/word@host/", "%2F"),
            ("redis://:1/2@host/", "%2F"),
            ("redis://:1/2@host/..", "%2F"),
            ("redis+sentinel://user:pass/word@host/m", "%2F"),
            ("redis://host:port/", "not of the form redis://"),
        ] {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(error.contains(form), "{url}: {error}");
        }
    }

    #[test]
    #[cfg(feature = "tls-no-provider")]
    fn the_advice_to_ask_for_tls_names_the_scheme_of_these_servers() {
        for (url, scheme) in [
            ("redis://a", "`rediss`"),
            ("redis+sentinel://a/m", "`rediss+sentinel`"),
            ("redis+cluster://a", "`rediss+cluster`"),
            ("unix:///run/redis.sock", "no TLS"),
        ] {
            let error = parse(url)
                .with_tls(Some(Tls::new()))
                .expect_err(url)
                .to_string();
            assert!(error.contains(scheme), "{url}: {error}");
        }
    }

    #[test]
    fn a_url_of_sentinels_is_taken_apart() {
        let url = "redis+sentinel://user:p%40ss@a.example.org:7000,b,[::1]:7001,[::2]/my-master.1/3?protocol=resp2";
        let address = parse(url);
        let all = "my-master.1: a.example.org:7000, b:26379, [::1]:7001, [::2]:26379";
        assert_eq!(
            (named(&address).as_str(), address.db, address.tls),
            (all, 3, false)
        );
        assert_login(&address, Some("user"), "p@ss");
        for url in [
            "redis+sentinel://s/m",
            "redis+sentinel://s/m/",
            "Redis+Sentinel://s/m/0",
        ] {
            let address = parse(url);
            assert_eq!(
                (named(&address).as_str(), address.db),
                ("m: s:26379", 0),
                "{url}"
            );
            assert!(address.login.is_none());
        }
        assert_login(&parse("redis+sentinel://:secret@s/m"), None, "secret");
    }

    #[test]
    fn a_url_of_a_cluster_is_taken_apart() {
        let address = parse("redis+cluster://user:p%40ss@a.example.org:7000,b,[::1]:7001/0");
        let all = "cluster: a.example.org:7000, b:6379, [::1]:7001";
        assert_eq!(
            (named(&address).as_str(), address.db, address.tls),
            (all, 0, false)
        );
        assert_login(&address, Some("user"), "p@ss");
        assert_eq!(named(&parse("Redis+Cluster://a")), "cluster: a:6379");
        for (rest, reason) in [
            ("", "each node"),
            ("a,,b", "each node"),
            ("a/m", "a whole number"),
        ] {
            let error = Address::parse(&format!("redis+cluster://{rest}"))
                .expect_err(rest)
                .to_string();
            assert!(error.contains(reason), "{rest}: {error}");
        }
    }

    #[test]
    fn a_bad_url_of_sentinels_is_refused_with_the_reason() {
        for (rest, reason) in [
            ("", "each sentinel"),
            ("s", "name of the master"),
            ("s/", "name of the master"),
            ("s/a%20b", "name of the master"),
            ("/m", "each sentinel"),
            ("s,/m", "each sentinel"),
            ("s:/m", "each sentinel"),
            ("s:0/m", "each sentinel"),
            ("s:+1/m", "each sentinel"),
            ("s:99999/m", "each sentinel"),
            ("::1/m", "each sentinel"),
            ("[::1/m", "each sentinel"),
            ("[s]/m", "each sentinel"),
            ("a b/m", "a space"),
            ("s/m/three", "a whole number"),
            ("s/m/1/2", "a whole number"),
            ("s/m?db=3", "such as /3"),
            ("s/m?protocol=resp3", "resp2"),
            ("user@s/m", "a user and no password"),
            ("s/m#x", "`#`"),
        ] {
            let error = Address::parse(&format!("redis+sentinel://{rest}"))
                .expect_err(rest)
                .to_string();
            assert!(error.contains(reason), "{rest}: {error}");
        }
    }

    #[test]
    #[cfg(feature = "tls-no-provider")]
    fn a_scheme_with_an_s_more_asks_for_tls() {
        for url in [
            "rediss://s/",
            "valkeys://s/",
            "rediss+sentinel://s/m",
            "REDISS://s:6379/3",
        ] {
            let plain = url
                .to_ascii_lowercase()
                .replace("s+", "+")
                .replace("s://", "://");
            assert_eq!((parse(url).tls, parse(&plain).tls), (true, false), "{url}");
            assert_eq!(named(&parse(url)), named(&parse(&plain)));
        }
    }

    #[test]
    #[cfg(not(feature = "tls-no-provider"))]
    fn a_url_with_tls_is_refused_without_the_feature() {
        for url in [
            "rediss://example.org/",
            "valkeys://example.org/",
            "rediss+sentinel://s/m",
        ] {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(
                error.contains("feature `tls`") && error.contains(url),
                "{error}"
            );
        }
    }

    #[test]
    fn a_bad_url_is_refused_without_its_password() {
        for url in [
            "",
            "canary",
            "http://user:canary@example.org/",
            "redis://user:canary@example.org/three",
            "redis://user:canary@example.org/?db=3",
            "redis://user:canary@0.0.0.0/",
            "rediss://user:canary@example.org/three",
            "redis://user:canary@example.org:99999/",
            "redis://user:/canary@example.org/",
            "redis://user:12/canary@example.org/",
            "redis://user:12/3?canary@example.org/",
            "redis://user:12/3#canary@example.org/",
            "redis://user:12@host/canary",
            "redis://example.org/?password=canary",
            "redis://canary@example.org/",
            "redis://canary:@example.org/",
            "redis://canary@example.org/three",
            "redis://canary@example.org/?db=3",
            "redis://canary@example.org:99999/",
            "redis://canary@/3",
            "rediss://canary@example.org/",
            "redis://canary@example.org/?protocol=resp3",
            "http://canary@example.org/",
            "unix:///run/redis.sock?user=canary",
            "redis+sentinel://canary@s/m",
            "redis+sentinel://user:canary@s",
            "redis+sentinel://user:canary@s/m/three",
            "redis+sentinel://user:canary@s:99999/m",
            "redis+sentinel://user:canary@s/m?db=3",
            "redis+sentinel://user:canary@s/m?protocol=3",
            "redis+sentinel://user:/canary@s/m",
            "redis+sentinel://user:12/canary@s/m",
            "redis+sentinel://user:12?canary@s/m",
            "redis+sentinel://user:12@s/m/canary",
            "redis+sentinel://user:12@canary:x/m",
            "redis+sentinel://user: canary@s/m",
        ] {
            let error = Address::parse(url).expect_err(url);
            assert!(
                matches!(error, Error::InvalidOption { option: "url", .. }),
                "{error:?}"
            );
            assert!(
                !format!("{error} {error:?}").contains("canary"),
                "{error:?}"
            );
        }
        let address = Address::parse("redis://user:canary@example.org/").unwrap();
        assert!(!format!("{address:?}").contains("canary"));
    }

    #[test]
    fn a_protocol_that_is_not_spoken_is_refused() {
        for url in [
            "redis://example.org/?protocol=resp3",
            "redis://example.org/?protocol=3",
            "unix:///run/redis.sock?protocol=3",
        ] {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(
                error.contains("resp2") && error.contains(url.split('?').next().unwrap()),
                "{error}"
            );
        }
        for url in [
            "redis://example.org/?protocol=resp2",
            "redis://example.org/?protocol=2",
        ] {
            Address::parse(url).expect(url);
        }
    }

    #[test]
    fn a_user_without_a_password_is_refused() {
        for url in ["redis://canary@example.org/", "redis+sentinel://canary@s/m"] {
            let text = Address::parse(url).expect_err(url).to_string();
            assert!(
                text.contains("url") && text.contains("password@") && !text.contains("canary"),
                "{text}"
            );
        }
        Address::parse("redis://:secret@example.org/").unwrap();
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_text_is_an_address_or_refused(
            url in prop_oneof![any::<String>(), "(redis|rediss|unix|redis\\+unix|valkey|rediss?\\+sentinel)://.{0,40}"],
        ) {
            if let Err(error) = Address::parse(&url) {
                let is_option = matches!(error, Error::InvalidOption { option: "url", .. });
                prop_assert!(is_option, "{:?}", error);
            }
        }

        /// A password stays hidden as long as an `@` follows it.
        #[test]
        fn a_url_with_mistakes_is_an_address_or_refused(
            url in garbled::text(prop_oneof![
                "rediss?://user:c4nary@(db.example|10.0.0.1|\\[::1\\]):6379/3(\\?protocol=2)?",
                "redis\\+sentinel://user:c4nary@a:26379,b,\\[::1\\]:1/mymaster/3",
                "rediss\\+cluster://user:c4nary@a:7000,b:7001",
                "(redis\\+)?unix:///run/redis.sock\\?db=1",
            ]),
        ) {
            let shown = match Address::parse(&url) {
                Ok(address) => format!("{address:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            let is_hidden = url.rsplit_once("c4nary").is_some_and(|(_, rest)| rest.contains('@'));
            prop_assert!(!is_hidden || !shown.contains("c4nary"), "{} shows {}", url, shown);
        }

        /// Whatever stands before and after the password, and however wrong the rest of the URL is.
        #[test]
        fn no_message_holds_a_password(
            scheme in "redis|rediss|unix|redis\\+unix|valkey|http|rediss?\\+sentinel",
            user in "[a-z]{0,3}",
            before in "[!-~\t ]{0,4}",
            after in "[!-~\t ]{0,4}",
            rest in "[!-~]{0,12}",
        ) {
            // The second has a password where the user belongs.
            for url in [
                format!("{scheme}://{user}:{before}canary{after}@{rest}"),
                format!("{scheme}://{before}canary{after}@{rest}"),
            ] {
                if scheme.contains("unix") && url.contains(":///") {
                    continue; // It is a part of the path.
                }
                let shown = match Address::parse(&url) {
                    Ok(address) => format!("{address:?} ") + &format!("{:?}", address.with_tls(None)),
                    Err(error) => format!("{error} {error:?}"),
                };
                prop_assert!(!shown.contains("canary"), "{} shows {}", url, shown);
            }
        }

        #[test]
        fn a_valid_url_keeps_its_parts(
            user in "[a-zA-Z0-9]{1,8}",
            password in any::<String>().prop_filter("not empty", |it| !it.is_empty()),
            host in "[a-z]{1,8}(\\.[a-z]{1,8}){0,2}",
            port in 1..=u16::MAX,
            db in 0..16_i64,
        ) {
            let escaped: Vec<_> = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let login = format!("{user}:{}", escaped.concat());
            for (url, servers) in [
                (format!("redis://{login}@{host}:{port}/{db}"), format!("{host}:{port}")),
                (format!("redis+sentinel://{login}@{host},{host}:{port}/m/{db}"), format!("m: {host}:26379, {host}:{port}")),
                (format!("redis+cluster://{login}@{host},{host}:{port}/{db}"), format!("cluster: {host}:6379, {host}:{port}")),
            ] {
                let address = Address::parse(&url).map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(named(&address), servers);
                let login = address.login.as_ref().expect("a login");
                prop_assert_eq!(login.username.as_deref(), Some(user.as_str()));
                prop_assert_eq!(&login.password, &password);
                prop_assert_eq!(address.db, db);
            }
        }
    }
}
