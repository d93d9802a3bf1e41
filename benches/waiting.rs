//! How waiting works: how soon the next waiter gets a lock, how fair that is, and what waiting
//! costs. `cargo bench --bench waiting` runs all parts, in about four minutes. With `-- handoff`,
//! or names of other parts, it runs only these. With `-- --help`, it lists the parts.
//!
//! If a figure has a bound, both are printed together, with `ok` or `MISSED`. Figures that depend
//! on the machine are compared with other figures of the same run: the floor (the two commands of a
//! lock on one plain connection), a `PING`, or a hand-written polling lock.

#[path = "waiting/cores.rs"]
mod cores;
#[path = "waiting/crowds.rs"]
mod crowds;
mod support;

use std::env;
use std::fs::File;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use relatch::LockManager;
use relatch_rig::{Server, now};

use support::children::{self, Child};
use support::figures::{Figure, Gauge, Report, Spread, cpu_time, threads_named};
use support::{Floor, Rounds, pin_apart, take_turns};

/// The name of the thread of a manager that receives Redis's invalidations.
const LISTENER: &str = "relatch-listen";

struct Part {
    name: &'static str,
    title: &'static str,
    run: fn(&mut Report),
}

const PARTS: [Part; 12] = [
    Part {
        name: "cycle",
        title: "a lock that is free, and one that the thread has",
        run: cores::cycle,
    },
    Part {
        name: "handoff",
        title: "from unlock in one process to lock in another",
        run: handoff,
    },
    Part {
        name: "threads",
        title: "8 threads of a process take turns on one key",
        run: threads,
    },
    Part {
        name: "processes",
        title: "4 processes of 2 threads take turns on one key",
        run: crowds::processes,
    },
    Part {
        name: "long",
        title: "3 processes take turns on one key, 20 ms each",
        run: crowds::long,
    },
    Part {
        name: "fifty",
        title: "50 processes take turns on one key, 1 ms each",
        run: crowds::fifty,
    },
    Part {
        name: "slots",
        title: "8 and 32 processes take turns on 3 slots, and 8 of 4 threads on 10",
        run: crowds::slots,
    },
    Part {
        name: "cascade",
        title: "many processes wait for one key, and take it once",
        run: crowds::cascade,
    },
    Part {
        name: "idle",
        title: "100 threads wait for 100 keys that stay held",
        run: idle,
    },
    Part {
        name: "busy",
        title: "threads take turns while other programs are busy",
        run: cores::busy,
    },
    Part {
        name: "one-core",
        title: "program and server share one core",
        run: cores::one_core,
    },
    Part {
        name: "alone",
        title: "a lock that nobody else wants",
        run: alone,
    },
];

const HELP: &str = "usage: cargo bench --bench waiting [-- [--table=FILE] [PART]...]

Runs these parts, or all of them. With --table, each figure is written to FILE too: part, figure, value in seconds or
as a plain number, bound, verdict, with tabs between them.
";

