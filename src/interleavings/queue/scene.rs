//! One key, and the threads that wait for it, take it and give it back.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Lease;
use crate::base::sync::scheduler::{advance, below, one_in, step};
use crate::base::sync::thread;
use crate::hold::{Hold, tests::sample_by};
use crate::interleavings::expiring_key::Redis;
use crate::keeping::keeper::tests::keeper_without_redis;
use crate::keeping::work::Keeper;
use crate::session::release::{Release, Tried};
use crate::store::Failure;
use crate::waiting::handoff::{Claim, HandoffOutcome};
use crate::waiting::patience::tests::until;
use crate::waiting::place::NoTurn;
use crate::waiting::queues::{Joined, Turn};
use crate::waiting::wait::tests::WaitRig;

/// Longer than any scene, unless the clock is advanced.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// The lease of holds that run out.
pub(super) const SHORT: Duration = Duration::from_millis(30);

/// How long a release may wait for an answer.
const ANSWER: Duration = Duration::from_millis(4);

/// The time within which each orphan falls due.
const SOON: Duration = Duration::from_millis(20);

pub(super) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn micros_below(most: u64) -> Duration {
    Duration::from_micros(below(most))
}

/// One key, the threads that want it, and a log of what they did.
pub(super) struct Scene {
    pub(super) keeper: Arc<Keeper>,
    redis: Redis,
    lease: Duration,
    /// Never locked while another thread may run: shuttle cannot switch threads at this mutex.
    pub(super) log: parking_lot::Mutex<Log>,
}

#[derive(Default)]
pub(super) struct Log {
    /// The threads that waited, and those of them that got the turn, each in order.
    pub(super) arrived: Vec<u64>,
    pub(super) served: Vec<u64>,
    /// The threads whose claim was sent after a release, those that learned what came of it, and
    /// those that had given up.
    sent_for: Vec<u64>,
    handed: Vec<u64>,
    gone: Vec<u64>,
    /// How many releases returned that the lock was lost.
    pub(super) losses: u64,
    /// The turns of guards that were forgotten.
    forgotten: Vec<Turn>,
    front: Option<Front>,
}

/// The thread that has the turn.
struct Front {
    who: u64,
    hold: Option<(Arc<Hold>, Moment)>,
    handing_off: bool,
}

impl Log {
    /// Changes what is known about the front, if this thread is the front.
    fn in_front(&mut self, me: u64, change: impl FnOnce(&mut Front)) {
        if let Some(front) = self.front.as_mut().filter(|front| front.who == me) {
            change(front);
        }
    }
}

impl Scene {
    pub(super) fn new(lease: Duration) -> Arc<Scene> {
        let (keeper, redis, log) = (
            keeper_without_redis(),
            Redis::default(),
            parking_lot::Mutex::default(),
        );
        Arc::new(Scene {
            keeper,
            redis,
            lease,
            log,
        })
    }

    /// Waits for the turn, takes the lock, holds it for a while, and releases it. False if there
    /// was no turn.
    pub(super) fn visit(&self, me: u64, deadline: Moment) -> bool {
        let claim = || {
            self.log.lock().arrived.push(me);
            Claim {
                token: me.to_string().into(),
                lease: Lease::new(self.lease),
                counter: None,
            }
        };
        let rig = WaitRig::new();
        let patience = until(deadline);
        let queues = &self.keeper.core.queues;
        let Joined {
            turn,
            start,
            waited,
        } = match queues.join(&"key".into(), &rig.wait(&patience), claim) {
            Ok(joined) => joined,
            Err(NoTurn::MustNotWait(_) | NoTurn::Outage(_)) => {
                panic!("no thread holds it itself, and Redis answers")
            }
            Err(NoTurn::Busy { .. }) => {
                assert!(deadline <= Moment::now(), "it gave up too early");
                self.log.lock().gone.push(me);
                return false;
            }
        };
        let handed = start.handed;
        self.begin(me, waited, handed);
        let token = self.take(me, handed);
        let hold = Arc::new(sample_by(&token, self.lease));
        let until = hold.valid_until();
        turn.holds(&hold);
        let held = Some((Arc::clone(&hold), until));
        self.log.lock().in_front(me, |front| front.hold = held);
        self.keeper.enter(&hold).expect("no thread is started");
        advance(micros_below(800));
        step();
        match self.lease {
            SHORT if one_in(3) => self.log.lock().forgotten.push(turn),
            SHORT if one_in(2) => {
                advance(SHORT);
                step();
                self.leave(me, turn, &hold);
            }
            _ => self.leave(me, turn, &hold),
        }
        true
    }

    /// A turn starts, and no other thread has it.
    fn begin(&self, me: u64, waited: bool, handed: HandoffOutcome) {
        let before = self.log.lock().front.replace(Front {
            who: me,
            hold: None,
            handing_off: false,
        });
        if let Some(before) = before {
            assert!(
                !before.handing_off,
                "the turn was taken while it was handed off"
            );
            let (hold, until) = before.hold.expect("two threads have the turn");
            // During a release, `is_over` is false even if the lease ran out before the release
            // began.
            let over = hold.is_over(Moment::now()) || until <= Moment::now();
            assert!(over, "the turn was taken from a thread that holds the lock");
        }
        let mut log = self.log.lock();
        if waited {
            log.served.push(me);
        }
        if handed != HandoffOutcome::NotTaken {
            log.handed.push(me);
        }
    }

