//! When to give up, and whether a missing answer means a busy lock or an outage. (`acquire/step.rs`
//! decides how long a waiter sleeps.)

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::options::Settings;
use crate::base::owner::holder::Holder;
use crate::store::{FAIR_TRY, Failure, Refusal};

/// How long a node that has answered during a wait counts as slow, rather than as away.
pub(crate) const SLOW_ANSWER: Duration = Duration::from_millis(100);

/// The longest time for which the first waiter of a queue sleeps before it looks at the turn in
/// front again. While nothing is wrong, the other waiters look no more often.
///
/// The first waiter thus finds holds that end without a release: a guard was forgotten, or a thread
/// hangs. If each new hold woke the waiter instead, each turn would cost one more context switch.
pub(super) const GLANCE: Duration = Duration::from_secs(1);

/// How long before its deadline a waiter looks once more, or makes the thread in front look. (If
/// less time is left, after half of that time.)
pub(crate) const LAST_LOOK: Duration = Duration::from_millis(500);

/// How long a wait has lasted when the thread first reports it.
const FIRST_REPORT: Duration = Duration::from_secs(5);

/// How long one caller tries to take a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// When the caller asked for the lock.
    pub(crate) began: Moment,
    /// The end of every wait: in the queue, for a connection, for an answer, asleep.
    pub(crate) deadline: Moment,
    /// For `try_lock`, one answer is enough. So such a thread waits only until it is known who has
    /// the lock.
    pub(crate) once: bool,
    /// How long an outage may last.
    pub(crate) tolerate_outage: Duration,
    /// The longest time after which an attempt can still succeed.
    pub(crate) an_attempt: Duration,
}

/// A time during which Redis gave no proper answer to the threads that want one lock. It is theirs,
/// and not their node's: the node may answer every login, but no command that writes.
#[derive(Clone, Debug)]
pub(crate) struct Silence {
    /// When the first attempt without a proper answer began.
    pub(crate) since: Moment,
    /// How long the silence has to last to be an outage at the deadline. A shorter one proves
    /// nothing. Zero if Redis refuses connections or commands for now.
    pub(crate) outage_after: Duration,
    /// What went wrong. `None` while the first attempt still waits for its answer.
    pub(crate) cause: Option<Arc<str>>,
    /// How many attempts have failed.
    pub(crate) failed: u32,
    /// When the last attempt failed. Until one has failed, the same as `since`.
    pub(crate) failed_at: Moment,
}

impl Silence {
    pub(crate) fn new(since: Moment) -> Silence {
        Silence {
            since,
            outage_after: FAIR_TRY,
            cause: None,
            failed: 0,
            failed_at: since,
        }
    }

    /// The rest of the silence, for a wait that began at `began`, if the node last answered any
    /// thread at `answered`. `None` if that was after the last failure, and Redis did not refuse
    /// then: the node is there.
    pub(crate) fn unless(mut self, answered: Moment, began: Moment) -> Option<Silence> {
        if !self.outage_after.is_zero() {
            if self.failed_at <= answered {
                return None;
            }
            self.outage_after = outage_after(answered, began);
        }
        Some(self)
    }
}

/// How long a node's silence has to last to be an outage at the deadline.
fn outage_after(answered: Moment, began: Moment) -> Duration {
    if began <= answered {
        SLOW_ANSWER
    } else {
        FAIR_TRY
    }
}

/// The meaning of a failure for the state of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Redis has refused, or TLS has failed, and waiting will not change that.
    Final,
    /// Redis refuses connections or commands for now.
    Down,
    /// There was no answer in time.
    Silent,
    /// The time ran out in this process, before Redis was asked.
    OutOfTime,
}

impl Kind {
    pub(crate) fn of(failure: &Failure) -> Kind {
        match failure {
            Failure::Refused(refusal) if !refusal.can_pass() => Kind::Final,
            Failure::Tls { .. } => Kind::Final,
            Failure::Refused(_) | Failure::NotSent(_) => Kind::Down,
            Failure::Unanswered { .. } => Kind::Silent,
            Failure::OutOfTime(_) => Kind::OutOfTime,
        }
    }
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    TryAgain,
    /// The time is up, and nothing is known about Redis.
    Busy,
    /// Report an outage, or a refusal.
    GiveUp,
}

