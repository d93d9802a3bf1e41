//! The whole crate, simulated: several processes through the public API, in virtual time.
//!
//! The unit tests of the crate include this folder. It uses what programs use, and the doors: the
//! scheduler of threads and time in `src/base/sync/scheduler`. A seed decides everything: what the
//! programs do, what goes wrong, and in which order threads run.
//! `RELATCH_SEED=n cargo test --lib simulation::locks` replays the scene of a seed, makes it smaller
//! if it fails, and prints what happened in it.
//!
//! - `plan`: a scene as data, drawn from a seed.
//! - `scene`: plays it.
//! - `world`: the servers, and what goes wrong.
//! - `redis`: a Redis as a state machine, compared with a real one.
//! - `judge`: what must hold, and what may be excused.
//! - `rows`: scenes of their own, for promises whose point is a time or an order.
//! - `many`: scenes of slots, readers and writers, with a judge of their own.

mod judge;
mod many;
mod plan;
mod redis;
mod rows;
mod scene;
mod world;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::env;
use std::ops::{AddAssign, Range};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::clock::Moment;
use crate::base::sync::scheduler::{self, Ended};
use crate::simulation::judge::Shared;
use crate::simulation::judge::excuses::{Excuse, TABLE};
use crate::simulation::plan::Plan;
use crate::simulation::scene::shrinking;

/// A scene allocates thousands of times.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

impl crate::LockGuard {
    /// The lease with which the lock was taken.
    fn first_lease(&self) -> Duration {
        self.hold().first_lease.time()
    }
}

impl crate::LockWatch {
    /// Whether the hold is valid, without recording that the lease has run out.
    fn seems_valid(&self) -> bool {
        Moment::now() < self.hold.valid_until()
    }
}

/// What many scenes came to.
#[derive(Debug, Default)]
struct Sum {
    locks: u64,
    steps: u64,
    inside: Duration,
    /// Of each scene: its seed, and a hash of what happened.
    hashes: Vec<(u64, u64)>,
    /// The first scene that needs each excuse.
    needed: BTreeMap<Excuse, u64>,
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.locks += other.locks;
        self.steps += other.steps;
        self.inside += other.inside;
        self.hashes.extend(other.hashes);
        for (excuse, seed) in other.needed {
            let first = self.needed.entry(excuse).or_insert(seed);
            *first = seed.min(*first);
        }
    }
}

/// How many scenes a thread plays before it looks whether another one has failed.
const PART: u64 = 50;

/// Plays the scenes of these seeds, on all cores. Panics if one fails.
fn scenes(seeds: Range<u64>, off: Option<Excuse>) -> Sum {
    let (began, next, end) = (Instant::now(), AtomicU64::new(seeds.start), seeds.end);
    let failed = AtomicU64::new(u64::MAX);
    let play = || {
        let mut sum = Sum::default();
        loop {
            let first = next.fetch_add(PART, Ordering::Relaxed);
            if first >= end || failed.load(Ordering::Relaxed) != u64::MAX {
                return sum;
            }
            let (more, fails) = part(first..end.min(first + PART), off);
            sum += more;
            failed.fetch_min(fails.unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    };
    let mut sum = Sum::default();
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(play)).collect();
        for thread in threads {
            sum += thread.join().expect("a thread of scenes");
        }
    });
    println!(
        "{} scenes, {} locks, {} steps, {:.0?} inside, in {:.1?}, which need {:?}",
        sum.hashes.len(),
        sum.locks,
        sum.steps,
        sum.inside,
        began.elapsed(),
        sum.needed
    );
    let failed = failed.into_inner();
    if failed != u64::MAX {
        shrinking::show(failed, off);
        panic!("the scene of RELATCH_SEED={failed} fails, see above");
    }
    sum
}

/// Plays the scenes of these seeds on this thread, without an excuse, up to the first one that
/// fails.
fn part(seeds: Range<u64>, off: Option<Excuse>) -> (Sum, Option<u64>) {
    let sum: Arc<Shared<Sum>> = Arc::default();
    let first = Rc::new(Cell::new(None));
    let (adds, played, fails) = (Arc::clone(&sum), Arc::clone(&sum), Rc::clone(&first));
    let ended = move |ended: Ended| {
        adds.with(|sum| {
            sum.hashes.push((ended.seed, ended.hash));
            sum.steps += ended.steps;
            sum.inside += ended.took;
        });
        if ended.failure.is_some() {
            fails.set(Some(ended.seed));
        }
    };
    let play = move |seed| {
        let it = scene::play(&Arc::new(Plan::of(seed)), off);
        let needed = TABLE
            .iter()
            .map(|row| row.excuse)
            .filter(|excuse| it.needed.has(*excuse));
        played.with(|sum| {
            *sum += Sum {
                locks: it.locks,
                needed: needed.map(|excuse| (excuse, seed)).collect(),
                ..Sum::default()
            };
        });
    };
    scheduler::run(seeds, |seed| Plan::of(seed).order, play, ended);
    (sum.with(std::mem::take), first.get())
}

/// What happens is the seed's, and nobody else's: not that of the scene before it on this thread.
#[test]
fn a_seed_replays_its_scene() {
    let mut hashes = scenes(0..20, None).hashes;
    hashes.sort_unstable();
    let differs = |(seed, hash): &(u64, u64)| part(*seed..*seed + 1, None).0.hashes[0].1 != *hash;
    assert_eq!(
        hashes.into_iter().find(differs),
        None,
        "the first seed whose scene differs"
    );
}

/// A number that the caller has set.
fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn locks_hold_in_hundreds_of_scenes() {
    let off = env::var("RELATCH_WITHOUT").unwrap_or_default();
    let off = TABLE.iter().find(|row| format!("{:?}", row.excuse) == off);
    let off = off.map(|row| row.excuse);
    if let Some(seed) = number("RELATCH_SEED") {
        return shrinking::show(seed, off);
    }
    let first = number("RELATCH_FIRST").unwrap_or(0);
    let count = number("RELATCH_SCENES").unwrap_or(100);
    let _ = scenes(first..first + count, off);
}
