//! The servers, and all that is needed to connect to them.

use crate::base::error::Error;
use crate::client::url::address::{Address, Servers};
use crate::client::wire::endpoint::{Login, Place};
use crate::client::wire::login::{AskCredentials, Credentials};
use crate::client::wire::tls::{self, Tls};

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

impl Address {
    /// Adds the TLS settings: `tls` if the program has set it, or else the defaults.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `tls` cannot work, or was given for a URL that does not ask for
    /// TLS.
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
    /// Sets the function that is asked for the user and the password, instead of those in the URL.
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

    /// Sets how to log in to the sentinels (by default not at all), and their TLS settings (by
    /// default those of the master; `plaintext`: none). Sentinels are believed, so by default it is
    /// as hard to impersonate a sentinel as the master.
    pub(crate) fn set_sentinels(
        &mut self,
        login: Option<Login>,
        tls: Option<Tls>,
        plaintext: bool,
    ) -> Result<(), Error> {
        let option = if login.is_some() {
            "sentinel_login"
        } else {
            "sentinel_tls"
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
