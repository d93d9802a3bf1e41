//! What this process holds, and when each hold has to be renewed: a table, without clocks, threads or Redis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::hold::Hold;

/// The first pause after a renewal or a late release that failed; doubles with each.
const FIRST_RETRY: Duration = Duration::from_millis(20);

/// The longest such pause.
const LAST_RETRY: Duration = Duration::from_millis(500);

/// The holds of one manager, and the releases that it still owes.
///
/// A hold is entered when it is taken and removed before its release is sent, so nothing that is found here is
/// past its release, and nothing is renewed that is not found here.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_number: HashMap<u64, Entry>,
    owed: Vec<Owed>,
}

#[derive(Debug)]
struct Entry {
    hold: Arc<Hold>,
    /// When to renew it next, or to look whether it is over; never, where nobody wants to know.
    due: Moment,
    retry: Duration,
}

/// A key that may still stand in Redis after its release: nobody's, but in everybody's way.
#[derive(Clone, Debug)]
pub(crate) struct Leftover {
    pub(crate) redis_key: String,
    pub(crate) token: String,
    /// When Redis has certainly let go of it by itself.
    pub(crate) gone_by: Moment,
}

#[derive(Debug)]
struct Owed {
    leftover: Leftover,
    due: Moment,
    retry: Duration,
}

/// What there is to do now.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// To be renewed, in one pipeline.
    pub(crate) renew: Vec<Arc<Hold>>,
    /// Over by the clock.
    pub(crate) over: Vec<Arc<Hold>>,
    /// To be deleted, if they still stand there.
    pub(crate) remove: Vec<Leftover>,
}

impl Due {
    pub(crate) fn is_empty(&self) -> bool {
        self.renew.is_empty() && self.over.is_empty() && self.remove.is_empty()
    }
}

impl Leases {
    /// Enters a hold; `told` says whether somebody wants to know of its loss. Returns when it is due.
    pub(crate) fn enter(&mut self, hold: Arc<Hold>, told: bool, now: Moment) -> Moment {
        let due = first_due(&hold, told, now);
        self.by_number.insert(hold.number(), Entry { hold, due, retry: FIRST_RETRY });
        due
    }

    /// Removes a hold, before its release.
    pub(crate) fn remove(&mut self, hold: &Hold) {
        self.by_number.remove(&hold.number());
    }

    /// True until the release of the hold begins: what Redis says of it later is about something else.
    pub(crate) fn has(&self, hold: &Hold) -> bool {
        self.by_number.contains_key(&hold.number())
    }

    /// Notes a key that has to be deleted yet.
    pub(crate) fn owe(&mut self, leftover: Leftover, now: Moment) -> Moment {
        let due = now.after(FIRST_RETRY);
        self.owed.push(Owed { leftover, due, retry: FIRST_RETRY });
        due
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Moment {
        let holds = self.by_number.values().map(|entry| entry.due);
        let owed = self.owed.iter().map(|owed| owed.due);
        holds.chain(owed).min().unwrap_or(Moment::NEVER)
    }

    /// When the first hold runs out: no call to Redis may keep the keeper past that.
    pub(crate) fn first_end(&self) -> Moment {
        let due = self.by_number.values().filter(|entry| entry.due < Moment::NEVER);
        due.map(|entry| entry.hold.valid_until())
            .filter(|end| *end > Moment::PAST)
            .min()
            .unwrap_or(Moment::NEVER)
    }

    /// What there is to do at `now`. Each is due again after a pause, in case nothing comes of it.
    ///
    /// Renewals are taken along up to an eighth of their period early, so that ten thousand holds that were
    /// taken one after the other are renewed in a few pipelines, not in ten thousand.
    pub(crate) fn take_due(&mut self, now: Moment) -> Due {
        let mut due = Due::default();
        if self.next() > now {
            return due;
        }
        for entry in self.by_number.values_mut().filter(|entry| entry.due < Moment::NEVER) {
            if !entry.hold.is_valid(now) {
                due.over.push(Arc::clone(&entry.hold));
                entry.due = Moment::NEVER; // Told once. It stays to be listed until its guards are gone.
            } else if let Some(every) = entry.hold.renews_every(now) {
                if entry.due <= now.after(every / 8) {
                    due.renew.push(Arc::clone(&entry.hold));
                    entry.due = now.after(entry.retry).min(entry.hold.valid_until());
                    entry.retry = (entry.retry * 2).min(LAST_RETRY);
                }
            } else {
                entry.due = entry.hold.valid_until();
            }
        }
        self.owed.retain_mut(|owed| {
            if owed.due <= now {
                due.remove.push(owed.leftover.clone());
                owed.due = now.after(owed.retry);
                owed.retry = (owed.retry * 2).min(LAST_RETRY);
            }
            owed.leftover.gone_by > now
        });
        due
    }

    /// A renewal worked: the next is a period after it was sent.
    pub(crate) fn renewed(&mut self, hold: &Hold, told: bool, sent: Moment) {
        if let Some(entry) = self.by_number.get_mut(&hold.number()) {
            entry.retry = FIRST_RETRY;
            entry.due = first_due(hold, told, sent);
        }
    }

    /// A hold was lost, and that is known: there is nothing to do for it any more.
    pub(crate) fn lost(&mut self, hold: &Hold) {
        if let Some(entry) = self.by_number.get_mut(&hold.number()) {
            entry.due = Moment::NEVER;
        }
    }

    /// A leftover is gone, or not ours any more.
    pub(crate) fn settled(&mut self, leftover: &Leftover) {
        self.owed.retain(|owed| owed.leftover.token != leftover.token);
    }

    /// Every hold there is.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.by_number.values().map(|entry| &entry.hold)
    }
}

fn first_due(hold: &Hold, told: bool, now: Moment) -> Moment {
    match hold.renews_every(now) {
        Some(every) => now.after(every).min(hold.valid_until()),
        None if told => hold.valid_until(),
        None => Moment::NEVER,
    }
}
