//! Operations on a held lock: extending its lease, and asking whether Redis still has it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause, TIME_IS_UP};
use crate::base::key::Name;
use crate::base::options::{Lease, Options, check_lease, invalid_option};
use crate::hold::Hold;
use crate::session::Session;
use crate::session::looking::Looking;
use crate::session::thread_map::{self, Held};
use crate::store::{Failure, Seen};

impl Session {
    /// Re-enters a lock only if this thread holds it. `None` if it does not, or cannot trust the
    /// hold.
    pub(crate) fn current(&self, name: Name<'_>) -> Option<Rc<Held>> {
        let now = Moment::now();
        self.core.own_process(now).ok()?;
        let again = thread_map::reenter(self.id, name, &Options::default(), now);
        let held = again.ok()??;
        self.core.counters.of(held.hold.key.name()).reentered.add(1);
        Some(held)
    }

    /// Returns an error if this thread does not hold a lock, or can no longer trust its hold.
    pub(crate) fn assert_held(&self, name: Name<'_>) -> Result<(), Error> {
        let now = Moment::now();
        self.core.own_process(now)?;
        let held = thread_map::find(self.id, name)
            .filter(|held| !held.is_waiting.get() && name.admits(&held.hold.key));
        let not_held = || Error::NotHeld {
            key: name.as_str().to_owned(),
        };
        held.ok_or_else(not_held)?.hold.check(now)
    }
}

/// The holds of a guard: one, or those of several locks. They are renewed together.
#[derive(Clone, Copy)]
pub(crate) struct Upkeep<'a> {
    pub(crate) session: &'a Session,
    pub(crate) held: &'a [Rc<Held>],
}

impl<'a> Upkeep<'a> {
    fn holds(self) -> impl Iterator<Item = &'a Arc<Hold>> {
        self.held.iter().map(|held| &held.hold)
    }

    /// Renews the holds now, however much is left of their leases, and makes sure that they can be
    /// trusted for `span` afterwards.
    pub(crate) fn confirm(self, span: Duration) -> Result<(), Error> {
        self.check("confirm", span)?;
        self.renew_for(span)
    }

    /// Makes sure that the holds can be trusted for `span`. If the lease of one ends sooner, renews
    /// all of them now: another hold that has just enough left would have too little when the
    /// answers come.
    pub(crate) fn ensure(self, span: Duration) -> Result<(), Error> {
        self.check("ensure", span)?;
        match self.ends_before(span) {
            Some(_) => self.renew_for(span),
            None => Ok(()),
        }
    }

    /// Returns an error if a hold cannot be trusted, or never can be for `span`.
    fn check(self, method: &'static str, span: Duration) -> Result<(), Error> {
        self.holds().try_for_each(|hold| {
            self.session.trust(hold)?;
            let now = Moment::now();
            if span > hold.lease().valid_until(now).since(now) {
                let reason = "the lease cannot be trusted for that long: call `set_lease` first";
                return Err(invalid_option(method, span, reason));
            }
            Ok(())
        })
    }

    /// The first hold that cannot be trusted for `span`.
    fn ends_before(self, span: Duration) -> Option<&'a Arc<Hold>> {
        let now = Moment::now();
        self.holds().find(|hold| hold.remaining(now) < span)
    }

    fn renew_for(self, span: Duration) -> Result<(), Error> {
        self.renew()?;
        self.ends_before(span).map_or(Ok(()), |hold| {
            let late = "the answer took so long that too little of the lease is left";
            Err(self.not_renewed(hold, Failure::NotSent(late.into())))
        })
    }

    /// Makes the keeper renew the holds now, and waits for all answers.
    pub(super) fn renew(self) -> Result<(), Error> {
        let Session { core, keeper, .. } = self.session;
        self.holds()
            .try_for_each(|hold| check_limit(hold, hold.lease()))?;
        let limit = core.settings.response_deadline();
        let until = |hold: &'a Arc<Hold>| (hold, limit.min(hold.valid_until()));
        let asked: Vec<_> = self.holds().map(until).collect();
        keeper.ask_to_renew(&asked)?;
        asked.into_iter().try_for_each(|(hold, deadline)| {
            let renewed = keeper.renewed(hold, deadline);
            // A loss says more than the reason why the renewal failed.
            hold.check(Moment::now())?;
            renewed.map_err(|failure| self.not_renewed(hold, failure))
        })
    }

    fn not_renewed(self, hold: &Hold, failure: Failure) -> Error {
        self.session.call_failed("renewing", &hold.key, failure)
    }

    /// Gives the holds a new lease, from now on.
    pub(crate) fn set_lease(self, lease: Duration) -> Result<(), Error> {
        let Session { core, keeper, .. } = self.session;
        check_lease("set_lease", lease, core.settings.max_lease)?;
        for hold in self.holds() {
            self.session.trust(hold)?;
            check_limit(hold, hold.first_lease)?; // The limit does not make any lease shorter.
            let (new, now) = (Lease::new(lease), Moment::now());
            if hold.limit_of(new, now).is_some() {
                let reason =
                    "`max_hold` does not leave that much time: a shorter lease extends the hold";
                return Err(invalid_option("set_lease", lease, reason));
            }
            hold.set_lease(new, now);
            keeper.renew_sooner(hold)?;
        }
        self.renew()
    }

    /// Asks Redis whether the keys still hold the tokens.
    pub(crate) fn verify(self) -> Result<(), Error> {
        self.holds().try_for_each(|hold| self.verify_one(hold))
    }

    fn verify_one(self, hold: &Hold) -> Result<(), Error> {
        let Upkeep { session, .. } = self;
        session.trust(hold)?;
        let known = hold.valid_until();
        let key = hold.key.clone();
        let (seen, sent) = Looking { session, key }.look("verifying")?;
        let answered = Moment::now();
        let cause = match seen {
            Seen::Somebody(holder) if *holder.raw == *hold.token => {
                // If the server's clock has stepped, the key may expire earlier than the lease that
                // was sent. Redis measured the time left between the question and its answer. So an
                // early end is certain if the key ends too early even when counted from the answer:
                // a slow answer alone is not a loss. In that case, the time left counts from the
                // question.
                let left = holder.remaining.map(Lease::new);
                if let Some(left) = left.filter(|left| left.valid_until(answered) < known) {
                    hold.shorten_to(left.valid_until(sent));
                    session.keeper.renew_sooner(hold)?;
                }
                return hold.check(Moment::now());
            }
            Seen::Somebody(_) | Seen::NotAString => LostCause::Taken,
            Seen::Nothing => {
                if hold.is_valid(Moment::now()) {
                    LostCause::Deleted
                } else {
                    LostCause::Expired
                }
            }
        };
        hold.mark_token_gone();
        let lost = hold.lose(cause);
        session.keeper.report_loss(hold);
        Err(lost)
    }
}

/// Returns an error if this lease would extend a hold past its `max_hold`.
fn check_limit(hold: &Hold, lease: Lease) -> Result<(), Error> {
    hold.limit_of(lease, Moment::now()).map_or(Ok(()), |limit| {
        Err(invalid_option("max_hold", limit, TIME_IS_UP))
    })
}
