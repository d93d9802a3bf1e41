//! Taking a lock and giving it back, from end to end: the thread's map, the process's queue, Redis.
//!
//! `enter` is here, [`taking`] waits and asks, and `leave` is in [`giving_back`]. [`upkeep`] is for
//! a lock while it is held, [`looking`] for one that somebody else may hold, [`report`] for what
//! goes on now, [`handing_over`] for a hold that moves to another thread or process ([`adoptions`]
//! counts what is under way of that), [`going`] for the end of a manager, and [`memory`] for
//! managers without a Redis. This room may use all rooms but the handles.

mod adoptions;
mod giving_back;
mod going;
mod handing_over;
mod looking;
mod memory;
pub(crate) mod release;
mod report;
mod several;
mod taking;
pub(crate) mod thread_map;
mod upkeep;

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::{self, debug};
use crate::base::error::Error;
use crate::base::error::body::Made;
use crate::base::key::{Key, Name};
use crate::base::options::{Lease, Options, Settings};
use crate::base::owner::machine;
use crate::base::owner::process as this_process;
use crate::base::owner::{Owner, fresh_token, host_name};
use crate::base::stats::counters::Counters;
use crate::base::stop::{Stop, Wake};
use crate::base::sync::PerProcess;
use crate::base::sync::process;
use crate::hold::Hold;
use crate::keeping::losses::{LossNotifier, OnLost};
use crate::keeping::shared::Keeper;
use crate::keeping::shared::Shared;
use crate::session::adoptions::Adoptions;
use crate::session::thread_map::Held;
use crate::store::{Failure, Store, Target};
use crate::waiting::handoff::Claim;
use crate::waiting::patience::Patience;
use crate::waiting::queues::{Turn, WaitQueues};
use crate::waiting::waits::ListedWait;
use crate::wakeups::listeners::Listeners;

pub use crate::session::memory::Memory;

/// What all handles of a manager share.
pub(crate) struct Session {
    /// Tells managers apart in a thread's map.
    id: u64,
    /// The process that made the manager. A forked child may not use it.
    pub(crate) pid: u32,
    host: Arc<str>,
    /// The digits with which the nonces of this machine's tokens begin.
    machine: String,
    store: Arc<Store>,
    queues: Arc<WaitQueues>,
    listeners: Arc<Listeners>,
    pub(crate) counters: Arc<Counters>,
    keeper: Keeper,
    adoptions: Adoptions,
    /// Ends all waits, and refuses new locks, once the manager is shut down.
    going: Stop,
    /// Wakes all waiters of this manager, for the handles that can stop them.
    wake: Arc<Wake>,
    pub(crate) settings: Settings,
}

/// A lock that a thread is about to ask for.
struct Asked {
    key: Key,
    owner: Owner,
    /// With a token that nobody has used yet.
    claim: Claim,
}

impl Session {
    pub(crate) fn new(
        target: Target,
        settings: Settings,
        on_lost: Option<OnLost>,
    ) -> Result<Session, Error> {
        let store = Store::new(target, &settings)?;
        let (pid, host, machine) = (
            process::id(),
            host_name(),
            machine::digits().map_err(no_randomness)?,
        );
        let owner = Owner::new(Arc::clone(&host), pid, this_process::thread_id(pid));
        let unused = fresh_token(&owner, &machine).map_err(no_randomness)?;
        let probe = settings
            .client_tracking
            .then(|| settings.prefix.clone() + &unused);
        Session::over(store, host, machine, probe, settings, on_lost).started()
    }

    fn over(
        store: Store,
        host: Arc<str>,
        machine: String,
        probe: Option<String>,
        settings: Settings,
        on_lost: Option<OnLost>,
    ) -> Session {
        static NEXT: PerProcess<AtomicU64> =
            PerProcess::new(AtomicU64::new(1), || AtomicU64::new(1));
        let (store, pid) = (Arc::new(store), process::id());
        let keeper = Shared::new(
            Arc::clone(&store),
            on_lost.map(LossNotifier::new),
            settings.response_timeout,
            probe,
        );
        let keeper_of_waiters = Arc::clone(&keeper);
        let wake = move || {
            // A forked child has no waiters, and its copies of the mutexes may stay locked.
            if process::id() == pid {
                keeper_of_waiters.wake_waiters();
            }
        };
        let session = Session {
            id: NEXT.with(|it| it.fetch_add(1, Ordering::Relaxed)),
            pid,
            host,
            machine,
            store,
            queues: Arc::clone(&keeper.queues),
            listeners: Arc::clone(&keeper.listeners),
            counters: Arc::clone(&keeper.counters),
            keeper,
            adoptions: Adoptions::default(),
            going: Stop::new(),
            wake: Arc::new(wake),
            settings,
        };
        session.heed(&session.going);
        emit::describe();
        session
    }

