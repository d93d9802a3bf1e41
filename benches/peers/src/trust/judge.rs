//! What a history proves against a lock. Where a time is not known exactly, the bound that favours
//! the lock counts: each finding is certain.

use std::collections::BTreeMap;

use super::history::{History, Turn, What};
use crate::locks::Said;

/// The findings about one lock in one weather. Times are in nanoseconds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Verdict {
    pub(crate) locks: usize,
    /// Lock calls that returned an error.
    pub(crate) failed: usize,
    /// Calls that did not return.
    pub(crate) hung: usize,
    /// Holds that were not alone: another worker got the lock before their release. And the longest
    /// time that two were inside.
    pub(crate) inside: Overlaps,
    /// The same for holds that their owners had every reason to trust.
    pub(crate) trusted: Overlaps,
    /// Holds whose work ended early, because the lock said no.
    pub(crate) cut_short: usize,
    /// Holds that were lost before their release.
    pub(crate) lost: usize,
    /// How long after the loss their owners were told. Those that are missing were never told.
    pub(crate) told: Vec<u64>,
    /// Holds that were said to be lost, and were not.
    pub(crate) false_alarms: usize,
    /// The longest time in which a lock was free and wanted.
    pub(crate) free: u64,
    pub(crate) stuck: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overlaps {
    pub(crate) count: usize,
    pub(crate) longest: u64,
}

/// `lease` in nanoseconds.
pub(crate) fn judge(history: &History, lease: u64) -> Verdict {
    let mut verdict = Verdict {
        stuck: history.stuck,
        ..Verdict::default()
    };
    let mut by_key: BTreeMap<&str, Vec<&Turn>> = BTreeMap::new();
    for turn in &history.turns {
        verdict.locks += usize::from(turn.has.is_some());
        verdict.failed += usize::from(turn.failed.is_some());
        verdict.hung += usize::from(turn.hung);
        verdict.cut_short += usize::from(turn.no.is_some());
        by_key.entry(&turn.key).or_default().push(turn);
    }
    for turns in by_key.values() {
        let spans = |end: &dyn Fn(&Turn) -> u64| {
            let held = turns.iter().filter_map(|it| Some((it.has?, end(it))));
            held.filter(|(begin, end)| begin < end).collect::<Vec<_>>()
        };
        verdict.inside.add(spans(&inside_until));
        verdict.trusted.add(spans(&|it| trusted_until(it, lease)));
        verdict.free = verdict.free.max(longest_free(turns, history.end));
        for turn in turns {
            verdict.check_loss(turn, turns, history, lease);
        }
    }
    verdict.told.sort_unstable();
    verdict
}

/// Until when the worker did its work.
fn inside_until(turn: &Turn) -> u64 {
    turn.gives.or(turn.died).unwrap_or(u64::MAX)
}

/// Until when the owner had every reason to trust its hold. If the lock can be asked: until the
/// last question that it answered with yes. If not: for a lease from the return of the call, or
/// until the release.
pub(crate) fn trusted_until(turn: &Turn, lease: u64) -> u64 {
    let has = turn.has.unwrap_or_default();
    let promised = match (turn.yes, turn.no) {
        (Some(yes), _) => yes,
        (None, Some(_)) => has,
        (None, None) => has + lease,
    };
    promised.min(inside_until(turn)).max(has)
}

impl Overlaps {
    /// Spans of one key, from the begin to the end of a hold.
    fn add(&mut self, mut spans: Vec<(u64, u64)>) {
        spans.sort_unstable();
        // The end of the hold that lasts longest so far, and whether it was alone.
        let (mut latest, mut alone) = (0, true);
        for (begin, end) in spans {
            if begin < latest {
                self.count += usize::from(alone);
                self.longest = self.longest.max(latest.min(end) - begin);
                alone = false;
            }
            if end > latest {
                (latest, alone) = (end, true);
            }
        }
    }
}

impl Verdict {
    /// Adds the findings in another weather.
    pub(crate) fn add_up(&mut self, other: &Verdict) {
        self.locks += other.locks;
        self.failed += other.failed;
        self.hung += other.hung;
        for (all, more) in [
            (&mut self.inside, other.inside),
            (&mut self.trusted, other.trusted),
        ] {
            all.count += more.count;
            all.longest = all.longest.max(more.longest);
        }
        self.cut_short += other.cut_short;
        self.lost += other.lost;
        self.told.extend(&other.told);
        self.told.sort_unstable();
        self.false_alarms += other.false_alarms;
        self.free = self.free.max(other.free);
        self.stuck += other.stuck;
    }

