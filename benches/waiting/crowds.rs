//! Several processes, up to hundreds, that want the same lock.

use std::thread;
use std::time::{Duration, Instant};

use relatch_rig::{Server, now};

use crate::support::children::{Child, nanos};
use crate::support::figures::{Commands, Figure, Gauge, Report, Spread, ratio};
use crate::support::turns::{Kind, Polling, Relatch, Taker, Tally};
use crate::support::watch::Watch;
use crate::support::{Floor, Rounds};

use super::connect;

/// Processes that lock and unlock as fast as they can, for five seconds. The floor is measured
/// before and after.
pub(crate) fn processes(report: &mut Report) {
    const SPAN: Duration = Duration::from_secs(5);
    const CYCLES: u32 = 400;

    let server = Server::start();
    let mut floor = Floor::new(&server);
    let mut rounds = Rounds::new(&["floor"]);
    let mut measure_floor = || {
        for _ in 0..10 {
            rounds.time(0, CYCLES, || {
                (0..CYCLES).for_each(|_| floor.cycle("lock:floor"));
            });
        }
    };
    let mut crowd = Crowd::start(&server, "relatch", 4);
    measure_floor();
    let tallies = crowd.take_turns(2, SPAN, Duration::ZERO);
    measure_floor();

    let all = together(&tallies);
    say_shares(report, &tallies, 15.0, 35.0);
    report.must_be_within("longest wait", all.longest, Duration::from_millis(100), "");
    let of_floor = all.per_second() * rounds.median(0).as_secs_f64();
    report.say(
        "turns per second",
        Figure::number(all.per_second(), 0, &format!(", {of_floor:.2} x floor")),
    );
    report.must_be_none("turns that failed", all.failed);
}

/// Holds that are much longer than a hand-off: a waiter that tries too late waits for another whole
/// hold.
pub(crate) fn long(report: &mut Report) {
    const SPAN: Duration = Duration::from_secs(6);
    const HOLD: Duration = Duration::from_millis(20);

    let server = Server::start();
    let tallies = Crowd::start(&server, "relatch", 3).take_turns(1, SPAN, HOLD);
    let all = together(&tallies);
    say_shares(report, &tallies, 20.0, 100.0);
    report.say("turns per second", Figure::number(all.per_second(), 1, ""));
    report.say("mean wait", all.mean_wait());
    report.say("longest wait", all.longest);
    report.must_be_none("turns that failed", all.failed);
}

/// Processes that take turns on slots and, for comparison, on one lock.
pub(crate) fn slots(report: &mut Report) {
    const SPAN: Duration = Duration::from_secs(3);

    for (who, slots, processes, threads, millis) in [
        ("relatch", 1.0, 8, 1, 1),
        ("3 slots", 3.0, 8, 1, 1),
        ("3 slots", 3.0, 32, 1, 1),
        ("10 slots", 10.0, 8, 4, 5),
        ("relatch", 1.0, 8, 4, 5),
    ] {
        let (server, hold) = (Server::start(), Duration::from_millis(millis));
        let of = |what: &str| format!("{who}, {processes} x {threads}, {millis} ms: {what}");
        let mut crowd = Crowd::start(&server, who, processes);
        crowd.take_turns(threads, SPAN / 6, hold);
        let watch = Watch::start(&server);
        let all = together(&crowd.take_turns(threads, SPAN, hold));
        let commands = watch.end();
        let used = all.per_second() * hold.as_secs_f64() / slots * 100.0;
        let used = format!(", {used:.0} % of the holds that fit");
        report.say(
            &of("turns per second"),
            Figure::number(all.per_second(), 0, &used),
        );
        report.say(&of("longest wait"), all.longest);
        let each = ratio(commands.total(), all.turns.max(1));
        let shown = Figure::number(each, 1, &format!("; {commands}"));
        let is_met = each <= 6.0 || slots < 2.0;
        report.must(
            &of("commands sent a turn"),
            shown,
            "<= 6".to_owned(),
            is_met,
        );
        report.must_be_none(&of("turns that failed"), all.failed);
    }
}

fn say_shares(report: &mut Report, tallies: &[Tally], least: f64, most: f64) {
    let total = together(tallies).turns;
    for (number, tally) in tallies.iter().enumerate() {
        let share = ratio(tally.turns, total.max(1)) * 100.0;
        let what = format!("share of turns, process {}", number + 1);
        let bound = if most < 100.0 {
            format!("{least} % to {most} %")
        } else {
            format!(">= {least} %")
        };
        report.must(
            &what,
            Figure::number(share, 1, " %"),
            bound,
            (least..=most).contains(&share),
        );
    }
}

