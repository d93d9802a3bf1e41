//! The lock protocol as a model, and every order of events in it, within bounds.
//!
//! This is not the code of the crate. The model has the rules of the code a second time, so what
//! the tests show here holds for the rules, and not for the code.
//!
//! # What the model has
//!
//! There is one key in Redis, with a lease of three ticks, of which a holder trusts two. Redis
//! executes commands one at a time, in the order of each connection; commands of other connections
//! may come in between. The answer to a command may come at any time after its execution, or get
//! lost, with or without its connection. If nobody reads from a connection any more, Redis executes
//! what was sent over it at any later time, or never. Time passes at any moment, and a thread's
//! clock may miss a tick. A thread attempts to take the lock with one script, or gives up. It holds
//! the lock, its hold is renewed, and it releases the lock, perhaps with a hand-off to the next
//! waiter of its process. After a lost answer, it tries again or gives up. All this follows the
//! code of the claim, the release and the wait queue. The keeper of a process cleans up orphans
//! once a tick, and always gets an answer.
//!
//! Some models have waiting as well (`asleep`). If an attempt finds the lock held, Redis tracks the
//! key for the process's listener. The next change, which is a release, a renewal or the end of the
//! lease, leads to an invalidation. The waiter sleeps unless the listener has woken it (*called*
//! it) since the attempt began. The invalidation arrives at any later time, and the listener calls
//! the waiter, which pauses for any time and tries again. The listener's connection may get lost,
//! with what is under way on it and what Redis tracks for it. The connection of the attempt may get
//! lost, too, with the key that it tracks. The process notices either loss at some time, and calls
//! its waiters. Without the listener's connection, they poll until the listener is connected again.
//! If a process changes the key over a connection of its pool, Redis sends it no invalidation,
//! because its attempt may have used the same connection.
//!
//! Some models have fences (`fenced`). The script that sets the key also raises a counter, and
//! answers its number: one more than what is stored, or the server's time if that is larger. The
//! counter gets lost, or the server's clock is set back: either, but not both. Each holder writes
//! to a resource, with its number, as soon as it has the lock and at any later time.
//!
//! In some models, a holder hands its hold over (`handing_over`). It stops believing, and any
//! thread adopts the parcel: one script swaps the token, or extends the lease if it finds the
//! adopter's own. After a lost answer, the adopter tries again with the same token, or gives up. An
//! adopter does not wait for the turn of its process. Its swap may use up the invalidation for
//! which a peer has registered, so it calls its peers, and so does its release.
//!
//! In the model, only a call ends a sleep. (In the program, the safety poll and the end of the
//! lease that the waiter saw end it, too.) So a waiter that sleeps and will not be called is a lost
//! wake-up, and a violation.
//!
//! Some models have replicas (`failing_over`). A replica gets the master's writes in order, each at
//! any later time. Once, a replica becomes the master with what it has by then. The old master
//! dies, or goes on for some time beside the new one. A thread that has taken the lock asks how
//! many replicas have it; if they are too few, it deletes the key again. A renewal counts if enough
//! replicas have it. Without that, and with one of two replicas, the model finds two holders.
//!
//! # What the model leaves out
//!
//! - More than these bounds: two or three threads, one to three tokens each, one or two lost
//!   answers, one renewal, one missed tick, and one or two losses of a connection on which a
//!   sleeping waiter relies.
//! - `SET` without a look at the holder, how long pauses are (the tests of contention simulate
//!   that), how the threads of a process wake each other (`simulation/interleavings` tests that),
//!   deadlines as such (a thread gives up at any time), the pool, `extend`, `reclaim_dead`,
//!   `force_unlock`, refusals, forks, and a Redis that sends no invalidations or forgets, other
//!   than by a failover.
//! - Of fences: replicas, and a failover that takes the counter back. For the numbers, that is the
//!   loss of the counter.
//! - Of failovers: a second one, servers whose clocks differ, and replicas that come and go. How
//!   often the master gives up waiting for its replicas is bounded, too. After a failover, a
//!   release may be lost, and its key comes back without a holder until its lease ends.
//! - Progress: whether a waiter gets the lock in the end. The model shows only that something is
//!   always about to call a waiter that sleeps.
//! - An answer that comes after its lease. In the model, the removal is written behind the claim,
//!   and the token always becomes an orphan. In the program it becomes one only if the removal gets
//!   no answer.
//! - A `SET` that is executed long after the end of the lease it asks for. Nothing looks for its
//!   key any more.
//!
//! Each rule is also broken once, to check that the model notices.
#![cfg(test)]

mod client;
mod fence;
mod handing_over;
mod release;
mod model;
mod replicas;
mod server;
mod state;
mod waiting;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use model::{
    ADOPTED_ONCE, EXCLUSION, FENCED, LOST, Mutation, NO_KEY_LEFT, NOT_ITSELF, PROMPT, Protocol,
    RELEASED, WOKEN,
};
use state::Budget;

