//! What a lock costs, side by side with the floor of the same run: `cargo bench`.
//!
//! The floor is one open connection that sends `SET key token NX PX` and the compare-and-delete by
//! `EVALSHA`, and waits for each answer. No lock of this kind can do less. The speed of a machine
//! varies by a factor of three from minute to minute. So floor and subject alternate in short
//! rounds, and the medians are compared.

mod support;

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use criterion::Criterion;
use relatch::LockManager;
use relatch_rig::Server;

use support::{Floor, Rounds, contend, pin_apart};

/// How many locks and unlocks, or floor cycles, a round has.
const CYCLES: u32 = 400;
const ROUNDS: usize = 41;

fn main() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("a Redis of our own");
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    one_by_one(&mut criterion, &server, &locks);
    criterion.final_summary();
    keys_of_their_own(&server);
    println!("\nMedians of {ROUNDS} interleaved rounds of {CYCLES} cycles:");
    side_by_side("placed by the scheduler", &server, &locks);
    if pin_apart(&server) {
        // The threads of the old manager keep their cores, so this needs a new manager with new
        // threads.
        let locks = LockManager::connect(&server.url()).expect("a Redis of our own");
        side_by_side("client and server on their own cores", &server, &locks);
    }
}

/// Each operation by itself, in absolute times.
fn one_by_one(criterion: &mut Criterion, server: &Server, locks: &LockManager) {
    let mut floor = Floor::new(server);
    criterion.bench_function("floor: SET + EVALSHA", |b| {
        b.iter(|| floor.cycle("lock:floor"));
    });
    criterion.bench_function("lock + unlock", |b| {
        b.iter(|| drop(locks.lock("one").expect("locks")));
    });
    let _outer = locks.lock("held").expect("locks");
    criterion.bench_function("reentrant lock + unlock, by manager", |b| {
        b.iter(|| drop(black_box(locks.lock("held").expect("held"))));
    });
    let held = locks.named("held");
    criterion.bench_function("reentrant lock + unlock, by Lock", |b| {
        b.iter(|| drop(black_box(held.lock().expect("held"))));
    });
    let guard = locks.lock("held").expect("held");
    criterion.bench_function("is_valid", |b| b.iter(|| black_box(guard.is_valid())));
}

/// Measures each subject alternately with the floor, and prints the ratio. Each subject has its own
/// rounds: a subject that spreads threads over the cores changes the conditions of the next round.
fn side_by_side(title: &str, server: &Server, locks: &LockManager) {
    let mut floor = Floor::new(server);
    let mut floor_cycles = || (0..CYCLES).for_each(|_| floor.cycle("lock:floor"));
    let mut rounds = Rounds::new(&["floor", "lock + unlock"]);
    for _ in 0..ROUNDS {
        rounds.time(0, CYCLES, &mut floor_cycles);
        rounds.time(1, CYCLES, || {
            (0..CYCLES).for_each(|_| drop(locks.lock("one").expect("locks")));
        });
    }
    rounds.print(title);

    let mut rounds = Rounds::new(&["floor", "8 threads, one key"]);
    let mut longest = Duration::ZERO;
    for _ in 0..ROUNDS {
        rounds.time(0, CYCLES, &mut floor_cycles);
        rounds.time(1, CYCLES, || {
            longest = longest.max(contend(locks, "eight", 8, CYCLES / 8));
        });
    }
    rounds.print("");
    println!("longest wait of 8 threads on one key: {longest:.1?}");
}

/// Many threads with a key each, so that none waits for a lock: compares pools of several sizes
/// with one connection per thread.
fn keys_of_their_own(server: &Server) {
    const SIZES: [u32; 3] = [8, 32, 64];
    const THREADS: u32 = 64;
    const TURNS: u32 = 25;

    let mut floors: Vec<_> = (0..THREADS)
        .map(|n| (Floor::new(server), format!("lock:floor-{n}")))
        .collect();
    let pools = SIZES.map(|size| {
        LockManager::builder(&server.url())
            .pool_size(size)
            .build()
            .expect("a Redis of our own")
    });
    let names = SIZES.map(|size| format!("a pool of {size}"));
    let mut rounds = Rounds::new(
        &[
            &["a connection each"][..],
            &names.each_ref().map(String::as_str),
        ]
        .concat(),
    );
    for _ in 0..ROUNDS {
        rounds.time(0, THREADS * TURNS, || {
            thread::scope(|scope| {
                for (floor, key) in &mut floors {
                    scope.spawn(|| (0..TURNS).for_each(|_| floor.cycle(key)));
                }
            });
        });
        for (n, locks) in pools.iter().enumerate() {
            rounds.time(n + 1, THREADS * TURNS, || {
                thread::scope(|scope| {
                    for thread in 0..THREADS {
                        let lock = locks.named(format!("own-{thread}"));
                        scope.spawn(move || {
                            (0..TURNS).for_each(|_| drop(lock.lock().expect("locks")));
                        });
                    }
                });
            });
        }
    }
    rounds.print(&format!("{THREADS} threads with keys of their own"));
}
