//! One thread's possession of one lock: what it may be trusted for, and until when.

use std::sync::OnceLock;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::holder::Holder;
use crate::base::key::Key;
use crate::base::options::{Lease, Renewal};
use crate::base::owner::Owner;
use crate::base::seeded_bugs;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::base::sync::{Condvar, Mutex};

/// When a lock was taken, as far as this side can tell: Redis did it in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquiredAt {
    pub(crate) sent: Moment,
    pub(crate) answered: Moment,
}

/// Written in place of the end of a lease that a look has found to be over: earlier than any clock
/// says.
const DENIED: Moment = Moment::from_nanos(1);

/// A hold, from the outermost lock to the outermost unlock.
///
/// The thread that holds writes `depth`, and ends the hold; the keeper writes `valid_until` when a
/// renewal was answered; any thread may find that the hold is over, and the first writes down how it
/// ended. Validity is a comparison of the clock with `valid_until`, never a flag that has to be set
/// in time: a process that was stopped and goes on finds the truth at its first look.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Tells holds apart, within the process.
    pub(crate) number: u64,
    pub(crate) key: Key,
    pub(crate) owner: Owner,
    pub(crate) token: String,
    pub(crate) acquired: AcquiredAt,
    renewal: Renewal,
    /// How many guards are alive. Written by the holding thread alone.
    depth: AtomicU32,
    /// In milliseconds; changes when the holder extends it.
    lease: AtomicU64,
    /// Zero ([`Moment::PAST`]) while the hold is released and once it has ended; [`DENIED`] where
    /// the clock has ended it, and nobody has written down how yet.
    valid_until: AtomicU64,
    /// When Redis has certainly let go of the key, by what was sent so far.
    gone_by: AtomicU64,
    renewals: AtomicU32,
    abandoned: AtomicBool,
    denied: AtomicBool,
    told: AtomicBool,
    /// How it ended: it was lost or, with `None`, given back.
    end: OnceLock<Option<LostCause>>,
    watched: Mutex<()>,
    ended: Condvar,
}