    fn check_loss(&mut self, turn: &Turn, others: &[&Turn], history: &History, lease: u64) {
        let (Some(has), Some(gives), Some(gave)) = (turn.has, turn.gives, turn.gave) else {
            return;
        };
        let taken = others
            .iter()
            .filter(|it| was_real(it))
            .filter_map(|it| it.has);
        let taken = taken.filter(|it| (has + 1..gives).contains(it)).min();
        let gone = history.faults.iter().filter_map(|it| {
            let of_it = it.what == What::Restart || it.key.as_ref() == Some(&turn.key);
            (it.what != What::Stop && of_it && has < it.from && it.to < gives).then_some(it.to)
        });
        let said_lost = turn.no.is_some() || turn.said == Some(Said::Lost);
        if let Some(loss) = gone.chain(taken).min() {
            self.lost += 1;
            let told = turn.no.or((turn.said == Some(Said::Lost)).then_some(gave));
            let from = awake_from(turn, history, loss);
            self.told.extend(told.map(|told| told.saturating_sub(from)));
        } else if said_lost
            && gave - turn.asks < lease * 9 / 10
            && !is_disturbed(turn, others, history)
        {
            self.false_alarms += 1;
        }
    }
}

/// Whether a hold took the lock from its holder. If the answer to its lock call came late, its
/// own lease may have been over by then: so the lock has to stand by it to the end.
fn was_real(turn: &Turn) -> bool {
    turn.no.is_none() && matches!(turn.said, Some(Said::Ok | Said::Nothing))
}

/// From when on the owner could be told: not while its process was stopped.
fn awake_from(turn: &Turn, history: &History, loss: u64) -> u64 {
    let stops = history.faults.iter().filter(|it| {
        it.what == What::Stop && it.worker == Some(turn.worker) && (it.from..it.to).contains(&loss)
    });
    stops.map(|it| it.to).max().unwrap_or(loss)
}

/// Whether something could have ended the hold at about the time of its release.
fn is_disturbed(turn: &Turn, others: &[&Turn], history: &History) -> bool {
    let (has, end) = (turn.has.unwrap_or_default(), turn.end());
    let gone = history.faults.iter().any(|it| {
        let of_it = it.what == What::Restart || it.key.as_ref() == Some(&turn.key);
        it.what != What::Stop && of_it && turn.asks < it.to && it.from < end
    });
    let taken = |it: &&Turn| it.has.is_some_and(|other| has < other && other < end);
    gone || others.iter().any(taken)
}

