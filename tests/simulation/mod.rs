//! The whole crate, simulated: several processes through the public API, in virtual time.
//!
//! The unit tests of the crate include this folder. It uses what programs use, and the doors: the
//! scheduler of threads and time in `src/base/sync/scheduler`. A seed decides everything: what the programs do, what goes wrong,
//! and in which order threads run. `RELATCH_SEED=n cargo test --lib simulation` replays the scene
//! of a seed, makes it smaller if it fails, and prints what happened in it.
//!
//! - `scene`: what the programs of a seed do, and its smaller forms.
//! - `world`: the servers, and what goes wrong.
//! - `redis`: a Redis as a state machine, compared with a real one.
//! - `judge`: what must hold, and what may be excused.
//! - `rows`: scenes of their own, for promises whose point is a time or an order.
//! - `many`: scenes of slots, readers and writers, with a judge of their own.

mod judge;
mod many;
mod redis;
mod rows;
mod scene;
mod world;

use std::cell::RefCell;
use std::env;
use std::ops::{AddAssign, Range};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::clock::Moment;
use crate::base::sync::scheduler::{self, Ended};
use crate::simulation::scene::plan::Plan;
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
    scenes: u64,
    locks: u64,
    steps: u64,
    inside: Duration,
    /// Of each scene: its seed, and a hash of what happened.
    hashes: Vec<(u64, u64)>,
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.scenes += other.scenes;
        self.locks += other.locks;
        self.steps += other.steps;
        self.inside += other.inside;
        self.hashes.extend(other.hashes);
    }
}

/// How many scenes a thread plays before it looks whether another one has failed.
const PART: u64 = 50;

/// Plays the scenes of these seeds, on all cores. Panics if one fails.
fn scenes(seeds: Range<u64>) -> Sum {
    let (began, next, end) = (Instant::now(), AtomicU64::new(seeds.start), seeds.end);
    let failed = AtomicU64::new(u64::MAX);
    let play = || {
        let mut sum = Sum::default();
        loop {
            let first = next.fetch_add(PART, Ordering::Relaxed);
            if first >= end || failed.load(Ordering::Relaxed) != u64::MAX {
                return sum;
            }
            sum += part(first..end.min(first + PART), &failed);
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
    let Sum {
        scenes,
        locks,
        steps,
        inside,
        ..
    } = &sum;
    println!(
        "{scenes} scenes, {locks} locks, {steps} steps, {inside:.0?} inside, in {:.1?}",
        began.elapsed()
    );
    let failed = failed.into_inner();
    if failed != u64::MAX {
        shrinking::show(Plan::of(failed), failed);
        panic!("the scene of RELATCH_SEED={failed} fails, see above");
    }
    sum
}

/// Plays the scenes of these seeds on this thread, up to the first one that fails.
fn part(seeds: Range<u64>, failed: &AtomicU64) -> Sum {
    let (sum, first) = (
        Rc::new(RefCell::new(Sum::default())),
        Rc::new(RefCell::new(None)),
    );
    let (adds, fails) = (Rc::clone(&sum), Rc::clone(&first));
    let ended = move |ended: Ended| {
        let Ended {
            seed,
            failure,
            hash,
            steps,
            took,
            ..
        } = ended;
        let hashes = vec![(seed, hash)];
        *adds.borrow_mut() += Sum {
            scenes: 1,
            locks: judge::locks_taken(),
            steps,
            inside: took,
            hashes,
        };
        if failure.is_some() {
            *fails.borrow_mut() = Some(seed);
        }
    };
    scheduler::run(
        seeds,
        |seed| Plan::of(seed).order,
        |seed| scene::play(&Arc::new(Plan::of(seed))),
        ended,
    );
    if let Some(seed) = first.take() {
        failed.fetch_min(seed, Ordering::Relaxed);
    }
    sum.take()
}

/// What happens is the seed's, and nobody else's: not that of the scene before it on this thread.
#[test]
fn a_seed_replays_its_scene() {
    let mut hashes = scenes(0..20).hashes;
    hashes.sort_unstable();
    let differs = |(seed, hash): &(u64, u64)| scenes(*seed..*seed + 1).hashes[0].1 != *hash;
    assert_eq!(
        hashes.into_iter().find(differs),
        None,
        "the first seed whose scene differs"
    );
}

#[test]
fn locks_hold_in_hundreds_of_scenes() {
    let number = |name: &str| env::var(name).ok().and_then(|number| number.parse().ok());
    if let Some(seed) = number("RELATCH_SEED") {
        shrinking::show(Plan::of(seed), seed);
        return;
    }
    let first = number("RELATCH_FIRST").unwrap_or(0);
    let _ = scenes(first..first + number("RELATCH_SCENES").unwrap_or(100));
}
