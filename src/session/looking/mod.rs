//! Who has a lock, as Redis says, and what an operator may do about it.

pub(crate) mod survey;
pub(crate) mod health;
pub(crate) mod findings;

use crate::base::clock::Moment;
use crate::base::emit::warn;
use crate::base::error::{Error, LostCause};
use crate::base::key::{Key, NOT_A_STRING, Name};
use crate::base::owner::Owner;
use crate::base::owner::holder::{Holder, is_whole};
use crate::session::Session;
use crate::store::{Compared, Connection, Failure, Seen};

impl Session {
    pub(crate) fn holder(&self, name: Name<'_>, fenced: bool) -> Result<Option<Holder>, Error> {
        let key = self.key(name)?;
        let counter = if fenced { Some(key.counter()?) } else { None };
        let seen = self.asking("looking at", &key, |connection, deadline| {
            let seen = connection.look(key.in_redis(), counter.as_deref(), deadline)?;
            if let Seen::Nothing = seen {
                connection.expect_master()?;
            }
            Ok(seen)
        });
        match seen?.0 {
            Seen::Nothing => Ok(None),
            Seen::Somebody(holder) => Ok(Some(holder)),
            Seen::NotAString => Err(key.not_a_lock(NOT_A_STRING)),
        }
    }

    /// Reads a key. Also returns when the try that was answered was sent.
    pub(crate) fn look(&self, action: &'static str, key: &Key) -> Result<(Seen, Moment), Error> {
        self.asking(action, key, |connection, deadline| {
            connection.look(key.in_redis(), None, deadline)
        })
    }

    /// Asks about a key. If the first try fails, its connection may have been stale, so a second
    /// try goes over another one.
    fn asking(
        &self,
        action: &'static str,
        key: &Key,
        look: impl Fn(&mut Connection<'_>, Moment) -> Result<Seen, Failure>,
    ) -> Result<(Seen, Moment), Error> {
        self.core.own_process(Moment::now())?;
        let deadline = Moment::now().after(self.core.settings.an_attempt());
        let ask = || {
            let mut connection = self.core.store.checkout(key.in_redis(), deadline)?;
            let sent = Moment::now();
            look(&mut connection, deadline).map(|seen| (seen, sent))
        };
        let answer = self.core.store.again_with_new_map(deadline, ask);
        let answer = answer.or_else(|failure| {
            if failure.can_pass() && Moment::now() < deadline {
                ask()
            } else {
                Err(failure)
            }
        });
        answer.map_err(|failure| self.call_failed(action, key, failure))
    }

    /// Deletes a key, whatever it holds.
    pub(crate) fn force_unlock(&self, name: Name<'_>) -> Result<Option<Holder>, Error> {
        let key = self.key(name)?;
        let deleted = self.force(&key, |connection, deadline| {
            connection.force(key.in_redis(), deadline)
        })?;
        self.forced(
            &key,
            deleted
                .as_ref()
                .map(|holder| (&*holder.raw, holder.to_string())),
        );
        Ok(deleted)
    }

    /// Deletes a key if it holds this token.
    pub(crate) fn force_unlock_if(&self, name: Name<'_>, token: &[u8]) -> Result<bool, Error> {
        let key = self.key(name)?;
        if !is_whole(token) {
            let reason = "a value of 256 bytes or more is not known in full, and of one that is not UTF-8, \
                          `raw` has not all: see `Holder::bytes` and `force_unlock`";
            return Err(Error::InvalidOption {
                option: "force_unlock_if",
                value: None,
                reason,
            });
        }
        let compared = self.force(&key, |connection, deadline| {
            connection.force_if(key.in_redis(), token, deadline)
        })?;
        let deleted = compared == Compared::Done;
        let token = &*String::from_utf8_lossy(token);
        let owner =
            || Owner::parse(token).map_or_else(|| "nobody".to_owned(), |owner| owner.to_string());
        self.forced(&key, deleted.then(|| (token, owner())));
        Ok(deleted)
    }

    /// Sends the command of an operator. Redis gets it once only: a second one could delete the key
    /// of the next holder, or find that the first one did. It goes over a fresh connection, since a
    /// pooled one may be dead.
    fn force<T>(
        &self,
        key: &Key,
        send: impl Fn(&mut Connection<'_>, Moment) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        self.core.own_process(Moment::now())?;
        let deadline = Moment::now().after(self.core.settings.an_attempt());
        let answer = self.core.store.again_with_new_map(deadline, || {
            let mut connection = self.core.store.connect(key.in_redis(), deadline)?;
            send(&mut connection, deadline)
        });
        answer.map_err(|failure| self.call_failed("force-unlocking", key, failure))
    }

    /// An operator has deleted a key. `deleted`: its value, if there was one, and whose it was.
    fn forced(&self, key: &Key, deleted: Option<(&str, String)>) {
        if let Some((token, holder)) = deleted {
            self.keeper.lose_token(token, LostCause::Deleted);
            warn!(
                target: "relatch::force_unlock",
                "lock {:?} was force-unlocked, it was held by {holder}", key.name()
            );
        }
        // Redis sends no invalidation to the waiters of this process that poll.
        self.core.listeners.wakeups.wake(key.in_redis().as_bytes());
    }
}
