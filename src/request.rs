//! One request for a lock: what [`Lock`](crate::Lock) and the shortcuts of [`LockManager`](crate::LockManager)
//! have in common.
//!
//! Borrows all it needs, so that taking a lock once more allocates nothing, whichever way it is asked for.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log::debug;

use crate::error::Error;
use crate::guard::LockGuard;
use crate::holds::Held;
use crate::options::Options;
use crate::session::{Entered, Session, Wait};

pub(crate) struct Request<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) name: &'a str,
    pub(crate) options: &'a Options,
}

impl Request<'_> {
    pub(crate) fn lock(&self) -> Result<LockGuard, Error> {
        match self.enter(Wait::AsSet)? {
            Entered::Held(held) => Ok(self.guard(held)),
            Entered::Busy { waited, holder, cause } => {
                let (key, holder) = (self.name.to_owned(), holder.map(Box::new));
                Err(Error::Timeout { key, waited, holder, source: cause })
            }
        }
    }

    pub(crate) fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.attempt(Wait::Try)
    }

    pub(crate) fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        self.attempt(Wait::TryFor(limit))
    }

    pub(crate) fn with_guard<T>(&self, body: impl FnOnce(&LockGuard) -> T) -> Result<T, Error> {
        let guard = self.lock()?;
        let value = body(&guard);
        done(guard)?;
        Ok(value)
    }

    pub(crate) fn with_guard_result<T, E>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        let guard = self.lock()?;
        let value = match body(&guard) {
            Ok(value) => value,
            Err(error) => {
                if let Err(also) = guard.unlock() {
                    debug!(target: "relatch::release", "after the error of a closure under lock {:?}: {also}", self.name);
                }
                return Err(error);
            }
        };
        done(guard)?;
        Ok(value)
    }

    fn attempt(&self, wait: Wait) -> Result<Option<LockGuard>, Error> {
        match self.enter(wait)? {
            Entered::Held(held) => Ok(Some(self.guard(held))),
            Entered::Busy { .. } => Ok(None),
        }
    }

    fn enter(&self, wait: Wait) -> Result<Entered, Error> {
        self.session.enter(self.name, self.options, wait)
    }

    fn guard(&self, held: Rc<Held>) -> LockGuard {
        LockGuard::new(Arc::clone(self.session), held)
    }
}

/// Ends the hold of a closure that has run: an error only where it may have run without the lock.
fn done(guard: LockGuard) -> Result<(), Error> {
    match guard.unlock() {
        Ok(_) | Err(Error::Unconfirmed { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
