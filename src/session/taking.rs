//! The steps of taking a lock: whether the thread may, the token, the wait, the turn, the hold.

use std::sync::Arc;

use crate::acquire::{AcquireContext, Acquisition, NoReader, Taken};
use crate::base::clock::Moment;
use crate::base::error::{BlockedThread, Error};
use crate::base::key::{Key, Name};
use crate::base::options::{Lease, Options};
use crate::base::owner::Owner;
use crate::base::stop::StopHandle;
use crate::hold::Hold;
use crate::session::Session;
use crate::session::setup::no_randomness;
use crate::session::thread_map::{self, Held};
use crate::store::Failure;
use crate::waiting::handoff::Claim;
use crate::waiting::patience::Patience;
use crate::waiting::place::NoTurn;
use crate::waiting::queues::{Joined, Turn};
use crate::waiting::wait::{OfManager, Wait};

/// The taking of a lock or slot that the thread does not hold yet.
pub(super) struct Taking<'a> {
    session: &'a Session,
    pub(super) key: Key,
    thread: Owner,
    options: &'a Options,
    stop: Option<&'a StopHandle>,
    /// The token of the gate, if this thread holds the gate of the slots.
    gate: Option<Arc<str>>,
}

impl<'a> Taking<'a> {
    /// Returns an error if the lock must not be taken.
    pub(super) fn begin(
        session: &'a Session,
        name: Name<'_>,
        options: &'a Options,
        stop: Option<&'a StopHandle>,
        now: Moment,
    ) -> Result<Taking<'a>, Error> {
        if let Some(invalid) = options.invalid {
            return Err(invalid.into());
        }
        if session.end.is_stopped() || stop.is_some_and(StopHandle::is_stopped) {
            return Err(Error::Stopped {
                key: name.as_str().to_owned(),
                held: thread_map::names(),
            });
        }
        thread_map::check_around(u64::MAX, name.as_str(), now)?;
        let key = Key::new(&session.core.settings.prefix, name)?;
        let thread = session.core.identity.this_thread();
        let find = |key: &Key| thread_map::find(session.id, &**key.name());
        if key
            .readers()
            .is_some_and(|all| all.slots().iter().any(|it| find(it).is_some()))
        {
            let key = key.name().to_string();
            return Err(Error::WouldDeadlock {
                cycle: vec![BlockedThread {
                    thread,
                    key: key.clone(),
                }],
                key,
            });
        }
        let gate = key.gate().and_then(find);
        Ok(Taking {
            session,
            key,
            thread,
            options,
            stop,
            gate: gate.map(|held| Arc::clone(&held.hold.token)),
        })
    }

    /// Makes the writer that holds this gate wait until no reader is left.
    pub(super) fn until_no_reader(
        session: &'a Session,
        gate: &Held,
        options: &'a Options,
        stop: Option<&'a StopHandle>,
        patience: &Patience,
    ) -> Result<(), Error> {
        let Some(key) = gate.hold.key.readers() else {
            return Ok(());
        };
        let taking = Taking {
            session,
            key,
            thread: gate.hold.owner.clone(),
            options,
            stop,
            gate: None,
        };
        let wait = taking.wait(patience);
        let until_free = || {
            // Only a thread that has the gate comes here, but it may have lost the gate without
            // knowing that yet.
            let claim = Claim {
                token: Arc::clone(&gate.hold.token),
                lease: gate.hold.lease(),
                counter: None,
            };
            let joined = taking.join_queue(&wait, &claim)?;
            let context = taking.context(&wait, claim.lease);
            let asks = NoReader {
                context,
                gate: &gate.hold,
            };
            let mut acquisition = Acquisition::with(context, &joined, asks);
            while acquisition.ask()?.is_none() {
                gate.hold.check(Moment::now())?;
                acquisition.wait_for_next_attempt()?;
            }
            drop(acquisition); // It borrows the turn.
            Ok(joined.turn)
        };
        gate.is_waiting.set(true);
        let freed = until_free();
        gate.is_waiting.set(false);
        match freed {
            Ok(turn) => turn.ends(wait),
            Err(error) => return Err(wait.fails(error)),
        }
        // The answer may have taken longer than this lease, or than that of an outer lock.
        gate.hold.check(Moment::now())?;
        thread_map::still_has_outer(gate)
    }

    /// A claim with a token that nobody has used yet. It is made before the turn comes: the thread
    /// in front may send the claim with its release.
    pub(super) fn fresh_claim(&self) -> Result<Claim, Error> {
        let counter = self.options.fenced.then(|| self.key.counter());
        let token = self.session.core.identity.fresh_token(&self.thread);
        Ok(Claim {
            token: token.map_err(no_randomness)?.into(),
            lease: Lease::new(self.options.lease),
            counter: counter.transpose()?.map(Into::into),
        })
    }

    /// The wait that begins now.
    pub(super) fn wait<'w>(&'w self, patience: &'w Patience) -> Wait<'w> {
        let Session { core, .. } = self.session;
        let manager = OfManager {
            id: self.session.id,
            counters: &core.counters,
            store: &core.store,
            end: &self.session.end,
            wake: &self.session.wake,
            wakeups: &core.listeners.wakeups,
            held: thread_map::held,
        };
        Wait::new(manager, &self.key, &self.thread, patience, self.stop)
    }

    /// Asks for one of several slots, if no thread of this process waits for one: a turn would let
    /// only one thread ask at a time. A caller that tries only once never waits for the turn, since
    /// the thread in front does not learn whether a second slot is free.
    pub(super) fn slot_without_turn(
        &self,
        wait: &Wait<'_>,
    ) -> Result<Option<(Turn, Taken)>, Error> {
        let (queues, name) = (&self.session.core.queues, self.key.name());
        // A writer that reads must not wait behind a reader that waits for that writer.
        let is_alone = wait.patience.once || self.gate.is_some();
        if self.key.slots().is_empty() || !is_alone && queues.somebody_waits(name) {
            return Ok(None);
        }
        let joined = Joined::outside(queues, name);
        let claim = self.fresh_claim()?;
        let context = self.context(wait, claim.lease);
        let mut acquisition = Acquisition::begin(context, &joined, claim);
        loop {
            if let Some(taken) = acquisition.ask()? {
                drop(acquisition);
                return Ok(Some((joined.turn, taken)));
            }
            if !is_alone && acquisition.would_wait() {
                return Ok(None);
            }
            acquisition.wait_for_next_attempt()?;
        }
    }

    /// Waits for the turn.
    pub(super) fn join_queue(&self, wait: &Wait<'_>, claim: &Claim) -> Result<Joined, Error> {
        let (core, name) = (&self.session.core, self.key.name());
        let joined = core.queues.join(name, wait, || claim.clone());
        let has_waited = match &joined {
            Ok(joined) => joined.waited,
            Err(NoTurn::MustNotWait(_)) => false,
            Err(_) => !wait.patience.once,
        };
        if has_waited {
            core.counters.of(name).waited.add(1);
        }
        joined.map_err(|no_turn| match no_turn {
            NoTurn::Busy { holder, unknown } => {
                let cause = unknown.then(|| behind_an_outage(None).into_cause());
                wait.timed_out(holder, cause)
            }
            NoTurn::Outage(cause) => {
                let failure = behind_an_outage(cause.as_deref());
                core.store.error(Some(&self.key), "taking", failure)
            }
            NoTurn::MustNotWait(error) => error,
        })
    }

    /// The context for an acquisition by the thread that has the turn.
    pub(super) fn context<'w>(&'w self, wait: &'w Wait<'w>, lease: Lease) -> AcquireContext<'w> {
        AcquireContext {
            core: &self.session.core,
            keeper: &self.session.keeper,
            wait,
            lease,
            reclaim_dead: self.options.reclaim_dead,
            gate: self.gate.as_deref(),
        }
    }

    /// The new hold on the lock or on one slot. Its thread has been waiting since it `began`.
    pub(super) fn hold(self, taken: Taken, began: Moment) -> Hold {
        let counters = &self.session.core.counters;
        let Taken { token, number, at } = taken;
        counters.of(self.key.name()).taken(at.answered.since(began));
        let index = number.and_then(|it| usize::try_from(it - 1).ok());
        let slot = index.and_then(|it| self.key.slots().get(it)).cloned();
        let fence = number.filter(|_| slot.is_none());
        let key = slot.unwrap_or(self.key);
        Hold::new(key, self.thread, token, fence, self.options, at)
    }
}

fn behind_an_outage(words: Option<&str>) -> Failure {
    let front = "the thread in front of it in the queue got no answer";
    Failure::NotSent(words.map_or_else(|| front.into(), |words| format!("{front}: {words}").into()))
}
