//! Reasons to end the wait of a thread that holds locks: a deadlock within the process, through any
//! of its managers, or the loss of one of these locks.
//!
//! A thread waits for one lock at a time, and a lock has one holder. (Any of several slots may be
//! the next to become free, so a wait for a slot proves nothing.) So the question "for whom does
//! that thread wait" has at most one answer, and a walk from thread to thread either ends or comes
//! back to where it began. The thread that closes such a cycle finds it, because all others in the
//! cycle are in their queues already. Of all these waits, the one that would end first would fail
//! in any case, so it ends now, and the others go on. Without limits, the wait that closes the
//! cycle ends.
//!
//! Only a thread that holds locks can be part of a cycle. So a thread that holds none, or that does
//! not sleep, pays nothing.
//!
//! The walk leaves out holds that are lost as far as this process knows. A hold that will be lost
//! later excuses nothing: its thread would go on without its lock.

use std::ptr;
use std::sync::{Arc, Weak};

use crate::base::clock::Moment;
use crate::base::error::BlockedThread;
use crate::base::owner::Owner;
use crate::base::sync::{Mutex, PerProcess, process};
use crate::hold::Hold;
use crate::waiting::queue::WaitQueue;
use crate::waiting::table::Table;
use crate::waiting::waiter::{Blocked, HeldBy, Waiter};

/// The queues of all managers, each with its process: a forked child must not lock those of its
/// parent. This is locked before the table of any manager, and never while one is locked.
static MANAGERS: PerProcess<Mutex<Vec<Manager>>> =
    PerProcess::new(Mutex::new(Vec::new()), Mutex::default);

/// The process of a manager, and its queues.
type Manager = (u32, Weak<Mutex<Table>>);

/// Makes the walks read these queues, too.
pub(super) fn enroll(queues: &Arc<Mutex<Table>>) {
    MANAGERS.with(|managers| {
        let mut managers = managers.lock();
        managers.retain(|(_, queues)| queues.strong_count() > 0);
        managers.push((process::id(), Arc::downgrade(queues)));
    });
}

/// Wakes the threads that wait for another lock while they hold this one, which is lost. The caller
/// holds no mutex.
pub(crate) fn wake_holders(lost: &Hold) {
    let has_it = |(_, hold): &HeldBy| hold.number == lost.number;
    let waits = MANAGERS.with(|managers| waiting_holders(&managers.lock()));
    let have_it = waits
        .iter()
        .filter(|it| it.blocked.holds.iter().any(has_it));
    for it in have_it {
        (it.blocked.wake)();
    }
}

/// Ends one wait in each cycle that these waits close. The caller holds no mutex.
pub(crate) fn end_cycles(are_new: impl Fn(&WaitingHolder) -> bool) {
    let ended: Vec<_> = MANAGERS.with(|managers| {
        let managers = managers.lock(); // Two threads that close one cycle end one wait.
        let waits = waiting_holders(&managers);
        let new = waits.iter().filter(|it| are_new(it));
        let ended = new.filter_map(|it| end_cycle(&waits, it, Moment::now()));
        ended.map(|it| Arc::clone(&it.blocked)).collect()
    });
    for it in ended {
        (it.wake)();
    }
}

/// Ends one wait in the cycle that this thread closes, if it closes one: it has just been entered
/// in its queue. The caller holds no mutex.
pub(super) fn end_cycles_of(me: &Waiter) {
    if let Some(me) = &me.blocked {
        end_cycles(|it| Arc::ptr_eq(&it.blocked, me));
    }
}

/// A thread that holds locks and waits for another one, as its queue has it.
pub(crate) struct WaitingHolder {
    pub(super) thread: Owner,
    pub(super) deadline: Moment,
    pub(super) blocked: Arc<Blocked>,
    /// The token that Redis last named as the holder's.
    pub(crate) seen: Option<String>,
}

