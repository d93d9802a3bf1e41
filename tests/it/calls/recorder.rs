//! The feature `metrics`: what the statistics count reaches the recorder of the `metrics` crate,
//! under the names of the text for Prometheus. The feature `tracing`: waits and holds are spans.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use relatch::{Error, LockGuard, LockManager, LostCause, Stats};
use relatch_rig::{LONG, SetOnDrop, eventually, is_alone};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Subscriber};

use crate::support::{ANSWER, MINUTE, Rig, behind, delete, occupy, renewals};

/// A recorder that keeps the sum of each metric, and how many values a histogram got.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<BTreeMap<String, f64>>>);

/// The recorder panics at each metric.
static PANICS: AtomicBool = AtomicBool::new(false);

/// The recorder takes a lock the next time that a hold has ended.
static TAKES: AtomicBool = AtomicBool::new(false);

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
        if name == "relatch_time_held_seconds_count" && TAKES.swap(false, Ordering::SeqCst) {
            let locks = relatch::installed().expect("a manager");
            locks.with_lock("another", || ()).expect("locks");
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

#[test]
fn the_recorder_gets_what_the_statistics_count() {
    if !is_alone(
        module_path!(),
        "the_recorder_gets_what_the_statistics_count",
    ) {
        return;
    }
    thread::spawn(|| {
        thread::sleep(3 * LONG);
        println!("the test hangs: the recorder was called while a mutex was locked");
        process::exit(1);
    });
    let sums = Sums::default();
    metrics::set_global_recorder(sums.clone()).expect("the only recorder");
    let rig = Rig::renewing();
    let at_once = sums.all();
    for name in ["relatch_lost_total", "relatch_waiting"] {
        assert_eq!(at_once.get(name), Some(&0.0), "an alert sees its growth");
    }
    relatch::install(rig.locks.clone()).expect("the first");
    let guard = rig.locks.lock("a").expect("locks");
    drop(rig.locks.lock("a").expect("enters again"));
    eventually(LONG, "it is renewed", || rig.locks.stats().renewed > 0);
    thread::scope(|scope| {
        let waits = behind(scope, || rig.locks.lock("a").map(drop));
        assert_eq!(
            (sums.get("relatch_waiting"), sums.get("relatch_held")),
            (1.0, 1.0)
        );
        guard.unlock().expect("unlocks");
        waits.join().expect("no panic").expect("locks");
    });
    occupy(&rig.server, "b", MINUTE);
    assert!(
        rig.locks
            .named("b")
            .try_lock_for(ANSWER)
            .expect("answers")
            .is_none()
    );
    let lost = rig.locks.lock("c").expect("locks");
    eventually(LONG, "its key is tracked", || renewals(&rig.locks, "c") > 0);
    delete(&rig.server, "c");
    eventually(LONG, "it is lost", || !lost.is_valid());
    drop(lost);
    let before = rig.locks.stats();
    let parcel = rig
        .locks
        .lock("e")
        .expect("locks")
        .hand_over()
        .expect("hands over");
    assert_eq!((rig.locks.stats().held, sums.get("relatch_held")), (0, 0.0));
    let adopted = rig.locks.adopt(&parcel).expect("adopts");
    assert_eq!((rig.locks.stats().held, sums.get("relatch_held")), (1, 1.0));
    drop(adopted.detach().expect("detaches"));
    let stats = rig.locks.stats();
    let taken_and_given_back = (
        stats.acquired - before.acquired,
        stats.time_held.count - before.time_held.count,
    );
    assert_eq!(taken_and_given_back, (2, 2), "an adoption is one more hold");
    rig.proxy.refuse(true);
    rig.proxy.cut_all();
    assert!(matches!(
        rig.locks.lock("d"),
        Err(Error::Unavailable { .. })
    ));
    rig.proxy.refuse(false);

    // The counters of the statistics, each under its name.
    let stats = rig.locks.stats();
    assert!(stats.lost == 1 && stats.unavailable == 1 && stats.timed_out == 1 && stats.waited > 1);
    assert_same(&sums, &stats);
    for line in stats
        .prometheus()
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
    {
        let name = line.split(' ').next().expect("a name");
        assert!(sums.get(&format!("help of {name}")) > 0.0, "{name}");
    }
}

/// The recorder has the numbers of these statistics, and no others.
#[track_caller]
fn assert_same(sums: &Sums, stats: &Stats) {
    let text = stats.prometheus();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut all = sums.all();
    for line in lines.filter(|line| !line.contains("_bucket")) {
        let (series, value) = line.rsplit_once(' ').expect("a series and a value");
        let value: f64 = value.parse().expect("a number");
        let told = all.remove(series).unwrap_or_default();
        assert!((told - value).abs() < 1e-6, "{line}, but {:?}", sums.all());
    }
    all.retain(|series, _| !series.starts_with("help of "));
    assert!(all.is_empty(), "{all:?}");
}

#[test]
fn the_recorder_gets_the_statistics_of_each_class() {
    if !is_alone(
        module_path!(),
        "the_recorder_gets_the_statistics_of_each_class",
    ) {
        return;
    }
    let sums = Sums::default();
    metrics::set_global_recorder(sums.clone()).expect("the only recorder");
    let builder = LockManager::builder_in_memory().classes(["a:", "b:"]);
    let locks = builder.build().expect("options that can work");
    // For Prometheus, an empty label is none. So there is none, as for a manager without classes.
    let series = |name: &str, class: &str| match class {
        "" => format!("relatch_{name}"),
        class => format!("relatch_{name}{{class=\"{class}\"}}"),
    };
    for class in ["a:", "b:", ""] {
        for name in ["lost_total", "acquired_total", "waiting", "held"] {
            let series = series(name, class);
            assert_eq!(sums.all().get(&series), Some(&0.0), "an alert sees it grow");
        }
    }
    let guard = locks.lock("a:1").expect("locks");
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.lock("a:1").map(drop).expect("locks"));
        eventually(LONG, "it waits", || {
            sums.get("relatch_waiting{class=\"a:\"}") > 0.0
        });
        assert!((sums.get("relatch_held{class=\"a:\"}") - 1.0).abs() < 1e-6);
        drop(guard);
        waits.join().expect("no panic");
    });
    let held = locks.lock("b:1").expect("locks");
    locks.try_lock("b:1").expect("enters again");
    let detached = held.detach().expect("the only guard");
    thread::scope(|scope| {
        scope.spawn(|| drop(detached.attach().expect("attaches")));
    });
    let lost = locks.lock("b:2").expect("locks");
    let memory = locks.memory().expect("it is in memory");
    memory.lose("b:2", LostCause::Deleted);
    drop(lost);
    assert_same(&sums, &locks.stats());

    // Nobody gives these back. The thread's map goes after its closure, so this waits for the end.
    let forget = |name| std::mem::forget(locks.lock(name).expect("locks"));
    let forgets = || ["a:2", "c"].map(forget);
    thread::scope(|scope| scope.spawn(forgets).join().expect("no panic"));
    let held = ["a:", "b:", ""].map(|it| sums.get(&series("held", it)));
    assert!(held.iter().all(|it| it.abs() < 1e-6), "{held:?}");
}

