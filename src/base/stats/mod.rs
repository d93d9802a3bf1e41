//! The statistics that a program reads.

pub(crate) mod counters;
pub(crate) mod metrics;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Counts of what a manager has done since it was made, and of what is going on now, from
/// [`LockManager::stats`](crate::LockManager::stats).
///
/// The counters are always on. They are not all read at the same moment: while other threads use
/// the manager, related counters may differ by a few. [`prometheus`](Stats::prometheus) writes them
/// for a monitoring system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks taken in Redis. Reentry is not counted.
    pub acquired: u64,
    /// How many of these locks were handed off by another thread of this manager, together with its
    /// release.
    pub handed_off: u64,
    /// Locks that a thread took again while it held them, without asking Redis.
    pub reentered: u64,
    /// Attempts that found the lock busy and waited for it.
    pub waited: u64,
    /// Attempts that ended without the lock because it was busy, including those of `try_lock`.
    pub timed_out: u64,
    /// Calls that ended with [`Unavailable`](crate::Error::Unavailable): attempts to take a lock,
    /// `confirm`, `ensure`, `set_lease`, `verify`, `hand_over`, `adopt`, `holder` and
    /// `force_unlock`.
    pub unavailable: u64,
    /// Such calls that ended with [`Refused`](crate::Error::Refused) or [`Tls`](crate::Error::Tls),
    /// which waiting does not change. A release counts here, too, and so does a hold whose renewal
    /// is refused: each once, and with a line at `error` in the log.
    pub refused: u64,
    /// Losses, as [`on_lost`](crate::Builder::on_lost) gets them.
    pub lost: u64,
    /// Leases that Redis extended: by renewal, `confirm`, `ensure` or `set_lease`.
    pub renewed: u64,
    /// Renewals that got no answer or were refused. The keeper repeats each while the lease lasts.
    pub renewal_errors: u64,
    /// Keys that the keeper deleted in the background, or found gone: after a release or an attempt
    /// without an answer, or for a guard that was dropped while its thread ended.
    pub late_releases: u64,
    /// Locks taken from dead processes: see [`reclaim_dead`](crate::Builder::reclaim_dead).
    pub reclaimed: u64,
    /// How many threads wait for a lock now: the length of
    /// [`waiting`](crate::LockManager::waiting).
    pub waiting: u64,
    /// How many locks are held now: the length of [`held`](crate::LockManager::held).
    pub held: u64,
    /// How long it took to get a lock, up to the answer of Redis. Reentry is not counted.
    pub time_waited: Histogram,
    /// How long locks were held, from the outermost lock to the outermost unlock.
    pub time_held: Histogram,
    /// The same for each of the [classes](crate::Builder::classes), by its prefix, and under `""`
    /// for locks in no class. All other fields are the sums of these. Empty without classes.
    pub classes: BTreeMap<String, Stats>,
}

impl Stats {
    /// Adds what is in `more`, without its classes.
    fn add(&mut self, more: &Stats) {
        self.acquired += more.acquired;
        self.handed_off += more.handed_off;
        self.reentered += more.reentered;
        self.waited += more.waited;
        self.timed_out += more.timed_out;
        self.unavailable += more.unavailable;
        self.refused += more.refused;
        self.lost += more.lost;
        self.renewed += more.renewed;
        self.renewal_errors += more.renewal_errors;
        self.late_releases += more.late_releases;
        self.reclaimed += more.reclaimed;
        self.waiting += more.waiting;
        self.held += more.held;
        self.time_waited.add(&more.time_waited);
        self.time_held.add(&more.time_held);
    }
}

/// A distribution of durations, in ranges that double: below 1 µs, from 1 to 2 µs, from 2 to 4 µs
/// and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Histogram {
    /// How many durations there are.
    pub count: u64,
    /// The sum of all durations.
    pub sum: Duration,
    pub(super) counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            count: 0,
            sum: Duration::ZERO,
            counts: [0; BUCKETS],
        }
    }
}

