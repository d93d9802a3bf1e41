//! What this process holds, and when each hold has to be renewed: a table, without clocks, threads or Redis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::hold::Hold;
use crate::keeping::orphans::{FIRST_RETRY, LAST_RETRY, OrphanKey, Orphans};

/// However often a key is changed by others, its hold is not sent for more often than this because of it.
const QUICKEST: Duration = Duration::from_millis(10);

/// The holds of one manager, and the releases that it still owes.
///
/// A hold is entered when it is taken and removed before its release is sent, so nothing that is found here is
/// past its release, and nothing is renewed that is not found here.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_number: HashMap<u64, Entry>,
    /// The holds whose keys Redis tells of when they change, by key.
    watched: HashMap<Box<[u8]>, u64>,
    pub(crate) orphans: Orphans,
}

#[derive(Debug)]
struct Entry {
    hold: Arc<Hold>,
    /// When to renew it next, or to look whether it is over; never, where nobody wants to know.
    due: Moment,
    retry: Duration,
    /// When it was last sent for.
    sent: Moment,
    /// There was word of its key since.
    suspect: bool,
}

impl Entry {
    /// Has it renewed now, but not at once again; not what is over, nor what nobody cares about.
    fn look_after(&mut self, now: Moment) -> Moment {
        self.suspect = true;
        if self.due < Moment::NEVER {
            self.due = self.due.min(now.max(self.sent.after(QUICKEST)));
        }
        self.due
    }
}

#[derive(Debug, Default)]
pub(crate) struct Due {
    /// To be renewed, in one pipeline.
    pub(crate) renew: Vec<Arc<Hold>>,
    /// Over by the clock.
    pub(crate) over: Vec<Arc<Hold>>,
    /// To be deleted, if they still stand there.
    pub(crate) remove: Vec<OrphanKey>,
}

impl Due {
    pub(crate) fn is_empty(&self) -> bool {
        self.renew.is_empty() && self.over.is_empty() && self.remove.is_empty()
    }
}

impl Leases {
    /// Enters a hold; `told` says whether somebody wants to know of its loss. Returns when it is due.
    pub(crate) fn enter(&mut self, hold: Arc<Hold>, told: bool, now: Moment) -> Moment {
        if self.by_number.len() == self.by_number.capacity() {
            // Before it grows: what threads have left behind that ended with a guard forgotten.
            self.by_number.retain(|_, entry| !entry.hold.can_be_forgotten(now));
        }
        let due = first_due(&hold, told, now);
        let entry = Entry { hold, due, retry: FIRST_RETRY, sent: Moment::PAST, suspect: false };
        self.by_number.insert(entry.hold.number, entry);
        due
    }

    /// Removes a hold that is about to be released, and closes it: until when it could be trusted,
    /// where it still can be at `now`.
    ///
    /// Both in one step: where the keeper found it closed and still in the table, it would take the
    /// hold for one that ran out.
    pub(crate) fn close(&mut self, hold: &Hold, now: Moment) -> Option<Moment> {
        self.remove(hold);
        hold.close(now)
    }

    fn remove(&mut self, hold: &Hold) {
        self.by_number.remove(&hold.number);
        self.unwatch(hold);
    }

    /// True until the release of the hold begins: what Redis says of it later is about something else.
    pub(crate) fn has(&self, hold: &Hold) -> bool {
        self.by_number.contains_key(&hold.number)
    }

