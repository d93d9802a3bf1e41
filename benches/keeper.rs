//! What keeping a lock costs: renewing ten thousand of them, beside the same scripts pipelined by hand, and the
//! memory that they take.
//!
//! Takes about half a minute, most of it waiting for renewals to fall due.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use relatch::LockManager;

use support::{Server, median, resident_bytes};

const HOLDS: u64 = 10_000;

/// As many as the keeper puts into a round trip.
const BATCH: u64 = 1000;

const EVERY: Duration = Duration::from_secs(8);

fn main() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .lease(3 * EVERY)
        .renew_every(EVERY)
        .build()
        .expect("a Redis of our own");
    drop(locks.lock("warm-up").expect("locks"));
    let before = resident_bytes();
    let guards: Vec<_> = (0..HOLDS).map(|n| locks.lock(format!("held:{n}")).expect("locks")).collect();
    if let Some((before, after)) = before.zip(resident_bytes()) {
        println!("memory per held lock: {} bytes (resident, guard included)", (after - before) / HOLDS);
    }

    let mut by_hand = Vec::new();
    let mut by_keeper = Vec::new();
    for round in 1..=3 {
        by_keeper.push(renewed_by_keeper(&locks, round).as_secs_f64());
        by_hand.push(renewed_by_hand(&server, &guards).as_secs_f64());
    }
    drop(guards);
    let (floor, keeper) = (median(by_hand), median(by_keeper));
    println!("\nrenewing {HOLDS} holds, median of 3 rounds");
    println!("{:<36}{:>12.1} ms", "floor: the same scripts by hand", floor * 1e3);
    println!("{:<36}{:>12.1} ms, {:.2} x floor", "keeper", keeper * 1e3, keeper / floor);
}

/// From the end of the first batch to the end of the last, for all of them.
fn renewed_by_keeper(locks: &LockManager, round: u64) -> Duration {
    let done = |count| {
        while locks.stats().renewed < count {
            thread::sleep(Duration::from_micros(100));
        }
        Instant::now()
    };
    let first = done((round - 1) * HOLDS + BATCH);
    let last = done(round * HOLDS);
    (last - first) * u32::try_from(HOLDS / BATCH).expect("small")
        / u32::try_from(HOLDS / BATCH - 1).expect("small")
}

fn renewed_by_hand(server: &Server, guards: &[relatch::LockGuard]) -> Duration {
    let mut connection = server.client().get_connection().expect("connects");
    let script = include_str!("../src/store/renew.lua");
    let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection).expect("loads");
    let started = Instant::now();
    for batch in guards.chunks(usize::try_from(BATCH).expect("small")) {
        let mut pipe = redis::pipe();
        for guard in batch {
            let key = format!("lock:{}", guard.key());
            pipe.cmd("EVALSHA").arg(&hash).arg(1).arg(key).arg(guard.token()).arg(24_000);
        }
        let renewed: Vec<i64> = pipe.query(&mut connection).expect("renews");
        assert!(renewed.iter().all(|one| *one == 1));
    }
    started.elapsed()
}
