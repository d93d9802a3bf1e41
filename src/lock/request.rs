//! The methods that `Lock` and `LockManager` share: taking a lock, and running a closure under it.
//! A request borrows all its parts, so that re-entering a lock allocates nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::base::key::Name;
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::guard::LockGuard;
use crate::hold::LockParcel;
use crate::session::{Session, handing_over};

#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) name: Name<'a>,
    pub(crate) options: &'a Options,
    /// Ends the wait.
    pub(crate) stop: Option<&'a StopHandle>,
}

impl Request<'_> {
    pub(crate) fn lock(&self) -> Result<LockGuard, Error> {
        let held = self
            .session
            .enter(self.name, self.options, self.stop, Moment::NEVER)?;
        Ok(LockGuard::new(Arc::clone(self.session), held))
    }

    pub(crate) fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        let options = &Options {
            wait: Some(limit),
            ..*self.options
        };
        none_if_busy((Request { options, ..*self }).lock())
    }

    pub(crate) fn current(&self) -> Option<LockGuard> {
        let held = self.session.current(self.name)?;
        Some(LockGuard::new(Arc::clone(self.session), held))
    }

    pub(crate) fn assert_held(&self) -> Result<(), Error> {
        self.session.assert_held(self.name)
    }

    pub(crate) fn adopt(&self, parcel: &LockParcel) -> Result<LockGuard, Error> {
        let held = handing_over::adopt(self.session, self.name, self.options, self.stop, parcel)?;
        Ok(LockGuard::new(Arc::clone(self.session), held))
    }

    pub(crate) fn with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.run(self.lock()?, |_| Ok(body()))
    }

    pub(crate) fn with_lock_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.run(self.lock()?, body)
    }

    pub(crate) fn try_with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<Option<T>, Error> {
        let guard = self.try_lock_for(Duration::ZERO)?;
        guard
            .map(|guard| self.run(guard, |_| Ok(body())))
            .transpose()
    }

    fn run<T, E: From<Error>>(
        &self,
        guard: LockGuard,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        run(guard, body, LockGuard::unlock, || {
            self.name.as_str().to_owned()
        })
    }
}

/// The result of the `try_` methods: `None` if the lock was busy. If the wait has ended without an
/// answer, nobody knows, and "busy" would tell a program that somebody else is doing the work.
pub(super) fn none_if_busy<G>(taken: Result<G, Error>) -> Result<Option<G>, Error> {
    match taken {
        Err(Error::Timeout {
            ref source,
            ref holder,
            ..
        }) if source.is_none() || holder.is_some() => Ok(None),
        taken => taken.map(Some),
    }
}

/// Runs a closure, and then the release.
pub(super) fn run<G, T, U, E: From<Error>>(
    guard: G,
    body: impl FnOnce(&G) -> Result<T, E>,
    unlock: impl FnOnce(G) -> Result<U, Error>,
    name: impl FnOnce() -> String,
) -> Result<T, E> {
    match (body(&guard), unlock(guard)) {
        (Err(error), unlocked) => {
            if let Err(also) = unlocked {
                debug!(target: "relatch::release", "after the error of a closure under lock {:?}: {also}", name());
            }
            Err(error)
        }
        (Ok(value), Ok(_) | Err(Error::Unconfirmed { .. })) => Ok(value),
        // The closure may have run without the lock.
        (Ok(_), Err(error)) => Err(error.into()),
    }
}
