//! The tokens that are held: when each hold has to be renewed.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::hold::Hold;
use crate::keeping::due::{Asked, LeaseEntry, WorkDue, period};
use crate::keeping::orphans::{FIRST_RETRY, LAST_RETRY};
use crate::keeping::tokens::{State, Tokens};
use crate::store::Failure;

impl Tokens {
    /// When a thread that serves the keys that are `mine` next has something to do. Another
    /// thread's work that is overdue at `now` does not count.
    pub(crate) fn next(&self, now: Moment, mine: impl Fn(&str) -> bool) -> Moment {
        let is_meant = |it: &&State| it.due() > now || mine(it.redis_key());
        let meant = self.by_token.values().filter(is_meant);
        meant.map(State::due).min().unwrap_or(Moment::NEVER)
    }

    /// The keys in Redis of the holds and orphans that are due at `now`.
    pub(crate) fn due(&self, now: Moment) -> impl Iterator<Item = &str> {
        let due = self.by_token.values().filter(move |it| it.due() <= now);
        due.map(State::redis_key)
    }

    /// When the first hold that the keeper watches ends.
    pub(crate) fn next_end(&self) -> Moment {
        let ends = self.leases().map(LeaseEntry::end);
        ends.min().unwrap_or(Moment::NEVER)
    }

    /// The shortest lease that has to be renewed.
    pub(crate) fn shortest(&self, now: Moment) -> Duration {
        let renewed = self
            .leases()
            .filter(|it| it.is_watched && it.hold.is_valid(now));
        let leases = renewed
            .filter(|it| it.hold.renews_every().is_some())
            .map(|it| it.hold.lease().time());
        leases.min().unwrap_or(Duration::MAX)
    }

    /// The holds that have ended by `now`. Each is returned once; `held` lists it until its guards
    /// are gone.
    pub(crate) fn take_over(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let watched = self.leases_mut().filter(|it| it.is_watched);
        let over = watched.filter(|entry| !entry.hold.is_valid(now));
        over.map(|entry| {
            (entry.is_watched, entry.due) = (false, Moment::NEVER);
            Arc::clone(&entry.hold)
        })
        .collect()
    }

    /// The work at `now` for a thread that renews the holds whose keys are `mine`. It stays due
    /// until that thread reports the result.
    ///
    /// When one hold is due, the others are renewed with it, up to an eighth of their period early.
    /// So ten thousand holds that were taken one after another are renewed in a few pipelines.
    pub(crate) fn take_due(&mut self, now: Moment, mine: impl Fn(&str) -> bool) -> WorkDue {
        let mut due = WorkDue {
            remove: self.take_orphans(now, &mine),
            ..WorkDue::default()
        };
        if self.next(now, &mine) > now {
            return due;
        }
        let entries = self.leases_mut();
        for entry in entries.filter(|it| it.due < Moment::NEVER) {
            let asked = entry.asked.as_ref().filter(|it| now < it.until);
            let early = period(&entry.hold).map(|every| every / 8);
            let early = early.or(asked.map(|_| Duration::ZERO));
            let is_due = |early| entry.due <= now.after(early);
            match early.filter(|_| entry.hold.is_valid(now)) {
                None => entry.due = Moment::NEVER,
                Some(early) if is_due(early) && mine(entry.hold.key.in_redis()) => {
                    due.until = due.until.max(asked.map(|it| it.until));
                    due.renew.push(Arc::clone(&entry.hold));
                }
                Some(_) => {}
            }
        }
        due
    }

    /// A call by the holder waits, until `until`, for the answer to a renewal that is sent from now
    /// on.
    pub(crate) fn ask(&mut self, hold: &Hold, now: Moment, until: Moment) {
        if let Some(entry) = self.lease(hold) {
            let (at, answer) = (now, None);
            entry.asked = Some(Asked { at, until, answer });
            entry.retry = FIRST_RETRY;
            entry.due = now;
        }
    }