/// Two processes of one thread each.
fn two(nonces: u8, losses: u8, renewals: u8, missed: u8) -> Protocol {
    let budget = Budget {
        losses,
        renewals,
        missed,
        cuts: 0,
        failovers: 0,
        shortages: 0,
        lost_counters: 0,
        steps_back: 0,
        reentries: 0,
        hand_overs: 0,
    };
    Protocol {
        threads: vec![0, 1],
        nonces,
        sleeps: false,
        replicas: 0,
        acknowledged: 0,
        fenced: false,
        budget,
        mutation: None,
    }
}

/// A process of one thread, and another client.
fn one(nonces: u8, losses: u8) -> Protocol {
    Protocol {
        threads: vec![0, PROMPT],
        ..two(nonces, losses, 0, 0)
    }
}

/// A process of two threads, and another client.
fn a_pair(nonces: u8, losses: u8, renewals: u8) -> Protocol {
    Protocol {
        threads: vec![0, 0, PROMPT],
        ..two(nonces, losses, renewals, 0)
    }
}

/// The same protocol with waiters that sleep. They lose `cuts` of the connections they rely on.
fn asleep(protocol: Protocol, cuts: u8) -> Protocol {
    let budget = Budget {
        cuts,
        ..protocol.budget
    };
    Protocol {
        sleeps: true,
        budget,
        ..protocol
    }
}

/// The same protocol with replicas, one of which becomes the master once. `acknowledged` of them
/// have to acknowledge a lock.
fn failing_over(protocol: Protocol, replicas: usize, acknowledged: u8) -> Protocol {
    let budget = Budget {
        failovers: 1,
        shortages: 1,
        ..protocol.budget
    };
    Protocol {
        replicas,
        acknowledged,
        budget,
        ..protocol
    }
}

/// The same protocol with a replica that has to acknowledge a lock, and sometimes does not in time.
fn short_of_its_replica(protocol: Protocol) -> Protocol {
    let budget = Budget {
        shortages: 1,
        ..protocol.budget
    };
    Protocol {
        replicas: 1,
        acknowledged: 1,
        budget,
        ..protocol
    }
}

/// The same protocol with fences. The counter gets lost, or the server's clock is set back.
fn fenced(protocol: Protocol, lost_counters: u8, steps_back: u8) -> Protocol {
    let budget = Budget {
        lost_counters,
        steps_back,
        reentries: 1,
        ..protocol.budget
    };
    Protocol {
        fenced: true,
        budget,
        ..protocol
    }
}

/// The same protocol in which a hold is handed over once.
fn handing_over(protocol: Protocol) -> Protocol {
    let budget = Budget {
        hand_overs: 1,
        ..protocol.budget
    };
    Protocol { budget, ..protocol }
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
    violated(
        Protocol {
            mutation: Some(mutation),
            ..protocol
        },
        by,
    );
}

/// Shows an order of events in which a property does not hold.
fn violated(protocol: Protocol, by: &'static str) {
    let start = Instant::now();
    let what = format!(
        "{:?}, {} of {} replicas",
        protocol.mutation, protocol.acknowledged, protocol.replicas
    );
    let wanted = HasDiscoveries::AnyOf([by].into());
    let checker = protocol
        .checker()
        .threads(2)
        .finish_when(wanted)
        .spawn_bfs()
        .join();
    println!(
        "{what}: {} states in {:.1?}",
        checker.unique_state_count(),
        start.elapsed()
    );
    let path = checker.discovery(by).expect("the property does not hold");
    println!("  {:?}", path.into_actions());
}

