//! Random numbers, each asked of the system.
//!
//! No state of a generator is kept in the process, so two copies of a process (a fork, a snapshot
//! of its machine) do not draw the same numbers. Nor is there a thread-local, which would be gone
//! where a destructor of the thread's locals uses it.

use std::io;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;

/// 128 random bits; an error where the system has none to give.
pub(crate) fn bits() -> io::Result<u128> {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

/// A span between these two. (The middle, where the system has no random bits to give: it is only
/// that waiters march in step.)
pub(crate) fn between(shortest: Duration, longest: Duration) -> Duration {
    let most = longest.saturating_sub(shortest);
    shortest + most.mul_f64(fraction())
}

/// Between zero and one.
pub(crate) fn fraction() -> f64 {
    SysRng.try_next_u32().map_or(0.5, |bits| f64::from(bits) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_drawn_from_the_whole_of_what_is_asked_for() {
        let (shortest, longest) = (Duration::from_millis(10), Duration::from_millis(20));
        let drawn: Vec<_> = (0..500).map(|_| between(shortest, longest)).collect();
        assert!(drawn.iter().all(|it| (shortest..=longest).contains(it)), "{drawn:?}");
        for part in 0..5 {
            let from = shortest + part * Duration::from_millis(2);
            let some = drawn.iter().any(|it| (from..from + Duration::from_millis(2)).contains(it));
            assert!(some, "nothing from {from:?} on");
        }
        assert_eq!(between(longest, longest), longest);
    }

    #[test]
    fn no_two_draws_are_alike() {
        assert_ne!(bits().unwrap(), bits().unwrap());
    }
}
