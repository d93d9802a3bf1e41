//! Waits and holds as a program, its log and its monitoring system see them.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use relatch::{Error, LockManager, LostCause, Owner, Stats};
use relatch_rig::{LONG, eventually, is_alone};

use crate::calls::logs::{collect, lines_of};
use crate::support::{ANSWER, MINUTE, PERIOD, SOON, server_for, without};

#[test]
fn each_call_about_a_lock_that_redis_does_not_answer_or_refuses_is_counted() {
    let builder = LockManager::builder_in_memory().response_timeout(PERIOD);
    let locks = builder.build().expect("it works");
    let [a, b] = ["a", "b"].map(|name| locks.lock(name).expect("locks"));
    let parcel = locks.lock("c").expect("locks").hand_over();
    let parcel = parcel.expect("hands over");
    locks.memory().expect("in memory").go_away(MINUTE);
    let fails: [&dyn Fn() -> Result<(), Error>; 8] = [
        &|| a.confirm(Duration::from_secs(1)),
        &|| a.set_lease(MINUTE),
        // Less than that is left: the first lease was shorter.
        &|| a.ensure(MINUTE / 2),
        &|| a.verify(),
        &|| locks.adopt(&parcel).map(drop),
        &|| locks.named("a").holder().map(drop),
        &|| locks.named("a").force_unlock().map(drop),
        &|| locks.try_lock("d").map(drop),
    ];
    for (n, fail) in (1..).zip(fails) {
        let error = fail().expect_err("nothing answers");
        assert!(error.is_redis_failure(), "call {n}: {error:?}");
        assert_eq!(locks.stats().unavailable, n);
    }
    let (_b, error) = b.try_hand_over().expect_err("nothing answers");
    assert!(error.is_redis_failure(), "{error:?}");
    assert_eq!((locks.stats().unavailable, locks.stats().refused), (9, 0));

    let (_server, url) = server_for(&without(&["+set"]));
    let locks = LockManager::connect(&url).expect("connects");
    assert!(matches!(locks.lock("b"), Err(Error::Refused { .. })));
    let stats = locks.stats();
    assert_eq!((stats.refused, stats.unavailable), (1, 0));
}

#[test]
fn the_log_says_when_a_wait_begins_and_ends() {
    if !is_alone(module_path!(), "the_log_says_when_a_wait_begins_and_ends") {
        return;
    }
    collect(LevelFilter::Debug);
    let locks = LockManager::in_memory();
    drop(locks.lock("free").expect("locks"));
    let guard = locks.lock("near").expect("locks");
    let lines = || lines_of("relatch::wait");
    thread::scope(|scope| {
        let hasty = scope.spawn(|| {
            assert!(locks.try_lock("near").expect("answers").is_none());
            assert!(lines().is_empty(), "a single try does not wait");
            locks.named("near").try_lock_for(2 * SOON).map(drop)
        });
        hasty.join().expect("no panic").expect("answers");
        let waits = scope.spawn(|| locks.lock("near").map(drop));
        eventually(LONG, "it waits for five seconds", || lines().len() == 4);
        guard.unlock().expect("unlocks");
        waits.join().expect("no panic").expect("locks");
    });
    let begins = format!("waits for lock \"near\", held by {} (", Owner::current());
    let lines = lines();
    let expected = [
        ("DEBUG", &*begins),
        ("DEBUG", "stopped waiting for lock \"near\" after "),
        ("DEBUG", &*begins),
        ("INFO", "has waited for lock \"near\" for "),
        ("DEBUG", "took lock \"near\" after "),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, (level, part)) in lines.iter().zip(expected) {
        assert!(line.starts_with(level) && line.contains(part), "{lines:#?}");
    }
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
    let builder = LockManager::builder_in_memory().warn_after(WAIT, HELD);
    let locks = builder.build().expect("it works");
    let me = Owner::current();
    let of = |what: &str| -> Vec<String> {
        let all = lines_of("relatch::slow").into_iter();
        all.filter(|line| line.contains(what)).collect()
    };
    let waits = "a thread has waited for a long time: ";
    let holds = "a lock has been held for a long time: ";
    let began = Instant::now();
    drop(locks.lock("short").expect("locks"));
    let is_short = began.elapsed() < HELD; // Unless the machine is busy.
    let began = Instant::now();
    let guard = locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.lock("a").map(drop));
        eventually(LONG, "three warnings of each", || {
            of(waits).len() >= 3 && of(holds).len() >= 3
        });
        guard.unlock().expect("unlocks");
        waiter.join().expect("no panic").expect("locks");
    });
    let span = began.elapsed();
    assert!(
        span >= 4 * WAIT,
        "{span:?}: a third warning comes after that"
    );
    for (what, limit) in [(waits, WAIT), (holds, HELD)] {
        let mut lines = of(what);
        lines.retain(|line| !line.contains("short"));
        assert!(lines.len() <= doublings(limit, span), "{lines:#?}");
        for line in &lines {
            let start = format!("WARN relatch::slow {what}");
            let holder = format!("held by {me}");
            assert!(line.starts_with(&start) && line.contains("lock \"a\""));
            assert!(line.contains(&holder), "{line}");
        }
    }
    assert!(!is_short || of("short").is_empty());
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
        .spawn()
        .expect("it was just there");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(text.as_bytes()).expect("it reads all");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "the parser refuses this:\n{text}");
    let lines = String::from_utf8_lossy(&output.stdout);
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn prometheus_reads_the_statistics_of_each_class() {
    let odd = r#"a"b\c:"#;
    let builder = LockManager::builder_in_memory().classes([odd, "report:"]);
    let locks = builder.build().expect("options that can work");
    let of_odd = format!("{odd}1");
    drop(locks.lock(&*of_odd).expect("locks"));
    let guard = locks.lock(&*of_odd).expect("locks");
    drop(locks.lock(&*of_odd).expect("enters again"));
    thread::scope(|scope| {
        scope.spawn(|| assert!(locks.try_lock(&*of_odd).expect("answers").is_none()));
    });
    let stats = locks.stats();
    drop(guard);
    let lines = parsed(&stats.prometheus());
    for line in [
        "counter relatch_acquired True",
        &format!("relatch_acquired_total[{odd}] - 2.0"),
        "relatch_acquired_total[report:] - 0.0",
        "relatch_acquired_total - 0.0",
        &format!("relatch_reentered_total[{odd}] - 1.0"),
        &format!("relatch_timed_out_total[{odd}] - 1.0"),
        "counter relatch_lost True",
        "gauge relatch_held True",
        &format!("relatch_held[{odd}] - 1.0"),
        "relatch_held[report:] - 0.0",
        "histogram relatch_time_held_seconds True",
        &format!("relatch_time_held_seconds_bucket[{odd}] +Inf 1.0"),
        &format!("relatch_time_waited_seconds_bucket[{odd}] 0.000001 0.0"),
        &format!("relatch_time_waited_seconds_bucket[{odd}] 274877.906944 2.0"),
        &format!("relatch_time_waited_seconds_count[{odd}] - 2.0"),
    ] {
        let is_there = lines.iter().any(|it| it == line);
        assert!(is_there, "no {line:?} in {lines:#?}");
    }
    let start = format!("relatch_time_held_seconds_sum[{odd}] - ");
    let sum = lines.iter().find_map(|line| line.strip_prefix(&start));
    let sum: f64 = sum.expect("a sum").parse().expect("a number");
    assert!((sum - stats.time_held.sum.as_secs_f64()).abs() < 1e-9);
    let count = |lines: &[String], what| lines.iter().filter(|it| it.contains(what)).count();
    let one = parsed(&Stats::default().prometheus());
    assert_eq!(count(&lines, " - "), 3 * count(&one, " - "));
    assert_eq!(count(&lines, " True"), count(&one, " True"), "each is once");
    let broken = stats.prometheus().replace("le=\"", "le=");
    let refused = std::panic::catch_unwind(|| parsed(&broken));
    refused.expect_err("labels without quotes are refused");
}

