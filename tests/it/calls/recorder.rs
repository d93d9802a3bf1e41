//! The feature `metrics`: what the statistics count reaches the recorder of the `metrics` crate,
//! under the names of the text for Prometheus. The feature `tracing`: waits and holds are spans.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use relatch::{Builder, Error, LockGuard, LockManager, LostCause, Stats};
use relatch_rig::{LONG, SetOnDrop, eventually, is_alone};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Subscriber};

use crate::support::{MINUTE, PERIOD, renewals};

/// A recorder that keeps the sum of each metric, and how many values a histogram got.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<BTreeMap<String, f64>>>);

/// The recorder panics at each metric.
static PANICS: AtomicBool = AtomicBool::new(false);

/// The recorder stands still at the next renewal.
static STANDS_STILL: AtomicBool = AtomicBool::new(false);

/// It may go on.
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// One metric of the recorder.
struct Sum(Sums, Key);

/// How a text for Prometheus calls a metric of the recorder, or a part of it.
fn series(key: &Key, part: &str) -> String {
    let name = key.name();
    let labels = key
        .labels()
        .map(|it| format!("{{{}=\"{}\"}}", it.key(), it.value()));
    format!("{name}{part}{}", labels.collect::<String>())
}

impl Sums {
    fn add(&self, name: &str, more: f64) {
        // Hangs if the manager calls the recorder while it has one of its mutexes locked.
        if let Ok(locks) = relatch::installed() {
            drop((locks.stats(), locks.waiting(), locks.held()));
        }
        if name == "relatch_renewed_total" && STANDS_STILL.load(Ordering::SeqCst) {
            eventually(10 * LONG, "the test is done", || {
                GOES_ON.load(Ordering::SeqCst)
            });
        }
        *self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(name.to_owned())
            .or_default() += more;
        assert!(!PANICS.load(Ordering::SeqCst), "the recorder");
    }

    fn all(&self) -> BTreeMap<String, f64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn get(&self, name: &str) -> f64 {
        self.all().get(name).copied().unwrap_or_default()
    }
}

impl CounterFn for Sum {
    fn increment(&self, value: u64) {
        self.0.add(
            &series(&self.1, ""),
            f64::from(u32::try_from(value).expect("a small number")),
        );
    }

    fn absolute(&self, _: u64) {
        unreachable!("counters only grow");
    }
}

impl GaugeFn for Sum {
    fn increment(&self, value: f64) {
        self.0.add(&series(&self.1, ""), value);
    }

    fn decrement(&self, value: f64) {
        self.0.add(&series(&self.1, ""), -value);
    }

    fn set(&self, _: f64) {
        unreachable!("two managers would overwrite each other's values");
    }
}

impl HistogramFn for Sum {
    fn record(&self, value: f64) {
        self.0.add(&series(&self.1, "_sum"), value);
        self.0.add(&series(&self.1, "_count"), 1.0);
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        assert!(!help.is_empty());
        self.add(&format!("help of {}", key.as_str()), 1.0);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe_counter(key, unit, help);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe_counter(key, unit, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(Sum(self.clone(), key.clone())))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Sum(self.clone(), key.clone())))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Sum(self.clone(), key.clone())))
    }
}

/// A manager in memory, and the recorder of this process.
fn recorded(change: impl FnOnce(Builder) -> Builder) -> (LockManager, Sums) {
    let sums = Sums::default();
    metrics::set_global_recorder(sums.clone()).expect("the only recorder");
    let builder = change(LockManager::builder_in_memory());
    (builder.build().expect("options that can work"), sums)
}