impl Patience {
    /// How long a caller that asks now waits: until `latest`, or to the end of its limit. A limit
    /// of zero leaves the time for one answer, whatever `latest` is. Otherwise many single tries,
    /// one after another, would run out of time over a healthy link.
    pub(crate) fn new(settings: &Settings, limit: Option<Duration>, latest: Moment) -> Patience {
        let began = Moment::now();
        let an_attempt = settings.an_attempt();
        let once = limit == Some(Duration::ZERO);
        let ends = |limit| began.after(limit).min(latest);
        Patience {
            began,
            deadline: if once {
                began.after(an_attempt)
            } else {
                limit.map_or(latest, ends)
            },
            once,
            tolerate_outage: settings.tolerate_outage,
            an_attempt,
        }
    }

    /// The deadline for giving back a lock that this caller must not have. Its limit counts for
    /// this, too. If there is no answer by then, the keeper goes on with the release.
    pub(crate) fn undone_by(&self, settings: &Settings) -> Moment {
        self.deadline
            .max(Moment::now().after(SLOW_ANSWER))
            .min(settings.response_deadline())
    }

    /// What to do after `tries` attempts in a row have failed.
    ///
    /// Before the deadline, one failed attempt is not an outage, however long it took: its
    /// connection may have been dead while Redis is well. The next attempt uses another connection.
    pub(crate) fn judge(
        &self,
        now: Moment,
        kind: Kind,
        silence: Option<&Silence>,
        tries: u32,
    ) -> AfterFailure {
        let counts = tries > 1 || self.deadline <= now;
        let outage = counts && silence.is_some_and(|silence| self.is_outage(silence, now));
        let over = self.deadline <= now || (self.once && tries > 1);
        // An attempt that was never made does not prove an outage while there is time for another.
        if kind == Kind::Final || outage && (over || kind != Kind::OutOfTime) {
            AfterFailure::GiveUp
        } else if !over {
            AfterFailure::TryAgain
        } else if kind == Kind::OutOfTime || kind == Kind::Silent && !self.once {
            AfterFailure::Busy
        } else {
            AfterFailure::GiveUp
        }
    }

    /// True if a silence has lasted too long: for as long as an outage is tolerated, or for its
    /// `outage_after` when the deadline has come. The silence counts from when this caller asked
    /// for the lock, at the earliest. (A single try counts another thread's failures as its own.)
    pub(crate) fn is_outage(&self, silence: &Silence, now: Moment) -> bool {
        let lasted = now.min(self.deadline).since(silence.since.max(self.began));
        let at_the_deadline = self.deadline <= now && lasted >= silence.outage_after;
        let is_too_long = if self.once {
            silence.failed > 1
        } else {
            lasted >= self.tolerated(silence)
        };
        at_the_deadline || is_too_long
    }

    /// When a thread in a queue has to check whether a silence has become an outage. No other
    /// thread wakes it for that.
    pub(crate) fn look_again(&self, silence: Option<&Silence>, now: Moment) -> Moment {
        let look = match silence {
            Some(silence) => silence.since.max(self.began).after(self.tolerated(silence)),
            // A silence that begins now or later has to last for `tolerate_outage` before it is an
            // outage. And while nothing is wrong, one look per `GLANCE` is enough.
            None => now.after(self.tolerate_outage.max(GLANCE)),
        };
        look.min(self.deadline)
    }

    /// An answer that comes at this moment or later says who has the lock at the deadline. A single
    /// try needs an answer that is newer than its own question.
    pub(crate) fn last_look(&self) -> Moment {
        if self.once {
            return self.began;
        }
        let half = self.deadline.since(self.began) / 2;
        self.deadline.before(half.min(LAST_LOOK))
    }

    /// When the caller, who is waiting at `now`, next reports that it is still waiting.
    pub(crate) fn next_report(&self, now: Moment) -> Moment {
        let mut after = FIRST_REPORT;
        while after <= now.since(self.began) {
            after *= 2;
        }
        self.began.after(after)
    }

