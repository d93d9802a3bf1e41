//! Values and tools that need no network: clock, keys, tokens, options, errors, counters, and
//! `sync`, with which unit tests control the order of threads.
//!
//! The lowest room. Its files may use each other, but nothing else of the crate.

pub(crate) mod stats;
pub(crate) mod emit;
pub(crate) mod stop;
pub(crate) mod options;
pub(crate) mod key;
pub(crate) mod error;
pub(crate) mod background;
pub(crate) mod owner;
pub(crate) mod backoff;
pub(crate) mod random;
pub(crate) mod clock;
pub(crate) mod sync;
#[cfg(test)]
pub(crate) mod garbled;
