//! Turns a URL into an address: one server, the sentinels that know it, or nodes of a cluster.
//!
//! The `redis` crate parses the URL. It does not accept a list of hosts, so a URL with several
//! hosts is taken apart here, and the `redis` crate gets the rest of it. No error shows a password,
//! wherever it is in the URL.

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
    fn a_bad_url_is_refused_without_its_password() {
        for url in [
            "",
            "canary",
            "http://user:canary@example.org/",
            "redis://user:canary@example.org/three",
            "redis://user:canary@0.0.0.0/",
            "redis://user:/canary@example.org/",
            "redis://user:12/3?canary@example.org/",
            "redis://user:12/3#canary@example.org/",
            "redis://user:12@host/canary",
            "redis://example.org/?password=canary",
            "redis://canary@example.org/",
            "redis://canary:@example.org:99999/",
            "redis://canary@/3",
            "unix:///run/redis.sock?user=canary",
            "redis+sentinel://canary@s/m",
            "redis+sentinel://user:canary@s",
            "redis+sentinel://user:canary@s:99999/m",
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

    proptest! {
        #![proptest_config(garbled::cases())]

        /// A password stays hidden as long as an `@` follows it.
        #[test]
        fn a_url_with_mistakes_is_an_address_or_refused(
            url in garbled::text(prop_oneof![
                any::<String>(),
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

        /// No matter what comes before and after the password, and how wrong the rest of the URL
        /// is.
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

    #[test]
    fn a_bad_url_is_refused_with_the_reason_or_what_to_write() {
        for (url, reason) in [
            ("redis-sentinel://s:26379/m", " redis+sentinel://"),
            ("SENTINEL://s/m", " redis+sentinel://"),
            ("redis-cluster://a,b", " redis+cluster://"),
            ("redis-socket:///run/redis.sock", " unix:///"),
            ("unix://run/redis.sock", " unix:///"),
            ("http://host:6379/", "none of redis, rediss, unix"),
            ("host:6379", "is none of redis, rediss, unix"),
            ("localhost", ": it is redis://"),
            ("redis://user:pass/word@host/", "%2F"),
            ("redis://:1/2@host/..", "%2F"),
            ("redis+sentinel://user:pass/word@host/m", "%2F"),
            ("redis://host:port/", "not of the form redis://"),
            ("redis://user@host/", "password@"),
            ("redis://host/?protocol=resp3", "resp2"),
            ("unix:///run/redis.sock?protocol=3", "resp2"),
            ("redis+cluster://", "each node"),
            ("redis+cluster://a,,b", "each node"),
            ("redis+cluster://a/m", "a whole number"),
            ("redis+sentinel://", "each sentinel"),
            ("redis+sentinel://s", "name of the master"),
            ("redis+sentinel://s/a%20b", "name of the master"),
            ("redis+sentinel:///m", "each sentinel"),
            ("redis+sentinel://s,/m", "each sentinel"),
            ("redis+sentinel://s:/m", "each sentinel"),
            ("redis+sentinel://s:0/m", "each sentinel"),
            ("redis+sentinel://s:+1/m", "each sentinel"),
            ("redis+sentinel://s:99999/m", "each sentinel"),
            ("redis+sentinel://::1/m", "each sentinel"),
            ("redis+sentinel://[::1/m", "each sentinel"),
            ("redis+sentinel://[s]/m", "each sentinel"),
            ("redis+sentinel://a b/m", "a space"),
            ("redis+sentinel://s/m/three", "a whole number"),
            ("redis+sentinel://s/m?db=3", "such as /3"),
            ("redis+sentinel://s/m?protocol=resp3", "resp2"),
            ("redis+sentinel://user@s/m", "a user and no password"),
            ("redis+sentinel://s/m#x", "`#`"),
            #[cfg(not(feature = "tls-no-provider"))]
            ("rediss://example.org/", "feature `tls`"),
            #[cfg(not(feature = "tls-no-provider"))]
            ("rediss+sentinel://s/m", "feature `tls`"),
        ] {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
        for url in ["redis://a/?protocol=resp2", "redis://a/?protocol=2"] {
            parse(url);
        }
    }

    #[test]
    fn a_url_is_taken_apart() {
        for (url, servers, db) in [
            (
                "redis://user:p%40ss@example.org:7000/3",
                "example.org:7000",
                3,
            ),
            ("redis://user:p%40ss@[::1]", "[::1]:6379", 0),
            (
                "redis+sentinel://user:p%40ss@a.example.org:7000,b,[::1]:7001,[::2]/my-master.1/3?protocol=resp2",
                "my-master.1: a.example.org:7000, b:26379, [::1]:7001, [::2]:26379",
                3,
            ),
            ("Redis+Sentinel://user:p%40ss@s/m/", "m: s:26379", 0),
            (
                "redis+cluster://user:p%40ss@a.example.org:7000,b,[::1]:7001/0",
                "cluster: a.example.org:7000, b:6379, [::1]:7001",
                0,
            ),
        ] {
            let address = parse(url);
            assert_eq!(
                (&*named(&address), address.db, address.tls),
                (servers, db, false)
            );
            assert_login(&address, Some("user"), "p@ss");
            let address = parse(&url.replace("user", ""));
            assert_login(&address, None, "p@ss");
            assert!(parse(&url.replace("user:p%40ss@", "")).login.is_none());
        }
        #[cfg(unix)]
        assert_eq!(parse("unix:///run/redis.sock?db=2").db, 2);
    }
}
