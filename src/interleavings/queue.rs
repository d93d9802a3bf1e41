//! The line of a key, in many orders of what its threads do: the real queue and the real steps of a release, and a Redis of one key
//! beside them.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread::{self, JoinHandle};

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::holder::Holder;
use crate::base::options::Lease;
use crate::base::scheduler::{advance, below, in_many_orders, one_in, step};
use crate::base::sync::Mutex;
use crate::hold::{Hold, tests::sample_by};
use crate::keeping::keeper::{Keeper, tests::keeper_without_redis};
use crate::release::give_back;
use crate::store::{Compared, Failure};
use crate::waiting::handoff::{Claim, HandoffOutcome};
use crate::waiting::patience::tests::until;
use crate::waiting::queues::{NoTurn, Turn};

/// Longer than any run, unless time is let pass.
const LONG: Duration = Duration::from_secs(30);

/// Of holds that end by themselves.
const SHORT: Duration = Duration::from_millis(30);

/// How long a release may take, by what is promised to the next in line.
const ANSWER: Duration = Duration::from_millis(4);

/// What is owed is due by then.
const SOON: Duration = Duration::from_millis(20);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn micros_below(most: u64) -> Duration {
    Duration::from_micros(below(most))
}

/// A Redis of one key: whose token stands there, and until when.
#[derive(Default)]
struct Redis {
    key: Mutex<Option<(String, Moment)>>,
}

impl Redis {
    /// `SET NX PX`.
    fn claim(&self, token: &str, lease: Duration) -> bool {
        let mut key = self.key.lock();
        let now = Moment::now();
        let free = key.as_ref().is_none_or(|(_, until)| *until <= now);
        if free {
            *key = Some((token.to_owned(), now.after(lease)));
        }
        free
    }

    /// Compare and delete.
    fn remove(&self, token: &str) -> Compared {
        let mut key = self.key.lock();
        let now = Moment::now();
        key.take_if(|(_, until)| *until <= now);
        match key.take_if(|(stands, _)| stands == token) {
            Some(_) => Compared::Done,
            None if key.is_some() => Compared::NotOurs,
            None => Compared::Absent,
        }
    }

    fn token(&self) -> Option<String> {
        let key = self.key.lock();
        key.as_ref().filter(|(_, until)| Moment::now() < *until).map(|(token, _)| token.clone())
    }
}

/// One key, those who want it, and what is written down of them.
struct Scene {
    keeper: Keeper,
    redis: Redis,
    lease: Duration,
    /// Not to be kept locked through a step.
    log: parking_lot::Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// Who came to stand in line, and who of them had the turn, each in order.
    arrived: Vec<u64>,
    served: Vec<u64>,
    /// Whose wish went out with a release, who heard what came of his, and who was gone by then.
    sent_for: Vec<u64>,
    heard: Vec<u64>,
    gone: Vec<u64>,
    /// How many were told of a loss.
    losses: u64,
    /// Turns that nobody will give back, of guards that were forgotten.
    lost: Vec<Turn>,
    front: Option<Front>,
}

/// Who has the turn.
struct Front {
    who: u64,
    hold: Option<(Arc<Hold>, Moment)>,
    handing: bool,
}

impl Scene {
    fn new(lease: Duration) -> Arc<Scene> {
        let (keeper, redis, log) = (keeper_without_redis(), Redis::default(), parking_lot::Mutex::default());
        Arc::new(Scene { keeper, redis, lease, log })
    }

    /// Joins the line, and with the turn takes the lock, has it for a while, and gives it back: false if there was no turn.
    fn visit(&self, me: u64, deadline: Moment) -> bool {
        let claim = || {
            self.log.lock().arrived.push(me);
            Claim { token: me.to_string(), lease: Lease::new(self.lease) }
        };
        let turn = match self.keeper.queues.join(
            &"key".into(),
            &until(deadline),
            |_| false,
            |_| true,
            |hold| self.keeper.look_after(hold),
            claim,
        ) {
            Ok(turn) => turn,
            Err(NoTurn::Mine | NoTurn::Outage(_)) => panic!("it is nobody's own, and Redis answers"),
            Err(NoTurn::Busy(_)) => {
                assert!(deadline <= Moment::now(), "it gave up too early");
                self.log.lock().gone.push(me);
                return false;
            }
        };
        let handed = turn.start.handed;
        self.begin(me, &turn, handed);
        let token = self.take(me, handed);
        let hold = Arc::new(sample_by(&token, self.lease));
        let until = hold.valid_until();
        turn.holds(&hold);
        if let Some(front) = self.log.lock().front.as_mut().filter(|front| front.who == me) {
            front.hold = Some((Arc::clone(&hold), until));
        }
        self.keeper.enter(&hold).expect("no thread is started");
        advance(micros_below(800));
        step();
        match self.lease {
            SHORT if one_in(3) => self.log.lock().lost.push(turn),
            SHORT if one_in(2) => {
                advance(SHORT);
                step();
                self.leave(me, turn, &hold);
            }
            _ => self.leave(me, turn, &hold),
        }
        true
    }

