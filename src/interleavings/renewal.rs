//! Renewals, the release and the report of a loss, with the steps of keeper, holder and listener in
//! many orders.
//!
//! The keeper's rounds and the steps of the listener and of a release are the real ones. Redis has
//! one key here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::base::sync::thread;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::options::Lease;
use crate::base::sync::scheduler::{advance, below, in_many_orders, in_orders, one_in};
use crate::hold::{Hold, tests::sample};
use crate::interleavings::wakeups::{Redis, a_change};
use crate::keeping::connection::{ExtendAnswers, Extended, KeeperCommands, Removed};
use crate::keeping::keeper::tests::keeper_without_redis;
use crate::keeping::renewal::{on_renewal, round};
use crate::keeping::work::{Keeper, Part};
use crate::session::release::{Release, Tried};
use crate::store::{Compared, Extension, Failure, Node};
use crate::waiting::handoff::HandoffOutcome;

const LEASE: Duration = Duration::from_millis(300);

/// One hold, its keeper and its holder.
struct Scene {
    began: Moment,
    hold: Arc<Hold>,
    keeper: Arc<Keeper>,
    node: Arc<Node>,
    redis: Redis,
    /// Redis does not answer the keeper.
    silent: bool,
    log: parking_lot::Mutex<Findings>,
}

/// The threads' findings, and when they were made.
#[derive(Default)]
struct Findings {
    deleted: bool,
    /// When the keeper first heard of a change after the deletion.
    heard: Option<Moment>,
    lost: Option<Moment>,
    released: bool,
}

/// The keeper's connection: answers come late or, if Redis is silent, never.
impl KeeperCommands for &Scene {
    fn node(&self) -> Option<&Arc<Node>> {
        Some(&self.node)
    }

    fn extend_all(
        &mut self,
        leases: &[Extension<'_>],
        listener: Option<u64>,
        _: Moment,
    ) -> Extended {
        let sent = Moment::now();
        let (compared, tracking) = self.redis.extend(leases[0].token, listener);
        on_the_way();
        if self.silent {
            return Err(Failure::Unanswered {
                link_stands: true,
                cause: "no answer".into(),
            });
        }
        Ok(ExtendAnswers {
            sent,
            answers: vec![Ok(compared)],
            tracking,
        })
    }

    fn extend_elsewhere(&mut self, _: &Extension<'_>, _: Moment) -> Result<Compared, Failure> {
        unreachable!("there is one node")
    }

    fn remove_all(&mut self, removals: &[(&[&str], &str)], _: Moment) -> Removed {
        Ok(removals
            .iter()
            .map(|(_, token)| Ok(self.redis.remove(Some(token))))
            .collect())
    }
}

impl Scene {
    fn new(silent: bool) -> Arc<Scene> {
        let (began, redis) = (Moment::now(), Redis::default());
        let (hold, keeper) = (
            Arc::new(sample("key", LEASE, began)),
            keeper_without_redis(),
        );
        keeper.enter(&hold).expect("no thread is started");
        redis.claim(&hold.token, None);
        let node = keeper.core.store.node_of("").expect("there is one node");
        Arc::new(Scene {
            began,
            hold,
            keeper,
            node,
            redis,
            silent,
            log: parking_lot::Mutex::default(),
        })
    }

    /// Runs the keeper's rounds until the hold is lost or the test stops the keeper.
    fn keep(&self) {
        let shared = &self.keeper;
        while let Some(work) = shared.next_round(Part::All, Moment::NEVER) {
            let in_time = work.over.is_empty() || self.hold.lost().is_some();
            assert!(in_time || self.silent, "nobody renewed it in time");
            shared.expire(&work.over);
            round(shared, &mut &*self, &work);
            assert!(self.silent || shared.core.counters.read().renewal_errors == 0);
            if shared.core.counters.read().lost > 0 {
                // If the release has found the loss, the hold is no longer in the table.
                let work = shared.work.lock();
                let found = work.tokens.has(&self.hold).then(Moment::now);
                assert!(
                    found.is_none() || work.tokens.first() == Moment::NEVER,
                    "a lost hold is due again"
                );
                drop(work);
                self.log.lock().lost = found;
                return;
            }
        }
    }