/// Fifty processes use relatch for ten seconds. Two other crowds of fifty poll by hand, one pooled
/// and one bare. Each of them runs for five seconds before relatch and for five seconds after it.
pub(crate) fn fifty(report: &mut Report) {
    const PROCESSES: usize = 50;
    const HALF: Duration = Duration::from_secs(5);
    const HOLD: Duration = Duration::from_millis(1);
    /// How long commands are counted.
    const WATCHED: Duration = Duration::from_secs(2);
    /// Time to open connections and load scripts.
    const WARM_UP: Duration = Duration::from_millis(500);

    let server = Server::start();
    let mut gauge = Gauge::new(&server);
    let names = ["by hand", "by hand, bare", "relatch"];
    let mut crowds = names.map(|name| Crowd::start(&server, name, PROCESSES));
    for crowd in &mut crowds {
        crowd.take_turns(1, WARM_UP, HOLD);
    }
    let mut tallies = [(); 3].map(|()| vec![Tally::default(); PROCESSES]);
    let mut server_cpu = [Duration::ZERO; 3];
    for (who, span) in [(0, HALF), (1, HALF), (2, HALF * 2), (1, HALF), (0, HALF)] {
        let before = gauge.cpu_time();
        let more = crowds[who].take_turns(1, span, HOLD);
        server_cpu[who] += gauge.cpu_time().saturating_sub(before);
        tallies[who]
            .iter_mut()
            .zip(more)
            .for_each(|(tally, more)| tally.then(more));
    }

    let all = tallies.each_ref().map(|tallies| together(tallies));
    for (who, name) in names.into_iter().enumerate() {
        let of = |what: &str| format!("{what}, {name}");
        let all = &all[who];
        let turns = tallies[who].iter().map(|tally| tally.turns);
        report.say(
            &of("turns per second"),
            Figure::number(all.per_second(), 0, ""),
        );
        report.say(
            &of("fewest turns of a process"),
            turns.clone().min().unwrap_or_default(),
        );
        report.say(
            &of("most turns of a process"),
            turns.max().unwrap_or_default(),
        );
        report.say(&of("mean wait"), all.mean_wait());
        report.say(&of("longest wait"), all.longest);
        report.say(&of("CPU a turn, programs"), all.each(all.cpu));
        report.say(&of("CPU a turn, server"), all.each(server_cpu[who]));
        let watch = Watch::start(&server);
        let watched = together(&crowds[who].take_turns(1, WATCHED, HOLD));
        let commands = watch.end();
        let per_turn = ratio(commands.total(), watched.turns.max(1));
        report.say(
            &of("commands sent a turn"),
            Figure::number(per_turn, 1, &format!("; {commands}")),
        );
    }
    let [by_hand, bare, ours] = all;
    let share = ours.per_second() / by_hand.per_second();
    report.must(
        "turns, x by hand",
        Figure::number(share, 2, ""),
        ">= 0.80",
        share >= 0.8,
    );
    let share = ours.per_second() / bare.per_second();
    report.say("turns, x by hand, bare", Figure::number(share, 2, ""));
    let waits = ours.longest.div_duration_f64(ours.mean_wait());
    report.must(
        "longest wait, x mean wait",
        Figure::number(waits, 1, ""),
        "<= 10",
        waits <= 10.0,
    );
    report.must_be_none(
        "turns that failed",
        all.iter().map(|tally| tally.failed).sum(),
    );
}

/// Processes that take turns each time they get an order.
struct Crowd(Vec<Child>);

impl Crowd {
    fn start(server: &Server, who: &str, processes: usize) -> Crowd {
        let role = &format!("{who} turns");
        Crowd(Child::start_all(
            processes,
            role,
            &server.url(),
            role,
            "ready",
        ))
    }

    fn take_turns(&mut self, threads: usize, span: Duration, hold: Duration) -> Vec<Tally> {
        self.0
            .iter_mut()
            .for_each(|child| child.begin_turns(threads, span, hold));
        self.0.iter_mut().map(|child| child.tally(span)).collect()
    }
}

fn together(tallies: &[Tally]) -> Tally {
    let mut all = Tally::default();
    for tally in tallies {
        all.beside(*tally);
    }
    all
}