    /// How long a caller tolerates a silence. Until two attempts have failed, this is at least as
    /// long as two may take.
    fn tolerated(&self, silence: &Silence) -> Duration {
        let two_attempts = if silence.failed < 2 {
            self.an_attempt.saturating_mul(2)
        } else {
            Duration::ZERO
        };
        self.tolerate_outage.max(two_attempts)
    }
}

/// How long a key without an expiry still counts as a lock. After a `PERSIST`, a live holder that
/// receives invalidations repairs its key within tens of milliseconds.
const WITHOUT_EXPIRY: Duration = Duration::from_millis(250);

/// The value of a key without an expiry, and the moment from which the key no longer counts as a
/// lock if it still has that value.
#[derive(Clone, Debug, Default)]
pub(crate) struct WithoutExpiry(Option<(String, Moment)>);

impl WithoutExpiry {
    /// Notes the holder that a waiter saw. `lease` is the waiter's own, or zero for a single try.
    ///
    /// A holder repairs its key at once if Redis has sent it an invalidation, and otherwise with
    /// its next renewal, after at most half of its lease. The waiter assumes that this lease is as
    /// long as its own.
    pub(crate) fn saw(&mut self, holder: &Holder, lease: Duration, now: Moment) {
        let before = self.0.take().filter(|(value, _)| *value == holder.raw);
        if holder.remaining.is_none() {
            let repaired = if holder.owner().is_some() {
                lease / 2
            } else {
                Duration::ZERO
            };
            let end = now.after(WITHOUT_EXPIRY.max(repaired));
            self.0 = before.or_else(|| Some((holder.raw.clone(), end)));
        }
    }

    /// How long to wait until the key no longer counts as a lock. Zero: it is not a lock. `None`:
    /// it has an expiry.
    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        self.0.as_ref().map(|(_, end)| end.since(now))
    }
}

/// The attempts of one thread that have failed since Redis last answered.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    pub(crate) silence: Option<Silence>,
    pub(crate) failed: u32,
    /// Redis's last refusal.
    refusal: Option<Refusal>,
}

impl Attempts {
    /// Starts with the findings of the threads before this one in the queue.
    pub(crate) fn after(silence: Option<Silence>) -> Attempts {
        Attempts {
            silence,
            failed: 0,
            refusal: None,
        }
    }

    pub(crate) fn hear(&mut self) {
        *self = Attempts::after(None);
    }

    /// An attempt that began at `since` has failed at `now`, in a wait that began at `began`. The
    /// node last answered any thread at `answered`: the thread may have waited for a connection
    /// until then.
    pub(crate) fn fail(
        &mut self,
        failure: &Failure,
        since: Moment,
        now: Moment,
        answered: Moment,
        began: Moment,
    ) -> Kind {
        self.failed += 1;
        if let Failure::Refused(refusal) = failure {
            self.refusal = Some(refusal.clone());
        }
        let mut kind = Kind::of(failure);
        if self.refusal.is_some() && kind != Kind::Final {
            kind = Kind::Down; // An earlier refusal says more than an attempt that was cut short.
        }
        if kind == Kind::OutOfTime {
            self.silence = self
                .silence
                .take()
                .and_then(|it| it.unless(answered, began));
            return kind;
        }
        let (since, outage_after) = if kind == Kind::Down {
            (since, Duration::ZERO)
        } else {
            (since.max(answered), outage_after(answered, began))
        };
        let silence = self.silence.get_or_insert_with(|| Silence::new(since));
        silence.outage_after = outage_after;
        silence.cause = Some(failure.text().into());
        silence.failed_at = now;
        silence.failed += 1;
        kind
    }

