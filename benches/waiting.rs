//! How waiting works: how soon a lock goes on to the next one, how fairly, and what those who wait cost meanwhile.
//! `cargo bench --bench waiting` runs all parts, in about a minute; `-- handoff`, or the name of another part,
//! runs that one.
//!
//! Each figure that is held to something is printed next to its bound, with `ok` or `MISSED`. What depends on the
//! machine is compared with a floor, or a `PING`, of the same run.

mod support;

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use relatch::LockManager;

use support::children::{self, Child, nanos};
use support::figures::{Gauge, Report, Spread, cpu_time, now, threads_named};
use support::{Floor, Rounds, Server, pin_apart, take_turns};

/// The one thread of a manager that is told by Redis what became free.
const LISTENER: &str = "relatch-listen";

struct Part {
    name: &'static str,
    title: &'static str,
    run: fn(&mut Report),
}

const PARTS: [Part; 6] = [
    Part { name: "handoff", title: "from unlock in one process to lock in another", run: handoff },
    Part { name: "threads", title: "8 threads of a process take turns on one key", run: threads },
    Part { name: "processes", title: "4 processes of 2 threads take turns on one key", run: processes },
    Part { name: "idle", title: "100 threads wait for 100 keys that stay held", run: idle },
    Part { name: "herd", title: "50 processes wait for one key, and take it one by one", run: herd },
    Part { name: "alone", title: "a lock that nobody else wants", run: alone },
];

fn main() {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    if children::play(&arguments) {
        return;
    }
    // `cargo bench` adds a `--bench`.
    arguments.retain(|argument| !argument.starts_with("--"));
    let chosen: Vec<_> = PARTS
        .iter()
        .filter(|part| arguments.is_empty() || arguments.iter().any(|a| a == part.name))
        .collect();
    if chosen.is_empty() {
        eprintln!("no such part; there are: {}", PARTS.map(|part| part.name).join(", "));
        return;
    }
    let mut report = Report::default();
    for (position, part) in chosen.iter().enumerate() {
        eprintln!("waiting: part {} of {}, {}", position + 1, chosen.len(), part.name);
        report.part(part.name, part.title);
        (part.run)(&mut report);
    }
    report.close();
}

fn connect(server: &Server) -> LockManager {
    LockManager::connect(&server.url()).expect("a Redis of our own")
}

/// From a release here to the return of `lock` in a process that waits; and, in turns with it, a `PING` on a plain
/// connection that was left alone for as long, and the same by hand: a release by `EVALSHA` here, and a thread there that is told
/// of it, with nothing to do but to send its `SET`.
fn handoff(report: &mut Report) {
    const SAMPLES: usize = 300;
    /// Not counted: connections are opened, threads are started.
    const WARM_UP: usize = 10;

    let server = Server::start();
    let (locks, mut plain, mut floor) = (connect(&server), server.connection(), Floor::new(&server));
    let mut child = Child::start("waiter", &server.url(), "handed on");
    let mut by_hand = Child::start("by hand", &server.url(), "by hand");
    let (mut pings, mut calls, mut returns) = (Vec::new(), Vec::new(), Vec::new());
    let (mut floor_calls, mut floor_returns) = (Vec::new(), Vec::new());
    for sample in 0..WARM_UP + SAMPLES {
        idle_for_a_while();
        let asked = now();
        let () = redis::cmd("PING").query(&mut plain).expect("answers");
        let ping = now().saturating_sub(asked);

        let guard = locks.lock("handed on").expect("locks");
        let ours = hand_on(&mut child, || _ = guard.unlock().expect("unlocks"));
        floor.take("by hand");
        let floor = hand_on(&mut by_hand, || floor.give_back("by hand"));
        by_hand.expect("given back");
        if sample >= WARM_UP {
            pings.push(ping);
            calls.push(ours.0);
            returns.push(ours.1);
            floor_calls.push(floor.0);
            floor_returns.push(floor.1);
        }
    }
    let [pings, calls, returns] = [pings, calls, returns].map(Spread::of);
    let [floor_calls, floor_returns] = [floor_calls, floor_returns].map(Spread::of);
    report.say("PING after 20 to 40 ms of silence", &pings);
    report.say("by hand, from the call of the release", &floor_calls);
    report.say("by hand, from its return", &floor_returns);
    report.say("relatch, from the call of unlock", &calls);
    report.say("relatch, from its return", &returns);
    report.say(
        "relatch from the call, x by hand",
        format!("{:.2}", calls.p50().div_duration_f64(floor_calls.p50())),
    );
    for (name, spread) in [("from the call", &calls), ("from the return", &returns)] {
        report.must_be_within(&format!("p50 {name}"), spread.p50(), pings.p50() * 2, ", 2 x PING p50");
        report.must_be_within(&format!("p99 {name}"), spread.p99(), pings.p99() * 5, ", 5 x PING p99");
    }
}

