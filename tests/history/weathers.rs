//! Whatever goes wrong, a lock has no two holders at a time. If the server itself deletes a lock's
//! key, the holder soon learns of that.
//!
//! Here are the faults of kernels, processes and servers. [The simulation] combines many more, and
//! looks at deadlines, too. Two kinds of weather run at a time: with more, the tests would measure
//! the machine.
//!
//! [The simulation]: ../simulation/scene

use std::env;

use serial_test::serial;

use crate::faults::Weather;
use crate::judge::Verdict;
use crate::round;

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {value:?}")))
}

/// Runs rounds until there were enough acquisitions; panics at the first violation.
fn holds_in(weather: Weather) {
    let wanted = number("RELATCH_ACQUISITIONS").unwrap_or(1);
    let first = number("RELATCH_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let (mut seed, mut total, mut faults) = (first, Verdict::default(), 0);
    // If the server deletes held locks, some hold has to be lost. (A single round may lose none.)
    let is_noticed =
        |total: &Verdict| !weather.deletes_held_locks() || total.lost + total.unconfirmed > 0;
    while (total.acquisitions as u64) < wanted || !is_noticed(&total) {
        let goes_on = is_noticed(&total) || seed < first + 5;
        assert!(goes_on, "{weather:?}: no hold was lost in five rounds");
        println!("{weather:?}: RELATCH_SEED={seed}");
        let (verdict, struck) = round(weather, seed);
        assert_was_bad(weather, &verdict, struck);
        seed += 1;
        faults += struck;
        total.add_up(&verdict);
    }
    println!("history | {weather:?} | {first}..{seed} | {faults} | {total}");
}

/// Without a fault, or without a valid hold, nothing would have been tested.
fn assert_was_bad(weather: Weather, verdict: &Verdict, struck: u64) {
    let (taken, believed) = (verdict.acquisitions, verdict.believed);
    let is_enough = taken > 0 && struck > 0 && believed >= taken / 2;
    assert!(is_enough, "{weather:?}: {verdict:?}, {struck} faults");
}

#[test]
#[serial(one)]
fn locks_hold_while_messages_are_lost_delayed_and_cut() {
    holds_in(Weather::Messages);
}

#[test]
#[serial(one)]
fn losses_are_reported_while_keys_are_deleted_and_the_server_restarts() {
    holds_in(Weather::Losses);
}

#[test]
#[serial(one)]
fn locks_hold_while_processes_are_stopped_and_killed() {
    holds_in(Weather::Processes);
}

#[test]
#[serial(other)]
fn locks_hold_while_slots_of_a_cluster_move() {
    holds_in(Weather::SlotsMove);
}

#[test]
#[serial(other)]
fn locks_hold_while_masters_of_a_cluster_are_replaced() {
    holds_in(Weather::MastersFailOver);
}
