//! An eye on a hold, for other threads.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::LostCause;
use crate::hold::Hold;
use crate::process;

/// Watches a hold from any thread: by [`LockGuard::watch`](crate::LockGuard::watch).
///
/// For handing to a helper thread that has to stop when the lock is lost. It keeps nothing locked: when the guards are
/// gone, so is the hold, and the watch says so.
#[derive(Clone, Debug)]
pub struct LockWatch {
    hold: Arc<Hold>,
    born: u32,
}

impl LockWatch {
    pub(crate) fn new(hold: Arc<Hold>, born: u32) -> LockWatch {
        LockWatch { hold, born }
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.key.name()
    }

    /// As [`LockGuard::is_valid`](crate::LockGuard::is_valid): false too once the lock is being released.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let now = Moment::now();
        self.hold.is_valid(now) && process::id(now) == self.born
    }

    /// Blocks until the hold is lost, at most for so long: how it was lost.
    ///
    /// `None` if it was not lost within that time, and at once if it was given back. Sends nothing; wakes up when the
    /// lease runs out, or as soon as a renewal finds that the key is gone.
    #[must_use = "`None` means that it was not lost"]
    pub fn wait_lost(&self, limit: Duration) -> Option<LostCause> {
        let now = Moment::now();
        if process::id(now) != self.born {
            return None; // A forked child's copy: nobody would ever wake it up.
        }
        self.hold.wait_lost(now.after(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::tests::sample;

    const SENT: Moment = Moment::from_nanos(1_000);

    fn one_second() -> Hold {
        sample("a", Duration::from_secs(1), SENT)
    }

    #[test]
    fn only_news_of_a_shorter_life_is_news() {
        let hold = one_second();
        let end = hold.valid_until();
        assert!(!hold.lives_until(end));
        let sooner = SENT.after(Duration::from_millis(500));
        assert!(hold.lives_until(sooner));
        assert!(!hold.lives_until(end) && !hold.lives_until(sooner));
        assert_eq!(hold.valid_until(), sooner);
    }

    #[test]
    fn a_hold_is_over_when_it_has_ended_but_not_while_it_is_released() {
        let hold = one_second();
        let end = hold.valid_until();
        assert!(!hold.is_over(SENT));
        hold.close(SENT);
        assert!(!hold.is_over(SENT) && !hold.is_over(end));
        assert_eq!(hold.wait_lost(Moment::now()), None);
        assert_eq!(hold.lost(), None, "that is for the release to say");
        hold.release();
        assert!(hold.is_over(SENT));
        assert!(one_second().is_over(end) && one_second().is_over(end.after(Duration::from_secs(1))));
    }
}