/// Has a child wait for what this process holds, and releases it: when the child had it, counted from the call of the release
/// and from its return.
fn hand_on(child: &mut Child, release: impl FnOnce()) -> (Duration, Duration) {
    child.tell("lock");
    child.expect("waiting");
    idle_for_a_while();
    let called = now();
    release();
    let returned = now();
    let had = Duration::from_nanos(child.numbers::<1>()[0]);
    (had.saturating_sub(called), had.saturating_sub(returned))
}

fn idle_for_a_while() {
    thread::sleep(Duration::from_micros(rand::rng().random_range(20_000..=40_000)));
}

/// Eight threads that lock and unlock as fast as they can, in turns with the floor.
fn threads(report: &mut Report) {
    eight_threads(report, "by the scheduler", &Server::start());
    // A thread passes its core on to those that it starts; the other parts keep all of them.
    let server = Server::start();
    thread::scope(|scope| {
        scope.spawn(|| {
            if pin_apart(&server) {
                eight_threads(report, "pinned apart", &server);
            }
        });
    });
}

/// A round is one turn of each thread, at the mean time that a turn took just then: who waits in line waits for one.
fn eight_threads(report: &mut Report, placed: &str, server: &Server) {
    const THREADS: u32 = 8;
    /// Turns, or floor cycles, at a stretch.
    const CYCLES: u32 = 800;
    const STRETCHES: usize = 21;

    let (locks, mut floor) = (connect(server), Floor::new(server));
    let mut rounds = Rounds::new(&["floor", "8 threads, one key"]);
    let (mut waits, mut longest) = (Vec::new(), Duration::ZERO);
    for _ in 0..STRETCHES {
        rounds.time(0, CYCLES, || (0..CYCLES).for_each(|_| floor.cycle("lock:floor")));
        let mut waited = Vec::new();
        let turn = rounds
            .time(1, CYCLES, || waited = take_turns(&locks, "eight", THREADS as usize, CYCLES / THREADS));
        longest = waited.iter().copied().fold(longest, Duration::max);
        waits.extend(waited.iter().map(|wait| wait.as_secs_f64() / (turn * THREADS).as_secs_f64()));
    }
    waits.sort_by(f64::total_cmp);
    let (p50, p99) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    let throughput = 1.0 / rounds.ratio(1);
    let of = |what: &str| format!("{what}, {placed}");
    report.say(&of("floor cycle"), format!("{:.1?}", rounds.median(0)));
    report.say(&of("a turn"), format!("{:.1?}", rounds.median(1)));
    let shown = format!("{throughput:.2} x floor");
    report.must(&of("throughput"), shown, ">= 2.00 x floor", throughput >= 2.0);
    report.say(&of("wait p50"), format!("{p50:.2} rounds"));
    report.must(&of("wait p99"), format!("{p99:.2} rounds"), "< 3 rounds", p99 < 3.0);
    let bound = Duration::from_millis(20);
    report.must(&of("longest wait"), format!("{longest:.1?}"), "< 20 ms", longest < bound);
}

/// Processes that lock and unlock as fast as they can, for five seconds; the floor before and after.
fn processes(report: &mut Report) {
    const PROCESSES: usize = 4;
    const SPAN: Duration = Duration::from_secs(5);
    const CYCLES: u32 = 400;

    let server = Server::start();
    let mut floor = Floor::new(&server);
    let mut rounds = Rounds::new(&["floor"]);
    let mut measure_floor = || {
        for _ in 0..10 {
            rounds.time(0, CYCLES, || (0..CYCLES).for_each(|_| floor.cycle("lock:floor")));
        }
    };
    let mut children: Vec<_> =
        (0..PROCESSES).map(|_| Child::start("crowd", &server.url(), "shared")).collect();
    for child in &mut children {
        child.expect("ready");
    }
    measure_floor();
    let started = Instant::now();
    for child in &mut children {
        child.tell(SPAN.as_millis());
    }
    let results: Vec<[u64; 2]> = children.iter_mut().map(Child::numbers).collect();
    let took = started.elapsed();
    measure_floor();

    let total: u64 = results.iter().map(|[turns, _]| turns).sum();
    let longest = results.iter().map(|[_, longest]| *longest).max().unwrap_or_default();
    for (number, [turns, _]) in results.iter().enumerate() {
        let share = ratio(*turns, total) * 100.0;
        let what = format!("share of turns, process {}", number + 1);
        report.must(&what, format!("{share:.1} %"), "15 % to 35 %", (15.0..=35.0).contains(&share));
    }
    report.must_be_within("longest wait", Duration::from_nanos(longest), Duration::from_millis(100), "");
    let per_second = ratio(total, 1) / took.as_secs_f64();
    let of_floor = per_second * rounds.median(0).as_secs_f64();
    report.say("turns per second", format!("{per_second:.0}, {of_floor:.2} x floor"));
}

