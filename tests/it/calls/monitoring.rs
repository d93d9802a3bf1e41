//! Waits and holds as a program, its log and its monitoring system see them.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use relatch::{Error, Holder, LockManager, Owner, Stats};
use relatch_rig::{LONG, Server, eventually, is_alone, within};

use crate::calls::logs::{collect, lines_of};
use crate::support::{
    ANSWER, MINUTE, PERIOD, Rig, SOON, behind, builder, connect, delete, occupy, server_for,
    tracked_hold, without,
};

#[test]
fn threads_that_wait_are_listed_with_the_holder_and_what_is_left() {
    let rig = Rig::new();
    occupy(&rig.server, "far", MINUTE);
    let near = rig.locks.lock("near").expect("locks");
    let me = Owner::current();
    thread::scope(|scope| {
        let far = scope.spawn(|| {
            rig.locks
                .named("far")
                .try_lock_for(2 * MINUTE)
                .map(|it| it.is_some())
        });
        eventually(LONG, "one waits, and knows for whom", || {
            rig.locks
                .waiting()
                .first()
                .is_some_and(|it| it.holder.is_some())
        });
        let queued = behind(scope, || rig.locks.lock("near").map(drop));
        let waiting = rig.locks.waiting();
        let [first, second] = &waiting[..] else {
            panic!("{waiting:?}")
        };
        assert_eq!(
            (first.key.as_str(), second.key.as_str()),
            ("far", "near"),
            "the longest wait is first"
        );
        assert_eq!(first.holder.as_ref().map(|it| &*it.raw), Some("somebody"));
        assert_eq!(
            second.holder.as_ref().and_then(Holder::owner),
            Some(me.clone())
        );
        assert!(first.thread != second.thread && first.thread != me && first.thread.pid == me.pid);
        assert!(
            first
                .remaining
                .is_some_and(|left| MINUTE < left && left + first.waited <= 2 * MINUTE)
        );
        assert_eq!(second.remaining, None, "this wait has no limit");
        assert!(first.waited > second.waited);
        let stats = rig.locks.stats();
        assert_eq!((stats.waiting, stats.held), (2, 1));
        assert!(
            second.to_string().contains(r#"lock "near" for "#),
            "{second}"
        );
        near.unlock().expect("unlocks");
        delete(&rig.server, "far");
        assert!(far.join().expect("no panic").expect("answers"));
        queued.join().expect("no panic").expect("locks");
    });
    assert!(rig.locks.waiting().is_empty());
    let stats = rig.locks.stats();
    assert_eq!((stats.waiting, stats.held, stats.waited), (0, 0, 2));
}

#[test]
fn a_wait_that_ends_leaves_the_others_in_their_order() {
    let rig = Rig::new();
    let locks = &rig.locks;
    let names = || {
        locks
            .waiting()
            .into_iter()
            .map(|it| it.key)
            .collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
            occupy(&rig.server, name, MINUTE);
            scope.spawn(move || locks.lock(name).map(drop).expect("locks"));
            eventually(LONG, "it waits", || names().len() == n + 1);
        }
        delete(&rig.server, "a");
        eventually(LONG, "it has the lock", || names().len() == 2);
        let left = names();
        for name in ["b", "c"] {
            delete(&rig.server, name);
        }
        assert_eq!(left, ["b", "c"]);
    });
}

#[test]
fn a_thread_that_gives_up_is_not_listed_any_more() {
    let rig = Rig::new();
    occupy(&rig.server, "a", MINUTE);
    let guard = rig.locks.lock("b").expect("locks");
    let locks = &rig.locks;
    thread::scope(|scope| {
        for name in ["a", "b"] {
            let timed = scope.spawn(move || {
                locks
                    .named(name)
                    .try_lock_for(ANSWER)
                    .map(|it| it.is_some())
            });
            eventually(LONG, "it waits", || rig.locks.stats().waiting == 1);
            assert!(!timed.join().expect("no panic").expect("answers"));
            assert!(rig.locks.waiting().is_empty(), "{name}");
        }
    });
    assert!(
        rig.locks.try_lock("a").expect("answers").is_none(),
        "a single try does not wait"
    );
    drop(guard);
    assert_eq!(rig.locks.stats().waited, 2);
}

