//! The way to the program's code: its logger and, with the features `metrics` and `tracing`, its
//! metrics recorder and its span subscriber. Without its feature, a part does nothing and costs
//! nothing.
//!
//! None of this may be called while a lock is held: the program's code may use the manager.
//!
//! No thread on duty calls any of it: a thread that renews leases, hears what has changed, or
//! watches where the servers are. The program's code may hang (on a pipe that is full), and all
//! holds would be lost. Whatever such a thread has to say goes to a thread of the process, the
//! outlet.
//!
//! A panic in the program's code is caught here, after the program's panic hook has reported it. It
//! could come at any step of a lock. If it went on, a key could stay taken, a thread could wait for
//! a turn that never comes, and the drop of a guard could abort the process.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::base::background::{Errands, is_on_duty};
use crate::base::sync::PerProcess;

#[cfg(feature = "metrics")]
pub(crate) use with_recorder::Series;
#[cfg(not(feature = "metrics"))]
pub(crate) use without_recorder::Series;

#[cfg(feature = "tracing")]
pub(crate) use with_subscriber::Span;
#[cfg(not(feature = "tracing"))]
pub(crate) use without_subscriber::Span;

/// A metric: its name, and one sentence about it.
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

/// The most lines that wait for the logger.
const MOST: usize = 1000;

static OUTLET: PerProcess<LazyLock<Arc<Errands>>> =
    PerProcess::new(LazyLock::new(outlet), || LazyLock::new(outlet));

fn outlet() -> Arc<Errands> {
    Errands::new("relatch-log")
}

/// Leaves a call of the program's code to the outlet.
fn leave(call: impl FnOnce() + Send + 'static) {
    // If no thread can be started, the next call tries again.
    let _ = OUTLET.with(|outlet| outlet.run(call));
}

/// Waits until the outlet has nothing left to say, for `limit` at most.
pub(crate) fn settle(limit: Duration) {
    OUTLET.with(|outlet| outlet.settle(limit));
}