impl Hold {
    pub(crate) fn new(
        key: Key,
        owner: Owner,
        token: String,
        lease: Lease,
        renewal: Renewal,
        acquired: AcquiredAt,
    ) -> Hold {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let counts_from =
            if seeded_bugs::is_in("counts from the answer") { acquired.answered } else { acquired.sent };
        Hold {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            key,
            owner,
            token,
            acquired,
            renewal,
            depth: AtomicU32::new(1),
            lease: AtomicU64::new(lease.millis()),
            valid_until: AtomicU64::new(lease.valid_until(counts_from).as_nanos()),
            gone_by: AtomicU64::new(lease.gone_by(acquired.answered).as_nanos()),
            renewals: AtomicU32::new(0),
            abandoned: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            told: AtomicBool::new(false),
            end: OnceLock::new(),
            watched: Mutex::new(()),
            ended: Condvar::new(),
        }
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease::from_millis(self.lease.load(Ordering::Relaxed))
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Only for the holding thread.
    pub(crate) fn set_depth(&self, depth: u32) {
        self.depth.store(depth, Ordering::Relaxed);
    }

    pub(crate) fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Until when the hold may be trusted, unless it is lost earlier.
    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        let clock = if seeded_bugs::is_in("trusts a flag") { Moment::from_nanos(1) } else { now };
        self.left(clock).is_some()
    }

    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.left(now).unwrap_or_default()
    }

    /// How long the hold may be trusted from `now` on, if at all.
    ///
    /// A denial by the clock is written down before it is given: the keeper may have read the clock
    /// a moment earlier, and be about to write that a renewal worked. The first of the two to write
    /// is right. (Nobody is woken here: watchers and waiters sleep until `valid_until` at most.)
    fn left(&self, now: Moment) -> Option<Duration> {
        loop {
            let until = self.valid_until();
            if now < until {
                return self.end.get().is_none().then(|| until.since(now));
            }
            let (old, new) = (until.as_nanos(), DENIED.as_nanos());
            let deny = || self.valid_until.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
            if until <= DENIED || deny().is_ok() {
                return None;
            }
        }
    }

    pub(crate) fn gone_by(&self) -> Moment {
        Moment::from_nanos(self.gone_by.load(Ordering::Acquire))
    }

    /// How long to wait from one renewal to the next, where the hold is to be renewed at `now`.
    pub(crate) fn renews_every(&self, now: Moment) -> Option<Duration> {
        let stopped = self.abandoned.load(Ordering::Relaxed)
            || self.renewal.max_hold.is_some_and(|limit| now.since(self.acquired.answered) >= limit);
        if stopped { None } else { self.renewal.every(self.lease()) }
    }

    /// The thread has ended, and there is nothing left to trust: nobody will ever ask for it again.
    pub(crate) fn is_forsaken(&self, now: Moment) -> bool {
        self.abandoned.load(Ordering::Relaxed) && !self.is_valid(now)
    }

    /// The thread has ended: nobody will give the lock back, so it is not renewed any more.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// The lease from now on, whether or not Redis knows of it yet. A shorter one is believed at once.
    pub(crate) fn set_lease(&self, lease: Lease, now: Moment) {
        self.lease.store(lease.millis(), Ordering::Relaxed);
        self.lives_until(lease.valid_until(now));
    }

    /// A command that sets the lease is about to be sent, and will not be waited for past `until`: the key may stand for
    /// as long as it says, and for no longer. (A shorter lease than before counts from here, answered or not.)
    pub(crate) fn renewing(&self, lease: Lease, now: Moment, until: Moment) {
        self.gone_by.fetch_max(lease.gone_by(until).as_nanos(), Ordering::AcqRel);
        self.lives_until(lease.valid_until(now));
    }

    /// Redis pushed the lease out, by a command that was sent at `sent`. Counts from there, and only for a hold
    /// that is still valid at `now`, and that nobody has found to be over since.
    pub(crate) fn renewed(&self, lease: Lease, sent: Moment, now: Moment) -> Result<(), Error> {
        let new = lease.valid_until(sent).as_nanos();
        let changed = self.valid_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            (now < Moment::from_nanos(old)).then_some(new)
        });
        if changed.is_err() || self.end.get().is_some() {
            return Err(self.lose(LostCause::Expired));
        }
        self.renewals.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The key lives for no longer than this: true where that is news.
    pub(crate) fn lives_until(&self, limit: Moment) -> bool {
        let news = self.valid_until.fetch_min(limit.as_nanos(), Ordering::AcqRel) > limit.as_nanos();
        if news {
            self.wake_watchers();
        }
        news
    }

    /// Whoever looked before is asleep once the lock was had, and hears the call.
    fn wake_watchers(&self) {
        drop(self.watched.lock());
        self.ended.notify_all();
    }

    /// Writes down that the hold was lost, and how; the first end stays.
    pub(crate) fn lose(&self, cause: LostCause) -> Error {
        if cause != LostCause::Expired {
            self.deny();
        }
        let cause = self.finish(Some(cause)).unwrap_or(cause);
        Error::Lost { key: self.key.name().to_string(), cause }
    }

    /// Redis has said that the token does not stand there. If it does later on, somebody else may
    /// have had the lock meanwhile.
    pub(crate) fn deny(&self) {
        self.denied.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_denied(&self) -> bool {
        self.denied.load(Ordering::Relaxed)
    }

    /// The release is about to be sent: nobody may trust the hold any more, however that ends.
    /// Returns until when it could be trusted, where it still can be at `now`.
    pub(crate) fn close(&self, now: Moment) -> Option<Moment> {
        let until = Moment::from_nanos(self.valid_until.swap(0, Ordering::AcqRel));
        Some(until).filter(|until| now < *until && self.end.get().is_none())
    }

    /// Writes down that the hold was given back; the first end stays.
    pub(crate) fn release(&self) {
        self.finish(None);
    }

    /// True for the first who asks: its loss is told once.
    pub(crate) fn to_be_told(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    fn finish(&self, end: Option<LostCause>) -> Option<LostCause> {
        let end = *self.end.get_or_init(|| end);
        self.valid_until.store(0, Ordering::Release);
        self.wake_watchers();
        end
    }

    /// True once it was given back or lost, or has run out. (Not while its release is under way.)
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.left(now).is_none() && (self.end.get().is_some() || self.valid_until() > Moment::PAST)
    }

    /// How the hold was lost, if that is known already.
    pub(crate) fn lost(&self) -> Option<LostCause> {
        self.end.get().copied().flatten()
    }

    /// Waits until the hold is over, or the deadline: how it was lost, if it was.
    pub(crate) fn wait_lost(&self, deadline: Moment) -> Option<LostCause> {
        let mut watched = self.watched.lock();
        loop {
            let now = Moment::now();
            if self.end.get().is_some() {
                return self.lost();
            }
            let valid_until = self.valid_until();
            if Moment::PAST < valid_until && valid_until <= now {
                drop(watched);
                self.lose(LostCause::Expired);
                return self.lost();
            }
            if deadline <= now {
                return None;
            }
            // While the release is under way, its end is what is waited for.
            let look_again = if valid_until == Moment::PAST { deadline } else { valid_until.min(deadline) };
            // Not longer than this at a time: the clock counts suspend, and the wait does not.
            self.ended.wait_for(&mut watched, look_again.since(now).min(Duration::from_secs(1)));
        }
    }

    /// `Err(Lost)` with the first cause, where the hold can no longer be trusted.
    pub(crate) fn check(&self, now: Moment) -> Result<(), Error> {
        if self.is_valid(now) { Ok(()) } else { Err(self.lose(LostCause::Expired)) }
    }

    pub(crate) fn as_holder(&self, now: Moment) -> Holder {
        Holder::new(self.token.as_bytes(), Some(self.gone_by().since(now)))
    }
}

