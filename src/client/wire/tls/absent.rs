//! What stands in for TLS in a build without it: a type that has no values.

use std::io;

use super::Layer;
use crate::base::error::Error;

/// The TLS settings and the TLS configuration.
#[derive(Clone, Debug)]
pub(crate) enum Tls {}

pub(crate) type Client = Tls;

impl Tls {
    /// Always an error: this build has no TLS.
    pub(crate) fn new(tls: Option<Tls>, option: &'static str) -> Result<Client, Error> {
        tls.ok_or(Error::InvalidOption {
            option,
            value: None,
            reason: "it needs relatch's `tls` feature",
        })
    }

    pub(in crate::client) fn channel(&self, _: &str) -> io::Result<Box<dyn Layer>> {
        match *self {}
    }
}
