//! A connection on which Redis sends invalidations: the names of keys that have changed.
//!
//! Redis calls this feature [client-side
//! caching](https://redis.io/docs/latest/develop/reference/client-side-caching/). A connection with
//! tracking on redirects its invalidations to this connection. After an invalidation of a key,
//! Redis sends no other one until the key is read again.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::store::endpoint::Endpoint;
use crate::store::failure::{self, Failure};
use crate::store::link::Link;
use crate::store::reply::allowed;
use crate::store::resp::{Batch, Reply};
use crate::store::wire::{Ender, Message, Wire};

/// The channel on which Redis publishes redirected invalidations.
const CHANNEL: &str = "__redis__:invalidate";

/// How long the connection may be silent before the listener sends a `PING`.
const QUIET: Duration = Duration::from_secs(3);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// These keys have changed, or are gone.
    Keys(Vec<Vec<u8>>),
    /// Any key may have changed, or be gone.
    Everything,
    /// Nothing, for a while.
    Silence,
}

pub(crate) struct TrackingConnection {
    wire: Wire,
    /// The number by which Redis knows this connection.
    pub(crate) id: u64,
}

impl TrackingConnection {
    /// Connects, logs in, asks for the connection's number, and subscribes. All of that ends within
    /// `limit`, which begins after the look-up of the host's name. (The `subscribe` of the `redis`
    /// crate is not used: it treats a refusal as success.)
    pub(super) fn open(endpoint: &Endpoint, limit: Duration) -> Result<TrackingConnection, Failure> {
        let ways = endpoint.ways()?;
        let deadline = Moment::now().after(limit);
        let mut link = Link::open(endpoint, &ways, deadline)?;
        let mut ask = |command: &[&str]| {
            let replies = link.exchange(&Batch::of(command), deadline)?;
            replies.into_iter().next().map_or(Ok(Reply::Nil), allowed)
        };
        let Reply::Int(id @ 1..) = ask(&["CLIENT", "ID"])? else {
            return Err(Failure::not_sent("the reply to CLIENT ID made no sense"));
        };
        let Reply::Array(_) = ask(&["SUBSCRIBE", CHANNEL])? else {
            return Err(Failure::not_sent("the reply to SUBSCRIBE made no sense"));
        };
        Ok(TrackingConnection { wire: link.wire, id: id.unsigned_abs() })
    }

    /// A handle by which another thread can end the connection.
    pub(crate) fn ender(&self) -> Ender {
        self.wire.ender()
    }

    /// Waits for the invalidation of a key. False if it does not come in time.
    pub(super) fn hears(&mut self, key: &str, deadline: Moment) -> Result<bool, Failure> {
        while Moment::now() < deadline {
            match self.wire.message(deadline) {
                Ok(Message::Payload(message)) => match read(message) {
                    Heard::Keys(keys) if !keys.iter().any(|it| it == key.as_bytes()) => {}
                    // After a flush of the whole database, Redis does not name this key.
                    _ => return Ok(true),
                },
                Ok(Message::Life) => {}
                Err(error) if failure::leaves_link_standing(&error) => {}
                Err(error) => return Err(Failure::not_sent(error)),
            }
        }
        Ok(false)
    }

    /// Passes each invalidation to `hear`, until `hear` breaks or the connection fails.
    ///
    /// `hear` is also called when nothing has come for `silence`, so that it can break. After
    /// [`QUIET`] without a message, this function sends a `PING`. If nothing comes within
    /// `patience` after the `PING`, the connection counts as failed.
    pub(crate) fn listen(
        mut self,
        (silence, patience): (Duration, Duration),
        mut hear: impl FnMut(Heard) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        // The thread may have been asked to stop while it opened the connection. Without this call,
        // it would notice that only after a silence.
        if hear(Heard::Silence).is_break() {
            return Ok(());
        }
        let (mut quiet_since, mut asked_at) = (Moment::now(), None::<Moment>);
        loop {
            let now = Moment::now();
            if asked_at.is_none() && quiet_since.after(QUIET) <= now {
                let ping = Batch::of(&["PING"]);
                self.wire.send(&ping.bytes, now.after(patience)).map_err(Failure::not_sent)?;
                asked_at = Some(now);
            }
            let dead_at = asked_at.map_or(Moment::NEVER, |at| at.max(quiet_since).after(patience));
            let ask_at = if asked_at.is_none() { quiet_since.after(QUIET) } else { Moment::NEVER };
            let heard = match self.wire.message(now.after(silence).min(ask_at).min(dead_at)) {
                Ok(Message::Payload(message)) => {
                    quiet_since = Moment::now();
                    read(message)
                }
                Ok(Message::Life) if asked_at.take().is_some() => {
                    quiet_since = Moment::now();
                    continue;
                }
                Ok(Message::Life) => {
                    return Err(Failure::not_sent("the server answered what nobody asked"));
                }
                Err(error) if !failure::leaves_link_standing(&error) => return Err(Failure::not_sent(error)),
                Err(_) if dead_at <= Moment::now() => {
                    return Err(Failure::not_sent("its connection gives no sign of life"));
                }
                Err(_) => Heard::Silence,
            };
            if hear(heard).is_break() {
                return Ok(());
            }
        }
    }
}

/// Reads an invalidation: a list of keys, or nil if the whole database was flushed.
fn read(payload: Reply) -> Heard {
    let Reply::Array(keys) = payload else {
        return Heard::Everything;
    };
    let key = |key| if let Reply::Bytes(key) = key { Some(key) } else { None };
    Heard::Keys(keys.into_iter().filter_map(key).collect())
}
