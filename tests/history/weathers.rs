//! Whatever goes wrong, a lock has no two holders at a time. If the server itself deletes a lock's
//! key, the holder soon learns of that.
//!
//! Two kinds of weather run at a time, and a third that waits for failovers most of the time: with
//! more, the tests would measure the machine.

use std::env;

use serial_test::serial;

use crate::faults::Weather;
use crate::judge::Verdict;
use crate::round;

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {value:?}")),
    )
}

/// How many locks each weather has to see taken.
fn wanted() -> u64 {
    number("RELATCH_ACQUISITIONS").unwrap_or(1)
}

/// Runs rounds without TLS until there were enough acquisitions; panics at the first violation.
fn holds_in(weather: Weather) {
    holds(weather, false, wanted());
}

/// The same with or without TLS, for a number of acquisitions.
fn holds(weather: Weather, over_tls: bool, wanted: u64) {
    let first = number("RELATCH_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let (mut seed, mut total, mut faults) = (first, Verdict::default(), 0);
    // Rounds that prove too little to count.
    let mut uncalled = 0;
    while (total.acquisitions as u64) < wanted || !was_noticed(weather, &total) {
        let goes_on = was_noticed(weather, &total) || seed < first + uncalled + 5;
        assert!(
            goes_on,
            "{weather:?}: no hold was lost in five rounds: {total:?}"
        );
        println!("{weather:?}: RELATCH_SEED={seed}");
        let round = round(weather, weather.round(), over_tls, seed);
        assert_was_bad(weather, &round.verdict, round.faults);
        seed += 1;
        faults += round.faults;
        if round.is_uncalled {
            uncalled += 1;
            assert!(uncalled < 5, "{weather:?}: the sentinels do not keep still");
        } else {
            total.add_up(&round.verdict);
        }
    }
    let name = format!("{weather:?}{}", if over_tls { " (TLS)" } else { "" });
    println!("history | {name} | {first}..{seed} | {faults} | {total}");
}

/// If the server deletes held locks, some hold has to be lost. (A single round may lose none.)
fn was_noticed(weather: Weather, total: &Verdict) -> bool {
    !weather.deletes_held_locks() || total.lost + total.unconfirmed > 0
}

/// Without a fault, or without a valid hold, nothing would have been tested.
fn assert_was_bad(weather: Weather, verdict: &Verdict, struck: u64) {
    let Verdict {
        acquisitions,
        believed,
        ..
    } = *verdict;
    assert!(
        acquisitions > 0 && struck > 0,
        "{weather:?}: {verdict:?}, {struck} faults"
    );
    assert!(
        believed >= acquisitions - acquisitions / 10,
        "{weather:?}: too few were valid: {verdict:?}"
    );
}

#[test]
#[serial(one)]
fn locks_hold_while_messages_are_delayed() {
    holds_in(Weather::Delays);
}

#[test]
#[serial(one)]
fn locks_hold_while_messages_are_lost() {
    holds_in(Weather::Losses);
}

#[test]
#[serial(one)]
fn locks_hold_while_connections_are_cut() {
    holds_in(Weather::Cuts);
}

#[test]
#[serial(other)]
fn locks_hold_while_nothing_passes_for_a_while() {
    holds_in(Weather::BlackHoles);
}

#[test]
#[serial(other)]
fn locks_hold_while_the_server_pauses() {
    holds_in(Weather::Pauses);
}

#[test]
#[serial(one)]
fn losses_are_reported_while_the_server_restarts_without_its_keys() {
    holds_in(Weather::Restarts);
}

#[test]
#[serial(other)]
fn locks_hold_while_processes_are_stopped() {
    holds_in(Weather::Stops);
}

#[test]
#[serial(other)]
fn locks_hold_while_processes_are_killed() {
    holds_in(Weather::Kills);
}

#[test]
#[serial(other)]
fn losses_are_reported_while_keys_are_deleted() {
    holds_in(Weather::Evictions);
}

#[test]
#[serial(one)]
fn losses_are_reported_while_the_servers_clock_steps() {
    holds_in(Weather::Clocks);
}

/// A round of failovers takes long, so this test and the next one share the number of locks.
#[test]
#[serial(idle)]
fn locks_hold_while_masters_are_replaced() {
    holds(Weather::Failovers, false, wanted().div_ceil(2));
}

#[test]
#[serial(idle)]
#[cfg(feature = "tls")]
fn locks_hold_while_masters_are_replaced_over_tls() {
    holds(Weather::Failovers, true, wanted().div_ceil(2));
}

#[test]
#[serial(idle)]
fn locks_hold_while_slots_of_a_cluster_move() {
    holds_in(Weather::SlotsMove);
}

#[test]
#[serial(idle)]
fn locks_hold_while_masters_of_a_cluster_are_replaced() {
    holds_in(Weather::MastersFailOver);
}

#[test]
#[serial(one)]
#[cfg(feature = "tls")]
fn locks_hold_while_messages_are_lost_over_tls() {
    holds(Weather::Losses, true, wanted());
}

#[test]
#[serial(other)]
#[cfg(feature = "tls")]
fn locks_hold_while_connections_are_cut_over_tls() {
    holds(Weather::Cuts, true, wanted());
}
