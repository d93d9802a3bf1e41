//! The time until which a hold can be trusted: one number, which is read without a lock.
//!
//! | from | by | to |
//! |---|---|---|
//! | trusted until a moment | a renewal, in time | trusted until a later moment |
//! | trusted until a moment | a shorter lease | trusted until an earlier moment |
//! | trusted until a moment | a look at or after that moment | run out |
//! | trusted, or run out | the start of the release | leaving |
//! | any | the end of the hold is recorded | ended |
//!
//! Nothing leads back to trust. The keeper may have read the clock a moment before the lease ran
//! out, and be about to write the end that a renewal brings. Without the state "run out", a hold
//! that a thread has already found to be over would be valid again.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::atomic::{AtomicU64, Ordering};

/// Each of these is earlier than any time that the clock can show.
const LEAVING: u64 = 0;
const RUN_OUT: u64 = 1;
const ENDED: u64 = 2;

#[derive(Debug)]
pub(super) struct Validity(AtomicU64);

impl Validity {
    pub(super) fn until(end: Moment) -> Validity {
        Validity(AtomicU64::new(end.as_nanos()))
    }

    /// The end of the validity. [`Moment::PAST`] once the hold is leaving or has ended.
    pub(super) fn end(&self) -> Moment {
        match self.0.load(Ordering::Acquire) {
            ENDED => Moment::PAST,
            until => Moment::from_nanos(until),
        }
    }

    /// How long the hold can be trusted from `now` on. `None` if it cannot be, now or ever again.
    pub(super) fn left(&self, now: Moment) -> Option<Duration> {
        let mut old = self.0.load(Ordering::Acquire);
        loop {
            let until = Moment::from_nanos(old);
            if now < until {
                return Some(until.since(now));
            }
            if old <= ENDED {
                return None;
            }
            // If a renewal comes first, this looks again.
            let (set, unset) = (Ordering::AcqRel, Ordering::Acquire);
            match self.0.compare_exchange(old, RUN_OUT, set, unset) {
                Ok(_) => return None,
                Err(changed) => old = changed,
            }
        }
    }

    /// A renewal was answered at `now`. False if the hold is no longer trusted.
    pub(super) fn renew(&self, until: Option<Moment>, now: Moment) -> bool {
        self.change(|old| {
            (now < Moment::from_nanos(old)).then(|| until.map_or(old, Moment::as_nanos))
        })
        .is_some()
    }

    /// The hold is trusted until `limit` at most. True if it was trusted for longer.
    pub(super) fn shorten(&self, limit: Moment) -> bool {
        self.0.fetch_min(limit.as_nanos(), Ordering::AcqRel) > limit.as_nanos()
    }

    /// The release begins. Returns the end of the validity if that is after `now`.
    pub(super) fn leave(&self, now: Moment) -> Option<Moment> {
        let before = self.change(|old| (old != ENDED).then_some(LEAVING))?;
        Some(Moment::from_nanos(before)).filter(|until| now < *until)
    }

    /// The end of the hold is recorded.
    pub(super) fn finish(&self) {
        self.0.store(ENDED, Ordering::Release);
    }

    /// True once the hold has run out or ended. False while its release is under way.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.left(now).is_none() && self.0.load(Ordering::Acquire) != LEAVING
    }

    fn change(&self, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let (set, unset) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.fetch_update(set, unset, change).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Moment = Moment::from_nanos(1_000);
    const LATER: Moment = Moment::from_nanos(2_000);
    const BEFORE: Moment = Moment::from_nanos(999);

    /// All transitions: what each event turns each state into, as seen before the end of the lease.
    #[test]
    fn nothing_leads_back_to_trust() {
        let states: [fn(&Validity); 4] = [
            |_| (),
            |it| assert_eq!(it.left(END), None),
            |it| assert_eq!(it.leave(BEFORE), Some(END)),
            Validity::finish,
        ];
        let events: [fn(&Validity); 6] = [
            |it| _ = it.renew(Some(LATER), BEFORE),
            |it| _ = it.renew(None, BEFORE),
            |it| _ = it.shorten(Moment::from_nanos(500)),
            |it| _ = it.left(END),
            |it| _ = it.leave(BEFORE),
            Validity::finish,
        ];
        let (lives, runs_out, leaves, ends) = ([2_000, 1_000, 500], RUN_OUT, LEAVING, ENDED);
        let table = [
            [lives[0], lives[1], lives[2], runs_out, leaves, ends],
            [runs_out, runs_out, runs_out, runs_out, leaves, ends],
            [leaves, leaves, leaves, leaves, leaves, ends],
            [ends; 6],
        ];
        for (reach, row) in states.iter().zip(table) {
            for (event, expected) in events.iter().zip(row) {
                let validity = Validity::until(END);
                reach(&validity);
                event(&validity);
                assert_eq!(validity.0.load(Ordering::Relaxed), expected, "{row:?}");
                let is_trusted = validity.left(Moment::from_nanos(499)).is_some();
                assert_eq!(is_trusted, expected > ENDED);
                assert_eq!(
                    validity.is_over(BEFORE),
                    [RUN_OUT, ENDED, 500].contains(&expected)
                );
            }
        }
    }
}
