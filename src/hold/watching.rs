//! A thread waits for the end of a hold, or for the moment when little of it is left.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::hold::Hold;

impl Hold {
    /// Waits until the hold has ended or the deadline has passed. Returns how it was lost, if it
    /// was.
    pub(crate) fn wait_lost(&self, deadline: Moment) -> Option<LostCause> {
        self.wait(|_| deadline);
        self.lost()
    }

    /// Waits until the hold has ended, or can be trusted for `left` at most. Returns how long it
    /// can be trusted; zero if it was lost. `None` if it was released.
    pub(crate) fn wait_at_risk(&self, left: Duration) -> Option<Duration> {
        self.wait(|valid_until| valid_until.before(left))
            .or_else(|| self.lost().map(|_| Duration::ZERO))
    }

    /// Waits until the hold has ended, or until the moment that `deadline` computes from the end of
    /// its validity. ([`Moment::NEVER`] while the release is in progress: only its end counts
    /// then.) Returns how long the hold can be trusted. `None` if it has ended.
    fn wait(&self, deadline: impl Fn(Moment) -> Moment) -> Option<Duration> {
        let mut watching = self.facts.lock();
        loop {
            let now = Moment::now();
            if watching.end.is_some() {
                return None;
            }
            let known = Some(self.valid_until()).filter(|until| *until > Moment::PAST);
            let valid_until = known.unwrap_or(Moment::NEVER);
            if valid_until <= now {
                drop(watching);
                self.lose(LostCause::Expired);
                return None;
            }
            let deadline = deadline(valid_until);
            if deadline <= now {
                return Some(valid_until.since(now));
            }
            // A renewal wakes nobody: the thread looks again when the hold would have been at risk.
            self.changed
                .wait_for(&mut watching, valid_until.min(deadline).one_wait_from(now));
        }
    }

    /// The name of the lock and how it was lost, if the hold cannot be trusted at `now`.
    pub(crate) fn loss(&self, now: Moment) -> Option<(String, LostCause)> {
        self.check(now).err()?;
        Some((self.key.name().to_string(), self.lost()?))
    }

    /// Wakes the threads in `wait`.
    ///
    /// A thread may have looked at the hold just before this change and not be asleep yet. It would
    /// miss the notification and sleep until the lease ends. Such a thread holds the mutex until it
    /// sleeps, so this function takes the mutex first.
    pub(super) fn wake_watchers(&self) {
        drop(self.facts.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::tests::sample;

    #[test]
    fn wait_lost_returns_how_the_hold_was_lost() {
        let hold = std::sync::Arc::new(sample("a", Duration::from_secs(30), Moment::now()));
        assert_eq!(hold.wait_lost(Moment::now()), None);
        let waiter = std::thread::spawn({
            let hold = std::sync::Arc::clone(&hold);
            move || hold.wait_lost(Moment::NEVER)
        });
        hold.lose(LostCause::Deleted);
        assert_eq!(waiter.join().unwrap(), Some(LostCause::Deleted));

        let short = sample("b", Duration::from_millis(20), Moment::now());
        assert_eq!(short.wait_lost(Moment::NEVER), Some(LostCause::Expired));
    }

    #[test]
    fn wait_at_risk_says_how_the_hold_has_ended() {
        let ends: [(fn(&Hold), _); 2] = [
            (
                |hold| _ = hold.lose(LostCause::Deleted),
                Some(Duration::ZERO),
            ),
            (Hold::mark_released, None),
        ];
        for (end, told) in ends {
            let hold = sample("a", Duration::from_secs(30), Moment::now());
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| hold.wait_at_risk(Duration::from_secs(5)));
                hold.close(Moment::now());
                end(&hold);
                assert_eq!(waiter.join().unwrap(), told);
            });
        }
    }
}