/// Nobody gives such a hold back. A guard that goes later than the thread's map is counted once.
#[test]
fn a_lock_whose_thread_has_ended_is_not_held_for_ever() {
    if !is_alone(
        module_path!(),
        "a_lock_whose_thread_has_ended_is_not_held_for_ever",
    ) {
        return;
    }
    thread_local! {
        static BEFORE: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
        static BEHIND: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
    }
    let sums = Sums::default();
    metrics::set_global_recorder(sums.clone()).expect("the only recorder");
    let locks = LockManager::in_memory();
    let outer = locks.lock("a").expect("locks");
    let in_a_thread = |check: fn(&LockManager)| {
        thread::scope(|scope| scope.spawn(|| check(&locks)).join().expect("no panic"));
        assert!(
            (sums.get("relatch_held") - 1.0).abs() < 1e-6,
            "{:?}",
            sums.all()
        );
    };
    in_a_thread(|locks| std::mem::forget(locks.lock("b").expect("locks")));
    in_a_thread(|locks| {
        BEFORE.with_borrow(|none| assert!(none.is_none()));
        BEFORE.set(Some(locks.lock("c").expect("locks")));
    });
    in_a_thread(|locks| BEHIND.set(Some(locks.lock("d").expect("locks"))));
    drop(outer);
    assert!(sums.get("relatch_held").abs() < 1e-6, "{:?}", sums.all());
}

