//! Keys that may still stand in Redis after their release, and when to try again to delete them: a table.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;

/// The first pause after a renewal that failed, or before a late release; doubles with each.
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(20);

/// The longest such pause.
pub(crate) const LAST_RETRY: Duration = Duration::from_millis(500);

/// A key that may still stand in Redis after its release: nobody's, but in everybody's way.
#[derive(Clone, Debug)]
pub(crate) struct OrphanKey {
    pub(crate) redis_key: String,
    pub(crate) token: String,
    /// When Redis has certainly let go of it by itself.
    pub(crate) gone_by: Moment,
    /// A `SET` of this token may yet be executed, perhaps not the only one: what is found there now, or not, is no end of it.
    pub(crate) stray: bool,
}

/// The most that are handed out at a time: so that renewals which fall due meanwhile go first.
const BATCH: usize = 1000;

/// The late releases of one manager.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    by_token: HashMap<Arc<str>, Entry>,
    /// The same, by when they are due.
    by_due: BTreeSet<(Moment, Arc<str>)>,
    /// While Redis does not answer: the pause until the next try, and its end.
    silence: Option<(Duration, Moment)>,
}

#[derive(Debug)]
struct Entry {
    orphan: OrphanKey,
    due: Moment,
    /// The pause after a try that is not answered.
    retry: Duration,
    /// The pause after a look that was answered.
    calm: Duration,
}

