//! The scenes find the mistakes that many locks have, which shows that they can. (Without a
//! mistake, `locks_hold_in_hundreds_of_scenes` plays the first of these scenes, and `chaos.sh` many
//! more.)

use crate::base::sync::seeded_bugs;
use crate::simulation::judge::excuses::TABLE;
use crate::simulation::plan::{Engine, Fault, LinkFault, Plan};
use crate::simulation::{part, scenes};

/// Plays the scenes of the seeds up to 20,000 that are suitable.
fn is_found(flaw: &'static str, suits: fn(&Plan) -> bool) {
    seeded_bugs::choose(flaw);
    let mut seeds = (0..20_000).filter(|seed| suits(&Plan::of(*seed)));
    let found = seeds.find(|seed| part(*seed..seed + 1, None).1.is_some());
    let found = found.unwrap_or_else(|| panic!("{flaw}: not found"));
    println!(
        "{flaw}: found by the scene of RELATCH_SEED={found}, {:?}",
        Plan::of(found).engine
    );
}

#[test]
fn a_lock_without_a_nonce_is_found_out() {
    is_found("no nonce", |_| true);
}

#[test]
fn a_release_that_does_not_compare_is_found_out() {
    is_found("deletes without comparing", |_| true);
}

#[test]
fn a_lock_that_waits_for_no_replica_is_found_out() {
    is_found(
        "waits for no replica",
        |plan| matches!(plan.engine, Engine::Sentinel(it) | Engine::Cluster(it) if it.are_safe()),
    );
}

#[test]
fn a_lock_that_a_cluster_has_elsewhere_is_found_out() {
    is_found("takes a redirect for success", |plan| {
        matches!(plan.engine, Engine::Cluster(_))
    });
}

#[test]
fn a_flag_instead_of_the_clock_is_found_out() {
    is_found("trusts a flag", |_| true);
}

#[test]
fn a_lease_that_counts_from_the_answer_is_found_out() {
    // An answer is late, and nobody renews the lease.
    is_found("counts from the answer", |plan| {
        let is_slow = |it: &(u64, Fault)| {
            let is_late = |it| matches!(it, LinkFault::Slow(..) | LinkFault::Silence([_, true]));
            matches!(it.1, Fault::Link(_, it, _) if is_late(it))
        };
        plan.faults.iter().any(is_slow)
            && plan
                .processes
                .iter()
                .any(|it| !it.renews && it.lease < 10_000)
    });
}

/// Without its excuse, a scene of each row fails: that of its seed or, since any change of the code
/// changes what a seed leads to, a later one that the summary names. Tens of thousands of scenes are
/// for the night.
#[test]
#[ignore = "tests/chaos.sh plays it"]
fn each_excuse_is_needed_by_a_scene() {
    let needed = scenes(0..60_000, None).needed;
    for row in TABLE {
        let seed = needed.get(&row.excuse);
        let seed =
            seed.unwrap_or_else(|| panic!("no scene needs {:?}, as {} did", row.excuse, row.seed));
        let fails = part(*seed..seed + 1, Some(row.excuse)).1.is_some();
        assert!(fails, "RELATCH_SEED={seed}: {}", row.forgives);
    }
}
