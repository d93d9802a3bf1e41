//! The locks of a run.

use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use relatch::{Error, LockGuard, LockManager, MultiLock, MultiLockGuard, StopHandle};

use crate::args::Common;
use crate::connect;
use crate::exit::Failure;
use crate::output::tell;
use crate::run::life::{At, Event, Plan};
use crate::run::line::{Until, now};
use crate::run::report::Report;
use crate::run::wanted::Wanted;
use crate::span;
use crate::whose;

/// The manager of a run, and how a lock was lost, once one was.
pub(crate) struct Manager {
    pub(crate) locks: LockManager,
    cause: Arc<OnceLock<String>>,
}

/// How long a lock is good that is another's to look after: longer than anything.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Makes the manager, and asks Redis whether it is there: who writes a crontab with a wrong address
/// shall hear of it. The wait for the lock bridges an outage that comes later. A loss becomes an
/// event.
pub(crate) fn manager(common: &Common, events: &Sender<Event>) -> Result<Manager, Failure> {
    let cause = Arc::new(OnceLock::new());
    let told = Arc::clone(&cause);
    let events = events.clone();
    let builder = connect::builder(common)?.on_lost(move |lost| {
        let _ = told.set(lost.cause.to_string()); // The first one counts.
        let _ = events.send(Event::Lost);
    });
    let locks = builder.build()?;
    Ok(Manager { locks, cause })
}

pub(crate) struct Held {
    manager: Manager,
    /// `None` if the runs around this one have all of them.
    all: Option<MultiLockGuard>,
    /// One more guard of each, for its token.
    each: Vec<LockGuard>,
    since: Duration,
}

/// Takes the locks: all, or none. (There are none to take if the runs around this one have them.)
pub(crate) fn take(
    manager: Manager,
    keys: &[&str],
    wanted: &Wanted,
    verbose: bool,
    stop: &StopHandle,
    report: &mut Report,
) -> Result<Held, Error> {
    let locks = &manager.locks;
    let mut all = None;
    if !keys.is_empty() {
        let several = locks.several(keys).options(|lock| {
            lock.lease(wanted.plan.lease)
                .fenced(wanted.fenced)
                .keep_at_least(wanted.at_least)
                .stopped_by(stop)
        });
        let began = now();
        let taken = enter(locks, several, keys, wanted, verbose);
        report.waited = now().saturating_sub(began);
        all = Some(taken?);
        if verbose {
            let waited = span::show(report.waited);
            tell(&format!("getting lock took {waited}"));
        }
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
                let holder = whose::shown(&holder);
                tell(&format!("waiting for lock {key:?}: {holder} has it"));
            }
        }
    }
    several.options(|lock| lock.wait(wanted.wait)).lock()
}

impl Held {
    /// How long the locks are held, and how long they are good. The clock is read first: if this
    /// process is stopped between the two, the end of validity seems to be nearer than it is.
    pub(crate) fn at(&self) -> At {
        let held_for = now().saturating_sub(self.since);
        let left = match &self.all {
            Some(all) => all.remaining(),
            None => FOR_EVER,
        };
        At { held_for, left }
    }

    /// Until when the job may run, if no renewal comes through.
    pub(crate) fn good_until(&self, plan: &Plan) -> Until {
        let At { held_for, left } = self.at();
        let left = if plan.only_warn { FOR_EVER } else { left };
        Until(self.since + held_for + left.saturating_sub(plan.margin()))
    }

    /// The locks that this run took: key, token, and fence.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (&str, &str, Option<u64>)> {
        let each = self.each.iter();
        each.map(|guard| (guard.key(), guard.token(), guard.fence()))
    }

    pub(crate) fn token(&self, key: &str) -> Option<&str> {
        let guard = self.each.iter().find(|guard| guard.key() == key)?;
        Some(guard.token())
    }

    pub(crate) fn fence(&self, key: &str) -> Option<u64> {
        self.all.as_ref()?.fence(key)
    }

    /// How a lock was lost, if the manager has found out.
    pub(crate) fn lost_cause(&self) -> Option<String> {
        self.manager.cause.get().cloned()
    }

    /// Gives back what no job has used, so that another machine may have it at once. (What fails
    /// here ends with its lease.)
    pub(crate) fn unlock_unused(self) {
        let _ = self.unlock_now();
    }

    /// Gives all locks back, and keeps none of them.
    pub(crate) fn unlock_now(self) -> Result<(), Error> {
        drop(self.all);
        let each = self.each.into_iter();
        each.map(|guard| guard.unlock_now().map(drop))
            .fold(Ok(()), Result::and)
    }

    /// Gives all locks back.
    pub(crate) fn unlock(self) -> Result<(), Error> {
        drop(self.each);
        self.all.map_or(Ok(()), MultiLockGuard::unlock)
    }
}