#[test]
fn each_class_of_locks_is_counted_apart() {
    let builder = LockManager::builder_in_memory().classes(["a:", "b:"]);
    let builder = builder.renew_every(PERIOD).response_timeout(ANSWER);
    let locks = builder.build().expect("options that can work");
    let memory = locks.memory().expect("in memory");
    let of = |class: &str| locks.stats().classes[class].clone();
    let guard = locks.lock("a:1").expect("locks");
    drop(locks.lock("a:1").expect("enters again"));
    eventually(LONG, "it is renewed", || of("a:").renewed > 0);
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.lock("a:1").map(drop));
        eventually(LONG, "it waits", || of("a:").waiting == 1);
        let others = ["b:", ""].map(of);
        assert!(others.iter().all(|it| it.waiting == 0 && it.held == 0));
        assert_eq!(of("a:").held, 1);
        guard.unlock().expect("unlocks");
        waits.join().expect("no panic").expect("locks");
    });

    // Holds that move stay in their class.
    let detached = locks.lock("a:2").expect("locks").detach();
    let detached = detached.expect("the only guard");
    let busy = locks.named("a:2").wait(SOON).lock();
    busy.expect_err("it is busy");
    thread::scope(|scope| {
        scope.spawn(|| drop(detached.attach().expect("attaches")));
    });
    let parcel = locks.lock("a:3").expect("locks").hand_over();
    assert_eq!(of("a:").held, 0);
    let adopted = locks.adopt(&parcel.expect("hands over")).expect("adopts");
    assert_eq!((of("a:").held, locks.stats().held), (1, 1));
    drop(adopted);

    let lost = locks.lock("b:1").expect("locks");
    assert!(memory.lose("b:1", LostCause::Deleted));
    drop(lost);
    let held = locks.lock("b:2").expect("locks").detach();
    memory.go_away(MINUTE);
    eventually(LONG, "renewals fail", || of("b:").renewal_errors > 0);
    locks.named("b:3").holder().expect_err("no answer");
    drop(held);
    memory.go_away(Duration::ZERO);
    eventually(LONG, "it is deleted", || of("b:").late_releases > 0);

    let stats = locks.stats();
    assert_eq!((stats.held, stats.waiting, stats.classes.len()), (0, 0, 3));
    let [a, b, rest] = ["a:", "b:", ""].map(of);
    let busy = |it: &Stats| [it.acquired, it.reentered, it.waited, it.timed_out];
    assert_eq!((busy(&a), busy(&b)), ([5, 1, 2, 1], [2, 0, 0, 0]), "{a}");
    assert_eq!(busy(&rest), [0; 4]);
    let faults = |it: &Stats| [it.lost, it.unavailable];
    assert_eq!([&a, &b, &rest].map(faults), [[0, 0], [1, 1], [0, 0]]);
    assert_eq!((a.time_held.count, b.time_held.count), (5, 2));
}
