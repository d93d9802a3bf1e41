//! How long to try to take a lock, and what it means that Redis does not answer: busy, or an
//! outage.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::holder::Holder;
use crate::store::{FAIR_TRY, Failure, Refusal};

/// What a Redis may take that has answered before: it is there, though it may be slow.
pub(crate) const SLOW_ANSWER: Duration = Duration::from_millis(100);

/// The least time between two looks at a line in which nothing is wrong.
const GLANCE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// When the caller asked for the lock.
    pub(crate) began: Moment,
    /// The instant that no wait passes, in the line, for a connection, on the wire or asleep.
    pub(crate) deadline: Moment,
    /// One answer is enough: busy is busy.
    pub(crate) once: bool,
    /// How long Redis may stay away where there is no deadline.
    pub(crate) tolerate_outage: Duration,
    /// How long an attempt may take that succeeds.
    pub(crate) an_attempt: Duration,
}

/// A time without a proper answer of Redis to the threads that want one lock.
#[derive(Clone, Debug)]
pub(crate) struct Silence {
    /// The first attempt began that was not answered.
    pub(crate) since: Moment,
    /// As long as this, and it is an outage; a deadline that comes sooner proves nothing.
    pub(crate) fair: Duration,
    /// What went wrong, where that is known: a thread that still waits for its answer does not
    /// know.
    pub(crate) words: Option<Arc<str>>,
    /// When that went wrong.
    pub(crate) latest: Moment,
}

impl Silence {
    /// `answered` says that Redis had answered before.
    pub(crate) fn new(since: Moment, answered: bool) -> Silence {
        let fair = if answered { SLOW_ANSWER } else { FAIR_TRY };
        Silence { since, fair, words: None, latest: since }
    }

    /// True where Redis has answered somebody else of this process since, and refused nobody: it is
    /// there.
    pub(crate) fn is_refuted(&self, answered_since: impl Fn(Moment) -> bool) -> bool {
        !self.fair.is_zero() && answered_since(self.latest)
    }
}

/// What a trouble says of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Redis says no, and waiting does not change that.
    Final,
    /// Redis cannot be had now: it refuses connections, or commands.
    Down,
    /// There was no answer within the time that there was.
    Silent,
    /// The time ran out in this process: Redis was not asked.
    OutOfTime,
}

impl Kind {
    pub(crate) fn of(failure: &Failure) -> Kind {
        match failure {
            Failure::Refused(refusal) if !refusal.can_pass() => Kind::Final,
            Failure::Refused(_) | Failure::NotSent(_) => Kind::Down,
            Failure::Unanswered { .. } => Kind::Silent,
            Failure::OutOfTime(_) => Kind::OutOfTime,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    TryAgain,
    /// The limit is over, and nothing was found out about Redis.
    Busy,
    /// Redis is not there.
    GiveUp,
}

impl Patience {
    /// What to do after the attempt number `tries` of a silence has failed.
    pub(crate) fn judge(&self, now: Moment, kind: Kind, silence: Option<&Silence>, tries: u32) -> Verdict {
        let outage = silence.is_some_and(|silence| self.is_outage(silence, now));
        let over = self.deadline <= now || (self.once && tries > 1);
        match kind {
            Kind::Final => Verdict::GiveUp,
            Kind::OutOfTime if !over => Verdict::TryAgain,
            Kind::OutOfTime if !outage => Verdict::Busy,
            _ if outage => Verdict::GiveUp,
            _ if !over => Verdict::TryAgain,
            Kind::Silent if !self.once => Verdict::Busy,
            _ => Verdict::GiveUp,
        }
    }

    /// True where a silence has lasted too long: at the deadline, as long as is fair; without one,
    /// as long as an outage is tolerated. It counts from when this caller asked for the lock, at
    /// the earliest.
    pub(crate) fn is_outage(&self, silence: &Silence, now: Moment) -> bool {
        let lasted = now.min(self.deadline).since(silence.since.max(self.began));
        if self.is_endless() {
            lasted >= self.tolerated(silence)
        } else {
            self.deadline <= now && lasted >= silence.fair
        }
    }

    /// When a thread in line, which nobody calls, has to look whether a silence has become an
    /// outage.
    pub(crate) fn look_again(&self, silence: Option<&Silence>, now: Moment) -> Moment {
        match silence {
            _ if !self.is_endless() => self.deadline,
            Some(silence) => silence.since.max(self.began).after(self.tolerated(silence)),
            // A silence that begins after this moment cannot be too long before that one.
            None => now.after(self.tolerate_outage.max(GLANCE)),
        }
    }

    /// As long as nothing has failed, an attempt is given its time: it may yet be answered.
    fn tolerated(&self, silence: &Silence) -> Duration {
        let pending = if silence.words.is_none() { self.an_attempt } else { Duration::ZERO };
        self.tolerate_outage.max(pending)
    }

    fn is_endless(&self) -> bool {
        self.deadline == Moment::NEVER
    }
}

/// How long a key has to stand without expiry before it is called no lock: longer than a live
/// holder takes to repair it after somebody's `PERSIST`, which is tens of milliseconds.
const WITHOUT_EXPIRY: Duration = Duration::from_millis(250);

/// What stands at the key without expiry, and when it is called no lock if it still stands there.
#[derive(Debug, Default)]
pub(crate) struct Unending(Option<(String, Moment)>);

impl Unending {
    /// Takes in what was found there, by a waiter that would take the lock for so long.
    ///
    /// The holder of a token repairs its key at once if Redis has told it, and else with its next
    /// renewal: after half of its lease at most, which is taken to be as long as the waiter's own.
    pub(crate) fn saw(&mut self, holder: &Holder, lease: Duration, now: Moment) {
        let before = self.0.take().filter(|(value, _)| value == holder.raw());
        if holder.time_left().is_none() {
            let repaired = if holder.owner().is_some() { lease / 2 } else { Duration::ZERO };
            let end = now.after(WITHOUT_EXPIRY.max(repaired));
            self.0 = before.or_else(|| Some((holder.raw().to_owned(), end)));
        }
    }

    /// How long it has yet to stand there before it is called no lock: zero where nobody will
    /// repair it. `None` where there is no such thing.
    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        self.0.as_ref().map(|(_, end)| end.since(now))
    }
}

/// The attempts of one thread that failed since the last that Redis answered.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    pub(crate) silence: Option<Silence>,
    pub(crate) failed: u32,
    /// The last thing that Redis refused.
    refusal: Option<Refusal>,
    /// Redis has answered before.
    answered: bool,
}

