//! Functions call each other under locks, and each takes all the locks that it needs.
//!
//! Run it with `bash examples/run.sh nested`, or `cargo run --example nested` if redis-server is
//! installed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use relatch::{LockGuard, LockManager};

mod support;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = support::Redis::start()?;
    let balances = RefCell::new(BTreeMap::from([("alice", 100), ("bob", 20)]));
    let bank = Bank {
        locks: LockManager::connect(redis.url())?,
        balances,
    };
    println!("A transfer locks both accounts; withdraw and deposit lock theirs again:");
    bank.transfer("bob", "alice", 5)?;
    println!("\nThe end of the month locks every account, and calls transfer:");
    println!("  {} in all", bank.end_of_month()?);
    println!("\nThe body's own error comes out as it is, and both locks are free again:");
    if let Err(error) = bank.transfer("alice", "bob", 500) {
        println!("  alice has {error}");
    }
    println!(
        "  held by {:?} and {:?}",
        bank.locks.named("alice").holder()?,
        bank.locks.named("bob").holder()?
    );
    Ok(())
}

/// `with_lock_result` needs an error type with `From<relatch::Error>`. So one type serves for the
/// errors of the body and of the lock.
#[derive(Debug, thiserror::Error)]
enum BankError {
    #[error(transparent)]
    Lock(#[from] relatch::Error),
    #[error("{missing} too little")]
    TooLittle { missing: i64 },
}

struct Bank {
    locks: LockManager,
    balances: RefCell<BTreeMap<&'static str, i64>>, // Stands for a database that others use, too.
}

impl Bank {
    /// Locks in the order of the names, whichever way the money goes. Otherwise two transfers could
    /// wait for each other for ever.
    fn transfer(&self, from: &str, to: &str, amount: i64) -> Result<(), BankError> {
        let both = |_: &LockGuard| {
            self.change("  withdraw", from, -amount)?;
            self.change("  deposit", to, amount)
        };
        self.locks.with_lock_result(from.min(to), |_| {
            self.locks.with_lock_result(from.max(to), both)
        })
    }

    fn change(&self, what: &str, name: &str, amount: i64) -> Result<(), BankError> {
        let _guard = self.lock(what, name)?;
        let mut balances = self.balances.borrow_mut();
        let Some(balance) = balances.get_mut(name) else {
            return Ok(());
        };
        if *balance + amount < 0 {
            return Err(BankError::TooLittle {
                missing: -(*balance + amount),
            });
        }
        *balance += amount;
        Ok(())
    }

    fn end_of_month(&self) -> Result<i64, BankError> {
        let _alice = self.lock("month", "alice")?;
        let _bob = self.lock("month", "bob")?;
        self.transfer("alice", "bob", 30)?;
        Ok(self.balances.borrow().values().sum())
    }

    fn lock(&self, what: &str, name: &str) -> Result<LockGuard, relatch::Error> {
        let start = Instant::now();
        let guard = self.locks.lock(name)?;
        let (took, depth, token) = (start.elapsed(), guard.depth(), guard.token());
        let end = &token[token.len() - 8..];
        println!("  {what:<10} {name:<5}  depth {depth}  token ..{end}  took {took:.1?}");
        Ok(guard)
    }
}
