//! A Redis with one key that expires, for the queue scenes.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::Mutex;
use crate::store::Compared;

/// A Redis with one key: its token, and when it expires.
#[derive(Default)]
pub(super) struct Redis {
    key: Mutex<Option<(String, Moment)>>,
}

impl Redis {
    /// `SET NX PX`.
    pub(super) fn claim(&self, token: &str, lease: Duration) -> bool {
        let mut key = self.key.lock();
        let now = Moment::now();
        let free = key.as_ref().is_none_or(|(_, until)| *until <= now);
        if free {
            *key = Some((token.to_owned(), now.after(lease)));
        }
        free
    }

    /// Compare and delete.
    pub(super) fn remove(&self, token: &str) -> Compared {
        let mut key = self.key.lock();
        let now = Moment::now();
        key.take_if(|(_, until)| *until <= now);
        match key.take_if(|(stored, _)| stored == token) {
            Some(_) => Compared::Done,
            None if key.is_some() => Compared::NotOurs,
            None => Compared::Absent,
        }
    }

    pub(super) fn token(&self) -> Option<String> {
        let key = self.key.lock();
        key.as_ref()
            .filter(|(_, until)| Moment::now() < *until)
            .map(|(token, _)| token.clone())
    }
}
