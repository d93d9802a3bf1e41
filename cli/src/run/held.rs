//! The locks of a run.

use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use relatch::{Error, LockGuard, LockManager, MultiLock, MultiLockGuard, StopHandle};

use crate::args::Common;
use crate::connect;
use crate::exit::Failure;
use crate::run::life::{At, Event};
use crate::run::line::now;
use crate::run::report::Report;
use crate::run::wanted::Wanted;
use crate::span;

/// The manager of a run, and how a lock was lost, once one was.
pub(crate) struct Manager {
    pub(crate) locks: LockManager,
    cause: Arc<OnceLock<String>>,
}

/// Makes the manager. A loss becomes an event. Sends nothing yet: the wait for the lock also
/// bridges a short outage.
pub(crate) fn manager(common: &Common, events: &Sender<Event>) -> Result<Manager, Failure> {
    let cause = Arc::new(OnceLock::new());
    let told = Arc::clone(&cause);
    let events = events.clone();
    let builder = connect::builder(common)?.on_lost(move |lost| {
        let _ = told.set(lost.cause.to_string()); // The first one counts.
        let _ = events.send(Event::Lost);
    });
    let locks = builder.build_lazily()?;
    Ok(Manager { locks, cause })
}

pub(crate) struct Held {
    manager: Manager,
    all: MultiLockGuard,
    /// One more guard of each, for its token.
    each: Vec<LockGuard>,
    since: Duration,
}

/// Takes the locks: all, or none.
pub(crate) fn take(
    manager: Manager,
    keys: &[&str],
    wanted: &Wanted,
    verbose: bool,
    stop: &StopHandle,
    report: &mut Report,
) -> Result<Held, Error> {
    let locks = &manager.locks;
    let several = locks.several(keys).options(|lock| {
        lock.lease(wanted.plan.lease)
            .fenced(wanted.fenced)
            .keep_at_least(wanted.at_least)
            .stopped_by(stop)
    });
    let began = now();
    let taken = enter(locks, several, keys, wanted, verbose);
    report.waited = now().saturating_sub(began);
    let all = taken?;
    if verbose {
        let waited = span::show(report.waited);
        eprintln!("relatch: getting lock took {waited}");
    }
    let each = keys
        .iter()
        .filter_map(|key| locks.named(key).current())
        .collect();
    Ok(Held {
        manager,
        all,
        each,
        since: now(),
    })
}

fn enter(
    locks: &LockManager,
    several: MultiLock,
    keys: &[&str],
    wanted: &Wanted,
    verbose: bool,
) -> Result<MultiLockGuard, Error> {
    if verbose && wanted.wait != Some(Duration::ZERO) {
        if let Some(taken) = several.try_lock()? {
            return Ok(taken);
        }
        for key in keys {
            if let Some(holder) = locks.named(key).holder()? {
                eprintln!("relatch: waiting for lock {key:?}: {holder} has it");
            }
        }
    }
    several.options(|lock| lock.wait(wanted.wait)).lock()
}

impl Held {
    /// How long the locks are held, and how long they are good.
    pub(crate) fn at(&self) -> At {
        At {
            held_for: now().saturating_sub(self.since),
            left: self.all.remaining(),
        }
    }

    /// The locks that this run took, each with its token.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.each.iter().map(|guard| (guard.key(), guard.token()))
    }

    pub(crate) fn token(&self, key: &str) -> Option<&str> {
        self.tokens()
            .find(|(of, _)| *of == key)
            .map(|(_, token)| token)
    }

    pub(crate) fn fence(&self, key: &str) -> Option<u64> {
        self.all.fence(key)
    }

    /// How a lock was lost, if the manager has found out.
    pub(crate) fn lost_cause(&self) -> Option<String> {
        self.manager.cause.get().cloned()
    }

    /// Gives all locks back.
    pub(crate) fn unlock(self) -> Result<(), Error> {
        drop(self.each);
        self.all.unlock()
    }
}