    /// Notes when the keeper first hears of a change after the deletion.
    fn heard(&self) {
        let mut log = self.log.lock();
        if log.heard.is_none() && log.deleted {
            log.heard = Some(Moment::now());
        }
    }

    fn end(&self, touches: u64, found: Option<&Error>) {
        let (log, hold) = (self.log.lock(), &self.hold);
        assert_eq!(
            hold.valid_until(),
            Moment::PAST,
            "a hold that is over is valid again"
        );
        if log.released {
            assert!(
                !log.deleted && log.lost.is_none() && hold.lost().is_none(),
                "reported as a loss"
            );
            assert!(hold.is_over(Moment::now()), "it was released");
        } else {
            assert!(hold.lost().is_some());
        }
        let lost = self.keeper.core.counters.read().lost;
        assert_eq!(
            lost,
            u64::from(!log.released),
            "each loss is reported once, and no release as a loss"
        );
        if let Some(Error::Lost { cause, .. }) = found {
            assert_eq!(
                hold.lost(),
                Some(*cause),
                "one cause was returned, and another written down"
            );
        }
        if let (Some(heard), Some(lost)) = (log.heard, log.lost) {
            HEARD.fetch_add(1, Ordering::Relaxed);
            assert!(
                lost.since(heard) < Duration::from_millis(20),
                "the keeper heard of the deletion, and found the loss late"
            );
        }
        let periods = Moment::now().since(self.began).as_millis() / (LEASE / 3 / 8 * 7).as_millis();
        let enough = periods + 2 * u128::from(touches + 1);
        assert!(
            u128::from(self.redis.renewals()) <= enough,
            "after an invalidation, the hold is renewed again and again"
        );
    }

    /// The holder asks Redis, and finds that another process has the lock.
    fn find_out(&self) -> Error {
        if one_in(2) {
            on_the_way();
        }
        let lost = self.hold.lose(LostCause::Taken);
        on_the_way();
        assert!(
            !self.hold.is_valid(Moment::now()),
            "a lost hold is valid again"
        );
        lost
    }

    fn release(&self) {
        let hold = &self.hold;
        let turn = self.keeper.core.queues.free_turn(hold.key.name());
        let deadline = Moment::now().after(LEASE);
        let handoff = Duration::ZERO;
        let begun = Release::begin(&self.keeper, hold, turn, handoff, Some(deadline)).unwrap();
        let released = begun.finish_by(|_, _| self.delete());
        assert!(!hold.is_valid(Moment::now()));
        self.log.lock().released = released.is_ok();
        on_the_way();
        self.keeper.work.lock().stop = true;
        self.keeper.due_sooner.notify_all();
    }