    /// Starts what the settings ask for.
    pub(crate) fn started(self) -> Result<Session, Error> {
        if let Some(limits) = self.settings.warn_after {
            self.keeper.warn_after(limits)?;
        }
        Ok(self)
    }

    /// Sends a `PING`, so that a wrong address or login is found out now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let deadline = Moment::now().after(self.settings.connect_timeout);
        self.store.ping("connecting", deadline)
    }

    /// Takes a lock, or re-enters it if this thread holds it. `stop` ends the wait.
    pub(crate) fn enter(
        &self,
        name: Name<'_>,
        options: &Options,
        patience: &Patience,
        stop: Option<&Stop>,
    ) -> Result<Rc<Held>, Error> {
        let (now, options) = (Moment::now(), &self.suited(options));
        let pid = self.own_process(now)?;
        if let Some(again) = thread_map::reenter(self.id, name.as_str(), options, now) {
            let held = again?;
            self.counters.reentered.add(1);
            return Ok(held);
        }
        self.may_take(name.as_str(), options, stop, now)?;
        let mut taken = self.take(name, options, patience, pid, stop);
        match &mut taken {
            Ok(new) => {
                // A lock around this one may have been lost during the wait.
                if let Err(lost) = still_has_outer(new) {
                    self.undo_taking(new, &lost, self.undone_by(patience));
                    return Err(lost);
                }
            }
            Err(Error::Timeout { held, .. }) => {
                self.counters.timed_out.add(1);
                // What `try_lock` did hold nobody asks for.
                if !patience.once {
                    *held = thread_map::held()
                        .iter()
                        .map(|(_, hold)| hold.key.name().to_string())
                        .collect();
                }
            }
            Err(error) => self.counters.failed(error),
        }
        taken
    }

    /// Returns an error if a lock that this thread does not hold must not be taken.
    fn may_take(
        &self,
        name: &str,
        options: &Options,
        stop: Option<&Stop>,
        now: Moment,
    ) -> Result<(), Error> {
        if let Some(invalid) = options.invalid {
            return Err(invalid.into());
        }
        let made = Made::now();
        if self.is_stopped(stop) {
            return Err(Error::Stopped {
                key: name.to_owned(),
                made,
            });
        }
        thread_map::lost_around(u64::MAX, now).map_or(Ok(()), |(outer, cause)| {
            Err(Error::OuterLost {
                key: name.to_owned(),
                outer,
                cause,
                made,
            })
        })
    }

    /// What an attempt to take a lock needs.
    fn ask_for(&self, name: Name<'_>, options: &Options, pid: u32) -> Result<Asked, Error> {
        let key = Key::new(&self.settings.prefix, name)?;
        let counter = if options.fenced {
            Some(key.counter()?.into())
        } else {
            None
        };
        let owner = Owner::new(Arc::clone(&self.host), pid, this_process::thread_id(pid));
        let token = fresh_token(&owner, &self.machine).map_err(no_randomness)?;
        Ok(Asked {
            key,
            owner,
            claim: Claim {
                token,
                lease: Lease::new(options.lease),
                counter,
            },
        })
    }

    /// Takes a lock that this thread does not hold.
    fn take(
        &self,
        name: Name<'_>,
        options: &Options,
        patience: &Patience,
        pid: u32,
        stop: Option<&Stop>,
    ) -> Result<Rc<Held>, Error> {
        // The token is drawn before the turn comes: the thread in front may send the claim with its
        // release.
        let Asked { key, owner, claim } = self.ask_for(name, options, pid)?;
        let wait = ListedWait::new(&self.queues.waits, &key, &owner, patience);
        let taken = self.wait_and_take(&wait, claim, options, stop);
        wait.ends(taken.as_ref().err());
        drop(wait);
        let (turn, taken) = taken?;
        self.counters.taken(taken.at.answered.since(patience.began));
        let hold = Hold::new(key, owner, taken.token, taken.fence, options, taken.at);
        self.keep(hold, turn, patience)
    }

    /// Makes a new hold known: to the queue, the keeper and the thread's map.
    fn keep(&self, hold: Hold, turn: Turn, patience: &Patience) -> Result<Rc<Held>, Error> {
        let hold = Arc::new(hold);
        // The keeper comes first. So a hold that the queue knows is in the table of leases, where a
        // shutdown and `force_unlock` look for it.
        if let Err(error) = self.keeper.enter(&hold) {
            // The caller must not rely on the hold. A lock that was to be kept is not: nobody has
            // done what it is kept for.
            if let Err(also) = self.remove(&hold, turn, self.undone_by(patience)) {
                debug!(target: "relatch::release", "{also}");
            }
            return Err(error);
        }
        turn.holds(&hold);
        Ok(thread_map::enter(self.id, hold, turn))
    }

    /// How long a caller waits that asks now. Without a limit, while the lock is busy. With a limit
    /// of zero, for one answer.
    pub(crate) fn patience(&self, limit: Option<Duration>) -> Patience {
        let began = Moment::now();
        let (an_attempt, tolerate_outage) = (self.an_attempt(), self.settings.tolerate_outage);
        let once = limit == Some(Duration::ZERO);
        let limit = if once { Some(an_attempt) } else { limit };
        let deadline = limit.map_or(Moment::NEVER, |limit| began.after(limit));
        Patience {
            began,
            deadline,
            once,
            tolerate_outage,
            an_attempt,
        }
    }

    /// How long an attempt may take: connecting, and the answer.
    fn an_attempt(&self) -> Duration {
        self.settings
            .connect_timeout
            .saturating_add(self.settings.response_timeout)
    }

    /// The deadline of an attempt that begins at `now`.
    fn one_answer(&self, now: Moment) -> Moment {
        now.after(self.an_attempt())
    }

    /// By when a release that begins now ends.
    pub(crate) fn one_release(&self) -> Moment {
        Moment::now().after(self.settings.response_timeout)
    }

    /// Returns an error if a hold can no longer be trusted, or belongs to another process.
    pub(crate) fn trust(&self, hold: &Hold) -> Result<(), Error> {
        let now = Moment::now();
        self.own_process(now)?;
        hold.check(now)
    }

    /// True if a hold can be trusted, and belongs to this process.
    pub(crate) fn trusts(&self, hold: &Hold) -> bool {
        let now = Moment::now();
        hold.is_valid(now) && this_process::id(now) == self.pid
    }

    /// The error of a call that fails, which is counted. (`enter` counts its own.)
    fn call_failed(&self, action: &'static str, key: &Key, failure: Failure) -> Error {
        let error = self.failed(action, key, failure);
        self.counters.failed(&error);
        error
    }

    fn failed(&self, action: &'static str, key: &Key, failure: Failure) -> Error {
        self.store.error(Some(key), action, failure)
    }

    /// The process id, or an error in a forked child.
    pub(crate) fn own_process(&self, now: Moment) -> Result<u32, Error> {
        let pid = this_process::id(now);
        if pid == self.pid {
            Ok(pid)
        } else {
            Err(Error::Forked {
                parent: self.pid,
                child: pid,
            })
        }
    }
}

