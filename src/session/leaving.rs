//! Taking guards off holds, and giving back the locks that have no other guard: one, or several at
//! a time.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::hold::Unlocked;
use crate::session::Session;
use crate::session::release::Release;
use crate::session::thread_map::{Held, still_has_outer};
use crate::store::Store;
use crate::waiting::queues::Turn;

/// A guard on its way off a hold.
pub(super) struct Leaving<'a> {
    held: &'a Rc<Held>,
    /// `None` if the hold has other guards.
    release: Option<Result<Release<'a>, Error>>,
}

impl<'a> Leaving<'a> {
    /// Takes the guard off. If it is the last one, begins to give the lock back by the deadline:
    /// see [`Release::begin`].
    pub(super) fn begin(
        session: &'a Session,
        held: &'a Rc<Held>,
        deadline: Option<Moment>,
    ) -> Leaving<'a> {
        // The thread's map comes first. If the hold stayed there during the release, a destructor
        // that takes the lock meanwhile would re-enter a hold that is being released.
        let other_guards = held.leave();
        let release = (other_guards == 0).then(|| {
            let turn = held.take_out().unwrap_or_else(|| {
                // The thread is ending: the map is gone, and the turn with it.
                Turn::outside(&session.core.queues, held.hold.key.name())
            });
            let handoff = session.core.settings.local_handoff();
            Release::begin(&session.keeper, &held.hold, turn, handoff, deadline)
        });
        Leaving { held, release }
    }

    /// Gives the lock back, if this was the last guard.
    pub(super) fn finish(self) -> Result<Unlocked, Error> {
        let Some(release) = self.release else {
            let depth = self.held.hold.depth();
            return Ok(Unlocked::StillHeld { depth });
        };
        let released = release.and_then(Release::finish);
        self.held.span.outcome(match &released {
            Ok(Unlocked::Kept { .. }) => "kept",
            Ok(_) => "released",
            Err(Error::Lost { .. }) => "lost",
            Err(_) => "unconfirmed",
        });
        if let Ok(_) | Err(Error::Unconfirmed { .. }) = &released {
            // What causes a missing answer may have cost the outer lock, too.
            still_has_outer(self.held)?;
        }
        released
    }
}

/// Takes one guard off each of these holds, and releases those that have no other, together: by the
/// deadline, or else within the time of an answer. The results have the order of `held`.
pub(crate) fn leave_all(
    session: &Session,
    held: &[Rc<Held>],
    deadline: Option<Moment>,
) -> Vec<Result<Unlocked, Error>> {
    let deadline = deadline.unwrap_or_else(|| session.core.settings.response_deadline());
    let begin = |one| Leaving::begin(session, one, Some(deadline));
    let mut all: Vec<_> = held.iter().map(begin).collect();
    let releases = all.iter_mut().filter_map(|one| one.release.as_mut());
    delete_all(&session.core.store, releases.flatten(), deadline);
    let mut left = all.len();
    let finish = |mut one: Leaving<'_>| {
        left -= 1;
        if let Some(Ok(release)) = &mut one.release {
            release.deadline = share(deadline, left > 0);
        }
        one.finish()
    };
    all.into_iter().map(finish).collect()
}

/// Gives back locks that this thread has just taken and must not have, because of `error`. A lock
/// that was to be kept is not: nobody has done what it is kept for.
pub(super) fn undo(session: &Session, held: &[Rc<Held>], error: &Error, deadline: Moment) {
    let new = held.iter().filter(|one| one.hold.depth() == 1);
    new.for_each(|one| one.hold.keep_nothing());
    for also in leave_all(session, held, Some(deadline))
        .into_iter()
        .filter_map(Result::err)
    {
        debug!(target: "relatch::release", "giving back after {error}: {also}");
    }
}

/// Sends the first tries of these releases, those for each node in one round trip. What goes out
/// alone is left out: what has a claim behind it, and what is kept.
fn delete_all<'e, 'a: 'e>(
    store: &Store,
    all: impl Iterator<Item = &'e mut Release<'a>>,
    deadline: Moment,
) {
    let mut by_node = BTreeMap::<_, Vec<_>>::new();
    let mut some_go_alone = false;
    for one in all {
        if one.kept_until.is_some() || one.next.is_some() {
            some_go_alone = true;
        } else if let Some(node) = store.node_of(one.hold.key.in_redis()) {
            by_node.entry(node.number).or_default().push(one);
        }
    }
    let mut nodes = by_node.len();
    for releases in by_node.into_values() {
        nodes -= 1;
        let deadline = share(deadline, nodes > 0 || some_go_alone);
        let holds = releases.iter().map(|one| one.hold);
        let removals: Vec<_> = holds.map(|it| (it.key.in_redis(), &*it.token)).collect();
        let Ok(mut server) = store.checkout(removals[0].0, deadline) else {
            continue;
        };
        let mut answers = server.remove_all(&removals, deadline).map(Vec::into_iter);
        let now = Moment::now();
        for one in releases {
            one.answered = answers.is_ok().then_some(now);
            one.first = match &mut answers {
                Ok(answers) => answers.next(),
                Err(failure) => Some(Err(failure.copy())),
            };
        }
    }
}

/// The deadline of one step of several: a silent node leaves a quarter of the time to the others.
fn share(deadline: Moment, others_follow: bool) -> Moment {
    let now = Moment::now();
    if others_follow {
        now.after(deadline.since(now) / 4 * 3)
    } else {
        deadline
    }
}
