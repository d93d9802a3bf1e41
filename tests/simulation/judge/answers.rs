//! What calls may return.

use std::time::Duration;

use crate::base::sync::scheduler::{as_process, now, trace};
use crate::simulation::judge::calls::{Call, LATE};
use crate::simulation::judge::excuses::{Excuse, Excuses};
use crate::simulation::judge::{Hold, Judge};
use crate::simulation::plan::{Body, key_of};
use crate::{Error, Unlocked};

/// An error of a closure under a lock.
#[derive(Debug)]
pub(crate) enum Failed {
    Lock(Error),
    Own,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Lock(error)
    }
}

/// How a closure under a lock has ended.
pub(crate) struct Ran {
    pub(crate) has_begun: bool,
    /// The hold, if the judge knows it.
    pub(crate) number: Option<usize>,
    pub(crate) body: Body,
    /// `None`: it has panicked.
    pub(crate) result: Option<Result<Option<()>, Failed>>,
}

impl Judge {
    /// The loss of any of these holds.
    fn losses(&self, numbers: &[usize]) -> Excuses {
        numbers
            .iter()
            .map(|number| self.loss(*number, None))
            .collect()
    }
}

/// What a call gives that takes a lock.
impl Call<'_> {
    /// What the call has given.
    pub(crate) fn got<T>(&self, taken: Result<Option<T>, Error>) -> Option<T> {
        trace(|| match &taken {
            Ok(Some(_)) => format!("{}: taken", self.what),
            Ok(None) => format!("{}: busy", self.what),
            Err(error) => format!("{}: {error:?}", self.what),
        });
        match taken {
            Ok(Some(taken)) => {
                self.has_got();
                return Some(taken);
            }
            Ok(None) => self.was_busy(),
            Err(Error::InvalidOption { .. }) if self.keys.is_empty() => {}
            Err(error) => self.has_failed(&error),
        }
        None
    }

    /// The call has given no lock.
    fn has_failed(&self, error: &Error) {
        match error {
            // A lock of a set was lost before the others were taken.
            Error::Timeout {
                source: Some(why), ..
            } if why.to_string().contains("lost before") => self.has_lost(error),
            Error::Timeout { .. } => self.was_busy(),
            Error::Unavailable { .. } | Error::Refused { .. } => {
                self.allows_if(self.trouble(), error);
            }
            Error::WouldDeadlock { .. } => self.is_deadlock(error),
            Error::Stopped { .. } if self.was_stopped() => {
                // Somebody may have removed what it had got by then, and `on_lost` is told.
                if !self.removal().is_empty() {
                    self.judge.undone(self.who);
                }
            }
            Error::AlreadyHeld { .. } if self.has_one() => {}
            Error::Lost { .. } | Error::OuterLost { .. } | Error::NothingToAdopt { .. } => {
                self.has_lost(error);
            }
            _ => self.blame(format!("{error:?}")),
        }
    }

    fn allows_if(&self, excuses: Excuses, error: &Error) {
        if !self.judge.forgives(excuses) {
            self.blame(format!("{error:?}"));
        }
    }

    /// The call says that a hold was lost, or one around it.
    fn has_lost(&self, error: &Error) {
        let judge = self.judge;
        // The judge may not know the outer one: it was lost before it was told of it.
        let outer = match error {
            Error::OuterLost { outer, .. } => judge.removal(key_of(outer), self.began),
            _ => Excuses::NONE,
        };
        let excuses = judge.losses(&judge.held_by(self.who))
            | self.removal()
            | outer
            | self.trouble()
            | self.lacks_parcel()
            // A set takes its locks one after the other, and may lose the first meanwhile, which
            // the judge does not know.
            | judge.release_of(self.who)
            | if self.keys.len() > 1 { self.expiry } else { Excuses::NONE };
        self.allows_if(excuses, error);
        judge.undone(self.who);
    }

    /// Why a parcel may be gone, or in other hands.
    fn lacks_parcel(&self) -> Excuses {
        let (judge, Some(parcel)) = (self.judge, self.parcel) else {
            return Excuses::NONE;
        };
        Excuse::Adopted.when(parcel.is_copied)
            | Excuse::OldParcel.when(parcel.until < now())
            | judge.removal(self.keys[0], parcel.began)
            | judge.trouble(parcel.began, now())
            | judge.pause_of(self.who.process, parcel.began)
    }

    /// A closure under the lock has run, or not. `holds`: whether the thread holds anything.
    pub(crate) fn ran(&self, it: Ran, holds: impl Fn() -> bool) {
        let judge = self.judge;
        let (ran, number, body) = (it.has_begun, it.number, it.body);
        let left = number.map(|number| judge.ends(number));
        let loss = || number.map_or(Excuse::LostInASet.when(true), |it| judge.loss(it, None));
        let Some(result) = it.result else {
            if !ran || body != Body::Panics {
                self.blame("it panicked");
            }
            return;
        };
        let mut held = judge.held_by(self.who).into_iter();
        let begun = ran || held.any(|it| !judge.hold(it).is_detached);
        if let Err(Failed::Lock(error)) = &result
            && (begun && !error.body_ran() && !matches!(error, Error::InvalidOption { .. })
                || !begun && error.body_ran() && !error.is_lost() && !holds())
        {
            self.blame(format!("body_ran is {} for {error:?}", error.body_ran()));
        }
        match (result, ran) {
            (Ok(Some(())), true) => {
                if left == Some(0)
                    && let Some(number) = number
                {
                    self.is_gone(number, false, loss());
                }
            }
            (Err(Failed::Own), true) if body == Body::Fails => {}
            (Err(Failed::Lock(error @ Error::Lost { .. })), true) => {
                self.allows_if(loss(), &error);
            }
            (Err(Failed::Lock(error @ Error::OuterLost { .. })), true) => self.has_lost(&error),
            (Ok(None), false) => self.was_busy(),
            (Err(Failed::Lock(error)), false) => self.has_failed(&error),
            (other, _) => self.blame(format!("it ran: {ran}, and returned {other:?}")),
        }
    }
}

