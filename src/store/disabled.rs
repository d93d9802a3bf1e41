//! A store that excludes nobody: each command has the answer that its caller hopes for.

use crate::base::sync::Mutex;
use crate::client::{AdoptReply, ClaimReply, Wanted};
use crate::store::memory::next_fence;

/// It has no keys.
#[derive(Debug, Default)]
pub(crate) struct DisabledStore {
    /// The fencing token that was given last.
    fence: Mutex<u64>,
}

impl DisabledStore {
    pub(super) fn claim(&self, wanted: Wanted<'_>) -> ClaimReply {
        ClaimReply::Taken {
            fence: self.fence(wanted),
        }
    }

    pub(super) fn adopt(&self, wanted: Wanted<'_>) -> AdoptReply {
        AdoptReply::Adopted {
            fence: self.fence(wanted),
        }
    }

    fn fence(&self, wanted: Wanted<'_>) -> Option<u64> {
        wanted.counter?;
        let mut last = self.fence.lock();
        *last = next_fence(*last);
        Some(*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disabled_store_grants_everything_and_a_fence_never_repeats() {
        let store = DisabledStore::default();
        let wanted = Wanted {
            key: "a",
            token: "one",
            lease: 60_000,
            counter: Some("counter"),
        };
        let ClaimReply::Taken { fence: Some(first) } = store.claim(wanted) else {
            panic!("it is not granted");
        };
        let AdoptReply::Adopted {
            fence: Some(second),
        } = store.adopt(wanted)
        else {
            panic!("it is not granted");
        };
        assert!(0 < first && first < second);
        let unfenced = Wanted {
            counter: None,
            ..wanted
        };
        let claim = store.claim(unfenced);
        assert!(matches!(claim, ClaimReply::Taken { fence: None }));
    }
}
