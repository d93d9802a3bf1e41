//! How long to pause before the next try.

use std::time::Duration;

use crate::base::random::between;

/// Pauses that double up to a limit, each shortened by chance so that those who wait do not march in step.
///
/// A pause is drawn evenly from the upper half of its step ("equal jitter", from the study of the variants at
/// <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    step: Duration,
    longest: Duration,
}

impl Backoff {
    /// For a lock that somebody holds: the first tries come quickly, since most locks are held shortly.
    pub(crate) fn for_busy(longest: Duration) -> Backoff {
        Backoff::new(Duration::from_millis(1), longest)
    }

    /// For a server that cannot be reached or does not take commands now.
    pub(crate) fn after_failure() -> Backoff {
        Backoff::new(Duration::from_millis(10), Duration::from_millis(500))
    }

    /// For a connection that nobody waits for.
    pub(crate) fn for_listener() -> Backoff {
        Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
    }

    /// For a server that does not tell of changes: that hardly ever passes.
    pub(crate) fn for_deafness() -> Backoff {
        Backoff::new(Duration::from_secs(5), Duration::from_secs(600))
    }

    fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, step: first, longest }
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

/// How long to sleep for a lock whose end Redis will tell of, in case that it does not.
pub(crate) fn safety_poll() -> Duration {
    between(Duration::from_secs(10), Duration::from_secs(15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_start_again() {
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
