//! What a proxied server was asked about locks, and what it did: with times that all processes of the machine share.

use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// Everything that was forwarded, in that order, as far as it can change a lock.
#[derive(Default)]
pub(crate) struct Journal {
    deeds: Mutex<Vec<Deed>>,
}

/// A command that went to the server.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) words: Vec<String>,
    /// Just before it was written: the server executed it later than that, if at all.
    pub(crate) sent: Duration,
    /// When its reply came, and how that began: the server executed it earlier. `None` where no reply came.
    pub(crate) answered: Option<(Duration, Vec<u8>)>,
}

/// A place in the journal that is open for a reply.
pub(crate) type Open = Option<usize>;

impl Journal {
    /// Notes a command that is about to be written.
    pub(super) fn note(&self, words: &[String]) -> Open {
        let matters = ["SET", "EVALSHA", "EVAL"].iter().any(|name| words[0].eq_ignore_ascii_case(name));
        if !matters {
            return None;
        }
        let mut deeds = self.deeds.lock();
        deeds.push(Deed { words: words.to_vec(), sent: now(), answered: None });
        Some(deeds.len() - 1)
    }

    /// Notes its reply.
    pub(super) fn answer(&self, open: Open, reply: &[u8]) {
        if let Some(place) = open {
            let start = reply[..reply.len().min(32)].to_vec();
            self.deeds.lock()[place].answered = Some((now(), start));
        }
    }

    /// Everything so far.
    pub(crate) fn deeds(&self) -> Vec<Deed> {
        self.deeds.lock().clone()
    }
}

/// The time since the machine started, suspend included.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).expect("never negative")
}
