//! The tokens of one manager. Each has one entry, from before it is sent until Redis has said that
//! it is gone. This table has no clock, threads or Redis.
//!
//! The keeper renews what is held, and nothing else. So it does not mistake a release for a loss.
//! It deletes the orphans. A shutdown waits for tokens that are claimed, held or leaving.
//! (`docs/architecture.md` has the table of all states, and of the steps from one to the next.)

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::sync::HashMap;
use crate::hold::Hold;
use crate::keeping::due::{LeaseEntry, period};
use crate::keeping::orphans::{FIRST_RETRY, Orphan, Removal};

/// The most orphans that are handed out at a time. Renewals that fall due in the meantime go before
/// the next batch.
const BATCH: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pub(super) by_token: HashMap<Arc<str>, State>,
    /// There is an `on_lost` callback. It gets the losses of all holds, even of those that are not
    /// renewed.
    reports_losses: bool,
    /// When keys last moved to another server.
    pub(super) moved: Moment,
    /// The manager is shut down: no more tokens are claimed.
    pub(crate) is_closed: bool,
}

/// Where a token is.
#[derive(Debug)]
pub(super) enum State {
    /// Its `SET` is about to be sent, is on its way, or was answered a moment ago. The token must
    /// not become held if `force_unlock` has deleted it in the meantime, or if a shutdown has
    /// ended.
    Claimed {
        refused: Option<LostCause>,
    },
    Held(LeaseEntry),
    /// Its release is in progress.
    Leaving,
    /// Redis may have it stored, and no thread will use it.
    Orphan(Orphan),
}

/// The manager is shut down.
#[derive(Debug)]
pub(crate) struct Closed;

impl Tokens {
    pub(crate) fn new(reports_losses: bool) -> Tokens {
        Tokens {
            reports_losses,
            ..Tokens::default()
        }
    }

    /// A thread is about to send the `SET` of this token.
    pub(crate) fn claim(&mut self, token: &Arc<str>, now: Moment) -> Result<(), Closed> {
        if self.is_closed {
            return Err(Closed);
        }
        if self.by_token.len() == self.by_token.capacity() {
            // Before the table grows, it drops the holds that have run out and whose threads exited
            // with a forgotten guard. One that is still due stays: the keeper has not reported it.
            self.by_token.retain(|_, state| match state {
                State::Held(entry) => entry.is_watched || !entry.hold.can_be_forgotten(now),
                State::Claimed { .. } | State::Leaving | State::Orphan(_) => true,
            });
        }
        let claimed = State::Claimed { refused: None };
        self.by_token.insert(Arc::clone(token), claimed);
        Ok(())
    }

    /// Redis has stored the token for this hold. Returns when the hold is due. An error says why
    /// nobody may trust the hold; its thread then gives it back.
    pub(crate) fn enter(&mut self, hold: Arc<Hold>, now: Moment) -> Result<Moment, Error> {
        match self.by_token.get(&hold.token) {
            Some(State::Claimed {
                refused: Some(LostCause::ShutDown),
            }) => {
                let (key, held) = (hold.key.name().to_string(), Vec::new());
                return Err(Error::Stopped { key, held });
            }
            Some(State::Claimed {
                refused: Some(cause),
            }) => return Err(hold.lose(*cause)),
            _ => {}
        }
        let period = period(&hold);
        // The hold was perhaps taken at the server that had the key before, and is only entered
        // now.
        let due = if hold.acquired.sent < self.moved {
            period.map_or(Moment::NEVER, |_| Moment::PAST)
        } else {
            period.map_or(Moment::NEVER, |every| now.after(every))
        };
        let entry = LeaseEntry {
            is_watched: self.reports_losses || period.is_some(),
            hold,
            due,
            retry: FIRST_RETRY,
            sent: Moment::PAST,
            is_tracked: false,
            invalidated: false,
            asked: None,
        };
        let next = entry.next();
        self.set(&Arc::clone(&entry.hold.token), State::Held(entry));
        Ok(next)
    }

    /// The release of a hold is about to be sent. Returns the end of the hold's validity, if that
    /// is after `now`.
    ///
    /// This is one step under the caller's lock. If the keeper found a closed hold among those that
    /// are held, it would report that hold as having run out.
    pub(crate) fn close(&mut self, hold: &Hold, now: Moment) -> Option<Moment> {
        if !matches!(self.by_token.get(&hold.token), Some(State::Orphan(_))) {
            self.set(&hold.token, State::Leaving);
        }
        hold.close(now)
    }

