//! Whom to believe of the sentinels that are asked who is the master.

use crate::base::clock::Moment;
use crate::base::sync::Mutex;
use crate::client::servers::sentinel::epochs::Epochs;
use crate::client::servers::sentinel::named::NamedMaster;
use crate::client::wire::failure::Failure;

/// The sentinels are asked one after the other.
pub(super) struct Poll<'a> {
    epochs: &'a Mutex<Epochs>,
    /// Of the answers that are out of date, the newest.
    outdated: Option<NamedMaster>,
    /// A sentinel has not answered.
    has_gap: bool,
}

impl<'a> Poll<'a> {
    pub(super) fn new(epochs: &'a Mutex<Epochs>) -> Poll<'a> {
        Poll {
            epochs,
            outdated: None,
            has_gap: false,
        }
    }

    /// Takes in what one sentinel answered. `None` if that does not count: the sentinel does not
    /// know the master, or is out of date.
    pub(super) fn hear(
        &mut self,
        answer: Result<Option<NamedMaster>, Failure>,
    ) -> Result<Option<NamedMaster>, Failure> {
        self.has_gap |= answer.is_err();
        let Some(named) = answer? else {
            return Ok(None);
        };
        let place = named.place.to_string();
        if self.epochs.lock().is_outdated(&place, named.epoch) {
            keep_newer(&mut self.outdated, named);
            return Ok(None);
        }
        Ok(Some(named))
    }

    /// Believes the answer that was `found`, which is up to date. Without one, believes what is out
    /// of date, if no sentinel can know better.
    pub(super) fn believe(
        self,
        found: Result<NamedMaster, Failure>,
    ) -> Result<NamedMaster, Failure> {
        // Or the time was over before all were asked.
        let has_gap = self.has_gap || matches!(found, Err(Failure::OutOfTime(_)));
        let mut epochs = self.epochs.lock();
        let now = Moment::now();
        match (found, self.outdated) {
            (Ok(named), _) => {
                epochs.note(named.epoch, now);
                Ok(named)
            }
            (Err(_), Some(outdated)) if !has_gap || epochs.is_old(now) => {
                epochs.begin_anew(outdated.epoch.unwrap_or_default(), now);
                Ok(outdated)
            }
            (Err(failure), _) => Err(failure),
        }
    }
}

/// Puts `named` in the place of `kept`, if its epoch is newer.
pub(super) fn keep_newer(kept: &mut Option<NamedMaster>, named: NamedMaster) {
    if kept.as_ref().is_none_or(|kept| kept.epoch < named.epoch) {
        *kept = Some(named);
    }
}
