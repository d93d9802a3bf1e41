//! Renewals, the release and word of a loss, in many orders of what the keeper, the holder and the listener do.
//!
//! The renewal table, the hold and the verdicts are the real ones. Beside them: a Redis of one key, and what those three do with
//! it, as briefly as that goes.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread;

use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::{Hold, tests::sample};
use crate::leases::Leases;
use crate::options::Lease;
use crate::orders_of_word::{KEY, Redis};
use crate::store::Compared;
use crate::sync::orders::{below, by_chance, in_many_orders, pass, step};
use crate::sync::{Condvar, Mutex};
use crate::verdict::{self, Release};

const LEASE: Duration = Duration::from_millis(300);

/// One hold, its keeper and its holder.
struct Desk {
    began: Moment,
    hold: Arc<Hold>,
    leases: Mutex<Leases>,
    bell: Condvar,
    redis: Redis,
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

impl Desk {
    fn new() -> Arc<Desk> {
        let now = Moment::now();
        let hold = Arc::new(sample("a", LEASE, now));
        let mut leases = Leases::default();
        leases.enter(Arc::clone(&hold), true, now);
        let (leases, bell, redis) = (Mutex::new(leases), Condvar::new(), Redis::default());
        redis.claim(hold.token());
        Arc::new(Desk { began: now, hold, leases, bell, redis, log: parking_lot::Mutex::default() })
    }

    /// As the keeper's `run` and `push` do it, until the hold is over.
    fn keep(&self) {
        loop {
            let mut leases = self.leases.lock();
            let due = loop {
                let due = leases.take_due(Moment::now());
                let next = leases.next();
                if !due.is_empty() {
                    break due;
                }
                if next == Moment::NEVER {
                    return;
                }
                self.bell.wait_for(&mut leases, next.since(Moment::now()));
            };
            drop(leases);
            assert!(due.over.is_empty() || self.hold.lost().is_some(), "nobody renewed it in time");
            if due.renew.is_empty() || !self.push() {
                return;
            }
        }
    }

    /// One renewal: false where there will be no other.
    fn push(&self) -> bool {
        let hold = &self.hold;
        let mut leases = self.leases.lock();
        if !leases.has(hold) {
            return false;
        }
        let lease = hold.lease();
        hold.renewing(lease, Moment::now(), Moment::now().after(Duration::from_millis(50)));
        leases.sending(hold, true, Moment::now());
        drop(leases);
        let sent = Moment::now();
        let compared = self.redis.extend(hold.token());
        on_the_way();
        let mut leases = self.leases.lock();
        if !leases.has(hold) {
            return false;
        }
        if verdict::on_renewal(hold, lease, sent, compared) {
            leases.renewed(hold, true, sent);
            return true;
        }
        leases.lost(hold);
        self.log.lock().lost = Some(Moment::now());
        false
    }

    /// As the listener tells the keeper.
    fn hear(&self) {
        let mut leases = self.leases.lock();
        let now = Moment::now();
        let due = if by_chance(3) {
            leases.anything_changed(now) // The connection broke, and there is another.
        } else {
            leases.changed(KEY.as_bytes(), now)
        };
        drop(leases);
        if due < Moment::NEVER {
            self.bell.notify_one();
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
        } else {
            assert!(hold.lost().is_some());
        }
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
        if by_chance(2) {
            on_the_way();
        }
        let lost = self.hold.lose(LostCause::Taken);
        on_the_way();
        assert!(!self.hold.is_valid(Moment::now()), "what is lost came back");
        lost
    }

    /// As `Session::end` does it.
    fn release(&self) {
        let valid_until = self.leases.lock().close(&self.hold, Moment::now());
        self.bell.notify_one();
        let compared = self.redis.remove(Some(self.hold.token()));
        on_the_way();
        assert!(!self.hold.is_valid(Moment::now()), "it is trusted while its release is under way");
        let pushes = self.redis.pushes();
        let release = Release { valid_until, answered: Moment::now(), maybe_done: false };
        let released = verdict::on_release(&self.hold, compared, release);
        if released.is_ok() {
            self.hold.release();
            step();
            assert_eq!(self.redis.pushes(), pushes, "pushed out after its release");
        }
        assert!(!self.hold.is_valid(Moment::now()));
        self.log.lock().released = released.is_ok();
    }
}

/// As long as an answer takes, others do what they like.
fn on_the_way() {
    pass(Duration::from_micros(below(3_000)));
    for _ in 0..below(12) {
        thread::yield_now();
    }
}

/// The keeper renews, and somebody else deletes the key or does something else to it; the holder gives it back or finds that it
/// is gone.
fn keeps(times: usize, releases: bool, deleted: bool) {
    in_many_orders(times, LEASE, move || {
        let desk = Desk::new();
        let spawn = |part: fn(&Desk)| {
            let desk = Arc::clone(&desk);
            thread::spawn(move || part(&desk))
        };
        let keeper = spawn(Desk::keep);
        let listener = spawn(|desk| {
            while desk.redis.word() {
                desk.hear();
            }
        });
        let touches = below(4);
        for _ in 0..touches {
            on_the_way();
            desk.redis.touch();
        }
        for _ in 0..below(8) {
            on_the_way();
        }
        if deleted {
            desk.redis.remove(None);
            // Not sooner: the listener may yet hear of an earlier change, and a renewal that follows
            // from that may find the key there.
            desk.log.lock().deleted = true;
        }
        let found = (deleted && by_chance(2)).then(|| desk.find_out());
        if releases {
            desk.release();
        }
        keeper.join().expect("it ends");
        desk.redis.no_more_words();
        listener.join().expect("it ends");
        desk.end(touches, found.as_ref());
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

/// The keeper has read the clock in time, and writes a moment later that the renewal worked.
#[test]
fn what_was_denied_once_does_not_come_back_with_a_renewal() {
    in_many_orders(1_000, LEASE, || {
        let sent = Moment::now();
        let hold = Arc::new(sample("a", LEASE, sent));
        let left = hold.valid_until().since(Moment::now());
        pass(left.saturating_sub(Duration::from_nanos(below(1_500))));
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
        let renewed = verdict::on_renewal(&hold, hold.lease(), sent.after(LEASE / 2), Compared::Done);
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
                hold.release();
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
