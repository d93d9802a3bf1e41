//! Counters since the manager was made, cheap enough to be always on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a manager has done since it was made: by [`LockManager::stats`](crate::LockManager::stats).
///
/// Each number is read by itself, so they need not add up to the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks that were taken in Redis.
    pub acquired: u64,
    /// Of these, locks that another thread of this process handed on with its release.
    pub handed_on: u64,
    /// Locks that a thread took once more, without Redis.
    pub reentered: u64,
    /// Locks that were busy at first, and were waited for.
    pub waited: u64,
    /// Attempts that ended because the lock was still busy, `try_lock` among them.
    pub timed_out: u64,
    /// Holds that were lost.
    pub lost: u64,
    /// Leases that were pushed out, by renewal, `extend` or `ensure`.
    pub renewed: u64,
    /// Renewals that got no answer or were refused. Each is tried again while the lease lasts.
    pub renewal_errors: u64,
    /// Releases without an answer that were finished in the background.
    pub late_releases: u64,
    /// Locks of dead processes that were taken over.
    pub reclaimed: u64,
    /// How long it took to get a lock that was taken in Redis, the answer included.
    pub time_waited: Histogram,
    /// How long locks were held, from the outermost lock to the outermost unlock.
    pub time_held: Histogram,
}

/// How many of something took how long, in powers of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS] }
    }
}

/// The last is for everything from 2^38 us, three days, on.
const BUCKETS: usize = 40;

impl Histogram {
    /// Each range that was seen, from the shortest on: everything below this time, but not below half of it, and
    /// how many that were. (The first range starts at zero, and ends at one microsecond.)
    pub fn ranges(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(n, count)| (ceiling(n), *count))
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that this part of them stayed below, rounded up to a power of two: 0.5 for the median.
    /// `None` where there was none.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = part.clamp(0.0, 1.0);
        let mut seen = 0;
        self.ranges().find_map(|(below, count)| {
            seen += count;
            (share(seen, self.count()) >= wanted).then_some(below)
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 are not reached by locking")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn ceiling(bucket: usize) -> Duration {
    Duration::from_micros(1 << bucket)
}

/// Zero for less than a microsecond, else one more than the position of the highest bit.
fn bucket(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let bits = usize::try_from(u64::BITS - micros.leading_zeros()).unwrap_or(BUCKETS);
    bits.min(BUCKETS - 1)
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct Times([Counter; BUCKETS]);

impl Default for Times {
    fn default() -> Self {
        Times(std::array::from_fn(|_| Counter::default()))
    }
}

impl Times {
    pub(crate) fn add(&self, time: Duration) {
        self.0[bucket(time)].add(1);
    }

    fn read(&self) -> Histogram {
        Histogram { counts: std::array::from_fn(|n| self.0[n].read()) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) acquired: Counter,
    pub(crate) handed_on: Counter,
    pub(crate) reentered: Counter,
    pub(crate) waited: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) lost: Counter,
    pub(crate) renewed: Counter,
    pub(crate) renewal_errors: Counter,
    pub(crate) late_releases: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) time_waited: Times,
    pub(crate) time_held: Times,
}

impl Counters {
    pub(crate) fn read(&self) -> Stats {
        Stats {
            acquired: self.acquired.read(),
            handed_on: self.handed_on.read(),
            reentered: self.reentered.read(),
            waited: self.waited.read(),
            timed_out: self.timed_out.read(),
            lost: self.lost.read(),
            renewed: self.renewed.read(),
            renewal_errors: self.renewal_errors.read(),
            late_releases: self.late_releases.read(),
            reclaimed: self.reclaimed.read(),
            time_waited: self.time_waited.read(),
            time_held: self.time_held.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_powers_of_two() {
        let times = Times::default();
        for micros in [0, 1, 2, 3, 4, 1000, u64::MAX] {
            times.add(Duration::from_micros(micros));
        }
        times.add(Duration::from_nanos(999));
        let seen: Vec<_> = times.read().ranges().map(|(below, n)| (below.as_micros(), n)).collect();
        assert_eq!(seen, [(1, 2), (2, 1), (4, 2), (8, 1), (1024, 1), (1 << 39, 1)]);
    }

    #[test]
    fn quantiles_are_rounded_up() {
        let times = Times::default();
        assert_eq!(times.read().quantile(0.5), None);
        (0..99).for_each(|_| times.add(Duration::from_micros(3)));
        times.add(Duration::from_millis(5));
        let histogram = times.read();
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.quantile(0.5), Some(Duration::from_micros(4)));
        assert_eq!(histogram.quantile(0.99), Some(Duration::from_micros(4)));
        assert_eq!(histogram.quantile(1.0), Some(Duration::from_micros(8192)));
    }
}
