//! The names under which a monitoring system sees the statistics, and Prometheus's text format.

use std::fmt::{self, Write};

use crate::base::emit::Metric;
use crate::base::stats::{Histogram, Stats};

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help }
}

pub(crate) static ACQUIRED: Metric = metric("relatch_acquired_total", "Locks taken in Redis.");
pub(crate) static HANDED_OFF: Metric = metric(
    "relatch_handed_off_total",
    "Locks that another thread handed off with its release.",
);
pub(crate) static REENTERED: Metric = metric(
    "relatch_reentered_total",
    "Locks that a thread took again while it held them.",
);
pub(crate) static WAITED: Metric = metric(
    "relatch_waited_total",
    "Attempts that found the lock busy and waited for it.",
);
pub(crate) static TIMED_OUT: Metric = metric(
    "relatch_timed_out_total",
    "Attempts that ended without the lock because it was busy.",
);
pub(crate) static UNAVAILABLE: Metric = metric(
    "relatch_unavailable_total",
    "Calls that ended because Redis was not available.",
);
pub(crate) static REFUSED: Metric = metric(
    "relatch_refused_total",
    "Calls, releases and renewals that Redis refused, or whose TLS failed.",
);
pub(crate) static LOST: Metric = metric("relatch_lost_total", "Holds that were lost.");
pub(crate) static RENEWED: Metric = metric("relatch_renewed_total", "Leases that Redis extended.");
pub(crate) static RENEWAL_ERRORS: Metric = metric(
    "relatch_renewal_errors_total",
    "Renewals that got no answer or were refused.",
);
pub(crate) static LATE_RELEASES: Metric = metric(
    "relatch_late_releases_total",
    "Keys that were deleted in the background, or found gone.",
);
pub(crate) static RECLAIMED: Metric = metric(
    "relatch_reclaimed_total",
    "Locks taken over from dead processes.",
);
pub(crate) static WAITING: Metric = metric("relatch_waiting", "Threads that wait for a lock now.");
pub(crate) static HELD: Metric = metric("relatch_held", "Locks that are held now.");
pub(crate) static TIME_WAITED: Metric = metric(
    "relatch_time_waited_seconds",
    "How long it took to get a lock.",
);
pub(crate) static TIME_HELD: Metric =
    metric("relatch_time_held_seconds", "How long locks were held.");

/// A metric, and its value in the statistics.
type Number = (&'static Metric, fn(&Stats) -> u64);

pub(crate) const COUNTERS: [Number; 12] = [
    (&ACQUIRED, |it| it.acquired),
    (&HANDED_OFF, |it| it.handed_off),
    (&REENTERED, |it| it.reentered),
    (&WAITED, |it| it.waited),
    (&TIMED_OUT, |it| it.timed_out),
    (&UNAVAILABLE, |it| it.unavailable),
    (&REFUSED, |it| it.refused),
    (&LOST, |it| it.lost),
    (&RENEWED, |it| it.renewed),
    (&RENEWAL_ERRORS, |it| it.renewal_errors),
    (&LATE_RELEASES, |it| it.late_releases),
    (&RECLAIMED, |it| it.reclaimed),
];

pub(crate) const GAUGES: [Number; 2] = [(&WAITING, |it| it.waiting), (&HELD, |it| it.held)];

type Distribution = (&'static Metric, fn(&Stats) -> &Histogram);

pub(crate) const HISTOGRAMS: [Distribution; 2] = [
    (&TIME_WAITED, |it| &it.time_waited),
    (&TIME_HELD, |it| &it.time_held),
];

impl Stats {
    /// All statistics in the text format that Prometheus reads (version 0.0.4): counters such as
    /// `relatch_acquired_total`, the gauges `relatch_waiting` and `relatch_held`, and the
    /// histograms `relatch_time_waited_seconds` and `relatch_time_held_seconds`, with the bounds of
    /// [`Histogram::buckets`]. Each metric has its `HELP` and `TYPE`, and with
    /// [classes](crate::Builder::classes) a line with the label `class` for each class.
    ///
    /// Serve the text with the content type `text/plain; version=0.0.4`, as
    /// [`examples/web.rs`](https://github.com/relatch/relatch/blob/main/examples/web.rs) does. It
    /// is for one manager. Prometheus allows each metric once in a text, so the texts of two
    /// managers cannot be joined. Programs that use the `metrics` crate use this crate's feature
    /// `metrics` instead.
    ///
    /// ```
    /// let text = relatch::Stats::default().prometheus();
    /// assert!(text.contains("# TYPE relatch_lost_total counter\nrelatch_lost_total 0\n"));
    /// ```
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut text = String::with_capacity(8192);
        // Writing to a `String` does not fail.
        let _ = self.write_prometheus(&mut text);
        text
    }

    fn write_prometheus(&self, text: &mut String) -> fmt::Result {
        let each: Vec<(String, &Stats)> = if self.classes.is_empty() {
            vec![(String::new(), self)]
        } else {
            let classes = self.classes.iter();
            classes.map(|(class, it)| (label(class), it)).collect()
        };
        for (numbers, kind) in [(&COUNTERS[..], "counter"), (&GAUGES, "gauge")] {
            for (metric, value) in numbers {
                begin(text, metric, kind)?;
                for (label, stats) in &each {
                    write_sample(text, metric.name, "", [label, ""], value(stats))?;
                }
            }
        }
        for (metric, histogram) in HISTOGRAMS {
            begin(text, metric, "histogram")?;
            for (label, stats) in &each {
                write_histogram(text, metric.name, label, histogram(stats))?;
            }
        }
        Ok(())
    }
}

fn begin(text: &mut String, Metric { name, help }: &Metric, kind: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

/// The label of a class, with the escapes that the format asks for. Locks in no class have no
/// label, as in the program's recorder.
fn label(class: &str) -> String {
    if class.is_empty() {
        return String::new();
    }
    let escaped = class.replace('\\', r"\\").replace('"', r#"\""#);
    format!("class=\"{escaped}\"")
}

fn write_histogram(text: &mut String, name: &str, label: &str, it: &Histogram) -> fmt::Result {
    let bounds = it.buckets();
    let bounds = bounds.map(|(bound, below)| (bound.as_secs_f64().to_string(), below));
    for (bound, below) in bounds.chain([("+Inf".to_owned(), it.count)]) {
        let bound = format!("le=\"{bound}\"");
        write_sample(text, name, "_bucket", [label, &bound], below)?;
    }
    write_sample(text, name, "_sum", [label, ""], it.sum.as_secs_f64())?;
    write_sample(text, name, "_count", [label, ""], it.count)
}

/// Writes one line. Labels that are empty are left out.
fn write_sample(
    text: &mut String,
    name: &str,
    part: &str,
    labels: [&str; 2],
    value: impl fmt::Display,
) -> fmt::Result {
    match labels {
        ["", ""] => writeln!(text, "{name}{part} {value}"),
        [one, ""] | ["", one] => writeln!(text, "{name}{part}{{{one}}} {value}"),
        [one, two] => writeln!(text, "{name}{part}{{{one},{two}}} {value}"),
    }
}
