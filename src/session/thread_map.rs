//! The locks that this thread holds, and how deep. A `thread_local!` map leads from the key's name
//! to the hold. The hold has the depth; only its thread writes it.

use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::emit::Span;
use crate::base::error::Error;
use crate::base::key::Name;
use crate::base::options::Options;
use crate::base::sync::HashMap;
use crate::base::sync::{per_thread, process};
use crate::hold::Hold;
use crate::waiting::queues::Turn;
use crate::waiting::waiter::{self, HeldBy};

/// The most guards of one lock that one thread may have. A million is a leak, not a design, and
/// with this limit the count never wraps.
const MAX_DEPTH: u32 = 1 << 20;

per_thread! {
    /// The holds of this thread, by key name.
    ///
    /// No function here runs other code while the map is borrowed: a destructor that takes or
    /// releases a lock would borrow the map again, and panic. When the thread exits, the map is
    /// dropped: each turn goes to the next waiter, and nothing is sent to Redis.
    static HOLDS: RefCell<Holds> = RefCell::default();
}

per_thread! {
    /// How many holds this thread has entered.
    static ENTERED: Cell<u64> = const { Cell::new(0) };
}

/// Each name has one entry for each manager of which this thread holds the lock.
type Holds = HashMap<Arc<str>, Vec<HeldEntry>>;

/// A hold in the thread's map, with its turn in the process's queue.
///
/// The guards share the hold but not the turn, so the turn ends with the thread even if a guard was
/// forgotten.
struct HeldEntry {
    manager: u64,
    held: Rc<Held>,
    /// The turn of the hold, until the last guard takes it out. If the thread ends first, the turn
    /// is still here.
    turn: Option<Turn>,
}

impl Drop for HeldEntry {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            if self.held.hold.owner.pid != process::id() {
                // The rest locks the queue and, in memory, the keys. If another thread of the
                // parent had one of them locked at the fork, a forked child's copy stays locked
                // forever, and the child would not exit.
                mem::forget(turn);
                return;
            }
            turn.forgets(&self.held.hold);
        }
    }
}

/// A hold, as the guards of its thread share it: by an `Rc`, so a guard is not `Send`.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
    /// The thread's count of such entries. A hold with a lower one is outside this one: a hold that
    /// was attached may be older than one outside it.
    pub(crate) entered: u64,
    /// A writer that has the gate waits for readers. It has no guard yet.
    pub(crate) is_waiting: Cell<bool>,
    pub(crate) span: Span,
}

impl Held {
    /// Takes one guard off, and returns how many are left. With the last guard, the caller takes
    /// the hold [out of the map](Self::take_out).
    pub(crate) fn leave(&self) -> u32 {
        let depth = self.hold.depth() - 1;
        self.hold.set_depth(depth);
        depth
    }

    /// Takes the hold out of the map, whatever its depth. Returns its turn. `None` if the thread is
    /// exiting, and the map is gone.
    pub(crate) fn take_out(self: &Rc<Held>) -> Option<Turn> {
        with(|holds| {
            let name = self.hold.key.name();
            let same = holds.get_mut(name)?;
            let place = same
                .iter()
                .position(|entry| Rc::ptr_eq(&entry.held, self))?;
            let turn = same.swap_remove(place).turn.take();
            if same.is_empty() {
                holds.remove(name);
            }
            turn
        })?
    }
}

/// The hold of this thread on the lock, or on one of the slots, if there is one.
pub(crate) fn find<'a>(manager: u64, name: impl Into<Name<'a>>) -> Option<Rc<Held>> {
    with(|holds| {
        let mut same = name
            .into()
            .each()
            .filter_map(|name| holds.get(name))
            .flatten();
        let entry = same.find(|entry| entry.manager == manager)?;
        Some(Rc::clone(&entry.held))
    })?
}

