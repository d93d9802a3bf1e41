//! The way to code of the program: its logger and, with the features `metrics` and `tracing`, its
//! recorder of metrics and its subscriber of spans. What is for a feature does nothing without it,
//! and costs nothing.
//!
//! None of this may be called while a lock is held: the program's code may use the manager.
//!
//! A panic of the program's code ends here, after the program's panic hook has reported it. It
//! could come at any step of a lock. If it went on, a key could stay taken, a thread could wait for
//! a turn that never comes, and the drop of a guard could abort the process.

use std::panic::{self, AssertUnwindSafe};

#[cfg(feature = "metrics")]
pub(crate) use with_recorder::{change, count, describe, record};
#[cfg(not(feature = "metrics"))]
pub(crate) use without_recorder::{change, count, describe, record};

#[cfg(feature = "tracing")]
pub(crate) use with_subscriber::Span;
#[cfg(not(feature = "tracing"))]
pub(crate) use without_subscriber::Span;

/// A metric: its name, and one sentence on it.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

/// Whether a line at `debug`, or the change of a gauge, may go anywhere. Calls no code of the
/// program.
pub(crate) fn may_be_on() -> bool {
    cfg!(feature = "metrics") || log::max_level() >= log::LevelFilter::Debug
}

macro_rules! log_error {
    ($($line:tt)+) => { $crate::base::emit::contain(|| ::log::error!($($line)+)) };
}
macro_rules! log_warn {
    ($($line:tt)+) => { $crate::base::emit::contain(|| ::log::warn!($($line)+)) };
}
macro_rules! log_info {
    ($($line:tt)+) => { $crate::base::emit::contain(|| ::log::info!($($line)+)) };
}
macro_rules! log_debug {
    ($($line:tt)+) => { $crate::base::emit::contain(|| ::log::debug!($($line)+)) };
}
pub(crate) use {log_debug as debug, log_error as error, log_info as info, log_warn as warn};

/// Calls code of the program. A panic in it ends here.
#[inline]
pub(crate) fn contain(call: impl FnOnce()) {
    // The hook has reported it, and nobody here needs more.
    let _ = panic::catch_unwind(AssertUnwindSafe(call));
}

#[cfg(feature = "metrics")]
mod with_recorder {
    use std::time::Duration;

    use ::metrics::{
        Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    };

    use super::{Metric, contain};

    pub(crate) fn count(metric: &Metric, more: u64) {
        if more > 0 {
            contain(|| counter!(metric.name).increment(more));
        }
    }

    pub(crate) fn change(metric: &Metric, by: f64) {
        contain(|| gauge!(metric.name).increment(by));
    }

    pub(crate) fn record(metric: &Metric, time: Duration) {
        contain(|| histogram!(metric.name).record(time.as_secs_f64()));
    }

    /// Gives the recorder the texts of metrics, and has it show counters and gauges at once, with a
    /// zero: alerts on their growth would not see the first count otherwise.
    pub(crate) fn describe(counters: &[&Metric], gauges: &[&Metric], times: &[&Metric]) {
        for it in counters {
            contain(|| describe_counter!(it.name, it.help));
            contain(|| counter!(it.name).increment(0));
        }
        for it in gauges {
            contain(|| describe_gauge!(it.name, it.help));
            change(it, 0.0);
        }
        for it in times {
            contain(|| describe_histogram!(it.name, Unit::Seconds, it.help));
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod without_recorder {
    use std::time::Duration;

    use super::Metric;

    #[inline]
    pub(crate) fn count(_: &Metric, _: u64) {}

    #[inline]
    pub(crate) fn change(_: &Metric, _: f64) {}

    #[inline]
    pub(crate) fn record(_: &Metric, _: Duration) {}

    #[inline]
    pub(crate) fn describe(_: &[&Metric], _: &[&Metric], _: &[&Metric]) {}
}

#[cfg(feature = "tracing")]
mod with_subscriber {
    use std::fmt::Display;
    use std::panic::{self, AssertUnwindSafe};

    use ::tracing::field::{Empty, display};
    use ::tracing::info_span;

    use super::contain;

    /// A wait or a hold in the program's traces, until it is dropped. It is a child of the span in
    /// which it begins, and never the current span.
    #[derive(Debug)]
    pub(crate) struct Span(::tracing::Span);

    impl Span {
        pub(crate) fn wait(key: &str) -> Span {
            let begin = || info_span!(target: "relatch::wait", "lock_wait", key, outcome = Empty, holder = Empty);
            Span::begin(begin)
        }

        pub(crate) fn hold(key: &str, token: &str, fence: Option<u64>) -> Span {
            let begin = || info_span!(target: "relatch::wait", "lock_hold", key, token, fence, outcome = Empty);
            Span::begin(begin)
        }

        fn begin(begin: impl FnOnce() -> ::tracing::Span) -> Span {
            let begun = panic::catch_unwind(AssertUnwindSafe(begin));
            Span(begun.unwrap_or_else(|_| ::tracing::Span::none()))
        }

        pub(crate) fn outcome(&self, outcome: &'static str) {
            contain(|| {
                self.0.record("outcome", outcome);
            });
        }

        pub(crate) fn holder(&self, holder: impl Display) {
            contain(|| {
                self.0.record("holder", display(holder));
            });
        }
    }

    impl Drop for Span {
        fn drop(&mut self) {
            contain(|| self.0 = ::tracing::Span::none());
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod without_subscriber {
    use std::fmt::Display;

    #[derive(Debug)]
    pub(crate) struct Span;

    #[expect(clippy::unused_self, reason = "the same as with a subscriber")]
    impl Span {
        #[inline]
        pub(crate) fn wait(_: &str) -> Span {
            Span
        }

        #[inline]
        pub(crate) fn hold(_: &str, _: &str, _: Option<u64>) -> Span {
            Span
        }

        #[inline]
        pub(crate) fn outcome(&self, _: &'static str) {}

        #[inline]
        pub(crate) fn holder(&self, _: impl Display) {}
    }
}