#[test]
fn the_recorder_gets_the_statistics_of_each_class() {
    if !is_alone(
        module_path!(),
        "the_recorder_gets_the_statistics_of_each_class",
    ) {
        return;
    }
    thread_local! {
        static BEHIND: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
    }
    thread::spawn(|| {
        thread::sleep(3 * LONG);
        println!("the test hangs: the recorder was called while a mutex was locked");
        process::exit(1);
    });
    let (locks, sums) = recorded(|it| it.renew_every(PERIOD).classes(["a:", "b:"]));
    let memory = locks.memory().expect("it is in memory");
    // For Prometheus, an empty label is none. So there is none, as for a manager without classes.
    let get = |name: &str, class: &str| match class {
        "" => sums.all().get(&format!("relatch_{name}")).copied(),
        class => {
            let name = format!("relatch_{name}{{class=\"{class}\"}}");
            sums.all().get(&name).copied()
        }
    };
    for class in ["a:", "b:", ""] {
        for name in ["lost_total", "acquired_total", "waiting", "held"] {
            assert_eq!(get(name, class), Some(0.0), "an alert sees it grow");
        }
    }
    relatch::install(locks.clone()).expect("the first");
    let guard = locks.lock("a:1").expect("locks");
    drop(locks.lock("a:1").expect("enters again"));
    eventually(LONG, "it is renewed", || locks.stats().renewed > 0);
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.lock("a:1").map(drop).expect("locks"));
        eventually(LONG, "it waits", || get("waiting", "a:") > Some(0.0));
        assert_eq!(get("held", "a:"), Some(1.0));
        drop(guard);
        waits.join().expect("no panic");
    });
    let detached = locks.lock("b:1").expect("locks").detach();
    let detached = detached.expect("the only guard");
    let busy = locks.named("b:1").wait(PERIOD).lock();
    busy.expect_err("it is busy");
    thread::scope(|scope| {
        scope.spawn(|| drop(detached.attach().expect("attaches")));
    });
    let parcel = locks.lock("b:2").expect("locks").hand_over();
    assert_eq!(get("held", "b:"), Some(0.0));
    let adopted = locks.adopt(&parcel.expect("hands over")).expect("adopts");
    assert_eq!(get("held", "b:"), Some(1.0));
    drop(adopted);
    let lost = locks.lock("c").expect("locks");
    assert!(memory.lose("c", LostCause::Deleted));
    drop(lost);
    memory.go_away(MINUTE);
    locks.named("c").holder().expect_err("nothing answers");
    memory.go_away(Duration::ZERO);
    let stats = locks.stats();
    assert_eq!((stats.lost, stats.unavailable, stats.timed_out), (1, 1, 1));
    assert_same(&sums, &locks);
    let text = stats.prometheus();
    for line in text.lines().filter_map(|it| it.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().expect("a name");
        assert!(sums.get(&format!("help of {name}")) > 0.0, "{name}");
    }

    // Nobody gives the first two back. The thread's map goes after its closure, so this waits for
    // the end. The third guard goes later than the map, and is counted once.
    let take = |name| locks.lock(name).expect("locks");
    let ends = || {
        ["a:2", "c"]
            .into_iter()
            .map(take)
            .for_each(std::mem::forget);
        BEHIND.set(Some(take("b:3")));
    };
    thread::scope(|scope| scope.spawn(ends).join().expect("no panic"));
    let held = ["a:", "b:", ""].map(|class| get("held", class));
    assert_eq!(held, [Some(0.0); 3]);
}

/// The recorder has the numbers of the statistics, and no others, once the thread that tells it of
/// renewals has done so.
#[track_caller]
fn assert_same(sums: &Sums, locks: &LockManager) {
    let end = Instant::now() + LONG;
    while difference(sums, &locks.stats()).is_some() && Instant::now() < end {
        thread::yield_now();
    }
    assert_eq!(difference(sums, &locks.stats()), None);
}

fn difference(sums: &Sums, stats: &Stats) -> Option<String> {
    let text = stats.prometheus();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut all = sums.all();
    for line in lines.filter(|line| !line.contains("_bucket")) {
        let (series, value) = line.rsplit_once(' ').expect("a series and a value");
        let value: f64 = value.parse().expect("a number");
        let told = all.remove(series).unwrap_or_default();
        if (told - value).abs() >= 1e-6 {
            return Some(format!("{line}, but the recorder has {told}"));
        }
    }
    all.retain(|series, _| !series.starts_with("help of "));
    (!all.is_empty()).then(|| format!("{all:?}"))
}

#[test]
fn a_recorder_that_panics_changes_nothing() {
    if !is_alone(module_path!(), "a_recorder_that_panics_changes_nothing") {
        return;
    }
    PANICS.store(true, Ordering::SeqCst);
    let _panics = tracing::dispatcher::set_default(&Dispatch::new(Spans::default()));
    let (locks, sums) = recorded(|builder| builder);
    let guards = locks.several(["a", "b"]).lock().expect("locks");
    let again = locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(locks.lock("a").expect("locks")));
        eventually(LONG, "it waits", || locks.stats().waiting == 1);
        drop((again, guards));
        waiter.join().expect("no panic");
    });
    for name in ["a", "b"] {
        assert!(locks.named(name).holder().expect("answers").is_none());
    }
    let names = ["acquired_total", "reentered_total", "waiting", "held"];
    let sent = names.map(|name| sums.get(&format!("relatch_{name}")));
    assert!(sent[1] > 0.0, "{sent:?}");
    assert_eq!((sent[0], sent[2], sent[3]), (3.0, 0.0, 0.0));
}

