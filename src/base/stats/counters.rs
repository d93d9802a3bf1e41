//! The counters of a manager, for each class of its locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::emit::{Metric, Series};
use crate::base::error::Error;
use crate::base::options::classes::Classes;
use crate::base::stats::metrics;
use crate::base::stats::{BUCKETS, Histogram, Stats, bucket};

#[derive(Debug)]
pub(crate) struct Counter {
    value: AtomicU64,
    series: Series,
}

impl Counter {
    fn new(metric: &Metric, class: Option<&str>) -> Counter {
        Counter {
            value: AtomicU64::new(0),
            series: Series::counter(metric, class),
        }
    }

    /// Do not call this while a lock is held: with the feature `metrics`, it calls the program's
    /// recorder.
    pub(crate) fn add(&self, more: u64) {
        if more > 0 {
            self.value.fetch_add(more, Ordering::Relaxed);
            self.series.count(more);
        }
    }

    fn read(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Times {
    counts: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
    series: Series,
}

impl Times {
    fn new(metric: &Metric, class: Option<&str>) -> Times {
        Times {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
            series: Series::times(metric, class),
        }
    }

    fn add(&self, time: Duration) {
        self.counts[bucket(time)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        self.series.record(time);
    }

    fn read(&self) -> Histogram {
        let counts: [u64; BUCKETS] =
            std::array::from_fn(|n| self.counts[n].load(Ordering::Relaxed));
        Histogram {
            count: counts.iter().sum(),
            sum: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
            counts,
        }
    }
}

/// The counters of a manager: those of each class of its locks. What belongs to a lock counts only
/// for its class, and the totals are summed when they are read. So classes cost a lock no more than
/// finding its own.
#[derive(Debug)]
pub(crate) struct Counters {
    classes: Classes,
    of_classes: Vec<ClassCounters>,
}

impl Default for Counters {
    fn default() -> Self {
        Counters::new(&[])
    }
}

impl Counters {
    pub(crate) fn new(prefixes: &[String]) -> Counters {
        let classes = Classes::new(prefixes);
        let of_classes = match classes.names() {
            Some(names) => names.map(|name| ClassCounters::new(Some(name))).collect(),
            None => vec![ClassCounters::new(None)],
        };
        Counters {
            classes,
            of_classes,
        }
    }

    /// The counters for the lock with this name.
    pub(crate) fn of(&self, name: &str) -> &ClassCounters {
        &self.of_classes[self.classes.of(name)]
    }

    /// What was counted, without what is going on now.
    pub(crate) fn read(&self) -> Stats {
        self.stats(&[], &[])
    }

    /// What was counted. The locks `held` are held now, and threads wait for the locks `waiting`.
    pub(crate) fn stats(&self, held: &[Arc<str>], waiting: &[Arc<str>]) -> Stats {
        let mut each: Vec<_> = self.of_classes.iter().map(ClassCounters::read).collect();
        for name in held {
            each[self.classes.of(name)].held += 1;
        }
        for name in waiting {
            each[self.classes.of(name)].waiting += 1;
        }
        let mut all = Stats::default();
        for of_class in &each {
            all.add(of_class);
        }
        let names = self.classes.names().into_iter().flatten();
        all.classes = names.map(str::to_owned).zip(each).collect();
        all
    }
}

/// The counters for the locks of one class.
#[derive(Debug)]
pub(crate) struct ClassCounters {
    pub(crate) handed_off: Counter,
    pub(crate) reentered: Counter,
    pub(crate) waited: Counter,
    pub(crate) timed_out: Counter,
    unavailable: Counter,
    refused: Counter,
    pub(crate) lost: Counter,
    pub(crate) renewed: Counter,
    pub(crate) renewal_errors: Counter,
    pub(crate) late_releases: Counter,
    pub(crate) reclaimed: Counter,
    /// Each lock that was taken is in here once, so this also counts them.
    time_waited: Times,
    time_held: Times,
    /// These are for the program's recorder. `Stats` gets them from elsewhere.
    acquired: Series,
    held: Series,
    pub(crate) waiting: Series,
}

impl ClassCounters {
    fn new(class: Option<&str>) -> ClassCounters {
        let counter = |metric| Counter::new(metric, class);
        ClassCounters {
            handed_off: counter(&metrics::HANDED_OFF),
            reentered: counter(&metrics::REENTERED),
            waited: counter(&metrics::WAITED),
            timed_out: counter(&metrics::TIMED_OUT),
            unavailable: counter(&metrics::UNAVAILABLE),
            refused: counter(&metrics::REFUSED),
            lost: counter(&metrics::LOST),
            renewed: counter(&metrics::RENEWED),
            renewal_errors: counter(&metrics::RENEWAL_ERRORS),
            late_releases: counter(&metrics::LATE_RELEASES),
            reclaimed: counter(&metrics::RECLAIMED),
            time_waited: Times::new(&metrics::TIME_WAITED, class),
            time_held: Times::new(&metrics::TIME_HELD, class),
            acquired: Series::counter(&metrics::ACQUIRED, class),
            held: Series::gauge(&metrics::HELD, class),
            waiting: Series::gauge(&metrics::WAITING, class),
        }
    }

    /// A thread has a lock that it asked for, after this time.
    pub(crate) fn taken(&self, waited: Duration) {
        self.time_waited.add(waited);
        self.acquired.count(1);
        self.held.change(1.0);
    }

    /// A thread gives back a lock that it has held for this time. If the thread's map of holds is
    /// gone, the lock has already left the gauge.
    pub(crate) fn given_back(&self, held: Duration, map_is_gone: bool) {
        self.time_held.add(held);
        if !map_is_gone {
            self.held.change(-1.0);
        }
    }

    /// A thread ends while it holds this lock, and does not give it back.
    pub(crate) fn forgotten(&self) {
        self.held.change(-1.0);
    }

    /// A call ends with this error. Counts it if the lock was busy, or Redis is the reason.
    pub(crate) fn failed(&self, error: &Error) {
        match error {
            Error::Timeout { .. } => self.timed_out.add(1),
            Error::Unavailable { .. } => self.unavailable.add(1),
            Error::Refused { .. } | Error::Tls { .. } => self.refused.add(1),
            _ => {}
        }
    }

    /// Without `waiting` and `held`, which are not counters.
    fn read(&self) -> Stats {
        let time_waited = self.time_waited.read();
        Stats {
            acquired: time_waited.count,
            handed_off: self.handed_off.read(),
            reentered: self.reentered.read(),
            waited: self.waited.read(),
            timed_out: self.timed_out.read(),
            unavailable: self.unavailable.read(),
            refused: self.refused.read(),
            lost: self.lost.read(),
            renewed: self.renewed.read(),
            renewal_errors: self.renewal_errors.read(),
            late_releases: self.late_releases.read(),
            reclaimed: self.reclaimed.read(),
            time_waited,
            time_held: self.time_held.read(),
            ..Stats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_taken_is_counted_once() {
        let counters = ClassCounters::new(None);
        counters.taken(Duration::from_micros(5));
        counters.taken(Duration::ZERO);
        counters.given_back(Duration::from_secs(1), false);
        let stats = counters.read();
        assert_eq!(stats.acquired, 2);
        assert_eq!(
            (stats.time_held.count, stats.time_held.sum),
            (1, Duration::from_secs(1))
        );
    }

    /// The histogram of these times, in microseconds.
    fn histogram(micros: impl IntoIterator<Item = u64>) -> Histogram {
        let times = Times::new(&metrics::TIME_WAITED, None);
        micros
            .into_iter()
            .for_each(|it| times.add(Duration::from_micros(it)));
        times.read()
    }

    #[test]
    fn durations_are_counted_in_ranges_that_double() {
        let histogram = histogram([0, 1, 2, 3, 4, 1000, u64::MAX]);
        let seen: Vec<_> = histogram
            .ranges()
            .map(|(below, n)| (below.as_micros(), n))
            .collect();
        assert_eq!(
            seen,
            [(1, 1), (2, 1), (4, 2), (8, 1), (1024, 1), (1 << 39, 1)]
        );
    }

    #[test]
    fn a_quantile_is_the_upper_end_of_its_range_and_all_fits_into_a_line() {
        let empty = Histogram::default();
        assert_eq!(
            (empty.quantile(0.5), empty.to_string()),
            (None, "none".to_owned())
        );
        let many = histogram([3; 99].into_iter().chain([5000]));
        for (of, micros) in [(0.5, 4), (0.99, 4), (1.0, 8192)] {
            assert_eq!(many.quantile(of), Some(Duration::from_micros(micros)));
        }
        let line = "100, of 53.0µs on average, half of them below 4.0µs, all below 8.2ms";
        assert_eq!(many.to_string(), line);
        let stats = Stats {
            held: 1,
            acquired: 3,
            lost: 2,
            ..Stats::default()
        };
        assert_eq!(stats.to_string(), "1 held, 0 waiting; acquired: 3; lost: 2");
    }

    #[test]
    fn the_buckets_are_always_the_same_and_never_fall() {
        let below = |histogram: &Histogram| -> Vec<_> {
            histogram
                .buckets()
                .map(|(bound, below)| (bound.as_micros(), below))
                .collect()
        };
        let of_empty = below(&Histogram::default());
        let histogram = histogram([3, 3, 900, u64::MAX >> 12]);
        // One is longer than every bound.
        let expected = of_empty.iter().map(|(bound, _)| {
            (
                *bound,
                if *bound < 4 {
                    0
                } else if *bound < 1024 {
                    2
                } else {
                    3
                },
            )
        });
        assert!(below(&histogram).into_iter().eq(expected) && histogram.count == 4);
    }
}
