//! What a thread that wants a lock does next: decided from what it has found out, and the time.
//!
//! Nothing here reads the clock, asks Redis or sleeps: the loop in [`acquire`](super) does, and says
//! what came of it, and when.

use std::mem;
use std::time::Duration;

use crate::base::backoff::{Backoff, safety_poll};
use crate::base::clock::Moment;
use crate::base::holder::Holder;
use crate::store::Failure;
use crate::waiting::patience::{Attempts, Kind, Patience, Silence, Unending, Verdict};

/// The shortest sleep of a waiter: Redis may delete an expired key a moment late.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// How long before the deadline a waiter looks for the last time.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// What an attempt asks Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// For the lock. The answer does not say who has it.
    Claim,
    /// For the lock, and who has it.
    ClaimOrLook,
    /// Who has it.
    Look,
}

/// What to do before the next attempt.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing.
    Ask,
    /// Register for wake-ups.
    Register,
    /// Sleep, and let nothing wake the thread.
    Sleep { until: Moment },
    /// Sleep until a wake-up. `tracked` says that Redis will tell of a change; `long`, that there
    /// should be a wake-up where the key changes meanwhile.
    Wait { until: Moment, tracked: bool, long: bool },
    /// There is no next attempt.
    GiveUp(End),
}

/// How the wait for a lock ends without it.
#[derive(Debug)]
pub(super) enum End {
    /// The lock is busy. With a failure, the time was over before Redis could say so.
    Busy { holder: Option<Holder>, failure: Option<Failure> },
    /// Redis does not answer as it should, and waiting does not help or has lasted too long.
    Unavailable { failure: Failure, final_answer: bool },
    /// This thread holds the lock, through another manager.
    WouldDeadlock,
    /// The key will not expire, and no holder is going to change that.
    NotALock { found: String },
}

/// What a thread that wants a lock has found out so far.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Progress<'a> {
    patience: &'a Patience,
    /// How long the lock would be taken for.
    lease: Duration,
    ask: Ask,
    /// An attempt has found the lock busy.
    was_busy: bool,
    /// The last holder that an answer named.
    holder: Option<Holder>,
    /// Since when the key exists without expiry, if it does.
    unending: Unending,
    /// From the first busy answer on, or sooner, a wake-up reaches the thread.
    registered: bool,
    /// It looked once more before the deadline, or its next sleep ends in time for that.
    looked_late: bool,
    /// It took the lock away from a dead process once.
    reclaimed: bool,
    while_busy: Backoff,
    after_failure: Backoff,
    attempts: Attempts,
    /// What went wrong in the last attempt, if anything did.
    failure: Option<(Failure, Kind)>,
    /// The listener that was silent through a long sleep.
    silent_listener: Option<u64>,
}

