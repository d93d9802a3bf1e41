//! Deadlocks within the process, through any of its managers: found when a thread is about to
//! sleep.
//!
//! A thread waits for one lock at a time, and a lock has one holder. So the question "for whom does
//! that thread wait" has one answer at most, and a walk from thread to thread either ends or comes
//! back to where it began. The thread that closes such a cycle finds it, because all others of the
//! cycle sleep already. It gets an error, and the others go on.
//!
//! Only a thread that holds locks can be part of a cycle. So a thread that holds none, and a thread
//! that does not sleep, pay nothing.
//!
//! A cycle is no deadlock if another thread of it gives up before the deadline of the thread that
//! would get the error. The walk leaves out holds that are lost as far as this process knows. A
//! hold that will be lost later excuses nothing: its thread would go on without its lock.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::clock::Moment;
use crate::base::error::BlockedThread;
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::base::sync::{Mutex, PerProcess};
use crate::hold::Hold;

/// The threads of this process that hold locks and sleep until they get another one.
static BLOCKED: PerProcess<Mutex<Vec<Blocked>>> =
    PerProcess::new(Mutex::new(Vec::new()), Mutex::default);

/// A hold, and the number of its manager.
pub(crate) type HeldBy = (u64, Arc<Hold>);

/// The names of the locks that a thread holds.
pub(crate) fn names(held: Vec<HeldBy>) -> Vec<String> {
    held.into_iter()
        .map(|(_, hold)| hold.key.name().to_string())
        .collect()
}

/// A thread that holds locks and waits for another one.
#[derive(Debug)]
struct Blocked {
    /// No other wait of this process has the same number.
    number: u64,
    thread: Owner,
    /// The lock for which the thread waits: its manager and its name.
    wants: (u64, Arc<str>),
    /// The token that Redis named as the holder's, if it belongs to this process.
    seen: Option<String>,
    /// When the thread gives up.
    deadline: Moment,
    /// What the thread holds. That does not change while it sleeps.
    holds: Vec<HeldBy>,
}

/// Looks for a cycle when a thread is about to sleep until it has a lock. The thread counts as
/// blocked from its first sleep until this is dropped.
pub(crate) struct DeadlockWatch<'a> {
    manager: u64,
    name: &'a Arc<str>,
    thread: &'a Owner,
    deadline: Moment,
    /// Lists what the thread holds.
    holds: fn() -> Vec<HeldBy>,
    entered: RefCell<Entered>,
}

#[derive(Debug)]
enum Entered {
    /// The thread has not slept yet.
    NotYet,
    /// The thread holds nothing, so nobody waits for it. Or it has closed a cycle, and its wait is
    /// over.
    Never,
    /// The thread is in the list, with this number.
    As(u64),
}

impl<'a> DeadlockWatch<'a> {
    pub(crate) fn new(
        manager: u64,
        name: &'a Arc<str>,
        thread: &'a Owner,
        deadline: Moment,
        holds: fn() -> Vec<HeldBy>,
    ) -> DeadlockWatch<'a> {
        DeadlockWatch {
            manager,
            name,
            thread,
            deadline,
            holds,
            entered: RefCell::new(Entered::NotYet),
        }
    }

    /// The thread is about to sleep. Redis has named this holder, if any. Returns the cycle if the
    /// thread would wait for itself.
    pub(crate) fn begins(&self, seen: Option<&Holder>) -> Result<(), Vec<BlockedThread>> {
        let mut entered = self.entered.borrow_mut();
        let holds = match *entered {
            Entered::NotYet => (self.holds)(),
            Entered::Never => return Ok(()),
            Entered::As(_) => Vec::new(),
        };
        let is_first = matches!(*entered, Entered::NotYet);
        if is_first && holds.is_empty() {
            *entered = Entered::Never;
            return Ok(());
        }
        let of_this_process =
            |holder: &&Holder| holder.owner().is_some_and(|it| it.pid == self.thread.pid);
        let seen = seen.filter(of_this_process).map(|holder| &*holder.raw);
        // The thread enters the list and looks for a cycle in one step. If it entered first, two
        // threads that close a cycle together would both find it, and both get the error.
        BLOCKED.with(|all| {
            let mut blocked = all.lock();
            let number = match *entered {
                Entered::As(number) => number,
                _ => self.enter(&mut blocked, holds),
            };
            *entered = Entered::As(number);
            let Some(me) = blocked.iter_mut().find(|it| it.number == number) else {
                return Ok(());
            };
            let is_new = is_first || seen.is_some() && me.seen.as_deref() != seen;
            me.seen = seen.map(str::to_owned).or(me.seen.take());
            // If nothing is new, the thread that closes a cycle is another one.
            let Some(cycle) = is_new
                .then(|| cycle(&blocked, number, Moment::now()))
                .flatten()
            else {
                return Ok(());
            };
            // The wait is over. If the thread stayed in the list until it has left its queue,
            // another thread could find the same cycle meanwhile.
            blocked.retain(|it| it.number != number);
            *entered = Entered::Never;
            Err(cycle)
        })
    }

    fn enter(&self, blocked: &mut Vec<Blocked>, holds: Vec<HeldBy>) -> u64 {
        static NEXT: PerProcess<AtomicU64> =
            PerProcess::new(AtomicU64::new(0), || AtomicU64::new(0));
        let number = NEXT.with(|it| it.fetch_add(1, Ordering::Relaxed));
        blocked.push(Blocked {
            number,
            thread: self.thread.clone(),
            wants: (self.manager, Arc::clone(self.name)),
            seen: None,
            deadline: self.deadline,
            holds,
        });
        number
    }
}

