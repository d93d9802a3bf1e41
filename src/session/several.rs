//! Several locks at a time.
//!
//! They are taken one after the other, in the order of their keys, which all programs share. So two
//! callers never each hold what the other waits for. A caller that waits for one of the locks keeps
//! those before it, and holds none behind it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::hold::Unlocked;
use crate::session::Session;
use crate::session::release::Release;
use crate::session::thread_map::{self, Held};
use crate::store::Store;

impl Session {
    /// Takes all these locks, or none. `MultiLock` has sorted the names, and no two are the same.
    pub(crate) fn enter_all(
        &self,
        names: &[&str],
        options: &Options,
        limit: Option<Duration>,
        stop: Option<&StopHandle>,
    ) -> Result<Vec<Rc<Held>>, Error> {
        let whole = self.patience(limit);
        // No lock is kept before all are taken. If one cannot be taken, the others are given back.
        // But a lock that was re-entered stays held, with the time that this call would have set.
        let keep = options.keep_at_least;
        let options = &Options {
            keep_at_least: Duration::ZERO,
            ..*options
        };
        let mut held = Vec::with_capacity(names.len());
        let mut entered = Ok(());
        for name in self.mine_first(names) {
            // Each wait begins now, and all end by one deadline. A single try has the time of an
            // answer for each lock, or many would be too slow for a link that is well.
            let mut patience = self.patience(limit);
            if !patience.once {
                patience.deadline = whole.deadline;
            }
            match self.enter(name.into(), options, &patience, stop) {
                Ok(one) => held.push(one),
                Err(error) => {
                    entered = Err(error);
                    break;
                }
            }
        }
        let now = Moment::now();
        // One of them may have been lost while this thread waited for another one. If this call had
        // taken it, no work was done under it, and the same call may succeed.
        let lost = held.iter().find(|one| !one.hold.is_valid(now));
        let entered = match lost {
            Some(one) if one.hold.depth() > 1 => one.hold.check(now),
            Some(one) if !entered.as_ref().is_err_and(Error::is_timeout) => Err(Error::Timeout {
                key: one.hold.key.name().to_string(),
                waited: Duration::ZERO,
                holder: None,
                held: Vec::new(),
                source: Some("it was taken, and lost before the others were".into()),
            }),
            _ => entered,
        };
        if let Err(mut error) = entered {
            if let Error::Timeout { waited, .. } = &mut error {
                *waited = now.since(whole.began);
            }
            self.undo_taking(&held, &error, self.undone_by(&whole));
            return Err(error.while_holding(thread_map::names()));
        }
        for one in &held {
            one.hold.keep_at_least(keep, now);
        }
        held.sort_by(|one, other| one.hold.key.name().cmp(other.hold.key.name()));
        Ok(held)
    }

    /// What this thread has already comes first: if it is lost, nothing is to be sent.
    fn mine_first<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        let mut names = names.to_vec();
        names.sort_by_key(|name| thread_map::find(self.id, name).is_none());
        names
    }

    /// Takes one guard off each of these holds, and releases those that have no other, together.
    /// The results have the order of `held`.
    pub(crate) fn leave_all(
        &self,
        held: &[Rc<Held>],
        deadline: Moment,
    ) -> Vec<Result<Unlocked, Error>> {
        let begin = |one| self.begins_to_leave(one, deadline);
        let mut begun: Vec<_> = held.iter().map(begin).collect();
        let releases = begun.iter_mut().flatten().flatten();
        delete_all(&self.core.store, releases, deadline);
        let mut left = held.len();
        let mut results = Vec::with_capacity(left);
        for (one, mut begun) in held.iter().zip(begun) {
            left -= 1;
            if let Ok(Some(release)) = &mut begun {
                release.deadline = share(deadline, left > 0);
            }
            results.push(self.ends_to_leave(one, begun));
        }
        results
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
