//! What keeping locks costs: the time to renew ten thousand locks, beside the same scripts
//! pipelined by hand, and the memory of a held lock.
//!
//! Takes about half a minute, most of it waiting for renewals to fall due.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use relatch::LockManager;
use relatch_rig::Server;

use support::{median, resident_bytes};

const HOLDS: u64 = 10_000;

/// How many renewals the keeper puts into a round trip.
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
    let guards: Vec<_> = (0..HOLDS)
        .map(|n| locks.lock(format!("held:{n}")).expect("locks"))
        .collect();
    // The renewals by hand have other keys: if they changed the keys of the manager's holds, Redis
    // would send it invalidations.
    let mut connection = server.connect();
    for n in 0..HOLDS {
        let set = redis::cmd("SET")
            .arg(format!("by hand:{n}"))
            .arg(token(n))
            .query(&mut connection);
        assert_eq!(set, Ok(redis::Value::Okay));
    }
    while locks.stats().renewed < HOLDS {
        thread::sleep(EVERY / 8);
    }
    if let Some((before, after)) = before.zip(resident_bytes()) {
        println!(
            "memory per held lock: {} bytes (resident, guard included)",
            (after - before) / HOLDS
        );
    }

    let mut by_hand = Vec::new();
    let mut by_keeper = Vec::new();
    for _ in 1..=3 {
        by_keeper.push(renewed_by_keeper(&locks, &mut connection).as_secs_f64());
        by_hand.push(renewed_by_hand(&mut connection).as_secs_f64());
    }
    drop(guards);
    let (floor, keeper) = (median(by_hand), median(by_keeper));
    println!("\nrenewing {HOLDS} holds, median of 3 rounds");
    println!(
        "{:<36}{:>12.1} ms",
        "floor: the same scripts by hand",
        floor * 1e3
    );
    println!(
        "{:<36}{:>12.1} ms, {:.2} x floor",
        "keeper",
        keeper * 1e3,
        keeper / floor
    );
}

/// The time to renew all holds. To make them due together, this kills the listener's connection:
/// when the listener is back, the keeper renews all holds, since the listener may have missed an
/// invalidation. Measures from the end of the first batch to the end of the last, and scales that
/// time up to all batches.
fn renewed_by_keeper(locks: &LockManager, connection: &mut redis::Connection) -> Duration {
    let renewed = || locks.stats().renewed;
    let done = |count| {
        while renewed() < count {
            thread::sleep(Duration::from_micros(100));
        }
        Instant::now()
    };
    let before = renewed();
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "PUBSUB"])
        .exec(connection)
        .expect("kills");
    let first = done(before + BATCH);
    let last = done(before + HOLDS);
    (last - first) * u32::try_from(HOLDS / BATCH).expect("small")
        / u32::try_from(HOLDS / BATCH - 1).expect("small")
}

fn token(n: u64) -> String {
    format!("host-1-2-{n:032x}")
}

fn renewed_by_hand(connection: &mut redis::Connection) -> Duration {
    let script = include_str!("../src/client/commands/lua/renew.lua");
    let hash: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script)
        .query(connection)
        .expect("loads");
    // The keys get a lease here, so that each renewal sets a longer lease, as the keeper's renewals
    // do.
    for n in 0..HOLDS {
        redis::cmd("PEXPIRE")
            .arg(format!("by hand:{n}"))
            .arg(60_000)
            .exec(connection)
            .expect("expires");
    }
    let started = Instant::now();
    for batch in 0..HOLDS / BATCH {
        let mut pipe = redis::pipe();
        for n in batch * BATCH..(batch + 1) * BATCH {
            pipe.cmd("EVALSHA")
                .arg(&hash)
                .arg(1)
                .arg(format!("by hand:{n}"))
                .arg(token(n))
                .arg(120_000);
        }
        let renewed: Vec<i64> = pipe.query(connection).expect("renews");
        assert!(renewed.iter().all(|one| *one == 1));
    }
    started.elapsed()
}
