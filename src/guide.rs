//! The pages of the guide. They are also in the folder `docs` of the
//! [repository](https://github.com/relatch/relatch).
//!
//! | page | what it is about |
//! |---|---|
//! | [choosing] | a lock with a lease, or something else; which Redis; when a fence |
//! | [guarantees] | what a program sees of its locks, whatever fails |
//! | [threads] | thread pools, rayon, async code, forks and exits |
//! | [fencing] | how a resource refuses a holder that comes back too late |
//! | [engines] | one server, Sentinel, replicas, Cluster: what each survives, and how to set it up |
//! | [operations] | the Redis user, settings, monitoring, a stuck lock |
//! | [testing] | tests without a Redis |
//! | [coming_from] | from Redisson, Spring, ShedLock, redis-py or `flock` |
//!
//! [What is not promised](crate#what-is-not-promised) is on the first page.

// Prose names products, such as PostgreSQL.
#![allow(clippy::doc_markdown)]

// In front of each page, `guide.md` defines its links anew: in `docs`, they lead to files. The first
// definition of a link counts.

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/choosing.md")]
pub mod choosing {}

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/threads.md")]
pub mod threads {}

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/fencing.md")]
pub mod fencing {}

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/engines.md")]
pub mod engines {}

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/operations.md")]
pub mod operations {}

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

#[doc = include_str!("guide.md")]
#[doc = include_str!("../docs/coming-from.md")]
pub mod coming_from {}