    /// The cause to name if a wait ends with this failure: the last refusal, if there was one;
    /// otherwise the failure. If time ran out before Redis was asked again, the earlier failure
    /// says more.
    pub(crate) fn cause(&mut self, failure: Failure) -> Failure {
        let before = self
            .silence
            .as_ref()
            .and_then(|silence| silence.cause.as_deref());
        match (failure, self.refusal.take(), before) {
            (failure @ (Failure::Refused(_) | Failure::Tls { .. }), ..) => failure,
            (_, Some(refusal), _) => Failure::Refused(refusal),
            (Failure::OutOfTime(_), None, Some(before)) => Failure::not_sent(before),
            (failure, ..) => failure,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TOLERATED: Duration = Duration::from_secs(10);

    /// The patience of a caller that asked long ago.
    pub(crate) fn until(deadline: Moment) -> Patience {
        let once = deadline == Moment::PAST;
        Patience {
            began: Moment::PAST,
            deadline,
            once,
            tolerate_outage: Duration::from_secs(30),
            an_attempt: Duration::from_secs(2),
        }
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    fn silent(since: u64) -> Silence {
        Silence::new(at(since))
    }

    fn slow(since: u64) -> Silence {
        Silence {
            outage_after: SLOW_ANSWER,
            ..silent(since)
        }
    }

    /// The patience of a caller that asks at 1000 ms and waits for this long.
    fn limit(millis: u64) -> Patience {
        let (began, deadline) = (at(1000), at(1000 + millis));
        Patience {
            began,
            deadline,
            once: false,
            tolerate_outage: TOLERATED,
            an_attempt: Duration::from_millis(100),
        }
    }

    fn once() -> Patience {
        Patience {
            once: true,
            ..limit(2000)
        }
    }

    fn endless() -> Patience {
        Patience {
            deadline: Moment::NEVER,
            ..limit(0)
        }
    }

    /// Tolerates no outage.
    fn impatient() -> Patience {
        Patience {
            tolerate_outage: Duration::ZERO,
            ..endless()
        }
    }

    fn failed(since: u64, failed: u32) -> Silence {
        Silence {
            cause: Some("no answer".into()),
            failed,
            ..silent(since)
        }
    }

    #[test]
    fn what_each_failure_leads_to() {
        use AfterFailure::{Busy, GiveUp, TryAgain};
        use Kind::{Down, Final, OutOfTime, Silent};
        // Patience, now, the kind of failure, the silence, how many attempts have failed.
        let table = [
            // Redis has refused for good.
            (limit(50), 1001, Final, None, 1, GiveUp),
            (endless(), 1001, Final, None, 1, GiveUp),
            // There is time left.
            (limit(50), 1049, Silent, Some(silent(1000)), 1, TryAgain),
            (limit(50), 1049, Down, Some(silent(1000)), 1, TryAgain),
            (limit(50), 1049, OutOfTime, None, 1, TryAgain),
            (limit(5000), 5999, Silent, Some(silent(1000)), 9, TryAgain),
            // The limit has passed. It was too short to say anything about Redis, or long enough.
            (limit(9), 1009, Silent, Some(silent(1000)), 1, Busy),
            (limit(19), 1019, Silent, Some(silent(1000)), 1, Busy),
            (limit(20), 1020, Silent, Some(silent(1000)), 1, GiveUp),
            (limit(50), 1050, Silent, Some(silent(1000)), 2, GiveUp),
            (limit(50), 1050, Silent, Some(silent(1031)), 1, Busy),
            // This thread itself was late.
            (limit(9), 1900, Silent, Some(silent(1000)), 1, Busy),
            // Redis has answered before, so it may be slow.
            (limit(99), 1099, Silent, Some(slow(1000)), 1, Busy),
            (limit(100), 1100, Silent, Some(slow(1000)), 1, GiveUp),
            // A temporary refusal counts, however short the limit.
            (limit(1), 1001, Down, Some(silent(1000)), 1, GiveUp),
            // Redis was not asked.
            (limit(1), 1001, OutOfTime, None, 1, Busy),
            (limit(5000), 6000, OutOfTime, None, 9, Busy),
            (limit(50), 1050, OutOfTime, Some(silent(1000)), 2, GiveUp),
            (limit(50), 1050, OutOfTime, Some(silent(1040)), 2, Busy),
            // The silence before the caller came does not count.
            (limit(9), 1009, Silent, Some(silent(0)), 1, Busy),
            (limit(30), 1030, Silent, Some(silent(0)), 1, GiveUp),
            // A single try: after its first failure, one more attempt is made.
            (once(), 1001, Silent, Some(silent(1000)), 1, TryAgain),
            (once(), 1002, Silent, Some(silent(1000)), 2, GiveUp),
            (once(), 1002, Down, Some(silent(1000)), 2, GiveUp),
            (once(), 3000, Silent, Some(silent(1000)), 1, GiveUp),
            (once(), 3000, OutOfTime, None, 1, Busy),
            // No limit: the caller tolerates an outage for 10 s, from when the outage began or, if
            // later, from when the caller came.
            (endless(), 10_999, Silent, Some(silent(1000)), 9, TryAgain),
            (endless(), 11_000, Silent, Some(silent(1000)), 9, GiveUp),
            (endless(), 11_000, Down, Some(silent(1000)), 9, GiveUp),
            (endless(), 10_999, Down, Some(silent(0)), 9, TryAgain),
            (endless(), 11_000, Down, Some(silent(0)), 2, GiveUp),
            // The first failure says little, even after other threads' failures.
            (endless(), 11_000, Down, Some(silent(0)), 1, TryAgain),
            (impatient(), 1001, Silent, Some(silent(1000)), 1, TryAgain),
            (impatient(), 1001, Down, Some(failed(1000, 2)), 2, GiveUp),
            (impatient(), 1001, Final, Some(silent(1000)), 1, GiveUp),
            (endless(), 11_000, Down, Some(silent(5000)), 1, TryAgain),
            (endless(), 99_000, OutOfTime, None, 99, TryAgain),
        ];
        for (row, (patience, now, kind, silence, tries, verdict)) in table.into_iter().enumerate() {
            let said = patience.judge(at(now), kind, silence.as_ref(), tries);
            assert_eq!(
                said, verdict,
                "row {row}: {patience:?}, {kind:?} at {now} ms, {silence:?}"
            );
        }
    }

    #[test]
    fn a_silence_is_no_outage_before_two_attempts_have_failed_or_could_have() {
        for young in [silent(1000), failed(1000, 1)] {
            assert!(!impatient().is_outage(&young, at(1199)), "{young:?}");
            assert!(impatient().is_outage(&young, at(1200)), "{young:?}");
            assert_eq!(impatient().look_again(Some(&young), at(1001)), at(1200));
        }
        assert!(impatient().is_outage(&failed(1000, 2), at(1001)));
    }

    #[test]
    fn a_wait_is_reported_after_five_seconds_and_after_each_doubling() {
        let seconds = |after: u64| at(1000 + 1000 * after);
        let reports = [
            (0, 5),
            (4, 5),
            (5, 10),
            (9, 10),
            (10, 20),
            (39, 40),
            (40, 80),
        ];
        for (now, next) in reports {
            assert_eq!(
                endless().next_report(seconds(now)),
                seconds(next),
                "{now} s"
            );
        }
    }

    #[test]
    fn a_thread_in_a_queue_looks_again_when_an_outage_may_be_too_long() {
        let now = at(1500);
        assert_eq!(endless().look_again(Some(&silent(1200)), now), at(11_200));
        assert_eq!(
            endless().look_again(Some(&silent(500)), now),
            at(11_000),
            "from when the caller came"
        );
        assert_eq!(endless().look_again(None, now), at(11_500));
        assert_eq!(limit(700).look_again(Some(&silent(1200)), now), at(1700));
        assert!(impatient().look_again(None, now) > now, "it does not spin");
    }

    fn late() -> Failure {
        Failure::Unanswered {
            link_stands: true,
            cause: "late".into(),
        }
    }

    fn refused(code: &str) -> Failure {
        Failure::Refused(Refusal::found(code, code))
    }

    #[test]
    fn a_key_is_not_a_lock_only_if_it_stays_without_expiry() {
        let token = format!("host-1-2-{}", "0".repeat(32));
        // The values and when each was seen (those that expire have an asterisk), and the time
        // left.
        for (seen, left) in [
            (&[(0, "a*")][..], None),
            (&[(0, "a")], Some(250)),
            (&[(0, "a"), (100, "a")], Some(150)),
            (&[(0, "a"), (250, "a")], Some(0)),
            // It was repaired.
            (&[(0, "a"), (100, "a*")], None),
            (&[(0, "a"), (100, "a*"), (300, "a")], Some(250)),
            // That is a different value.
            (&[(0, "a"), (300, "b")], Some(250)),
            // Its holder may repair it.
            (&[(0, &token)], Some(15_000)),
        ] {
            let mut without_expiry = WithoutExpiry::default();
            let (mut now, lease) = (at(0), Duration::from_secs(30));
            for (millis, value) in seen {
                now = at(*millis);
                let time_left = value.ends_with('*').then_some(2 * lease);
                let holder = Holder::new(value.trim_end_matches('*').as_bytes(), time_left);
                without_expiry.saw(&holder, lease, now);
            }
            assert_eq!(
                without_expiry.left(now),
                left.map(Duration::from_millis),
                "{seen:?}"
            );
        }
    }

    /// The facts known after failed attempts: their last kind, since when Redis has been silent,
    /// after how long that is an outage, and the cause.
    #[test]
    fn each_failure_has_its_kind_and_an_earlier_one_may_say_more() {
        let no_time = || Failure::OutOfTime("no time".into());
        let cut = || Failure::not_sent("cut");
        let loading = || refused("LOADING");
        let past = Moment::PAST;
        for (failures, kind, since, outage_after, cause) in [
            (
                vec![(refused("NOPERM"), 3, past)],
                Kind::Final,
                3,
                FAIR_TRY,
                "NOPERM",
            ),
            (vec![(late(), 3, past)], Kind::Silent, 3, FAIR_TRY, "late"),
            (vec![(cut(), 3, past)], Kind::Down, 3, Duration::ZERO, "cut"),
            (
                vec![(late(), 1, past), (loading(), 2, past)],
                Kind::Down,
                1,
                Duration::ZERO,
                "LOADING",
            ),
            (
                vec![(loading(), 1, past), (late(), 2, past)],
                Kind::Down,
                1,
                Duration::ZERO,
                "LOADING",
            ),
            (
                vec![(cut(), 1, past), (no_time(), 2, past)],
                Kind::OutOfTime,
                1,
                Duration::ZERO,
                "cut",
            ),
            // One refused connection does not turn a short silence after it into an outage.
            (
                vec![(cut(), 1, at(1)), (late(), 2, at(1))],
                Kind::Silent,
                1,
                SLOW_ANSWER,
                "late",
            ),
            // The thread waited for a connection while others got answers; a login was answered.
            (
                vec![(late(), 3, at(2)), (late(), 10, at(11))],
                Kind::Silent,
                3,
                SLOW_ANSWER,
                "late",
            ),
            (
                vec![(late(), 3, at(7)), (late(), 10, at(11))],
                Kind::Silent,
                7,
                SLOW_ANSWER,
                "late",
            ),
        ] {
            let told = format!("{failures:?}");
            let mut attempts = Attempts::after(None);
            let mut last = None;
            for (failure, since, answered) in failures {
                let now = at(since + 6);
                last = Some(attempts.fail(&failure, at(since), now, answered, at(1)));
            }
            assert_eq!(last, Some(kind), "{told}");
            let silence = attempts.silence.clone().unwrap();
            assert_eq!(
                (silence.since, silence.outage_after),
                (at(since), outage_after),
                "{told}"
            );
            assert!(attempts.cause(no_time()).text().contains(cause), "{told}");
            attempts.hear();
            assert_eq!(
                attempts.fail(&late(), at(30), at(30), past, at(1)),
                Kind::Silent
            );
        }
        assert_eq!(Attempts::after(None).cause(no_time()).text(), "no time");
    }

    #[test]
    fn a_silence_is_over_if_the_node_answers_others_but_not_if_it_refuses() {
        // The failure, at 5 ms; when the node last answered; and after how long the silence is an
        // outage, if there is one.
        for (failure, answered, left) in [
            (late(), Moment::PAST, Some(FAIR_TRY)),
            (late(), at(4), Some(SLOW_ANSWER)),
            (late(), at(5), None),
            (Failure::not_sent("refused"), at(7), Some(Duration::ZERO)),
        ] {
            let mut attempts = Attempts::after(None);
            attempts.fail(&failure, at(3), at(5), Moment::PAST, at(1));
            let silence = attempts.silence.and_then(|it| it.unless(answered, at(1)));
            assert_eq!(
                silence.map(|it| it.outage_after),
                left,
                "{failure:?}, {answered:?}"
            );
        }
    }
}
