//! Many processes take a few locks while faults happen at random. A checker compares what the
//! processes claim with what the server did.
//!
//! Each test in `weathers` runs one kind of weather for a second (failovers: five), and prints its
//! seed. `RELATCH_SEED=<seed>` repeats the same faults and the same choices of the workers, but not
//! at the same moments. `RELATCH_ACQUISITIONS=<number>` runs more rounds, with the seeds that
//! follow, until that many locks were taken. `RELATCH_HISTORIES=<folder>` writes who trusted a lock
//! when, for Porcupine, as `benches/peers` does.

mod faults;
mod judge;
mod judge_works;
mod record;
mod roles;
mod servers;
mod weathers;
mod witness;

use std::fs;
use std::path::Path;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use relatch_rig::eventually;

use crate::faults::{Scene, Weather};
use crate::judge::{Verdict, World, for_porcupine, judge};
use crate::roles::ANSWER;
use crate::witness::Witness;

/// The delay that a busy machine may cause.
const SLACK: Duration = Duration::from_millis(500);

/// A worker process begins here. In an ordinary run of the tests there is no role, and this does
/// nothing.
#[test]
fn worker_entry() {
    if let Some(role) = relatch_rig::role::name() {
        roles::run_role(&role);
    }
}

/// What came of a round.
struct Round {
    verdict: Verdict,
    faults: u64,
    /// The sentinels have replaced a master that was well: less than usual is proven.
    is_uncalled: bool,
}

/// Runs one round, in which faults happen for `span`.
/// Panics at a violation, while the servers are there: sentinels then tell what they have logged.
fn round(weather: Weather, span: Duration, over_tls: bool, seed: u64) -> Round {
    let witness = Witness::start();
    let mut scene = Scene::new(weather, over_tls, StdRng::seed_from_u64(seed));
    scene.rage(span);
    scene.end();
    let lease = weather.lease();
    eventually(
        2 * lease + 2 * SLACK,
        "no key is left that nobody holds",
        || scene.servers.keys().is_empty(),
    );
    scene.leave();
    let is_uncalled = scene.was_replaced_uncalled();
    if is_uncalled {
        println!("{weather:?}: the sentinels have replaced a master that was well");
    }
    let reported_within = (weather.deletes_held_locks() || is_uncalled)
        .then(|| lease / 3 + Duration::from_millis(50) + SLACK);
    let restarts = weather == Weather::Restarts || is_uncalled;
    let (stops, deaths) = (scene.stops.clone(), scene.deaths.clone());
    let moved_within = scene.moved_within;
    let stalls = witness.stalls();
    let world = World {
        stops,
        stalls,
        deaths,
        reported_within,
        restarts,
        moved_within,
        release: ANSWER,
    };
    let claims = record::read(scene.records.path());
    if let Ok(folder) = std::env::var("RELATCH_HISTORIES") {
        let path = Path::new(&folder).join(format!("{weather:?}.{seed}.jsonl"));
        fs::write(path, for_porcupine(&claims, &world)).expect("a file that can be written to");
    }
    let verdict = judge(&claims, &scene.servers.journal(), &world);
    let (count, first) = (verdict.violations.len(), verdict.violations.iter().take(5));
    let first = first.map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(
        count == 0,
        "{weather:?}, RELATCH_SEED={seed}: {count} violations, the first of which are\n{first}"
    );
    Round {
        verdict,
        faults: scene.faults(),
        is_uncalled,
    }
}