fn main() {
    if children::play() {
        return;
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    // `cargo bench` adds a `--bench`.
    let (flags, names): (Vec<_>, Vec<_>) = arguments
        .iter()
        .partition(|argument| argument.starts_with("--"));
    let chosen: Vec<_> = PARTS
        .iter()
        .filter(|part| names.is_empty() || names.iter().any(|name| *name == part.name))
        .collect();
    if chosen.is_empty() || flags.iter().any(|flag| *flag == "--help") {
        println!("{HELP}");
        for part in &PARTS {
            println!("  {:<10} {}", part.name, part.title);
        }
        return;
    }
    let table = flags.iter().find_map(|flag| flag.strip_prefix("--table="));
    let mut report =
        Report::new(table.map(|path| File::create(path).expect("a file for the table")));
    for (position, part) in chosen.iter().enumerate() {
        eprintln!(
            "waiting: part {} of {}, {}",
            position + 1,
            chosen.len(),
            part.name
        );
        report.part(part.name, part.title);
        (part.run)(&mut report);
    }
    report.close();
}

fn connect(server: &Server) -> LockManager {
    LockManager::connect(&server.url()).expect("a Redis of our own")
}

/// Times hand-offs: from a release here to the return of `lock` in a process that waits. Two other
/// measurements alternate with them: a `PING` on a plain connection after the same idle time, and a
/// hand-off by hand. For the hand-off by hand, this process releases by `EVALSHA`, and a thread of
/// another process receives the invalidation and sends only its `SET`.
fn handoff(report: &mut Report) {
    const SAMPLES: usize = 300;
    /// The first samples do not count, since connections are opened and threads started then.
    const WARM_UP: usize = 10;

    let server = Server::start();
    let (locks, mut plain, mut floor) = (connect(&server), server.connect(), Floor::new(&server));
    let mut child = Child::start("waiter", &server.url(), "handed off");
    let mut by_hand = Child::start("told by hand", &server.url(), "by hand");
    let (mut pings, mut calls, mut returns) = (Vec::new(), Vec::new(), Vec::new());
    let (mut floor_calls, mut floor_returns) = (Vec::new(), Vec::new());
    for sample in 0..WARM_UP + SAMPLES {
        idle_for_a_while();
        let asked = now();
        let () = redis::cmd("PING").query(&mut plain).expect("answers");
        let ping = now().saturating_sub(asked);

        let guard = locks.lock("handed off").expect("locks");
        let ours = hand_off(&mut child, || _ = guard.unlock().expect("unlocks"));
        floor.take("by hand");
        let floor = hand_off(&mut by_hand, || floor.give_back("by hand"));
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
    for (name, ours, floor) in [
        ("p50", calls.p50(), floor_calls.p50()),
        ("p99", calls.p99(), floor_calls.p99()),
    ] {
        let times = Figure::number(ours.div_duration_f64(floor), 2, "");
        report.say(&format!("{name} from the call, x by hand"), times);
    }
    for (name, spread) in [("from the call", &calls), ("from the return", &returns)] {
        report.must_be_within(
            &format!("p50 {name}"),
            spread.p50(),
            pings.p50() * 2,
            ", 2 x PING p50",
        );
        report.must_be_within(
            &format!("p99 {name}"),
            spread.p99(),
            pings.p99() * 5,
            ", 5 x PING p99",
        );
    }
}

/// Lets a child wait for a lock that this process holds, and releases the lock. Returns the time
/// until the child has it: from the call of the release, and from the return of that call.
fn hand_off(child: &mut Child, release: impl FnOnce()) -> (Duration, Duration) {
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
    thread::sleep(Duration::from_micros(
        rand::rng().random_range(20_000..=40_000),
    ));
}

/// Eight threads that lock and unlock as fast as they can, alternating with the floor.
fn threads(report: &mut Report) {
    eight_threads(report, "by the scheduler", &Server::start(), 2.0, Some(3.0));
    pinned(pin_apart, |server| {
        eight_threads(report, "pinned apart", server, 2.0, Some(3.0));
    });
}

/// Starts a server, and calls `run` in a new thread. `pin` pins the new thread to the server's core
/// or to another one. Threads that `run` starts inherit that core. This thread keeps all cores, and
/// so do the other parts of the benchmark.
fn pinned(pin: fn(&Server) -> bool, run: impl FnOnce(&Server) + Send) {
    let server = Server::start();
    thread::scope(|scope| {
        scope.spawn(|| {
            if pin(&server) {
                run(&server);
            } else {
                println!("  threads and servers cannot be pinned to such cores here: left out");
            }
        });
    });
}

/// Stretches of turns alternate with stretches of the floor. A wait is measured in rounds. One
/// round is the number of threads times the mean time of a turn in the same stretch. In a fair
/// queue, each wait lasts one round. The bounds: the threads make at least `least` turns in the
/// time of a floor cycle, and the p99 of the waits is below `p99_below` rounds.
fn eight_threads(
    report: &mut Report,
    placed: &str,
    server: &Server,
    least: f64,
    p99_below: Option<f64>,
) {
    const THREADS: u32 = 8;
    /// How many turns, or floor cycles, a stretch has.
    const CYCLES: u32 = 800;
    const STRETCHES: usize = 21;

    let (locks, mut floor) = (connect(server), Floor::new(server));
    let mut rounds = Rounds::new(&["floor", "8 threads, one key"]);
    let (mut waits, mut longest) = (Vec::new(), Duration::ZERO);
    for _ in 0..STRETCHES {
        rounds.time(0, CYCLES, || {
            (0..CYCLES).for_each(|_| floor.cycle("lock:floor"));
        });
        let mut waited = Vec::new();
        let turn = rounds.time(1, CYCLES, || {
            waited = take_turns(&locks, "eight", THREADS as usize, CYCLES / THREADS);
        });
        longest = waited.iter().copied().fold(longest, Duration::max);
        waits.extend(
            waited
                .iter()
                .map(|wait| wait.as_secs_f64() / (turn * THREADS).as_secs_f64()),
        );
    }
    waits.sort_by(f64::total_cmp);
    let (p50, p99) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    let throughput = 1.0 / rounds.ratio(1);
    let of = |what: &str| format!("{what}, {placed}");
    report.say(&of("floor cycle"), rounds.median(0));
    report.say(&of("a turn"), rounds.median(1));
    let shown = Figure::number(throughput, 2, " x floor");
    report.must(
        &of("throughput"),
        shown,
        format!(">= {least:.2} x floor"),
        throughput >= least,
    );
    report.say(&of("wait p50"), Figure::number(p50, 2, " rounds"));
    let shown = Figure::number(p99, 2, " rounds");
    match p99_below {
        Some(bound) => report.must(
            &of("wait p99"),
            shown,
            format!("< {bound} rounds"),
            p99 < bound,
        ),
        None => report.say(&of("wait p99"), shown),
    }
    let bound = Duration::from_millis(20);
    report.must(&of("longest wait"), longest, "< 20 ms", longest < bound);
}

/// Threads that wait for a long time: which commands they send meanwhile, how much CPU time that
/// takes, and whether all of them take their locks in the end.
fn idle(report: &mut Report) {
    const KEYS: u64 = 100;
    const SPAN: Duration = Duration::from_secs(11);

    let server = Server::start();
    let (locks, mut gauge) = (connect(&server), Gauge::new(&server));
    let mut child = Child::start("holder", &server.url(), "idle");
    child.tell(KEYS);
    child.expect("held");
    let wait = |n| {
        locks
            .lock(format!("idle:{n}"))
            .map(|guard| (now(), drop(guard)).0)
    };
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..KEYS).map(|n| scope.spawn(move || wait(n))).collect();
        thread::sleep(Duration::from_secs(2));
        let (before, server_before, own_before) = (gauge.commands(), gauge.cpu_time(), cpu_time());
        thread::sleep(SPAN);
        let (server_cpu, own_cpu) = (
            gauge.cpu_time().saturating_sub(server_before),
            cpu_time().saturating_sub(own_before),
        );
        let commands = gauge.commands().since(&before);
        let listeners = threads_named(LISTENER);
        let released = now();
        child.tell("release");
        let asked = waiting.len();
        let had: Vec<Duration> = waiting
            .into_iter()
            .filter_map(|thread| thread.join().ok()?.ok())
            .collect();

        report.say(&format!("commands in {SPAN:?}"), &commands);
        let (polls, allowed) = (commands.count("set"), KEYS * SPAN.as_secs() / 10);
        report.must(
            "SETs",
            polls,
            format!("<= {allowed}, 1 per key in 10 s"),
            polls <= allowed,
        );
        report.say("CPU time of the waiting process", own_cpu);
        report.say("CPU time of the server", server_cpu);
        if let Some(listeners) = listeners {
            report.must("threads that listen", listeners, "1", listeners == 1);
        }
        report.must(
            "locks taken in the end",
            had.len(),
            asked,
            had.len() == asked,
        );
        let last = had.into_iter().max().unwrap_or(released);
        report.say(
            "from the order to release to the last",
            last.saturating_sub(released),
        );
    });
}

/// An uncontended lock sends nothing, and starts no thread, for the sake of waiting.
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
    // Each release script sends one GET before it deletes.
    let gets = commands.count("get").saturating_sub(TIMES);
    report.must_be_none("GETs outside of scripts", gets);
    let client = commands.family("client");
    report.must_be_none("CLIENT commands", client);
    if let Some(listeners) = listeners {
        report.must_be_none("threads that listen", listeners);
    }
}
