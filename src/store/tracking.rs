//! A connection that only listens: Redis says on it which keys have changed.
//!
//! Redis calls that [client-side caching](https://redis.io/docs/latest/develop/reference/client-side-caching/):
//! a connection that tracks what it reads has changes told to this one, each key's once.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::store::address::Address;
use crate::store::failure::{self, Failure};
use crate::store::link::Link;
use crate::store::reply::allowed;
use crate::store::resp::{Batch, Reply};
use crate::store::wire::{Ender, Message, Wire};

/// Where Redis says it, to whoever tracks by redirection.
const CHANNEL: &str = "__redis__:invalidate";

/// After so long without a message, Redis is asked for a sign of life.
const QUIET: Duration = Duration::from_secs(3);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// These keys have changed, or are gone.
    Keys(Vec<Vec<u8>>),
    /// Every key may be gone.
    Everything,
    /// Nothing, for a while.
    Silence,
}

pub(crate) struct TrackingConnection {
    wire: Wire,
    /// What Redis calls this connection.
    pub(crate) id: u64,
}

impl TrackingConnection {
    /// Connects, logs in, asks Redis what it calls this connection, and subscribes. (Not with the
    /// `subscribe` of the `redis` crate, which takes a refusal for an answer.)
    pub(super) fn open(address: &Address, deadline: Moment) -> Result<TrackingConnection, Failure> {
        let mut link = Link::open(address, deadline)?;
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

    pub(crate) fn ender(&self) -> Option<Ender> {
        self.wire.ender()
    }

    /// Waits until it hears that this key has changed: false where that does not come in time.
    pub(super) fn hears(&mut self, key: &str, deadline: Moment) -> Result<bool, Failure> {
        while Moment::now() < deadline {
            match self.wire.message(deadline) {
                Ok(Message::Payload(message)) => match read(message) {
                    Heard::Keys(keys) if !keys.iter().any(|it| it == key.as_bytes()) => {}
                    // Where everything was flushed meanwhile, Redis does not tell of this key.
                    _ => return Ok(true),
                },
                Ok(Message::Life) => {}
                Err(error) if failure::leaves_link_standing(&error) => {}
                Err(error) => return Err(Failure::not_sent(error)),
            }
        }
        Ok(false)
    }

    /// Hears until it is told to stop or the connection breaks.
    ///
    /// Tells of silence, so that `hear` can stop it. A connection that is quiet for longer is asked
    /// for a sign of life, and is dead where none comes within `patience`.
    pub(crate) fn listen(
        mut self,
        (silence, patience): (Duration, Duration),
        mut hear: impl FnMut(Heard) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        // Before it blocks: it may have been told to stop since it connected.
        if hear(Heard::Silence).is_break() {
            return Ok(());
        }
        let asks = self.wire.shows_life();
        let (mut quiet_since, mut asked_at) = (Moment::now(), None::<Moment>);
        loop {
            let now = Moment::now();
            if asks && asked_at.is_none() && quiet_since.after(QUIET) <= now {
                self.wire
                    .send(&Batch::of(&["PING"]).bytes, now.after(patience))
                    .map_err(Failure::not_sent)?;
                asked_at = Some(now);
            }
            let dead_at = asked_at.map_or(Moment::NEVER, |at| at.max(quiet_since).after(patience));
            let ask_at = if asks && asked_at.is_none() { quiet_since.after(QUIET) } else { Moment::NEVER };
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
                    return Err(Failure::not_sent("the answer to a question that nobody asked"));
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

/// A list of keys; nil where the whole database went.
fn read(payload: Reply) -> Heard {
    let Reply::Array(keys) = payload else {
        return Heard::Everything;
    };
    let key = |key| if let Reply::Bytes(key) = key { Some(key) } else { None };
    Heard::Keys(keys.into_iter().filter_map(key).collect())
}
