//! Many processes take a few locks while things go wrong at random; what they claim is compared with what the server did.
//!
//! Each test is one kind of weather, for some seconds. It prints its seed; `RELATCH_SEED=<seed>` repeats the same faults and
//! the same choices of the workers (not the same moments: the machine has its own). `RELATCH_ACQUISITIONS=<number>` goes on,
//! with seeds that follow, until so many locks were taken.

mod faults;
mod judge;
mod judge_works;
mod record;
mod roles;
#[path = "../it/support/mod.rs"]
mod support;

use std::env;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serial_test::serial;

use crate::faults::{Scene, Weather, longest_release};
use crate::judge::{Verdict, World, judge};
use crate::support::eventually;

/// How long things go wrong in one round.
const ROUND: Duration = Duration::from_secs(4);

/// What the machine may add to a moment by which somebody is told.
const SLACK: Duration = Duration::from_millis(500);

/// One round: what happened in it.
fn round(weather: Weather, seed: u64) -> (Verdict, u64) {
    let mut scene = Scene::new(weather, StdRng::seed_from_u64(seed));
    scene.rage(ROUND);
    scene.end();
    let lease = weather.lease();
    eventually(2 * lease + 2 * SLACK, "no key is left that nobody holds", || {
        scene.server.query::<Vec<String>>(&["KEYS", "lock:*"]).is_empty()
    });
    scene.leave();
    eventually(SLACK, "no connection is left", || scene.server.connections() == 0);
    let told_within = weather.gives_away().then(|| lease / 3 + Duration::from_millis(50) + SLACK);
    let world = World { stops: scene.stops.clone(), told_within, release: longest_release() };
    (judge(&record::read(scene.records.path()), &scene.proxy.journal(), &world), scene.faults)
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value:?}")))
}

/// Rounds until there were enough acquisitions; panics at the first violation.
fn holds_in(weather: Weather) {
    let wanted = number("RELATCH_ACQUISITIONS").unwrap_or(1);
    let first = number("RELATCH_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let (mut seed, mut total, mut faults) = (first, Verdict::default(), 0);
    while (total.acquisitions as u64) < wanted {
        println!("{weather:?}: RELATCH_SEED={seed}");
        let (verdict, struck) = round(weather, seed);
        let found = &verdict.violations;
        assert!(found.is_empty(), "{weather:?}, RELATCH_SEED={seed}: {}\n{}", found.len(), found.join("\n"));
        assert!(verdict.acquisitions > 0 && struck > 0, "{weather:?}: {verdict:?}, {struck} faults");
        total.add_up(&verdict);
        (seed, faults) = (seed + 1, faults + struck);
    }
    println!("history | {weather:?} | {first}..{seed} | {faults} | {total}");
}

#[test]
#[serial]
fn locks_hold_while_messages_are_delayed() {
    holds_in(Weather::Delays);
}

#[test]
#[serial]
fn locks_hold_while_messages_are_lost() {
    holds_in(Weather::Losses);
}

#[test]
#[serial]
fn locks_hold_while_connections_are_cut() {
    holds_in(Weather::Cuts);
}

#[test]
#[serial]
fn locks_hold_while_nothing_passes_for_a_while() {
    holds_in(Weather::BlackHoles);
}

#[test]
#[serial]
fn locks_hold_while_the_server_pauses() {
    holds_in(Weather::Pauses);
}

#[test]
#[serial]
fn losses_are_told_while_the_server_restarts_without_its_keys() {
    holds_in(Weather::Restarts);
}

#[test]
#[serial]
fn locks_hold_while_processes_are_stopped() {
    holds_in(Weather::Stops);
}

#[test]
#[serial]
fn locks_hold_while_processes_are_killed() {
    holds_in(Weather::Kills);
}

#[test]
#[serial]
fn losses_are_told_while_keys_are_taken_away() {
    holds_in(Weather::Evictions);
}

#[test]
#[serial]
fn losses_are_told_while_the_servers_clock_steps() {
    holds_in(Weather::Clocks);
}