/// What a call answers that asks about a hold, or gives it back.
impl Call<'_> {
    /// Something was asked for about a hold.
    pub(crate) fn answers(&self, number: Option<usize>, result: &Result<(), Error>) {
        trace(|| format!("{}: {result:?}", self.what));
        let judge = self.judge;
        // What the thread holds through another manager has nothing to do with it.
        let is_mine = |number: &usize| judge.hold(*number).who.manager == self.who.manager;
        let held = || judge.held_by(self.who).into_iter().filter(is_mine);
        let mine = number.map_or_else(|| held().collect(), |number| vec![number]);
        // What was lost before the judge could be told of it.
        let is_of_this_call = |number: &&usize| self.keys.contains(&judge.hold(**number).key);
        let known = mine.iter().filter(is_of_this_call);
        let is_unknown = number.is_none() && known.clone().count() < self.keys.len();
        let is_asked = matches!(self.what, "verify" | "confirm" | "confirm several");
        match result {
            // What asks the server each time gets `Ok` only from one that has the token.
            Ok(()) if is_asked => known.for_each(|number| self.is_somewhere(*number)),
            Ok(()) => {}
            Err(error) => {
                if number.is_some() {
                    self.knows_of_hold(error);
                }
                let loss = Excuse::LostInASet.when(is_unknown && error.is_lost());
                self.allows(error, &mine, loss, false);
            }
        }
    }

    /// The thread held a lock when the error was made.
    fn knows_of_hold(&self, error: &Error) {
        if !error.body_ran() && !matches!(error, Error::InvalidOption { .. }) {
            self.blame(format!("body_ran is false for {error:?}"));
        }
    }

    /// The hold is not valid, or a server has had its token since this call began.
    fn is_somewhere(&self, number: usize) {
        let hold = self.judge.hold(number);
        let had = self
            .judge
            .ledger
            .with(|it| it.had(hold.key, self.began, &hold.token));
        if !had && hold.seems_valid() {
            let removal = self.judge.removal(hold.key, self.began);
            if !self.judge.forgives(removal) {
                self.blame("no server has the token");
            }
        }
    }

    /// The thread keeps the guard, because of this error.
    pub(crate) fn keeps(&self, number: usize, error: &Error) {
        self.ends(None);
        match error {
            Error::OtherGuards { depth, .. }
                if *depth > 1 && *depth == self.judge.hold(number).depth => {}
            Error::AlreadyHeld { .. } if self.has_one() => {}
            _ => {
                self.knows_of_hold(error);
                self.allows(error, &[number], Excuses::NONE, false);
            }
        }
    }

    /// One of these holds may give this error. `is_release`: it has ended.
    fn allows(&self, error: &Error, numbers: &[usize], more: Excuses, is_release: bool) {
        let judge = self.judge;
        let loss = || judge.losses(numbers) | more;
        let spent = Duration::from_nanos(now() - self.began);
        let is_at_its_end = |number: &usize| {
            let hold = judge.hold(*number);
            as_process(hold.who.process, || hold.watch.remaining()) + spent < LATE * 5
        };
        let is_changed = |number: &usize| judge.hold(*number).is_changed;
        let excuses = match error {
            // Nobody can be asked any more.
            Error::Unavailable { .. } | Error::Refused { .. } if !is_release => {
                // A shorter lease may be hardly longer than the span that is to be confirmed.
                let is_short = self.what.starts_with("confirm") && numbers.iter().any(is_changed);
                let is_at_its_end = is_short || numbers.iter().any(is_at_its_end);
                self.trouble() | Excuse::LastMoments.when(is_at_its_end)
            }
            Error::Lost { .. } => loss(),
            Error::OuterLost { .. } if is_release => return self.has_lost(error),
            Error::Unconfirmed { .. } if is_release => loss() | self.trouble(),
            // Its lease may be too short by now.
            Error::InvalidOption { .. } if !is_release && numbers.iter().any(is_changed) => return,
            Error::InvalidOption { .. } if !is_release => {
                let caps = numbers.iter().map(|number| judge.hold(*number).terms.ends);
                caps.collect::<Excuses>() & Excuse::Capped.when(true)
            }
            _ => Excuses::NONE,
        };
        self.allows_if(excuses, error);
    }

    /// A guard was given back.
    pub(crate) fn gave_back(&self, number: usize, result: &Result<Unlocked, Error>) {
        let left = self.judge.ends(number);
        let hold = self.judge.hold(number);
        match result {
            Ok(Unlocked::Released) if left == 0 && !hold.has_to_stay() => {
                self.is_gone(number, true, Excuses::NONE);
            }
            Ok(Unlocked::Kept { .. }) if left == 0 && hold.kept[1] >= self.began => {
                self.is_kept(number, Excuses::NONE);
            }
            Ok(Unlocked::StillHeld { depth }) if *depth == left && left > 0 => {}
            Ok(_) => self.blame(format!("{result:?}, and {left} guards are left")),
            Err(error) => {
                if let Error::Unconfirmed { at_most, .. } = error {
                    self.stays_at_most(&hold, *at_most);
                }
                self.allows(error, &[number], Excuses::NONE, true);
            }
        }
    }

    /// The key of a release without an answer ends by then.
    fn stays_at_most(&self, hold: &Hold, span: Duration) {
        let judge = self.judge;
        let at = now() + u64::try_from((span + span / 50 + LATE * 25).as_nanos()).expect("a lease");
        let runs_out = judge.ledger.with(|it| it.runs_out(hold.key, &hold.token));
        let excuses = judge.trouble(hold.began, now()) & Excuse::ClockStep.when(true);
        if runs_out > at && !judge.forgives(excuses | judge.removal(hold.key, hold.began)) {
            self.blame(format!("its key stays for longer than {span:?}"));
        }
    }

    /// A guard was dropped.
    pub(crate) fn dropped(&self, number: usize) {
        if self.judge.ends(number) > 0 {
            return;
        }
        let loss = self.judge.loss(number, None);
        if self.judge.hold(number).has_to_stay() {
            self.is_kept(number, loss);
        } else {
            self.is_gone(number, false, loss);
        }
    }

    /// A guard of several locks was dropped or, with a result, unlocked.
    /// `was_lost`: Redis did not have the token of one any more.
    pub(crate) fn gave_several_back(
        &self,
        numbers: &[usize],
        was_lost: bool,
        result: Option<Result<(), Error>>,
    ) {
        trace(|| format!("{}: {result:?}", self.what));
        let judge = self.judge;
        if was_lost
            && let Some(result) = &result
            && !matches!(result, Err(Error::Lost { .. }))
        {
            self.blame(format!("one was lost, and all together are {result:?}"));
        }
        let left: Vec<_> = numbers.iter().map(|number| judge.ends(*number)).collect();
        // What was lost before the judge could be told of it.
        let unknown = Excuse::LostInASet.when(numbers.len() < self.keys.len());
        match result {
            Some(Err(error)) => self.allows(&error, numbers, unknown, true),
            result => {
                let loss = result.is_none().then(|| judge.losses(numbers) | unknown);
                let released = numbers.iter().zip(left).filter(|it| it.1 == 0);
                released.for_each(|it| {
                    self.is_gone(*it.0, loss.is_none(), loss.unwrap_or_default());
                });
            }
        }
    }

    /// The lock stays taken, though nobody holds it.
    fn is_kept(&self, number: usize, loss: Excuses) {
        let Hold { key, token, .. } = self.judge.hold(number);
        let kept = format!("kept:{token}");
        if self.judge.hold(number).has_to_stay()
            && !self.judge.ledger.with(|it| it.had(key, now(), &kept))
            && !self.judge.forgives(loss | self.removal() | self.trouble())
        {
            self.blame(format!("hold {number} was kept, and its key is not"));
        }
    }

    /// The server does not have the token any more. Unless the caller `was_told`, an answer that is
    /// missing may have cost all the time that there is for the release.
    fn is_gone(&self, number: usize, was_told: bool, loss: Excuses) {
        let Hold { key, token, .. } = self.judge.hold(number);
        if !self.judge.ledger.with(|it| it.has(key, &token)) {
            return;
        }
        // A replica that becomes a master may have the key still.
        let trouble = self.trouble();
        let trouble = if was_told {
            self.judge.may_come_back(trouble)
        } else {
            trouble
        };
        // An answer that a proxy repeats may come just before the release is executed.
        let removal = self.judge.removal(key, self.began);
        if !self.judge.forgives(loss | removal | trouble) {
            self.blame(format!("hold {number} was released, and its key is there"));
        }
    }
}
