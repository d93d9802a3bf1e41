//! What ends the wait of a thread that holds locks: a deadlock within the process, through any of
//! its managers, or the loss of what it holds.
//!
//! A thread waits for one lock at a time, and a lock has one holder. So the question "for whom does
//! that thread wait" has one answer at most, and a walk from thread to thread either ends or comes
//! back to where it began. The thread that closes such a cycle finds it, because all others of the
//! cycle sleep already. Of all these waits, the one that would end first fails in any case, so it
//! ends now, and the others go on. Without limits, the wait that closes the cycle ends.
//!
//! Only a thread that holds locks can be part of a cycle. So a thread that holds none, and a thread
//! that does not sleep, pay nothing.
//!
//! The walk leaves out holds that are lost as far as this process knows. A hold that will be lost
//! later excuses nothing: its thread would go on without its lock.

use std::cell::OnceCell;
use std::sync::{Arc, OnceLock};

use crate::base::clock::Moment;
use crate::base::error::{BlockedThread, Error};
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::base::stop::Wake;
use crate::base::sync::{Mutex, PerProcess};
use crate::hold::Hold;

/// The threads of this process that hold locks and sleep until they get another one.
static BLOCKED: PerProcess<Mutex<Vec<Arc<Blocked>>>> =
    PerProcess::new(Mutex::new(Vec::new()), Mutex::default);

/// A hold, and the number of its manager.
pub(crate) type HeldBy = (u64, Arc<Hold>);

/// The names of the locks that a thread holds.
pub(crate) fn names(held: Vec<HeldBy>) -> Vec<String> {
    held.into_iter()
        .map(|(_, hold)| hold.key.name().to_string())
        .collect()
}

/// Wakes the threads that wait for another lock while they hold this one, which is lost.
pub(crate) fn wake_holders(lost: &Hold) {
    let has_it = |it: &&Arc<Blocked>| it.holds.iter().any(|(_, hold)| hold.number == lost.number);
    let holders: Vec<_> =
        BLOCKED.with(|all| all.lock().iter().filter(has_it).map(Arc::clone).collect());
    for holder in holders {
        (holder.wake)();
    }
}

/// A thread that holds locks and waits for another one.
struct Blocked {
    thread: Owner,
    /// The lock for which the thread waits: its manager and its name.
    wants: (u64, Arc<str>),
    /// The token that Redis named as the holder's, if it belongs to this process.
    seen: Mutex<Option<String>>,
    /// When the thread gives up.
    deadline: Moment,
    /// What the thread holds. That does not change while it sleeps.
    holds: Vec<HeldBy>,
    /// The cycle of threads for which this wait ends.
    cycle: OnceLock<Vec<BlockedThread>>,
    /// Wakes the thread, with the other waiters of its manager.
    wake: Arc<Wake>,
}

/// Ends a wait for a cycle, or for the loss of what its thread holds. The thread counts as blocked
/// from its first sleep until this is dropped.
pub(crate) struct DeadlockWatch<'a> {
    manager: u64,
    name: &'a Arc<str>,
    thread: &'a Owner,
    deadline: Moment,
    /// Lists what the thread holds.
    holds: fn() -> Vec<HeldBy>,
    wake: &'a Arc<Wake>,
    /// The thread in the list, from its first sleep on. `None` if it holds nothing: then nobody
    /// waits for it.
    entered: OnceCell<Option<Arc<Blocked>>>,
}

