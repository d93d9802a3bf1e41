//! Random numbers from the system.
//!
//! A fork or a snapshot of the machine would also copy a generator inside the process, and both
//! copies would draw the same token. Such a generator would also be a thread-local, which may be
//! gone when the destructor of another thread-local takes a lock.

use std::io;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;

/// 128 random bits.
pub(crate) fn bits() -> io::Result<u128> {
    #[cfg(test)]
    if let Some(bits) = crate::base::sync::scheduler::random_bits() {
        return Ok(bits);
    }
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

/// A random duration between `shortest` and `longest`.
///
/// If the system has no random bits, the result is the middle. That is good enough: the duration
/// only keeps waiters from acting at the same moment.
pub(crate) fn between(shortest: Duration, longest: Duration) -> Duration {
    let most = longest.saturating_sub(shortest);
    shortest + most.mul_f64(fraction())
}

/// A random number from zero to below one. One half if the system has no random bits.
pub(crate) fn fraction() -> f64 {
    #[cfg(test)]
    if let Some(fraction) = crate::base::sync::scheduler::random_fraction() {
        return fraction;
    }
    SysRng
        .try_next_u32()
        .map_or(0.5, |bits| f64::from(bits) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_drawn_from_the_whole_range() {
        let (shortest, longest) = (Duration::from_millis(10), Duration::from_millis(20));
        let drawn: Vec<_> = (0..500).map(|_| between(shortest, longest)).collect();
        assert!(
            drawn.iter().all(|it| (shortest..=longest).contains(it)),
            "{drawn:?}"
        );
        for part in 0..5 {
            let from = shortest + part * Duration::from_millis(2);
            let some = drawn
                .iter()
                .any(|it| (from..from + Duration::from_millis(2)).contains(it));
            assert!(some, "nothing from {from:?} on");
        }
        assert_eq!(between(longest, longest), longest);
    }
}
