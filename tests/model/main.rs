//! The lock protocol as a model, and every order of events in it, within bounds.
//!
//! This is not the code of the crate. It is its rules written down a second time, and what is shown
//! here is shown of the rules.
//!
//! # What is in it
//!
//! One key in Redis, with a lease of three ticks, of which a holder trusts two. Commands are
//! executed one at a time, in order per connection, with anything in between. An answer may come at
//! any time after that, or get lost, with or without its connection. What was sent over a
//! connection that is no longer read is executed at any time later, or never. Time passes at any
//! moment, and a thread's clock may miss a tick. A thread attempts with one script, gives up,
//! holds, is renewed, releases, tries again after a lost answer or does not, and hands the lock off
//! to the next waiter of its process, as the claim, the release and the wait queue do. The keeper
//! of a process cleans up orphans once a tick, and is always answered.
//!
//! Waiting, where a model has it (`asleep`): an attempt that finds the lock held has Redis track
//! the key for the process's listener. The next change, which is a release, a renewal or the end of
//! the lease, leads to an invalidation. The waiter sleeps unless the listener has called since the
//! attempt began. The invalidation arrives at any time later, and the listener calls the waiter,
//! which pauses for any time and tries again. The listener's connection may get lost, with what is
//! under way on it and what Redis tracks for it; so may the connection of the attempt, with the key
//! that it tracks. The process notices at some time, calls its waiters, and has them poll until the
//! listener is connected again. Redis sends a process no invalidation for what it changes over a
//! connection of its pool, as the attempt may have gone over the same one.
//!
//! A sleep has no other end in the model: neither the safety poll nor the end of the lease that the
//! waiter saw, which are there in the program. So a waiter that sleeps and will not be called is a
//! lost wake-up, and a violation.
//!
//! # What is not
//!
//! - Bounds: two or three threads, one to three tokens each, one or two lost answers, one renewal,
//!   one missed tick, one or two connections that a sleeper relies on.
//! - `SET` without a look at the holder, how long pauses are (the tests of contention simulate
//!   that), how the threads of a process wake each other (`src/interleavings` tries that),
//!   deadlines as such (a thread gives up at any time), the pool, `extend`, `reclaim_dead`,
//!   `force_unlock`, refusals, forks, and a Redis that forgets or sends no invalidations.
//! - What is only promised if things go on: that a waiter gets the lock in the end. What is shown
//!   is that a waiter which sleeps always has something to come.
//! - An answer after its lease: the removal is written after it, and the token is an orphan as
//!   well. In the program it is one only if the removal is not answered.
//! - A `SET` that is executed long after the lease it asks for would have ended: nothing looks for
//!   it any more.
//!
//! Each rule is also broken once, to see that the model notices.
mod client;
mod release;
mod model;
mod server;
mod state;
mod waiting;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use model::{EXCLUSION, LOST, Mutation, NO_KEY_LEFT, NOT_ITSELF, PROMPT, Protocol, RELEASED, WOKEN};
use state::Budget;

/// Two processes of one thread each.
fn two(nonces: u8, losses: u8, renewals: u8, missed: u8) -> Protocol {
    let budget = Budget { losses, renewals, missed, cuts: 0 };
    Protocol { threads: vec![0, 1], nonces, sleeps: false, budget, mutation: None }
}

/// A process of one thread, and another client.
fn one(nonces: u8, losses: u8) -> Protocol {
    Protocol { threads: vec![0, PROMPT], ..two(nonces, losses, 0, 0) }
}

/// A process of two threads, and another client.
fn a_pair(nonces: u8, losses: u8, renewals: u8) -> Protocol {
    let budget = Budget { losses, renewals, missed: 0, cuts: 0 };
    Protocol { threads: vec![0, 0, PROMPT], nonces, sleeps: false, budget, mutation: None }
}

/// Its waiters sleep, and so many connections that they rely on are lost.
fn asleep(protocol: Protocol, cuts: u8) -> Protocol {
    let budget = Budget { cuts, ..protocol.budget };
    Protocol { sleeps: true, budget, ..protocol }
}

fn check(protocol: &Protocol) {
    let start = Instant::now();
    let checker = protocol.clone().checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} steps deep, in {:.1?}: {protocol:?}",
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    checker.assert_properties();
}

fn caught(protocol: Protocol, mutation: Mutation, by: &'static str) {
    let start = Instant::now();
    let protocol = Protocol { mutation: Some(mutation), ..protocol };
    let wanted = HasDiscoveries::AnyOf([by].into());
    let checker = protocol.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    println!("{mutation:?}: {} states in {:.1?}", checker.unique_state_count(), start.elapsed());
    let path = checker.discovery(by).expect("the mutation is caught");
    println!("  {:?}", path.into_actions());
}

