//! Where the thread's map, the process's queue and Redis meet: one outermost lock, many inner ones, one release.

use std::mem;
use std::process;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use log::warn;

use crate::acquire::{NOT_A_STRING, Outcome, Patience, acquire, not_a_lock};
use crate::clock::Moment;
use crate::error::Error;
use crate::hold::Hold;
use crate::holder::Holder;
use crate::holds::{self, Held, Left};
use crate::key::Key;
use crate::options::{Lease, Options, Settings};
use crate::owner::{Owner, host_name};
use crate::process as this_process;
use crate::queue::{NoTurn, Queue};
use crate::release::release;
use crate::store::{Address, Connection, Seen, Store, Trouble};

/// What all handles of a manager share.
#[derive(Debug)]
pub(crate) struct Session {
    /// Tells managers apart in a thread's map.
    id: u64,
    /// The process that made it: nobody else may use it.
    born: u32,
    host: Arc<str>,
    store: Store,
    queue: Arc<Queue>,
    settings: Settings,
}

/// What a caller asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// One answer.
    Try,
    /// Until the lock is free, or so long; busy is an answer.
    TryFor(Duration),
    /// As the options say; busy is an error.
    AsSet,
}

/// What an attempt at a lock came to.
#[derive(Debug)]
pub(crate) enum Entered {
    Held(Rc<Held>),
    Busy { waited: Duration, holder: Option<Holder> },
}