#[test]
fn calls_that_redis_does_not_answer_or_refuses_are_counted_and_their_waits_are_listed() {
    let rig = Rig::new();
    rig.proxy.refuse(true);
    rig.proxy.cut_all();
    thread::scope(|scope| {
        let waits = scope.spawn(|| rig.locks.lock("a").map(drop).expect_err("nothing answers"));
        eventually(LONG, "it waits", || rig.locks.stats().waiting == 1);
        let waiting = rig.locks.waiting();
        assert!(
            matches!(&waiting[..], [it] if it.holder.is_none()),
            "{waiting:?}"
        );
        assert!(waits.join().expect("no panic").is_redis_failure());
    });
    assert!(rig.locks.waiting().is_empty());
    assert_eq!(rig.locks.stats().unavailable, 1);
    rig.locks.named("a").holder().expect_err("nothing answers");
    assert_eq!(
        (rig.locks.stats().unavailable, rig.locks.stats().refused),
        (2, 0)
    );

    let (_server, url) = server_for(&without(&["+set"]));
    let locks = LockManager::connect(&url).expect("connects");
    assert!(matches!(locks.lock("b"), Err(Error::Refused { .. })));
    let stats = locks.stats();
    assert_eq!(
        (stats.refused, stats.unavailable, stats.timed_out),
        (1, 0, 0)
    );
}

#[test]
fn each_call_about_a_lock_that_redis_does_not_answer_is_counted() {
    let rig = Rig::new();
    let [a, b] = ["a", "b"].map(|name| rig.locks.lock(name).expect("locks"));
    let parcel = connect(&rig.server)
        .lock("c")
        .expect("locks")
        .hand_over()
        .expect("hands over");
    rig.proxy.black_hole(true);
    let fails: [&dyn Fn() -> Result<(), Error>; 6] = [
        &|| a.confirm(Duration::from_secs(1)),
        &|| a.set_lease(MINUTE),
        // Less than that is left: the first lease was shorter.
        &|| a.ensure(MINUTE / 2),
        &|| a.verify(),
        &|| rig.locks.adopt(&parcel).map(drop),
        &|| rig.locks.named("a").force_unlock().map(drop),
    ];
    for (n, fail) in (1..).zip(fails) {
        assert!(
            fail().expect_err("nothing answers").is_redis_failure(),
            "call {n}"
        );
        assert_eq!(rig.locks.stats().unavailable, n);
    }
    let (_b, stays) = b.try_hand_over().expect_err("nothing answers");
    assert!(stays.is_redis_failure(), "{stays:?}");
    assert_eq!(
        (rig.locks.stats().unavailable, rig.locks.stats().refused),
        (7, 0)
    );
    rig.proxy.black_hole(false);
}

#[test]
fn the_log_says_when_a_wait_begins_and_ends() {
    if !is_alone(module_path!(), "the_log_says_when_a_wait_begins_and_ends") {
        return;
    }
    collect(LevelFilter::Debug);
    let rig = Rig::new();
    drop(rig.locks.lock("free").expect("locks"));
    assert_eq!(
        rig.locks
            .named("free")
            .try_lock_for(LONG)
            .expect("answers")
            .map(drop),
        Some(())
    );
    let guard = rig.locks.lock("near").expect("locks");
    occupy(&rig.server, "far", MINUTE);
    assert!(
        lines_of("relatch::wait").is_empty(),
        "nothing was busy: {:?}",
        lines_of("relatch::wait")
    );

    assert!(rig.locks.try_lock("far").expect("answers").is_none());
    assert!(
        lines_of("relatch::wait").is_empty(),
        "a single try does not wait"
    );
    assert!(
        rig.locks
            .named("far")
            .try_lock_for(SOON)
            .expect("answers")
            .is_none()
    );
    thread::scope(|scope| {
        let waits = behind(scope, || rig.locks.lock("near").map(drop));
        guard.unlock().expect("unlocks");
        waits.join().expect("no panic").expect("locks");
    });
    let me = Owner::current();
    let lines = lines_of("relatch::wait");
    let expected = [
        (
            format!("DEBUG relatch::wait {me} waits for lock \"far\", held by \"somebody\" ("),
            "left)",
        ),
        (
            format!("DEBUG relatch::wait {me} stopped waiting for lock \"far\" after "),
            "lock \"far\" was still busy",
        ),
        (
            "DEBUG relatch::wait ".to_owned(),
            &*format!("waits for lock \"near\", held by {me} ("),
        ),
        (
            "DEBUG relatch::wait ".to_owned(),
            "took lock \"near\" after ",
        ),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, (begin, part)) in lines.iter().zip(expected) {
        assert!(
            line.starts_with(&begin) && line.contains(part),
            "{lines:#?}"
        );
    }
}

