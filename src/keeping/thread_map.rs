//! What this thread holds, and how deep: the thread's own map, which no other thread can see.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::owner::Owner;
use crate::hold::Hold;
use crate::waiting::queues::Turn;

/// A million guards of one lock in one thread are a leak, not a design; and the count never wraps.
const MAX_DEPTH: u32 = 1 << 20;

thread_local! {
    /// By the key's name; in each, one hold per manager (there is nearly always just one).
    ///
    /// No function here calls out while the map is borrowed. When the thread ends, what is left in it is
    /// dropped: turns go on to the next in line, and nothing is sent.
    static HOLDS: RefCell<HashMap<Arc<str>, Vec<Entry>>> = RefCell::default();
}

/// A hold in the thread's map, with its place in the process's queue.
///
/// The turn is kept apart from what the guards share, so that it ends with the thread even where a guard was
/// forgotten.
struct Entry {
    manager: u64,
    held: Rc<Held>,
    /// Taken out by the last guard; still here where the thread ends first.
    turn: Option<Turn>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.held.hold.mark_thread_ended();
            if self.held.hold.owner.pid() != std::process::id() {
                mem::forget(turn); // A forked child's copy of the queue may have been locked when it was copied.
            }
        }
    }
}

/// A hold, as the guards of its thread share it. Counted without atomics, so a guard stays in its thread.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
}

/// What became of a hold when one of its guards went.
#[derive(Debug)]
pub(crate) enum Left {
    /// Other guards are alive: so many.
    Inside(u32),
    /// It was the last. The turn is the caller's to end, after the release.
    Outside(Turn),
    /// The thread is ending and its map is gone: its turn is over, and the release is the keeper's.
    TooLate,
}

impl Held {
    /// Takes one guard off, and the hold out of the map with the last.
    pub(crate) fn leave(self: &Rc<Held>) -> Left {
        let depth = self.hold.depth() - 1;
        self.hold.set_depth(depth);
        if depth > 0 {
            return Left::Inside(depth);
        }
        let turn = with(|holds| {
            let name = self.hold.key.name();
            let entries = holds.get_mut(name)?;
            let place = entries.iter().position(|entry| Rc::ptr_eq(&entry.held, self))?;
            let mut entry = entries.swap_remove(place);
            if entries.is_empty() {
                holds.remove(name);
            }
            entry.turn.take()
        });
        turn.flatten().map_or(Left::TooLate, Left::Outside)
    }
}

/// Takes a hold that this thread already has once more, if it has it; with `Err`, the depth is as before.
pub(crate) fn reenter(manager: u64, name: &str, now: Moment) -> Option<Result<Rc<Held>, Error>> {
    let held = with(|holds| {
        let entry = holds.get(name)?.iter().find(|entry| entry.manager == manager)?;
        Some(Rc::clone(&entry.held))
    })??;
    let depth = held.hold.depth();
    if let Err(lost) = held.hold.check(now) {
        return Some(Err(lost));
    }
    if depth == MAX_DEPTH {
        return Some(Err(Error::DepthOverflow { key: name.to_owned(), depth }));
    }
    held.hold.set_depth(depth + 1);
    Some(Ok(held))
}

/// Enters a new hold, one deep.
pub(crate) fn enter(manager: u64, hold: Arc<Hold>, turn: Turn) -> Rc<Held> {
    let held = Rc::new(Held { hold });
    let entry = Entry { manager, held: Rc::clone(&held), turn: Some(turn) };
    // Where the thread is ending, the turn is dropped and the hold is left to its lease.
    with(|holds| {
        let name = Arc::clone(held.hold.key.name());
        holds.entry(name).or_insert_with(|| Vec::with_capacity(1)).push(entry);
    });
    held
}

/// True if a token that stands in Redis is of a hold of this thread, through whichever manager.
pub(crate) fn is_mine(token: &str, pid: u32) -> bool {
    // A forked child finds its parent's holds in the map: not its own.
    let of_this_process = || Owner::parse(token).is_some_and(|owner| owner.pid() == pid);
    let in_map = with(|holds| holds.values().flatten().any(|entry| entry.held.hold.token == token));
    in_map.unwrap_or(false) && of_this_process()
}