#[test]
fn a_recorder_that_stands_still_costs_no_hold() {
    if !is_alone(module_path!(), "a_recorder_that_stands_still_costs_no_hold") {
        return;
    }
    let lease = Duration::from_secs(3);
    let (locks, sums) = recorded(|builder| builder.lease(lease).renew_every(lease / 30));
    STANDS_STILL.store(true, Ordering::SeqCst);
    let _goes_on = SetOnDrop(&GOES_ON);
    let guard = locks.lock("a").expect("locks");
    eventually(LONG, "renewals go on for longer than the lease", || {
        renewals(&locks, "a") > 40
    });
    assert!(guard.is_valid());
    assert!(sums.get("relatch_renewed_total").abs() < 1e-6);
    GOES_ON.store(true, Ordering::SeqCst);
    drop(guard);
    assert_same(&sums, &locks);
}

/// A subscriber that keeps the fields of each span, and whether it has ended.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Span>>>);

#[derive(Clone, Debug, Default)]
struct Span {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    is_over: bool,
}

impl Visit for Span {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl Spans {
    fn with<T>(&self, id: &Id, change: impl FnOnce(&mut Span) -> T) -> T {
        let place = usize::try_from(id.into_u64()).expect("few spans") - 1;
        change(&mut self.0.lock().expect("no panic")[place])
    }

    /// The name of each span with these fields. All are over.
    fn shown(&self, fields: &[&str]) -> Vec<String> {
        let spans = self.0.lock().expect("no panic");
        let seen = spans.iter().map(|span| {
            assert!(span.is_over, "{span:?}");
            let shown = fields.iter().filter_map(|name| span.fields.get(name));
            [span.name.to_owned()]
                .into_iter()
                .chain(shown.cloned())
                .collect::<Vec<_>>()
                .join(" ")
        });
        seen.collect()
    }
}

impl Subscriber for Spans {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        assert!(!PANICS.load(Ordering::SeqCst), "the subscriber");
        of.target().starts_with("relatch::")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut span = Span {
            name: attributes.metadata().name(),
            ..Span::default()
        };
        attributes.record(&mut span);
        let mut spans = self.0.lock().expect("no panic");
        spans.push(span);
        Id::from_u64(spans.len().try_into().expect("few spans"))
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.with(id, |span| values.record(span));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &Id) {
        unreachable!("guards end in any order, so no span of ours is the current one");
    }

    fn exit(&self, _: &Id) {}

    fn try_close(&self, id: Id) -> bool {
        self.with(&id, |span| span.is_over = true);
        true
    }
}

/// In a process of its own: `tracing` asks only the subscriber of the thread that meets a span
/// first, and another test's thread, which has none, would switch the span off for all.
#[test]
fn waits_and_holds_are_spans() {
    if !is_alone(module_path!(), "waits_and_holds_are_spans") {
        return;
    }
    let locks = LockManager::in_memory();
    let busy = locks.lock("b").expect("locks");
    let busy = busy.detach().expect("the only guard");
    let busy_error = RefCell::new(None);
    let spans = Spans::default();
    let traced = Dispatch::new(spans.clone());
    tracing::dispatcher::with_default(&traced, || {
        locks
            .with_lock("a", || locks.with_lock("a", || ()))
            .expect("locks")
            .expect("again");
        let once = locks.named("b").wait(Duration::ZERO);
        *busy_error.borrow_mut() = once.lock().err();
        let lost = locks.lock("c").expect("locks");
        locks.named("c").force_unlock().expect("an answer");
        lost.unlock().expect_err("it is lost");
        let minute = locks.named("d").keep_at_least(MINUTE);
        minute.with_lock(|| ()).expect("locks");
    });
    drop(busy);
    let Some(Error::Timeout { holder, .. }) = busy_error.into_inner() else {
        panic!("it is busy");
    };
    let named = holder.map_or_else(String::new, |holder| format!(" {holder}"));
    assert_eq!(spans.shown(&["holder"])[2], format!("lock_wait{named}"));
    assert_eq!(
        spans.shown(&["key", "outcome"]),
        [
            "lock_wait a taken",
            "lock_hold a released",
            "lock_wait b timeout",
            "lock_wait c taken",
            "lock_hold c lost",
            "lock_wait d taken",
            "lock_hold d kept",
        ]
    );
}
