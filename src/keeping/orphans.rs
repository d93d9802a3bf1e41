//! Orphans: keys that may be left in Redis though nobody holds them, and when to delete them. A
//! table without clock, threads or Redis. (Why a key becomes an orphan: `acquire/claim.rs` and
//! `session/release.rs`.)

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::HashMap;

/// The first pause after a renewal that failed, or before an orphan is deleted. The pause doubles
/// with each attempt.
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(20);

/// The longest pause after a renewal or a deletion without an answer.
pub(crate) const LAST_RETRY: Duration = Duration::from_millis(500);

/// A key that may exist in Redis though nobody holds it. While it exists, nobody can take the lock.
#[derive(Clone, Debug)]
pub(crate) struct OrphanKey {
    pub(crate) redis_key: String,
    pub(crate) token: String,
    /// When the key has certainly expired.
    pub(crate) gone_by: Moment,
    /// Redis may still execute a `SET` of this token. So the keeper searches for the key again,
    /// even after it was deleted or absent.
    pub(crate) may_reappear: bool,
}

/// The most orphans that are handed out at a time. Renewals that fall due meanwhile go before the
/// next batch.
const BATCH: usize = 1000;

/// The orphans of one manager.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    by_token: HashMap<String, OrphanEntry>,
    /// While Redis does not answer, the pause until the next attempt, and the end of that pause.
    silence: Option<(Duration, Moment)>,
}

#[derive(Debug)]
struct OrphanEntry {
    orphan: OrphanKey,
    due: Moment,
    /// The pause after an attempt without an answer.
    retry: Duration,
    /// The pause after an attempt that was answered.
    search: Duration,
}

impl Orphans {
    /// Adds a key to delete, shortly after `from`. Returns when it is due.
    pub(crate) fn add(&mut self, mut orphan: OrphanKey, from: Moment) -> Moment {
        if let Some(before) = self.by_token.get(&orphan.token) {
            orphan.gone_by = orphan.gone_by.max(before.orphan.gone_by);
            orphan.may_reappear |= before.orphan.may_reappear;
        }
        let due = from.after(FIRST_RETRY);
        let token = orphan.token.clone();
        let entry = OrphanEntry {
            orphan,
            due,
            retry: FIRST_RETRY,
            search: FIRST_RETRY,
        };
        self.by_token.insert(token, entry);
        self.not_before(due)
    }

    /// True if the key with this token is still to be deleted.
    pub(crate) fn has(&self, token: &str) -> bool {
        self.by_token.contains_key(token)
    }

    fn not_before(&self, due: Moment) -> Moment {
        self.silence.map_or(due, |(_, end)| due.max(end))
    }

    /// The moment of the next thing to do for a thread that deletes the keys that are `mine`. What
    /// is overdue by `now` and another's does not count.
    pub(crate) fn next(&self, now: Moment, mine: impl Fn(&str) -> bool) -> Moment {
        let is_meant = |it: &&OrphanEntry| it.due > now || mine(&it.orphan.redis_key);
        let meant = self.by_token.values().filter(is_meant).map(|it| it.due);
        self.not_before(meant.min().unwrap_or(Moment::NEVER))
    }

    /// The keys of those that are due at `now`.
    pub(crate) fn due(&self, now: Moment) -> impl Iterator<Item = &str> {
        let due = self.by_token.values().filter(move |it| it.due <= now);
        due.map(|entry| &*entry.orphan.redis_key)
    }

    /// The orphans that are `mine` to delete at `now`, at most a batch of them. Each is due again
    /// after a pause, unless an answer comes first.
    pub(crate) fn take_due(&mut self, now: Moment, mine: impl Fn(&str) -> bool) -> Vec<OrphanKey> {
        if now < self.not_before(now) {
            return Vec::new();
        }
        self.by_token.retain(|_, it| now < it.orphan.gone_by);
        let is_meant = |it: &&mut OrphanEntry| it.due <= now && mine(&it.orphan.redis_key);
        let due = self.by_token.values_mut().filter(is_meant).take(BATCH);
        due.map(|entry| {
            entry.due = now.after(entry.retry);
            entry.retry = (entry.retry * 2).min(LAST_RETRY);
            entry.orphan.clone()
        })
        .collect()
    }

    /// Notes whether Redis has answered the last batch. If not, it would not answer the rest
    /// either, so nothing is handed out for a while.
    pub(crate) fn batch_answered(&mut self, answered: bool, now: Moment) {
        let pause = self
            .silence
            .map_or(FIRST_RETRY, |(pause, _)| (pause * 2).min(LAST_RETRY));
        self.silence = (!answered).then(|| (pause, now.after(pause)));
    }