impl Attempts {
    /// With what the threads before it in line had found out.
    pub(crate) fn after(silence: Option<Silence>, answered: bool) -> Attempts {
        Attempts { silence, failed: 0, refusal: None, answered }
    }

    pub(crate) fn hear(&mut self) {
        *self = Attempts::after(None, true);
    }

    /// An attempt failed that began at `since`.
    pub(crate) fn fail(&mut self, failure: &Failure, since: Moment) -> Kind {
        self.failed += 1;
        if let Failure::Refused(refusal) = failure {
            self.refusal = Some(refusal.clone());
        }
        let kind = match Kind::of(failure) {
            Kind::Final => Kind::Final,
            // What Redis refused before says more than an attempt that was cut short after it.
            _ if self.refusal.is_some() => Kind::Down,
            other => other,
        };
        if kind != Kind::OutOfTime {
            let new = Silence::new(since, self.answered);
            let silence = self.silence.get_or_insert_with(|| new.clone());
            silence.fair = if kind == Kind::Down { Duration::ZERO } else { new.fair };
            (silence.words, silence.latest) = (Some(failure.words().into()), Moment::now());
        }
        kind
    }

    /// Forgets a silence that others know to be over.
    pub(crate) fn refute(&mut self, answered_since: impl Fn(Moment) -> bool) {
        if self.silence.as_ref().is_some_and(|silence| silence.is_refuted(answered_since)) {
            self.silence = None;
        }
    }

    /// Why Redis is given up after this trouble: the last refusal, where there was one.
    pub(crate) fn cause(&mut self, failure: Failure) -> Failure {
        match failure {
            Failure::Refused(_) => failure,
            other => self.refusal.take().map_or(other, Failure::Refused),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TOLERATED: Duration = Duration::from_secs(10);

    /// Of a caller that asked at the beginning of all time.
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
        Silence::new(at(since), false)
    }

    fn slow(since: u64) -> Silence {
        Silence::new(at(since), true)
    }

    /// A caller that asked after a second, and how long it waits.
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
        Patience { once: true, ..limit(2000) }
    }

    fn endless() -> Patience {
        Patience { deadline: Moment::NEVER, ..limit(0) }
    }