#[test]
fn the_protocol_keeps_its_properties() {
    check(&two(1, 1, 1, 1));
    check(&Protocol { threads: vec![0, PROMPT], ..two(2, 1, 1, 1) });
    check(&Protocol { threads: vec![0, 1, 2], ..two(1, 0, 0, 0) });
    check(&one(3, 2));
    check(&a_pair(1, 1, 0));
}

#[test]
fn no_wake_up_is_lost() {
    check(&asleep(two(1, 0, 0, 0), 2));
    check(&asleep(two(1, 0, 1, 0), 1));
    check(&asleep(one(2, 1), 1));
    check(&asleep(a_pair(1, 0, 0), 1));
    check(&asleep(a_pair(1, 1, 0), 0));
}

#[test]
#[ignore = "takes two minutes"]
fn the_protocol_keeps_its_properties_within_wider_bounds() {
    check(&a_pair(1, 1, 1));
    check(&a_pair(1, 2, 0));
    check(&a_pair(2, 1, 0));
    check(&asleep(two(2, 1, 0, 0), 0));
    check(&asleep(two(1, 1, 1, 0), 1));
    check(&asleep(a_pair(1, 1, 0), 1));
    check(&asleep(Protocol { threads: vec![0, 1, 2], ..two(1, 0, 0, 0) }, 1));
}

macro_rules! mutants {
    ($($name:ident: $bounds:expr, $mutation:ident, $by:expr;)*) => {
        $(#[test]
        fn $name() {
            caught($bounds, Mutation::$mutation, $by);
        })*
    };
}

mutants! {
    a_model_without_counting_from_the_send_is_caught: two(1, 0, 0, 0), CountsFromTheAnswer, EXCLUSION;
    a_hand_off_that_counts_from_the_answer_is_caught: a_pair(1, 0, 0), CountsHandOffsFromTheAnswer, EXCLUSION;
    a_model_without_margin_is_caught: two(1, 0, 0, 1), NoMargin, EXCLUSION;
    a_model_without_nonces_is_caught: one(2, 1), NoNonce, EXCLUSION;
    a_model_without_comparing_is_caught: two(2, 0, 0, 0), DeletesWithoutComparing, EXCLUSION;
    a_model_without_comparing_is_caught_by_its_releases: two(2, 0, 0, 0), DeletesWithoutComparing, RELEASED;
    a_flag_instead_of_the_clock_is_caught: two(1, 0, 0, 0), TrustsAFlag, EXCLUSION;
    a_token_that_is_used_after_its_clean_up_is_caught: one(1, 2), ReusesItsToken, EXCLUSION;
    a_spoilt_token_that_is_used_is_caught: a_pair(1, 1, 0), UsesASpoiltToken, EXCLUSION;
    a_clean_up_over_another_connection_is_caught: two(1, 2, 0, 0), CleansUpElsewhere, NO_KEY_LEFT;
    a_renewal_that_creates_a_key_is_caught: two(1, 1, 1, 0), RenewalCreates, NO_KEY_LEFT;
    a_waiter_that_sleeps_behind_its_own_token_is_caught: asleep(two(2, 1, 0, 0), 0), OverlooksItsAbandonedToken, NOT_ITSELF;
    a_model_without_orphans_is_caught: two(1, 1, 0, 0), KeepsNoOrphans, NO_KEY_LEFT;
    a_late_answer_reported_as_a_loss_is_caught: two(1, 0, 0, 0), TakesALateAnswerForALoss, LOST;
    an_orphan_that_ends_with_a_missing_key_is_caught: two(1, 1, 0, 0), TakesAMissForTheEnd, NO_KEY_LEFT;
    a_registration_after_the_attempt_is_caught: asleep(two(1, 0, 0, 0), 0), RegistersAfterTheAttempt, WOKEN;
    a_wake_up_that_is_forgotten_is_caught: asleep(two(1, 0, 0, 0), 0), ForgetsWhenItFallsAsleep, WOKEN;
    a_connection_that_redirects_to_an_old_listener_is_caught: asleep(two(1, 0, 0, 0), 1), KeepsToItsFirstListener, WOKEN;
    a_lost_listener_that_wakes_no_waiter_is_caught: asleep(two(1, 0, 0, 0), 1), WakesNoWaiterWithoutListener, WOKEN;
    a_lost_tracking_connection_that_wakes_no_waiter_is_caught: asleep(two(1, 0, 0, 0), 1), IgnoresACutLink, WOKEN;
    a_late_release_that_wakes_no_waiter_is_caught: asleep(a_pair(1, 0, 0), 0), ReleasesQuietly, WOKEN;
    a_wait_queue_that_passes_by_a_release_is_caught: asleep(a_pair(1, 0, 0), 0), PassesByARelease, WOKEN;
}
