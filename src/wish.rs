//! What a thread that waits wants Redis to hold for it: the thread in front may ask for it with its
//! release.

use crate::clock::Moment;
use crate::options::Lease;

/// A token, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) token: String,
    pub(crate) lease: Lease,
}

/// What became of a wish that went out behind the release of the thread in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// It did not go out, or somebody else had the lock by then: Redis does not hold it.
    Nothing,
    /// Redis holds it.
    Taken { sent: Moment, answered: Moment },
    /// It went out at this moment and had no answer: Redis may hold it, or may yet. The token is
    /// not to be used again, and has to be cleaned up.
    Spoilt { sent: Moment },
}