    #[test]
    fn what_a_trouble_leads_to() {
        use Kind::{Down, Final, OutOfTime, Silent};
        use Verdict::{Busy, GiveUp, TryAgain};
        // Patience, now, what went wrong, the silence, the attempts that failed.
        let table = [
            // Redis has said no.
            (limit(50), 1001, Final, None, 1, GiveUp),
            (endless(), 1001, Final, None, 1, GiveUp),
            // There is time left.
            (limit(50), 1049, Silent, Some(silent(1000)), 1, TryAgain),
            (limit(50), 1049, Down, Some(silent(1000)), 1, TryAgain),
            (limit(50), 1049, OutOfTime, None, 1, TryAgain),
            (limit(5000), 5999, Silent, Some(silent(1000)), 9, TryAgain),
            // The limit is over: too short to say anything of Redis, or long enough.
            (limit(9), 1009, Silent, Some(silent(1000)), 1, Busy),
            (limit(19), 1019, Silent, Some(silent(1000)), 1, Busy),
            (limit(20), 1020, Silent, Some(silent(1000)), 1, GiveUp),
            (limit(50), 1050, Silent, Some(silent(1000)), 2, GiveUp),
            (limit(50), 1050, Silent, Some(silent(1031)), 1, Busy),
            // That this thread came late by itself is nothing that Redis did.
            (limit(9), 1900, Silent, Some(silent(1000)), 1, Busy),
            // Redis has answered before, if not in a hurry.
            (limit(99), 1099, Silent, Some(slow(1000)), 1, Busy),
            (limit(100), 1100, Silent, Some(slow(1000)), 1, GiveUp),
            // Refused is refused, however short the limit.
            (limit(1), 1001, Down, Some(silent(1000)), 1, GiveUp),
            // Redis was not asked.
            (limit(1), 1001, OutOfTime, None, 1, Busy),
            (limit(5000), 6000, OutOfTime, None, 9, Busy),
            (limit(50), 1050, OutOfTime, Some(silent(1000)), 2, GiveUp),
            (limit(50), 1050, OutOfTime, Some(silent(1040)), 2, Busy),
            // What went on before the caller came is not held against Redis.
            (limit(9), 1009, Silent, Some(silent(0)), 1, Busy),
            (limit(30), 1030, Silent, Some(silent(0)), 1, GiveUp),
            // One answer is wanted, and one more try is made.
            (once(), 1001, Silent, Some(silent(1000)), 1, TryAgain),
            (once(), 1002, Silent, Some(silent(1000)), 2, GiveUp),
            (once(), 1002, Down, Some(silent(1000)), 2, GiveUp),
            (once(), 3000, Silent, Some(silent(1000)), 1, GiveUp),
            (once(), 3000, OutOfTime, None, 1, Busy),
            // No limit: as long as an outage is tolerated, from when it began or, if later, the
            // caller came.
            (endless(), 10_999, Silent, Some(silent(1000)), 9, TryAgain),
            (endless(), 11_000, Silent, Some(silent(1000)), 9, GiveUp),
            (endless(), 11_000, Down, Some(silent(1000)), 9, GiveUp),
            (endless(), 10_999, Down, Some(silent(0)), 9, TryAgain),
            (endless(), 11_000, Down, Some(silent(0)), 1, GiveUp),
            (endless(), 11_000, Down, Some(silent(5000)), 1, TryAgain),
            (endless(), 99_000, OutOfTime, None, 99, TryAgain),
        ];
        for (row, (patience, now, kind, silence, tries, verdict)) in table.into_iter().enumerate() {
            let said = patience.judge(at(now), kind, silence.as_ref(), tries);
            assert_eq!(said, verdict, "row {row}: {patience:?}, {kind:?} at {now} ms, {silence:?}");
        }
    }

    #[test]
    fn only_what_stays_without_expiry_is_no_lock() {
        let minute = Some(Duration::from_secs(60));
        let left = |seen: &[(u64, &str, Option<Duration>)]| {
            let mut unending = Unending::default();
            for (now, value, time_left) in seen {
                unending.saw(&Holder::new(value.as_bytes(), *time_left), Duration::from_secs(30), at(*now));
            }
            unending.left(at(seen.last().unwrap().0))
        };
        let millis = Duration::from_millis;
        assert_eq!(left(&[(0, "a", minute)]), None);
        assert_eq!(left(&[(0, "a", None)]), Some(millis(250)), "not at the first look");
        assert_eq!(left(&[(0, "a", None), (100, "a", None)]), Some(millis(150)));
        assert_eq!(left(&[(0, "a", None), (250, "a", None)]), Some(Duration::ZERO));
        assert_eq!(left(&[(0, "a", None), (100, "a", minute)]), None, "it was repaired");
        assert_eq!(left(&[(0, "a", None), (100, "a", minute), (300, "a", None)]), Some(millis(250)));
        assert_eq!(left(&[(0, "a", None), (300, "b", None)]), Some(millis(250)), "that is another one");
        let token = format!("host-1-2-{}", "0".repeat(32));
        assert_eq!(left(&[(0, &token, None)]), Some(millis(15_000)), "its holder may repair it");
    }