impl Session {
    pub(crate) fn new(address: Address, settings: Settings) -> Session {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Session {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            born: process::id(),
            host: host_name(),
            store: Store::new(address, &settings),
            queue: Arc::new(Queue::default()),
            settings,
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Speaks to Redis once, so that what is wrong with the address or the login shows now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let deadline = Moment::now().after(self.settings.connect_timeout);
        let answer = self.store.checkout(deadline).and_then(|mut connection| connection.ping(deadline));
        answer.map_err(|trouble| self.store.error("connecting".to_owned(), trouble))
    }

    /// Takes a lock, or takes it once more where this thread has it.
    pub(crate) fn enter(&self, name: &str, options: &Options, wait: Wait) -> Result<Entered, Error> {
        let started = Moment::now();
        let pid = self.own_process(started)?;
        if let Some(again) = holds::reenter(self.id, name, started) {
            return again.map(Entered::Held);
        }
        options.check(self.settings.max_lease)?;
        let key = Key::new(&self.settings.prefix, name)?;
        let patience = self.patience(options, wait, started);
        let busy = |holder| Entered::Busy { waited: Moment::now().since(started), holder };
        let in_line_until = if patience.once { Moment::PAST } else { patience.deadline };
        let is_mine = |holder: &Holder| holds::is_mine(holder.raw(), pid);
        let turn = match self.queue.join(key.name(), in_line_until, is_mine) {
            Ok(turn) => turn,
            Err(NoTurn::Busy(holder)) => return Ok(busy(holder)),
            Err(NoTurn::Mine) => return Err(Error::WouldDeadlock { key: name.to_owned() }),
        };
        let owner = Owner::new(Arc::clone(&self.host), pid, this_process::thread_id(pid));
        let lease = Lease::new(options.lease);
        match acquire(&self.store, &key, &owner, lease, &patience, &turn)? {
            Outcome::Busy(holder) => Ok(busy(holder)),
            Outcome::Taken { token, since } => {
                let hold = Arc::new(Hold::new(key, owner, token, lease, since));
                turn.holds(&hold);
                Ok(Entered::Held(holds::enter(self.id, hold, turn)))
            }
        }
    }

    fn patience(&self, options: &Options, wait: Wait, now: Moment) -> Patience {
        let limit = match wait {
            Wait::Try => Some(Duration::ZERO),
            Wait::TryFor(limit) => Some(limit),
            Wait::AsSet => options.wait,
        };
        let once = limit == Some(Duration::ZERO);
        let deadline = match limit {
            Some(Duration::ZERO) => self.one_answer(now),
            Some(limit) => now.after(limit),
            None => Moment::NEVER,
        };
        Patience {
            started: now,
            deadline,
            once,
            name_holder: matches!(wait, Wait::AsSet),
            tolerate_outage: self.settings.tolerate_outage,
        }
    }

    /// For what is asked once: as long as connecting and answering may take.
    fn one_answer(&self, now: Moment) -> Moment {
        now.after(self.settings.connect_timeout).after(self.settings.response_timeout)
    }

    /// Takes one guard off a hold, and releases the lock where it was the last: how deep it is still held.
    ///
    /// The hold leaves the thread's map first, whatever follows; the next thread of this process gets its turn
    /// last. Returns within the response timeout.
    pub(crate) fn leave(&self, held: &Rc<Held>) -> Result<u32, Error> {
        let turn = match held.leave() {
            Left::Inside(depth) => return Ok(depth),
            Left::Outside(turn) => turn,
            Left::TooLate => return Ok(0),
        };
        if let Err(forked) = self.own_process(Moment::now()) {
            mem::forget(turn); // The child's copy of the queue may have been locked when it was copied.
            return Err(forked);
        }
        turn.ends_soon();
        let released = release(&self.store, held.hold(), self.settings.response_timeout);
        drop(turn);
        released.map(|()| 0)
    }

    /// `Err` where a hold can no longer be trusted, or is another process's.
    pub(crate) fn trust(&self, hold: &Hold) -> Result<(), Error> {
        let now = Moment::now();
        self.own_process(now)?;
        hold.check(now)
    }

    /// True if a hold can be trusted, and is this process's.
    pub(crate) fn trusts(&self, hold: &Hold) -> bool {
        let now = Moment::now();
        hold.is_valid(now) && this_process::id(now) == self.born
    }

    /// Who holds a key.
    pub(crate) fn holder(&self, name: &str) -> Result<Option<Holder>, Error> {
        let key = Key::new(&self.settings.prefix, name)?;
        let question = |connection: &mut Connection<'_>, deadline| connection.look(key.in_redis(), deadline);
        let deadline = self.one_answer(Moment::now());
        let first = self.ask("looking at", &key, deadline, question);
        // The connection may have gone stale: the next one has not.
        let seen = if matches!(first, Err(Error::Unavailable { .. })) {
            self.ask("looking at", &key, deadline, question)
        } else {
            first
        };
        match seen? {
            Seen::Nothing => Ok(None),
            Seen::Somebody(holder) => Ok(Some(holder)),
            Seen::NotAString => Err(not_a_lock(&key, NOT_A_STRING)),
        }
    }

    /// Deletes whatever stands at a key; asked once only, since a second time might be somebody else's.
    pub(crate) fn force_unlock(&self, name: &str) -> Result<Option<Holder>, Error> {
        let key = Key::new(&self.settings.prefix, name)?;
        let question = |connection: &mut Connection<'_>, deadline| connection.force(key.in_redis(), deadline);
        let deadline = self.one_answer(Moment::now());
        let deleted = self.ask("force-unlocking", &key, deadline, question)?;
        if let Some(holder) = &deleted {
            warn!("lock {name:?} was force-unlocked, it was held by {holder}");
        }
        Ok(deleted)
    }

    fn ask<T>(
        &self,
        action: &str,
        key: &Key,
        deadline: Moment,
        question: impl FnOnce(&mut Connection<'_>, Moment) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        self.own_process(Moment::now())?;
        let mut connection =
            self.store.checkout(deadline).map_err(|trouble| self.failed(action, key, trouble))?;
        question(&mut connection, deadline).map_err(|trouble| self.failed(action, key, trouble))
    }

    fn failed(&self, action: &str, key: &Key, trouble: Trouble) -> Error {
        self.store.error(format!("{action} lock {:?}", key.name()), trouble)
    }

    /// The process id; an error in a process that was forked since.
    fn own_process(&self, now: Moment) -> Result<u32, Error> {
        let pid = this_process::id(now);
        if pid == self.born { Ok(pid) } else { Err(Error::Forked { parent: self.born, child: pid }) }
    }
}