    /// Nobody has the turn but who begins.
    fn begin(&self, me: u64, turn: &Turn, handed: HandoffOutcome) {
        let before = self.log.lock().front.replace(Front { who: me, hold: None, handing: false });
        if let Some(before) = before {
            assert!(!before.handing, "the turn was taken while it was handed on");
            let (hold, until) = before.hold.expect("two have the turn");
            // Or was, before its release began.
            let over = hold.is_over(Moment::now()) || until <= Moment::now();
            assert!(over, "the turn was taken from one who holds");
        }
        let mut log = self.log.lock();
        if turn.waited {
            log.served.push(me);
        }
        if handed != HandoffOutcome::Nothing {
            log.heard.push(me);
        }
    }

    /// Takes the lock, as far as that is not done: by which token.
    fn take(&self, me: u64, handed: HandoffOutcome) -> String {
        let (claim, stands) = (me.to_string(), self.redis.token());
        let token = match handed {
            HandoffOutcome::Taken { .. } if stands.as_ref() == Some(&claim) => return claim,
            HandoffOutcome::Taken { .. } if self.lease == LONG => panic!("what was handed on is not there"),
            HandoffOutcome::Spoilt { .. } => format!("{me} again"),
            _ => claim,
        };
        let mut tries = 0;
        while !self.redis.claim(&token, self.lease) {
            tries += 1;
            assert!(tries < 5_000, "a token that nobody uses keeps the lock");
            assert_ne!(self.redis.token().as_ref(), Some(&token), "somebody asked for what is not his");
            advance(millis(1)); // A key runs out, or is being cleaned up.
            self.clean_up();
            thread::yield_now();
        }
        token
    }

    /// As the keeper does it.
    fn clean_up(&self) {
        let soon = Moment::now().after(SOON);
        let orphans = self.keeper.work.lock().leases.orphans.take_due(soon);
        for orphan in orphans {
            self.redis.remove(&orphan.token);
        }
    }

    /// Gives the lock back.
    fn leave(&self, me: u64, turn: Turn, hold: &Hold) {
        let local_handoff = if one_in(4) { Duration::ZERO } else { Duration::from_micros(below(200)) };
        let handing = |is_handing| {
            if let Some(front) = self.log.lock().front.as_mut().filter(|front| front.who == me) {
                front.handing = is_handing;
            }
        };
        let released = give_back(&self.keeper, hold, turn, local_handoff, ANSWER, |claim, handed, _| {
            assert!(!hold.is_valid(Moment::now()), "it is trusted while its release is under way");
            handing(claim.is_some());
            let compared = self.ask(hold, claim, handed);
            handing(false);
            compared
        });
        let is_lost = matches!(released, Err(Error::Lost { .. }));
        assert_eq!(hold.lost().is_some(), is_lost, "{released:?}");
        assert!(hold.is_over(Moment::now()), "{released:?}");
        let mut log = self.log.lock();
        log.front.take_if(|front| front.who == me);
        log.losses += u64::from(is_lost);
    }

    /// One try of a release: it arrives or does not, and so does the answer.
    fn ask(
        &self,
        hold: &Hold,
        claim: Option<&Claim>,
        handed: &mut HandoffOutcome,
    ) -> Result<Compared, Failure> {
        let sent = Moment::now();
        let answer = (!one_in(4)).then(|| {
            let compared = self.redis.remove(&hold.token);
            (compared, claim.is_some_and(|claim| !one_in(4) && self.redis.claim(&claim.token, self.lease)))
        });
        advance(micros_below(3_000));
        step();
        let answer = answer.filter(|_| !one_in(4));
        match (claim, &answer) {
            (Some(claim), None) => {
                *handed = HandoffOutcome::Spoilt { sent };
                if one_in(2) {
                    self.redis.remove(&claim.token); // Behind it, on the same connection.
                }
            }
            (Some(_), Some((_, true))) => *handed = HandoffOutcome::Taken { sent, answered: Moment::now() },
            _ => {}
        }
        if let Some(claim) = claim.filter(|_| *handed != HandoffOutcome::Nothing) {
            let (mut log, next) = (self.log.lock(), claim.token.parse().expect("a number"));
            assert!(!log.sent_for.contains(&next), "it was sent for twice");
            log.sent_for.push(next);
        }
        let lost = || Failure::Unanswered { link_stands: false, cause: "no answer".into() };
        answer.map(|(compared, _)| compared).ok_or_else(lost)
    }

    /// The turn, where no thread has it or waits for it.
    fn free_turn(&self) -> Turn {
        self.keeper.queues.free_turn(&"key".into())
    }