/// All threads of this process that hold locks and wait for another one.
fn waiting_holders(managers: &[Manager]) -> Vec<WaitingHolder> {
    let pid = process::id();
    let mine = managers.iter().filter(|(of, _)| *of == pid);
    let queues = mine.filter_map(|(_, queues)| queues.upgrade());
    let holders = |queues: Arc<Mutex<Table>>| {
        let table = queues.lock();
        let holders = table.waiters().filter_map(WaitingHolder::of);
        holders.collect::<Vec<_>>()
    };
    queues.flat_map(holders).collect()
}

impl WaitingHolder {
    /// `None` if the thread holds nothing.
    fn of((_, queue, it): (&Arc<str>, &WaitQueue, &Arc<Waiter>)) -> Option<WaitingHolder> {
        Some(WaitingHolder {
            thread: it.thread.clone(),
            deadline: it.patience.deadline,
            blocked: Arc::clone(it.blocked.as_ref()?),
            seen: queue.seen().map(|holder| holder.raw.clone()),
        })
    }

    /// True if this thread holds the lock that the other one wants.
    fn holds_for(&self, other: &WaitingHolder, now: Moment) -> bool {
        let (wanted, name) = &other.blocked.wants;
        let is_wanted = |(manager, hold): &HeldBy| {
            let by_name = manager == wanted && hold.key.name() == name;
            (by_name || other.seen.as_deref() == Some(&*hold.token)) && hold.is_valid(now)
        };
        !other.blocked.wants_slots && self.blocked.holds.iter().any(is_wanted)
    }
}