    /// The result of such a renewal. A failure counts as the answer if it came from Redis, or if
    /// the time is over. `None`: there is still time for an answer.
    pub(crate) fn answer(&mut self, hold: &Hold, now: Moment) -> Option<Result<(), Failure>> {
        let entry = self.lease(hold);
        let asked = entry.map(|entry| &mut entry.asked);
        let waits = asked.as_ref().and_then(|asked| asked.as_ref());
        let waits = waits.filter(|it| now < it.until && hold.is_valid(now));
        if waits.is_some_and(|it| !it.has_answer()) {
            return None;
        }
        let answer = asked.and_then(Option::take).and_then(|it| it.answer);
        Some(answer.unwrap_or_else(|| Err(Failure::unknown("no answer in time"))))
    }

    /// The renewal of a hold is about to be sent. `is_tracked` says whether Redis will be asked to
    /// track the key.
    ///
    /// Call this before the command is sent. An invalidation may come before the answer. If the key
    /// did not count as tracked by then, the invalidation would be dropped, and a loss would be
    /// found late.
    pub(crate) fn sending(&mut self, hold: &Hold, is_tracked: bool, now: Moment) {
        if let Some(entry) = self.lease(hold) {
            entry.sent = now;
            entry.invalidated = false;
            entry.is_tracked |= is_tracked;
        }
    }

    /// A renewal that was sent at `sent` succeeded. The next renewal is due a period after `sent`,
    /// or soon if the key was invalidated in the meantime. Returns when it is due.
    pub(crate) fn renewed(&mut self, hold: &Hold, sent: Moment) -> Moment {
        let Some(entry) = self.lease(hold) else {
            return Moment::NEVER;
        };
        // The command was made before its connection was open, and has the lease of that time.
        let made = entry.sent;
        entry.answer(made, Ok(()));
        entry.retry = FIRST_RETRY;
        let is_asked = entry.asked.as_ref().is_some_and(|it| made < it.at);
        entry.due = if is_asked {
            sent
        } else {
            period(hold).map_or(Moment::NEVER, |every| sent.after(every))
        };
        if entry.invalidated {
            entry.renew_soon(sent);
        }
        entry.next()
    }

    /// A renewal had no answer by `now`, or was refused. The next one is due after a growing pause.
    /// Returns when it is due.
    pub(crate) fn not_renewed(&mut self, hold: &Hold, failure: &Failure, now: Moment) -> Moment {
        let Some(entry) = self.lease(hold) else {
            return Moment::NEVER;
        };
        entry.answer(entry.sent, Err(failure.copy()));
        // If the key was invalidated, or has moved, since the renewal was sent, its failure does
        // not answer that.
        if mem::take(&mut entry.invalidated) {
            entry.retry = FIRST_RETRY;
        }
        let pause = entry.retry;
        entry.retry = (2 * pause).min(LAST_RETRY);
        entry.renew_after(pause, now);
        if entry.asked.as_ref().is_some_and(|it| entry.sent < it.at) {
            entry.due = now;
        }
        entry.next()
    }

    /// Redis has sent an invalidation of this key. If it is the key of a hold that was renewed
    /// before, the hold is due soon. Returns when, and whether that renewal will show what became
    /// of the key: not if the hold is lost. (It stays in the table as long as its guard lives,
    /// while others take and release the lock.)
    pub(crate) fn invalidated(&mut self, redis_key: &[u8], now: Moment) -> (Moment, bool) {
        let meant = self.leases_mut().filter(|it| it.has_key(redis_key));
        let due = meant.filter_map(|entry| {
            let is_tracked = mem::take(&mut entry.is_tracked);
            let is_due = is_tracked || entry.invalidated; // By an invalidation before this one.
            let is_renewed = is_due && entry.hold.renews_every().is_some();
            is_renewed.then(|| (entry.renew_soon(now), entry.hold.is_valid(now)))
        });
        due.fold((Moment::NEVER, false), |(due, shows), it| {
            (due.min(it.0), shows || it.1)
        })
    }

