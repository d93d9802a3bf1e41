//! What stands for TLS in a build without it: a type that has no values.

use std::io::{self, Read, Write};

use crate::base::error::Error;

/// The settings of TLS, its configuration and a channel, none of which anybody can make.
#[derive(Clone, Debug)]
pub(crate) enum Tls {}

pub(crate) type Client = Tls;

pub(crate) type Channel = Tls;

impl Tls {
    /// Always an error: this build has no TLS.
    pub(crate) fn new(tls: Option<Tls>, option: &'static str) -> Result<Client, Error> {
        let Some(tls) = tls else {
            let reason = "it needs the feature `tls` of the crate relatch";
            return Err(Error::InvalidOption {
                option,
                value: None,
                reason,
            });
        };
        match tls {}
    }

    pub(in crate::client) fn channel(&self, _host: &str) -> io::Result<Channel> {
        match *self {}
    }

    pub(in crate::client) fn shake_hands(
        &mut self,
        _socket: &mut (impl Read + Write),
    ) -> io::Result<()> {
        match *self {}
    }

    pub(in crate::client) fn is_silent(&self) -> bool {
        match *self {}
    }

    pub(in crate::client) fn write(
        &mut self,
        _bytes: &[u8],
        _socket: &mut (impl Read + Write),
    ) -> io::Result<()> {
        match *self {}
    }

    pub(in crate::client) fn read(
        &mut self,
        _buffer: &mut [u8],
        _socket: &mut (impl Read + Write),
    ) -> io::Result<usize> {
        match *self {}
    }

    pub(in crate::client) fn probe(
        &mut self,
        _read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> bool {
        match *self {}
    }

    pub(in crate::client) fn unread(&mut self) -> bool {
        match *self {}
    }
}
