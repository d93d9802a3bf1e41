//! What a call that asks about a hold, or gives it back, may answer.

use crate::base::sync::scheduler::{now, trace};
use crate::simulation::judge::ledger;
use crate::simulation::judge::verdict::{Call, LATE};
use crate::simulation::judge::{self, Hold};
use crate::{Error, Unlocked};
use std::time::Duration;

impl Call {
    /// Something was asked for about a hold.
    pub(crate) fn answers(&self, number: Option<usize>, result: &Result<(), Error>) {
        trace(|| format!("{}: {result:?}", self.what));
        // What the thread holds through another manager has nothing to do with it.
        let is_mine = |number: &usize| judge::hold(*number).who.manager == self.who.manager;
        let held = || judge::held_by(self.who).into_iter().filter(is_mine);
        let mine = number.map_or_else(|| held().collect(), |number| vec![number]);
        // What was lost before the judge could be told of it.
        let is_of_this_call = |number: &&usize| self.keys.contains(&judge::hold(**number).key);
        let known = mine.iter().filter(is_of_this_call).count();
        let is_unknown = number.is_none() && known < self.keys.len();
        match result {
            // What asks the server each time gets `Ok` only from one that has the token.
            Ok(()) if matches!(self.what, "verify" | "confirm" | "confirm several") => {
                if mine
                    .iter()
                    .filter(is_of_this_call)
                    .any(|number| judge::is_nowhere(*number, self.began))
                {
                    self.blame("no server has the token");
                }
            }
            Ok(()) => {}
            Err(Error::Lost { .. }) if is_unknown => {}
            Err(error) => self.allows(error, &mine, false),
        }
    }

    /// The thread keeps the guard, because of this error.
    pub(crate) fn keeps(&self, number: usize, error: &Error) {
        self.ends(None);
        match error {
            Error::OtherGuards { depth, .. }
                if *depth > 1 && *depth == judge::hold(number).depth => {}
            Error::AlreadyHeld { .. } if self.has_one() => {}
            _ => self.allows(error, &[number], false),
        }
    }

    /// One of these holds may give this error. `is_release`: it has ended.
    pub(super) fn allows(&self, error: &Error, numbers: &[usize], is_release: bool) {
        let is_lost = numbers.iter().any(|number| judge::may_be_lost(*number));
        let left = |number: &usize| judge::left(*number) + Duration::from_nanos(now() - self.began);
        match error {
            // Nobody can be asked any more.
            Error::Unavailable { .. }
                if !is_release && numbers.iter().any(|number| left(number) < LATE * 5) => {}
            Error::Lost { .. } if is_lost => {}
            Error::OuterLost { .. } if is_release => self.has_lost(error),
            Error::Unconfirmed { .. } if is_release && (is_lost || self.has_trouble()) => {}
            Error::Unavailable { .. } | Error::Refused { .. }
                if !is_release && self.has_trouble() => {}
            Error::InvalidOption { .. }
                if !is_release
                    && numbers
                        .iter()
                        .any(|number| judge::hold(*number).deal.capped) => {}
            _ => self.blame(format!("{error:?}")),
        }
    }

    /// A guard was given back.
    pub(crate) fn gave_back(&self, number: usize, result: &Result<Unlocked, Error>) {
        let left = judge::ends(number);
        match result {
            Ok(Unlocked::Released) if left == 0 && !judge::hold(number).has_to_stay() => {
                self.is_gone(number, true);
            }
            Ok(Unlocked::Kept { .. }) if left == 0 && judge::hold(number).kept[1] >= self.began => {
                self.is_kept(number);
            }
            Ok(Unlocked::StillHeld { depth }) if *depth == left && left > 0 => {}
            Ok(_) => self.blame(format!("{result:?}, and {left} guards are left")),
            Err(error) => self.allows(error, &[number], true),
        }
    }

    /// A guard was dropped.
    pub(crate) fn dropped(&self, number: usize) {
        if judge::ends(number) == 0 && !judge::may_be_lost(number) {
            if judge::hold(number).has_to_stay() {
                self.is_kept(number);
            } else {
                self.is_gone(number, false);
            }
        }
    }

    /// A guard of several locks was dropped or, with a result, unlocked.
    pub(crate) fn gave_several_back(&self, numbers: &[usize], result: Option<Result<(), Error>>) {
        trace(|| format!("{}: {result:?}", self.what));
        let left: Vec<_> = numbers.iter().map(|number| judge::ends(*number)).collect();
        // What was lost before the judge could be told of it.
        let is_unknown = numbers.len() < self.keys.len();
        match result {
            None if is_unknown || numbers.iter().any(|number| judge::may_be_lost(*number)) => {}
            Some(Err(Error::Lost { .. } | Error::Unconfirmed { .. })) if is_unknown => {}
            Some(Err(error)) => self.allows(&error, numbers, true),
            _ => {
                let released = numbers.iter().zip(left).filter(|it| it.1 == 0);
                released.for_each(|it| self.is_gone(*it.0, result.is_some()));
            }
        }
    }

    /// The lock stays taken, though nobody holds it.
    pub(super) fn is_kept(&self, number: usize) {
        let Hold { key, token, .. } = judge::hold(number);
        if judge::hold(number).has_to_stay()
            && !ledger::had(key, now(), &format!("kept:{token}"))
            && !judge::was_removed(key, self.began)
            && !self.has_trouble()
        {
            self.blame(format!("hold {number} was kept, and its key is not"));
        }
    }

    /// The server does not have the token any more. Unless the caller `was_told`, an answer that is
    /// missing may have cost all the time that there is for the release.
    pub(super) fn is_gone(&self, number: usize, was_told: bool) {
        if ledger::has(judge::hold(number).key, &judge::hold(number).token)
            // An answer that a proxy repeats may come just before the release is executed.
            && !judge::was_removed(judge::hold(number).key, self.began)
            // A replica that becomes a master may have the key still.
            && (was_told && ledger::is_one() || !self.has_trouble())
        {
            self.blame(format!("hold {number} was released, and its key is there"));
        }
    }
}
