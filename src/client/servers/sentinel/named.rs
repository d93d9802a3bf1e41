//! What a sentinel answers: who is the master, who the other sentinels are, how new that is.

use std::sync::Arc;

use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::{Failure, accept};
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;

/// The server that a sentinel has named as the master.
pub(crate) struct NamedMaster {
    pub(crate) place: Place,
    pub(crate) sentinel: Arc<Endpoint>,
    /// The epoch of the sentinel's configuration. `None` if the right to ask is missing.
    pub(crate) epoch: Option<u64>,
    /// How many replicas there are, if that was asked.
    pub(crate) replicas: Option<u32>,
}

/// Reads the reply to `SENTINEL get-master-addr-by-name`. `None` if the sentinel does not know the
/// name.
pub(super) fn read_master(reply: Reply) -> Result<Option<Place>, Failure> {
    let parts = match accept(reply)? {
        Reply::Nil => return Ok(None),
        Reply::Array(parts) => parts,
        _ => Vec::new(),
    };
    let read = || {
        let host = parts.first()?.text()?;
        let port = parts.get(1)?.text()?;
        Place::announced(host, port.parse().ok()?)
    };
    read()
        .map(Some)
        .ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))
}

/// Reads the reply to `SENTINEL sentinels`: where the other sentinels are.
pub(super) fn read_others(others: &[Reply]) -> impl Iterator<Item = Place> {
    others.iter().filter_map(|other| {
        let host = other.field("ip")?;
        let port = other.field("port")?;
        Place::announced(host, port.parse().ok()?)
    })
}

/// Reads the epoch in the reply to `SENTINEL master`.
pub(super) fn read_epoch(master: &Reply) -> Option<u64> {
    master.field("config-epoch")?.parse().ok()
}

/// Reads the number of replicas in the reply to `SENTINEL master`.
pub(super) fn read_replicas(master: Reply) -> Result<u32, Failure> {
    let master = accept(master)?;
    let count = master.field("num-slaves").and_then(|it| it.parse().ok());
    count.ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))
}

/// Adds to a refusal which sentinel it came from.
pub(super) fn refused_by(sentinel: &Endpoint, failure: Failure) -> Failure {
    let Failure::Refused(Refusal { code, message }) = failure else {
        return failure;
    };
    let is_other = message.contains("unknown command");
    let what = if is_other {
        "is not a sentinel"
    } else {
        "is a sentinel that refuses"
    };
    Failure::Refused(Refusal {
        code,
        message: format!("{} {what}: {message}", sentinel.name()),
    })
}
