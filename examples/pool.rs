//! One hold for an order whose steps run in different threads, and the last one in another process.
//!
//! Run it with `bash examples/run.sh pool`, or `cargo run --example pool` if redis-server is
//! installed.

use std::error::Error;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use relatch::{Builder, DetachedHold, LockGuard, LockManager, LockParcel};
use relatch_rig::{Process, role};

mod support;

/// An order on its way through the pool. The lock belongs to the order, and to no thread.
struct Order {
    hold: DetachedHold,
    done: usize,
}

type Outcome = Result<Order, relatch::Error>;
type Step = fn(&LockManager, &LockGuard) -> Result<(), relatch::Error>;

const STEPS: [(&str, Step); 2] = [
    // Code that takes the lock by itself re-enters the hold, in whatever thread it runs.
    ("reserve", |locks, _| {
        locks.with_lock("order:42", || say("reserves, and has re-entered the lock"))
    }),
    ("charge", |_, guard| {
        guard.confirm(std::time::Duration::from_secs(5))?;
        say("charges the card");
        Ok(())
    }),
];

fn main() -> Result<(), Box<dyn Error>> {
    match support::role() {
        Some(_) => ship(),
        None => sell(),
    }
}

fn sell() -> Result<(), Box<dyn Error>> {
    let redis = support::Redis::start()?;
    let locks = LockManager::connect(redis.url())?;
    let hold = locks.lock("order:42")?.detach()?;
    let mut order = Order { hold, done: 0 };
    let (results, finished) = channel();
    let pool: Vec<_> = (0..2).map(|n| worker(n, &locks, results.clone())).collect();
    while order.done < STEPS.len() {
        // Each step goes to the next thread of the pool. Between two steps, no thread has the lock,
        // and nobody else can take it.
        let thread = order.done % pool.len();
        pool[thread].send(order)?;
        order = finished.recv()??;
        println!(
            "  between two steps, try_lock gets {:?}",
            locks.try_lock("order:42")?
        );
    }
    // The last step is another program's. It gets the lock through its standard input.
    let parcel = order.hold.attach()?.hand_over()?;
    println!("  the parcel: {parcel:?}");
    let mut command = role::command("shipper", &[]);
    command
        .env_remove("RELATCH_URL")
        .env("REDIS_URL", redis.url())
        .stdout(Stdio::inherit());
    let mut shipper = Process::start(&mut command)?;
    shipper.send(&parcel.to_string())?;
    if !shipper.wait()?.success() {
        return Err("the order was not shipped".into());
    }
    println!("  free again: {:?}", locks.named("order:42").holder()?);
    Ok(())
}

/// A thread of the pool: does the next step of each order that it gets.
fn worker(number: usize, locks: &LockManager, results: Sender<Outcome>) -> Sender<Order> {
    let (orders, received): (_, Receiver<Order>) = channel();
    let locks = locks.clone();
    let run = move || {
        for order in received {
            let done = step(&locks, order);
            if results.send(done).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name(format!("worker {number}"))
        .spawn(run)
        .expect("a thread can be started");
    orders
}

fn step(locks: &LockManager, order: Order) -> Outcome {
    let Order { hold, done } = order;
    let guard = hold.attach()?;
    let (name, work) = STEPS[done];
    println!("{name}:");
    work(locks, &guard)?;
    Ok(Order {
        hold: guard.detach()?,
        done: done + 1,
    })
}

/// The other program.
fn ship() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env().build()?;
    let parcel: LockParcel = role::next_line().ok_or("no parcel came")?.parse()?;
    let guard = locks.adopt(&parcel)?;
    println!(
        "ship:\n  process {} ships the order",
        relatch::Owner::current().pid
    );
    guard.unlock()?;
    Ok(())
}

fn say(what: &str) {
    println!(
        "  {} {what}",
        thread::current().name().unwrap_or("a thread")
    );
}