    /// The hold whose token this is.
    pub(crate) fn by_token(&self, token: &str) -> Option<&Arc<Hold>> {
        self.by_number.values().map(|entry| &entry.hold).find(|hold| hold.token == token)
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Moment {
        let holds = self.by_number.values().map(|entry| entry.due);
        holds.min().unwrap_or(Moment::NEVER).min(self.orphans.next())
    }

    /// When the first hold runs out: no call to Redis may keep the keeper past that.
    pub(crate) fn first_end(&self) -> Moment {
        let due = self.by_number.values().filter(|entry| entry.due < Moment::NEVER);
        due.map(|entry| entry.hold.valid_until())
            .filter(|end| *end > Moment::PAST)
            .min()
            .unwrap_or(Moment::NEVER)
    }

    /// What there is to do at `now`. Each is due again after a pause, in case nothing comes of it.
    ///
    /// Renewals are taken along up to an eighth of their period early, so that ten thousand holds that were
    /// taken one after the other are renewed in a few pipelines, not in ten thousand.
    pub(crate) fn take_due(&mut self, now: Moment) -> Due {
        let mut due = Due::default();
        if self.next() > now {
            return due;
        }
        for entry in self.by_number.values_mut().filter(|entry| entry.due < Moment::NEVER) {
            if !entry.hold.is_valid(now) {
                due.over.push(Arc::clone(&entry.hold));
                entry.due = Moment::NEVER; // Told once. It stays to be listed until its guards are gone.
            } else if let Some(every) = entry.hold.renews_every(now) {
                if entry.due <= now.after(every / 8) {
                    due.renew.push(Arc::clone(&entry.hold));
                    entry.due = now.after(entry.retry).min(entry.hold.valid_until());
                    entry.retry = (entry.retry * 2).min(LAST_RETRY);
                }
            } else {
                entry.due = entry.hold.valid_until();
            }
        }
        due.remove = self.orphans.take_due(now);
        due
    }

    /// A hold is about to be sent for; `watched` says whether Redis is asked to tell when its key changes. (Noted before:
    /// word may come sooner than the answer.)
    pub(crate) fn sending(&mut self, hold: &Hold, watched: bool, now: Moment) {
        if let Some(entry) = self.by_number.get_mut(&hold.number) {
            (entry.sent, entry.suspect) = (now, false);
            if watched {
                self.watched.insert(hold.key.in_redis().as_bytes().into(), hold.number);
            }
        }
    }

    /// A renewal worked: the next is a period after it was sent, but soon if there was word of the key meanwhile.
    pub(crate) fn renewed(&mut self, hold: &Hold, told: bool, sent: Moment) {
        if let Some(entry) = self.by_number.get_mut(&hold.number) {
            entry.retry = FIRST_RETRY;
            entry.due = first_due(hold, told, sent);
            if entry.suspect {
                entry.look_after(sent);
            }
        }
    }

    /// Redis tells that a key has changed: if it is that of a hold, it is looked after now. Returns when that is due.
    pub(crate) fn changed(&mut self, redis_key: &[u8], now: Moment) -> Moment {
        let number = self.watched.remove(redis_key);
        let entry = number.and_then(|number| self.by_number.get_mut(&number));
        entry.map_or(Moment::NEVER, |entry| entry.look_after(now))
    }

    /// Has a hold that is to be renewed sooner or later renewed for the first time now: from then
    /// on, Redis tells of its key. Returns when that is due.
    pub(crate) fn look_after(&mut self, hold: &Hold, now: Moment) -> Moment {
        let renewed = hold.renews_every(now).is_some() && hold.renewals() == 0;
        let entry = self.by_number.get_mut(&hold.number).filter(|_| renewed);
        entry.map_or(Moment::NEVER, |entry| entry.look_after(now))
    }

    /// Any key may have changed, or word of it have been missed: all that lived to be renewed is looked after now.
    pub(crate) fn anything_changed(&mut self, now: Moment) -> Moment {
        self.watched.clear();
        // A first renewal may be under way.
        self.by_number.values_mut().for_each(|entry| entry.suspect = true);
        let renewed = self.by_number.values_mut().filter(|entry| entry.hold.renewals() > 0);
        renewed.map(|entry| entry.look_after(now)).min().unwrap_or(Moment::NEVER)
    }

    fn unwatch(&mut self, hold: &Hold) {
        if !self.watched.is_empty() {
            let redis_key = hold.key.in_redis().as_bytes();
            if self.watched.get(redis_key) == Some(&hold.number) {
                self.watched.remove(redis_key);
            }
        }
    }

    /// A hold has less time than was thought. Returns when it is due.
    pub(crate) fn hasten(&mut self, hold: &Hold, told: bool, now: Moment) -> Moment {
        let Some(entry) = self.by_number.get_mut(&hold.number) else {
            return Moment::NEVER;
        };
        let sooner = match hold.renews_every(now) {
            Some(every) => now.after(every.min(hold.remaining(now) / 3)),
            None if told => hold.valid_until(),
            None => Moment::NEVER,
        };
        entry.due = entry.due.min(sooner);
        entry.due
    }

    /// A hold was lost, and that is known: there is nothing to do for it any more.
    pub(crate) fn lost(&mut self, hold: &Hold) {
        if let Some(entry) = self.by_number.get_mut(&hold.number) {
            entry.due = Moment::NEVER;
            self.unwatch(hold);
        }
    }

    /// Every hold that somebody may still ask for.
    pub(crate) fn holds(&self, now: Moment) -> impl Iterator<Item = &Arc<Hold>> {
        self.by_number.values().map(|entry| &entry.hold).filter(move |hold| !hold.can_be_forgotten(now))
    }
}

fn first_due(hold: &Hold, told: bool, now: Moment) -> Moment {
    match hold.renews_every(now) {
        Some(every) => now.after(every).min(hold.valid_until()),
        None if told => hold.valid_until(),
        None => Moment::NEVER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::tests::sample;

    const START: Moment = Moment::from_nanos(1_000_000);

    fn after(millis: u64) -> Moment {
        START.after(Duration::from_millis(millis))
    }

    /// A hold with a lease of 300 ms: renewed every 100 ms, valid for 295 ms.
    fn hold() -> Arc<Hold> {
        Arc::new(sample("a", Duration::from_millis(300), START))
    }

    fn entered(hold: &Arc<Hold>) -> Leases {
        let mut leases = Leases::default();
        assert_eq!(leases.enter(Arc::clone(hold), false, START), after(100));
        leases
    }

    #[test]
    fn a_hold_is_due_after_a_third_of_its_lease_and_again_after_each_renewal() {
        let hold = hold();
        let mut leases = entered(&hold);
        assert!(leases.take_due(after(99)).is_empty());
        assert_eq!(leases.take_due(after(100)).renew.len(), 1);
        hold.renewed(hold.lease(), after(100), after(101)).unwrap();
        leases.renewed(&hold, false, after(100));
        assert_eq!(leases.next(), after(200));
    }

    #[test]
    fn a_renewal_that_came_to_nothing_is_tried_again_until_the_end() {
        let hold = hold();
        let end = hold.valid_until();
        let mut leases = entered(&hold);
        let mut tries = Vec::new();
        loop {
            let now = leases.next();
            let due = leases.take_due(now);
            if due.over.len() == 1 {
                assert_eq!(now, end, "it is told at the very end");
                break;
            }
            assert_eq!(due.renew.len(), 1);
            tries.push(now);
        }
        assert_eq!(tries, [after(100), after(120), after(160), after(240)]);
        assert_eq!(leases.next(), Moment::NEVER, "told once");
        assert_eq!(leases.holds(end).count(), 1, "its guards are still there");
    }

    #[test]
    fn holds_that_are_due_soon_are_taken_along() {
        let mut leases = Leases::default();
        for n in 0..20 {
            let late = Arc::new(sample("a", Duration::from_millis(300), after(n)));
            leases.enter(late, false, after(n));
        }
        assert_eq!(leases.take_due(after(100)).renew.len(), 13, "those due within 100/8 ms");
        assert_eq!(leases.next(), after(113));
    }

    #[test]
    fn what_is_not_renewed_is_due_when_it_ends_and_only_if_somebody_wants_to_know() {
        let left = hold();
        left.mark_thread_ended();
        let mut leases = Leases::default();
        assert_eq!(leases.enter(Arc::clone(&left), false, START), Moment::NEVER);
        assert_eq!(leases.enter(Arc::clone(&left), true, START), left.valid_until());
        assert!(leases.take_due(after(290)).is_empty());
        assert_eq!(leases.holds(after(290)).count(), 1);
        assert_eq!(leases.take_due(after(296)).over.len(), 1);
        assert_eq!(leases.holds(after(296)).count(), 0);
    }

    #[test]
    fn what_dead_threads_leave_behind_does_not_pile_up() {
        let mut leases = Leases::default();
        for n in 0..1000 {
            let left = Arc::new(sample("a", Duration::from_millis(300), after(n * 1000)));
            left.mark_thread_ended();
            leases.enter(left, false, after(n * 1000));
        }
        assert!(leases.by_number.len() < 10, "{}", leases.by_number.len());
    }

    #[test]
    fn word_of_a_change_has_a_watched_hold_looked_after_at_once_and_once() {
        let hold = hold();
        let key = hold.key.in_redis().as_bytes();
        let mut leases = entered(&hold);
        assert_eq!(leases.changed(key, after(1)), Moment::NEVER, "it was not renewed yet");
        hold.renewed(hold.lease(), after(100), after(101)).unwrap();
        leases.sending(&hold, true, after(100));
        leases.renewed(&hold, false, after(100));
        assert_eq!(leases.changed(b"lock:other", after(110)), Moment::NEVER);
        assert_eq!(leases.changed(key, after(110)), after(110));
        assert_eq!(leases.take_due(after(110)).renew.len(), 1);
        assert_eq!(leases.changed(key, after(111)), Moment::NEVER, "until it is watched again");
        leases.sending(&hold, true, after(112));
        assert_eq!(leases.changed(key, after(113)), after(122), "not at once again");
        leases.renewed(&hold, false, after(112));
        assert_eq!(leases.next(), after(122), "word came before the answer");
        leases.sending(&hold, true, after(122));
        leases.remove(&hold);
        assert_eq!(leases.changed(key, after(120)), Moment::NEVER, "its release is not a loss");
        assert!(leases.watched.is_empty());
    }

    #[test]
    fn a_hold_that_somebody_waits_for_is_renewed_for_the_first_time_at_once() {
        let hold = hold();
        let mut leases = entered(&hold);
        assert_eq!(leases.look_after(&hold, after(50)), after(50));
        assert_eq!(leases.take_due(after(50)).renew.len(), 1);
        hold.renewed(hold.lease(), after(50), after(51)).unwrap();
        leases.renewed(&hold, false, after(50));
        assert_eq!(leases.look_after(&hold, after(60)), Moment::NEVER, "once");
        leases.close(&hold, after(60));
        assert_eq!(leases.look_after(&hold, after(60)), Moment::NEVER);
    }

    #[test]
    fn where_anything_may_have_changed_all_that_was_renewed_is_looked_after() {
        let [first, second] = [hold(), Arc::new(sample("b", Duration::from_millis(300), START))];
        let mut leases = entered(&first);
        leases.enter(Arc::clone(&second), false, START);
        first.renewed(first.lease(), after(50), after(51)).unwrap();
        leases.sending(&first, true, after(50));
        leases.renewed(&first, false, after(50));
        assert_eq!(leases.anything_changed(after(60)), after(60));
        let due = leases.take_due(after(60)).renew;
        assert!(due.len() == 1 && Arc::ptr_eq(&due[0], &first), "a hold that was not renewed pays nothing");
        leases.lost(&first);
        assert_eq!(leases.anything_changed(after(70)), Moment::NEVER);
    }

    #[test]
    fn what_is_over_is_told_once_whatever_else_is_due() {
        let [first, second] = [hold(), Arc::new(sample("b", Duration::from_millis(600), START))];
        first.mark_thread_ended();
        let mut leases = Leases::default();
        leases.enter(Arc::clone(&first), true, START);
        leases.enter(Arc::clone(&second), false, START);
        assert_eq!(leases.first_end(), first.valid_until());
        assert_eq!(leases.take_due(after(300)).over.len(), 1);
        assert_eq!(leases.first_end(), second.valid_until(), "the first has ended");
        let due = leases.take_due(after(500));
        assert_eq!((due.over.len(), due.renew.len()), (0, 1));
        second.close(after(500));
        assert_eq!(leases.first_end(), Moment::NEVER, "its release is under way");
    }

    #[test]
    fn a_hold_that_has_less_time_than_was_thought_is_renewed_sooner() {
        let hold = hold();
        let mut leases = entered(&hold);
        assert_eq!(leases.hasten(&hold, false, START), START.after(hold.valid_until().since(START) / 3));
        hold.shorten_to(after(95));
        assert_eq!(leases.hasten(&hold, false, after(5)), after(35), "there is time for three tries");
        hold.mark_thread_ended();
        assert_eq!(leases.hasten(&hold, true, after(5)), after(35), "never later than before");
        leases.remove(&hold);
        assert_eq!(leases.hasten(&hold, true, after(5)), Moment::NEVER);
    }

    #[test]
    fn word_of_a_key_is_for_whoever_holds_it_now() {
        let [before, now] = [hold(), hold()];
        let mut leases = entered(&before);
        leases.enter(Arc::clone(&now), false, START);
        leases.sending(&before, true, after(100));
        leases.sending(&now, true, after(101));
        leases.remove(&before);
        assert_eq!(leases.watched.len(), 1, "the other is not its own");
        leases.remove(&now);
        assert!(leases.watched.is_empty(), "nothing is kept of what was released");
    }
}
