//! Tasks of an async program take a lock, in `spawn_blocking`.
//!
//! Run it: `bash examples/run.sh tokio`
//! Copy it: `cargo add relatch --path ../relatch && cargo add tokio --features
//! macros,rt-multi-thread,time`

use std::error::Error;
use std::time::{Duration, Instant};

use relatch::{Builder, LockManager};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome {
    // This connects, and so it blocks: fine here, where nothing else runs yet.
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    let start = Instant::now();
    let mut orders = JoinSet::new();
    for order in 1..=6 {
        orders.spawn(ship(locks.clone(), order, start));
    }
    while let Some(shipped) = orders.join_next().await {
        shipped??;
    }
    println!(
        "six orders, one after the other, in {:.1?}",
        start.elapsed()
    );
    Ok(())
}

/// Takes the lock, does the work, and gives the lock back in one closure, and so in one thread. A
/// guard in an async function would let other futures of its thread into the same lock.
async fn ship(locks: LockManager, order: u32, start: Instant) -> Outcome {
    let price = look_up(order).await;
    spawn_blocking(move || {
        locks
            .named("till")
            .wait(Duration::from_secs(30))
            .with_lock(|| {
                // Async work under the lock: this thread waits for it.
                Handle::current().block_on(charge(order, price));
                println!(
                    "{:>4} ms  order {order} is paid",
                    start.elapsed().as_millis()
                );
            })
    })
    .await??;
    Ok(())
}

async fn look_up(order: u32) -> u32 {
    sleep(Duration::from_millis(50)).await;
    10 * order
}

async fn charge(_order: u32, _price: u32) {
    sleep(Duration::from_millis(100)).await;
}