/// Logs a line by `log`. A thread on duty leaves it to the outlet, unless the logger is far behind.
pub(crate) fn say(line: fmt::Arguments<'_>, log: fn(fmt::Arguments<'_>)) {
    static DROPPED: AtomicU64 = AtomicU64::new(0);
    if !is_on_duty() {
        contain(|| log(line));
    } else if OUTLET.with(|outlet| outlet.due()) < MOST {
        let line = line.to_string();
        leave(move || {
            log(format_args!("{line}"));
            let dropped = DROPPED.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                warn!(target: "relatch::log", "the logger was slow: {dropped} lines were dropped");
            }
        });
    } else {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

macro_rules! log_line {
    ($level:ident, target: $target:expr, $($line:tt)+) => {
        if ::log::Level::$level <= ::log::max_level() {
            $crate::base::emit::say(format_args!($($line)+), |line| {
                ::log::log!(target: $target, ::log::Level::$level, "{line}");
            });
        }
    };
}
macro_rules! log_error {
    ($($line:tt)+) => { $crate::base::emit::log_line!(Error, $($line)+) };
}
macro_rules! log_warn {
    ($($line:tt)+) => { $crate::base::emit::log_line!(Warn, $($line)+) };
}
macro_rules! log_info {
    ($($line:tt)+) => { $crate::base::emit::log_line!(Info, $($line)+) };
}
macro_rules! log_debug {
    ($($line:tt)+) => { $crate::base::emit::log_line!(Debug, $($line)+) };
}
pub(crate) use {
    log_debug as debug, log_error as error, log_info as info, log_line, log_warn as warn,
};

/// Calls code of the program. A panic in it ends here.
#[inline]
pub(crate) fn contain(call: impl FnOnce()) {
    // The hook has reported it, and nobody here needs more.
    let _ = panic::catch_unwind(AssertUnwindSafe(call));
}

#[cfg(feature = "metrics")]
mod with_recorder {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use ::metrics::{
        Key, Label, Level, Metadata, Recorder, Unit, describe_counter, describe_gauge,
        describe_histogram, with_recorder,
    };

    use super::{Metric, contain, is_on_duty, leave};

    static METADATA: Metadata<'_> =
        Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

    /// A metric of one class of locks, as the recorder knows it. It is made with the manager, so
    /// that a lock allocates nothing for its labels. The recorder is asked for it each time: the
    /// program may set its recorder later.
    #[derive(Clone, Debug)]
    pub(crate) struct Series {
        key: Key,
        /// What threads on duty have counted and the outlet has not passed on yet.
        untold: Arc<AtomicU64>,
    }

    impl Series {
        /// A counter. The recorder shows it at once, with a zero: alerts on its growth would not
        /// see the first count otherwise.
        pub(crate) fn counter(metric: &Metric, class: Option<&str>) -> Series {
            contain(|| describe_counter!(metric.name, metric.help));
            let new = Series::new(metric, class);
            new.count(0);
            new
        }

        /// A gauge. The recorder shows it at once, too.
        pub(crate) fn gauge(metric: &Metric, class: Option<&str>) -> Series {
            contain(|| describe_gauge!(metric.name, metric.help));
            let new = Series::new(metric, class);
            new.change(0.0);
            new
        }

        pub(crate) fn times(metric: &Metric, class: Option<&str>) -> Series {
            contain(|| describe_histogram!(metric.name, Unit::Seconds, metric.help));
            Series::new(metric, class)
        }

        /// Without a class, or for locks in no class, there is no label. The recorder may get the
        /// series of managers with and without classes, and to Prometheus an empty label is no
        /// label: it would drop one of the two.
        fn new(metric: &Metric, class: Option<&str>) -> Series {
            let labels: Vec<_> = class
                .filter(|class| !class.is_empty())
                .map(|class| Label::new("class", class.to_owned()))
                .into_iter()
                .collect();
            Series {
                key: Key::from_parts(metric.name, labels),
                untold: Arc::default(),
            }
        }

        /// (A thread on duty only counts.)
        pub(crate) fn count(&self, more: u64) {
            let tell = |it: &Series, more| {
                it.tell(|it, key| it.register_counter(key, &METADATA).increment(more));
            };
            if !is_on_duty() {
                tell(self, more);
            } else if self.untold.fetch_add(more, Ordering::Relaxed) == 0 {
                let series = self.clone();
                leave(move || tell(&series, series.untold.swap(0, Ordering::Relaxed)));
            }
        }

        pub(crate) fn change(&self, by: f64) {
            self.tell(|it, key| it.register_gauge(key, &METADATA).increment(by));
        }

        pub(crate) fn record(&self, time: Duration) {
            let seconds = time.as_secs_f64();
            self.tell(|it, key| it.register_histogram(key, &METADATA).record(seconds));
        }

        fn tell(&self, tell: impl FnOnce(&dyn Recorder, &Key)) {
            contain(|| with_recorder(|recorder| tell(recorder, &self.key)));
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod without_recorder {
    use std::time::Duration;

    use super::Metric;

    #[derive(Debug)]
    pub(crate) struct Series;

    #[expect(clippy::unused_self, reason = "the same as with a recorder")]
    impl Series {
        #[inline]
        pub(crate) fn counter(_: &Metric, _: Option<&str>) -> Series {
            Series
        }

        #[inline]
        pub(crate) fn gauge(_: &Metric, _: Option<&str>) -> Series {
            Series
        }

        #[inline]
        pub(crate) fn times(_: &Metric, _: Option<&str>) -> Series {
            Series
        }

        #[inline]
        pub(crate) fn count(&self, _: u64) {}

        #[inline]
        pub(crate) fn change(&self, _: f64) {}

        #[inline]
        pub(crate) fn record(&self, _: Duration) {}
    }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::*;
    use crate::base::background::go_on_duty;
    use crate::base::sync::{mpsc, thread};

    const LONG: Duration = Duration::from_secs(10);

    /// The thread is on duty, and the logger hangs at its first line.
    #[test]
    fn a_thread_on_duty_does_not_wait_for_the_logger_and_lines_do_not_pile_up() {
        static GOES_ON: AtomicBool = AtomicBool::new(false);
        static LOGGED: AtomicUsize = AtomicUsize::new(0);
        let (said, all_said) = mpsc::channel();
        thread::spawn(move || {
            go_on_duty();
            for n in 0..3 * MOST {
                say(format_args!("{n}"), |line| {
                    while !GOES_ON.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    let _ = line;
                    LOGGED.fetch_add(1, Ordering::SeqCst);
                });
            }
            said.send(()).unwrap();
        });
        let all = all_said.recv_timeout(LONG);
        let meanwhile = LOGGED.load(Ordering::SeqCst);
        GOES_ON.store(true, Ordering::SeqCst);
        assert_eq!(
            (all, meanwhile),
            (Ok(()), 0),
            "the thread stands still, too"
        );
        settle(LONG);
        let logged = LOGGED.load(Ordering::SeqCst);
        assert!((1..=MOST + 1).contains(&logged), "{logged} lines");
    }
}
