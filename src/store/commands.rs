//! The commands that are no scripts, ready to be sent.

use redis::Cmd;

use crate::store::link::Batch;

/// The first command of a batch where Redis is to tell a listener when something changes that is
/// read over this connection, from now on.
pub(super) fn begin(listener: Option<u64>) -> Batch {
    let Some(listener) = listener else {
        return Batch::default();
    };
    let mut track = redis::cmd("CLIENT");
    Batch::of(track.arg("TRACKING").arg("ON").arg("REDIRECT").arg(listener).arg("NOLOOP"))
}

pub(super) fn set(key: &str, token: &str, lease: u64) -> Cmd {
    let mut command = Cmd::with_capacity(6, key.len() + token.len() + 32);
    command.arg("SET").arg(key).arg(token).arg("NX").arg("PX").arg(lease);
    command
}

pub(super) fn of_key(name: &str, key: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key);
    command
}
