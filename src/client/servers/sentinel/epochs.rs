//! Which answers of sentinels are out of date.
//!
//! For a moment after a failover, some sentinels still name the old master, and a planned failover
//! leaves it writable. A client that knows better must not go back to it: it would find none of its
//! new locks there, and take them for lost.
//!
//! Each failover has an epoch of its own, higher than those before. But the sentinel that leads a
//! failover names the new master before it shows the new epoch. So the master that was left is
//! remembered as well.

use std::time::Duration;

use crate::base::clock::Moment;

/// For how long an epoch counts after a sentinel has shown it last, if other sentinels cannot be
/// asked. (Sentinels that were set up anew begin with a lower epoch.) While no connection is
/// opened, they are asked every ten seconds, so a sentinel that knows the epoch may miss two
/// questions.
const COUNTS_FOR: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The newest epoch that a sentinel has shown, and when a sentinel has shown it last.
    newest: u64,
    shown: Moment,
    /// The master from which this process has switched away last, and the newest epoch at that
    /// time.
    left: Option<(String, u64)>,
}

impl Epochs {
    /// True if a sentinel that names this master, at this epoch, has not heard of the latest
    /// failover. Without an epoch, nobody can tell.
    pub(crate) fn is_outdated(&self, master: &str, epoch: Option<u64>) -> bool {
        let was_left = |epoch| {
            self.left
                .as_ref()
                .is_some_and(|(name, at)| name == master && epoch <= *at)
        };
        epoch.is_some_and(|epoch| epoch < self.newest || was_left(epoch))
    }

    /// Notes an answer that is not out of date.
    pub(crate) fn note(&mut self, epoch: Option<u64>, now: Moment) {
        // Another thread may have noted a newer one since the answer was judged.
        if let Some(epoch) = epoch.filter(|epoch| self.newest <= *epoch) {
            self.newest = epoch;
            self.shown = now;
        }
    }

    /// Notes that this is not the master any more.
    pub(crate) fn leave(&mut self, master: &str) {
        self.left = Some((master.to_owned(), self.newest));
    }

    /// Notes that the server which was named in place of the one that was left could not be used.
    /// The one that was left may be the master after all.
    pub(crate) fn may_return(&mut self) {
        self.left = None;
    }

    /// True if no sentinel has shown the newest epoch for long.
    pub(crate) fn is_old(&self, now: Moment) -> bool {
        now.since(self.shown) > COUNTS_FOR
    }

    /// Forgets all, because no sentinel knows better than this epoch.
    pub(crate) fn begin_anew(&mut self, epoch: u64, now: Moment) {
        *self = Epochs {
            newest: epoch,
            shown: now,
            left: None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::servers::sentinel::watch::LOOKS_EVERY;

    #[test]
    fn an_answer_from_before_the_latest_failover_is_out_of_date() {
        let now = Moment::now();
        let mut epochs = Epochs::default();
        epochs.note(Some(3), now);
        assert!(epochs.is_outdated("a", Some(2)) && !epochs.is_outdated("a", Some(3)));
        assert!(!epochs.is_outdated("a", None), "nobody can tell");
        // The sentinel that leads a failover names `b` before it shows the new epoch.
        assert!(!epochs.is_outdated("b", Some(3)));
        epochs.note(Some(3), now);
        epochs.leave("a");
        assert!(epochs.is_outdated("a", Some(3)) && !epochs.is_outdated("b", Some(3)));
        assert!(!epochs.is_outdated("b", Some(4)));
        epochs.note(Some(4), now);
        assert!(epochs.is_outdated("a", Some(3)) && epochs.is_outdated("b", Some(3)));
        assert!(
            !epochs.is_outdated("a", Some(5)),
            "a later failover may lead back"
        );
        epochs.note(Some(3), now);
        assert!(
            epochs.is_outdated("c", Some(3)),
            "another thread has noted a newer one"
        );
    }

    #[test]
    fn the_master_that_was_left_counts_again_if_the_new_one_cannot_be_used() {
        let mut epochs = Epochs::default();
        epochs.note(Some(3), Moment::now());
        epochs.leave("a");
        epochs.may_return();
        assert!(!epochs.is_outdated("a", Some(3)) && epochs.is_outdated("a", Some(2)));
    }

    #[test]
    fn an_epoch_that_nobody_shows_is_forgotten_in_the_end() {
        let now = Moment::now();
        let mut epochs = Epochs::default();
        epochs.note(Some(3), now);
        epochs.leave("a");
        let two_questions_missed = now.after(2 * (LOOKS_EVERY + Duration::from_secs(1)));
        assert!(!epochs.is_old(two_questions_missed) && !epochs.is_old(now.after(COUNTS_FOR)));
        assert!(epochs.is_old(now.after(2 * COUNTS_FOR)));
        epochs.begin_anew(1, now);
        assert!(!epochs.is_outdated("a", Some(1)) && !epochs.is_old(now));
    }
}