/// `None` where the thread is ending and the map is gone.
fn with<T>(use_holds: impl FnOnce(&mut HashMap<Arc<str>, Vec<Entry>>) -> T) -> Option<T> {
    HOLDS.try_with(|holds| use_holds(&mut holds.borrow_mut())).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::error::LostCause;
    use crate::hold::tests::sample;
    use crate::waiting::patience::tests::until;
    use crate::waiting::queues::WaitQueues;

    fn entered(manager: u64, name: &str) -> Rc<Held> {
        let hold = Arc::new(sample(name, Duration::from_secs(30), Moment::now()));
        let turn = Arc::new(WaitQueues::default())
            .join(hold.key.name(), &until(Moment::PAST), |_| false, |_| true, |_| (), || unreachable!())
            .unwrap();
        enter(manager, hold, turn)
    }

    fn reentered(manager: u64, name: &str) -> Result<Rc<Held>, Error> {
        reenter(manager, name, Moment::now()).expect("held")
    }

    #[test]
    fn depth_counts_the_guards_of_a_hold() {
        let held = entered(1, "a");
        assert!(Rc::ptr_eq(&held, &reentered(1, "a").unwrap()));
        assert_eq!(held.hold.depth(), 2);
        assert!(matches!(held.leave(), Left::Inside(1)));
        assert!(matches!(held.leave(), Left::Outside(_)));
        assert!(reenter(1, "a", Moment::now()).is_none());
        HOLDS.with(|holds| assert!(holds.borrow().is_empty(), "nothing is kept of what is not held"));
    }

    #[test]
    fn managers_keys_and_threads_are_kept_apart() {
        let one = entered(1, "a");
        let two = entered(2, "a");
        assert!(Rc::ptr_eq(&one, &reentered(1, "a").unwrap()));
        assert!(Rc::ptr_eq(&two, &reentered(2, "a").unwrap()));
        assert!(reenter(1, "b", Moment::now()).is_none());
        assert!(std::thread::spawn(|| reenter(1, "a", Moment::now()).is_none()).join().unwrap());
        assert!(matches!(two.leave(), Left::Inside(1)));
        assert_eq!((one.hold.depth(), two.hold.depth()), (2, 1));
    }

    #[test]
    fn a_lost_hold_is_not_entered_again_and_its_depth_stays() {
        let held = entered(1, "a");
        let _ = held.hold.lose(LostCause::Deleted);
        assert!(matches!(reentered(1, "a"), Err(Error::Lost { cause: LostCause::Deleted, .. })));
        assert_eq!(held.hold.depth(), 1);
    }

    #[test]
    fn the_depth_never_wraps() {
        let held = entered(1, "a");
        held.hold.set_depth(MAX_DEPTH);
        assert!(matches!(reentered(1, "a"), Err(Error::DepthOverflow { depth: MAX_DEPTH, .. })));
        assert_eq!(held.hold.depth(), MAX_DEPTH);
    }

    #[test]
    fn a_thread_that_ends_gives_up_its_turn_even_with_a_guard_forgotten() {
        let queues = Arc::new(WaitQueues::default());
        let theirs = Arc::clone(&queues);
        let thread = std::thread::spawn(move || {
            let hold = Arc::new(sample("a", Duration::from_secs(30), Moment::now()));
            let turn = theirs
                .join(hold.key.name(), &until(Moment::PAST), |_| false, |_| true, |_| (), || unreachable!())
                .unwrap();
            turn.holds(&hold);
            std::mem::forget(enter(1, hold, turn));
        });
        thread.join().unwrap();
        queues
            .join(&"a".into(), &until(Moment::PAST), |_| false, |_| true, |_| (), || unreachable!())
            .unwrap();
    }

    #[test]
    fn a_token_of_another_process_is_not_mine() {
        let held = entered(1, "a");
        let token = &held.hold.token;
        let pid = std::process::id();
        assert!(is_mine(token, pid));
        assert!(!is_mine(token, pid + 1), "a forked child's copy of the map");
        assert!(!is_mine("somebody-else", pid));
    }
}
