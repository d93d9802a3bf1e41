//! Tables whose keys are short: the names of locks, and numbers.
//!
//! A cycle of lock and unlock looks up its key seven times. With the hash of the standard
//! library, that would be a fifth of the instructions of a cycle in memory.

use std::collections;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A `HashMap` that hashes faster.
pub(crate) type HashMap<K, V> = collections::HashMap<K, V, Seed>;

/// Where each hash of a table starts. It is random, so that those who choose the names of locks do
/// not know which of them are neighbours in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64);

impl Default for Seed {
    fn default() -> Seed {
        Seed(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for Seed {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding(self.0)
    }
}

/// Multiplies each word into the hash, and folds the upper half of the product into the lower one,
/// as wyhash does.
#[derive(Debug)]
pub(crate) struct Folding(u64);

/// An odd number whose bits are evenly spread: the golden ratio's first 64 digits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Folding {
    #[inline]
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves are wanted")]
        let (low, high) = (product as u64, (product >> 64) as u64);
        self.0 = (low ^ high).wrapping_add(FACTOR);
    }
}

impl Hasher for Folding {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        // Texts of zeros differ by their length alone.
        self.0 = self.0.wrapping_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        match bytes.last_chunk() {
            Some(_) if rest.is_empty() => {}
            Some(last) => self.add(u64::from_le_bytes(*last)),
            None => self.add(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))),
        }
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.add(u64::from(number));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.add(u64::try_from(number).unwrap_or(u64::MAX));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hash;

    use super::*;

    /// How many of `keys` have the same hash as another one, and how many different values the
    /// upper seven and the lower seven bits have, by which a table looks.
    fn spread<T: Hash>(keys: impl Iterator<Item = T>) -> (usize, usize, usize) {
        let seed = Seed::default();
        let hashes: Vec<u64> = keys.map(|key| seed.hash_one(key)).collect();
        let kinds = |of: fn(&u64) -> u64| hashes.iter().map(of).collect::<HashSet<_>>().len();
        (hashes.len() - kinds(|it| *it), kinds(|it| it >> 57), kinds(|it| it & 127))
    }

    #[test]
    fn keys_that_differ_little_have_hashes_that_are_spread() {
        assert_eq!(spread(0..10_000_u64), (0, 128, 128));
        assert_eq!(spread((0..10_000_u64).map(|n| n << 40)), (0, 128, 128));
        assert_eq!(spread((0..10_000).map(|n| format!("lock:orders:{n}"))), (0, 128, 128));
        assert_eq!(spread((0..10_000).map(|n| format!("{n:08}:a-common-end-of-many-keys"))), (0, 128, 128));
        assert_eq!(spread((0..2000).map(|n| "\0".repeat(n))), (0, 128, 128));
        assert_eq!(spread((0..2000).map(|n| vec![0_u8; n].into_boxed_slice())), (0, 128, 128));
    }

    #[test]
    fn a_shared_name_has_the_hash_of_its_text() {
        let seed = Seed::default();
        let (name, key) = (std::sync::Arc::<str>::from("orders:42"), "orders:42".to_owned());
        assert_eq!(seed.hash_one(&name), seed.hash_one(key.as_str()));
        assert_ne!(Seed(1).hash_one("a"), Seed(2).hash_one("a"), "the seed counts");
    }
}
