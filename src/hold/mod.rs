//! A hold: one thread's possession of one lock, and how long it can be trusted.
//!
//! `report` has what a program learns about holds, `watching` how a thread waits for the end of
//! one, and `parcel` is a hold on its way to another process. This room may use `base`.

mod parcel;
mod report;
mod validity;
mod watching;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::key::Key;
use crate::base::options::{Lease, Options, Renewal};
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::base::sync::seeded_bugs;
use crate::base::sync::{Condvar, Mutex, PerProcess};
use crate::hold::validity::Validity;

pub use crate::hold::parcel::LockParcel;
pub use crate::hold::report::{HeldLock, Unlocked};

/// When a lock was taken. Redis executed the command between the two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquiredAt {
    pub(crate) sent: Moment,
    pub(crate) answered: Moment,
}

/// One thread's possession of one lock, from the outermost lock to the outermost unlock.
///
/// The holding thread writes `depth` and releases the hold. The keeper renews it. Any thread may
/// find that the hold has ended, and the first one records how. Validity is a comparison of the
/// clock with a moment, never a flag that a thread has to set in time. So a process that was
/// stopped gets the right answer as soon as it runs again.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Unique within the process.
    pub(crate) number: u64,
    pub(crate) key: Key,
    pub(crate) owner: Owner,
    pub(crate) token: Arc<str>,
    /// The fencing token, if the hold has one.
    pub(crate) fence: Option<u64>,
    pub(crate) acquired: AcquiredAt,
    /// The lease with which the lock was taken.
    pub(crate) first_lease: Lease,
    renewal: Renewal,
    /// The latest time until which the hold can be trusted: for `max_hold`, and for the rest of its
    /// first lease.
    latest_end: Moment,
    /// How many guards are alive. Only the holding thread writes it.
    depth: AtomicU32,
    validity: Validity,
    /// A thread in `wait` keeps this locked from before it looks at the hold until it sleeps on
    /// `changed`.
    facts: Mutex<Facts>,
    changed: Condvar,
}

/// The facts known about a hold besides its validity.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// `set_lease` changes it.
    lease: Lease,
    /// By when the key has certainly expired, according to the commands sent so far.
    gone_by: Moment,
    /// Until when the lock stays taken, even if the hold ends sooner.
    keep_until: Moment,
    renewals: u32,
    thread_has_ended: bool,
    /// Redis has answered once that the key does not hold the token.
    token_was_gone: bool,
    is_reported: bool,
    /// How the hold ended: it was released, or lost.
    end: Option<Result<(), LostCause>>,
}