#[test]
fn the_protocol_keeps_its_properties() {
    check(&two(1, 1, 1, 1));
    check(&Protocol {
        threads: vec![0, PROMPT],
        ..two(2, 1, 1, 1)
    });
    check(&Protocol {
        threads: vec![0, 1, 2],
        ..two(1, 0, 0, 0)
    });
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

/// The controls: what `replicas(all)` is for, and what fewer replicas leave open.
#[test]
fn a_failover_that_forgets_breaks_exclusion_unless_all_replicas_acknowledge() {
    violated(failing_over(one(1, 0), 1, 0), EXCLUSION);
    violated(failing_over(one(1, 0), 2, 1), EXCLUSION);
}

#[test]
fn all_replicas_keep_exclusion_through_a_failover() {
    check(&failing_over(
        Protocol {
            threads: vec![0, PROMPT],
            ..two(1, 0, 1, 0)
        },
        1,
        1,
    ));
    check(&failing_over(one(1, 1), 1, 1));
    check(&failing_over(one(1, 0), 2, 2));
}

/// Without a failover, no key is left behind and no loss is reported wrongly either.
#[test]
fn replicas_that_are_late_leave_no_key_behind() {
    check(&short_of_its_replica(one(1, 1)));
    check(&short_of_its_replica(two(1, 0, 1, 0)));
}

#[test]
fn fences_grow_and_holders_are_accepted() {
    check(&fenced(two(1, 1, 0, 0), 1, 0));
    check(&fenced(two(1, 1, 0, 0), 0, 1));
    check(&fenced(one(2, 1), 2, 0));
    check(&fenced(one(2, 1), 0, 1));
    check(&fenced(a_pair(1, 0, 0), 1, 0));
}

#[test]
fn a_parcel_is_adopted_once_and_sender_and_adopter_never_both_believe() {
    check(&handing_over(two(1, 1, 0, 1)));
    check(&handing_over(one(2, 1)));
    check(&handing_over(Protocol {
        threads: vec![0, 1, PROMPT],
        ..two(1, 1, 0, 0)
    }));
    check(&handing_over(asleep(a_pair(1, 1, 0), 0)));
    check(&fenced(handing_over(one(1, 1)), 1, 0));
}

/// The control: what nothing protects from.
#[test]
fn a_lost_counter_and_a_clock_that_is_set_back_repeat_a_fence() {
    violated(fenced(two(1, 0, 0, 0), 1, 1), FENCED);
}

#[test]
#[ignore = "takes minutes: tests/chaos.sh runs it"]
fn the_protocol_keeps_its_properties_within_wider_bounds() {
    check(&a_pair(1, 1, 1));
    check(&handing_over(two(2, 1, 0, 0)));
    check(&handing_over(a_pair(2, 1, 0)));
    check(&fenced(handing_over(one(2, 1)), 1, 0));
    check(&fenced(handing_over(two(2, 0, 0, 0)), 1, 0));
    check(&a_pair(1, 2, 0));
    check(&a_pair(2, 1, 0));
    check(&asleep(two(2, 1, 0, 0), 0));
    check(&asleep(two(1, 1, 1, 0), 1));
    check(&asleep(a_pair(1, 1, 0), 1));
    check(&asleep(
        Protocol {
            threads: vec![0, 1, 2],
            ..two(1, 0, 0, 0)
        },
        1,
    ));
    check(&failing_over(two(1, 0, 0, 0), 1, 1));
    check(&failing_over(two(1, 0, 1, 0), 1, 1));
    check(&failing_over(
        Protocol {
            threads: vec![0, PROMPT],
            ..two(1, 0, 2, 0)
        },
        1,
        1,
    ));
    check(&failing_over(one(2, 1), 1, 1));
}

/// The shortest way to two holders takes two renewals.
#[test]
#[ignore = "takes a minute: tests/chaos.sh runs it"]
fn a_renewal_that_counts_unacknowledged_is_caught() {
    let protocol = Protocol {
        threads: vec![0, PROMPT],
        ..two(1, 0, 2, 0)
    };
    caught(
        failing_over(protocol, 1, 1),
        Mutation::CountsUnacknowledgedRenewals,
        EXCLUSION,
    );
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
    a_hold_that_counts_from_its_wait_is_caught: failing_over(one(1, 0), 1, 1), CountsFromTheWait, EXCLUSION;
    a_key_that_too_few_replicas_have_and_that_stays_is_caught: short_of_its_replica(one(1, 0)), KeepsAKeyTooFewHave, NO_KEY_LEFT;
    a_fence_that_is_raised_on_reentry_is_caught: fenced(two(1, 0, 0, 0), 0, 0), RaisesOnReentry, FENCED;
    a_claim_that_is_repeated_after_a_lost_answer_is_caught: fenced(one(1, 2), 0, 0), TrustsARepeatedClaim, FENCED;
    a_counter_that_is_raised_in_the_pipeline_is_caught: fenced(two(1, 0, 0, 0), 0, 0), RaisesInThePipeline, FENCED;
    a_fence_without_the_clock_is_caught: fenced(two(1, 0, 0, 0), 1, 0), CountsWithoutTheClock, FENCED;
    a_fence_of_the_clock_alone_is_caught: fenced(two(1, 0, 0, 0), 0, 1), TrustsTheClockAlone, FENCED;
    a_sender_that_believes_on_is_caught: handing_over(one(1, 0)), BelievesBehindTheParcel, EXCLUSION;
    a_token_that_is_handed_on_is_caught: handing_over(two(2, 0, 0, 0)), HandsItsTokenOn, EXCLUSION;
    a_token_that_is_handed_on_is_caught_by_its_adopters: handing_over(two(2, 0, 0, 0)), HandsItsTokenOn, ADOPTED_ONCE;
    an_adoption_without_comparing_is_caught: handing_over(two(2, 0, 0, 0)), AdoptsWhateverIsThere, EXCLUSION;
    a_repeated_adoption_that_extends_nothing_is_caught: handing_over(one(2, 1)), LeavesTheLeaseOfARepeat, EXCLUSION;
    an_adoption_without_orphans_is_caught: handing_over(one(2, 1)), KeepsNoOrphans, NO_KEY_LEFT;
    an_adoption_that_wakes_no_waiter_is_caught: handing_over(asleep(a_pair(1, 0, 0), 0)), AdoptsQuietly, WOKEN;
    an_adopted_hold_that_is_released_quietly_is_caught: handing_over(asleep(a_pair(1, 0, 0), 0)), ReleasesAnAdoptedHoldQuietly, WOKEN;
    a_wait_queue_that_passes_by_a_release_is_caught: asleep(a_pair(1, 0, 0), 0), PassesByARelease, WOKEN;
}
