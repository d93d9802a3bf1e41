//! The counters of a manager, and the statistics that a program reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of what a manager has done since it was made, from
/// [`LockManager::stats`](crate::LockManager::stats).
///
/// The counters are always on. They are not read all at the same moment: while other threads use
/// the manager, related counters may differ by a few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks taken in Redis. Reentry is not counted.
    pub acquired: u64,
    /// How many of these locks another thread of this manager handed off, together with its
    /// release.
    pub handed_off: u64,
    /// Locks that a thread took again while it held them, without asking Redis.
    pub reentered: u64,
    /// Attempts that found the lock busy and waited for it.
    pub waited: u64,
    /// Attempts that ended without the lock because it was busy, including those of `try_lock`.
    pub timed_out: u64,
    /// Holds that were lost.
    pub lost: u64,
    /// Leases that Redis extended: by renewal, `extend` or `ensure`.
    pub renewed: u64,
    /// Renewals that got no answer or were refused. The keeper repeats each while the lease lasts.
    pub renewal_errors: u64,
    /// Keys that the keeper deleted in the background, or found gone: after a release or an attempt
    /// without an answer, or for a guard that was dropped while its thread ended.
    pub late_releases: u64,
    /// Locks taken from dead processes: see [`reclaim_dead`](crate::Builder::reclaim_dead).
    pub reclaimed: u64,
    /// How long it took to get a lock, up to the answer of Redis. Reentry is not counted.
    pub time_waited: Histogram,
    /// How long locks were held, from the outermost lock to the outermost unlock.
    pub time_held: Histogram,
}

/// A distribution of durations, in ranges that double: below 1 µs, from 1 to 2 µs, from 2 to 4 µs
/// and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS] }
    }
}

/// How many ranges there are. The last one is for everything from 2^38 us (three days) on.
const BUCKETS: usize = 40;

impl Histogram {
    /// The ranges that are not empty, the shortest first. For each range, its upper end (which is
    /// outside the range) and the number of durations in it. A range starts at half of its end. The
    /// range that ends at 1 µs starts at zero.
    pub fn ranges(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(n, count)| (ceiling(n), *count))
    }

    /// How many durations there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// An upper bound for a quantile: a share of `part` (0.5 for the median) of the durations is
    /// below it. The bound is the end of a [range](Histogram::ranges), so it is at most twice the
    /// true value (or 1 µs). `None` if the histogram is empty.
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

/// Bucket 0 is below a microsecond; bucket `n` is from 2^(n-1) to 2^n microseconds.
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
    pub(crate) handed_off: Counter,
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
            handed_off: self.handed_off.read(),
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
    fn durations_are_counted_in_ranges_that_double() {
        let times = Times::default();
        for micros in [0, 1, 2, 3, 4, 1000, u64::MAX] {
            times.add(Duration::from_micros(micros));
        }
        times.add(Duration::from_nanos(999));
        let seen: Vec<_> = times.read().ranges().map(|(below, n)| (below.as_micros(), n)).collect();
        assert_eq!(seen, [(1, 2), (2, 1), (4, 2), (8, 1), (1024, 1), (1 << 39, 1)]);
    }

    #[test]
    fn a_quantile_is_the_upper_end_of_its_range() {
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