    /// (Inserting a key that is already there can make the table grow.)
    fn set(&mut self, token: &Arc<str>, state: State) {
        match self.by_token.get_mut(token) {
            Some(before) => *before = state,
            None => _ = self.by_token.insert(Arc::clone(token), state),
        }
    }

    /// Redis does not store the token and will not; or it does, but the token is no longer this
    /// manager's. (An orphan stays: its own deletion ends it.)
    pub(crate) fn gone(&mut self, token: &str) {
        if !self.has_orphan(token) {
            self.by_token.remove(token);
        }
    }

    /// No thread will use the token, and Redis may have it stored. It is deleted shortly after
    /// `from`. Returns when.
    pub(crate) fn give_up(&mut self, token: &Arc<str>, mut orphan: Orphan, from: Moment) -> Moment {
        if let Some(State::Orphan(before)) = self.by_token.get(token) {
            orphan.merge(before);
        }
        orphan.due = from.after(FIRST_RETRY);
        let due = orphan.due;
        self.set(token, State::Orphan(orphan));
        due
    }

    /// The orphans that are `mine` to delete at `now`, at most a batch of them.
    pub(super) fn take_orphans(
        &mut self,
        now: Moment,
        mine: impl Fn(&str) -> bool,
    ) -> Vec<Removal> {
        self.by_token
            .retain(|_, state| !matches!(state, State::Orphan(orphan) if orphan.is_over(now)));
        let orphans = self
            .by_token
            .iter_mut()
            .filter_map(|(token, state)| match state {
                State::Orphan(orphan) => Some((token, orphan)),
                State::Claimed { .. } | State::Held(_) | State::Leaving => None,
            });
        let due = orphans.filter(|(_, it)| it.due <= now && mine(it.key.in_redis()));
        due.take(BATCH)
            .map(|(token, orphan)| orphan.remove(token, now))
            .collect()
    }

    /// Redis has not answered a batch, so it would not answer the other orphans that are `mine`
    /// either: none of them is due within this pause.
    pub(super) fn delay_orphans(
        &mut self,
        pause: Duration,
        now: Moment,
        mine: impl Fn(&str) -> bool,
    ) {
        for state in self.by_token.values_mut() {
            if let State::Orphan(orphan) = state
                && mine(orphan.key.in_redis())
            {
                orphan.due = orphan.due.max(now.after(pause));
            }
        }
    }

    /// Redis has deleted an orphan's key, or it was absent.
    pub(super) fn removed(&mut self, token: &str, now: Moment) {
        match self.by_token.get_mut(token) {
            Some(State::Orphan(orphan)) if orphan.may_reappear => orphan.search_again(now),
            Some(State::Orphan(_)) => _ = self.by_token.remove(token),
            Some(State::Claimed { .. } | State::Held(_) | State::Leaving) | None => {}
        }
    }

    /// The token was deleted in Redis, by this manager's `force_unlock` or by a control of a store
    /// in memory. Returns the hold that is lost by that. (If a release is in progress, it learns
    /// that from Redis.)
    pub(crate) fn deleted(&mut self, token: &str, cause: LostCause) -> Option<Arc<Hold>> {
        match self.by_token.get_mut(token)? {
            State::Claimed { refused } => {
                *refused = Some(cause);
                None
            }
            State::Held(entry) => {
                let hold = Arc::clone(&entry.hold);
                hold.lose(cause);
                self.lost(&hold);
                Some(hold)
            }
            State::Leaving | State::Orphan(_) => None,
        }
    }

    /// A shutdown has ended. A thread that gets its answer after this gives the lock back.
    pub(crate) fn refuse_claimed(&mut self) {
        for state in self.by_token.values_mut() {
            if let State::Claimed { refused } = state {
                *refused = Some(LostCause::ShutDown);
            }
        }
    }

    /// Takes all holds away from their threads, which do not know yet. Returns them.
    pub(crate) fn take_away(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let holds: Vec<_> = self.holds(now).map(Arc::clone).collect();
        for hold in &holds {
            hold.lose(LostCause::ShutDown);
            self.give_up(
                &hold.token,
                Orphan::of_hold(hold),
                hold.keep_until().max(now),
            );
        }
        holds
    }

