//! Keys that may still stand in Redis after their release, and when to try again to delete them: a table.

use std::time::Duration;

use crate::clock::Moment;

/// The first pause before a late release; doubles with each.
const FIRST_RETRY: Duration = Duration::from_millis(20);

/// The longest such pause.
const LAST_RETRY: Duration = Duration::from_millis(500);

/// The longest pause between two looks for what may yet come. Until then each is twice the last: what comes late is found when it is
/// twice as late.
const LAST_LOOK: Duration = Duration::from_secs(10);

/// A key that may still stand in Redis after its release: nobody's, but in everybody's way.
#[derive(Clone, Debug)]
pub(crate) struct Leftover {
    pub(crate) redis_key: String,
    pub(crate) token: String,
    /// When Redis has certainly let go of it by itself.
    pub(crate) gone_by: Moment,
    /// A `SET` of this token may yet be executed, perhaps not the only one: what is found there now, or not, is no end of it.
    pub(crate) stray: bool,
}

/// The late releases of one manager.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    leftover: Leftover,
    due: Moment,
    /// The pause after a try that is not answered.
    retry: Duration,
    /// The pause after a look that was answered.
    calm: Duration,
}

impl Owed {
    /// Notes a key that has to be deleted yet. Returns when that is due.
    pub(crate) fn add(&mut self, leftover: Leftover, now: Moment) -> Moment {
        let due = now.after(FIRST_RETRY);
        self.entries.push(Entry { leftover, due, retry: FIRST_RETRY, calm: FIRST_RETRY });
        due
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Moment {
        self.entries.iter().map(|entry| entry.due).min().unwrap_or(Moment::NEVER)
    }

    /// What is to be deleted at `now`. Each is due again after a pause, in case nothing comes of it.
    pub(crate) fn take_due(&mut self, now: Moment) -> Vec<Leftover> {
        let mut remove = Vec::new();
        self.entries.retain_mut(|entry| {
            if entry.leftover.gone_by <= now {
                return false;
            }
            if entry.due <= now {
                remove.push(entry.leftover.clone());
                entry.due = now.after(entry.retry);
                entry.retry = (entry.retry * 2).min(LAST_RETRY);
            }
            true
        });
        remove
    }

    /// A leftover was deleted, or not found. That is the end of it, unless it may come again: then it is looked for ever more
    /// rarely.
    pub(crate) fn settle(&mut self, leftover: &Leftover, now: Moment) {
        if !leftover.stray {
            return self.entries.retain(|entry| entry.leftover.token != leftover.token);
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.leftover.token == leftover.token) {
            entry.calm = (entry.calm * 2).min(LAST_LOOK);
            (entry.due, entry.retry) = (now.after(entry.calm), FIRST_RETRY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    fn leftover(stray: bool) -> Leftover {
        Leftover { redis_key: "lock:a".into(), token: "t".into(), gone_by: after(500), stray }
    }

    #[test]
    fn what_may_yet_come_is_looked_for_as_long_as_it_may() {
        let mut owed = Owed::default();
        owed.add(leftover(true), after(0));
        owed.settle(&leftover(true), after(20));
        assert_eq!(owed.take_due(owed.next()).len(), 1);
        assert!(owed.take_due(after(500)).is_empty());
        assert_eq!(owed.next(), Moment::NEVER);
    }

    #[test]
    fn what_may_yet_come_is_looked_for_ever_more_rarely_but_not_while_nobody_answers() {
        let day = Leftover { gone_by: after(86_400_000), ..leftover(true) };
        let mut owed = Owed::default();
        owed.add(day.clone(), after(0));
        let mut looks = Vec::new();
        while looks.len() < 12 {
            let now = owed.next();
            assert_eq!(owed.take_due(now).len(), 1);
            owed.settle(&day, now);
            looks.push(owed.next().since(now));
        }
        assert!(looks.is_sorted() && looks[0] == 2 * FIRST_RETRY && looks[11] == LAST_LOOK, "{looks:?}");
        for pause in [FIRST_RETRY, 2 * FIRST_RETRY] {
            let now = owed.next();
            assert_eq!(owed.take_due(now).len(), 1);
            assert_eq!(owed.next(), now.after(pause), "it may stand there while nobody answers");
        }
    }

    #[test]
    fn an_owed_release_is_tried_until_the_key_is_gone_by_itself() {
        let leftover = leftover(false);
        let mut owed = Owed::default();
        owed.add(leftover.clone(), after(0));
        let mut tries = 0;
        while owed.next() < Moment::NEVER {
            tries += owed.take_due(owed.next()).len();
        }
        assert_eq!(tries, 5);
        owed.add(leftover.clone(), after(0));
        owed.settle(&leftover, after(0));
        assert_eq!(owed.next(), Moment::NEVER);
    }
}
