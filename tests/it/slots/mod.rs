//! Locks with several holders at a time.

// At most so many holders, and none of the slots is lost.
pub(crate) mod semaphore;
// Readers beside each other, and a writer alone.
pub(crate) mod read_write;
