//! A URL that names several hosts: sentinels, or nodes of a cluster.

use std::net::Ipv6Addr;

use crate::base::error::Error;
use crate::client::url::address::{Address, Servers};
use crate::client::url::one::{NOT_ESCAPED, bad, one};
use crate::client::wire::endpoint::Place;

/// The port of a sentinel whose URL names none.
const SENTINEL_PORT: u16 = 26379;

/// The port of a node of a cluster whose URL names none.
const REDIS_PORT: u16 = 6379;

const NO_SENTINEL: &str = "each sentinel is host[:port], with a comma between two of them, and an IPv6 address in brackets";
const NO_NODE: &str =
    "each node is host[:port], with a comma between two of them, and an IPv6 address in brackets";

/// The parts of a URL that names several hosts.
struct Several<'a> {
    /// Whether connections to Redis use TLS.
    tls: bool,
    userinfo: Option<&'a str>,
    hosts: &'a str,
    /// What follows the hosts, without its slash.
    path: &'a str,
    query: Option<&'a str>,
    /// The part of the URL that may be shown.
    shown: Option<&'a str>,
}

/// The address of a URL of sentinels or of a cluster. `None` for any other URL.
pub(super) fn several(url: &str) -> Option<Result<Address, Error>> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let tls = scheme.starts_with("rediss+");
    let parts = || Several::split(url, rest, tls);
    match &*scheme {
        "redis+sentinel" | "rediss+sentinel" => Some(parts().and_then(Several::sentinels)),
        "redis+cluster" | "rediss+cluster" => Some(parts().and_then(Several::cluster)),
        _ => None,
    }
}

impl<'a> Several<'a> {
    /// Takes apart a URL whose `rest` follows the scheme.
    fn split(url: &'a str, rest: &'a str, tls: bool) -> Result<Several<'a>, Error> {
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (userinfo, hosts) = authority
            .rsplit_once('@')
            .map_or((None, authority), |(it, rest)| (Some(it), rest));
        // An unescaped `/`, `?` or `#` in a password ends the authority too soon, and the rest of
        // the password is in the tail.
        if tail.contains(['@', '#']) {
            return Err(bad(None, NOT_ESCAPED));
        }
        if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(bad(None, "it holds a space or a control character"));
        }
        let is_hidden = userinfo.is_some_and(|it| !it.is_empty());
        let shown = url.split('?').next().filter(|_| !is_hidden);
        let (path, query) = tail
            .split_once('?')
            .map_or((tail, None), |(path, query)| (path, Some(query)));
        Ok(Several {
            tls,
            userinfo,
            hosts,
            path: &path[path.len().min(1)..],
            query,
            shown,
        })
    }

    /// The address of sentinels.
    fn sentinels(self) -> Result<Address, Error> {
        let hosts = self.places(SENTINEL_PORT, NO_SENTINEL)?;
        let (name, db) = self.path.split_once('/').unwrap_or((self.path, ""));
        if !is_name(name) {
            let reason = "the name of the master has to follow the sentinels, of letters, digits and `.-_`: \
                          redis+sentinel://[user:password@]host[:port][,host[:port]...]/name[/db]";
            return Err(bad(self.shown, reason));
        }
        let name = name.to_owned();
        self.at(Servers::Sentinels { hosts, name }, db)
    }

    /// The address of nodes of a cluster.
    fn cluster(self) -> Result<Address, Error> {
        let hosts = self.places(REDIS_PORT, NO_NODE)?;
        self.at(Servers::Cluster { hosts }, self.path)
    }

    fn places(&self, default: u16, reason: &'static str) -> Result<Vec<Place>, Error> {
        let places = self.hosts.split(',').map(|host| place(host, default));
        let places: Option<Vec<_>> = places.collect();
        places.ok_or_else(|| bad(self.shown, reason))
    }

    /// The address of these servers. Login and database are read from a URL that names one server
    /// and is otherwise the same.
    fn at(&self, servers: Servers, db: &str) -> Result<Address, Error> {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let login = self
            .userinfo
            .map_or_else(String::new, |it| format!("{it}@"));
        let query = self.query.map_or_else(String::new, |it| format!("?{it}"));
        let mut address = one(&format!("{scheme}://{login}host/{db}{query}"));
        if let Err(Error::InvalidOption { value, .. }) = &mut address {
            *value = value.take().and(self.shown.map(str::to_owned));
        }
        address.map(|address| Address { servers, ..address })
    }
}

/// True if sentinels can know a master by this name.
fn is_name(text: &str) -> bool {
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    !text.is_empty() && text.chars().all(is_in_name)
}

/// Reads `host`, `host:port`, `[address]` or `[address]:port`.
fn place(text: &str, default: u16) -> Option<Place> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':')?),
            };
            (host, port)
        }
        None => text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_in_host = |c: char| c.is_alphanumeric() || ".-_:".contains(c);
    // (`parse` takes `+6379`, too.)
    let is_number = |port: &str| port.bytes().all(|it| it.is_ascii_digit());
    let port = match port {
        Some(port) => port
            .parse()
            .ok()
            .filter(|number| *number != 0 && is_number(port))?,
        None => default,
    };
    (!host.is_empty() && host.chars().all(is_in_host)).then(|| Place::Tcp {
        host: host.to_owned(),
        port,
    })
}
