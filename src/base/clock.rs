//! The clock for leases. It never steps, and on Linux, Android and Apple's systems it goes on while
//! the machine is suspended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
use rustix::time::ClockId;

/// An instant on this machine's clock, in nanoseconds.
///
/// This is a number rather than a [`std::time::Instant`], for two reasons. A hold keeps the end of
/// its validity in an atomic. And on Linux and macOS, `Instant` stands still while the machine is
/// suspended: after an hour of sleep, a laptop would still trust a lease of thirty seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// See [`Moment::one_wait_from`].
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Moment {
    /// Later than every other moment: the end of a wait without a limit.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    /// Earlier than, or equal to, every other moment.
    pub(crate) const PAST: Moment = Moment(0);

    pub(crate) fn now() -> Moment {
        #[cfg(test)]
        if let Some(nanos) = crate::base::sync::scheduler::time() {
            return Moment(nanos);
        }
        Moment(read())
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Saturates at [`Moment::NEVER`], so that a wait of `Duration::MAX` has no limit.
    pub(crate) fn after(self, span: Duration) -> Moment {
        self.after_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn after_nanos(self, nanos: u64) -> Moment {
        Moment(self.0.saturating_add(nanos))
    }

    /// This moment, `span` earlier. Always later than [`Moment::PAST`]. [`Moment::NEVER`] stays as
    /// it is.
    pub(crate) fn before(self, span: Duration) -> Moment {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if self == Moment::NEVER {
            self
        } else {
            Moment(self.0.saturating_sub(nanos).max(1))
        }
    }

    /// The time from `earlier` to this moment. Zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long a thread may wait on a condition variable before it reads this clock again, if it
    /// waits until this moment: for a second at most.
    ///
    /// While the machine is suspended, this clock goes on and the clock of the wait stands still.
    /// With one long wait, the thread would wake too late by the whole time of the suspension.
    pub(crate) fn one_wait_from(self, now: Moment) -> Duration {
        let wait = self.since(now);
        if self == Moment::NEVER {
            wait
        } else {
            wait.min(LONGEST_WAIT)
        }
    }
}

/// The time since 1970, by the clock that people set. In a run of the scheduler, by the scheduler's
/// clock.
pub(crate) fn since_1970() -> Duration {
    #[cfg(test)]
    if let Some(nanos) = crate::base::sync::scheduler::time() {
        return Duration::from_nanos(nanos);
    }
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// On Apple's systems, this clock goes on while the machine is suspended. The clock of `Instant`
/// (`CLOCK_UPTIME_RAW`) stands still.
#[cfg(target_vendor = "apple")]
const CLOCK: ClockId = ClockId::Monotonic;

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn read() -> u64 {
    let time = rustix::time::clock_gettime(CLOCK);
    // Never negative: the clock starts at zero when the machine boots.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanos
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn read() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_reads_the_clock_at_least_once_a_second_while_it_waits_for_a_moment() {
        let at = |nanos: u64| Moment::from_nanos(nanos);
        assert_eq!(at(500).one_wait_from(at(200)), Duration::from_nanos(300));
        assert_eq!(at(200).one_wait_from(at(500)), Duration::ZERO);
        assert_eq!(
            at(10_000_000_000).one_wait_from(at(0)),
            Duration::from_secs(1)
        );
        assert!(Moment::NEVER.one_wait_from(at(0)) > Duration::from_secs(1_000_000));
    }

    #[test]
    fn a_wait_of_the_longest_duration_has_no_limit() {
        assert_eq!(Moment::now().after(Duration::MAX), Moment::NEVER);
        assert!(Moment::now() < Moment::NEVER && Moment::PAST < Moment::now());
    }
}