impl Orphans {
    /// Notes a key that has to be deleted yet. Returns when that is due.
    pub(crate) fn add(&mut self, mut orphan: OrphanKey, now: Moment) -> Moment {
        let (token, due) = (Arc::from(&*orphan.token), now.after(FIRST_RETRY));
        if let Some(before) = self.by_token.remove(&token) {
            self.by_due.remove(&(before.due, Arc::clone(&token)));
            orphan.gone_by = orphan.gone_by.max(before.orphan.gone_by);
            orphan.stray |= before.orphan.stray;
        }
        self.by_due.insert((due, Arc::clone(&token)));
        self.by_token.insert(token, Entry { orphan, due, retry: FIRST_RETRY, calm: FIRST_RETRY });
        self.next()
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Moment {
        let due = self.by_due.first().map_or(Moment::NEVER, |(due, _)| *due);
        self.silence.map_or(due, |(_, end)| due.max(end))
    }

    /// What is to be deleted at `now`, but no more than a batch. Each is due again after a pause,
    /// in case nothing comes of it.
    pub(crate) fn take_due(&mut self, now: Moment) -> Vec<OrphanKey> {
        let mut remove = Vec::new();
        while self.next() <= now && remove.len() < BATCH {
            let Some((_, token)) = self.by_due.pop_first() else { break };
            let Some(entry) = self.by_token.get_mut(&token) else { continue };
            if entry.orphan.gone_by <= now {
                self.by_token.remove(&token);
                continue;
            }
            remove.push(entry.orphan.clone());
            entry.due = now.after(entry.retry);
            entry.retry = (entry.retry * 2).min(LAST_RETRY);
            self.by_due.insert((entry.due, token));
        }
        remove
    }

    /// What was handed out last was answered, or not: if not, nothing is handed out for a while,
    /// since the rest would not be either.
    pub(crate) fn answered(&mut self, answered: bool, now: Moment) {
        let pause = self.silence.map_or(FIRST_RETRY, |(pause, _)| (pause * 2).min(LAST_RETRY));
        self.silence = (!answered).then(|| (pause, now.after(pause)));
    }

    /// A leftover was deleted, or not found. That is the end of it, unless it may come again: then it is looked for ever more
    /// rarely.
    pub(crate) fn settle(&mut self, orphan: &OrphanKey, now: Moment) {
        let Some((token, mut entry)) = self.by_token.remove_entry(&*orphan.token) else { return };
        self.by_due.remove(&(entry.due, Arc::clone(&token)));
        if orphan.stray {
            entry.calm *= 2;
            (entry.due, entry.retry) = (now.after(entry.calm), FIRST_RETRY);
            self.by_due.insert((entry.due, Arc::clone(&token)));
            self.by_token.insert(token, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    fn orphan(stray: bool) -> OrphanKey {
        OrphanKey { redis_key: "lock:a".into(), token: "t".into(), gone_by: after(500), stray }
    }

    #[test]
    fn what_may_yet_come_is_looked_for_as_long_as_it_may() {
        let mut orphans = Orphans::default();
        orphans.add(orphan(true), after(0));
        orphans.settle(&orphan(true), after(20));
        assert_eq!(orphans.take_due(orphans.next()).len(), 1);
        assert!(orphans.take_due(after(500)).is_empty());
        assert_eq!(orphans.next(), Moment::NEVER);
    }

    #[test]
    fn what_may_yet_come_is_looked_for_ever_more_rarely_but_not_while_nobody_answers() {
        let day = OrphanKey { gone_by: after(86_400_000), ..orphan(true) };
        let mut orphans = Orphans::default();
        orphans.add(day.clone(), after(0));
        let mut looks = Vec::new();
        while looks.len() < 12 {
            let now = orphans.next();
            assert_eq!(orphans.take_due(now).len(), 1);
            orphans.settle(&day, now);
            looks.push(orphans.next().since(now));
        }
        for (number, look) in (1..).zip(&looks) {
            assert_eq!(*look, 2_u32.pow(number) * FIRST_RETRY, "{looks:?}");
        }
        for pause in [FIRST_RETRY, 2 * FIRST_RETRY] {
            let now = orphans.next();
            assert_eq!(orphans.take_due(now).len(), 1);
            assert_eq!(orphans.next(), now.after(pause), "it may stand there while nobody answers");
        }
    }

    /// As many, with tokens of their own.
    fn many(count: usize) -> Orphans {
        let mut orphans = Orphans::default();
        for number in 0..count {
            orphans.add(OrphanKey { token: number.to_string(), ..orphan(false) }, after(0));
        }
        orphans
    }

    #[test]
    fn many_are_handed_out_in_batches_and_each_once() {
        let mut orphans = many(2001);
        let mut seen = std::collections::HashSet::new();
        for size in [1000, 1000, 1, 0] {
            let batch = orphans.take_due(after(20));
            assert_eq!(batch.len(), size);
            assert!(batch.into_iter().all(|orphan| seen.insert(orphan.token)));
        }
        assert_eq!(orphans.next(), after(40), "they are due again");
    }

    /// A hundred thousand take as long as a hundred times a thousand; if each cost a look at all,
    /// they would take minutes.
    #[test]
    fn settling_one_costs_the_same_however_many_there_are() {
        let start = std::time::Instant::now();
        let mut orphans = many(100_000);
        while orphans.next() < Moment::NEVER {
            for orphan in orphans.take_due(after(20)) {
                orphans.settle(&orphan, after(20));
            }
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }

    #[test]
    fn nothing_is_handed_out_for_a_while_when_there_was_no_answer() {
        let mut orphans = many(BATCH + 1);
        assert_eq!(orphans.take_due(after(20)).len(), BATCH);
        orphans.answered(false, after(20));
        assert!(orphans.take_due(after(39)).is_empty());
        assert_eq!(orphans.take_due(orphans.next()).len(), BATCH);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            orphans.answered(false, after(100));
            pauses.push(orphans.next().since(after(100)));
        }
        assert!(pauses.is_sorted() && *pauses.last().unwrap() == LAST_RETRY, "{pauses:?}");
        orphans.answered(true, after(100));
        assert!(orphans.next() <= after(100));
    }

    #[test]
    fn a_token_that_is_owed_twice_is_owed_for_as_long_as_either() {
        for turned in [false, true] {
            let mut orphans = Orphans::default();
            let mut both = [orphan(true), OrphanKey { gone_by: after(700), ..orphan(false) }];
            if turned {
                both.reverse();
            }
            for it in both {
                orphans.add(it, after(0));
            }
            let taken = orphans.take_due(after(20));
            assert!(taken.len() == 1 && taken[0].stray && taken[0].gone_by == after(700), "{taken:?}");
        }
    }

    #[test]
    fn an_owed_release_is_tried_until_the_key_is_gone_by_itself() {
        let orphan = orphan(false);
        let mut orphans = Orphans::default();
        orphans.add(orphan.clone(), after(0));
        let mut tries = 0;
        while orphans.next() < Moment::NEVER {
            tries += orphans.take_due(orphans.next()).len();
        }
        assert_eq!(tries, 5);
        orphans.add(orphan.clone(), after(0));
        orphans.settle(&orphan, after(0));
        assert_eq!(orphans.next(), Moment::NEVER);
    }
}
