//! Turns a URL into an address: one server, the sentinels that know it, or nodes of a cluster.
//!
//! The `redis` crate parses the URL. It knows no list of hosts, so a URL with several hosts is
//! taken apart here, and the `redis` crate gets the rest of it. No error shows a password, wherever
//! in the URL it stands.

use std::net::Ipv6Addr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::base::error::Error;
use crate::client::wire::endpoint::{Login, Place};
use crate::client::wire::login::{AskCredentials, Credentials};
use crate::client::wire::tls::{self, Tls};

/// The port of a sentinel whose URL names none.
const SENTINEL_PORT: u16 = 26379;

/// The port of a node of a cluster whose URL names none.
const REDIS_PORT: u16 = 6379;

/// The servers that a program names, as far as a URL says.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) servers: Servers,
    /// How to log in to Redis. With sentinels: to the master that they name.
    pub(crate) login: Option<Login>,
    pub(crate) db: i64,
    /// Whether connections to Redis use TLS. With sentinels: those to the master.
    pub(crate) tls: bool,
}

/// Where Redis is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Place),
    /// Redis is where these sentinels say.
    Sentinels {
        hosts: Vec<(String, u16)>,
        /// The name that the master has for the sentinels.
        name: String,
    },
    /// Redis is a cluster, and these nodes know the others.
    Cluster {
        hosts: Vec<(String, u16)>,
    },
}

/// The servers, and all that is needed to connect to them.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) servers: Servers,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) db: i64,
    pub(crate) tls: Option<tls::Client>,
    pub(crate) sentinel_login: Option<Login>,
    pub(crate) sentinel_tls: Option<tls::Client>,
}

/// What is wrong with a URL, and what of it may be shown: nothing, if it may have a password.
struct Bad {
    shown: Option<String>,
    reason: &'static str,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Address, Error> {
        let address = match several(url) {
            Some(Ok(url)) if url.of_sentinels => sentinels(url),
            Some(url) => url.and_then(cluster),
            None => one(url),
        };
        address.map_err(|bad| Error::InvalidOption {
            option: "url",
            value: bad.shown,
            reason: bad.reason,
        })
    }

    /// Adds the settings of TLS: `tls` if the program has set it, and else the defaults.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the settings cannot work, or the URL does not ask for TLS.
    pub(crate) fn with_tls(self, tls: Option<Tls>) -> Result<Target, Error> {
        let Address {
            servers,
            login,
            db,
            tls: wanted,
        } = self;
        if !wanted && tls.is_some() {
            let reason = match &servers {
                Servers::One(Place::Tcp { .. }) => {
                    "without TLS in the URL: its scheme has to be `rediss`"
                }
                Servers::One(_) => "a unix socket has no TLS",
                Servers::Sentinels { .. } => {
                    "without TLS in the URL: its scheme has to be `rediss+sentinel`"
                }
                Servers::Cluster { .. } => {
                    "without TLS in the URL: its scheme has to be `rediss+cluster`"
                }
            };
            return Err(Error::InvalidOption {
                option: "tls",
                value: None,
                reason,
            });
        }
        let tls = if wanted {
            Some(tls::Client::new(tls, "tls")?)
        } else {
            None
        };
        let credentials = login.map(Credentials::Fixed);
        Ok(Target {
            servers,
            credentials,
            db,
            tls,
            sentinel_login: None,
            sentinel_tls: None,
        })
    }
}

impl Target {
    /// Sets the function that is asked for the user and the password, in place of those in the URL.
    pub(crate) fn set_credentials(&mut self, ask: Option<AskCredentials>) -> Result<(), Error> {
        if ask.is_some() && self.credentials.is_some() {
            let reason = "the URL has a password already";
            return Err(Error::InvalidOption {
                option: "credentials",
                value: None,
                reason,
            });
        }
        self.credentials = ask.map(Credentials::Asked).or(self.credentials.take());
        Ok(())
    }