impl<'a> DeadlockWatch<'a> {
    pub(crate) fn new(
        manager: u64,
        name: &'a Arc<str>,
        thread: &'a Owner,
        deadline: Moment,
        holds: fn() -> Vec<HeldBy>,
        wake: &'a Arc<Wake>,
    ) -> DeadlockWatch<'a> {
        DeadlockWatch {
            manager,
            name,
            thread,
            deadline,
            holds,
            wake,
            entered: OnceCell::new(),
        }
    }

    /// The thread is about to sleep. Redis has named this holder, if any. If that closes a cycle,
    /// one of its waits ends. If that is another thread's, returns what wakes it, for when the
    /// caller holds no mutex.
    pub(crate) fn begins(&self, seen: Option<&Holder>) -> Option<Arc<Wake>> {
        let is_first = self.entered.get().is_none();
        let me = self.entered.get_or_init(|| self.enter()).as_ref()?;
        let of_this_process =
            |holder: &&Holder| holder.owner().is_some_and(|it| it.pid == self.thread.pid);
        let seen = seen.filter(of_this_process).map(|holder| &*holder.raw);
        BLOCKED.with(|all| {
            let blocked = all.lock();
            let mut known = me.seen.lock();
            let is_new = is_first || seen.is_some() && known.as_deref() != seen;
            *known = seen.map(str::to_owned).or(known.take());
            drop(known);
            // If nothing is new, the thread that closes a cycle is another one. Until the wait that
            // ends has left the list, it is no part of another cycle.
            let ends = is_new.then(|| end_cycle(&blocked, me, Moment::now()))??;
            Some(Arc::clone(&ends.wake)).filter(|_| !Arc::ptr_eq(ends, me))
        })
    }

    fn enter(&self) -> Option<Arc<Blocked>> {
        let holds = (self.holds)();
        if holds.is_empty() {
            return None;
        }
        let me = Arc::new(Blocked {
            thread: self.thread.clone(),
            wants: (self.manager, Arc::clone(self.name)),
            seen: Mutex::new(None),
            deadline: self.deadline,
            holds,
            cycle: OnceLock::new(),
            wake: Arc::clone(self.wake),
        });
        BLOCKED.with(|all| all.lock().push(Arc::clone(&me)));
        Some(me)
    }

    fn entered(&self) -> Option<&Arc<Blocked>> {
        self.entered.get()?.as_ref()
    }

    /// Returns an error if the thread must not go on waiting: its wait ends a cycle, or it has lost
    /// a lock that it holds.
    pub(crate) fn may_go_on(&self) -> Result<(), Error> {
        let Some(me) = self.entered() else {
            return Ok(());
        };
        let key = || self.name.to_string();
        if let Some(cycle) = me.cycle.get() {
            let cycle = cycle.clone();
            return Err(Error::WouldDeadlock { key: key(), cycle });
        }
        let now = Moment::now();
        let lost = me.holds.iter().find_map(|(_, hold)| hold.loss(now));
        lost.map_or(Ok(()), |(outer, cause)| {
            let key = key();
            Err(Error::OuterLost { key, outer, cause })
        })
    }

    /// When the first hold of the thread runs out, unless it is renewed. No other thread wakes this
    /// one then.
    pub(crate) fn first_end(&self) -> Moment {
        let holds = self.entered().into_iter().flat_map(|me| &me.holds);
        let ends = holds.map(|(_, hold)| hold.valid_until());
        let ends = ends.filter(|end| *end > Moment::PAST); // Its release is under way.
        ends.min().unwrap_or(Moment::NEVER)
    }
}

impl Drop for DeadlockWatch<'_> {
    fn drop(&mut self) {
        if let Some(me) = self.entered() {
            BLOCKED.with(|all| all.lock().retain(|it| !Arc::ptr_eq(it, me)));
        }
    }
}

impl Blocked {
    /// True if the thread holds what `other` wants.
    fn holds_for(&self, other: &Blocked, now: Moment) -> bool {
        let seen = other.seen.lock();
        let is_wanted = |(manager, hold): &HeldBy| {
            let by_name = *manager == other.wants.0 && *hold.key.name() == other.wants.1;
            (by_name || seen.as_deref() == Some(&*hold.token)) && hold.is_valid(now)
        };
        self.holds.iter().any(is_wanted)
    }
}

