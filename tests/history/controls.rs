//! The checker finds the mistakes that many locks have, which shows that the tests in `weathers`
//! work.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use serial_test::serial;

use crate::faults::Weather;
use crate::round;

/// How long the checker may take to find a mistake. Nearly each round finds it.
const LIMIT: Duration = Duration::from_secs(120);

/// What shows that a failover has lost a lock. The second if the holder learned of that before
/// somebody else had the lock.
const LOST: [&str; 2] = ["two at a time", "said to be lost, but nobody took it away"];

/// Runs rounds with the mistake `flaw` until the checker reports a violation that begins with one
/// of `expected`.
fn is_found(flaw: &str, weather: Weather, expected: &[&str]) {
    let start = Instant::now();
    for seed in 0.. {
        assert!(start.elapsed() < LIMIT, "{flaw}: not found in {seed} rounds");
        // A worker may notice the mistake, too, and panic.
        let one_round = || round(weather, span(weather), false, seed, flaw);
        let Ok((verdict, _)) = catch_unwind(one_round) else { continue };
        if let Some(found) =
            verdict.violations.iter().find(|it| expected.iter().any(|start| it.starts_with(start)))
        {
            let (count, took) = (verdict.violations.len(), start.elapsed());
            println!("flaw | {flaw}: after {took:.1?}, by {count} violations in {weather:?}");
            println!("{found}");
            return;
        }
        println!("{flaw}: {:?}", verdict.violations);
    }
}

/// How long faults happen in one round. The first failover of a round is one that loses locks, so
/// there need not be another.
fn span(weather: Weather) -> Duration {
    if weather.replaces_masters() { Duration::ZERO } else { weather.round() }
}

#[test]
#[serial(one)]
fn a_lock_without_a_nonce_is_found_out() {
    is_found("no nonce", Weather::Pauses, &["a token was used twice"]);
}

#[test]
#[serial(other)]
fn a_lease_that_counts_from_the_answer_is_found_out() {
    is_found("counts from the answer", Weather::Delays, &["it outlives its key"]);
}

#[test]
#[serial(one)]
fn a_release_that_does_not_compare_is_found_out() {
    is_found("deletes without comparing", Weather::Stops, &["it deleted what was not its own"]);
}

#[test]
#[serial(other)]
fn a_flag_instead_of_the_clock_is_found_out() {
    is_found("trusts a flag", Weather::Stops, &["two at a time"]);
}

#[test]
#[serial(one)]
fn a_lock_that_waits_for_no_replica_is_found_out() {
    is_found("waits for no replica", Weather::Failovers, &LOST);
}

#[test]
#[serial(other)]
fn a_lock_that_a_cluster_has_elsewhere_is_found_out() {
    is_found("takes a redirect for success", Weather::SlotsMove, &["no server ever had its token"]);
}

#[test]
#[serial(one)]
fn a_lock_that_waits_for_no_replica_of_a_cluster_is_found_out() {
    is_found("waits for no replica", Weather::MastersFailOver, &LOST);
}
