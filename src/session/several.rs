//! Several locks at a time.
//!
//! They are taken one after another, in the order of their keys, which all programs share. So two
//! callers never each hold a lock that the other waits for. A caller that waits for one of the
//! locks keeps those before it, and holds none after it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::hold::Unlocked;
use crate::session::release::Release;
use crate::session::thread_map::{self, Held};
use crate::session::{Leaving, Session, log_undone};
use crate::store::Store;
use crate::waiting::patience::Patience;

/// Takes all these locks, or none. `MultiLock` has sorted the names, and no two are the same.
pub(crate) fn enter(
    session: &Session,
    names: &[&str],
    options: &Options,
    stop: Option<&StopHandle>,
) -> Result<Vec<Rc<Held>>, Error> {
    let whole = Patience::new(&session.core.settings, options.wait, Moment::NEVER);
    // No lock is kept before all are taken. If one cannot be taken, the others are given back. But
    // a lock that was re-entered would stay held, with the time that this call had set.
    let each = &Options {
        keep_at_least: Duration::ZERO,
        ..*options
    };
    let mut held = Vec::with_capacity(names.len());
    // Each wait begins when the lock's turn comes, and all end by one deadline.
    let entered = mine_first(session, names).into_iter().try_for_each(|name| {
        held.push(session.enter(name.into(), each, stop, whole.deadline)?);
        Ok(())
    });
    let now = Moment::now();
    if let Err(mut error) = have_all(&held, entered, now) {
        if let Error::Timeout { waited, .. } = &mut error {
            *waited = now.since(whole.began);
        }
        let undone_by = whole.undone_by(&session.core.settings);
        undo(session, &held, &error, undone_by);
        return Err(error.while_holding(thread_map::names()));
    }
    for one in &held {
        one.hold.keep_at_least(options.keep_at_least, now);
    }
    held.sort_by(|one, other| one.hold.key.name().cmp(other.hold.key.name()));
    Ok(held)
}

/// Locks that this thread already has come first: if one is lost, nothing must be sent.
fn mine_first<'a>(session: &Session, names: &[&'a str]) -> Vec<&'a str> {
    let mut names = names.to_vec();
    names.sort_by_key(|name| thread_map::find(session.id, *name).is_none());
    names
}

/// One of these locks may have been lost while this thread waited for another. If this call had
/// taken it, no work was done under it, and the same call may succeed if repeated.
fn have_all(held: &[Rc<Held>], entered: Result<(), Error>, now: Moment) -> Result<(), Error> {
    let Some(lost) = held.iter().find(|one| !one.hold.is_valid(now)) else {
        return entered;
    };
    if lost.hold.depth() > 1 {
        return lost.hold.check(now);
    }
    if entered.as_ref().is_err_and(Error::is_timeout) {
        return entered;
    }
    Err(Error::Timeout {
        key: lost.hold.key.name().to_string(),
        waited: Duration::ZERO,
        holder: None,
        held: Vec::new(),
        source: Some("it was taken, and lost before the others were".into()),
    })
}

/// Takes one guard off each of these holds, and releases together those that have no other guard:
/// by the deadline, or within the response timeout if there is none. The results have the order of
/// `held`.
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

/// Gives back locks that this thread has just taken and must not have, because of `error`. Even a
/// lock that was to be kept is not: nobody has done the work for which it would be kept.
fn undo(session: &Session, held: &[Rc<Held>], error: &Error, deadline: Moment) {
    let new = held.iter().filter(|one| one.hold.depth() == 1);
    new.for_each(|one| one.hold.keep_nothing());
    let given_back = leave_all(session, held, Some(deadline)).into_iter();
    given_back.for_each(|it| log_undone(error, it));
}

/// Sends the first tries of these releases, those for each node in one round trip. Releases that
/// must be sent alone are left out: those that a claim follows, and those of kept locks.
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
        let holds = || releases.iter().map(|one| one.hold);
        let keys: Vec<_> = holds().map(|it| [it.key.in_redis()]).collect();
        let removals = keys.iter().zip(holds());
        let removals: Vec<_> = removals.map(|(key, it)| (&key[..], &*it.token)).collect();
        let Ok(mut server) = store.checkout(keys[0][0], deadline) else {
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

/// The deadline of one of several steps: a silent node leaves a quarter of the time to the others.
fn share(deadline: Moment, others_follow: bool) -> Moment {
    let now = Moment::now();
    if others_follow {
        now.after(deadline.since(now) / 4 * 3)
    } else {
        deadline
    }
}