/// A thread says itself that it waits for long: in front of a queue, behind another thread, and
/// while Redis is silent.
#[test]
fn a_wait_of_five_seconds_says_so_and_whose_lease_it_waits_for() {
    if !is_alone(
        module_path!(),
        "a_wait_of_five_seconds_says_so_and_whose_lease_it_waits_for",
    ) {
        return;
    }
    collect(LevelFilter::Info);
    // A thread behind others looks again by itself for no other reason than to say so.
    let rig = Rig::with(|builder| builder.tolerate_outage(Duration::MAX));
    let silent = Rig::with(|builder| builder.tolerate_outage(LONG));
    occupy(&rig.server, "far", MINUTE);
    silent.proxy.black_hole(true);
    let lines = |lock: &str| -> Vec<String> {
        let of = format!(" has waited for lock \"{lock}\" for ");
        lines_of("relatch::wait")
            .into_iter()
            .filter(|line| line.contains(&of))
            .collect()
    };
    let wait = |rig: &Rig, lock: &str| {
        let guard = rig
            .locks
            .named(lock)
            .try_lock_for(2 * LONG)
            .expect("answers at last");
        drop(guard.expect("free at last"));
    };
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| wait(&rig, "far"));
        scope.spawn(|| wait(&rig, "far"));
        scope.spawn(|| wait(&silent, "nowhere"));
        eventually(LONG, "two wait", || rig.locks.waiting().len() == 2);
        scope.spawn(|| rig.locks.lock("far").map(drop).expect("free at last"));
        eventually(LONG, "all have said so", || {
            lines("far").len() >= 3 && !lines("nowhere").is_empty()
        });
        let took = began.elapsed();
        assert!(took >= 5 * SOON && took < 9 * SOON, "{took:?}");
        assert!(
            lines("far").len() <= 3 * doublings(5 * SOON, took),
            "{took:?}: {:#?}",
            lines("far")
        );
        silent.proxy.black_hole(false);
        silent.proxy.cut_all();
        delete(&rig.server, "far");
    });
    for line in lines("far") {
        assert!(line.starts_with("INFO relatch::wait "), "{line}");
        let left = line
            .split_once("held by \"somebody\" (")
            .expect("the holder")
            .1;
        let left: f64 = left
            .split_once("s left)")
            .expect("its lease")
            .0
            .parse()
            .expect("seconds");
        assert!(left <= 55.0, "{line}: as if it had just begun");
        assert!(!line.contains("no answer"), "{line}");
    }
    let limited = |line: &&String| line.contains("gives up in ");
    let all = lines("far");
    assert!(
        all.iter().filter(limited).count() >= 2
            && all.iter().any(|it| it.contains("without a limit"))
    );
    let line = &lines("nowhere")[0];
    assert!(
        line.contains("whose holder is not known")
            && line.contains("; Redis has given no answer for "),
        "{line}"
    );
}

/// How often a limit and its doublings are reached within `span`.
fn doublings(limit: Duration, span: Duration) -> usize {
    (0..20)
        .take_while(|n| limit * 2_u32.pow(*n) <= span)
        .count()
}