#[test]
fn a_recorder_that_takes_a_lock_does_not_find_the_one_that_was_handed_over() {
    if !is_alone(
        module_path!(),
        "a_recorder_that_takes_a_lock_does_not_find_the_one_that_was_handed_over",
    ) {
        return;
    }
    metrics::set_global_recorder(Sums::default()).expect("the only recorder");
    let locks = LockManager::in_memory();
    relatch::install(locks.clone()).expect("the first");
    let guard = locks.lock("a").expect("locks");
    let watch = guard.watch();
    TAKES.store(true, Ordering::SeqCst);
    let _parcel = guard.hand_over().expect("hands over");
    assert!(!TAKES.load(Ordering::SeqCst), "the recorder took a lock");
    assert_eq!(watch.wait_lost(Duration::ZERO), None);
    assert_eq!(locks.stats().acquired, 2);
}

#[test]
fn a_recorder_that_panics_changes_nothing() {
    if !is_alone(module_path!(), "a_recorder_that_panics_changes_nothing") {
        return;
    }
    let sums = Sums::default();
    metrics::set_global_recorder(sums.clone()).expect("the only recorder");
    PANICS.store(true, Ordering::SeqCst);
    let _panics = tracing::dispatcher::set_default(&Dispatch::new(Spans::default()));
    let rig = Rig::renewing();
    for locks in [&rig.locks, &LockManager::in_memory()] {
        let before = sums.get("relatch_acquired_total");
        let guards = locks.several(["a", "b"]).lock().expect("locks");
        let again = locks.lock("a").expect("locks");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(locks.lock("a").expect("locks")));
            eventually(LONG, "a thread waits", || locks.stats().waiting == 1);
            drop((again, guards));
            waiter.join().expect("no panic");
        });
        assert!(
            ["a", "b"]
                .iter()
                .all(|name| locks.named(name).holder().expect("answers").is_none())
        );
        let sent = ["acquired_total", "reentered_total", "waiting", "held"].map(|name| {
            let name = format!("relatch_{name}");
            sums.get(&name)
        });
        assert_eq!(
            (sent[0] - before, sent[2], sent[3]),
            (3.0, 0.0, 0.0),
            "{:?}",
            sums.all()
        );
        assert!(sent[1] > 0.0, "{:?}", sums.all());
    }
}

#[test]
fn a_recorder_that_stands_still_costs_no_hold() {
    if !is_alone(module_path!(), "a_recorder_that_stands_still_costs_no_hold") {
        return;
    }
    let sums = Sums::default();
    metrics::set_global_recorder(sums.clone()).expect("the only recorder");
    let lease = Duration::from_secs(3);
    let rig = Rig::with(|builder| builder.lease(lease).renew_every(lease / 30));
    STANDS_STILL.store(true, Ordering::SeqCst);
    let _goes_on = SetOnDrop(&GOES_ON);
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "renewals go on for longer than the lease", || {
        renewals(&rig.locks, "a") > 40
    });
    assert!(guard.is_valid());
    assert!(sums.get("relatch_renewed_total").abs() < 1e-6);
    GOES_ON.store(true, Ordering::SeqCst);
    drop(guard);
    let stats = rig.locks.stats();
    drop(rig.locks);
    assert_same(&sums, &stats);
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