/// The longest time in which nobody had the lock, and somebody wanted it.
fn longest_free(turns: &[&Turn], end: u64) -> u64 {
    let mut events: Vec<(u64, i32, i32)> = Vec::new();
    for turn in turns {
        let answered = turn.has.or(turn.refused).or(turn.died).unwrap_or(end);
        events.extend([(turn.asks, 1, 0), (answered, -1, 0)]);
        if let Some(has) = turn.has {
            let gone = turn.died.or(turn.no).or(turn.gave).unwrap_or(end);
            events.extend([(has, 0, 1), (gone.max(has), 0, -1)]);
        }
    }
    events.sort_unstable_by_key(|it| (it.0, -it.2));
    let (mut wanted, mut held, mut since, mut longest) = (0, 0, None, 0);
    for (at, wants, holds) in events {
        (wanted, held) = (wanted + wants, held + holds);
        // A failed attempt is followed by another one: what counts is until somebody has the lock.
        if held > 0 {
            longest = longest.max(since.take().map_or(0, |since| at - since));
        } else if wanted > 0 && since.is_none() {
            since = Some(at);
        }
    }
    longest.max(since.map_or(0, |since| end.saturating_sub(since)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::history::Fault;

    const LEASE: u64 = 1000;

    /// Takes the lock at `has`, is told "yes" until `yes`, and gives it back at `gives`.
    fn turn(worker: usize, has: u64, yes: Option<u64>, gives: u64) -> Turn {
        Turn {
            worker,
            key: "k".into(),
            asks: has - 10,
            has: Some(has),
            yes,
            gives: Some(gives),
            gave: Some(gives + 5),
            said: Some(Said::Ok),
            ..Turn::default()
        }
    }

    fn verdict(turns: Vec<Turn>, faults: Vec<Fault>) -> Verdict {
        let history = History {
            turns,
            faults,
            end: 10_000,
            ..History::default()
        };
        judge(&history, LEASE)
    }

    fn fault(what: What, from: u64, to: u64) -> Fault {
        Fault {
            what,
            from,
            to,
            worker: Some(0),
            key: Some("k".into()),
        }
    }

    #[test]
    fn holds_one_after_the_other_prove_nothing() {
        let turns = vec![turn(0, 100, Some(110), 120), turn(1, 130, None, 150)];
        let found = verdict(turns, Vec::new());
        assert_eq!(
            (found.locks, found.inside, found.trusted),
            (2, Overlaps::default(), Overlaps::default())
        );
        assert_eq!((found.lost, found.false_alarms), (0, 0));
    }

    #[test]
    fn two_inside_trust_their_holds_only_as_far_as_the_lock_said() {
        let once = |longest| Overlaps { count: 1, longest };
        // The first was told yes before the second came in, and nothing since.
        let asked = verdict(
            vec![turn(0, 100, Some(110), 500), turn(1, 300, Some(310), 400)],
            Vec::new(),
        );
        assert_eq!(
            (asked.inside, asked.trusted),
            (once(100), Overlaps::default())
        );
        // It was told yes while the second was inside.
        let wrong = verdict(
            vec![turn(0, 100, Some(330), 500), turn(1, 300, Some(350), 400)],
            Vec::new(),
        );
        assert_eq!((wrong.inside, wrong.trusted), (once(100), once(30)));
        // It cannot ask, so it trusts its lease.
        let silent = verdict(
            vec![turn(0, 100, None, 2000), turn(1, 1050, None, 1400)],
            Vec::new(),
        );
        assert_eq!((silent.inside, silent.trusted), (once(350), once(50)));
    }

    #[test]
    fn a_loss_is_told_from_when_its_owner_can_hear() {
        let mut told = turn(0, 100, Some(110), 900);
        (told.no, told.said) = (Some(850), Some(Said::Lost));
        let deleted = fault(What::Delete, 200, 210);
        let found = verdict(vec![told.clone()], vec![deleted.clone()]);
        assert_eq!((found.lost, found.told), (1, vec![640]));
        let stopped = vec![deleted.clone(), fault(What::Stop, 150, 800)];
        let found = verdict(vec![told], stopped);
        assert_eq!((found.cut_short, found.told), (1, vec![50]));
        // Who got the lock meanwhile took it away, unless that was said to be lost as well.
        let alone = |said| {
            let mut other = turn(1, 300, None, 310);
            other.said = Some(said);
            let mut first = turn(0, 100, Some(110), 900);
            first.said = Some(Said::Lost);
            verdict(vec![first, other], Vec::new()).lost
        };
        assert_eq!([Said::Ok, Said::Lost].map(alone), [1, 0]);
        let never = verdict(vec![turn(0, 100, Some(110), 900)], vec![deleted]);
        assert_eq!((never.lost, never.told), (1, Vec::new()));
    }

    #[test]
    fn an_alarm_without_a_cause_is_false() {
        let mut alarmed = turn(0, 100, Some(110), 900);
        alarmed.said = Some(Said::Lost);
        assert_eq!(verdict(vec![alarmed.clone()], Vec::new()).false_alarms, 1);
        let deleted = fault(What::Delete, 80, 95);
        assert_eq!(
            verdict(vec![alarmed.clone()], vec![deleted]).false_alarms,
            0
        );
        alarmed.gave = Some(1000); // The lease may be over.
        assert_eq!(verdict(vec![alarmed], Vec::new()).false_alarms, 0);
    }

    #[test]
    fn a_lock_that_is_free_and_wanted_is_measured() {
        let mut failed = turn(1, 200, None, 0);
        (failed.has, failed.gives, failed.gave) = (None, None, None);
        (failed.refused, failed.failed) = (Some(300), Some(String::new()));
        let turns = vec![turn(0, 100, None, 195), failed, turn(2, 1200, None, 1300)];
        assert_eq!(verdict(turns, Vec::new()).free, 1000);
    }
}