    /// Sets the login of the sentinels, and their settings of TLS: by default, those of the master.
    /// What a sentinel says is believed, so it must not be easier to stand in for a sentinel than for
    /// the master.
    pub(crate) fn set_sentinels(
        &mut self,
        login: Option<Login>,
        tls: Option<Tls>,
        plaintext: bool,
    ) -> Result<(), Error> {
        let option = match (&login, plaintext) {
            (Some(_), _) => "sentinel_login",
            (None, true) => "sentinel_plaintext",
            (None, false) => "sentinel_tls",
        };
        let is_set = login.is_some() || tls.is_some() || plaintext;
        if is_set && !matches!(self.servers, Servers::Sentinels { .. }) {
            let reason = "the URL names no sentinels: it has to begin with redis+sentinel://";
            return Err(Error::InvalidOption {
                option,
                value: None,
                reason,
            });
        }
        self.sentinel_login = login;
        self.sentinel_tls = match tls {
            tls @ Some(_) => Some(tls::Client::new(tls, "sentinel_tls")?),
            None => self.tls.clone().filter(|_| !plaintext),
        };
        Ok(())
    }
}

#[cfg(test)]
impl Target {
    /// A server that is not there.
    pub(crate) fn nowhere() -> Target {
        let address = Address::parse("redis://127.0.0.1:1/").expect("a valid address");
        address.with_tls(None).expect("no TLS")
    }
}

/// The address of a URL that names one server.
fn one(url: &str) -> Result<Address, Bad> {
    let (info, tls) = read(url)?;
    let place = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Place::Tcp {
            host: host.clone(),
            port: *port,
        },
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
        _ => return Err(bad(None, "it names no server")),
    };
    let (login, db) = login_and_db(&info)?;
    Ok(Address {
        servers: Servers::One(place),
        login,
        db,
        tls,
    })
}

fn is_in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || ".-_".contains(c)
}

/// A URL that names several hosts.
struct Several<'a> {
    of_sentinels: bool,
    /// Whether connections to Redis use TLS.
    tls: bool,
    userinfo: Option<&'a str>,
    hosts: Vec<(String, u16)>,
    /// What follows the hosts, without its slash.
    path: &'a str,
    query: Option<&'a str>,
    /// What of the URL may be shown.
    shown: Option<&'a str>,
}

/// Takes a URL of sentinels or of a cluster apart. `None` for any other URL.
fn several(url: &str) -> Option<Result<Several<'_>, Bad>> {
    let (scheme, rest) = url.split_once("://")?;
    let is = |name| scheme.eq_ignore_ascii_case(name);
    let tls = is("rediss+sentinel") || is("rediss+cluster");
    let of_sentinels = is("redis+sentinel") || is("rediss+sentinel");
    let parts = || {
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (userinfo, hosts) = authority
            .rsplit_once('@')
            .map_or((None, authority), |(it, rest)| (Some(it), rest));
        if tail.contains(['@', '#']) {
            return Err(bad(None, SPILLED));
        }
        if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(bad(None, "it holds a space or a control character"));
        }
        let is_hidden = userinfo.is_some_and(|it| !it.is_empty());
        let shown = if is_hidden {
            None
        } else {
            url.split('?').next()
        };
        let port = if of_sentinels {
            SENTINEL_PORT
        } else {
            REDIS_PORT
        };
        let hosts: Option<Vec<_>> = hosts
            .split(',')
            .map(|host| host_and_port(host, port))
            .collect();
        let Some(hosts) = hosts else {
            let reason = if of_sentinels { NO_SENTINEL } else { NO_NODE };
            return Err(bad(shown, reason));
        };
        let (path, query) = tail
            .split_once('?')
            .map_or((tail, None), |(path, query)| (path, Some(query)));
        let path = &path[path.len().min(1)..];
        Ok(Several {
            of_sentinels,
            tls,
            userinfo,
            hosts,
            path,
            query,
            shown,
        })
    };
    (tls || of_sentinels || is("redis+cluster")).then(parts)
}

const NO_SENTINEL: &str = "each sentinel is host[:port], with a comma between two of them, and an IPv6 address in brackets";
const NO_NODE: &str =
    "each node is host[:port], with a comma between two of them, and an IPv6 address in brackets";

/// The address of a URL that names sentinels.
fn sentinels(url: Several<'_>) -> Result<Address, Bad> {
    let (name, db) = url.path.split_once('/').unwrap_or((url.path, ""));
    if name.is_empty() || !name.chars().all(is_in_name) {
        let reason = "the name of the master has to follow the sentinels, of letters, digits and `.-_`: \
                      redis+sentinel://[user:password@]host[:port][,host[:port]...]/name[/db]";
        return Err(bad(url.shown, reason));
    }
    let (login, db) = url.login_and_db(db)?;
    let servers = Servers::Sentinels {
        hosts: url.hosts,
        name: name.to_owned(),
    };
    Ok(Address {
        servers,
        login,
        db,
        tls: url.tls,
    })
}

