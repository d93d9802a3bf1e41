//! Where a server is, and the ways to it.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
#[cfg(unix)]
use std::path::PathBuf;

use crate::base::sync::Mutex;
use crate::client::wire::failure::Failure;
use crate::client::wire::socket::Way;
use crate::client::wire::system;
use crate::client::wire::tls;

pub(crate) struct Endpoint {
    place: Place,
    tls: Option<tls::Client>,
    /// The place, as errors name it.
    name: String,
    /// The address at which the last login succeeded. (A host name may have several addresses.)
    worked: Mutex<Option<SocketAddr>>,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    #[cfg(unix)]
    Unix(PathBuf),
}

/// How to log in. Its `Debug` does not show the password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: String,
}

impl Endpoint {
    pub(crate) fn new(place: Place, tls: Option<tls::Client>) -> Endpoint {
        Endpoint {
            name: place.to_string(),
            place,
            tls,
            worked: Mutex::default(),
        }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Host and port, or the socket's path.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// TLS, if connections use it, and the host to which they go.
    pub(crate) fn tls(&self) -> Option<(&tls::Client, &str)> {
        match &self.place {
            Place::Tcp { host, .. } => self.tls.as_ref().map(|tls| (tls, &**host)),
            #[cfg(unix)]
            Place::Unix(_) => None,
        }
    }

    /// The ways to reach the server, one for each address of its host name. The last way that
    /// worked comes first. The system looks the name up, and nothing bounds the time that it takes,
    /// so a connect timeout begins after this.
    pub(crate) fn ways(&self) -> Result<Vec<Way>, Failure> {
        match &self.place {
            Place::Tcp { host, port } => {
                let addresses = system::addresses(host, *port).map_err(Failure::not_sent)?;
                Ok(self.in_order(addresses).into_iter().map(Way::Tcp).collect())
            }
            #[cfg(unix)]
            Place::Unix(path) => Ok(vec![Way::Unix(path.clone())]),
        }
    }

    pub(crate) fn in_order(&self, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let worked = *self.worked.lock();
        addresses.sort_by_key(|address| worked != Some(*address));
        addresses
    }

    /// Remembers the way by which a login succeeded.
    pub(crate) fn worked(&self, way: &Way) {
        if let Way::Tcp(address) = way {
            *self.worked.lock() = Some(*address);
        }
    }
}

impl Place {
    /// Where a server is, as another server says. `None` if that is not a host and port, since it
    /// would be shown in errors and logs.
    pub(crate) fn announced(host: &str, port: u16) -> Option<Place> {
        const LONGEST_NAME: usize = 253;
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let is_name = (1..=LONGEST_NAME).contains(&host.len()) && host.chars().all(is_in_name);
        let is_host = is_name || host.parse::<Ipv6Addr>().is_ok();
        (is_host && port != 0).then(|| Place::Tcp {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Place::Tcp { host, port } => write!(f, "{host}:{port}"),
            #[cfg(unix)]
            Place::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password may have been put where the user belongs.
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str, port: u16) -> Endpoint {
        let place = Place::Tcp {
            host: host.to_owned(),
            port,
        };
        Endpoint::new(place, None)
    }

    #[test]
    fn the_address_that_worked_last_is_tried_first() {
        let endpoint = endpoint("localhost", 7000);
        let addresses: [SocketAddr; 2] =
            ["[::1]:7000", "127.0.0.1:7000"].map(|it| it.parse().unwrap());
        let first = || endpoint.in_order(addresses.to_vec())[0];
        assert_eq!(first(), addresses[0], "in the system's order");
        endpoint.worked(&Way::Tcp(addresses[1]));
        assert_eq!(first(), addresses[1]);
        endpoint.worked(&Way::Tcp(addresses[0]));
        assert_eq!(first(), addresses[0]);
    }
}