/// Ends one wait in the cycle that begins with this one, if there is a cycle: the wait that would
/// end first, or else this one. Returns it.
fn end_cycle<'a>(
    waits: &'a [WaitingHolder],
    first: &'a WaitingHolder,
    now: Moment,
) -> Option<&'a WaitingHolder> {
    let mut cycle = vec![first];
    loop {
        let at = cycle.last()?;
        let next = waits.iter().find(|it| it.holds_for(at, now))?;
        // A wait that is already ending breaks the cycle. A walk that is longer than the list has
        // entered a cycle that does not include `first`.
        if next.blocked.cycle.get().is_some() || cycle.len() > waits.len() {
            return None;
        }
        if ptr::eq(next, first) {
            break;
        }
        cycle.push(next);
    }
    let (place, ends) = cycle.iter().enumerate().min_by_key(|(_, it)| it.deadline)?;
    let ends = *ends;
    cycle.rotate_left(place);
    let told = cycle.iter().map(|it| BlockedThread {
        thread: it.thread.clone(),
        key: it.blocked.wants.1.to_string(),
    });
    ends.blocked.cycle.set(told.collect()).ok()?;
    Some(ends)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::options::Options;
    use crate::base::stop::Wake;
    use crate::hold::tests::{sample, sample_with};

    const MINUTE: Duration = Duration::from_secs(60);

    fn hold(name: &str) -> Arc<Hold> {
        Arc::new(sample(name, MINUTE, Moment::now()))
    }

    /// Thread `number` waits for `wants` and holds `holds`, all through manager 1.
    fn waits(number: u64, wants: &str, holds: &[&str]) -> WaitingHolder {
        let holds = holds.iter().map(|name| (1, hold(name))).collect();
        waits_through(1, number, wants, holds)
    }

    /// Thread `number` waits for `wants` through this manager.
    fn waits_through(manager: u64, number: u64, wants: &str, holds: Vec<HeldBy>) -> WaitingHolder {
        let wake: Arc<Wake> = Arc::new(|| ());
        WaitingHolder {
            thread: Owner::new("host".into(), 1, 100 + number),
            deadline: Moment::NEVER,
            blocked: Arc::new(Blocked::new((manager, wants.into()), false, holds, &wake)),
            seen: None,
        }
    }

    /// The threads and keys of the cycle that the last of these waits closes. The wait of the first
    /// of these threads ends.
    fn closed(waits: &[WaitingHolder]) -> Option<Vec<(u64, String)>> {
        let ends = end_cycle(waits, waits.last()?, Moment::now())?;
        assert!(
            end_cycle(waits, &waits[0], Moment::now()).is_none(),
            "it is over"
        );
        let cycle = ends.blocked.cycle.get().expect("it is told");
        assert_eq!(cycle[0].thread, ends.thread, "the cycle begins with it");
        let shown = |it: &BlockedThread| (it.thread.thread - 100, it.key.clone());
        Some(cycle.iter().map(shown).collect())
    }

    /// The keys of the cycle that [`closed`] returns.
    fn keys(waits: &[WaitingHolder]) -> Option<Vec<String>> {
        Some(closed(waits)?.into_iter().map(|(_, key)| key).collect())
    }

    #[test]
    fn two_or_three_threads_that_wait_for_each_other_are_a_cycle() {
        assert_eq!(
            keys(&[waits(1, "b", &["a"]), waits(2, "a", &["b"])]).unwrap(),
            ["a", "b"]
        );
        let two = || [waits(1, "b", &["a"]), waits(2, "c", &["b"])];
        let [one, other] = two();
        let three = [one, other, waits(3, "a", &["x", "c"])];
        assert_eq!(keys(&three).unwrap(), ["a", "b", "c"]);
        assert_eq!(keys(&two()), None, "the holder of c does not wait");
        assert_eq!(
            keys(&[waits(1, "a", &["a"])]).unwrap(),
            ["a"],
            "a thread that waits for itself"
        );
    }

    #[test]
    fn waits_that_lead_into_a_cycle_are_no_part_of_it() {
        let waits = [
            waits(1, "b", &["a"]),
            waits(2, "a", &["b"]),
            waits(3, "a", &["c"]),
        ];
        assert_eq!(closed(&waits), None);
    }

    #[test]
    fn locks_of_the_same_name_of_two_managers_are_two_locks_but_a_token_is_one() {
        let two = |sees_it: bool| {
            let first = waits(1, "b", &["a"]);
            let mut other = waits_through(2, 2, "a", vec![(1, hold("b"))]);
            let token = first.blocked.holds[0].1.token.clone();
            other.seen = sees_it.then(|| token.to_string());
            closed(&[first, other])
        };
        assert_eq!(two(false), None);
        assert!(
            two(true).is_some(),
            "Redis has named the token of that hold"
        );
    }

    #[test]
    fn a_hold_that_is_lost_closes_no_cycle() {
        let waits = [waits(1, "b", &["a"]), waits(2, "a", &["b"])];
        let _ = waits[0].blocked.holds[0]
            .1
            .lose(crate::base::error::LostCause::Deleted);
        assert_eq!(closed(&waits), None);
    }

    #[test]
    fn of_a_cycle_the_wait_ends_that_would_end_first() {
        let now = Moment::now();
        let [sooner, later] = [1, 2].map(|minutes| now.after(minutes * MINUTE));
        // The deadline of the first wait, that of the closing wait, and which of them ends.
        for (other, mine, ends) in [
            (Moment::NEVER, Moment::NEVER, 2),
            (Moment::NEVER, sooner, 2),
            (later, sooner, 2),
            (sooner, later, 1),
            (sooner, Moment::NEVER, 1),
            (sooner, sooner, 2),
        ] {
            let waits = [
                WaitingHolder {
                    deadline: other,
                    ..waits(1, "b", &["a"])
                },
                WaitingHolder {
                    deadline: mine,
                    ..waits(2, "a", &["b"])
                },
            ];
            assert_eq!(closed(&waits).unwrap()[0].0, ends, "{other:?} {mine:?}");
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
        let closer = waits_through(1, 2, "a", vec![(1, without_renewal)]);
        assert!(closed(&[waits(1, "b", &["a"]), closer]).is_some());
    }
}