/// Re-enters the lock, if the options allow that. `None` if this thread does not hold it. On error,
/// the depth stays as it is.
pub(crate) fn reenter<'a>(
    manager: u64,
    name: impl Into<Name<'a>>,
    options: &Options,
    now: Moment,
) -> Result<Option<Rc<Held>>, Error> {
    let name = name.into();
    let Some(held) = find(manager, name) else {
        return Ok(None);
    };
    let (depth, key) = (held.hold.depth(), || held.hold.key.name().to_string());
    // The loss comes first: the thread has to learn of it, whatever it wanted.
    held.hold.check(now)?;
    if !options.reentrant || held.is_waiting.get() || !name.admits(&held.hold.key) {
        return Err(Error::AlreadyHeld { key: key() });
    }
    if options.fenced && held.hold.fence.is_none() {
        let reason = "this thread holds it already, and took it without a fence";
        let key = key();
        return Err(Error::NoFence { key, reason });
    }
    if depth == MAX_DEPTH {
        let key = key();
        return Err(Error::DepthOverflow { key, depth });
    }
    held.hold.set_depth(depth + 1);
    held.hold.keep_at_least(options.keep_at_least, now);
    Ok(Some(held))
}

/// Enters a hold with a depth of one: a new one, or one that was in another thread's map before.
pub(crate) fn enter(manager: u64, hold: Arc<Hold>, turn: Turn) -> Rc<Held> {
    ENTERED.set(ENTERED.get() + 1);
    let span = Span::hold(hold.key.name(), &hold.token, hold.fence);
    let held = Rc::new(Held {
        hold,
        entered: ENTERED.get(),
        is_waiting: Cell::new(false),
        span,
    });
    let entry = HeldEntry {
        manager,
        held: Rc::clone(&held),
        turn: Some(turn),
    };
    // If the thread is exiting, the turn is dropped, and the hold lasts as long as its lease.
    with(|holds| {
        holds
            .entry(Arc::clone(held.hold.key.name()))
            .or_default()
            .push(entry);
    });
    held
}

/// The locks that this thread holds through all managers, the oldest first.
pub(crate) fn held() -> Vec<HeldBy> {
    let all = with(|holds| {
        let all = holds
            .values()
            .flatten()
            .filter(|entry| !entry.held.is_waiting.get())
            .map(|entry| (entry.manager, Arc::clone(&entry.held.hold)));
        all.collect()
    });
    let mut all: Vec<_> = all.unwrap_or_default();
    all.sort_by_key(|(_, hold)| hold.number);
    all
}

/// The keys of the locks that this thread holds.
pub(crate) fn names() -> Vec<String> {
    waiter::names(held())
}

/// Returns an error if this thread has lost a lock whose hold came before the one on `key` (which
/// has the count `entered`), and still has guards of it.
pub(crate) fn check_around(entered: u64, key: &str, now: Moment) -> Result<(), Error> {
    let lost = with(|holds| {
        holds
            .values()
            .flatten()
            .filter(|entry| entry.held.entered < entered)
            .filter(|entry| entry.held.hold.owner.pid == process::id())
            .find_map(|entry| entry.held.hold.loss(now))
    });
    lost.flatten().map_or(Ok(()), |(outer, cause)| {
        Err(Error::OuterLost {
            key: key.to_owned(),
            outer,
            cause,
        })
    })
}

/// `None` if the thread is exiting and the map is gone.
fn with<T>(use_holds: impl FnOnce(&mut Holds) -> T) -> Option<T> {
    HOLDS
        .try_with(|holds| use_holds(&mut holds.borrow_mut()))
        .ok()
}

