//! What this thread holds, and how deep: the thread's own map, which no other thread can see.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Moment;
use crate::error::Error;
use crate::hold::Hold;
use crate::owner::Owner;
use crate::queue::Turn;

/// A million guards of one lock in one thread are a leak, not a design; and the count never wraps.
const MAX_DEPTH: u32 = 1 << 20;

thread_local! {
    /// By the key's name; in each, one hold per manager (there is nearly always just one).
    ///
    /// No function here calls out while the map is borrowed. When the thread ends, what is left in it is
    /// dropped: turns go on to the next in line, and nothing is sent.
    static HOLDS: RefCell<HashMap<Arc<str>, Vec<Held>>> = RefCell::default();
}

/// A hold and how many guards of it are alive.
struct Held {
    manager: u64,
    hold: Arc<Hold>,
    depth: u32,
    turn: Turn,
}

/// What became of a hold when one of its guards went.
#[derive(Debug)]
pub(crate) enum Left {
    /// Other guards are alive: so many.
    Inside(u32),
    /// It was the last. The turn is the caller's to end, after the release.
    Outside(Turn),
    /// The thread is ending and its map is gone: nothing can be said, and nothing may be sent.
    Unknown,
}

/// Takes a hold that this thread already has once more, if it has it.
///
/// `Err(Lost)` where it can no longer be trusted; the depth is unchanged then.
pub(crate) fn reenter(manager: u64, name: &str, now: Moment) -> Option<Result<Arc<Hold>, Error>> {
    with(|holds| {
        let held = holds.get_mut(name)?.iter_mut().find(|held| held.manager == manager)?;
        if let Err(lost) = held.hold.check(now) {
            return Some(Err(lost));
        }
        if held.depth == MAX_DEPTH {
            return Some(Err(Error::DepthOverflow { key: name.to_owned(), depth: held.depth }));
        }
        held.depth += 1;
        Some(Ok(Arc::clone(&held.hold)))
    })?
}

/// Enters a new hold, one deep.
pub(crate) fn enter(manager: u64, hold: &Arc<Hold>, turn: Turn) {
    // Where the thread is ending, the turn is dropped and the hold is left to its lease.
    with(|holds| {
        let held = Held { manager, hold: Arc::clone(hold), depth: 1, turn };
        holds.entry(Arc::clone(hold.key().name())).or_default().push(held);
    });
}

/// Takes one guard off a hold.
pub(crate) fn leave(hold: &Arc<Hold>) -> Left {
    let left = with(|holds| {
        let name = hold.key().name();
        let of_name = holds.get_mut(name)?;
        let place = of_name.iter().position(|held| Arc::ptr_eq(&held.hold, hold))?;
        of_name[place].depth -= 1;
        if of_name[place].depth > 0 {
            return Some(Left::Inside(of_name[place].depth));
        }
        let held = of_name.swap_remove(place);
        if of_name.is_empty() {
            holds.remove(name);
        }
        Some(Left::Outside(held.turn))
    });
    left.flatten().unwrap_or(Left::Unknown)
}

/// How many guards of a hold are alive.
pub(crate) fn depth(hold: &Arc<Hold>) -> u32 {
    let depth = with(|holds| {
        let of_name = holds.get(hold.key().name())?;
        of_name.iter().find(|held| Arc::ptr_eq(&held.hold, hold)).map(|held| held.depth)
    });
    depth.flatten().unwrap_or(0)
}

/// True if a token that stands in Redis is of a hold of this thread, through whichever manager.
pub(crate) fn is_mine(token: &str, pid: u32) -> bool {
    // A forked child finds its parent's holds in the map: not its own.
    let of_this_process = || Owner::parse(token).is_some_and(|owner| owner.pid() == pid);
    let in_map = with(|holds| holds.values().flatten().any(|held| held.hold.token() == token));
    in_map.unwrap_or(false) && of_this_process()
}

/// `None` where the thread is ending and the map is gone.
fn with<T>(use_holds: impl FnOnce(&mut HashMap<Arc<str>, Vec<Held>>) -> T) -> Option<T> {
    HOLDS.try_with(|holds| use_holds(&mut holds.borrow_mut())).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::LostCause;
    use crate::hold::tests::sample;
    use crate::queue::Queue;

    fn entered(manager: u64, name: &str) -> Arc<Hold> {
        let hold = Arc::new(sample(name, Duration::from_secs(30), Moment::now()));
        let turn = Arc::new(Queue::default()).join(hold.key().name(), Moment::PAST).unwrap();
        enter(manager, &hold, turn);
        hold
    }

    fn reentered(manager: u64, name: &str) -> Result<Arc<Hold>, Error> {
        reenter(manager, name, Moment::now()).expect("held")
    }

    #[test]
    fn depth_counts_the_guards_of_a_hold() {
        let hold = entered(1, "a");
        assert!(Arc::ptr_eq(&hold, &reentered(1, "a").unwrap()));
        assert_eq!(depth(&hold), 2);
        assert!(matches!(leave(&hold), Left::Inside(1)));
        assert!(matches!(leave(&hold), Left::Outside(_)));
        assert_eq!(depth(&hold), 0);
        assert!(reenter(1, "a", Moment::now()).is_none());
        HOLDS.with(|holds| assert!(holds.borrow().is_empty(), "nothing is kept of what is not held"));
    }

    #[test]
    fn managers_keys_and_threads_are_kept_apart() {
        let one = entered(1, "a");
        let two = entered(2, "a");
        assert!(Arc::ptr_eq(&one, &reentered(1, "a").unwrap()));
        assert!(Arc::ptr_eq(&two, &reentered(2, "a").unwrap()));
        assert!(reenter(1, "b", Moment::now()).is_none());
        assert!(std::thread::spawn(|| reenter(1, "a", Moment::now()).is_none()).join().unwrap());
        leave(&two);
        assert_eq!((depth(&one), depth(&two)), (2, 1));
    }

    #[test]
    fn a_lost_hold_is_not_entered_again_and_its_depth_stays() {
        let hold = entered(1, "a");
        let _ = hold.lose(LostCause::Deleted);
        assert!(matches!(reentered(1, "a"), Err(Error::Lost { cause: LostCause::Deleted, .. })));
        assert_eq!(depth(&hold), 1);
    }

    #[test]
    fn the_depth_never_wraps() {
        let hold = entered(1, "a");
        HOLDS.with(|holds| holds.borrow_mut().get_mut("a").unwrap()[0].depth = MAX_DEPTH);
        assert!(matches!(reentered(1, "a"), Err(Error::DepthOverflow { depth: MAX_DEPTH, .. })));
        assert_eq!(depth(&hold), MAX_DEPTH);
    }

    #[test]
    fn a_token_of_another_process_is_not_mine() {
        let hold = entered(1, "a");
        assert!(is_mine(hold.token(), 1)); // The sample's process id.
        assert!(!is_mine(hold.token(), 2), "a forked child's copy of the map");
        assert!(!is_mine("somebody-else", 1));
    }
}
