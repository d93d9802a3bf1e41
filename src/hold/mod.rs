//! A hold: one thread's possession of one lock, and until when it can be trusted.
//!
//! `report` is what a program learns about holds, `watching` is how a thread waits for the end of
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
    /// Until when the hold can be trusted at most: for `max_hold`, and for the rest of its first
    /// lease.
    latest_end: Moment,
    /// How many guards are alive. Only the holding thread writes it.
    depth: AtomicU32,
    validity: Validity,
    /// A thread in `wait` keeps this locked from before it looks at the hold until it sleeps on
    /// `changed`.
    facts: Mutex<Facts>,
    changed: Condvar,
}

/// What is known of a hold besides its validity.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// `set_lease` changes it.
    lease: Lease,
    /// When the key has certainly expired, according to the commands sent so far.
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

    /// A reentry at `now` asks that the lock stays taken for this time.
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

    /// Until when the hold can be trusted, unless it is lost earlier.
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

    /// The lease that a renewal asks for at `now`. Once `max_hold` has passed, that is what is
    /// left, with its margin: Redis extends nothing, and says whether the key still has the token.
    pub(crate) fn lease_to_ask(&self, now: Moment) -> Lease {
        let lease = self.lease();
        self.limit_of(lease, now)
            .map_or(lease, |_| Lease::trusted_for(self.remaining(now)))
    }

    /// The `max_hold` of this hold, if no lease may begin at `now` any more: it would end later
    /// than the hold may, which is one first lease after `max_hold`.
    pub(crate) fn limit_of(&self, lease: Lease, now: Moment) -> Option<Duration> {
        let lease = lease.time().max(self.first_lease.time());
        self.renewal
            .max_hold
            .filter(|_| self.latest_end <= now.after(lease))
    }

    /// True once the thread has ended and the hold is not valid any more: nobody will ask for it
    /// again.
    pub(crate) fn can_be_forgotten(&self, now: Moment) -> bool {
        self.thread_has_ended() && !self.is_valid(now)
    }

    /// The thread has ended without a release. Nobody will release the hold, so renewal stops.
    pub(crate) fn mark_thread_ended(&self) {
        self.facts.lock().thread_has_ended = true;
    }

    pub(crate) fn thread_has_ended(&self) -> bool {
        self.facts.lock().thread_has_ended
    }

    /// Sets the lease for the next renewals. If it is shorter, the hold is trusted for less time
    /// from now on, whether or not Redis knows yet.
    pub(crate) fn set_lease(&self, lease: Lease, now: Moment) {
        self.facts.lock().lease = lease;
        self.shorten_to(lease.valid_until(now));
    }

    /// Call this before sending a command that sets the lease. `until` is the deadline of its
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
    /// then on. (Not if `max_hold` had passed by then, perhaps since the keeper looked at it.) An
    /// error: the hold is not valid any more at `now`, or another thread has found it over.
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

    /// Records that the hold was lost. If an end is recorded already, that one stays. The error
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

    /// Records that the hold was released. If an end is recorded already, that one stays.
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
        // Under the mutex: who knows the end trusts the hold no more.
        self.validity.finish();
        drop(facts);
        self.changed.notify_all();
        end
    }

    /// True once the hold was released or lost, or its lease has run out. False while its release
    /// is under way.
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

    fn set_max_hold(hold: &mut Hold, limit: Duration) {
        hold.renewal.max_hold = Some(limit);
        let end = SENT.after(limit).after(hold.first_lease.time());
        hold.latest_end = end;
    }

    #[test]
    fn a_hold_ends_by_the_clock_alone() {
        let (hold, _) = one_second();
        assert!(hold.is_valid(SENT));
        assert_eq!(hold.remaining(SENT), Duration::from_millis(988));
        let end = SENT.after(Duration::from_millis(988));
        assert!(!hold.is_valid(end));
        assert_eq!(hold.remaining(end), Duration::ZERO);
        assert!(matches!(
            hold.check(end),
            Err(Error::Lost {
                cause: LostCause::Expired,
                ..
            })
        ));
    }

    #[test]
    fn the_first_cause_of_a_loss_stays() {
        let (hold, _) = one_second();
        hold.lose(LostCause::Taken);
        assert!(!hold.is_valid(SENT));
        assert!(matches!(
            hold.check(SENT),
            Err(Error::Lost {
                cause: LostCause::Taken,
                ..
            })
        ));
        assert!(matches!(
            hold.lose(LostCause::Deleted),
            Error::Lost {
                cause: LostCause::Taken,
                ..
            }
        ));
    }

    #[test]
    fn a_renewed_lease_counts_from_the_send_of_the_renewal() {
        let (hold, lease) = one_second();
        let (sent, answered) = (
            SENT.after(Duration::from_millis(300)),
            SENT.after(Duration::from_millis(800)),
        );
        hold.renewed(lease, sent, answered).unwrap();
        assert_eq!(hold.remaining(sent), Duration::from_millis(988));
        assert_eq!(hold.renewals(), 1);
    }

    /// Redis may execute a command until its answer is due, or has come.
    #[test]
    fn a_key_is_gone_a_lease_after_the_last_moment_of_its_commands() {
        let (hold, lease) = one_second();
        let [taken, due, early] = [200, 700, 600].map(|it| SENT.after(Duration::from_millis(it)));
        let acquired = AcquiredAt {
            sent: SENT,
            answered: taken,
        };
        let taken_late = Hold::new(
            hold.key.clone(),
            hold.owner.clone(),
            hold.token.clone(),
            None,
            &Options::default(),
            acquired,
        );
        assert_eq!(hold.gone_by(), SENT.after(lease.time()));
        hold.renewing(lease, SENT, due);
        assert_eq!(hold.gone_by(), due.after(lease.time()));
        hold.renewing(lease, SENT, early);
        assert_eq!(hold.gone_by(), due.after(lease.time()), "never sooner");
        assert_eq!(taken_late.gone_by(), taken.after(Options::default().lease));
    }

    #[test]
    fn a_late_renewal_does_not_make_a_hold_valid_again() {
        let (hold, lease) = one_second();
        let end = SENT.after(Duration::from_millis(988));
        assert!(hold.renewed(lease, SENT, end).is_err());
        assert!(!hold.is_valid(end) && !hold.is_valid(SENT));

        let (released, lease) = one_second();
        released.mark_released();
        assert!(released.renewed(lease, SENT, SENT).is_err());
        assert!(!released.is_valid(SENT));
        assert_eq!(released.lost(), None, "it was released, not lost");
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
            let end = hold.valid_until();
            let just_before = Moment::from_nanos(end.as_nanos() - 1);
            assert!(
                !says_over(&hold, just_before) && says_over(&hold, end),
                "look {number}"
            );
            assert!(
                hold.renewed(lease, just_before, just_before).is_err(),
                "look {number}"
            );
            assert!(
                !hold.is_valid(just_before),
                "look {number}: the hold is valid again"
            );
            assert_eq!(
                (hold.remaining(just_before), hold.renewals()),
                (Duration::ZERO, 0),
                "look {number}"
            );
        }
    }

    #[test]
    fn a_hold_that_is_being_released_is_neither_valid_nor_lost() {
        let (hold, _) = one_second();
        let end = hold.valid_until();
        assert_eq!(hold.close(SENT), Some(end));
        assert!(!hold.is_valid(SENT) && !hold.is_valid(end) && !hold.is_over(end));
        assert_eq!((hold.remaining(SENT), hold.lost()), (Duration::ZERO, None));
        hold.mark_released();
        assert!(hold.is_over(SENT) && hold.lost().is_none());

        let (late, _) = one_second();
        assert_eq!(late.close(end), None);
        assert_eq!(late.lost(), None, "only Redis can say whether it was lost");
    }

    #[test]
    fn a_hold_is_extended_until_max_hold_or_the_end_of_its_thread() {
        let (mut hold, lease) = one_second();
        let limit = Duration::from_secs(5);
        set_max_hold(&mut hold, limit);
        assert_eq!(hold.renews_every(), Some(Duration::from_secs(1) / 3));
        let sent = SENT.after(Duration::from_millis(4999));
        hold.renewed(lease, SENT.after(limit / 2), SENT).unwrap();
        hold.renewed(lease, sent, SENT).unwrap();
        assert_eq!(hold.lease_to_ask(sent).time(), lease.time());
        let late = SENT.after(limit + Duration::from_millis(300));
        let end = hold.valid_until();
        let left = hold.lease_to_ask(late);
        assert_eq!(left.millis(), 696, "no more than its key has");
        assert!(left.valid_until(late) >= end, "the margin is in it");
        hold.renewed(left, late, late).unwrap();
        assert_eq!(hold.valid_until(), end);
        hold.mark_thread_ended();
        assert_eq!(hold.renews_every(), None);
        assert!(!hold.can_be_forgotten(SENT), "the lease has not run out");
        assert!(hold.can_be_forgotten(hold.valid_until()));
    }

    /// The renewal was due before, and had its answer at the second attempt.
    #[test]
    fn a_renewal_that_is_sent_late_extends_no_hold_past_max_hold() {
        let (mut hold, lease) = one_second();
        set_max_hold(&mut hold, Duration::from_secs(5));
        let latest = SENT.after(Duration::from_secs(6));
        for n in 1..=6 {
            let sent = SENT.after(n * Duration::from_millis(900));
            hold.renewed(lease, sent, sent).unwrap();
            assert_eq!(
                hold.valid_until(),
                lease.valid_until(SENT.after(n.min(5) * Duration::from_millis(900))),
                "renewal {n}"
            );
        }
        assert!(hold.valid_until() < latest);
        assert!(hold.renewed(lease, latest, latest).is_err());
    }

    #[test]
    fn a_shorter_lease_is_renewed_until_max_hold_too_and_no_longer() {
        let (mut hold, _) = one_second();
        set_max_hold(&mut hold, Duration::from_secs(5));
        let short = Lease::new(Duration::from_millis(100));
        hold.set_lease(short, SENT);
        let asked = |millis| hold.lease_to_ask(SENT.after(Duration::from_millis(millis)));
        assert_eq!(asked(4999).millis(), 100);
        assert_eq!(asked(5000).millis(), 3, "nothing is left but the margin");
    }

    #[test]
    fn validity_can_only_be_shortened() {
        let (hold, _) = one_second();
        let end = hold.valid_until();
        assert!(!hold.shorten_to(end));
        let sooner = SENT.after(Duration::from_millis(500));
        assert!(hold.shorten_to(sooner));
        assert!(!hold.shorten_to(end) && !hold.shorten_to(sooner));
        assert_eq!(hold.valid_until(), sooner);
    }

    #[test]
    fn a_hold_is_not_over_while_its_release_is_under_way() {
        let (hold, _) = one_second();
        let end = hold.valid_until();
        assert!(!hold.is_over(SENT));
        hold.close(SENT);
        assert!(!hold.is_over(SENT) && !hold.is_over(end));
        assert_eq!(hold.wait_lost(Moment::now()), None);
        assert_eq!(
            hold.lost(),
            None,
            "only the release can say whether it was lost"
        );
        hold.mark_released();
        assert!(hold.is_over(SENT));
        let (hold, _) = one_second();
        assert!(hold.is_over(end) && hold.is_over(end.after(Duration::from_secs(1))));
    }
}
