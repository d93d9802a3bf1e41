//! A connection that has subscribed to a channel, and receives messages until it ends.

use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::wire::failure::{Failure, accept};
use crate::client::wire::io_error;
use crate::client::wire::link::Link;
use crate::client::wire::resp::{Batch, Reply};
use crate::client::wire::socket::Ender;
use crate::client::wire::stream::Stream;

/// How long the connection may be silent before the reader sends a `PING`.
const QUIET: Duration = Duration::from_secs(3);

pub(crate) struct Subscription {
    stream: Stream,
    /// When a `PING` was sent that has no reply yet.
    asked_at: Option<Moment>,
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
        link.send(&batch, deadline)?;
        let mut replies = link.collect(deadline)?.into_iter();
        let Some(Reply::Array(_)) = replies.next().map(accept).transpose()? else {
            return Err(Failure::not_sent("the reply to SUBSCRIBE made no sense"));
        };
        Ok(Subscription {
            stream: link.stream,
            asked_at: None,
        })
    }

    pub(crate) fn ender(&self) -> Ender {
        self.stream.ender()
    }

    /// True if the connection is known to have ended. Does not wait.
    pub(crate) fn probe(&mut self) -> bool {
        self.stream.probe()
    }

    /// The payload of the next message. `None` if none comes before the deadline.
    pub(crate) fn next(&mut self, deadline: Moment) -> Result<Option<Reply>, Failure> {
        while Moment::now() < deadline {
            match self.message(deadline) {
                Ok(Some(payload)) => return Ok(Some(payload)),
                Ok(None) => {}
                Err(error) if io_error::leaves_link_standing(&error) => {}
                Err(error) => return Err(Failure::not_sent(error)),
            }
        }
        Ok(None)
    }

    /// Passes each payload to `hear`, until `hear` breaks or the connection fails. If `hear` has
    /// broken, the caller can call this again.
    ///
    /// `hear` is also called with `None` when nothing has come for `silence`, so that it can break.
    /// After [`QUIET`] without a message, this function sends a `PING`. If nothing comes within
    /// `patience` after the `PING`, the connection counts as failed.
    pub(crate) fn listen(
        &mut self,
        (silence, patience): (Duration, Duration),
        mut hear: impl FnMut(Option<Reply>) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        // The thread may have been told to stop while it opened the connection. Without this call,
        // it would notice that only after a silence.
        if hear(None).is_break() {
            return Ok(());
        }
        let mut quiet_since = Moment::now();
        loop {
            let now = Moment::now();
            if self.asked_at.is_none() && quiet_since.after(QUIET) <= now {
                let ping = Batch::of(&["PING"]);
                self.stream
                    .send(&ping.bytes, now.after(patience))
                    .map_err(Failure::not_sent)?;
                self.asked_at = Some(now);
            }
            let (ask_at, dead_at) = match self.asked_at {
                None => (quiet_since.after(QUIET), Moment::NEVER),
                Some(at) => (Moment::NEVER, at.max(quiet_since).after(patience)),
            };
            let heard = match self.message(now.after(silence).min(ask_at).min(dead_at)) {
                Ok(Some(payload)) => {
                    quiet_since = Moment::now();
                    Some(payload)
                }
                Ok(None) if self.asked_at.take().is_some() => {
                    quiet_since = Moment::now();
                    continue;
                }
                Ok(None) => {
                    return Err(Failure::not_sent(
                        "the server sent something that nobody asked for",
                    ));
                }
                Err(error) if !io_error::leaves_link_standing(&error) => {
                    return Err(Failure::not_sent(error));
                }
                Err(_) if dead_at <= Moment::now() => {
                    return Err(Failure::not_sent("its connection shows no sign of life"));
                }
                Err(_) => None,
            };
            if hear(heard).is_break() {
                return Ok(());
            }
        }
    }

    /// The payload of the next message. `None` for the reply to a `PING`, even if it is an error.
    /// After a time-out, the caller can call this again.
    fn message(&mut self, deadline: Moment) -> io::Result<Option<Reply>> {
        payload(self.stream.receive(deadline)?)
    }
}

fn payload(message: Reply) -> io::Result<Option<Reply>> {
    match message {
        Reply::Array(mut parts) if parts.len() == 3 && is(&parts[0], "message") => {
            Ok(Some(parts.pop().unwrap_or(Reply::Nil)))
        }
        Reply::Array(parts) if parts.len() == 2 && is(&parts[0], "pong") => Ok(None),
        // An error such as LOADING also shows that Redis is alive.
        Reply::Error(_) => Ok(None),
        // A plain `PONG` also ends here: it means that the connection has not subscribed.
        _ => Err(io::Error::new(
            ErrorKind::InvalidData,
            "the server sent something that is not a message",
        )),
    }
}

fn is(kind: &Reply, name: &str) -> bool {
    matches!(kind, Reply::Bytes(kind) if kind == name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::client::wire::resp::tests::{garbled_reply, list};
    use crate::client::wire::stream::tests::streams;

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn anything_is_a_message_or_a_sign_of_life_or_ends_the_connection(
            said in garbled_reply(prop_oneof![Just(list(["message", "channel", "said"])), Just(list(["pong", ""]))]),
        ) {
            let parts = match &said {
                Reply::Array(parts) => parts.as_slice(),
                _ => &[],
            };
            let name = |name: &str| Reply::Bytes(name.as_bytes().to_vec());
            let expected = match parts {
                [kind, _, said] if *kind == name("message") => Some(Some(said.clone())),
                [kind, _] if *kind == name("pong") => Some(None),
                _ if matches!(said, Reply::Error(_)) => Some(None),
                _ => None,
            };
            prop_assert_eq!(payload(said).ok(), expected);
        }
    }

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    fn within(span: Duration) -> Moment {
        Moment::now().after(span)
    }

    #[test]
    fn a_message_may_come_after_a_time_out() {
        for (stream, mut redis) in streams() {
            let mut subscription = Subscription {
                stream,
                asked_at: None,
            };
            assert!(
                subscription
                    .message(within(SHORT))
                    .is_err_and(|error| io_error::leaves_link_standing(&error))
            );
            redis
                .write_all(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n")
                .unwrap();
            let Ok(Some(payload)) = subscription.message(within(LONG)) else {
                panic!("no message")
            };
            assert_eq!(payload.text(), Some("x"));
        }
    }

    #[test]
    fn a_subscriber_takes_the_reply_to_a_ping_as_a_sign_of_life() {
        let (stream, mut redis) = streams().remove(0);
        let mut subscription = Subscription {
            stream,
            asked_at: None,
        };
        redis
            .write_all(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n-LOADING Redis is loading\r\n+PONG\r\n")
            .unwrap();
        for _ in 0..2 {
            assert!(matches!(subscription.message(within(LONG)), Ok(None)));
        }
        let error = subscription
            .message(within(LONG))
            .expect_err("it has not subscribed");
        assert!(!io_error::leaves_link_standing(&error));
    }
}