impl Hold {
    pub(crate) fn new(
        key: Key,
        owner: Owner,
        token: Arc<str>,
        fence: Option<u64>,
        options: &Options,
        acquired: AcquiredAt,
    ) -> Hold {
        static NEXT: PerProcess<AtomicU64> =
            PerProcess::new(AtomicU64::new(1), || AtomicU64::new(1));
        let lease = Lease::new(options.lease);
        let counts_from = if seeded_bugs::is_in("counts from the answer") {
            acquired.answered
        } else {
            acquired.sent
        };
        let at_most = |limit| acquired.answered.after(limit).after(options.lease);
        let latest_end = options.renewal.max_hold.map_or(Moment::NEVER, at_most);
        Hold {
            number: NEXT.with(|it| it.fetch_add(1, Ordering::Relaxed)),
            key,
            owner,
            token,
            fence,
            acquired,
            renewal: options.renewal,
            latest_end,
            depth: AtomicU32::new(1),
            first_lease: lease,
            validity: Validity::until(lease.valid_until(counts_from)),
            facts: Mutex::new(Facts {
                lease,
                gone_by: lease.gone_by(acquired.answered),
                keep_until: acquired.sent.after(options.keep_at_least),
                renewals: 0,
                thread_has_ended: false,
                token_was_gone: false,
                is_reported: false,
                end: None,
            }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lease(&self) -> Lease {
        self.facts.lock().lease
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Only the holding thread may call this.
    pub(crate) fn set_depth(&self, depth: u32) {
        self.depth.store(depth, Ordering::Relaxed);
    }

    /// A reentry at `now` asks that the lock stay taken for this time.
    pub(crate) fn keep_at_least(&self, span: Duration, now: Moment) {
        if !span.is_zero() {
            let mut facts = self.facts.lock();
            facts.keep_until = facts.keep_until.max(now.after(span));
        }
    }

    /// The release deletes the key, whatever was asked for.
    pub(crate) fn keep_nothing(&self) {
        self.facts.lock().keep_until = Moment::PAST;
    }

    pub(crate) fn renewals(&self) -> u32 {
        self.facts.lock().renewals
    }

    /// The end of the time for which the hold can be trusted, unless it is lost earlier.
    pub(crate) fn valid_until(&self) -> Moment {
        self.validity.end()
    }

    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        let clock = if seeded_bugs::is_in("trusts a flag") {
            Moment::from_nanos(1)
        } else {
            now
        };
        self.validity.left(clock).is_some()
    }

    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.validity.left(now).unwrap_or_default()
    }

    pub(crate) fn gone_by(&self) -> Moment {
        self.facts.lock().gone_by
    }

    /// Until when the lock stays taken, even if the hold ends sooner.
    pub(crate) fn keep_until(&self) -> Moment {
        self.facts.lock().keep_until
    }

    /// The time from one renewal to the next. `None` if the keeper does not renew the hold.
    pub(crate) fn renews_every(&self) -> Option<Duration> {
        if self.thread_has_ended() {
            None
        } else {
            self.renewal.every(self.lease())
        }
    }

    /// The lease that a renewal asks for at `now`. Once `max_hold` has passed, that is the
    /// remaining time with its margin: Redis extends nothing, and says whether the key still has
    /// the token.
    pub(crate) fn lease_to_ask(&self, now: Moment) -> Lease {
        let lease = self.lease();
        self.limit_of(lease, now)
            .map_or(lease, |_| Lease::trusted_for(self.remaining(now)))
    }

    /// The `max_hold` of this hold, if no lease may begin at `now` any more because it would end
    /// later than the hold may: `max_hold` plus one first lease.
    pub(crate) fn limit_of(&self, lease: Lease, now: Moment) -> Option<Duration> {
        let lease = lease.time().max(self.first_lease.time());
        self.renewal
            .max_hold
            .filter(|_| self.latest_end <= now.after(lease))
    }

    /// True once the thread has exited and the hold is no longer valid: nobody will ask for it
    /// again.
    pub(crate) fn can_be_forgotten(&self, now: Moment) -> bool {
        self.thread_has_ended() && !self.is_valid(now)
    }

    /// The thread has exited without a release. Nobody will release the hold, so renewal stops.
    pub(crate) fn mark_thread_ended(&self) {
        self.facts.lock().thread_has_ended = true;
    }

    pub(crate) fn thread_has_ended(&self) -> bool {
        self.facts.lock().thread_has_ended
    }

    /// Sets the lease for the next renewals. If it is shorter than before, the hold is trusted for
    /// less time from now on, whether or not Redis knows yet.
    pub(crate) fn set_lease(&self, lease: Lease, now: Moment) {
        self.facts.lock().lease = lease;
        self.shorten_to(lease.valid_until(now));
    }

    /// Call this before sending a command that sets the lease. `until` is the deadline for its
    /// answer.
    ///
    /// Redis may execute the command even if no answer comes. So the key may exist for a lease
    /// after the deadline, and a lease that is shorter than before counts from now on.
    pub(crate) fn renewing(&self, lease: Lease, now: Moment, until: Moment) {
        let mut facts = self.facts.lock();
        facts.gone_by = facts.gone_by.max(lease.gone_by(until));
        drop(facts);
        if self.limit_of(lease, now).is_none() {
            self.shorten_to(lease.valid_until(now));
        }
    }

    /// Redis has extended the lease by a command sent at `sent`: the hold is valid for a lease from
    /// then on. (Not if `max_hold` had passed by then, perhaps since the keeper looked at it.)
    /// Returns an error if the hold is no longer valid at `now`, or if another thread has found
    /// that it is over.
    pub(crate) fn renewed(&self, lease: Lease, sent: Moment, now: Moment) -> Result<(), Error> {
        let extends = self.limit_of(lease, sent).is_none();
        let until = extends.then(|| lease.valid_until(sent));
        if !self.validity.renew(until, now) {
            return Err(self.lose(LostCause::Expired));
        }
        self.facts.lock().renewals += 1;
        Ok(())
    }

    /// From now on, the hold is trusted until `limit` at most. True if it was trusted for longer.
    pub(crate) fn shorten_to(&self, limit: Moment) -> bool {
        let shortened = self.validity.shorten(limit);
        if shortened {
            self.wake_watchers();
        }
        shortened
    }

    /// Records that the hold was lost. If an end is already recorded, that one stays. The error
    /// names the recorded cause.
    pub(crate) fn lose(&self, cause: LostCause) -> Error {
        if cause != LostCause::Expired {
            self.mark_token_gone();
        }
        let cause = self.finish(Err(cause)).err().unwrap_or(cause);
        Error::Lost {
            key: self.key.name().to_string(),
            cause,
        }
    }

    /// Redis has answered that the key does not hold the token. If the key holds the token again
    /// later, another holder may have had the lock in between.
    pub(crate) fn mark_token_gone(&self) {
        self.facts.lock().token_was_gone = true;
    }

    pub(crate) fn token_was_gone(&self) -> bool {
        self.facts.lock().token_was_gone
    }

    /// Call this before the release is sent: from now on no thread trusts the hold, whatever the
    /// release brings. If the hold is valid at `now`, returns the end of its validity.
    pub(crate) fn close(&self, now: Moment) -> Option<Moment> {
        self.validity.leave(now)
    }

    /// Records that the hold was released. If an end is already recorded, that one stays.
    pub(crate) fn mark_released(&self) {
        let _ = self.finish(Ok(()));
    }

    /// True for the first caller only, so that a loss is reported once.
    pub(crate) fn report_once(&self) -> bool {
        !mem::replace(&mut self.facts.lock().is_reported, true)
    }

    fn finish(&self, end: Result<(), LostCause>) -> Result<(), LostCause> {
        let mut facts = self.facts.lock();
        let end = *facts.end.get_or_insert(end);
        // This is done under the mutex: a thread that knows the end must no longer trust the hold.
        self.validity.finish();
        drop(facts);
        self.changed.notify_all();
        end
    }

    /// True once the hold has been released or lost, or its lease has run out. False while its
    /// release is in progress.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.validity.is_over(now)
    }

    /// How the hold was lost. `None` if it was not, or if no thread has found out yet.
    pub(crate) fn lost(&self) -> Option<LostCause> {
        self.facts.lock().end.and_then(Result::err)
    }

    /// `Err(Lost)` with the recorded cause if the hold cannot be trusted at `now`.
    pub(crate) fn check(&self, now: Moment) -> Result<(), Error> {
        if self.is_valid(now) {
            Ok(())
        } else {
            Err(self.lose(LostCause::Expired))
        }
    }

    pub(crate) fn as_holder(&self, now: Moment) -> Holder {
        Holder::new(self.token.as_bytes(), Some(self.gone_by().since(now)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    static NONCE: AtomicU64 = AtomicU64::new(0);

    pub(crate) fn sample(name: &str, lease: Duration, sent: Moment) -> Hold {
        sample_with(
            name,
            &Options {
                lease,
                ..Options::default()
            },
            sent,
        )
    }

    pub(crate) fn sample_with(name: &str, options: &Options, sent: Moment) -> Hold {
        let key = Key::new("lock:", name).unwrap();
        let owner = Owner::new("host".into(), std::process::id(), 2);
        let nonce = NONCE.fetch_add(1, Ordering::Relaxed);
        let token = format!("{owner}-{nonce:032x}").into();
        let since = AcquiredAt {
            sent,
            answered: sent,
        };
        Hold::new(key, owner, token, None, options, since)
    }

    /// A sample with this token.
    pub(crate) fn sample_by(token: &str, lease: Duration) -> Hold {
        Hold {
            token: token.into(),
            ..sample("key", lease, Moment::now())
        }
    }

    pub(crate) fn sample_of(acquired: AcquiredAt) -> Hold {
        Hold {
            acquired,
            ..sample("a", Duration::from_secs(30), acquired.sent)
        }
    }

    const SENT: Moment = Moment::from_nanos(1_000);

    fn one_second() -> (Hold, Lease) {
        (
            sample("a", Duration::from_secs(1), SENT),
            Lease::new(Duration::from_secs(1)),
        )
    }

    fn after(millis: u64) -> Moment {
        SENT.after(Duration::from_millis(millis))
    }

    #[test]
    fn a_hold_ends_by_the_clock_alone_or_by_its_first_loss_or_release() {
        let cause = |error| match error {
            Error::Lost { cause, .. } => cause,
            other => panic!("{other:?}"),
        };
        let (hold, _) = one_second();
        assert_eq!(hold.remaining(SENT), Duration::from_millis(988));
        assert!(hold.is_valid(after(987)) && !hold.is_over(after(987)));
        assert!(!hold.is_valid(after(988)) && hold.is_over(after(988)));
        assert_eq!(
            cause(hold.check(after(988)).unwrap_err()),
            LostCause::Expired
        );
        let (hold, _) = one_second();
        hold.lose(LostCause::Taken);
        assert_eq!(cause(hold.check(SENT).unwrap_err()), LostCause::Taken);
        assert_eq!(cause(hold.lose(LostCause::Deleted)), LostCause::Taken);
        // Its release is in progress: only Redis can say whether it was lost.
        for (closed, valid_until) in [(SENT, Some(after(988))), (after(988), None)] {
            let (hold, _) = one_second();
            assert_eq!(hold.close(closed), valid_until);
            let is_trusted = hold.is_valid(SENT) || !hold.remaining(SENT).is_zero();
            assert!(!is_trusted && !hold.is_over(after(988)));
            assert_eq!((hold.lost(), hold.wait_lost(Moment::now())), (None, None));
            hold.mark_released();
            assert!(hold.is_over(SENT) && hold.lost().is_none());
        }
    }

    /// The keeper reads the clock before it writes; another thread may look in between.
    #[test]
    fn a_hold_that_was_found_to_have_run_out_cannot_be_renewed() {
        let looks: [fn(&Hold, Moment) -> bool; 4] = [
            |hold, now| !hold.is_valid(now),
            |hold, now| hold.remaining(now).is_zero(),
            |hold, now| hold.is_over(now),
            |hold, now| hold.check(now).is_err(),
        ];
        for (number, says_over) in looks.into_iter().enumerate() {
            let (hold, lease) = one_second();
            assert!(!says_over(&hold, after(987)) && says_over(&hold, after(988)));
            assert!(
                hold.renewed(lease, after(987), after(987)).is_err(),
                "look {number}"
            );
            let left = (hold.remaining(after(987)), hold.renewals());
            assert_eq!(
                left,
                (Duration::ZERO, 0),
                "look {number}: the hold is valid again"
            );
        }
    }

    /// Redis may execute a command until its answer is due, or has come.
    #[test]
    fn a_key_is_gone_a_lease_after_the_last_moment_of_its_commands() {
        let (hold, lease) = one_second();
        let answered = after(200);
        let acquired = AcquiredAt {
            sent: SENT,
            answered,
        };
        let (key, owner, token) = (hold.key.clone(), hold.owner.clone(), hold.token.clone());
        let options = Options::default();
        let taken_late = Hold::new(key, owner, token, None, &options, acquired);
        assert_eq!(taken_late.gone_by(), answered.after(options.lease));
        assert_eq!(hold.gone_by(), after(1000));
        for (due, gone_by) in [(700, 1700), (600, 1700)] {
            hold.renewing(lease, SENT, after(due));
            assert_eq!(hold.gone_by(), after(gone_by), "never sooner");
        }
        hold.renewed(lease, after(300), after(800)).unwrap();
        assert_eq!(
            hold.remaining(after(300)),
            Duration::from_millis(988),
            "from the send"
        );
        assert_eq!(hold.renewals(), 1);
    }

    #[test]
    fn a_hold_is_extended_until_max_hold_or_the_end_of_its_thread() {
        let (second, limit) = (Duration::from_secs(1), Duration::from_secs(5));
        let mut options = Options {
            lease: second,
            ..Options::default()
        };
        options.renewal.max_hold = Some(limit);
        let hold = || sample_with("a", &options, SENT);
        let late = hold();
        assert_eq!(late.renews_every(), Some(second / 3));
        // The last renewal was due earlier, and gets its answer at the second attempt.
        for n in 1..=6 {
            let (sent, lease) = (after(n * 900), Lease::new(second));
            late.renewed(lease, sent, sent).unwrap();
            assert_eq!(
                late.valid_until(),
                lease.valid_until(after(n.min(5) * 900)),
                "renewal {n}"
            );
        }
        // It asks for no more than its key has; a shorter lease lasts as long.
        assert_eq!(late.lease_to_ask(after(4999)).time(), second);
        let end = late.valid_until();
        let left = late.lease_to_ask(after(5300));
        assert!(
            left.time() < second && left.valid_until(after(5300)) >= end,
            "{left:?}"
        );
        let short = hold();
        short.set_lease(Lease::new(second / 10), SENT);
        let asked = [4999, 5000].map(|millis| short.lease_to_ask(after(millis)).millis());
        assert_eq!(asked, [100, 3], "nothing is left but the margin");
        late.mark_thread_ended();
        assert!(late.renews_every().is_none() && !late.can_be_forgotten(after(5400)));
        assert!(late.can_be_forgotten(end));
    }
}
