//! A reentrant distributed lock on Redis, for programs that block.

// The modules in reading order, which is the order of the layers: each uses only those below it.
mod installed;
mod builder;
mod manager;
mod lock;
mod request;
mod guard;
mod session;
mod release;
mod acquire;
mod holds;
mod queue;
mod hold;
mod store;
mod backoff;
mod options;
mod key;
mod error;
mod holder;
mod owner;
mod process;
mod clock;

pub use crate::builder::Builder;
pub use crate::error::{Error, LostCause};
pub use crate::guard::{LockGuard, Unlocked};
pub use crate::holder::Holder;
pub use crate::installed::{install, installed, with_lock};
pub use crate::lock::Lock;
pub use crate::manager::LockManager;
pub use crate::owner::Owner;