/// Ends a wait of the cycle that begins with this one, if there is a cycle: the wait that would end
/// first, or else this one. Returns it.
fn end_cycle<'a>(
    blocked: &'a [Arc<Blocked>],
    first: &'a Arc<Blocked>,
    now: Moment,
) -> Option<&'a Arc<Blocked>> {
    let mut cycle = vec![first];
    loop {
        let at = cycle.last()?;
        let next = blocked.iter().find(|it| it.holds_for(at, now))?;
        // A wait that ends already opens the cycle. A walk that is longer than the list has come
        // into a cycle that leads past `first`.
        if next.cycle.get().is_some() || cycle.len() > blocked.len() {
            return None;
        }
        if Arc::ptr_eq(next, first) {
            break;
        }
        cycle.push(next);
    }
    let (place, ends) = cycle.iter().enumerate().min_by_key(|(_, it)| it.deadline)?;
    let ends = *ends;
    cycle.rotate_left(place);
    let told = cycle.iter().map(|it| BlockedThread {
        thread: it.thread.clone(),
        key: it.wants.1.to_string(),
    });
    ends.cycle.set(told.collect()).ok()?;
    Some(ends)
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
            thread: Owner::new("host".into(), 1, 100 + number),
            wants: (1, wants.into()),
            seen: Mutex::default(),
            deadline: Moment::NEVER,
            holds: holds.iter().map(|name| (1, hold(name))).collect(),
            cycle: OnceLock::new(),
            wake: Arc::new(|| ()),
        }
    }

    /// The threads and keys of the cycle that the last of these waits closes. The wait of the first
    /// of these threads ends.
    fn closed<const N: usize>(waits: [Blocked; N]) -> Option<Vec<(u64, String)>> {
        let waits = waits.map(Arc::new);
        let ends = end_cycle(&waits, waits.last()?, Moment::now())?;
        assert!(
            end_cycle(&waits, &waits[0], Moment::now()).is_none(),
            "it is over"
        );
        let cycle = ends.cycle.get().expect("it is told");
        assert_eq!(cycle[0].thread, ends.thread, "the cycle begins with it");
        let shown = |it: &BlockedThread| (it.thread.thread - 100, it.key.clone());
        Some(cycle.iter().map(shown).collect())
    }

    /// The keys of that cycle.
    fn keys<const N: usize>(waits: [Blocked; N]) -> Option<Vec<String>> {
        Some(closed(waits)?.into_iter().map(|(_, key)| key).collect())
    }

    #[test]
    fn two_or_three_threads_that_wait_for_each_other_are_a_cycle() {
        assert_eq!(
            keys([blocked(1, "b", &["a"]), blocked(2, "a", &["b"])]).unwrap(),
            ["a", "b"]
        );
        let two = || [blocked(1, "b", &["a"]), blocked(2, "c", &["b"])];
        let [one, other] = two();
        let three = [one, other, blocked(3, "a", &["x", "c"])];
        assert_eq!(keys(three).unwrap(), ["a", "b", "c"]);
        assert_eq!(keys(two()), None, "the holder of c does not wait");
        assert_eq!(
            keys([blocked(1, "a", &["a"])]).unwrap(),
            ["a"],
            "a thread that waits for itself"
        );
    }

    #[test]
    fn a_thread_is_in_the_list_from_its_first_sleep_until_its_wait_is_over() {
        const MANAGER: u64 = u64::MAX; // No other test has it.
        let listed =
            || BLOCKED.with(|all| all.lock().iter().filter(|it| it.wants.0 == MANAGER).count());
        let owner = |thread| Owner::new("host".into(), 1, thread);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let (one, two) = (owner(1), owner(2));
        let wake: Arc<Wake> = Arc::new(|| ());
        let first = DeadlockWatch::new(
            MANAGER,
            &b,
            &one,
            Moment::NEVER,
            || vec![(MANAGER, hold("a"))],
            &wake,
        );
        assert!(first.begins(None).is_none());
        assert_eq!(listed(), 1);
        let second = DeadlockWatch::new(
            MANAGER,
            &a,
            &two,
            Moment::NEVER,
            || vec![(MANAGER, hold("b"))],
            &wake,
        );
        assert!(second.begins(None).is_none(), "its own wait ends");
        let error = second.may_go_on().unwrap_err();
        assert!(matches!(error, Error::WouldDeadlock { cycle, .. } if cycle.len() == 2));
        assert!(first.may_go_on().is_ok());
        drop((first, second));
        assert_eq!(listed(), 0);
    }

    #[test]
    fn waits_that_lead_into_a_cycle_are_no_part_of_it() {
        let waits = [
            blocked(1, "b", &["a"]),
            blocked(2, "a", &["b"]),
            blocked(3, "a", &["c"]),
        ];
        assert_eq!(closed(waits), None);
    }

    #[test]
    fn locks_of_the_same_name_of_two_managers_are_two_locks_but_a_token_is_one() {
        let mut other = blocked(2, "a", &["b"]);
        other.wants.0 = 2;
        let first = blocked(1, "b", &["a"]);
        assert_eq!(closed([first, other]), None);
        let (first, mut other) = (blocked(1, "b", &["a"]), blocked(2, "a", &["b"]));
        other.wants.0 = 2;
        let token = first.holds[0].1.token.clone();
        other.seen = Mutex::new(Some(token.to_string()));
        assert!(
            closed([first, other]).is_some(),
            "Redis has named the token of that hold"
        );
    }

    #[test]
    fn a_hold_that_is_lost_closes_no_cycle() {
        let waits = [blocked(1, "b", &["a"]), blocked(2, "a", &["b"])];
        let _ = waits[0].holds[0]
            .1
            .lose(crate::base::error::LostCause::Deleted);
        assert_eq!(closed(waits), None);
    }

    #[test]
    fn of_a_cycle_the_wait_ends_that_would_end_first() {
        let now = Moment::now();
        let [sooner, later] = [1, 2].map(|minutes| now.after(minutes * MINUTE));
        // The deadline of the first wait, that of the closer, and which of them ends.
        for (other, mine, ends) in [
            (Moment::NEVER, Moment::NEVER, 2),
            (Moment::NEVER, sooner, 2),
            (later, sooner, 2),
            (sooner, later, 1),
            (sooner, Moment::NEVER, 1),
            (sooner, sooner, 2),
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
            assert_eq!(closed(waits).unwrap()[0].0, ends, "{other:?} {mine:?}");
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
        assert!(closed([blocked(1, "b", &["a"]), closer]).is_some());
    }
}
