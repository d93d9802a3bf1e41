//! What a lock costs if it is uncontended, if other programs use the cores, and if program and
//! server share one core.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use relatch_rig::Server;

use crate::support::children::Child;
use crate::support::figures::{Figure, Gauge, Report};
use crate::support::turns::{Kind, Polling, Relatch, Tally, take_turns_for};
use crate::support::{Floor, Rounds, pin_apart, pin_together};

use super::{connect, eight_threads, pinned};

/// Lock and unlock of a free lock, alternating with the floor. Then lock and unlock of a lock that
/// the thread holds already.
pub(crate) fn cycle(report: &mut Report) {
    const PAIRS: u32 = 5_000;
    const ROUNDS: usize = 201;

    uncontended(report, "by the scheduler", &Server::start(), None);
    pinned(pin_apart, |server| {
        uncontended(report, "pinned apart", server, None);
    });
    let server = Server::start();
    let locks = connect(&server);
    let _held = locks.lock("held").expect("locks");
    let mut rounds = Rounds::new(&["reentry"]);
    for _ in 0..ROUNDS {
        rounds.time(0, PAIRS, || {
            (0..PAIRS).for_each(|_| drop(black_box(locks.lock("held").expect("held"))));
        });
    }
    report.say("reentry", rounds.median(0));
    report.say("reentry, quietest round", rounds.quietest(0));
}

fn uncontended(report: &mut Report, placed: &str, server: &Server, most: Option<f64>) {
    const CYCLES: u32 = 400;
    const ROUNDS: usize = 21;

    let (locks, mut floor) = (connect(server), Floor::new(server));
    let mut rounds = Rounds::new(&["floor", "lock + unlock"]);
    for _ in 0..ROUNDS {
        rounds.time(0, CYCLES, || {
            (0..CYCLES).for_each(|_| floor.cycle("lock:floor"));
        });
        rounds.time(1, CYCLES, || {
            (0..CYCLES).for_each(|_| drop(locks.lock("one").expect("locks")));
        });
    }
    report.say(&format!("floor cycle, {placed}"), rounds.median(0));
    report.say(&format!("lock + unlock, {placed}"), rounds.median(1));
    let (what, ratio) = (format!("lock + unlock, x floor, {placed}"), rounds.ratio(1));
    let shown = Figure::number(ratio, 3, "");
    match most {
        Some(most) => report.must(&what, shown, format!("<= {most:.2}"), ratio <= most),
        None => report.say(&what, shown),
    }
}

/// Threads that take turns, beside one busy process per core (at least two).
pub(crate) fn busy(report: &mut Report) {
    let server = Server::start();
    let cores = thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
    let _loops = Child::start_all(cores, "busy", &server.url(), "", "busy");
    report.say("loops that are busy", cores);
    for threads in [2, 8] {
        let of = |what: &str| format!("{threads} threads: {what}");
        let sides = side_by_side(&server, threads, Duration::from_secs(2));
        let [by_hand, bare, ours] = sides.map(|side| side.tally);
        for (name, side) in NAMES.into_iter().zip([by_hand, bare, ours]) {
            let what = of(&format!("turns per second, {name}"));
            report.say(&what, Figure::number(side.per_second(), 0, ""));
        }
        let share = ours.per_second() / by_hand.per_second();
        report.must(
            &of("turns, x by hand"),
            Figure::number(share, 2, ""),
            ">= 0.50",
            share >= 0.5,
        );
        let share = ours.per_second() / bare.per_second();
        report.say(&of("turns, x by hand, bare"), Figure::number(share, 2, ""));
        report.say(&of("longest wait, by hand"), by_hand.longest);
        report.say(&of("longest wait, by hand, bare"), bare.longest);
        let bound = Duration::from_millis(100);
        report.must_be_within(&of("longest wait, relatch"), ours.longest, bound, "");
        report.must_be_none(&of("failed or overlapped"), trouble(&[by_hand, bare, ours]));
    }
}

/// On one core, no figure depends on the cost of waking another core, so the figures hardly vary.
pub(crate) fn one_core(report: &mut Report) {
    const THREADS: usize = 8;

    pinned(pin_together, |server| {
        uncontended(report, "one core", server, Some(1.1));
        eight_threads(report, "one core", server, 1.0, None);
        let sides = side_by_side(server, THREADS, Duration::from_secs(1));
        for (name, side) in NAMES.into_iter().zip(&sides) {
            let of = |what: &str| format!("{what}, {name}");
            report.say(
                &of("turns per second"),
                Figure::number(side.tally.per_second(), 0, ""),
            );
            report.say(&of("longest wait"), side.tally.longest);
            report.say(&of("CPU a turn, server"), side.tally.each(side.server));
            let (what, own) = (of("CPU a turn, program"), side.tally.each(side.tally.cpu));
            if name == "relatch" {
                report.must_be_within(&what, own, Duration::from_micros(16), "");
            } else {
                report.say(&what, own);
            }
        }
        report.must_be_none(
            "failed or overlapped",
            trouble(&sides.map(|side| side.tally)),
        );
    });
}

fn trouble(tallies: &[Tally; 3]) -> u64 {
    tallies
        .iter()
        .map(|tally| tally.failed + tally.overlapped)
        .sum()
}

/// The locks that are compared side by side.
const NAMES: [&str; 3] = ["by hand", "by hand, bare", "relatch"];

/// The result of one lock, and the CPU time of the server meanwhile.
#[derive(Clone, Copy, Default)]
struct Side {
    tally: Tally,
    server: Duration,
}

/// Threads of this process take turns on one key, for `span` with each of the three locks. This is
/// repeated, and the results are added up.
fn side_by_side(server: &Server, threads: usize, span: Duration) -> [Side; 3] {
    const WARM_UP: Duration = Duration::from_millis(300);
    const STRETCHES: usize = 3;

    let mut gauge = Gauge::new(server);
    let locks = &connect(server);
    let by_hand = |kind| -> Vec<_> {
        (0..threads)
            .map(|_| Polling::open(&server.url(), "by hand", kind))
            .collect()
    };
    let (mut pooled, mut bare) = (by_hand(Kind::Pooled), by_hand(Kind::Bare));
    let mut ours: Vec<_> = (0..threads)
        .map(|_| Relatch {
            locks,
            key: "relatch",
        })
        .collect();
    let mut run = |who: usize, span| match who {
        0 => take_turns_for(&mut pooled, span, Duration::ZERO),
        1 => take_turns_for(&mut bare, span, Duration::ZERO),
        _ => take_turns_for(&mut ours, span, Duration::ZERO),
    };
    let mut sides = [Side::default(); 3];
    for stretch in 0..=STRETCHES {
        for (who, side) in sides.iter_mut().enumerate() {
            if stretch == 0 {
                run(who, WARM_UP);
                continue;
            }
            let before = gauge.cpu_time();
            side.tally.then(run(who, span));
            side.server += gauge.cpu_time().saturating_sub(before);
        }
    }
    sides
}