    /// Everybody has gone, and left nothing. Those who stood in line had the turn in the order in which they came.
    fn end(&self) {
        self.clean_up();
        if self.lease == SHORT {
            advance(SHORT);
        }
        assert_eq!(self.redis.token(), None, "a token was left behind");
        drop(self.free_turn());
        let log = &mut *self.log.lock();
        let mut arrived = log.arrived.iter();
        assert!(
            log.served.iter().all(|one| arrived.any(|other| one == other)),
            "{:?} came, and {:?} had the turn",
            log.arrived,
            log.served
        );
        assert!(log.heard.iter().all(|one| log.sent_for.contains(one)), "it was heard by another");
        let reached = |one: &u64| log.heard.contains(one) || log.gone.contains(one);
        assert!(log.sent_for.iter().all(reached), "what was sent for was not passed on");
        assert_eq!(self.keeper.counters.read().lost, log.losses, "a loss is told once, and no release");
    }
}

fn spawn(scene: &Arc<Scene>, visits: impl FnOnce(&Scene) + Send + 'static) -> JoinHandle<()> {
    let scene = Arc::clone(scene);
    thread::spawn(move || visits(&scene))
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("it ends");
    }
}

/// No wait ends by itself here: if somebody is not called, nobody goes on.
#[test]
fn everybody_in_line_has_the_turn_once_alone_and_in_the_order_of_arrival() {
    in_many_orders(1_000, Duration::ZERO, || {
        let scene = Scene::new(LONG);
        let visitor = |n: u64| {
            spawn(&scene, move |scene| {
                assert!(scene.visit(n, Moment::NEVER));
                assert!(scene.visit(n + 10, Moment::NEVER));
            })
        };
        let threads: Vec<_> = (0..3).map(visitor).collect();
        join(threads);
        scene.end();
        let log = scene.log.lock();
        assert_eq!(log.arrived, log.served);
    });
}

/// Of those who wait, some have a deadline, which may come at any moment. The others are called, or nobody goes on.
#[test]
fn whoever_gives_up_keeps_nobody_and_what_was_handed_to_him_is_cleaned_up() {
    in_many_orders(1_000, millis(100), || {
        let scene = Scene::new(LONG);
        let patient = |n| spawn(&scene, move |scene| assert!(scene.visit(n, Moment::NEVER)));
        let hasty = |n| {
            spawn(&scene, move |scene| {
                scene.visit(n, Moment::now().after(micros_below(20_000)));
                scene.visit(n + 10, Moment::PAST);
            })
        };
        let threads = [patient(0), hasty(1), hasty(2), patient(3)];
        join(threads);
        scene.end();
    });
}

/// Holds that run out, and turns that come back late or never: while they are passed by, or after.
#[test]
fn a_hold_that_is_over_is_passed_by_and_its_late_end_is_nobody_elses() {
    in_many_orders(1_000, Duration::from_secs(2), || {
        let scene = Scene::new(SHORT);
        let patient = |n| spawn(&scene, move |scene| assert!(scene.visit(n, Moment::NEVER)));
        let hasty = spawn(&scene, |scene| _ = scene.visit(1, Moment::now().after(micros_below(20_000))));
        let threads = [patient(0), hasty, patient(2), patient(3)];
        join(threads);
        scene.end();
    });
}

/// A lock is deleted, its holder does not notice, and the keeper tells of the loss. No wait ends by
/// itself here.
#[test]
fn the_first_in_line_is_called_when_the_hold_in_front_is_lost() {
    in_many_orders(800, Duration::ZERO, || {
        let scene = Scene::new(LONG);
        let turn = scene.free_turn();
        let hold = Arc::new(sample_by("deleted", LONG));
        turn.holds(&hold);
        let waiters = [1, 2].map(|n| spawn(&scene, move |scene| assert!(scene.visit(n, Moment::NEVER))));
        step();
        hold.lose(LostCause::Deleted);
        scene.keeper.tell(&hold);
        scene.log.lock().losses += 1;
        join(waiters);
        drop(turn);
        scene.end();
    });
}

/// The lock is this thread's own, through another manager: as long as it waits, nobody lets go.
#[test]
fn whoever_waits_for_himself_is_told_wherever_he_stands() {
    in_many_orders(800, Duration::ZERO, || {
        let scene = Scene::new(LONG);
        let turn = scene.free_turn();
        let other = spawn(&scene, |scene| assert!(scene.visit(1, Moment::NEVER)));
        let himself = spawn(&scene, |scene| {
            let claim = || Claim { token: String::new(), lease: Lease::new(LONG) };
            let joined = scene.keeper.queues.join(
                &"key".into(),
                &until(Moment::NEVER),
                |holder| holder.raw() == "mine",
                |_| true,
                |hold| scene.keeper.look_after(hold),
                claim,
            );
            assert!(matches!(joined, Err(NoTurn::Mine)));
        });
        turn.saw(&Holder::new(b"mine", None), Duration::ZERO, true);
        join([himself]);
        drop(turn);
        join([other]);
        scene.end();
    });
}
