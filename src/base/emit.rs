//! The way to the `metrics` crate, for programs with the feature of that name. Without the feature,
//! these functions do nothing, and cost nothing.
//!
//! The recorder is the program's code. So none of these functions may be called while a lock is
//! held.

#[cfg(feature = "metrics")]
pub(crate) use with_recorder::{change, count, describe, record};
#[cfg(not(feature = "metrics"))]
pub(crate) use without_recorder::{change, count, describe, record};

/// Whether the changes of gauges go anywhere.
pub(crate) const IS_ON: bool = cfg!(feature = "metrics");

#[cfg(feature = "metrics")]
mod with_recorder {
    use std::time::Duration;

    use ::metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

    use crate::base::metrics::{COUNTERS, GAUGES, HISTOGRAMS, Metric};

    pub(crate) fn count(metric: &Metric, more: u64) {
        if more > 0 {
            counter!(metric.name).increment(more);
        }
    }

    pub(crate) fn change(metric: &Metric, by: f64) {
        gauge!(metric.name).increment(by);
    }

    pub(crate) fn record(metric: &Metric, time: Duration) {
        histogram!(metric.name).record(time.as_secs_f64());
    }

    /// Gives the recorder the texts of all metrics.
    pub(crate) fn describe() {
        for (metric, _) in COUNTERS {
            describe_counter!(metric.name, metric.help);
        }
        for (metric, _) in GAUGES {
            describe_gauge!(metric.name, metric.help);
        }
        for (metric, _) in HISTOGRAMS {
            describe_histogram!(metric.name, ::metrics::Unit::Seconds, metric.help);
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod without_recorder {
    use std::time::Duration;

    use crate::base::metrics::Metric;

    #[inline]
    pub(crate) fn count(_: &Metric, _: u64) {}

    #[inline]
    pub(crate) fn change(_: &Metric, _: f64) {}

    #[inline]
    pub(crate) fn record(_: &Metric, _: Duration) {}

    #[inline]
    pub(crate) fn describe() {}
}
