//! The other processes that want the same lock, as far as a waiter has noticed.

use std::time::Duration;

use crate::holder::Holder;
use crate::random::one_in;

/// How long a waiter lets others hand the lock on among themselves before it looks again.
const GAP: Duration = Duration::from_micros(200);

/// What one waiter has seen of them so far.
#[derive(Debug, Default)]
pub(crate) struct Rivals {
    /// How often the lock went to another process meanwhile.
    overtaken: u32,
}

impl Rivals {
    /// Takes in who has the lock, and who had it before. True where it went from one thread of another process to the next;
    /// where it went to another process, the waiter was overtaken.
    pub(crate) fn hand_on(&mut self, holder: Option<&Holder>, before: Option<&Holder>) -> bool {
        let (Some(holder), Some(before)) = (holder, before) else {
            return false;
        };
        if holder.raw() == before.raw() {
            return false;
        }
        let same = match (holder.owner(), before.owner()) {
            (Some(one), Some(other)) => one.host() == other.host() && one.pid() == other.pid(),
            _ => false,
        };
        self.overtaken += u32::from(!same);
        same
    }

    /// How long to let them hand the lock on before looking again: whoever has been overtaken often looks sooner.
    pub(crate) fn gap(&self) -> Duration {
        GAP / (1 + self.overtaken / 4)
    }

    /// True where they go first: Redis wakes those who wait always in the same order, that of their connections. So whoever
    /// has not been overtaken yet gives way, one time in four: else the last of them would never have it, while two others
    /// take turns.
    pub(crate) fn come_first(&self) -> bool {
        self.overtaken == 0 && one_in(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(host: &str, pid: u32, thread: u32) -> Holder {
        Holder::new(format!("{host}-{pid}-{thread}-{}", "0".repeat(32)).as_bytes(), None)
    }

    #[test]
    fn a_lock_that_goes_to_another_process_has_overtaken_who_waits() {
        let foreign = |value: &str| Holder::new(value.as_bytes(), None);
        let one = holder("host", 1, 1);
        for (next, in_one_process, overtaken) in [
            (None, false, 0),
            (Some(holder("host", 1, 1)), false, 0),
            (Some(holder("host", 1, 2)), true, 0),
            (Some(holder("host", 2, 1)), false, 1),
            (Some(holder("other", 1, 1)), false, 1),
            (Some(foreign("somebody")), false, 1),
        ] {
            let mut rivals = Rivals::default();
            assert_eq!(rivals.hand_on(next.as_ref(), Some(&one)), in_one_process, "{next:?}");
            assert_eq!(rivals.overtaken, overtaken, "{next:?}");
            assert!(!rivals.hand_on(next.as_ref(), None), "nothing is known of before");
            assert_eq!(rivals.overtaken, overtaken);
        }
        let mut rivals = Rivals::default();
        for _ in 0..3 {
            assert!(!rivals.hand_on(Some(&foreign("one")), Some(&foreign("other"))));
        }
        assert_eq!(rivals.overtaken, 3);
    }

    #[test]
    fn whoever_has_been_overtaken_gives_way_no_more_and_looks_sooner() {
        let new = Rivals::default();
        assert!((0..200).any(|_| new.come_first()) && !(0..200).all(|_| new.come_first()));
        assert_eq!(new.gap(), GAP);
        let overtaken = Rivals { overtaken: 12 };
        assert!(!(0..200).any(|_| overtaken.come_first()));
        assert_eq!(overtaken.gap(), GAP / 4);
    }
}