    /// Any of these keys may have changed, or invalidations of them may have been missed. Every
    /// hold on them that was renewed before is due soon. Returns when the first of these is due.
    pub(crate) fn invalidated_those(
        &mut self,
        is_meant: impl Fn(&[u8]) -> bool,
        now: Moment,
    ) -> Moment {
        let mut due = Moment::NEVER;
        for entry in self.leases_mut() {
            if is_meant(entry.hold.key.in_redis().as_bytes()) {
                // This includes a hold whose first renewal is in progress.
                (entry.invalidated, entry.is_tracked) = (true, false);
                if entry.hold.renewals() > 0 {
                    due = due.min(entry.renew_soon(now));
                }
            }
        }
        due
    }

    /// Another server has these keys now, and may lack some. Every hold on them that is renewed at
    /// all is due soon, even one that has not been renewed yet. Returns when the first of these is
    /// due.
    pub(crate) fn moved(&mut self, has_moved: impl Fn(&[u8]) -> bool, now: Moment) -> Moment {
        self.moved = now;
        let mut due = self.invalidated_those(&has_moved, now);
        for entry in self.leases_mut() {
            let is_renewed = entry.hold.renews_every().is_some();
            if is_renewed && has_moved(entry.hold.key.in_redis().as_bytes()) {
                due = due.min(entry.renew_soon(now));
            }
        }
        due
    }

    /// A hold may end sooner than was thought. Returns when it is due.
    pub(crate) fn renew_sooner(&mut self, hold: &Hold, now: Moment) -> Moment {
        let Some(entry) = self.lease(hold) else {
            return Moment::NEVER;
        };
        if let Some(every) = hold.renews_every() {
            let sooner = now.after(every.min(hold.remaining(now) / 3));
            entry.due = entry.due.min(sooner);
        }
        entry.next()
    }