/// The address of a URL that names nodes of a cluster.
fn cluster(url: Several<'_>) -> Result<Address, Bad> {
    let (login, db) = url.login_and_db(url.path)?;
    Ok(Address {
        servers: Servers::Cluster { hosts: url.hosts },
        login,
        db,
        tls: url.tls,
    })
}

impl Several<'_> {
    /// The login and the database. They are read from a URL that names one server and is otherwise
    /// the same.
    fn login_and_db(&self, db: &str) -> Result<(Option<Login>, i64), Bad> {
        let login = self
            .userinfo
            .map_or_else(String::new, |it| format!("{it}@"));
        let query = self.query.map_or_else(String::new, |it| format!("?{it}"));
        let for_one = |bad: Bad| Bad {
            shown: bad.shown.and(self.shown.map(str::to_owned)),
            ..bad
        };
        let scheme = if self.tls { "rediss" } else { "redis" };
        let (info, _) = read(&format!("{scheme}://{login}host/{db}{query}")).map_err(for_one)?;
        login_and_db(&info)
    }
}

/// Reads `host`, `host:port`, `[address]` or `[address]:port`.
fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (
                host,
                if rest.is_empty() {
                    None
                } else {
                    Some(rest.strip_prefix(':')?)
                },
            )
        }
        None => text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_in_host = |c: char| c.is_alphanumeric() || ".-_:".contains(c);
    let is_number = |port: &str| port.bytes().all(|it| it.is_ascii_digit());
    let port = match port {
        Some(port) => port
            .parse()
            .ok()
            .filter(|number| *number != 0 && is_number(port))?,
        None => default,
    };
    (!host.is_empty() && host.chars().all(is_in_host)).then(|| (host.to_owned(), port))
}

const SPILLED: &str = "what follows the host holds a `#` or `@`: in a password, / ? # and @ are written %2F %3F %23 %40";

/// What to write in the place of a URL that cannot be read.
fn form_of(url: &str) -> &'static str {
    let scheme = url
        .split_once("://")
        .map_or("", |(scheme, _)| scheme)
        .to_ascii_lowercase();
    match &*scheme {
        it if it.contains("unix") || it.contains("sock") => {
            "it is of the form unix:///path/to/socket[?user=name&pass=password][&db=n]"
        }
        it if it.contains("sentinel") => {
            "with sentinels, it is redis+sentinel://[user:password@]host[:port][,host[:port]...]/name[/db]"
        }
        it if it.contains("cluster") => {
            "with a cluster, it is redis+cluster://[user:password@]host[:port][,host[:port]...]"
        }
        "redis" | "rediss" | "valkey" | "valkeys" => {
            "it is not of the form redis://[user:password@]host[:port][/db]: in a password, / ? # and @ \
             are written %2F %3F %23 %40"
        }
        _ => {
            "its scheme is none of redis, rediss, unix, redis+sentinel and redis+cluster: it is \
             redis://[user:password@]host[:port][/db]"
        }
    }
}

