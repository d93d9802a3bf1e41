//! How long to pause before the next attempt.

use std::time::Duration;

use crate::base::random::between;

/// Exponential backoff with jitter.
///
/// A pause is drawn evenly from the upper half of its step, and each step is twice the one before,
/// up to a limit ("equal jitter" of
/// <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    step: Duration,
    longest: Duration,
}

impl Backoff {
    /// For a busy lock. The first attempts come quickly, because most locks are held briefly.
    pub(crate) fn for_busy(longest: Duration) -> Backoff {
        Backoff::new(Duration::from_millis(1), longest)
    }

    /// For a server that cannot be reached or refuses commands for now.
    pub(crate) fn after_failure() -> Backoff {
        Backoff::new(Duration::from_millis(10), Duration::from_millis(500))
    }

    /// For the listener's connection: waiters poll while it is down.
    pub(crate) fn for_listener() -> Backoff {
        Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
    }

    /// For a server that sends no invalidations. Such a server rarely begins to send them.
    pub(crate) fn without_invalidations() -> Backoff {
        Backoff::new(Duration::from_secs(5), Duration::from_secs(600))
    }

    fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            first,
            step: first,
            longest,
        }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        let step = self.step;
        self.step = (step * 2).min(self.longest);
        between(step / 2, step)
    }

    pub(crate) fn reset(&mut self) {
        self.step = self.first;
    }
}

/// How long a waiter that relies on an invalidation sleeps before it asks Redis all the same.
pub(crate) fn safety_poll() -> Duration {
    between(Duration::from_secs(10), Duration::from_secs(15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_start_again_after_a_reset() {
        let mut backoff = Backoff::for_busy(Duration::from_millis(64));
        let mut step = Duration::from_millis(1);
        for _ in 0..20 {
            let pause = backoff.pause();
            assert!(step / 2 <= pause && pause <= step, "{pause:?} of {step:?}");
            step = (step * 2).min(Duration::from_millis(64));
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(1));
    }
}
