//! Client-side caching: which client has read which key, and which one hears of its changes.

use std::mem;

use crate::simulation::redis::Client;
use crate::simulation::redis::resp::{write_bulk, write_message};
use crate::simulation::redis::state::State;

const CHANNEL: &[u8] = b"__redis__:invalidate";

/// The payload for one key begins with this.
const ONE_KEY: &[u8] = b"*1\r\n";

/// The payload after a flush.
const ALL_KEYS: &[u8] = b"$-1\r\n";

/// What a client asked for by `CLIENT TRACKING ON`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tracking {
    /// The client that gets the invalidations. Without one, nobody does: a connection with RESP2
    /// cannot be told anything between its replies.
    pub(super) redirect: Option<Client>,
    /// The client is not told of its own changes.
    pub(super) noloop: bool,
}

impl State {
    /// Notes that the current client has read these keys, if it is tracked.
    pub(super) fn remember<K: AsRef<[u8]>>(&mut self, keys: &[K]) {
        let Some(client) = self.current else { return };
        if self
            .clients
            .get(&client)
            .is_none_or(|it| it.tracking.is_none())
        {
            return;
        }
        for key in keys {
            let key = key.as_ref();
            match self.readers.get_mut(key) {
                Some(readers) => _ = readers.insert(client),
                None => _ = self.readers.insert(key.to_vec(), [client].into()),
            }
        }
    }

    /// Tells the clients that have read the key that it has changed. Each of them has to read it
    /// again to be told once more.
    pub(super) fn invalidate(&mut self, key: &[u8]) {
        let Some(readers) = self.readers.remove(key) else {
            return;
        };
        for reader in readers {
            let Some(tracking) = self.clients.get(&reader).and_then(|it| it.tracking) else {
                continue;
            };
            if self.current == Some(reader) {
                if !tracking.noloop {
                    self.own_invalidations.push(Some(key.to_vec()));
                }
            } else {
                self.tell(tracking, Some(key));
            }
        }
    }

    /// Tells all tracked clients that any key may have changed, whether they have read one or not.
    pub(super) fn invalidate_all(&mut self) {
        self.readers.clear();
        let tracked = self
            .clients
            .iter()
            .filter_map(|(client, it)| Some((*client, it.tracking?)));
        for (client, tracking) in tracked.collect::<Vec<_>>() {
            if self.current == Some(client) {
                self.own_invalidations.push(None);
            } else {
                self.tell(tracking, None);
            }
        }
    }

    /// Sends the current client's own invalidations. Called behind its reply.
    pub(super) fn tell_own(&mut self, client: Client) {
        if self.own_invalidations.is_empty() {
            return;
        }
        let tracking = self.clients.get(&client).and_then(|it| it.tracking);
        for key in mem::take(&mut self.own_invalidations) {
            if let Some(tracking) = tracking {
                self.tell(tracking, key.as_deref());
            }
        }
    }

    /// Sends an invalidation, if its receiver is there and has subscribed to anything.
    fn tell(&mut self, tracking: Tracking, key: Option<&[u8]>) {
        let Some(target) = tracking.redirect else {
            return;
        };
        if self
            .clients
            .get(&target)
            .is_none_or(|it| it.channels.is_empty())
            || self.faults.unheard.contains(&target)
        {
            return;
        }
        self.write(target, |out| match key {
            None => write_message(out, CHANNEL, ALL_KEYS),
            Some(key) => {
                write_message(out, CHANNEL, ONE_KEY);
                write_bulk(out, key);
            }
        });
    }
}