/// Threads that wait for a long time: what they ask of Redis meanwhile, what they cost, and whether all of them are woken.
fn idle(report: &mut Report) {
    const KEYS: u64 = 100;
    const SPAN: Duration = Duration::from_secs(11);

    let server = Server::start();
    let (locks, mut gauge) = (connect(&server), Gauge::new(&server));
    let mut child = Child::start("holder", &server.url(), "idle");
    child.tell(KEYS);
    child.expect("held");
    let wait = |n| locks.lock(format!("idle:{n}")).map(|guard| (now(), drop(guard)).0);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..KEYS).map(|n| scope.spawn(move || wait(n))).collect();
        thread::sleep(Duration::from_secs(2));
        let (before, server_before, own_before) = (gauge.commands(), gauge.cpu_time(), cpu_time());
        thread::sleep(SPAN);
        let (server_cpu, own_cpu) =
            (gauge.cpu_time().saturating_sub(server_before), cpu_time().saturating_sub(own_before));
        let commands = gauge.commands().since(&before);
        let listeners = threads_named(LISTENER);
        let released = now();
        child.tell("release");
        let asked = waiting.len();
        let had: Vec<Duration> = waiting.into_iter().filter_map(|thread| thread.join().ok()?.ok()).collect();

        report.say(&format!("commands in {SPAN:?}"), &commands);
        let (polls, allowed) = (commands.count("set"), KEYS * SPAN.as_secs() / 10);
        report.must("SETs", polls, format!("<= {allowed}, 1 per key in 10 s"), polls <= allowed);
        report.say("CPU time of the waiting process", format!("{own_cpu:.1?}"));
        report.say("CPU time of the server", format!("{server_cpu:.1?}"));
        if let Some(listeners) = listeners {
            report.must("threads that listen", listeners, "1", listeners == 1);
        }
        report.must("locks that were had in the end", had.len(), asked, had.len() == asked);
        let last = had.into_iter().max().unwrap_or(released);
        report.say("from the order to release to the last", format!("{:.1?}", last.saturating_sub(released)));
    });
}

/// A cascade: everybody who waits is woken by each release, and one of them gets the lock.
fn herd(report: &mut Report) {
    const PROCESSES: u64 = 50;

    let server = Server::start();
    let (locks, mut gauge) = (connect(&server), Gauge::new(&server));
    let guard = locks.lock("herd").expect("locks");
    let mut children: Vec<_> = (0..PROCESSES).map(|_| Child::start("once", &server.url(), "herd")).collect();
    for child in &mut children {
        child.expect("waiting");
    }
    thread::sleep(Duration::from_secs(1));
    let before = gauge.commands();
    let mut released = nanos(now());
    guard.unlock().expect("unlocks");
    let mut turns: Vec<[u64; 2]> = children.iter_mut().map(Child::numbers).collect();
    let commands = gauge.commands().since(&before);

    turns.sort_unstable();
    let total = turns.last().map_or(0, |[_, gave_back]| gave_back - released);
    let (mut gaps, mut overlaps) = (Vec::new(), 0);
    for [had, gave_back] in turns {
        overlaps += u32::from(had < released);
        gaps.push(Duration::from_nanos(had.saturating_sub(released)));
        released = gave_back;
    }
    report.say("commands over the cascade", &commands);
    // Fifty at the first release, and one less at each that follows.
    let (sets, allowed) = (commands.count("set"), PROCESSES * (PROCESSES + 1) / 2);
    report.must("SETs", sets, format!("<= {allowed}, 1 each per release"), sets <= allowed);
    report.must("holds that overlapped", overlaps, 0, overlaps == 0);
    let gaps = Spread::of(gaps);
    let shown = format!("p50 {:.1?}, max {:.1?}", gaps.p50(), gaps.max());
    report.say("from a release to the next holder", shown);
    report.say("all of them", format!("{:.1?}, 1 ms of each in the lock", Duration::from_nanos(total)));
}

/// What a lock costs that nobody else wants: nothing that has to do with waiting.
fn alone(report: &mut Report) {
    const TIMES: u64 = 1000;

    let server = Server::start();
    let mut gauge = Gauge::new(&server);
    let before = gauge.commands();
    let locks = connect(&server);
    (0..TIMES).for_each(|_| drop(locks.lock("alone").expect("locks")));
    let listeners = threads_named(LISTENER);
    let commands = gauge.commands().since(&before);

    report.say("commands for 1000 x lock + unlock", &commands);
    let (sets, by_hash) = (commands.count("set"), commands.count("evalsha"));
    let loads = commands.family("eval") + commands.family("script");
    report.must("SETs", sets, TIMES, sets == TIMES);
    report.must("EVALSHAs", by_hash, TIMES, by_hash == TIMES);
    report.must("EVALs and SCRIPT LOADs", loads, "<= 1", loads <= 1);
    // The release script looks before it deletes: one GET each.
    let gets = commands.count("get").saturating_sub(TIMES);
    report.must("GETs outside of scripts", gets, 0, gets == 0);
    let client = commands.family("client");
    report.must("CLIENT commands", client, 0, client == 0);
    if let Some(listeners) = listeners {
        report.must("threads that listen", listeners, 0, listeners == 0);
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