    /// The holder's release in Redis.
    fn delete(&self) -> Tried {
        let is_trusted = || self.hold.is_valid(Moment::now());
        assert!(
            !is_trusted(),
            "it is trusted while its release is under way"
        );
        let compared = self.redis.remove(Some(&self.hold.token));
        on_the_way();
        assert!(
            !is_trusted(),
            "it is trusted while its release is under way"
        );
        (Ok(compared), HandoffOutcome::NotTaken)
    }
}

/// An answer is on its way, and other threads run in the meantime.
fn on_the_way() {
    advance(Duration::from_micros(below(3_000)));
    for _ in 0..below(12) {
        thread::yield_now();
    }
}

/// How often the keeper has heard of a deletion before it found the loss.
static HEARD: AtomicU32 = AtomicU32::new(0);

/// The keeper renews, and another process deletes the key or changes it some other way. The holder
/// releases the lock or finds that it is lost.
fn keeps(times: usize, releases: bool, deleted: bool) {
    // With stalls, there would be no bound on when a loss is found.
    in_orders(times, 0, LEASE, move || {
        let scene = Scene::new(false);
        let spawn = |part: fn(&Scene)| {
            let scene = Arc::clone(&scene);
            thread::spawn(move || part(&scene))
        };
        let keeper = spawn(Scene::keep);
        let listener = spawn(|scene| {
            scene
                .redis
                .listen(&scene.keeper.core.listeners.only(), || scene.heard());
        });
        let touches = below(4);
        for _ in 0..touches {
            on_the_way();
            scene.redis.touch();
        }
        for _ in 0..below(8) {
            on_the_way();
        }
        // Redis tracks the key from its first renewal on, which comes after a third of its lease.
        let after = if one_in(2) { 98 + below(8) } else { below(250) };
        thread::sleep(Duration::from_millis(after));
        if deleted {
            scene.redis.remove(None);
            // This is set after the deletion. If it were set before, the listener could hear of an
            // earlier change in between, and the renewal that follows could still find the key.
            scene.log.lock().deleted = true;
        }
        let found = (deleted && one_in(2)).then(|| scene.find_out());
        if releases {
            scene.release();
        }
        keeper.join().expect("the thread does not panic");
        scene.redis.end();
        listener.join().expect("the thread does not panic");
        scene.end(touches, found.as_ref());
    });
}

#[test]
fn row_32_nothing_is_renewed_after_the_release_has_returned_nor_lost_by_it() {
    keeps(12_000, true, false);
}

#[test]
fn a_lock_that_is_deleted_is_lost_as_soon_as_its_invalidation_comes() {
    keeps(1_000, false, true);
    assert!(
        HEARD.load(Ordering::Relaxed) > 100,
        "hardly ever did the keeper hear of it"
    );
}

#[test]
fn a_deleted_lock_is_lost_once_and_not_released() {
    keeps(500, true, true);
}

#[test]
fn a_hold_whose_renewals_are_not_answered_is_lost_at_its_end_and_reported_once() {
    in_many_orders(100, LEASE, || {
        let scene = Scene::new(true);
        let keeper = thread::spawn({
            let scene = Arc::clone(&scene);
            move || scene.keep()
        });
        on_the_way();
        scene.keeper.core.listeners.only().dispatch(a_change());
        keeper.join().expect("the thread does not panic");
        assert!(
            Moment::now() >= scene.began.after(LEASE * 9 / 10),
            "too early"
        );
        scene.end(2, None);
        assert_eq!(scene.hold.lost(), Some(LostCause::Expired));
    });
}

/// The keeper has read the clock in time, and a moment later records that the renewal worked.
#[test]
fn validity_that_was_denied_once_does_not_come_back_with_a_renewal() {
    in_many_orders(1_000, LEASE, || {
        let sent = Moment::now();
        let hold = Arc::new(sample("a", LEASE, sent));
        let left = hold.valid_until().since(Moment::now());
        advance(left.saturating_sub(Duration::from_nanos(below(1_500))));
        let reader = thread::spawn({
            let hold = Arc::clone(&hold);
            move || {
                let mut denied = false;
                for _ in 0..6 {
                    let valid = hold.is_valid(Moment::now());
                    assert!(!(denied && valid), "validity that was denied came back");
                    denied |= !valid;
                }
                denied
            }
        });
        let (answered, half) = (Moment::now(), sent.after(LEASE / 2));
        let renewed = on_renewal(&hold, hold.lease(), Compared::Done, half, answered);
        let denied = reader.join().expect("the thread does not panic");
        assert!(
            !(denied && hold.is_valid(Moment::now())),
            "validity that was denied came back, renewed: {renewed}"
        );
    });
}

/// Only the wait for the end of a lease ends by itself here.
#[test]
fn a_thread_that_watches_a_hold_learns_of_its_end() {
    in_many_orders(800, LEASE, || {
        let hold = Arc::new(sample("a", Duration::from_secs(30), Moment::now()));
        let watcher = thread::spawn({
            let hold = Arc::clone(&hold);
            move || hold.wait_lost(Moment::NEVER)
        });
        let lost = match below(3) {
            0 => {
                hold.close(Moment::now());
                hold.mark_released();
                None
            }
            1 => {
                hold.lose(LostCause::Deleted);
                Some(LostCause::Deleted)
            }
            _ => {
                hold.set_lease(Lease::new(LEASE), Moment::now());
                Some(LostCause::Expired)
            }
        };
        assert_eq!(watcher.join().expect("the thread does not panic"), lost);
    });
}
