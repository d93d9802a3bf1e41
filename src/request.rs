//! The methods that `Lock` and `LockManager` share: taking a lock, and running a closure under it.
//! A request borrows all its parts, so that re-entering a lock allocates nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use log::debug;

use crate::base::error::Error;
use crate::base::key::Name;
use crate::base::options::Options;
use crate::guard::LockGuard;
use crate::session::Session;

pub(crate) struct Request<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) name: Name<'a>,
    pub(crate) options: &'a Options,
}

impl Request<'_> {
    pub(crate) fn lock(&self) -> Result<LockGuard, Error> {
        self.enter(self.options.wait)
    }

    pub(crate) fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        match self.enter(Some(limit)) {
            Err(Error::Timeout { .. }) => Ok(None),
            entered => entered.map(Some),
        }
    }

    pub(crate) fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>, Error> {
        self.try_lock_for(deadline.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn current(&self) -> Option<LockGuard> {
        let held = self.session.current(self.name)?.ok()?;
        Some(LockGuard::new(Arc::clone(self.session), held))
    }

    pub(crate) fn assert_held(&self) -> Result<(), Error> {
        self.session.assert_held(self.name)
    }

    fn enter(&self, limit: Option<Duration>) -> Result<LockGuard, Error> {
        let held = self.session.enter(self.name, self.options, limit)?;
        Ok(LockGuard::new(Arc::clone(self.session), held))
    }

    pub(crate) fn with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.with_lock_result(|_| Ok(body()))
    }

    pub(crate) fn with_lock_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.lock()?;
        let value = match body(&guard) {
            Ok(value) => value,
            Err(error) => {
                if let Err(also) = guard.unlock() {
                    let name = self.name.as_str();
                    debug!(target: "relatch::release", "after the error of a closure under lock {name:?}: {also}");
                }
                return Err(error);
            }
        };
        match guard.unlock() {
            Ok(_) | Err(Error::Unconfirmed { .. }) => Ok(value),
            // The closure may have run without the lock.
            Err(error) => Err(error.into()),
        }
    }
}
