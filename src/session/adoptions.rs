//! What is under way beside the queues: a shutdown waits for it.

use crate::base::sync::Mutex;

/// An adoption, or the release of what was adopted, is under way until this is dropped. No queue
/// knows of it, so the manager counts them.
#[derive(Debug)]
pub(super) struct UnderWay<'a>(&'a Mutex<usize>);

impl UnderWay<'_> {
    pub(super) fn begin(count: &Mutex<usize>) -> UnderWay<'_> {
        *count.lock() += 1;
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
    }
}
