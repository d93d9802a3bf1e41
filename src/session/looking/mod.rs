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

/// One lock, as Redis has it.
pub(crate) struct Looking<'a> {
    pub(super) session: &'a Session,
    pub(super) key: Key,
}

impl<'a> Looking<'a> {
    pub(crate) fn at(session: &'a Session, name: Name<'_>) -> Result<Looking<'a>, Error> {
        let key = Key::new(&session.core.settings.prefix, name)?;
        if key.slots().is_empty() {
            return Ok(Looking { session, key });
        }
        Err(Error::InvalidOption {
            option: "slots",
            value: Some(key.name().to_string()),
            reason: "they have a holder each: `holders` lists them, and `named` finds one by its key",
        })
    }

    /// Each slot. A lock has none but itself.
    pub(crate) fn at_each(session: &'a Session, name: Name<'_>) -> Result<Vec<Looking<'a>>, Error> {
        let key = Key::new(&session.core.settings.prefix, name)?;
        let each = match key.slots() {
            [] => vec![key],
            slots => slots.to_vec(),
        };
        Ok(each
            .into_iter()
            .map(|key| Looking { session, key })
            .collect())
    }

    /// Who holds the lock and, if it is `fenced`, with which fence.
    pub(crate) fn holder(&self, fenced: bool) -> Result<Option<Holder>, Error> {
        let counter = fenced.then(|| self.key.counter()).transpose()?;
        let (seen, _) = self.ask("looking at", |connection, deadline| {
            let seen = connection.look(self.key.in_redis(), counter.as_deref(), deadline)?;
            if let Seen::Nothing = seen {
                connection.expect_master()?;
            }
            Ok(seen)
        })?;
        match seen {
            Seen::Nothing => Ok(None),
            Seen::Somebody(holder) => Ok(Some(holder)),
            Seen::NotAString => Err(self.key.not_a_lock(NOT_A_STRING)),
        }
    }

    /// Reads the key. Also returns when the answered try was sent.
    pub(super) fn look(&self, action: &'static str) -> Result<(Seen, Moment), Error> {
        self.ask(action, |connection, deadline| {
            connection.look(self.key.in_redis(), None, deadline)
        })
    }

    /// Asks about the key. If the first try fails, its connection may have been stale, so a second
    /// try uses another one.
    fn ask(
        &self,
        action: &'static str,
        look: impl Fn(&mut Connection<'_>, Moment) -> Result<Seen, Failure>,
    ) -> Result<(Seen, Moment), Error> {
        let store = &self.session.core.store;
        self.within_an_attempt(action, |deadline| {
            let ask = || {
                let mut connection = store.checkout(self.key.in_redis(), deadline)?;
                let sent = Moment::now();
                look(&mut connection, deadline).map(|seen| (seen, sent))
            };
            store.again_with_new_map(deadline, ask).or_else(|failure| {
                if failure.can_pass() && Moment::now() < deadline {
                    ask()
                } else {
                    Err(failure)
                }
            })
        })
    }

    /// Deletes the key, whatever it holds.
    pub(crate) fn force_unlock(&self) -> Result<Option<Holder>, Error> {
        let deleted =
            self.force(|connection, deadline| connection.force(self.key.in_redis(), deadline))?;
        let whose = deleted.as_ref();
        self.forced(whose.map(|holder| (&*holder.raw, holder.to_string())));
        Ok(deleted)
    }

    /// Deletes the key if it holds this token.
    pub(crate) fn force_unlock_if(&self, token: &[u8]) -> Result<bool, Error> {
        if !is_whole(token) {
            let reason = "a value of 256 bytes or more is not known in full, and for one that is \
                          not UTF-8, `raw` is incomplete: see `Holder::bytes` and `force_unlock`";
            return Err(Error::InvalidOption {
                option: "force_unlock_if",
                value: None,
                reason,
            });
        }
        let compared = self.force(|connection, deadline| {
            connection.force_if(self.key.in_redis(), token, deadline)
        })?;
        let deleted = compared == Compared::Done;
        let token = &*String::from_utf8_lossy(token);
        let owner =
            || Owner::parse(token).map_or_else(|| "nobody".to_owned(), |owner| owner.to_string());
        self.forced(deleted.then(|| (token, owner())));
        Ok(deleted)
    }

    /// Sends an operator's command. Redis gets it only once: a second one could delete the next
    /// holder's key, or find that the first one deleted the key. It uses a new connection, since a
    /// pooled one may be dead.
    fn force<T>(
        &self,
        send: impl Fn(&mut Connection<'_>, Moment) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let store = &self.session.core.store;
        self.within_an_attempt("force-unlocking", |deadline| {
            store.again_with_new_map(deadline, || {
                let mut connection = store.connect(self.key.in_redis(), deadline)?;
                send(&mut connection, deadline)
            })
        })
    }

    /// An operator has deleted the key. `deleted` is its value, if there was one, and whose it was.
    fn forced(&self, deleted: Option<(&str, String)>) {
        let Session { core, keeper, .. } = self.session;
        if let Some((token, holder)) = deleted {
            keeper.lose_token(token, LostCause::Deleted);
            warn!(
                target: "relatch::force_unlock",
                "lock {:?} was force-unlocked; it was held by {holder}", self.key.name()
            );
        }
        // Redis sends no invalidations to waiters of this process that poll.
        core.listeners.wakeups.wake(self.key.in_redis().as_bytes());
    }

    /// Does `action`, which may take as long as one attempt.
    fn within_an_attempt<T>(
        &self,
        action: &'static str,
        act: impl FnOnce(Moment) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let (core, now) = (&self.session.core, Moment::now());
        core.own_process(now)?;
        act(now.after(core.settings.an_attempt()))
            .map_err(|failure| self.session.call_failed(action, &self.key, failure))
    }
}
