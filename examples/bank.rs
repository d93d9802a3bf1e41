//! Several keys at a time, and old code whose functions lock and call each other.
//!
//! Run it: `bash examples/run.sh bank`
//! Copy it: `cargo add relatch --path ../relatch`

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use relatch::{Builder, install, installed, with_lock_result};

type Outcome = Result<(), Box<dyn Error>>;

/// Stands for a database that other processes use, too.
static BALANCES: LazyLock<Mutex<BTreeMap<&str, i64>>> =
    LazyLock::new(|| Mutex::new(BTreeMap::from([("alice", 100), ("bob", 20)])));

fn main() -> Outcome {
    // Nobody has to pass the manager on: the whole process uses this one.
    install(
        Builder::from_env()
            .build()
            .map_err(|error| error.to_string())?,
    )?;
    end_of_month()?;
    println!("one transfer more, of too much:");
    if let Err(error) = transfer("alice", "bob", 500) {
        println!(
            "  {error}; and alice is free: {}",
            installed()?.try_lock("alice")?.is_some()
        );
    }
    Ok(())
}

/// No other process sees the accounts between the two transfers.
fn end_of_month() -> Outcome {
    println!("the end of the month:");
    installed()?
        .several(["alice", "bob"])
        .with_lock_result(|both| {
            transfer("bob", "alice", 5)?;
            // The functions below see the loss of their own locks only.
            both.ensure(Duration::from_secs(5))?;
            transfer("alice", "bob", 30)
        })
}

/// All or none: `several` takes the locks in one order. If it took `from` first, two transfers in
/// opposite directions could wait for each other for ever.
fn transfer(from: &str, to: &str, amount: i64) -> Outcome {
    installed()?.several([from, to]).with_lock_result(|_| {
        change(from, -amount)?;
        change(to, amount)
    })
}

/// Locks what it needs, for every caller. If the caller has the lock, nothing is sent to Redis.
fn change(name: &str, amount: i64) -> Outcome {
    with_lock_result(name, |guard| {
        let mut balances = BALANCES.lock()?;
        let balance = balances.get_mut(name).ok_or("no such account")?;
        if *balance + amount < 0 {
            return Err(format!("{name} has only {balance}").into());
        }
        *balance += amount;
        println!(
            "  {name} {amount:+}: {balance} (guard {} of this thread)",
            guard.depth()
        );
        Ok(())
    })
}