impl<'a> Progress<'a> {
    /// `attempts` is what the threads before this one in the queue have found out about Redis.
    pub(super) fn new(
        patience: &'a Patience,
        lease: Duration,
        poll_every: Duration,
        attempts: Attempts,
    ) -> Progress<'a> {
        Progress {
            patience,
            lease,
            ask: Ask::Claim,
            was_busy: false,
            holder: None,
            unending: Unending::default(),
            registered: false,
            looked_late: false,
            reclaimed: false,
            while_busy: Backoff::for_busy(poll_every),
            after_failure: Backoff::after_failure(),
            attempts,
            failure: None,
            silent_listener: None,
        }
    }

    /// The lock is hardly free: the first attempt asks who has it, too.
    pub(super) fn expects_busy(&mut self) -> Step {
        (self.registered, self.ask) = (true, Ask::ClaimOrLook);
        Step::Register
    }

    /// What the next attempt asks.
    ///
    /// Where one answer is enough, there is a second attempt only to learn who has the lock. But where
    /// a token was given up, that may be what keeps the lock busy, and only a claim removes it.
    pub(super) fn ask(&self, has_given_up: bool) -> Ask {
        let enough = self.patience.once && self.was_busy && !has_given_up;
        if enough { Ask::Look } else { self.ask }
    }

    pub(super) fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// What went wrong in the last attempt.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref().map(|(failure, _)| failure)
    }

    pub(super) fn silence(&self) -> Option<&Silence> {
        self.attempts.silence.as_ref()
    }

    /// Redis has given a proper answer.
    pub(super) fn answered(&mut self) {
        self.attempts.hear();
        self.after_failure.reset();
        self.failure = None;
    }

    /// The answer at `now` names a holder: the end, where waiting for this one would never end.
    pub(super) fn examine(&mut self, holder: &Holder, is_mine: bool, now: Moment) -> Option<End> {
        if is_mine {
            return Some(End::WouldDeadlock);
        }
        let lease = if self.patience.once { Duration::ZERO } else { self.lease };
        self.unending.saw(holder, lease, now);
        let no_lock = self.unending.left(now) == Some(Duration::ZERO);
        no_lock.then(|| End::NotALock { found: holder.to_string() })
    }

    /// The key of a dead holder was deleted: true where that is a reason to ask at once. Once only: if
    /// there is always another dead holder, they are waited for like any other.
    pub(super) fn reclaimed(&mut self) -> bool {
        if mem::replace(&mut self.reclaimed, true) {
            return false;
        }
        (self.holder, self.ask, self.was_busy) = (None, Ask::ClaimOrLook, false);
        true
    }

    /// The listener that missed a change: the lock is another `holder`'s than before a long sleep
    /// (nobody's, where this thread took it), and no wake-up has come.
    pub(super) fn missed_change(&mut self, holder: Option<&Holder>) -> Option<u64> {
        let changed = holder.map(Holder::raw) != self.holder.as_ref().map(Holder::raw);
        self.silent_listener.take().filter(|_| changed)
    }

    /// True for the first answer that finds the lock busy.
    pub(super) fn is_first_busy(&self) -> bool {
        !self.was_busy
    }

    /// The lock is busy at `now`. `tracked` says that Redis will tell of a change.
    pub(super) fn busy(&mut self, holder: Option<Holder>, tracked: bool, now: Moment) -> Step {
        let asked = mem::replace(&mut self.ask, Ask::ClaimOrLook);
        self.was_busy = true;
        let lease_left = holder.as_ref().map(|holder| holder.time_left().or(self.unending.left(now)));
        self.holder = holder.or_else(|| self.holder.take());
        if self.patience.once {
            return match self.unending.left(now) {
                _ if asked == Ask::Claim => Step::Ask,
                // Is it still there when its holder should have repaired it?
                Some(left) => Step::Sleep { until: now.after(left).min(self.patience.deadline) },
                None => Step::GiveUp(self.end_busy()),
            };
        }
        match lease_left {
            Some(lease_left) if self.registered => self.wait(lease_left, tracked, now),
            // The answer does not say who has the lock, nor will Redis tell of a change.
            _ => {
                self.registered = true;
                Step::Register
            }
        }
    }

    /// Until a wake-up or, where Redis does not tell of a change, for one pause; but neither past the
    /// end of the holder's lease, nor past the deadline.
    fn wait(&mut self, lease_left: Option<Duration>, tracked: bool, now: Moment) -> Step {
        let poll = self.while_busy.pause();
        let pause = if tracked { safety_poll() } else { poll }.min(self.until_last_look(now));
        let lease_left = lease_left.unwrap_or(Duration::MAX);
        let long = tracked && pause < lease_left;
        let pause = pause.min(lease_left).max(SHORTEST_PAUSE);
        Step::Wait { until: now.after(pause).min(self.patience.deadline), tracked, long }
    }

    /// How long to sleep at most, so as to look once more before the deadline: it is not enough that
    /// no wake-up came, since Redis may be gone.
    fn until_last_look(&mut self, now: Moment) -> Duration {
        let left = self.patience.deadline.since(now);
        let looked = mem::replace(&mut self.looked_late, true);
        if left > LAST_LOOK {
            left.saturating_sub(LAST_LOOK)
        } else if looked {
            left
        } else {
            left / 2
        }
    }

    /// A long sleep has ended without a wake-up, and this listener is there.
    pub(super) fn not_woken(&mut self, listener: Option<u64>) {
        self.silent_listener = listener;
    }

    /// A wake-up has come, if late: the listener receives invalidations.
    pub(super) fn woken(&mut self) {
        self.silent_listener = None;
    }

    /// Until when to leave the lock to other processes for `nap`, and look once more before the
    /// deadline.
    pub(super) fn nap_until(&self, nap: Duration, now: Moment) -> Moment {
        now.after(nap.min(self.patience.deadline.since(now) / 2))
    }

    /// A sleep has ended at `now`: the end, where the deadline has come.
    pub(super) fn slept(&mut self, now: Moment) -> Option<End> {
        if now < self.patience.deadline {
            return None;
        }
        match self.failure.take() {
            Some((failure, kind)) => self.judge(failure, kind, now).err(),
            None => Some(self.end_busy()),
        }
    }

    /// An attempt failed that began at `since`: what that says of Redis.
    pub(super) fn failed(
        &mut self,
        failure: &Failure,
        since: Moment,
        answered_since: impl Fn(Moment) -> bool,
    ) -> Kind {
        (self.ask, self.failure) = (Ask::ClaimOrLook, None);
        let kind = self.attempts.fail(failure, since);
        if kind == Kind::OutOfTime {
            self.attempts.refute(answered_since);
        }
        kind
    }

    /// What to do at `now` after a failure of this kind.
    pub(super) fn after_failure(&mut self, failure: Failure, kind: Kind, now: Moment) -> Step {
        let failure = match self.judge(failure, kind, now) {
            Ok(failure) => failure,
            Err(end) => return Step::GiveUp(end),
        };
        self.failure = Some((failure, kind));
        // The first failure may be a connection that had gone stale: the next one is not.
        if self.attempts.failed == 1 {
            return Step::Ask;
        }
        Step::Sleep { until: now.after(self.after_failure.pause()).min(self.patience.deadline) }
    }

    /// Gives the failure back where another attempt may help.
    fn judge(&mut self, failure: Failure, kind: Kind, now: Moment) -> Result<Failure, End> {
        let Attempts { silence, failed, .. } = &self.attempts;
        match self.patience.judge(now, kind, silence.as_ref(), *failed) {
            Verdict::TryAgain => Ok(failure),
            Verdict::Busy => Err(End::Busy { holder: self.holder.take(), failure: Some(failure) }),
            Verdict::GiveUp => Err(End::Unavailable {
                failure: self.attempts.cause(failure),
                final_answer: kind == Kind::Final,
            }),
        }
    }

    fn end_busy(&mut self) -> End {
        End::Busy { holder: self.holder.take(), failure: None }
    }
}
