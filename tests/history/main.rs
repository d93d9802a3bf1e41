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

use std::fs;
use std::path::Path;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use relatch_rig::eventually;

use crate::faults::{Scene, Weather};
use crate::judge::{Verdict, World, for_porcupine, judge};

/// The delay that a busy machine may cause.
const SLACK: Duration = Duration::from_secs(2);

/// A worker process begins here. In an ordinary run of the tests there is no role, and this does
/// nothing.
#[test]
fn worker_entry() {
    if let Some(role) = relatch_rig::role::name() {
        assert_eq!(role, "worker");
        roles::worker();
    }
}

/// Runs one round of faults. Returns what came of it, and how many faults there were.
/// Panics at a violation.
fn round(weather: Weather, seed: u64) -> (Verdict, u64) {
    let mut scene = Scene::new(weather, StdRng::seed_from_u64(seed));
    scene.rage(weather.round());
    scene.end();
    let lease = weather.lease();
    let free = 2 * (lease + 5 * SLACK);
    eventually(free, "no key is left that nobody holds", || {
        scene.servers.keys().is_empty()
    });
    scene.leave();
    let reported_within = weather
        .deletes_held_locks()
        .then(|| lease / 3 + Duration::from_millis(50) + SLACK);
    let world = World {
        deaths: scene.deaths.clone(),
        reported_within,
        moved_within: scene.moved_within,
    };
    let claims = record::read(scene.records.path());
    if let Ok(folder) = std::env::var("RELATCH_HISTORIES") {
        let path = Path::new(&folder).join(format!("{weather:?}.{seed}.jsonl"));
        fs::write(path, for_porcupine(&claims, &world)).expect("a file that can be written to");
    }
    let verdict = judge(&claims, &scene.servers.journal(), &world);
    let count = verdict.violations.len();
    let first = verdict.violations[..count.min(5)].join("\n");
    assert!(
        count == 0,
        "{weather:?}, RELATCH_SEED={seed}: {count} violations, the first of which are\n{first}"
    );
    (verdict, scene.faults())
}
