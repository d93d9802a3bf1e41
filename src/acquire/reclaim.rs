//! Taking the lock of a process that is gone.

use crate::acquire::claim::AcquireContext;
use crate::base::emit::info;
use crate::base::key::Key;
use crate::base::owner::holder::Holder;
use crate::store::Compared;

impl AcquireContext<'_> {
    /// True if the holder has certainly died, and the options allow this thread to take its lock
    /// over.
    pub(super) fn is_dead(&self, holder: &Holder) -> bool {
        let identity = &self.core.identity;
        self.reclaim_dead && identity.is_certainly_dead(&holder.raw)
    }

    /// Deletes the key of a dead holder, if the key still holds that holder's token. True if Redis
    /// says that it has done so. A lost answer does no harm: the next attempt finds out whether the
    /// key is gone.
    pub(super) fn reclaim(&self, holder: &Holder) -> bool {
        let AcquireContext { core, wait, .. } = self;
        let deadline = wait.patience.deadline;
        let key = wait.key.in_redis();
        // It may be the holder of the gate.
        let mut places = wait.key.places();
        places.extend(wait.key.gate().map(Key::in_redis));
        let removed = core
            .store
            .checkout(key, deadline)
            .and_then(|mut connection| connection.remove(&places, &holder.raw, deadline));
        let reclaimed = matches!(removed, Ok(Compared::Done));
        if reclaimed {
            core.counters.of(wait.key.name()).reclaimed.add(1);
            info!(
                target: "relatch::acquire",
                "lock {:?} was taken over from {holder}, a process that is gone", wait.key.name()
            );
        }
        reclaimed
    }
}
