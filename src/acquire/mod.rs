//! Taking a lock that this thread does not hold: asking, waiting, giving up.
//!
//! [`acquire`] is the loop, [`claim`] one attempt over the wire and what a lost answer leaves behind.
//! May use `keeping`, `waiting`, `hold`, `store` and `base`.

mod claim;

use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use log::{debug, info};

use crate::acquire::claim::{Answer, PendingClaim};
use crate::base::backoff::{Backoff, safety_poll};
use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::holder::Holder;
use crate::base::key::{Key, NOT_A_STRING};
use crate::base::machine;
use crate::base::options::Lease;
use crate::base::owner::Owner;
use crate::base::stats::Counters;
use crate::hold::AcquiredAt;
use crate::keeping::keeper::Keeper;
use crate::keeping::thread_map;
use crate::store::{Cause, Compared, Failure, Store};
use crate::waiting::listener::Listener;
use crate::waiting::patience::{Attempts, Kind, Patience, Unending, Verdict};
use crate::waiting::queues::Turn;
use crate::waiting::waiter::{Claim, HandoffOutcome};
use crate::waiting::wakeups::Registration;

/// The shortest pause between two looks: Redis may be a moment late in letting an expired key go.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// How long before the deadline a waiter looks for the last time.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// How often a waiter looks whether the holder is dead, where that matters.
const GLANCE: Duration = Duration::from_millis(50);

/// What is taken, for whom, and by what means.
#[derive(Clone, Copy)]
pub(crate) struct AcquireContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) listener: &'a Arc<Listener>,
    pub(crate) counters: &'a Counters,
    pub(crate) keeper: &'a Keeper,
    pub(crate) key: &'a Key,
    pub(crate) owner: &'a Owner,
    /// The digits that tokens of this machine begin their nonce with.
    pub(crate) machine: &'a str,
    pub(crate) lease: Lease,
    pub(crate) reclaim_dead: bool,
    /// The longest pause between two looks while Redis sends no invalidations.
    pub(crate) poll_every: Duration,
}

/// Redis holds this token for the caller.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) token: String,
    pub(crate) at: AcquiredAt,
}

/// The error of a wait that ends while the lock is busy; with a cause where the time was over before
/// Redis could say so.
pub(crate) fn busy(key: &Key, patience: &Patience, holder: Option<Holder>, cause: Option<Cause>) -> Error {
    let waited = Moment::now().since(patience.began);
    Error::Timeout { key: key.name().to_string(), waited, holder: holder.map(Box::new), source: cause }
}

/// What an attempt asks Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// For the lock: the answer does not say who has it.
    ClaimReply,
    /// For the lock, and who has it.
    ClaimOrLook,
    /// Who has it.
    Look,
}

/// Takes the lock for the thread that has the turn; it may have been handed on to it already.
pub(crate) fn acquire(
    context: AcquireContext<'_>,
    patience: &Patience,
    turn: &Turn,
    claim: Claim,
) -> Result<Taken, Error> {
    let handed = turn.start.handed;
    if let HandoffOutcome::Taken { sent, answered } = handed
        && Moment::now() < claim.lease.valid_until(sent)
    {
        context.counters.handed_on.add(1);
        return Ok(Taken { token: claim.token, at: AcquiredAt { sent, answered } });
    }
    let pending = PendingClaim::new(context, claim, handed, !patience.once);
    let claimant = Claimant {
        context,
        pending,
        patience,
        turn,
        registration: None,
        looked_late: false,
        reclaimed: false,
        unheard: None,
        unending: Unending::default(),
        attempts: turn.start.attempts.clone(),
    };
    claimant.run()
}

/// One acquisition, over as many attempts as it takes.
struct Claimant<'a> {
    context: AcquireContext<'a>,
    pending: PendingClaim<'a>,
    patience: &'a Patience,
    turn: &'a Turn,
    /// From the first busy answer on: what wakes it up.
    registration: Option<Registration<'a>>,
    /// There was a last look before the deadline, or will be.
    looked_late: bool,
    /// It took the lock away from the dead once.
    reclaimed: bool,
    /// The listener that was silent through the last, long pause.
    unheard: Option<u64>,
    /// What the last look found without expiry.
    unending: Unending,
    attempts: Attempts,
}