    /// A hold was found lost. There is nothing left to do for it.
    pub(crate) fn lost(&mut self, hold: &Hold) {
        if let Some(entry) = self.lease(hold) {
            (entry.is_watched, entry.due) = (false, Moment::NEVER);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hold::tests::sample;

    impl Tokens {
        /// When there is next something to do.
        pub(crate) fn first(&self) -> Moment {
            self.next(Moment::PAST, |_| true).min(self.next_end())
        }

        /// The work, all of it done by one thread.
        pub(crate) fn take(&mut self, now: Moment) -> WorkDue {
            WorkDue {
                over: self.take_over(now),
                ..self.take_due(now, |_| true)
            }
        }

        fn fails(&mut self, hold: &Hold, now: Moment) -> Moment {
            self.not_renewed(hold, &Failure::not_sent("nobody is there"), now)
        }
    }

    const START: Moment = Moment::from_nanos(1_000_000);

    fn after(millis: u64) -> Moment {
        START.after(Duration::from_millis(millis))
    }

    /// A hold with a lease of 300 ms: renewed every 100 ms, valid for 295 ms.
    fn hold() -> Arc<Hold> {
        Arc::new(sample("a", Duration::from_millis(300), START))
    }

    fn entered(hold: &Arc<Hold>) -> Tokens {
        let mut tokens = Tokens::default();
        assert_eq!(tokens.enter(Arc::clone(hold), START).unwrap(), after(100));
        tokens
    }

    #[test]
    fn a_renewal_without_an_answer_is_repeated_until_the_hold_ends() {
        let hold = hold();
        let end = hold.valid_until();
        let mut tokens = entered(&hold);
        let mut tries = Vec::new();
        loop {
            let now = tokens.first();
            let due = tokens.take(now);
            if due.over.len() == 1 {
                assert_eq!(now, end, "it is reported at the very end");
                break;
            }
            assert_eq!(due.renew.len(), 1);
            tries.push(now);
            tokens.fails(&hold, now);
        }
        let millis: Vec<_> = tries.iter().map(|at| at.since(START).as_millis()).collect();
        assert_eq!(
            millis,
            [100, 120, 160, 193, 219, 239, 259, 279],
            "more often when the end is near"
        );
        assert_eq!(tokens.first(), Moment::NEVER, "reported once");
        assert_eq!(tokens.holds(end).count(), 1, "its guards are still there");
    }

    #[test]
    fn a_move_during_a_renewal_that_fails_is_followed_by_another_at_once() {
        let hold = hold();
        let mut tokens = entered(&hold);
        tokens.take(after(100));
        assert_eq!(tokens.fails(&hold, after(110)), after(130));
        tokens.take(after(130));
        assert_eq!(tokens.fails(&hold, after(130)), after(170), "a pause");
        tokens.take(after(170));
        tokens.sending(&hold, false, after(170));
        tokens.moved(|_| true, after(171));
        tokens.take(after(180));
        assert_eq!(tokens.fails(&hold, after(182)), after(202));
        tokens.take(after(202));
        assert!(tokens.fails(&hold, after(203)) > after(223), "once");
    }

    /// A hold that was taken at `taken`.
    fn of(name: &str, lease: u64, taken: u64) -> Arc<Hold> {
        Arc::new(sample(name, Duration::from_millis(lease), after(taken)))
    }

    /// Its renewal was sent at `sent`, and was answered.
    fn is_renewed(tokens: &mut Tokens, hold: &Hold, sent: u64) -> Moment {
        let _ = hold.renewed(hold.lease(), after(sent), after(sent + 1));
        tokens.renewed(hold, after(sent))
    }

    #[test]
    fn the_first_renewal_is_due_after_a_second_and_the_next_ones_after_a_third_of_the_lease() {
        for (lease, first, second) in [(300, 100, 200), (30_000, 1000, 11_000)] {
            let (hold, mut tokens) = (of("a", lease, 0), Tokens::default());
            assert_eq!(
                tokens.enter(Arc::clone(&hold), START).unwrap(),
                after(first)
            );
            assert!(tokens.take(after(first - 1)).is_empty());
            assert_eq!(tokens.take(after(first)).renew.len(), 1);
            assert_eq!(is_renewed(&mut tokens, &hold, first), after(second));
        }
    }

    #[test]
    fn holds_that_are_due_soon_are_renewed_together() {
        let mut tokens = Tokens::default();
        for n in 0..20 {
            tokens.enter(of("a", 300, n), after(n)).unwrap();
        }
        assert_eq!(
            tokens.take(after(100)).renew.len(),
            13,
            "those due within 100/8 ms"
        );
    }

    #[test]
    fn a_hold_is_due_when_its_key_has_moved_also_one_that_is_entered_late() {
        let mut tokens = entered(&hold());
        assert_eq!(tokens.moved(|_| false, after(1)), Moment::NEVER);
        assert_eq!(tokens.first(), after(100));
        assert_eq!(
            tokens.moved(|_| true, after(50)),
            after(50),
            "it was never renewed"
        );
        assert_eq!(tokens.take(after(50)).renew.len(), 1);
        assert!(tokens.enter(hold(), START).unwrap() <= after(50));
        let later = tokens.enter(of("a", 300, 60), after(60));
        assert_eq!(later.unwrap(), after(160), "taken at the new server");
    }

    #[test]
    fn a_hold_that_is_not_renewed_is_due_at_its_end_once_if_losses_are_reported() {
        for reports in [false, true] {
            let (left, late, other) = (hold(), hold(), of("b", 600, 0));
            left.mark_thread_ended();
            let mut tokens = Tokens::new(reports);
            let next = tokens.enter(Arc::clone(&left), START).unwrap();
            assert_eq!(
                next,
                if reports {
                    left.valid_until()
                } else {
                    Moment::NEVER
                }
            );
            tokens.enter(Arc::clone(&late), START).unwrap();
            tokens.enter(Arc::clone(&other), START).unwrap();
            // Its thread exits during its last renewal.
            assert_eq!(tokens.take(after(100)).renew.len(), 1);
            late.mark_thread_ended();
            is_renewed(&mut tokens, &late, 100);
            let shortest = tokens.shortest(after(150));
            assert_eq!(
                shortest,
                Duration::from_millis(600),
                "the others are not renewed"
            );
            let over = [290, 296, 300, 396].map(|now| tokens.take(after(now)).over.len());
            assert_eq!(over, [0, usize::from(reports), 0, 1]);
            assert_eq!(tokens.holds(after(396)).count(), 1);
            other.close(after(500));
            assert_eq!(
                tokens.shortest(after(500)),
                Duration::MAX,
                "its release is under way"
            );
        }
    }

    /// But a hold that has run out is not dropped before it is reported.
    #[test]
    fn holds_of_threads_that_have_ended_do_not_pile_up() {
        for (reports, most) in [(true, 10), (false, 1000)] {
            let mut tokens = Tokens::default();
            for n in 0..1000 {
                let left = of("a", 300, n * 1000);
                tokens.claim(&left.token, after(n * 1000)).unwrap();
                tokens.enter(Arc::clone(&left), after(n * 1000)).unwrap();
                left.mark_thread_ended();
                assert!(!reports || tokens.take(after(n * 1000 + 500)).over.len() == 1);
            }
            let count = tokens.by_token.len();
            assert!(count <= most && (reports || count == most), "{count}");
        }
    }

    #[test]
    fn an_invalidation_renews_a_tracked_hold_at_once_and_once() {
        let hold = hold();
        let key = hold.key.in_redis().as_bytes();
        let mut tokens = entered(&hold);
        let first = tokens.invalidated(key, after(1));
        assert_eq!(first, (Moment::NEVER, false), "it is not tracked yet");
        let any = tokens.invalidated_those(|_| true, after(2));
        assert_eq!(
            any,
            Moment::NEVER,
            "a hold that was never renewed costs nothing"
        );
        tokens.sending(&hold, true, after(100));
        is_renewed(&mut tokens, &hold, 100);
        let other = tokens.invalidated(b"lock:other", after(110));
        assert_eq!(other, (Moment::NEVER, false));
        assert_eq!(tokens.invalidated(key, after(110)), (after(110), true));
        assert_eq!(tokens.take(after(110)).renew.len(), 1);
        let again = tokens.invalidated(key, after(111));
        assert_eq!(again, (after(110), true), "the same renewal answers both");
        assert_eq!(tokens.invalidated_those(|_| true, after(111)), after(110));
        // The invalidation comes before the answer: soon, but not within 10 ms.
        tokens.sending(&hold, true, after(112));
        tokens.invalidated(key, after(113));
        assert_eq!(is_renewed(&mut tokens, &hold, 112), after(122));
        tokens.lost(&hold);
        assert_eq!(
            tokens.invalidated_those(|_| true, after(130)),
            Moment::NEVER
        );
        tokens.sending(&hold, true, after(131));
        tokens.close(&hold, after(131));
        let released = tokens.invalidated(key, after(132));
        assert_eq!(
            released,
            (Moment::NEVER, false),
            "its release is not a loss"
        );
    }

    #[test]
    fn no_renewal_says_what_others_do_with_the_key_of_a_lost_hold() {
        let hold = hold();
        let key = hold.key.in_redis().as_bytes();
        let mut tokens = entered(&hold);
        tokens.sending(&hold, true, after(100));
        hold.lose(crate::LostCause::Deleted);
        let (due, shows) = tokens.invalidated(key, after(110));
        assert!(due < Moment::NEVER, "the keeper finds the loss soon");
        assert!(!shows);
    }

    #[test]
    fn a_hold_that_ends_sooner_than_was_known_is_renewed_sooner() {
        let hold = hold();
        let mut tokens = entered(&hold);
        hold.shorten_to(after(95));
        let sooner = tokens.renew_sooner(&hold, after(5));
        assert_eq!(sooner, after(35), "there is time for three tries");
        hold.mark_thread_ended();
        assert_eq!(
            tokens.renew_sooner(&hold, after(5)),
            after(35),
            "never later than before"
        );
        assert!(tokens.take(after(35)).renew.is_empty());
        hold.shorten_to(after(50));
        assert_eq!(tokens.renew_sooner(&hold, after(36)), after(50));
        assert_eq!(tokens.take(after(50)).over.len(), 1);
        assert_eq!(tokens.renew_sooner(&hold, after(51)), Moment::NEVER);
    }
}