#[test]
fn long_waits_and_holds_are_warned_of_at_doubling_intervals() {
    const WAIT: Duration = Duration::from_millis(150);
    const HELD: Duration = Duration::from_millis(100);
    if !is_alone(
        module_path!(),
        "long_waits_and_holds_are_warned_of_at_doubling_intervals",
    ) {
        return;
    }
    collect(LevelFilter::Warn);
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .warn_after(WAIT, HELD)
        .build()
        .expect("connects");
    // This manager does not warn, and its hold is as long.
    let other = connect(&server);
    let silent = other.lock("silent").expect("locks");
    let of = |what: &str| -> Vec<String> {
        lines_of("relatch::slow")
            .into_iter()
            .filter(|line| line.contains(what))
            .collect()
    };

    // A wait, while this manager holds nothing.
    let began = Instant::now();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            locks
                .named("silent")
                .try_lock_for(LONG)
                .map(|it| it.is_some())
        });
        eventually(LONG, "three warnings", || of("waits for long").len() >= 3);
        silent.unlock().expect("unlocks");
        assert!(waits.join().expect("no panic").expect("answers"));
    });
    let (lines, span) = (of("waits for long"), began.elapsed());
    assert!(lines.len() <= doublings(WAIT, span), "{span:?}: {lines:#?}");
    assert!(
        span >= 4 * WAIT,
        "three warnings come after four times the limit: {span:?}"
    );
    for line in &lines {
        assert!(
            line.starts_with("WARN relatch::slow a thread waits for long: "),
            "{line}"
        );
        let holder = "for lock \"silent\" for ";
        assert!(
            line.contains(holder) && line.contains(&format!("held by {} (", Owner::current())),
            "{line}"
        );
        assert!(line.contains("gives up in 1"), "{line}");
    }
    assert!(of("held for long").is_empty(), "{:?}", of("held for long"));

    let began = Instant::now();
    let guard = locks.lock("mine").expect("locks");
    eventually(LONG, "three warnings", || of("held for long").len() >= 3);
    guard.unlock().expect("unlocks");
    let (lines, span) = (of("held for long"), began.elapsed());
    assert!(lines.len() <= doublings(HELD, span), "{span:?}: {lines:#?}");
    assert!(span >= 4 * HELD, "{span:?}");
    for line in &lines {
        let start = format!(
            "WARN relatch::slow a lock is held for long: lock \"mine\", held by {}",
            Owner::current()
        );
        assert!(
            line.starts_with(&start) && line.contains("valid for 2"),
            "{line}"
        );
    }
    drop(locks.lock("short").expect("locks"));
    assert!(of("short").is_empty());
}

/// The thread sleeps for the first time when its first attempt has had no answer. That is after the
/// first doubling of the limit, and the wait ends before the second one. The keeper looks often,
/// because of the other limit.
#[test]
fn a_wait_that_is_listed_after_its_limit_is_warned_of_at_once() {
    if !is_alone(
        module_path!(),
        "a_wait_that_is_listed_after_its_limit_is_warned_of_at_once",
    ) {
        return;
    }
    collect(LevelFilter::Warn);
    let limit = 4 * PERIOD;
    let rig = Rig::with(|builder| {
        builder
            .response_timeout(9 * PERIOD)
            .warn_after(limit, PERIOD / 2)
    });
    rig.proxy.black_hole(true);
    let waits = rig.locks.named("a").try_lock_for(15 * PERIOD);
    assert!(waits.expect_err("nothing answers").is_redis_failure());
    let lines = lines_of("relatch::slow");
    assert!(
        matches!(&lines[..], [line] if line.contains("lock \"a\"")),
        "{lines:?}"
    );
    rig.proxy.black_hole(false);
}

#[test]
fn limits_that_would_warn_of_everything_are_refused() {
    for (wait, held) in [(Duration::ZERO, LONG), (LONG, Duration::ZERO)] {
        let built = LockManager::builder("redis://127.0.0.1:1/")
            .warn_after(wait, held)
            .build_lazily();
        let Err(Error::InvalidOption { option, value, .. }) = built else {
            panic!("{built:?}")
        };
        assert_eq!((option, value.as_deref()), ("warn_after", Some("0ns")));
    }
}

/// A manager that warns ends its thread like any other.
#[test]
fn a_manager_that_warns_is_dropped_at_once() {
    let server = Server::start();
    let locks = builder(&server.url())
        .warn_after(MINUTE, MINUTE)
        .build()
        .expect("connects");
    within(LONG / 4, "the drop", || drop(locks));
}

/// Reads a text with the parser of Prometheus's client for Python. Prints for each metric its type,
/// its name and whether it has a help text, then its samples, with the class in brackets.
const PARSER: &str = r#"
import sys
from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    print(family.type, family.name, bool(family.documentation))
    for it in family.samples:
        of_class = "[" + it.labels["class"] + "]" if "class" in it.labels else ""
        print(it.name + of_class, it.labels.get("le", "-"), float(it.value))
"#;