/// How many ranges there are. The last one is for everything from 2^38 us (three days) on.
pub(super) const BUCKETS: usize = 40;

impl Histogram {
    fn add(&mut self, more: &Histogram) {
        self.count += more.count;
        self.sum += more.sum;
        let counts = self.counts.iter_mut().zip(more.counts);
        counts.for_each(|(sum, count)| *sum += count);
    }

    /// The ranges that are not empty, shortest first. For each range, its upper end (which is
    /// outside the range) and the number of durations in it. A range starts at half of its end. The
    /// range that ends at 1 µs starts at zero.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(n, count)| (ceiling(n), *count))
    }

    /// All bounds of a histogram, shortest first, including those of empty ranges: 1 µs, 2 µs, 4 µs
    /// and so on, up to 2^38 µs (three days). For each bound, how many durations are below it. So
    /// the numbers never fall, and [`count`](Histogram#structfield.count) is the number for an
    /// infinite bound.
    ///
    /// The bounds are the same for every histogram, and in every process: a monitoring system can
    /// add up histograms, and subtract an earlier one.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.with_lock("orders:42", || ())?;
    /// let times = locks.stats().time_held;
    /// let (_, below) = times.buckets().last().expect("there are always 39");
    /// assert_eq!((below, times.count), (1, 1));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let below = self.counts[..BUCKETS - 1].iter().scan(0, |below, count| {
            *below += count;
            Some(*below)
        });
        below.enumerate().map(|(n, below)| (ceiling(n), below))
    }

    /// An upper bound for a quantile: a share of `part` (0.5 for the median) of the durations is
    /// below it. The bound is one of the [bounds](Histogram::buckets), so it is at most twice the
    /// true value (or 1 µs). For three days and more, it is 2^39 µs. `None` if the histogram is
    /// empty.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.with_lock("orders:42", || ())?;
    /// let longest = locks.stats().time_held.quantile(1.0).expect("a lock was held");
    /// println!("no lock was held for longer than {longest:?}");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = part.clamp(0.0, 1.0);
        let mut seen = 0;
        self.ranges().find_map(|(below, count)| {
            seen += count;
            (share(seen, self.count) >= wanted).then_some(below)
        })
    }
}

/// One line for a log: how many there are, their mean, and bounds for the median and the longest.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = self.quantile(0.5).zip(self.quantile(1.0));
        // A program may have changed the count: the field is public.
        let Some((median, longest)) = bounds.filter(|_| self.count > 0) else {
            return f.write_str("none");
        };
        let mean = self.sum.div_f64(share(self.count, 1));
        let Histogram { count, .. } = self;
        write!(
            f,
            "{count}, of {mean:.1?} on average, half of them below {median:.1?}, all below {longest:.1?}"
        )
    }
}

/// One line for a log. Counters that are zero are left out, except those for what is going on now.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} held, {} waiting", self.held, self.waiting)?;
        let counters = [
            ("acquired", self.acquired),
            ("handed off", self.handed_off),
            ("re-entered", self.reentered),
            ("waited", self.waited),
            ("timed out", self.timed_out),
            ("unavailable", self.unavailable),
            ("refused", self.refused),
            ("lost", self.lost),
            ("renewed", self.renewed),
            ("renewals failed", self.renewal_errors),
            ("released late", self.late_releases),
            ("reclaimed", self.reclaimed),
        ];
        for (what, count) in counters.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "; {what}: {count}")?;
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts beyond 2^53 are not reached by locking"
)]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn ceiling(bucket: usize) -> Duration {
    Duration::from_micros(1 << bucket)
}

/// Bucket 0 is below a microsecond; bucket `n` is from 2^(n-1) to 2^n microseconds.
pub(super) fn bucket(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let bits = usize::try_from(u64::BITS - micros.leading_zeros()).unwrap_or(BUCKETS);
    bits.min(BUCKETS - 1)
}
