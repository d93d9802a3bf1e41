//! What is under way beside the queues: a shutdown waits for it.

use crate::base::sync::Mutex;
use crate::waiting::queues::Turn;

/// The adoptions and releases of a manager that are under way, and that no queue knows of.
#[derive(Debug, Default)]
pub(super) struct Adoptions {
    count: Mutex<usize>,
}

/// An adoption, or the release of what was adopted, is under way until this is dropped.
pub(super) struct UnderWay<'a>(&'a Adoptions);

impl Adoptions {
    pub(super) fn begin(&self) -> UnderWay<'_> {
        *self.count.lock() += 1;
        UnderWay(self)
    }

    /// The release of a hold with this turn is under way. A turn in a queue says that itself.
    pub(super) fn release(&self, turn: &Turn) -> Option<UnderWay<'_>> {
        turn.is_outside().then(|| self.begin())
    }

    pub(super) fn are_under_way(&self) -> bool {
        *self.count.lock() > 0
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
    }
}
