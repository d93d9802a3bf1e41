//! What a thread that waits wants Redis to hold for it: so that somebody else can ask for it in the meantime.

use crate::clock::Moment;
use crate::options::Lease;

/// A token, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) token: String,
    pub(crate) lease: Lease,
}

/// What became of a wish that went out behind the release of whoever was in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// It did not go out, or somebody else had the lock by then: Redis does not hold it.
    Nothing,
    /// Redis holds it.
    Taken { sent: Moment, answered: Moment },
    /// It went out and no answer came, nor will any: Redis may hold it, or may yet.
    Astray { sent: Moment },
    /// No answer came in time, and its removal was sent behind it: the token is not to be used again.
    Spoilt,
}
