//! TLS.

use std::io;

use crate::base::error::Error;
use crate::store::wire::By;

pub(super) const IS_BUILT_IN: bool = false;

#[derive(Clone, Debug)]
pub(crate) enum Tls {}

#[derive(Clone, Debug)]
pub(crate) enum Client {}

pub(super) enum Session {}

impl Client {
    pub(crate) fn new(tls: Option<Tls>, option: &'static str) -> Result<Client, Error> {
        match tls {
            Some(tls) => match tls {},
            None => Err(Error::InvalidOption {
                option,
                value: "used".to_owned(),
                reason: "TLS needs the feature `tls` of the crate relatch",
            }),
        }
    }

    pub(super) fn handshake(&self, _host: &str, _socket: &mut By<'_>) -> io::Result<Session> {
        match *self {}
    }
}

impl Session {
    pub(super) fn write(&mut self, _bytes: &[u8], _socket: &mut By<'_>) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn read(&mut self, _buffer: &mut [u8], _socket: &mut By<'_>) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn has_ended(&mut self, _read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> bool {
        match *self {}
    }

    pub(super) fn has_unread(&mut self) -> bool {
        match *self {}
    }
}