    /// Takes the lock, unless it was handed off. Returns the token.
    fn take(&self, me: u64, handed: HandoffOutcome) -> String {
        let (claim, stored) = (me.to_string(), self.redis.token());
        let token = match handed {
            HandoffOutcome::Taken { .. } if stored.as_ref() == Some(&claim) => return claim,
            HandoffOutcome::Taken { .. } if self.lease == LONG => {
                panic!("the lock was handed off, and its key is absent")
            }
            HandoffOutcome::Unanswered { .. } => format!("{me} again"),
            _ => claim,
        };
        let mut tries = 0;
        while !self.redis.claim(&token, self.lease) {
            tries += 1;
            assert!(
                tries < 5_000,
                "a token that no thread uses keeps the lock busy"
            );
            assert_ne!(
                self.redis.token().as_ref(),
                Some(&token),
                "another thread has sent this token"
            );
            advance(millis(1)); // A key expires, or is deleted late.
            self.clean_up();
            thread::yield_now();
        }
        token
    }

    /// Deletes the orphans, as the keeper does.
    fn clean_up(&self) {
        let soon = Moment::now().after(SOON);
        let orphans = self.keeper.work.lock().tokens.take_all_orphans(soon);
        for orphan in orphans {
            self.redis.remove(&orphan.token);
        }
    }

    /// Releases the lock.
    fn leave(&self, me: u64, turn: Turn, hold: &Hold) {
        let local_handoff = if one_in(4) {
            Duration::ZERO
        } else {
            Duration::from_micros(below(200))
        };
        let handing = |is_handing| {
            let mut log = self.log.lock();
            log.in_front(me, |front| front.handing_off = is_handing);
        };
        let deadline = Moment::now().after(ANSWER);
        let ask = |claim: Option<&Claim>, _| {
            assert!(
                !hold.is_valid(Moment::now()),
                "it is trusted while its release is under way"
            );
            handing(claim.is_some());
            let tried = self.ask(hold, claim);
            handing(false);
            tried
        };
        let begun =
            Release::begin(&self.keeper, hold, turn, local_handoff, Some(deadline)).unwrap();
        let released = begun.finish_by(ask);
        let is_lost = matches!(released, Err(Error::Lost { .. }));
        assert_eq!(hold.lost().is_some(), is_lost, "{released:?}");
        assert!(hold.is_over(Moment::now()), "{released:?}");
        let mut log = self.log.lock();
        log.front.take_if(|front| front.who == me);
        log.losses += u64::from(is_lost);
    }

    /// One try of a release. The try or its answer may be lost.
    fn ask(&self, hold: &Hold, claim: Option<&Claim>) -> Tried {
        let sent = Moment::now();
        let answer = (!one_in(4)).then(|| {
            let compared = self.redis.remove(&hold.token);
            (
                compared,
                claim.is_some_and(|claim| !one_in(4) && self.redis.claim(&claim.token, self.lease)),
            )
        });
        advance(micros_below(3_000));
        step();
        let answer = answer.filter(|_| !one_in(4));
        let handed = match (claim, &answer) {
            (Some(claim), None) => {
                if one_in(2) {
                    // The real release writes this deletion after the claim.
                    self.redis.remove(&claim.token);
                }
                HandoffOutcome::Unanswered { sent }
            }
            (Some(_), Some((_, true))) => HandoffOutcome::Taken {
                sent,
                answered: Moment::now(),
                fence: None,
            },
            _ => HandoffOutcome::NotTaken,
        };
        if let Some(claim) = claim.filter(|_| handed != HandoffOutcome::NotTaken) {
            let next = claim.token.parse().expect("a number");
            let mut log = self.log.lock();
            assert!(!log.sent_for.contains(&next), "its claim was sent twice");
            log.sent_for.push(next);
        }
        let lost = || Failure::Unanswered {
            link_stands: false,
            cause: "no answer".into(),
        };
        let answer = answer.map(|(compared, _)| compared);
        (answer.ok_or_else(lost), handed)
    }

    /// Takes the turn, which no thread has or waits for.
    pub(super) fn free_turn(&self) -> Turn {
        self.keeper.core.queues.free_turn(&"key".into())
    }

    /// Checks that the threads left nothing behind, and that those that waited got the turn in the
    /// order in which they came.
    pub(super) fn end(&self) {
        self.clean_up();
        if self.lease == SHORT {
            advance(SHORT);
        }
        assert_eq!(self.redis.token(), None, "a token was left behind");
        drop(self.free_turn());
        let log = &mut *self.log.lock();
        let mut arrived = log.arrived.iter();
        assert!(
            log.served
                .iter()
                .all(|one| arrived.any(|other| one == other)),
            "{:?} came, and {:?} had the turn",
            log.arrived,
            log.served
        );
        assert!(
            log.handed.iter().all(|one| log.sent_for.contains(one)),
            "another thread learned what came of a claim"
        );
        let learned = |one: &u64| log.handed.contains(one) || log.gone.contains(one);
        assert!(
            log.sent_for.iter().all(learned),
            "a claim was sent, and its thread did not learn it"
        );
        assert_eq!(
            self.keeper.core.counters.read().lost,
            log.losses,
            "each loss is reported once, and no release as a loss"
        );
    }
}
