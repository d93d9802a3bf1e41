//! Renewals, the release and word of a loss, in many orders of what the keeper, the holder and the listener do.
//!
//! The keeper's desk, the steps of a renewal and of a release are the real ones. Beside them: a Redis of one key.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::options::Lease;
use crate::base::scheduler::{advance, below, in_many_orders, one_in};
use crate::hold::{Hold, tests::sample};
use crate::interleavings::wakeups::{KEY, Redis};
use crate::keeping::keeper::{Keeper, tests::unmanned};
use crate::keeping::renewal::{on_renewal, push};
use crate::release::give_back;
use crate::store::{Compared, Extension, Failure};
use crate::waiting::patience::tests::until;

const LEASE: Duration = Duration::from_millis(300);

/// One hold, its keeper and its holder.
struct Scene {
    began: Moment,
    hold: Arc<Hold>,
    keeper: Keeper,
    redis: Redis,
    /// Redis does not answer the keeper.
    silent: bool,
    log: parking_lot::Mutex<Findings>,
}

/// Who found out what, and when.
#[derive(Default)]
struct Findings {
    deleted: bool,
    /// The table knew that something had changed.
    told: Option<Moment>,
    lost: Option<Moment>,
    released: bool,
}

impl Scene {
    fn new(silent: bool) -> Arc<Scene> {
        let (began, redis) = (Moment::now(), Redis::default());
        let (hold, keeper) = (Arc::new(sample("a", LEASE, began)), unmanned());
        keeper.enter(&hold).expect("no thread is started");
        redis.claim(&hold.token);
        Arc::new(Scene { began, hold, keeper, redis, silent, log: parking_lot::Mutex::default() })
    }

    /// The keeper's thread, until the hold is lost or it is told to stop.
    fn keep(&self) {
        let shared = &self.keeper;
        while let Some((due, _)) = shared.next() {
            let in_time = due.over.is_empty() || self.hold.lost().is_some();
            assert!(in_time || self.silent, "nobody renewed it in time");
            shared.end(&due.over);
            let ask = |extensions: &[Extension<'_>], _, _| {
                let sent = Moment::now();
                let compared = self.redis.extend(extensions[0].token);
                on_the_way();
                let lost = || Failure::Unanswered { link_stands: true, cause: "no answer".into() };
                if self.silent { Err(lost()) } else { Ok((sent, vec![Ok(compared)])) }
            };
            let refused = push(shared, &due.renew, || Some(1), ask);
            assert!(self.silent || refused.is_ok_and(|refused| refused.is_empty()));
            if self.keeper.counters.read().lost > 0 {
                // Unless the release has found it.
                let work = shared.work.lock();
                let found = work.leases.has(&self.hold).then(Moment::now);
                assert!(found.is_none() || work.leases.next() == Moment::NEVER, "what is lost is due again");
                drop(work);
                self.log.lock().lost = found;
                return;
            }
        }
    }

    /// As the listener tells the keeper.
    fn hear(&self) {
        if one_in(3) {
            self.keeper.changed(None); // The connection broke, and there is another.
        } else {
            self.keeper.changed(Some(KEY.as_bytes()));
        }
        let mut log = self.log.lock();
        if log.told.is_none() && log.deleted {
            log.told = Some(Moment::now());
        }
    }

    fn end(&self, touches: u64, found: Option<&Error>) {
        let (log, hold) = (self.log.lock(), &self.hold);
        assert_eq!(hold.valid_until(), Moment::PAST, "what is over came back");
        if log.released {
            assert!(!log.deleted && log.lost.is_none() && hold.lost().is_none(), "taken for a loss");
            assert!(hold.is_over(Moment::now()), "it was given back");
        } else {
            assert!(hold.lost().is_some());
        }
        let lost = self.keeper.counters.read().lost;
        assert_eq!(lost, u64::from(!log.released), "a loss is told once, and no release");
        if let Some(Error::Lost { cause, .. }) = found {
            assert_eq!(hold.lost(), Some(*cause), "one end was told, and another written down");
        }
        if let (Some(told), Some(lost)) = (log.told, log.lost) {
            assert!(lost.since(told) < Duration::from_millis(20), "it was told, and found out late");
        }
        let periods = Moment::now().since(self.began).as_millis() / (LEASE / 3 / 8 * 7).as_millis();
        let enough = periods + 2 * u128::from(touches + 1);
        assert!(u128::from(self.redis.pushes()) <= enough, "word once, and it is renewed again and again");
    }