    /// An orphan was deleted, or was absent. The table forgets it. But if it may reappear, the
    /// keeper searches for it again, after ever longer pauses.
    pub(crate) fn answered(&mut self, orphan: &OrphanKey, now: Moment) {
        if !orphan.may_reappear {
            self.by_token.remove(&orphan.token);
        } else if let Some(entry) = self.by_token.get_mut(&orphan.token) {
            entry.search *= 2;
            entry.due = now.after(entry.search);
            entry.retry = FIRST_RETRY;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::base::sync::HashSet;

    impl Orphans {
        /// The moment of the next thing to do.
        pub(crate) fn first(&self) -> Moment {
            self.next(Moment::PAST, |_| true)
        }

        pub(crate) fn take_all(&mut self, now: Moment) -> Vec<OrphanKey> {
            self.take_due(now, |_| true)
        }
    }

    fn after(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    fn orphan(may_reappear: bool) -> OrphanKey {
        OrphanKey {
            redis_key: "lock:a".into(),
            token: "t".into(),
            gone_by: after(500),
            may_reappear,
        }
    }

    #[test]
    fn a_key_that_may_reappear_is_searched_for_until_it_has_expired() {
        let mut orphans = Orphans::default();
        orphans.add(orphan(true), after(0));
        orphans.answered(&orphan(true), after(20));
        assert_eq!(orphans.take_all(orphans.first()).len(), 1);
        assert!(orphans.take_all(after(500)).is_empty());
        assert_eq!(orphans.first(), Moment::NEVER);
    }

    #[test]
    fn the_search_for_a_key_that_may_reappear_slows_down_but_not_while_redis_is_silent() {
        let day = OrphanKey {
            gone_by: after(86_400_000),
            ..orphan(true)
        };
        let mut orphans = Orphans::default();
        orphans.add(day.clone(), after(0));
        let mut looks = Vec::new();
        while looks.len() < 12 {
            let now = orphans.first();
            assert_eq!(orphans.take_all(now).len(), 1);
            orphans.answered(&day, now);
            looks.push(orphans.first().since(now));
        }
        for (number, look) in (1..).zip(&looks) {
            assert_eq!(*look, 2_u32.pow(number) * FIRST_RETRY, "{looks:?}");
        }
        for pause in [FIRST_RETRY, 2 * FIRST_RETRY] {
            let now = orphans.first();
            assert_eq!(orphans.take_all(now).len(), 1);
            assert_eq!(
                orphans.first(),
                now.after(pause),
                "without an answer, the pauses are short again"
            );
        }
    }

    /// `count` orphans, each with a token of its own.
    fn many(count: usize) -> Orphans {
        let mut orphans = Orphans::default();
        for number in 0..count {
            orphans.add(
                OrphanKey {
                    token: number.to_string(),
                    ..orphan(false)
                },
                after(0),
            );
        }
        orphans
    }

    #[test]
    fn many_orphans_are_handed_out_in_batches_and_each_once() {
        let mut orphans = many(2001);
        let mut seen = HashSet::default();
        for size in [1000, 1000, 1, 0] {
            let batch = orphans.take_all(after(20));
            assert_eq!(batch.len(), size);
            assert!(batch.into_iter().all(|orphan| seen.insert(orphan.token)));
        }
        assert_eq!(orphans.first(), after(40), "they are due again");
    }

    #[test]
    fn nothing_is_handed_out_for_a_while_after_a_batch_without_an_answer() {
        let mut orphans = many(BATCH + 1);
        assert_eq!(orphans.take_all(after(20)).len(), BATCH);
        orphans.batch_answered(false, after(20));
        assert!(orphans.take_all(after(39)).is_empty());
        assert_eq!(orphans.take_all(orphans.first()).len(), BATCH);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            orphans.batch_answered(false, after(100));
            pauses.push(orphans.first().since(after(100)));
        }
        assert!(
            pauses.is_sorted() && *pauses.last().unwrap() == LAST_RETRY,
            "{pauses:?}"
        );
        orphans.batch_answered(true, after(100));
        assert!(orphans.first() <= after(100));
    }

    #[test]
    fn an_orphan_that_is_added_twice_stays_for_as_long_as_either() {
        for turned in [false, true] {
            let mut orphans = Orphans::default();
            let mut both = [
                orphan(true),
                OrphanKey {
                    gone_by: after(700),
                    ..orphan(false)
                },
            ];
            if turned {
                both.reverse();
            }
            for it in both {
                orphans.add(it, after(0));
            }
            let taken = orphans.take_all(after(20));
            assert!(
                taken.len() == 1 && taken[0].may_reappear && taken[0].gone_by == after(700),
                "{taken:?}"
            );
        }
    }

    #[test]
    fn an_orphan_is_deleted_again_and_again_until_it_has_expired() {
        let orphan = orphan(false);
        let mut orphans = Orphans::default();
        orphans.add(orphan.clone(), after(0));
        let mut tries = 0;
        while orphans.first() < Moment::NEVER {
            tries += orphans.take_all(orphans.first()).len();
        }
        assert_eq!(tries, 5);
        orphans.add(orphan.clone(), after(0));
        orphans.answered(&orphan, after(0));
        assert_eq!(orphans.first(), Moment::NEVER);
    }
}
