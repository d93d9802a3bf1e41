//! A connection on which Redis sends invalidations: the names of keys that have changed.
//!
//! Redis calls this feature [client-side
//! caching](https://redis.io/docs/latest/develop/reference/client-side-caching/). A connection with
//! tracking on redirects its invalidations to this connection. After an invalidation of a key,
//! Redis sends no further one until the key is read again.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::wire::failure::{Failure, accept};
use crate::client::wire::link::Link;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::{Batch, Reply};
use crate::client::wire::socket::Ender;
use crate::client::wire::subscription::Subscription;

/// The channel on which Redis publishes redirected invalidations.
const CHANNEL: &str = "__redis__:invalidate";

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
    subscription: Subscription,
    /// The number by which Redis knows this connection.
    pub(crate) id: u64,
}

impl TrackingConnection {
    /// Asks for the connection's number, and subscribes.
    pub(crate) fn open(mut link: Link, deadline: Moment) -> Result<TrackingConnection, Failure> {
        let replies = link.exchange(&Batch::of(&["CLIENT", "ID"]), deadline)?;
        let Some(Reply::Int(id @ 1..)) = replies.into_iter().next().map(accept).transpose()? else {
            return Err(Failure::not_sent("the reply to CLIENT ID made no sense"));
        };
        let subscription = Subscription::open(link, CHANNEL, &[], deadline)?;
        Ok(TrackingConnection {
            subscription,
            id: id.unsigned_abs(),
        })
    }

    pub(crate) fn ender(&self) -> Ender {
        self.subscription.ender()
    }

    /// True if the connection is known to have ended. Does not wait.
    pub(crate) fn probe(&mut self) -> bool {
        self.subscription.probe()
    }

    /// Waits for the invalidation of a key, which was changed over another connection. If none
    /// comes, the result is `Refused`: a proxy may accept `CLIENT TRACKING` without passing it on.
    pub(crate) fn expect(&mut self, key: &str, deadline: Moment) -> Result<(), Failure> {
        while let Some(message) = self.subscription.next(deadline)? {
            match read(message) {
                Heard::Keys(keys) if !keys.iter().any(|it| it == key.as_bytes()) => {}
                // After a flush of the whole database, Redis does not name this key.
                _ => return Ok(()),
            }
        }
        let message = "`CLIENT TRACKING` was accepted, but no invalidation came for a key that was \
                       changed";
        Err(Failure::Refused(Refusal::found("", message)))
    }

    /// Passes each invalidation to `hear`, until `hear` breaks or the connection fails: see
    /// [`Subscription::listen`].
    pub(crate) fn listen(
        mut self,
        limits: (Duration, Duration),
        mut hear: impl FnMut(Heard) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.subscription
            .listen(limits, |message| hear(message.map_or(Heard::Silence, read)))
    }
}

/// Reads an invalidation: a list of keys, or nil if the whole database was flushed.
fn read(payload: Reply) -> Heard {
    let Reply::Array(keys) = payload else {
        return Heard::Everything;
    };
    let key = |key| {
        if let Reply::Bytes(key) = key {
            Some(key)
        } else {
            None
        }
    };
    Heard::Keys(keys.into_iter().filter_map(key).collect())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::base::key::{Key, MAX_BYTES};
    use crate::client::wire::resp::tests::{encode, garbled_reply, list, whole};

    fn written(keys: &[Vec<u8>]) -> Reply {
        Reply::Array(keys.iter().cloned().map(Reply::Bytes).collect())
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn an_invalidation_is_read_as_it_was_written(keys in vec(vec(any::<u8>(), 0..20), 0..5)) {
            prop_assert_eq!(read(written(&keys)), Heard::Keys(keys));
        }

        /// Anything but a list may mean any key. In a list, anything but a key is left out.
        #[test]
        fn any_invalidation_names_keys_or_all(payload in garbled_reply(vec(vec(any::<u8>(), 0..20), 0..5).prop_map(|keys| written(&keys)))) {
            let expected = match &payload {
                Reply::Array(parts) => Heard::Keys(parts.iter().filter_map(|part| match part {
                    Reply::Bytes(key) => Some(key.clone()),
                    _ => None,
                }).collect()),
                _ => Heard::Everything,
            };
            prop_assert_eq!(read(payload), expected);
        }
    }

    /// Before Redis 7.2, a counter that a script has read is named as well.
    #[test]
    fn an_invalidation_of_the_longest_key_is_not_too_long() {
        let longest = "k".repeat(MAX_BYTES);
        let counter = Key::new(&longest, &*longest).unwrap().counter().unwrap();
        let Reply::Array(mut message) = list(["message", CHANNEL]) else {
            panic!("it is a list")
        };
        message.push(written(&[counter.into_bytes()]));
        let message = Reply::Array(message);
        assert_eq!(whole(&encode(&message)).unwrap(), message);
    }
}
