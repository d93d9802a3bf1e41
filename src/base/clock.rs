//! The clock that leases are measured by: it never steps, and it counts suspend on Linux, Android
//! and Apple's systems.

use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
use rustix::time::ClockId;

/// An instant on this machine's clock, in nanoseconds.
///
/// A plain number rather than [`std::time::Instant`], because validity is kept in an atomic and
/// read without a lock, and because `Instant` stands still while a Linux machine or a Mac is
/// suspended: a laptop that slept for an hour would come back believing in a lease of thirty
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Later than every other moment: a wait or a lease without an end.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    /// Earlier than, or equal to, every other moment.
    pub(crate) const PAST: Moment = Moment(0);

    #[cfg(not(test))]
    pub(crate) fn now() -> Moment {
        Moment(read())
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Saturates at [`Moment::NEVER`], so that a wait of `Duration::MAX` is a wait without limit.
    pub(crate) fn after(self, span: Duration) -> Moment {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }

    /// The time from `earlier` to this moment; zero where this moment is not the later one.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// It counts suspend there, which `Instant` (`CLOCK_UPTIME_RAW`) does not.
#[cfg(target_vendor = "apple")]
const CLOCK: ClockId = ClockId::Monotonic;

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn read() -> u64 {
    let time = rustix::time::clock_gettime(CLOCK);
    // Never negative: the clock starts at zero when the machine does.
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
impl Moment {
    /// Where every order of events is tried, time is a matter of that.
    pub(crate) fn now() -> Moment {
        Moment(crate::base::scheduler::time().unwrap_or_else(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_forward_only() {
        let first = Moment::now();
        let second = Moment::now();
        assert!(second >= first);
        assert_eq!(first.since(second.after(Duration::from_secs(1))), Duration::ZERO);
    }

    #[test]
    fn the_longest_wait_is_never() {
        assert_eq!(Moment::now().after(Duration::MAX), Moment::NEVER);
        assert!(Moment::now() < Moment::NEVER && Moment::PAST < Moment::now());
    }
}
