//! What a program does with a held lock: extend its lease, and ask whether Redis still has it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause, TIME_IS_UP};
use crate::base::key::Name;
use crate::base::options::{Lease, Options, check_lease, invalid_option};
use crate::hold::Hold;
use crate::session::Session;
use crate::session::thread_map::{self, Held};
use crate::store::{Failure, Seen};

impl Session {
    /// Re-enters a lock that this thread holds, and no other. `None` if it cannot trust the hold.
    pub(crate) fn current(&self, name: Name<'_>) -> Option<Rc<Held>> {
        let now = Moment::now();
        self.core.own_process(now).ok()?;
        let again = thread_map::reenter(self.id, name.as_str(), &Options::default(), now);
        let held = again.ok()??;
        self.core.counters.of(held.hold.key.name()).reentered.add(1);
        Some(held)
    }

    /// Returns an error if this thread does not hold a lock, or can no longer trust its hold.
    pub(crate) fn assert_held(&self, name: Name<'_>) -> Result<(), Error> {
        match thread_map::find(self.id, name.as_str()) {
            Some(held) => self.trust(&held.hold),
            None => self.core.own_process(Moment::now()).and_then(|()| {
                Err(Error::NotHeld {
                    key: name.as_str().to_owned(),
                })
            }),
        }
    }

    /// Has Redis renew a hold now, whatever is left of its lease, and makes sure that the hold can
    /// be trusted for `span` then.
    pub(crate) fn confirm(&self, hold: &Arc<Hold>, span: Duration) -> Result<(), Error> {
        self.trust(hold)?;
        Self::check_span("confirm", hold, span)?;
        self.push(hold)?;
        self.has_left(hold, span)
    }

    /// Makes sure that a hold can be trusted for `span`. Renews the hold now if its lease ends
    /// sooner.
    pub(crate) fn ensure(&self, hold: &Arc<Hold>, span: Duration) -> Result<(), Error> {
        self.trust(hold)?;
        Self::check_span("ensure", hold, span)?;
        if hold.remaining(Moment::now()) >= span {
            return Ok(());
        }
        self.push(hold)?;
        self.has_left(hold, span)
    }

    /// [`confirm`](Session::confirm) for several holds, which are renewed together.
    pub(crate) fn confirm_all(&self, held: &[Rc<Held>], span: Duration) -> Result<(), Error> {
        for held in held {
            self.trust(&held.hold)?;
            Self::check_span("confirm", &held.hold, span)?;
        }
        self.push_all(held.iter().map(|held| &held.hold))?;
        held.iter()
            .try_for_each(|held| self.has_left(&held.hold, span))
    }

    /// [`ensure`](Session::ensure) for several holds: if one of them ends too soon, all are renewed
    /// together. A hold that has just enough left would have too little when the answers come.
    pub(crate) fn ensure_all(&self, held: &[Rc<Held>], span: Duration) -> Result<(), Error> {
        for held in held {
            self.trust(&held.hold)?;
            Self::check_span("ensure", &held.hold, span)?;
        }
        let now = Moment::now();
        if held.iter().all(|held| held.hold.remaining(now) >= span) {
            return Ok(());
        }
        self.confirm_all(held, span)
    }

    fn check_span(method: &'static str, hold: &Hold, span: Duration) -> Result<(), Error> {
        let now = Moment::now();
        if span > hold.lease().valid_until(now).since(now) {
            let reason = "it is longer than the lease can be trusted: call `set_lease` first";
            return Err(invalid_option(method, span, reason));
        }
        Ok(())
    }

    /// Returns an error if a hold that was just renewed cannot be trusted for `span`.
    fn has_left(&self, hold: &Hold, span: Duration) -> Result<(), Error> {
        if hold.remaining(Moment::now()) >= span {
            return Ok(());
        }
        let late =
            Failure::NotSent("the answer took so long that too little of the lease is left".into());
        Err(self.call_failed("renewing", &hold.key, late))
    }

    /// Gives a hold another lease, from now on.
    pub(crate) fn set_lease(&self, hold: &Arc<Hold>, lease: Duration) -> Result<(), Error> {
        check_lease("set_lease", lease, self.core.settings.max_lease)?;
        self.trust(hold)?;
        check_limit(hold, hold.first_lease)?; // No lease is shorter for this.
        let (new, now) = (Lease::new(lease), Moment::now());
        if hold.limit_of(new, now).is_some() {
            let reason = "`max_hold` does not leave so much time: a shorter lease extends the hold";
            return Err(invalid_option("set_lease", lease, reason));
        }
        hold.set_lease(new, now);
        self.keeper.renew_sooner(hold)?;
        self.push(hold)
    }

    /// Has the keeper renew a hold now, and waits for the answer.
    pub(super) fn push(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        self.push_all([hold].into_iter())
    }

    /// Has the keeper renew these holds now, and waits for all answers.
    fn push_all<'a>(
        &self,
        holds: impl Iterator<Item = &'a Arc<Hold>> + Clone,
    ) -> Result<(), Error> {
        holds
            .clone()
            .try_for_each(|hold| check_limit(hold, hold.lease()))?;
        let limit = self.core.settings.response_deadline();
        let asked: Vec<_> = holds
            .map(|hold| (hold, limit.min(hold.valid_until())))
            .collect();
        self.keeper.ask_to_renew(&asked)?;
        for (hold, deadline) in asked {
            let pushed = self.keeper.renewed(hold, deadline);
            // A loss says more than the reason for which the renewal failed.
            hold.check(Moment::now())?;
            pushed.map_err(|failure| self.call_failed("renewing", &hold.key, failure))?;
        }
        Ok(())
    }

    /// Asks Redis whether the key still holds the token.
    pub(crate) fn verify(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        self.trust(hold)?;
        let known = hold.valid_until();
        let (seen, sent) = self.look("verifying", &hold.key)?;
        let answered = Moment::now();
        let cause = match seen {
            Seen::Somebody(holder) if *holder.raw == *hold.token => {
                // If the server's clock has stepped, the key may expire earlier than the lease that
                // was sent. Redis measured the time left between the question and its answer. So
                // that is certain if the key ends too early even counted from the answer: a slow
                // answer alone is no loss. Then the time left counts from the question.
                let left = holder.remaining.map(Lease::new);
                let too_early = left.filter(|left| left.valid_until(answered) < known);
                if too_early.is_some_and(|left| hold.shorten_to(left.valid_until(sent))) {
                    self.keeper.renew_sooner(hold)?;
                }
                return hold.check(Moment::now());
            }
            Seen::Nothing if !hold.is_valid(Moment::now()) => LostCause::Expired,
            Seen::Nothing => LostCause::Deleted,
            Seen::Somebody(_) | Seen::NotAString => LostCause::Taken,
        };
        hold.mark_token_gone();
        let lost = hold.lose(cause);
        self.keeper.report_loss(hold);
        Err(lost)
    }
}

/// Returns an error if this lease would extend a hold past its `max_hold`.
fn check_limit(hold: &Hold, lease: Lease) -> Result<(), Error> {
    hold.limit_of(lease, Moment::now()).map_or(Ok(()), |limit| {
        Err(invalid_option("max_hold", limit, TIME_IS_UP))
    })
}
