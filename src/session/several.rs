//! Several locks at a time.
//!
//! They are taken one after the other, in the order of their keys, which all programs share. So two
//! callers never each hold what the other waits for. A caller that waits for one of the locks keeps
//! those before it, and holds none behind it.

use std::rc::Rc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::session::thread_map::{self, Held};
use crate::session::{Session, leaving};
use crate::waiting::patience::Patience;

/// Takes all these locks, or none. `MultiLock` has sorted the names, and no two are the same.
pub(crate) fn enter(
    session: &Session,
    names: &[&str],
    options: &Options,
    stop: Option<&StopHandle>,
) -> Result<Vec<Rc<Held>>, Error> {
    let whole = Patience::new(&session.core.settings, options.wait, Moment::NEVER);
    // Each wait begins when its turn comes, and all end by one deadline. A single try has the time
    // of an answer for each lock, or many would be too slow for a link that is well.
    let latest = if whole.once {
        Moment::NEVER
    } else {
        whole.deadline
    };
    // No lock is kept before all are taken. If one cannot be taken, the others are given back. But
    // a lock that was re-entered stays held, with the time that this call would have set.
    let each = &Options {
        keep_at_least: Duration::ZERO,
        ..*options
    };
    let mut held = Vec::with_capacity(names.len());
    let entered = mine_first(session, names).into_iter().try_for_each(|name| {
        held.push(session.enter(name.into(), each, stop, latest)?);
        Ok(())
    });
    let now = Moment::now();
    if let Err(mut error) = have_all(&held, entered, now) {
        if let Error::Timeout { waited, .. } = &mut error {
            *waited = now.since(whole.began);
        }
        let undone_by = whole.undone_by(&session.core.settings);
        leaving::undo(session, &held, &error, undone_by);
        return Err(error.while_holding(thread_map::names()));
    }
    for one in &held {
        one.hold.keep_at_least(options.keep_at_least, now);
    }
    held.sort_by(|one, other| one.hold.key.name().cmp(other.hold.key.name()));
    Ok(held)
}

/// What this thread has already comes first: if it is lost, nothing is to be sent.
fn mine_first<'a>(session: &Session, names: &[&'a str]) -> Vec<&'a str> {
    let mut names = names.to_vec();
    names.sort_by_key(|name| thread_map::find(session.id, name).is_none());
    names
}

/// One of these locks may have been lost while this thread waited for another one. If this call had
/// taken it, no work was done under it, and the same call may succeed.
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