/// Returns an error if this thread has lost a lock around the hold that was just released.
pub(crate) fn still_has_outer(held: &Held) -> Result<(), Error> {
    thread_map::lost_around(held.entered, Moment::now()).map_or(Ok(()), |(outer, cause)| {
        Err(Error::OuterLost {
            key: held.hold.key.name().to_string(),
            outer,
            cause,
            made: Made::now(),
        })
    })
}

fn no_randomness(source: io::Error) -> Error {
    Error::NoRandomness { source }
}

impl Drop for Session {
    /// Ends the manager's threads. A forked child has none of them, and must not wait for what they
    /// had locked.
    fn drop(&mut self) {
        if process::id() == self.pid {
            self.keeper.stop();
        }
    }
}

/// The server and the settings, and nothing of what changes.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Session {
            store, settings, ..
        } = self;
        f.debug_struct("Session")
            .field("store", store)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::hold::tests::sample;

    /// A session without a Redis.
    fn without_redis() -> Session {
        let limit = Duration::from_millis(50);
        let settings = Settings {
            connect_timeout: limit,
            response_timeout: limit,
            ..Settings::default()
        };
        Session::new(Target::nowhere(), settings, None).unwrap()
    }

    /// If a closed hold were still in the keeper's table, the keeper would take it for one that ran
    /// out, and report a loss.
    #[test]
    fn a_hold_leaves_the_table_of_leases_in_the_step_that_closes_it() {
        let session = without_redis();
        let hold = Arc::new(sample("a", Duration::from_secs(30), Moment::now()));
        session.keeper.enter(&hold).unwrap();
        let turn = session.queues.free_turn(hold.key.name());
        thread::scope(|scope| {
            let held_up = session.keeper.work.lock();
            let release =
                scope.spawn(
                    || match session.release(&hold, turn, session.one_release()) {
                        Err(Error::Unconfirmed { .. }) => {}
                        other => panic!("{other:?}, and Redis is not there"),
                    },
                );
            let end = Moment::now().after(Duration::from_millis(100));
            while Moment::now() < end {
                assert!(
                    hold.is_valid(Moment::now()),
                    "the hold was closed before it left the table"
                );
                thread::yield_now();
            }
            drop(held_up);
            release.join().unwrap();
        });
        assert!(!hold.is_valid(Moment::now()) && hold.lost().is_none());
        assert_eq!(session.counters.read().lost, 0);
    }
}