/// A lock that a thread of this process holds: by [`LockManager::held`](crate::LockManager::held).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The lock's key.
    pub key: String,
    /// The thread that holds it.
    pub owner: Owner,
    /// How many guards are alive.
    pub depth: u32,
    /// How long it has been held.
    pub held_for: Duration,
    /// How long it may be trusted yet without another renewal: zero once it is lost.
    pub valid_for: Duration,
    /// How often it was renewed.
    pub renewals: u32,
    /// How it was lost, if it was, and if that is known already. Its guards are still there.
    pub lost: Option<LostCause>,
}

impl HeldLock {
    pub(crate) fn new(hold: &Hold, now: Moment) -> HeldLock {
        HeldLock {
            key: hold.key.name().to_string(),
            owner: hold.owner.clone(),
            depth: hold.depth(),
            held_for: now.since(hold.acquired.answered),
            valid_for: hold.remaining(now),
            renewals: hold.renewals(),
            lost: hold.lost(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::base::options::Options;

    pub(crate) fn sample(name: &str, lease: Duration, sent: Moment) -> Hold {
        let key = Key::new("lock:", name).unwrap();
        let owner = Owner::new("host".into(), std::process::id(), 2);
        let token = format!("{owner}-{}", "0".repeat(32));
        let since = AcquiredAt { sent, answered: sent };
        Hold::new(key, owner, token, Lease::new(lease), Options::default().renewal, since)
    }

    /// By a token of its own.
    pub(crate) fn sample_by(token: &str, lease: Duration) -> Hold {
        Hold { token: token.to_owned(), ..sample("key", lease, Moment::now()) }
    }

    pub(crate) fn sample_of(acquired: AcquiredAt) -> Hold {
        Hold { acquired, ..sample("a", Duration::from_secs(30), acquired.sent) }
    }

    const SENT: Moment = Moment::from_nanos(1_000);

    fn one_second() -> (Hold, Lease) {
        (sample("a", Duration::from_secs(1), SENT), Lease::new(Duration::from_secs(1)))
    }

    #[test]
    fn the_clock_alone_ends_a_hold() {
        let (hold, _) = one_second();
        assert!(hold.is_valid(SENT));
        assert_eq!(hold.remaining(SENT), Duration::from_millis(988));
        let end = SENT.after(Duration::from_millis(988));
        assert!(!hold.is_valid(end));
        assert_eq!(hold.remaining(end), Duration::ZERO);
        assert!(matches!(hold.check(end), Err(Error::Lost { cause: LostCause::Expired, .. })));
    }

    #[test]
    fn the_first_cause_stays() {
        let (hold, _) = one_second();
        hold.lose(LostCause::Taken);
        assert!(!hold.is_valid(SENT));
        assert!(matches!(hold.check(SENT), Err(Error::Lost { cause: LostCause::Taken, .. })));
        assert!(matches!(hold.lose(LostCause::Deleted), Error::Lost { cause: LostCause::Taken, .. }));
    }

    #[test]
    fn a_renewal_counts_from_its_own_send() {
        let (hold, lease) = one_second();
        let (sent, answered) =
            (SENT.after(Duration::from_millis(300)), SENT.after(Duration::from_millis(800)));
        hold.renewed(lease, sent, answered).unwrap();
        assert_eq!(hold.remaining(sent), Duration::from_millis(988));
        assert_eq!(hold.renewals(), 1);
    }

    #[test]
    fn a_renewal_that_comes_too_late_brings_nothing_back() {
        let (hold, lease) = one_second();
        let end = SENT.after(Duration::from_millis(988));
        assert!(hold.renewed(lease, SENT, end).is_err());
        assert!(!hold.is_valid(end) && !hold.is_valid(SENT));

        let (released, lease) = one_second();
        released.release();
        assert!(released.renewed(lease, SENT, SENT).is_err());
        assert!(!released.is_valid(SENT));
        assert_eq!(released.lost(), None, "it was given back, not lost");
    }

    /// The keeper reads the clock, and writes later: a denial in between
    /// stays.
    #[test]
    fn what_a_look_has_denied_no_renewal_brings_back() {
        let looks: [fn(&Hold, Moment) -> bool; 4] = [
            |hold, now| !hold.is_valid(now),
            |hold, now| hold.remaining(now).is_zero(),
            |hold, now| hold.is_over(now),
            |hold, now| hold.check(now).is_err(),
        ];
        for (number, denies) in looks.into_iter().enumerate() {
            let (hold, lease) = one_second();
            let end = hold.valid_until();
            let just_before = Moment::from_nanos(end.as_nanos() - 1);
            assert!(!denies(&hold, just_before) && denies(&hold, end), "look {number}");
            assert!(hold.renewed(lease, just_before, just_before).is_err(), "look {number}");
            assert!(!hold.is_valid(just_before), "look {number}: it came back");
            assert_eq!((hold.remaining(just_before), hold.renewals()), (Duration::ZERO, 0), "look {number}");
        }
    }

    #[test]
    fn a_hold_that_is_being_released_is_neither_valid_nor_lost() {
        let (hold, _) = one_second();
        let end = hold.valid_until();
        assert_eq!(hold.close(SENT), Some(end));
        assert!(!hold.is_valid(SENT) && !hold.is_valid(end) && !hold.is_over(end));
        assert_eq!((hold.remaining(SENT), hold.lost()), (Duration::ZERO, None));
        hold.release();
        assert!(hold.is_over(SENT) && hold.lost().is_none());

        let (late, _) = one_second();
        assert_eq!(late.close(end), None);
        assert_eq!(late.lost(), None, "that is for Redis to say");
    }

    #[test]
    fn a_hold_is_renewed_for_so_long_and_only_while_its_thread_is_there() {
        let (mut hold, _) = one_second();
        let limit = Duration::from_secs(5);
        let every = hold.renews_every(SENT);
        assert_eq!(every, Some(Duration::from_secs(1) / 3));
        hold.renewal.max_hold = Some(limit);
        assert_eq!(hold.renews_every(SENT.after(Duration::from_millis(4999))), every);
        assert_eq!(hold.renews_every(SENT.after(limit)), None);
        hold.abandon();
        assert_eq!(hold.renews_every(SENT), None);
        assert!(!hold.is_forsaken(SENT), "the key still stands");
        assert!(hold.is_forsaken(hold.valid_until()));
    }

    #[test]
    fn whoever_waits_for_a_loss_is_told() {
        let hold = std::sync::Arc::new(sample("a", Duration::from_secs(30), Moment::now()));
        assert_eq!(hold.wait_lost(Moment::now()), None);
        let waiter = std::thread::spawn({
            let hold = std::sync::Arc::clone(&hold);
            move || hold.wait_lost(Moment::NEVER)
        });
        hold.lose(LostCause::Deleted);
        assert_eq!(waiter.join().unwrap(), Some(LostCause::Deleted));

        let short = sample("b", Duration::from_millis(20), Moment::now());
        assert_eq!(short.wait_lost(Moment::NEVER), Some(LostCause::Expired));
    }

    fn watched() -> Hold {
        one_second().0
    }

    #[test]
    fn only_news_of_a_shorter_life_is_news() {
        let hold = watched();
        let end = hold.valid_until();
        assert!(!hold.lives_until(end));
        let sooner = SENT.after(Duration::from_millis(500));
        assert!(hold.lives_until(sooner));
        assert!(!hold.lives_until(end) && !hold.lives_until(sooner));
        assert_eq!(hold.valid_until(), sooner);
    }

    #[test]
    fn a_hold_is_over_when_it_has_ended_but_not_while_it_is_released() {
        let hold = watched();
        let end = hold.valid_until();
        assert!(!hold.is_over(SENT));
        hold.close(SENT);
        assert!(!hold.is_over(SENT) && !hold.is_over(end));
        assert_eq!(hold.wait_lost(Moment::now()), None);
        assert_eq!(hold.lost(), None, "that is for the release to say");
        hold.release();
        assert!(hold.is_over(SENT));
        assert!(watched().is_over(end) && watched().is_over(end.after(Duration::from_secs(1))));
    }
}