    /// The holder looks, and finds that the lock is somebody else's.
    fn find_out(&self) -> Error {
        if one_in(2) {
            on_the_way();
        }
        let lost = self.hold.lose(LostCause::Taken);
        on_the_way();
        assert!(!self.hold.is_valid(Moment::now()), "what is lost came back");
        lost
    }

    fn release(&self) {
        let (hold, wait) = (&self.hold, until(Moment::PAST));
        let turn =
            self.keeper.queues.join(hold.key.name(), &wait, |_| false, |_| true, |_| (), || unreachable!());
        let turn = turn.expect("nobody else wants it");
        let released = give_back(&self.keeper, hold, turn, Duration::ZERO, LEASE, |_, _, _| {
            assert!(!hold.is_valid(Moment::now()), "it is trusted while its release is under way");
            let compared = self.redis.remove(Some(&hold.token));
            on_the_way();
            assert!(!hold.is_valid(Moment::now()), "it is trusted while its release is under way");
            Ok(compared)
        });
        assert!(!hold.is_valid(Moment::now()));
        self.log.lock().released = released.is_ok();
        on_the_way();
        self.keeper.work.lock().stop = true;
        self.keeper.bell.notify_one();
    }
}

/// As long as an answer takes, others do what they like.
fn on_the_way() {
    advance(Duration::from_micros(below(3_000)));
    for _ in 0..below(12) {
        thread::yield_now();
    }
}

/// The keeper renews, and somebody else deletes the key or does something else to it; the holder gives it back or finds that it
/// is gone.
fn keeps(times: usize, releases: bool, deleted: bool) {
    in_many_orders(times, LEASE, move || {
        let scene = Scene::new(false);
        let spawn = |part: fn(&Scene)| {
            let scene = Arc::clone(&scene);
            thread::spawn(move || part(&scene))
        };
        let keeper = spawn(Scene::keep);
        let listener = spawn(|scene| {
            while scene.redis.word() {
                scene.hear();
            }
        });
        let touches = below(4);
        for _ in 0..touches {
            on_the_way();
            scene.redis.touch();
        }
        for _ in 0..below(8) {
            on_the_way();
        }
        if deleted {
            scene.redis.remove(None);
            // Not sooner: the listener may yet hear of an earlier change, and a renewal that follows
            // from that may find the key there.
            scene.log.lock().deleted = true;
        }
        let found = (deleted && one_in(2)).then(|| scene.find_out());
        if releases {
            scene.release();
        }
        keeper.join().expect("it ends");
        scene.redis.no_more_words();
        listener.join().expect("it ends");
        scene.end(touches, found.as_ref());
    });
}

#[test]
fn nothing_is_renewed_after_the_release_has_returned_nor_lost_by_it() {
    keeps(800, true, false);
}

#[test]
fn a_lock_that_is_deleted_is_lost_as_soon_as_there_is_word() {
    keeps(1_000, false, true);
}

#[test]
fn a_deleted_lock_is_lost_once_and_not_released() {
    keeps(500, true, true);
}

#[test]
fn a_hold_whose_renewals_are_not_answered_is_lost_at_its_end_and_that_is_told_once() {
    in_many_orders(100, LEASE, || {
        let scene = Scene::new(true);
        let keeper = thread::spawn({
            let scene = Arc::clone(&scene);
            move || scene.keep()
        });
        on_the_way();
        scene.hear();
        keeper.join().expect("it ends");
        assert!(Moment::now() >= scene.began.after(LEASE * 9 / 10), "too early");
        scene.end(2, None);
        assert_eq!(scene.hold.lost(), Some(LostCause::Expired));
    });
}

/// The keeper has read the clock in time, and writes a moment later that the renewal worked.
#[test]
fn what_was_denied_once_does_not_come_back_with_a_renewal() {
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
                    assert!(!(denied && valid), "what was denied came back");
                    denied |= !valid;
                }
                denied
            }
        });
        let renewed = on_renewal(&hold, hold.lease(), sent.after(LEASE / 2), Compared::Done);
        let denied = reader.join().expect("it ends");
        assert!(!(denied && hold.is_valid(Moment::now())), "what was denied came back, renewed: {renewed}");
    });
}

/// No wait ends by itself here but that for the end of a lease.
#[test]
fn whoever_watches_a_hold_is_told_of_its_end() {
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
        assert_eq!(watcher.join().expect("it ends"), lost);
    });
}