impl Drop for DeadlockWatch<'_> {
    fn drop(&mut self) {
        if let Entered::As(number) = *self.entered.borrow() {
            BLOCKED.with(|all| all.lock().retain(|it| it.number != number));
        }
    }
}

impl Blocked {
    /// True if the thread holds what `other` wants.
    fn holds_for(&self, other: &Blocked, now: Moment) -> bool {
        let is_wanted = |(manager, hold): &HeldBy| {
            let by_name = *manager == other.wants.0 && *hold.key.name() == other.wants.1;
            (by_name || other.seen.as_ref() == Some(&hold.token)) && hold.is_valid(now)
        };
        self.holds.iter().any(is_wanted)
    }
}

/// The cycle of waits that begins with the wait `number`, if there is one that nothing ends before
/// the deadline of that wait.
fn cycle(blocked: &[Blocked], number: u64, now: Moment) -> Option<Vec<BlockedThread>> {
    let first = blocked.iter().find(|it| it.number == number)?;
    let mut at = first;
    let mut ends = Moment::NEVER;
    let mut cycle = Vec::new();
    // A walk that is longer than the list has come into a cycle that leads past `first`.
    while cycle.len() < blocked.len() {
        let next = blocked.iter().find(|it| it.holds_for(at, now))?;
        cycle.push(BlockedThread {
            thread: at.thread.clone(),
            key: at.wants.1.to_string(),
        });
        if next.number == number {
            return (ends >= first.deadline).then_some(cycle);
        }
        ends = ends.min(next.deadline);
        at = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::options::Options;
    use crate::hold::tests::{sample, sample_with};

    const MINUTE: Duration = Duration::from_secs(60);

    fn hold(name: &str) -> Arc<Hold> {
        Arc::new(sample(name, MINUTE, Moment::now()))
    }

    /// Thread `number` waits for `wants` and holds `holds`, all through manager 1.
    fn blocked(number: u64, wants: &str, holds: &[&str]) -> Blocked {
        Blocked {
            number,
            thread: Owner::new("host".into(), 1, 100 + number),
            wants: (1, wants.into()),
            seen: None,
            deadline: Moment::NEVER,
            holds: holds.iter().map(|name| (1, hold(name))).collect(),
        }
    }

    /// The keys of the cycle that the last of these waits closes.
    fn closed(waits: &[Blocked]) -> Option<Vec<String>> {
        let last = waits.last().expect("at least one").number;
        let found = cycle(waits, last, Moment::now())?;
        let threads: Vec<_> = found.iter().map(|it| it.thread.thread).collect();
        assert_eq!(
            threads[0],
            100 + last,
            "the cycle begins with who closes it"
        );
        Some(found.into_iter().map(|it| it.key).collect())
    }

    #[test]
    fn two_or_three_threads_that_wait_for_each_other_are_a_cycle() {
        assert_eq!(
            closed(&[blocked(1, "b", &["a"]), blocked(2, "a", &["b"])]).unwrap(),
            ["a", "b"]
        );
        let three = [
            blocked(1, "b", &["a"]),
            blocked(2, "c", &["b"]),
            blocked(3, "a", &["x", "c"]),
        ];
        assert_eq!(closed(&three).unwrap(), ["a", "b", "c"]);
        assert_eq!(closed(&three[..2]), None, "the holder of c does not wait");
        assert_eq!(
            closed(&[blocked(1, "a", &["a"])]).unwrap(),
            ["a"],
            "a thread that waits for itself"
        );
    }

    #[test]
    fn who_closes_a_cycle_leaves_the_list_at_once() {
        const MANAGER: u64 = u64::MAX; // No other test has it.
        let listed =
            || BLOCKED.with(|all| all.lock().iter().filter(|it| it.wants.0 == MANAGER).count());
        let owner = |thread| Owner::new("host".into(), 1, thread);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let (one, two) = (owner(1), owner(2));
        let first = DeadlockWatch::new(MANAGER, &b, &one, Moment::NEVER, || {
            vec![(MANAGER, hold("a"))]
        });
        assert!(first.begins(None).is_ok());
        assert_eq!(listed(), 1);
        let second = DeadlockWatch::new(MANAGER, &a, &two, Moment::NEVER, || {
            vec![(MANAGER, hold("b"))]
        });
        assert_eq!(second.begins(None).unwrap_err().len(), 2);
        assert_eq!(listed(), 1, "only the thread that goes on waiting");
        drop(first);
        assert_eq!(listed(), 0);
    }

    #[test]
    fn waits_that_lead_into_a_cycle_are_no_part_of_it() {
        let waits = [
            blocked(1, "b", &["a"]),
            blocked(2, "a", &["b"]),
            blocked(3, "a", &["c"]),
        ];
        assert_eq!(closed(&waits), None);
    }

    #[test]
    fn locks_of_the_same_name_of_two_managers_are_two_locks_but_a_token_is_one() {
        let mut other = blocked(2, "a", &["b"]);
        other.wants.0 = 2;
        let first = blocked(1, "b", &["a"]);
        let token = first.holds[0].1.token.clone();
        assert_eq!(closed(&[first, other]), None);
        let (first, mut other) = (blocked(1, "b", &["a"]), blocked(2, "a", &["b"]));
        (other.wants.0, other.seen) = (2, Some(token));
        let Blocked { seen, .. } = &mut other;
        *seen = Some(first.holds[0].1.token.clone());
        assert!(
            closed(&[first, other]).is_some(),
            "Redis has named the token of that hold"
        );
    }

    #[test]
    fn a_hold_that_is_lost_closes_no_cycle() {
        let waits = [blocked(1, "b", &["a"]), blocked(2, "a", &["b"])];
        let _ = waits[0].holds[0]
            .1
            .lose(crate::base::error::LostCause::Deleted);
        assert_eq!(closed(&waits), None);
    }

    #[test]
    fn a_cycle_that_ends_by_itself_is_no_deadlock_for_who_waits_longer() {
        let now = Moment::now();
        let [sooner, later] = [1, 2].map(|minutes| now.after(minutes * MINUTE));
        // The deadline of the other wait, that of the closer, and whether the closer gives up.
        for (other, mine, reported) in [
            (Moment::NEVER, Moment::NEVER, true),
            (Moment::NEVER, sooner, true),
            (later, sooner, true),
            (sooner, later, false),
            (sooner, Moment::NEVER, false),
        ] {
            let waits = [
                Blocked {
                    deadline: other,
                    ..blocked(1, "b", &["a"])
                },
                Blocked {
                    deadline: mine,
                    ..blocked(2, "a", &["b"])
                },
            ];
            assert_eq!(closed(&waits).is_some(), reported, "{other:?} {mine:?}");
        }
    }

    #[test]
    fn a_hold_that_will_be_lost_excuses_no_cycle() {
        let mut options = Options {
            lease: MINUTE,
            ..Options::default()
        };
        options.renewal.on = false;
        let without_renewal = Arc::new(sample_with("b", &options, Moment::now()));
        let mut closer = blocked(2, "a", &[]);
        closer.holds = vec![(1, without_renewal)];
        assert!(closed(&[blocked(1, "b", &["a"]), closer]).is_some());
    }
}