/// Returns an error if this thread has lost a lock outside this hold.
pub(crate) fn still_has_outer(held: &Held) -> Result<(), Error> {
    check_around(held.entered, held.hold.key.name(), Moment::now())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::error::LostCause;
    use crate::base::options::Lease;
    use crate::hold::tests::sample;
    use crate::waiting::queues::WaitQueues;

    fn entered(manager: u64, name: &str) -> Rc<Held> {
        let hold = Arc::new(sample(name, Duration::from_secs(30), Moment::now()));
        let turn = Arc::new(WaitQueues::default()).free_turn(hold.key.name());
        enter(manager, hold, turn)
    }

    fn reentered(manager: u64, name: &str) -> Result<Rc<Held>, Error> {
        reenter(manager, name, &Options::default(), Moment::now()).map(|held| held.expect("held"))
    }

    fn drop_last_guard(held: &Rc<Held>) {
        assert_eq!(held.leave(), 0);
        assert!(held.take_out().is_some());
    }

    #[test]
    fn holds_of_one_name_are_kept_apart_in_whichever_order_they_go() {
        for order in [[1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2], [2, 4, 1, 3]] {
            let all = [1, 2, 3, 4].map(|manager| (manager, entered(manager, "a")));
            for gone in 0..=order.len() {
                let rest: Vec<_> = (1..=4)
                    .filter(|manager| order[gone..].contains(manager))
                    .collect();
                let is_found = |(manager, of): &&(u64, Rc<Held>)| {
                    find(*manager, "a").is_some_and(|found| Rc::ptr_eq(&found, of))
                };
                let found: Vec<_> = all
                    .iter()
                    .filter(is_found)
                    .map(|(manager, _)| *manager)
                    .collect();
                assert_eq!(found, rest, "{order:?}");
                let listed: Vec<_> = held().iter().map(|(manager, _)| *manager).collect();
                assert_eq!(listed, rest, "{order:?}: not all, or not the oldest first");
                for (_, next) in all
                    .iter()
                    .filter(|(manager, _)| order.get(gone) == Some(manager))
                {
                    drop_last_guard(next);
                }
            }
        }
    }

    #[test]
    fn a_thread_that_ends_gives_up_its_turn_even_with_a_guard_forgotten() {
        let queues = Arc::new(WaitQueues::default());
        let theirs = Arc::clone(&queues);
        let thread = std::thread::spawn(move || {
            let hold = Arc::new(sample("a", Duration::from_secs(30), Moment::now()));
            let turn = theirs.free_turn(hold.key.name());
            turn.holds(&hold);
            std::mem::forget(enter(1, hold, turn));
        });
        thread.join().unwrap();
        drop(queues.free_turn(&"a".into()));
    }

    #[test]
    fn depth_counts_the_guards_of_a_hold_that_is_not_lost_and_never_wraps() {
        let held = entered(1, "a");
        assert!(Rc::ptr_eq(&held, &reentered(1, "a").unwrap()));
        assert_eq!((held.hold.depth(), held.leave()), (2, 1));
        let elsewhere =
            || reenter(1, "a", &Options::default(), Moment::now()).map(|it| it.is_some());
        assert!(
            std::thread::spawn(move || matches!(elsewhere(), Ok(false)))
                .join()
                .unwrap()
        );
        held.hold.set_depth(MAX_DEPTH);
        let deep = reentered(1, "a");
        assert!(matches!(
            deep,
            Err(Error::DepthOverflow {
                depth: MAX_DEPTH,
                ..
            })
        ));
        held.hold.set_depth(1);
        let _ = held.hold.lose(LostCause::Deleted);
        let lost = reentered(1, "a");
        assert!(matches!(
            lost,
            Err(Error::Lost {
                cause: LostCause::Deleted,
                ..
            })
        ));
        assert_eq!(held.hold.depth(), 1);
        drop_last_guard(&held);
        assert!(
            HOLDS.with(|holds| holds.borrow().is_empty()),
            "nothing is kept of it"
        );
    }

    #[test]
    fn a_lost_hold_is_around_those_that_came_later() {
        let lost_at = |entered, now| match check_around(entered, "inner", now) {
            Err(Error::OuterLost { outer, cause, .. }) => Some((outer, cause)),
            _ => None,
        };
        let lost = |entered| lost_at(entered, Moment::now()).map(|(name, _)| name);
        let [one, two, three] = ["one", "two", "three"].map(|name| entered(1, name));
        let _beside = entered(2, "two");
        assert_eq!(lost(u64::MAX), None);
        let _ = two.hold.lose(LostCause::Deleted);
        assert_eq!(lost(u64::MAX).as_deref(), Some("two"));
        let around = [&one, &two, &three].map(|held| lost(held.entered).is_some());
        assert_eq!(around, [false, false, true]);
        // It is handed over to this thread again, and is then inside the others.
        let turn = two.take_out().expect("it was entered");
        assert_eq!(lost(u64::MAX), None);
        let two = enter(1, Arc::clone(&two.hold), turn);
        assert_eq!((lost(three.entered), lost(two.entered)), (None, None));
        drop_last_guard(&two);
        // It is lost by the clock alone: just before its end, all is still well.
        three
            .hold
            .set_lease(Lease::new(Duration::from_secs(1)), Moment::now());
        let end = three.hold.valid_until();
        assert_eq!(
            lost_at(u64::MAX, Moment::from_nanos(end.as_nanos() - 1)),
            None
        );
        assert_eq!(
            lost_at(u64::MAX, end),
            Some(("three".to_owned(), LostCause::Expired))
        );
    }
}