    /// The time until which a shutdown has to wait, as of `now`, for the tokens of others: for
    /// answers until `latest`, for holds until `end`. `None`: there is nothing left to wait for.
    pub(crate) fn awaited(
        &self,
        is_mine: impl Fn(&str) -> bool,
        now: Moment,
        end: Moment,
        latest: Moment,
    ) -> Option<Moment> {
        let until = self
            .by_token
            .iter()
            .filter_map(|(token, state)| match state {
                State::Claimed { .. } | State::Leaving => Some(latest),
                // No thread reports that a hold has run out.
                State::Held(entry) => {
                    Some(entry.hold.valid_until().min(end)).filter(|_| !is_mine(token))
                }
                State::Orphan(_) => None,
            });
        until.filter(|until| now < *until).min()
    }

    /// True if the token is held. If it is not, Redis's answer about it may be due to its release.
    pub(crate) fn has(&self, hold: &Hold) -> bool {
        matches!(self.by_token.get(&hold.token), Some(State::Held(_)))
    }

    /// True if the token is still to be deleted.
    pub(crate) fn has_orphan(&self, token: &str) -> bool {
        matches!(self.by_token.get(token), Some(State::Orphan(_)))
    }

    /// Every hold that has a guard or is still valid.
    pub(crate) fn holds(&self, now: Moment) -> impl Iterator<Item = &Arc<Hold>> {
        let holds = self.leases().map(|entry| &entry.hold);
        holds.filter(move |hold| !hold.can_be_forgotten(now))
    }

    pub(super) fn lease(&mut self, hold: &Hold) -> Option<&mut LeaseEntry> {
        self.by_token.get_mut(&hold.token)?.lease()
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &LeaseEntry> {
        self.by_token.values().filter_map(|state| match state {
            State::Held(entry) => Some(entry),
            State::Claimed { .. } | State::Leaving | State::Orphan(_) => None,
        })
    }

    pub(super) fn leases_mut(&mut self) -> impl Iterator<Item = &mut LeaseEntry> {
        self.by_token.values_mut().filter_map(State::lease)
    }
}

impl State {
    fn lease(&mut self) -> Option<&mut LeaseEntry> {
        match self {
            State::Held(entry) => Some(entry),
            State::Claimed { .. } | State::Leaving | State::Orphan(_) => None,
        }
    }

    /// When the keeper has something to do about the token.
    pub(super) fn due(&self) -> Moment {
        match self {
            State::Held(entry) => entry.due,
            State::Orphan(orphan) => orphan.due,
            State::Claimed { .. } | State::Leaving => Moment::NEVER,
        }
    }