impl Claimant<'_> {
    fn run(mut self) -> Result<Taken, Error> {
        let mut while_busy = Backoff::for_busy(self.context.poll_every);
        let mut after_failure = Backoff::after_failure();
        let (mut ask, mut told) = (Ask::ClaimReply, false);
        let nap = if self.patience.once { Duration::ZERO } else { self.turn.start.nap };
        if !nap.is_zero() {
            self.nap(nap);
        }
        let crowded = self.turn.start.crowded && !self.patience.once;
        if crowded || !self.pending.has_left_nothing() {
            self.register();
            ask = Ask::ClaimOrLook;
        }
        let mut seen = None;
        loop {
            match self.ask(ask) {
                Ok(Answer::Taken(taken)) => {
                    self.check_hearing(None, seen.as_ref());
                    return Ok(taken);
                }
                Ok(Answer::Busy { holder, heard }) => {
                    self.hear();
                    after_failure.reset();
                    let holder = self.examine(holder)?;
                    if self.reclaims(holder.as_ref()) {
                        (seen, ask, told) = (None, Ask::ClaimOrLook, false);
                        continue;
                    }
                    self.check_hearing(holder.as_ref(), seen.as_ref());
                    self.waits(told);
                    let goes_on = if self.patience.once {
                        let until = self.unending.left(Moment::now());
                        ask == Ask::ClaimReply || until.is_some_and(|until| self.sleep(until))
                    } else if let (Some(holder), true) = (&holder, self.registration.is_some()) {
                        self.pause(while_busy.pause(), heard, holder)
                    } else {
                        // The answer does not say who has the lock, nor will Redis tell of its end:
                        // asked once more, at once.
                        self.register();
                        true
                    };
                    (seen, told) = (holder.or(seen), true);
                    if !goes_on {
                        return Err(busy(self.context.key, self.patience, seen, None));
                    }
                }
                Ok(Answer::NotAString) => {
                    self.hear();
                    return Err(self.context.key.not_a_lock(NOT_A_STRING));
                }
                Err(failure) => {
                    if let Some(end) = self.failed(failure, &mut after_failure, &mut seen) {
                        return Err(end);
                    }
                }
            }
            // The holder's lease says how long to pause at most.
            let only_look = self.patience.once && told && self.pending.has_left_nothing();
            ask = if only_look { Ask::Look } else { Ask::ClaimOrLook };
        }
    }

    fn hear(&mut self) {
        self.attempts.hear();
        self.turn.answered();
    }

    fn ask(&mut self, ask: Ask) -> Result<Answer, Failure> {
        self.turn.asks();
        if self.registration.as_ref().is_some_and(Registration::forget) {
            self.unheard = None; // The call came since.
        }
        match ask {
            Ask::Look => self.pending.look(self.patience.deadline),
            _ => self.pending.attempt(ask == Ask::ClaimOrLook, self.patience.deadline),
        }
    }

    /// The lock is busy: where that is waited for, a listener is worth while.
    fn waits(&self, told: bool) {
        if !self.patience.once {
            self.context.listener.start();
            self.context.counters.waited.add(u64::from(!told && !self.turn.waited));
        }
    }

    /// From now on, the listener's call is heard. (Before Redis is asked to tell of a change: that
    /// may come at once.)
    fn register(&mut self) {
        let context = self.context;
        self.registration.get_or_insert_with(|| context.listener.wakeups.register(context.key.in_redis()));
    }

    /// Looks at who has the lock: waiting for some of them would never end.
    fn examine(&mut self, holder: Option<Holder>) -> Result<Option<Holder>, Error> {
        let Some(holder) = holder else {
            return Ok(None);
        };
        if thread_map::is_mine(holder.raw(), self.context.owner.pid()) {
            return Err(Error::WouldDeadlock { key: self.context.key.name().to_string() });
        }
        let lease = if self.patience.once { Duration::ZERO } else { self.context.lease.time() };
        self.unending.saw(&holder, lease, Moment::now());
        if self.unending.left(Moment::now()) == Some(Duration::ZERO) {
            return Err(self.context.key.not_a_lock(&holder.to_string()));
        }
        let of_this_process = holder.owner().is_some_and(|owner| owner.pid() == self.context.owner.pid());
        let took = Moment::now().since(self.pending.tried_since);
        self.turn.saw(&holder, took, of_this_process);
        Ok(Some(holder))
    }

    /// True where the holder is certainly dead, and that matters.
    fn is_dead(&self, holder: &Holder) -> bool {
        let AcquireContext { owner, machine, reclaim_dead, .. } = self.context;
        reclaim_dead && machine::is_dead(holder.raw(), owner.host(), machine)
    }

    /// Takes a lock away from a process of this machine that is certainly dead: true where it is free now. (Once:
    /// if there is always another, they are waited for like anybody.)
    fn reclaims(&mut self, holder: Option<&Holder>) -> bool {
        let AcquireContext { store, counters, key, .. } = self.context;
        let Some(holder) = holder.filter(|holder| self.is_dead(holder)) else {
            return false;
        };
        // Exactly the dead one's token; an answer that is lost is found out by the next look.
        let removed = store.checkout(self.patience.deadline).and_then(|mut connection| {
            connection.remove(key.in_redis(), holder.raw(), self.patience.deadline)
        });
        let reclaimed = matches!(removed, Ok(Compared::Done));
        if reclaimed {
            counters.reclaimed.add(1);
            info!(target: "relatch::acquire", "lock {:?} was taken over from {holder}, a process that is gone", key.name());
        }
        reclaimed && !mem::replace(&mut self.reclaimed, true)
    }

    /// Sleeps until word comes or, without a listener, for as long as `poll` says; but not past the
    /// end of the holder's lease, nor past the deadline: false where that has come. No connection is held
    /// meanwhile.
    fn pause(&mut self, poll: Duration, heard: bool, holder: &Holder) -> bool {
        let pause = if heard { safety_poll() } else { poll }.min(self.until_last_look());
        let now = Moment::now();
        let lease_left = holder.time_left().or(self.unending.left(now)).unwrap_or(Duration::MAX);
        let until = now.after(pause.min(lease_left).max(SHORTEST_PAUSE)).min(self.patience.deadline);
        let called = self.doze(until, holder);
        if !called && heard && pause < lease_left && until <= Moment::now() {
            self.unheard = self.context.listener.number();
        }
        if heard {
            self.nap(self.turn.nap());
        }
        Moment::now() < self.patience.deadline
    }

    /// Sleeps until it is called, or so long, or until a holder has died that may be taken for dead: Redis does not tell of
    /// that. True where it was called.
    fn doze(&self, until: Moment, holder: &Holder) -> bool {
        loop {
            let glance = if self.context.reclaim_dead { Moment::now().after(GLANCE) } else { Moment::NEVER };
            let called =
                self.registration.as_ref().is_some_and(|registration| registration.wait(until.min(glance)));
            if called || until <= Moment::now() || self.is_dead(holder) {
                return called;
            }
        }
    }

    /// How long to sleep at most, so as to look once more before the deadline: it is not enough that nobody has said that the
    /// lock is free, Redis has to be there to say so.
    fn until_last_look(&mut self) -> Duration {
        let left = self.patience.deadline.since(Moment::now());
        let looked = mem::replace(&mut self.looked_late, true);
        if left > LAST_LOOK {
            left.saturating_sub(LAST_LOOK)
        } else if looked {
            left
        } else {
            left / 2
        }
    }

    /// Sleeps, but not past the deadline: false where that has come.
    fn sleep(&self, pause: Duration) -> bool {
        thread::sleep(pause.min(self.patience.deadline.since(Moment::now())));
        Moment::now() < self.patience.deadline
    }

    /// After a pause without word: somebody else has the lock by now, or nobody. Then the listener is deaf, and does not know.
    fn check_hearing(&mut self, holder: Option<&Holder>, before: Option<&Holder>) {
        if let Some(number) = self.unheard.take()
            && holder.map(Holder::raw) != before.map(Holder::raw)
        {
            self.context.listener.give_up(number, &"there was no word of a change");
        }
    }

    /// Leaves the lock to other processes for so long; but looks once more before the deadline.
    fn nap(&self, nap: Duration) {
        self.sleep(nap.min(self.patience.deadline.since(Moment::now()) / 2));
    }

    /// Takes in that an attempt failed: what the wait ends with, if it is over.
    fn failed(
        &mut self,
        failure: Failure,
        after_failure: &mut Backoff,
        seen: &mut Option<Holder>,
    ) -> Option<Error> {
        let kind = self.attempts.fail(&failure, self.pending.tried_since);
        if kind == Kind::OutOfTime {
            self.attempts.refute(|since| self.context.store.pool.answered_since(since));
        } else {
            self.turn.failed(self.attempts.silence.as_ref());
        }
        let mut verdict = self.attempts.judge(self.patience, kind);
        // The first failure may be a connection that had gone stale: the next one is not.
        let pauses = verdict == Verdict::TryAgain && self.attempts.failed != 1;
        if pauses && !self.sleep(after_failure.pause()) {
            verdict = self.attempts.judge(self.patience, kind);
        }
        match verdict {
            Verdict::TryAgain => {
                debug!(target: "relatch::acquire", "taking lock {:?}: {failure:?}, trying again", self.context.key.name());
                None
            }
            Verdict::Busy => {
                self.turn.failed(None); // It had too little time to say anything of Redis.
                let cause = failure.into_cause();
                Some(busy(self.context.key, self.patience, seen.take(), Some(cause)))
            }
            Verdict::GiveUp => {
                if kind == Kind::Final {
                    self.turn.answered();
                }
                let action = format!("taking lock {:?}", self.context.key.name());
                Some(self.context.store.error(action, self.attempts.cause(failure)))
            }
        }
    }
}