/// Reads a URL that names one server, and whether it asks for TLS.
fn read(url: &str) -> Result<(ConnectionInfo, bool), Bad> {
    // The path of a socket may have an `@` or `#`: a password follows it.
    let has_path = |(scheme, _): (&str, &str)| scheme.to_ascii_lowercase().contains("unix");
    let has_path = url.split_once(":///").is_some_and(has_path);
    let escaped = if has_path {
        url.replace('#', "%23")
    } else {
        url.to_owned()
    };
    // The text is not shown, because its password may stand anywhere.
    let mut parsed = redis::parse_redis_url(&escaped).ok_or_else(|| bad(None, form_of(url)))?;
    // If a slash, question mark or hash in a password is not escaped, the parser takes the rest of
    // the password for the path, the query or the fragment.
    let spilled = [Some(parsed.path()), parsed.query(), parsed.fragment()];
    if !has_path
        && (parsed.fragment().is_some()
            || spilled.into_iter().flatten().any(|part| part.contains('@')))
    {
        return Err(bad(None, SPILLED));
    }
    // If an `@` in a password is not escaped, the parser takes the rest of the password for host
    // and path. So if the URL has a login, not even host and path are shown.
    let has_login = !parsed.username().is_empty() || parsed.password().is_some();
    let up_to_query = parsed.as_str().split('?').next().map(str::to_owned);
    let shown = up_to_query.filter(|_| !has_login);
    let bad = |shown: Option<String>, reason| Bad { shown, reason };
    let on_socket = parsed.scheme().contains("unix");
    let (known, reason): (&[_], _) = if on_socket {
        let reason = "only `user`, `pass`, `db` and `protocol` may follow `?`; in the path, ? is written %3F";
        (&["user", "pass", "db", "protocol"], reason)
    } else {
        (
            &["protocol"],
            "only `protocol` may follow `?`; write the database as the path, such as /3",
        )
    };
    if parsed
        .query_pairs()
        .any(|(name, _)| !known.contains(&&*name))
    {
        return Err(bad(shown, reason));
    }
    let is_resp2 = |name: &str, value: &str| name != "protocol" || matches!(value, "2" | "resp2");
    if !parsed
        .query_pairs()
        .all(|(name, value)| is_resp2(&name, &value))
    {
        return Err(bad(shown, "only `protocol=resp2` is supported"));
    }
    // The `redis` crate is built without TLS, and refuses its schemes.
    let plain = match parsed.scheme() {
        "rediss" => Some("redis"),
        "valkeys" => Some("valkey"),
        _ => None,
    };
    if plain.is_some() && !cfg!(feature = "tls-no-provider") {
        return Err(bad(
            shown,
            "TLS needs the feature `tls` of the crate relatch",
        ));
    }
    if plain.is_some_and(|scheme| parsed.set_scheme(scheme).is_err()) {
        return Err(bad(shown, "its scheme cannot be read"));
    }
    match parsed.into_connection_info() {
        Ok(info) => Ok((info, plain.is_some())),
        Err(_) if on_socket => Err(bad(shown, form_of(url))),
        Err(_) => Err(bad(
            shown,
            "it needs a host, and a whole number as database",
        )),
    }
}

fn login_and_db(info: &ConnectionInfo) -> Result<(Option<Login>, i64), Bad> {
    let login = info.redis_settings();
    if login.username().is_some() && login.password().is_none() {
        // What looks like the user may be a password without its colon.
        let reason = "it has a user and no password, so nobody would log in: it is user:password@, or :password@";
        return Err(bad(None, reason));
    }
    let username = login.username().map(str::to_owned);
    let login_of = |password: &str| Login {
        username,
        password: password.to_owned(),
    };
    Ok((login.password().map(login_of), login.db()))
}

fn bad(shown: Option<&str>, reason: &'static str) -> Bad {
    Bad {
        shown: shown.map(str::to_owned),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(url: &str) -> Address {
        Address::parse(url).expect(url)
    }

    /// The servers, as text.
    fn named(address: &Address) -> String {
        match &address.servers {
            Servers::One(place) => place.to_string(),
            Servers::Sentinels { hosts, name } => {
                let hosts: Vec<_> = hosts
                    .iter()
                    .map(|(host, port)| format!("{host} {port}"))
                    .collect();
                format!("{name}: {}", hosts.join(", "))
            }
            Servers::Cluster { hosts } => {
                let hosts: Vec<_> = hosts
                    .iter()
                    .map(|(host, port)| format!("{host} {port}"))
                    .collect();
                format!("cluster: {}", hosts.join(", "))
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
        let all = "my-master.1: a.example.org 7000, b 26379, ::1 7001, ::2 26379";
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
                ("m: s 26379", 0),
                "{url}"
            );
            assert!(address.login.is_none());
        }
        assert_login(&parse("redis+sentinel://:secret@s/m"), None, "secret");
    }

    #[test]
    fn a_url_of_a_cluster_is_taken_apart() {
        let address = parse("redis+cluster://user:p%40ss@a.example.org:7000,b,[::1]:7001/0");
        let all = "cluster: a.example.org 7000, b 6379, ::1 7001";
        assert_eq!(
            (named(&address).as_str(), address.db, address.tls),
            (all, 0, false)
        );
        assert_login(&address, Some("user"), "p@ss");
        assert_eq!(named(&parse("Redis+Cluster://a")), "cluster: a 6379");
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
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_an_address_or_refused(
            url in prop_oneof![any::<String>(), "(redis|rediss|unix|redis\\+unix|valkey|rediss?\\+sentinel)://.{0,40}"],
        ) {
            if let Err(error) = Address::parse(&url) {
                let is_option = matches!(error, Error::InvalidOption { option: "url", .. });
                prop_assert!(is_option, "{:?}", error);
            }
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
                (format!("redis+sentinel://{login}@{host},{host}:{port}/m/{db}"), format!("m: {host} 26379, {host} {port}")),
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
