//! A connection that has subscribed to a channel, and receives messages until it ends.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::wire::failure::Failure;
use crate::client::wire::failure::check;
use crate::client::wire::io_error;
use crate::client::wire::link::Link;
use crate::client::wire::resp::{Batch, Reply};
use crate::client::wire::stream::{Ender, Message, Wire};

/// How long the connection may be silent before the reader sends a `PING`.
const QUIET: Duration = Duration::from_secs(3);

pub(crate) struct Subscription {
    wire: Wire,
}

impl Subscription {
    /// Subscribes to `channel`, and to those of `others` that the server allows. (The `subscribe`
    /// of the `redis` crate is not used: it treats a refusal as success.)
    pub(crate) fn open(
        mut link: Link,
        channel: &str,
        others: &[&str],
        deadline: Moment,
    ) -> Result<Subscription, Failure> {
        let subscribe = |batch: Batch, channel: &&str| batch.and(&["SUBSCRIBE", channel]);
        let batch = others
            .iter()
            .fold(Batch::of(&["SUBSCRIBE", channel]), subscribe);
        // The first message may come with the reply, so this is no `exchange`.
        let sent = link.send(&batch, deadline)?;
        let mut replies = link.collect(&sent, deadline)?.into_iter();
        let Some(Reply::Array(_)) = replies.next().map(check).transpose()? else {
            return Err(Failure::not_sent("the reply to SUBSCRIBE made no sense"));
        };
        Ok(Subscription { wire: link.wire })
    }

    pub(crate) fn ender(&self) -> Ender {
        self.wire.ender()
    }

    /// True if the connection is known to have ended. Does not wait.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.wire.has_ended()
    }

    /// The payload of the next message. `None` if none comes before the deadline.
    pub(crate) fn next(&mut self, deadline: Moment) -> Result<Option<Reply>, Failure> {
        while Moment::now() < deadline {
            match self.wire.message(deadline) {
                Ok(Message::Payload(payload)) => return Ok(Some(payload)),
                Ok(Message::Life) => {}
                Err(error) if io_error::leaves_link_standing(&error) => {}
                Err(error) => return Err(Failure::not_sent(error)),
            }
        }
        Ok(None)
    }

    /// Passes each payload to `hear`, until `hear` breaks or the connection fails.
    ///
    /// `hear` is also called with `None` when nothing has come for `silence`, so that it can break.
    /// After [`QUIET`] without a message, this function sends a `PING`. If nothing comes within
    /// `patience` after the `PING`, the connection counts as failed.
    pub(crate) fn listen(
        mut self,
        (silence, patience): (Duration, Duration),
        mut hear: impl FnMut(Option<Reply>) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        // The thread may have been told to stop while it opened the connection. Without this call,
        // it would notice that only after a silence.
        if hear(None).is_break() {
            return Ok(());
        }
        let (mut quiet_since, mut asked_at) = (Moment::now(), None::<Moment>);
        loop {
            let now = Moment::now();
            if asked_at.is_none() && quiet_since.after(QUIET) <= now {
                let ping = Batch::of(&["PING"]);
                self.wire
                    .send(&ping.bytes, now.after(patience))
                    .map_err(Failure::not_sent)?;
                asked_at = Some(now);
            }
            let dead_at = asked_at.map_or(Moment::NEVER, |at| at.max(quiet_since).after(patience));
            let ask_at = if asked_at.is_none() {
                quiet_since.after(QUIET)
            } else {
                Moment::NEVER
            };
            let heard = match self
                .wire
                .message(now.after(silence).min(ask_at).min(dead_at))
            {
                Ok(Message::Payload(payload)) => {
                    quiet_since = Moment::now();
                    Some(payload)
                }
                Ok(Message::Life) if asked_at.take().is_some() => {
                    quiet_since = Moment::now();
                    continue;
                }
                Ok(Message::Life) => {
                    return Err(Failure::not_sent("the server answered what nobody asked"));
                }
                Err(error) if !io_error::leaves_link_standing(&error) => {
                    return Err(Failure::not_sent(error));
                }
                Err(_) if dead_at <= Moment::now() => {
                    return Err(Failure::not_sent("its connection gives no sign of life"));
                }
                Err(_) => None,
            };
            if hear(heard).is_break() {
                return Ok(());
            }
        }
    }
}