    #[test]
    fn an_attempt_that_is_under_way_is_no_outage_before_it_could_have_failed() {
        let impatient = Patience { tolerate_outage: Duration::ZERO, ..endless() };
        let pending = silent(1000);
        let failed = Silence { words: Some("no answer".into()), ..silent(1000) };
        assert!(!impatient.is_outage(&pending, at(1099)) && impatient.is_outage(&pending, at(1100)));
        assert!(impatient.is_outage(&failed, at(1001)));
        assert_eq!(impatient.look_again(Some(&pending), at(1001)), at(1100));
    }

    #[test]
    fn what_redis_refused_before_says_more_than_an_attempt_that_was_cut_short() {
        let unanswered = || Failure::Unanswered { link_stands: true, cause: "late".into() };
        let loading = Refusal { code: "LOADING".into(), message: "LOADING".into() };
        let mut attempts = Attempts::after(None, false);
        assert_eq!(attempts.fail(&unanswered(), at(0)), Kind::Silent);
        assert_eq!(attempts.fail(&Failure::Refused(loading), at(1)), Kind::Down);
        assert_eq!(attempts.silence.as_ref().unwrap().fair, Duration::ZERO);
        assert_eq!(attempts.fail(&unanswered(), at(2)), Kind::Down);
        assert_eq!(attempts.silence.as_ref().unwrap().since, at(0), "from the first of them on");
        attempts.hear();
        assert_eq!(attempts.fail(&unanswered(), at(3)), Kind::Silent);
    }

    #[test]
    fn a_connection_that_is_refused_once_does_not_make_an_outage_of_what_follows() {
        let mut attempts = Attempts::after(None, true);
        assert_eq!(attempts.fail(&Failure::not_sent("refused"), at(0)), Kind::Down);
        let cut_short = Failure::Unanswered { link_stands: true, cause: "late".into() };
        assert_eq!(attempts.fail(&cut_short, at(1)), Kind::Silent);
        assert_eq!(attempts.silence.as_ref().unwrap().fair, SLOW_ANSWER);
    }

    #[test]
    fn a_silence_is_over_where_redis_answers_others_but_not_where_it_refuses() {
        let cut_short = Failure::Unanswered { link_stands: true, cause: "late".into() };
        for (failure, over) in [(cut_short, true), (Failure::not_sent("refused"), false)] {
            let mut attempts = Attempts::after(None, true);
            attempts.fail(&failure, at(0));
            let failed = attempts.silence.as_ref().unwrap().latest;
            attempts.refute(|since| since < failed);
            assert!(attempts.silence.is_some(), "the answer was before that");
            attempts.refute(|since| since <= failed);
            assert_eq!(attempts.silence.is_none(), over, "{failure:?}");
        }
    }

    #[test]
    fn each_trouble_has_its_kind() {
        let refused = |code: &str| {
            let (code, message) = (code.to_owned(), code.to_owned());
            Failure::Refused(Refusal { code, message })
        };
        assert_eq!(Kind::of(&refused("NOPERM")), Kind::Final);
        assert_eq!(Kind::of(&refused("LOADING")), Kind::Down);
        assert_eq!(Kind::of(&Failure::NotSent("refused".into())), Kind::Down);
        assert_eq!(Kind::of(&Failure::Unanswered { link_stands: true, cause: "".into() }), Kind::Silent);
        assert_eq!(Kind::of(&Failure::OutOfTime("no slot".into())), Kind::OutOfTime);
    }

    #[test]
    fn a_thread_in_line_looks_again_when_an_outage_may_be_too_long() {
        let now = at(1500);
        assert_eq!(endless().look_again(Some(&silent(1200)), now), at(11_200));
        assert_eq!(endless().look_again(Some(&silent(500)), now), at(11_000), "not for what was before it");
        assert_eq!(endless().look_again(None, now), at(11_500));
        assert_eq!(limit(700).look_again(Some(&silent(1200)), now), at(1700));
        let impatient = Patience { tolerate_outage: Duration::ZERO, ..endless() };
        assert!(impatient.look_again(None, now) > now, "it does not spin");
    }
}