    /// The token's key in Redis, if the keeper may have something to do about it.
    pub(super) fn redis_key(&self) -> &str {
        match self {
            State::Held(entry) => entry.hold.key.in_redis(),
            State::Orphan(orphan) => orphan.key.in_redis(),
            State::Claimed { .. } | State::Leaving => "",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hold::tests::sample;
    use crate::keeping::orphans::LAST_RETRY;

    impl Tokens {
        /// When the first orphan is due.
        pub(crate) fn first_orphan(&self) -> Moment {
            let orphans = self.by_token.values();
            let orphans = orphans.filter(|it| matches!(it, State::Orphan(_)));
            orphans.map(State::due).min().unwrap_or(Moment::NEVER)
        }

        pub(crate) fn take_all_orphans(&mut self, now: Moment) -> Vec<Removal> {
            self.take_orphans(now, |_| true)
        }
    }

    fn after(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    /// A table with one orphan.
    fn with(orphan: Orphan) -> Tokens {
        let mut tokens = Tokens::default();
        tokens.give_up(&"t".into(), orphan, after(0));
        tokens
    }

    /// The orphan that is due at `now`.
    fn take_one(tokens: &mut Tokens, now: Moment) -> Removal {
        let mut taken = tokens.take_all_orphans(now);
        assert_eq!(taken.len(), 1);
        taken.remove(0)
    }

    #[test]
    fn the_search_for_a_key_that_may_reappear_slows_down_but_not_while_redis_is_silent() {
        let mut tokens = with(Orphan::sample(true, after(86_400_000)));
        let mut looks = Vec::new();
        while looks.len() < 12 {
            let now = tokens.first_orphan();
            let removal = take_one(&mut tokens, now);
            tokens.removed(&removal.token, now);
            looks.push(tokens.first_orphan().since(now));
        }
        for (number, look) in (1..).zip(&looks) {
            assert_eq!(*look, 2_u32.pow(number) * FIRST_RETRY, "{looks:?}");
        }
        for pause in [FIRST_RETRY, 2 * FIRST_RETRY] {
            let now = tokens.first_orphan();
            take_one(&mut tokens, now);
            assert_eq!(
                tokens.first_orphan(),
                now.after(pause),
                "without an answer, the pauses are short again"
            );
        }
    }

    #[test]
    fn many_orphans_are_handed_out_in_batches_and_each_once() {
        let mut tokens = Tokens::default();
        for number in 0..2001 {
            let orphan = Orphan::sample(false, after(500));
            tokens.give_up(&number.to_string().into(), orphan, after(0));
        }
        let mut seen = Vec::new();
        for size in [1000, 1000, 1, 0] {
            let batch = tokens.take_all_orphans(after(20));
            assert_eq!(batch.len(), size);
            seen.extend(batch.into_iter().map(|removal| removal.token));
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 2001);
        assert_eq!(tokens.first_orphan(), after(40), "they are due again");
    }

    #[test]
    fn a_claim_that_is_refused_does_not_become_a_hold() {
        for cause in [LostCause::Deleted, LostCause::ShutDown] {
            let hold = Arc::new(sample("a", Duration::from_secs(1), after(0)));
            let mut tokens = Tokens::default();
            tokens.claim(&hold.token, after(0)).unwrap();
            match cause {
                LostCause::ShutDown => tokens.refuse_claimed(),
                _ => assert!(tokens.deleted(&hold.token, cause).is_none()),
            }
            let refused = tokens.enter(Arc::clone(&hold), after(1)).unwrap_err();
            let is_stopped = matches!(refused, Error::Stopped { .. });
            assert_eq!(is_stopped, hold.lost().is_none(), "{refused}");
            assert_eq!(is_stopped, cause == LostCause::ShutDown);
        }
    }

    #[test]
    fn an_orphan_is_deleted_again_and_again_until_it_is_gone_or_has_expired() {
        for (may_reappear, answer_to, tries) in [(false, 9, 5), (false, 1, 1), (true, 1, 6)] {
            let mut tokens = with(Orphan::sample(may_reappear, after(500)));
            let mut count = 0;
            while tokens.first_orphan() < Moment::NEVER {
                let now = tokens.first_orphan();
                for removal in tokens.take_all_orphans(now) {
                    count += 1;
                    tokens.gone(&removal.token); // A thread knows nothing of it.
                    if count == answer_to {
                        tokens.removed(&removal.token, now);
                    }
                }
            }
            assert_eq!(count, tries, "{may_reappear}, answered {answer_to}");
        }
    }

    #[test]
    fn an_orphan_that_is_given_up_twice_stays_for_as_long_as_either() {
        for (first, second) in [(500, 700), (700, 500)] {
            let mut tokens = with(Orphan::sample(first == 500, after(first)));
            let orphan = Orphan::sample(second == 500, after(second));
            tokens.give_up(&"t".into(), orphan, after(0));
            assert!(take_one(&mut tokens, after(699)).may_reappear);
            assert!(tokens.take_all_orphans(after(700)).is_empty());
        }
    }

    /// Redis is silent, so an orphan that is added in the meantime waits as long as the rest.
    #[test]
    fn no_orphan_is_due_for_a_while_after_a_batch_without_an_answer() {
        let mut tokens = with(Orphan::sample(false, after(60_000)));
        for _ in 0..6 {
            let now = tokens.first_orphan();
            let pause = take_one(&mut tokens, now).pause;
            let other = Orphan::sample(false, after(60_000));
            tokens.give_up(&"other".into(), other, Moment::PAST);
            tokens.delay_orphans(pause, now, |_| true);
            assert_eq!(tokens.first_orphan(), now.after(pause));
            tokens.by_token.remove("other");
        }
        assert_eq!(take_one(&mut tokens, after(50_000)).pause, LAST_RETRY);
    }
}
