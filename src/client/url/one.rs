//! A URL that names one server, as the `redis` crate reads it.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::base::error::Error;
use crate::client::url::address::{Address, Servers};
use crate::client::wire::endpoint::{Login, Place};

pub(super) const NOT_ESCAPED: &str = "what follows the host holds a `#` or `@`: in a password, / ? # and @ are written %2F %3F %23 %40";

/// The address of a URL that names one server.
pub(super) fn one(url: &str) -> Result<Address, Error> {
    // In the path of a socket, an `@` or `#` is part of the path: the password comes later, as
    // `?pass=`.
    let names_path = |(scheme, _): (&str, &str)| scheme.to_ascii_lowercase().contains("unix");
    let has_path = url.split_once(":///").is_some_and(names_path);
    let escaped = if has_path {
        url.replace('#', "%23")
    } else {
        url.to_owned()
    };
    // The text is not shown, because its password may be anywhere.
    let mut parsed = redis::parse_redis_url(&escaped).ok_or_else(|| bad(None, form_of(url)))?;
    // If a slash, question mark or hash in a password is not escaped, the parser takes the rest of
    // the password for the path, the query or the fragment. It removes `..` from the path, along
    // with what comes before: so the text as written is checked, too.
    let behind_slashes = url.split_once("//").map_or("", |(_, rest)| rest);
    let written = behind_slashes
        .find(['/', '?', '#'])
        .map(|at| &behind_slashes[at..]);
    let spilled = [
        Some(parsed.path()),
        parsed.query(),
        parsed.fragment(),
        written,
    ];
    if !has_path
        && (parsed.fragment().is_some()
            || spilled.into_iter().flatten().any(|part| part.contains('@')))
    {
        return Err(bad(None, NOT_ESCAPED));
    }
    // If an `@` in a password is not escaped, the parser takes the rest of the password for host
    // and path. So if the URL has a login, not even host and path are shown.
    let has_login = !parsed.username().is_empty() || parsed.password().is_some();
    let up_to_query = parsed.as_str().split('?').next().map(str::to_owned);
    let shown = up_to_query.filter(|_| !has_login);
    let bad = |reason| bad(shown.as_deref(), reason);
    let on_socket = parsed.scheme().contains("unix");
    check_query(parsed.query_pairs(), on_socket).map_err(bad)?;
    // The `redis` crate is built without TLS, and refuses its schemes.
    let plain = match parsed.scheme() {
        "rediss" => Some("redis"),
        "valkeys" => Some("valkey"),
        _ => None,
    };
    if plain.is_some() && !cfg!(feature = "tls-no-provider") {
        return Err(bad("TLS needs relatch's `tls` feature"));
    }
    if plain.is_some_and(|scheme| parsed.set_scheme(scheme).is_err()) {
        return Err(bad("its scheme cannot be read"));
    }
    match parsed.into_connection_info() {
        Ok(info) => address(&info, plain.is_some()),
        Err(_) if on_socket => Err(bad(form_of(url))),
        Err(_) => Err(bad("it needs a host, and a whole number as database")),
    }
}

/// Checks what follows the `?`.
fn check_query<T: AsRef<str>>(
    mut pairs: impl Iterator<Item = (T, T)> + Clone,
    on_socket: bool,
) -> Result<(), &'static str> {
    let known: &[_] = if on_socket {
        &["user", "pass", "db", "protocol"]
    } else {
        &["protocol"]
    };
    let mut names = pairs.clone().map(|(name, _)| name);
    if names.any(|name| !known.contains(&name.as_ref())) {
        return Err(if on_socket {
            "only `user`, `pass`, `db` and `protocol` may follow `?`; in the path, ? is written %3F"
        } else {
            "only `protocol` may follow `?`; write the database as the path, such as /3"
        });
    }
    let is_resp2 = |name: &str, value: &str| name != "protocol" || matches!(value, "2" | "resp2");
    if !pairs.all(|(name, value)| is_resp2(name.as_ref(), value.as_ref())) {
        return Err("only `protocol=resp2` is supported");
    }
    Ok(())
}

/// The address in what the `redis` crate has read. `tls`: whether connections use TLS.
fn address(info: &ConnectionInfo, tls: bool) -> Result<Address, Error> {
    let place = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Place::Tcp {
            host: host.clone(),
            port: *port,
        },
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
        _ => return Err(bad(None, "it names no server")),
    };
    let login = info.redis_settings();
    if login.username().is_some() && login.password().is_none() {
        // The apparent user may be a password without its colon.
        let reason = "it has a user and no password, so nobody would log in: it is user:password@, or :password@";
        return Err(bad(None, reason));
    }
    let username = login.username().map(str::to_owned);
    let login_of = |password: &str| Login {
        username,
        password: password.to_owned(),
    };
    Ok(Address {
        servers: Servers::One(place),
        login: login.password().map(login_of),
        db: login.db(),
        tls,
    })
}

/// What to write instead of a URL that cannot be read.
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

/// What is wrong with a URL, and which part of it may be shown: nothing, if it may contain a
/// password.
pub(super) fn bad(shown: Option<&str>, reason: &'static str) -> Error {
    Error::InvalidOption {
        option: "url",
        value: shown.map(str::to_owned),
        reason,
    }
}
