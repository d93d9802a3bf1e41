//! Turns a URL or a client of the `redis` crate into an endpoint.
//!
//! The `redis` crate parses the URL. No error shows a password, wherever in the URL it stands.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::base::error::Error;
use crate::store::endpoint::{Endpoint, Login, Place};
use crate::store::wire;

/// Stands in an error for a URL that may have its password in a wrong place.
const NOT_SHOWN: &str = "(not shown)";

/// The server that a program names.
#[derive(Debug)]
pub(crate) struct Address {
    pub(super) endpoint: Endpoint,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Address, Error> {
        let parsed = redis::parse_redis_url(url).ok_or_else(|| {
            // The text is not shown, because its password may stand anywhere.
            invalid(NOT_SHOWN.to_owned(), "it is not of the form redis://[user:password@]host[:port][/db]")
        })?;
        // If a slash, question mark or hash in a password is not escaped, the parser takes the rest
        // of the password for the path, the query or the fragment.
        let spilled = [Some(parsed.path()), parsed.query(), parsed.fragment()];
        if parsed.fragment().is_some() || spilled.into_iter().flatten().any(|part| part.contains('@')) {
            let reason = "what follows the host holds a `#` or `@`: in a password, / ? # and @ are written %2F %3F %23 %40";
            return Err(invalid(NOT_SHOWN.to_owned(), reason));
        }
        // If an `@` in a password is not escaped, the parser takes the rest of the password for
        // host and path. So if the URL has a login, not even host and path are shown.
        let has_login = !parsed.username().is_empty() || parsed.password().is_some();
        let up_to_query = parsed.as_str().split('?').next().unwrap_or_default();
        let shown = if has_login { NOT_SHOWN } else { up_to_query }.to_owned();
        let on_socket = parsed.scheme().contains("unix");
        if !on_socket && parsed.query_pairs().any(|(name, _)| name != "protocol") {
            let reason = "only `protocol` may follow `?`; write the database as the path, such as /3";
            return Err(invalid(shown, reason));
        }
        let is_resp2 = |name: &str, value: &str| name != "protocol" || matches!(value, "2" | "resp2");
        if !parsed.query_pairs().all(|(name, value)| is_resp2(&name, &value)) {
            return Err(invalid(shown, "only `protocol=resp2` is supported"));
        }
        let info = parsed.into_connection_info().map_err(|error| {
            let reason = if error.to_string().contains("TLS") {
                "TLS needs a redis::Client built with it: use builder_with_client"
            } else {
                "it needs a host, and a whole number as database"
            };
            invalid(shown, reason)
        })?;
        Address::from_info("url", info)
    }

    pub(crate) fn of_client(client: &redis::Client) -> Result<Address, Error> {
        Address::from_info("client", client.get_connection_info().clone())
    }

    fn from_info(option: &'static str, info: ConnectionInfo) -> Result<Address, Error> {
        let login = info.redis_settings();
        if login.username().is_some() && login.password().is_none() {
            // What looks like the user may be a password without its colon.
            let reason =
                "it has a user and no password, so nobody would log in: it is user:password@, or :password@";
            return Err(Error::InvalidOption { option, value: NOT_SHOWN.to_owned(), reason });
        }
        let username = login.username().map(str::to_owned);
        let login_of = |password: &str| Login { username, password: password.to_owned() };
        let (login, db) = (login.password().map(login_of), login.db());
        let name = info.addr().to_string();
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Place::Tcp { host: host.clone(), port: *port },
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => Place::Tls(Box::new(bare(info))),
        };
        Ok(Address { endpoint: Endpoint::new(place, login, db, name) })
    }
}

/// Removes login and database: the link sends them itself, so that it can distinguish their errors,
/// and so that their time counts against the same deadline.
fn bare(info: ConnectionInfo) -> ConnectionInfo {
    let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(wire::keepalive());
    info.set_tcp_settings(tcp).set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name())
}

fn invalid(value: String, reason: &'static str) -> Error {
    Error::InvalidOption { option: "url", value, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint(url: &str) -> Endpoint {
        Address::parse(url).unwrap().endpoint
    }

    #[test]
    fn a_url_is_taken_apart() {
        let server = endpoint("redis://user:p%40ss@example.org:7000/3");
        assert_eq!(server.name(), "example.org:7000");
        let login = server.login.as_ref().unwrap();
        assert_eq!((login.username.as_deref(), login.password.as_str()), (Some("user"), "p@ss"));
        assert_eq!(server.db, 3);
        assert_eq!(endpoint("redis://[::1]").name(), "::1:6379");
        assert_eq!(endpoint("unix:///run/redis.sock?db=2").db, 2);
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
            "rediss://user:canary@example.org/",
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
        ] {
            let error = Address::parse(url).expect_err(url);
            assert!(matches!(error, Error::InvalidOption { option: "url", .. }), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
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
            assert!(error.contains("resp2") && error.contains(url.split('?').next().unwrap()), "{error}");
        }
        for url in ["redis://example.org/?protocol=resp2", "redis://example.org/?protocol=2"] {
            Address::parse(url).expect(url);
        }
    }

    #[test]
    fn a_user_without_a_password_is_refused() {
        let client = redis::Client::open("redis://canary@example.org/").unwrap();
        for (error, named) in [
            (Address::parse("redis://canary@example.org/").unwrap_err(), "url"),
            (Address::of_client(&client).unwrap_err(), "client"),
        ] {
            let text = error.to_string();
            assert!(text.contains(named) && text.contains("password@") && !text.contains("canary"), "{text}");
        }
        Address::parse("redis://:secret@example.org/").unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_an_address_or_refused(
            url in prop_oneof![any::<String>(), "(redis|rediss|unix|redis\\+unix|valkey)://.{0,40}"],
        ) {
            if let Err(error) = Address::parse(&url) {
                let is_option = matches!(error, Error::InvalidOption { option: "url", .. });
                prop_assert!(is_option, "{:?}", error);
            }
        }

        /// Whatever stands before and after the password, and however wrong the rest of the URL is.
        #[test]
        fn no_message_holds_a_password(
            scheme in "redis|rediss|unix|redis\\+unix|valkey|http",
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
                let shown = match Address::parse(&url) {
                    Ok(address) => format!("{address:?} {}", address.endpoint.name()),
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
            let address = Address::parse(&format!("redis://{user}:{}@{host}:{port}/{db}", escaped.concat()));
            let server = address.map_err(|error| TestCaseError::fail(error.to_string()))?.endpoint;
            prop_assert_eq!(server.name(), format!("{host}:{port}"));
            let login = server.login.as_ref().expect("a login");
            prop_assert_eq!(login.username.as_deref(), Some(user.as_str()));
            prop_assert_eq!(&login.password, &password);
            prop_assert_eq!(server.db, db);
        }
    }
}