/// What Prometheus's own parser reads from a text.
#[track_caller]
fn parsed(text: &str) -> Vec<String> {
    // Debian's packages are for the Python at the first place, which may not be the first on the
    // PATH.
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        let status = Command::new(python)
            .args(["-c", "import prometheus_client"])
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    });
    let python = python.expect(
        "no Python has Prometheus's client: `bash tests/run.sh` installs it (python3-prometheus-client)",
    );
    let mut child = Command::new(python)
        .args(["-c", PARSER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it was just there");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(text.as_bytes())
        .expect("it reads all");
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the parser refuses this text: {error}\n{text}"
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn prometheus_reads_the_statistics() {
    let rig = Rig::new();
    for _ in 0..3 {
        let guard = rig.locks.lock("a").expect("locks");
        drop(rig.locks.lock("a").expect("enters again"));
        drop(guard);
    }
    let guard = rig.locks.lock("b").expect("locks");
    occupy(&rig.server, "c", MINUTE);
    assert!(rig.locks.try_lock("c").expect("answers").is_none());
    let stats = rig.locks.stats();
    let lines = parsed(&stats.prometheus());
    drop(guard);
    let has = |line: &str| {
        assert!(
            lines.iter().any(|it| it == line),
            "no {line:?} in {lines:#?}"
        );
    };
    for line in [
        "counter relatch_acquired True",
        "relatch_acquired_total - 5.0",
        "relatch_reentered_total - 3.0",
        "relatch_timed_out_total - 1.0",
        "counter relatch_lost True",
        "relatch_lost_total - 0.0",
        "relatch_unavailable_total - 0.0",
        "gauge relatch_held True",
        "relatch_held - 1.0",
        "relatch_waiting - 0.0",
        "histogram relatch_time_held_seconds True",
        "relatch_time_held_seconds_bucket +Inf 4.0",
        "relatch_time_held_seconds_count - 4.0",
        "relatch_time_waited_seconds_bucket 0.000001 0.0",
        "relatch_time_waited_seconds_bucket 274877.906944 5.0",
    ] {
        has(line);
    }
    let sum = lines
        .iter()
        .find_map(|line| line.strip_prefix("relatch_time_held_seconds_sum - "));
    let sum: f64 = sum.expect("a sum").parse().expect("a number");
    assert!(
        (sum - stats.time_held.sum.as_secs_f64()).abs() < 1e-9,
        "{sum}"
    );
    assert!(stats.time_held.sum > Duration::ZERO);
    assert_eq!(
        parsed(&Stats::default().prometheus()).len(),
        lines.len(),
        "also what is empty is there"
    );
}

#[test]
fn the_parser_refuses_what_is_no_exposition() {
    let broken = Stats::default().prometheus().replace("le=\"", "le=");
    let refused = std::panic::catch_unwind(|| parsed(&broken));
    refused.expect_err("labels without quotes are refused");
}

/// A class of locks, in the statistics of a rig.
fn of_class(rig: &Rig, class: &str) -> Stats {
    rig.locks.stats().classes[class].clone()
}

#[test]
fn each_class_of_locks_is_counted_apart() {
    let rig = Rig::with(|builder| {
        builder
            .lease(MINUTE)
            .renew_every(PERIOD)
            .classes(["a:", "b:"])
    });
    let guard = rig.locks.lock("a:1").expect("locks");
    drop(rig.locks.lock("a:1").expect("enters again"));
    eventually(LONG, "it is renewed", || of_class(&rig, "a:").renewed > 0);
    thread::scope(|scope| {
        let waits = scope.spawn(|| rig.locks.lock("a:1").map(drop));
        eventually(LONG, "it waits", || of_class(&rig, "a:").waiting == 1);
        let others = ["b:", ""].map(|class| of_class(&rig, class));
        assert!(others.iter().all(|it| it.waiting == 0 && it.held == 0));
        assert_eq!(of_class(&rig, "a:").held, 1);
        guard.unlock().expect("unlocks");
        waits.join().expect("no panic").expect("locks");
    });
    occupy(&rig.server, "a:2", MINUTE);
    let short = rig.locks.named("a:2").wait(ANSWER);
    short.lock().expect_err("it is busy");

    // Holds that move stay in their class.
    let detached = rig.locks.lock("a:3").expect("locks").detach();
    let detached = detached.expect("the only guard");
    thread::scope(|scope| {
        scope.spawn(|| drop(detached.attach().expect("attaches")));
    });
    let parcel = rig.locks.lock("a:4").expect("locks").hand_over();
    let parcel = parcel.expect("hands over");
    assert_eq!(of_class(&rig, "a:").held, 0);
    let adopted = rig.locks.adopt(&parcel).expect("adopts");
    assert_eq!((of_class(&rig, "a:").held, rig.locks.stats().held), (1, 1));
    drop(adopted);

    let lost = tracked_hold(&rig.server, &rig.locks, "b:1");
    delete(&rig.server, "b:1");
    eventually(LONG, "it is lost", || of_class(&rig, "b:").lost == 1);
    drop(lost);
    let held = rig.locks.lock("b:2").expect("locks").detach();
    rig.proxy.black_hole(true);
    eventually(LONG, "renewals fail", || {
        of_class(&rig, "b:").renewal_errors > 0
    });
    rig.locks.named("b:3").holder().expect_err("no answer");
    drop(held);
    rig.proxy.black_hole(false);
    eventually(LONG, "its key is deleted", || {
        of_class(&rig, "b:").late_releases > 0
    });

    let stats = rig.locks.stats();
    assert_eq!((stats.held, stats.waiting), (0, 0));
    let [a, b, rest] = ["a:", "b:", ""].map(|class| &stats.classes[class]);
    let busy = |it: &Stats| [it.acquired, it.reentered, it.waited, it.timed_out];
    assert_eq!(busy(a), [5, 1, 2, 1], "{a}");
    assert_eq!((busy(b), busy(rest)), ([2, 0, 0, 0], [1, 0, 0, 0]));
    let faults = |it: &Stats| [it.lost, it.unavailable];
    assert_eq!((faults(a), faults(b)), ([0, 0], [1, 1]), "{b}");
    assert_eq!(rest.lost, 0, "{rest}");
    assert_eq!((a.time_held.count, b.time_held.count), (5, 2));
    assert_eq!(stats.classes.len(), 3);
    assert_sums(&stats);
}

/// Each number in the text for Prometheus is the sum of those of the classes.
#[track_caller]
fn assert_sums(stats: &Stats) {
    let mut totals = stats.clone();
    totals.classes.clear();
    let mut text = stats.prometheus();
    for class in stats.classes.keys() {
        let label = format!("class=\"{class}\"");
        text = text.replace(&format!("{{{label}}}"), "");
        text = text.replace(&format!("{label},"), "");
    }
    let [of_classes, totals] = [text, totals.prometheus()].map(|text| added(&text));
    assert!(of_classes.keys().eq(totals.keys()), "{of_classes:?}");
    for (series, total) in totals {
        let sum = of_classes[&series];
        assert!((sum - total).abs() < 1e-6, "{series}: {sum} and {total}");
    }
}

/// The values of a text for Prometheus, added up by the names of their series.
fn added(text: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').expect("a series and a value");
        let value: f64 = value.parse().expect("a number");
        *sums.entry(series.to_owned()).or_default() += value;
    }
    sums
}

#[test]
fn prometheus_reads_the_statistics_of_each_class() {
    let odd = r#"a"b\c:"#;
    let builder = LockManager::builder_in_memory().classes([odd, "report:"]);
    let locks = builder.build().expect("options that can work");
    let guard = locks.lock(format!("{odd}1").as_str()).expect("locks");
    let stats = locks.stats();
    drop(guard);
    let lines = parsed(&stats.prometheus());
    for line in [
        "counter relatch_acquired True",
        &format!("relatch_acquired_total[{odd}] - 1.0"),
        "relatch_acquired_total[report:] - 0.0",
        "relatch_acquired_total - 0.0",
        &format!("relatch_held[{odd}] - 1.0"),
        "relatch_held[report:] - 0.0",
        &format!("relatch_time_waited_seconds_bucket[{odd}] +Inf 1.0"),
        "relatch_time_waited_seconds_bucket[report:] +Inf 0.0",
        &format!("relatch_time_waited_seconds_count[{odd}] - 1.0"),
    ] {
        assert!(
            lines.iter().any(|it| it == line),
            "no {line:?} in {lines:#?}"
        );
    }
    let per_class = |lines: &[String]| lines.iter().filter(|it| it.contains(" - ")).count();
    let one = parsed(&Stats::default().prometheus());
    assert_eq!(per_class(&lines), 3 * per_class(&one));
    let with_help = |lines: &[String]| lines.iter().filter(|it| it.ends_with(" True")).count();
    assert_eq!(
        with_help(&lines),
        with_help(&one),
        "each metric is there once"
    );
}

#[test]
fn classes_that_cannot_work_are_refused() {
    let refused = |prefixes: &[&str]| {
        let builder = LockManager::builder_in_memory().classes(prefixes.iter().copied());
        builder.build().expect_err("refused").to_string()
    };
    assert!(refused(&["a", ""]).starts_with("option `classes` cannot be \"\": "));
    assert!(refused(&["a", "a"]).starts_with("option `classes` cannot be \"a\": "));
}