/// Processes wait for one hold to end. Then each takes the lock once and holds it for a
/// millisecond. The processes are new, and have seen no holder before.
pub(crate) fn cascade(report: &mut Report) {
    for (processes, bound, commands) in [(50, 200, 30.0), (200, 700, 50.0), (400, 2000, 100.0)] {
        let of = |what: &str| format!("{processes}: {what}");
        let timed = Cascade::of_relatch(processes, false);
        let counted = Cascade::of_relatch(processes, true);
        let polling = Cascade::by_hand(processes);

        report.must_be_within(
            &of("all of them"),
            timed.took,
            Duration::from_millis(bound),
            "",
        );
        report.say(&of("all of them, by hand"), polling.took);
        report.say(
            &of("p50 from a release to the next holder"),
            timed.gaps.p50(),
        );
        report.say(&of("p50 of that, by hand"), polling.gaps.p50());
        report.say(&of("the longest of those"), timed.gaps.max());
        let sent = counted.sent.as_ref().map_or(0, Commands::total);
        let per_release = ratio(sent, processes as u64);
        let shown = Figure::number(per_release, 1, "");
        report.must(
            &of("commands sent a release"),
            shown,
            format!("<= {commands}"),
            per_release <= commands,
        );
        if let Some(sent) = &counted.sent {
            report.say(&of("commands sent"), sent);
        }
        report.say(&of("commands executed, in scripts too"), &timed.executed);
        report.say(&of("all of them, watched"), counted.took);
        let all = [&timed, &counted, &polling];
        report.must_be_none(
            &of("holds that overlapped"),
            all.iter().map(|run| run.overlaps).sum(),
        );
        report.must_be_none(
            &of("locks that failed"),
            all.iter().map(|run| run.failed).sum(),
        );
    }
}

struct Cascade {
    /// The time from the first release to the last.
    took: Duration,
    /// The time from each release until the next holder has the lock.
    gaps: Spread,
    overlaps: u64,
    failed: u64,
    executed: Commands,
    sent: Option<Commands>,
}

impl Cascade {
    fn of_relatch(processes: usize, watched: bool) -> Cascade {
        let server = Server::start();
        let locks = connect(&server);
        let first = Relatch {
            locks: &locks,
            key: "cascade",
        };
        Cascade::run(&server, first, "relatch once", processes, watched)
    }

    fn by_hand(processes: usize) -> Cascade {
        let server = Server::start();
        let first = Polling::open(&server.url(), "cascade", Kind::Pooled);
        Cascade::run(&server, first, "by hand once", processes, false)
    }

    fn run(
        server: &Server,
        mut first: impl Taker,
        role: &str,
        processes: usize,
        watched: bool,
    ) -> Cascade {
        let mut gauge = Gauge::new(server);
        let mut children = Vec::new();
        let (mut watch, mut before, mut released) = (None, None, 0);
        let start = &mut || {
            children = Child::start_all(processes, role, &server.url(), "cascade", "waiting");
            if role == "relatch once" {
                until_all_are_told(&mut gauge, processes);
            }
            // Time for the last process to fall asleep, or to begin to poll.
            thread::sleep(Duration::from_millis(500));
            watch = watched.then(|| Watch::start(server));
            before = Some(gauge.commands());
            released = nanos(now());
        };
        first.turn(start).expect("holds and releases");
        let answers: Vec<_> = children.iter_mut().map(Child::try_numbers::<2>).collect();
        let executed = gauge
            .commands()
            .since(&before.expect("the first hold is over"));
        let sent = watch.map(Watch::end);

        let begun = released;
        let (mut gaps, mut overlaps) = (Vec::new(), 0);
        let (mut turns, failures): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        if let Some(Err(line)) = failures.first() {
            eprintln!(
                "waiting: {} processes failed, the first of them with {line:?}",
                failures.len()
            );
        }
        turns.sort_unstable();
        for [had, gave_back] in turns.into_iter().flatten() {
            overlaps += u64::from(had < released);
            gaps.push(Duration::from_nanos(had.saturating_sub(released)));
            released = gave_back;
        }
        let took = Duration::from_nanos(released.saturating_sub(begun));
        let failed = failures.len() as u64;
        Cascade {
            took,
            gaps: Spread::of(gaps),
            overlaps,
            failed,
            executed,
            sent,
        }
    }
}

/// Waits until each process has a connection with tracking on, which means that its waiter is about
/// to sleep. Gives up after ten seconds, for a build whose waiters poll.
fn until_all_are_told(gauge: &mut Gauge, processes: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while gauge.tracking() < processes as u64 {
        if Instant::now() > deadline {
            eprintln!(
                "waiting: {} of {processes} processes have tracking on",
                gauge.tracking()
            );
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
