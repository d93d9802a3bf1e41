//! One request for a lock, of a `Lock` or of a shortcut of the manager. Borrows all it needs, so that
//! taking a lock once more allocates nothing.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log::debug;

use crate::base::error::Error;
use crate::base::options::Options;
use crate::guard::LockGuard;
use crate::keeping::thread_map::Held;
use crate::session::{Entered, Session};

pub(crate) struct Request<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) name: &'a str,
    pub(crate) options: &'a Options,
}

impl Request<'_> {
    pub(crate) fn lock(&self) -> Result<LockGuard, Error> {
        match self.session.enter(self.name, self.options, self.options.wait)? {
            Entered::Held(held) => Ok(self.guard(held)),
            Entered::Busy { waited, holder, cause } => {
                let (key, holder) = (self.name.to_owned(), holder.map(Box::new));
                Err(Error::Timeout { key, waited, holder, source: cause })
            }
        }
    }

    pub(crate) fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        match self.session.enter(self.name, self.options, Some(limit))? {
            Entered::Held(held) => Ok(Some(self.guard(held))),
            Entered::Busy { .. } => Ok(None),
        }
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
                    debug!(target: "relatch::release", "after the error of a closure under lock {:?}: {also}", self.name);
                }
                return Err(error);
            }
        };
        match guard.unlock() {
            Ok(_) | Err(Error::Unconfirmed { .. }) => Ok(value),
            // It may have run without the lock.
            Err(error) => Err(error.into()),
        }
    }

    fn guard(&self, held: Rc<Held>) -> LockGuard {
        LockGuard::new(Arc::clone(self.session), held)
    }
}
