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
use crate::hold::Unlocked;
use crate::session::thread_map::{self, Held};
use crate::session::{Session, release};

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
        loop {
            let mut held = Vec::with_capacity(names.len());
            let mut entered = Ok(());
            for name in self.mine_first(names) {
                // Each wait begins now, and all end by one deadline. A single try has time for an
                // answer of its own for each lock, or many of them would be too slow for a link
                // that is well.
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
            // One of them may have been lost while this thread waited for another one. If this call
            // had taken it, no work was done under it, and the call begins anew while it may wait.
            let now = Moment::now();
            let lost = held.iter().find(|one| !one.hold.is_valid(now));
            let was_mine = lost.is_some_and(|one| one.hold.depth() == 1);
            let anew = was_mine && !whole.once && now < whole.deadline;
            let lost = lost.filter(|_| !was_mine || entered.is_ok());
            if let Err(mut error) = lost.map_or(entered, |one| one.hold.check(now)) {
                if let Error::Timeout { waited, .. } = &mut error {
                    *waited = now.since(whole.began);
                }
                self.undo_taking(&held, &error, self.undone_by(&whole));
                if anew {
                    continue;
                }
                return Err(error.while_holding(thread_map::names()));
            }
            for one in &held {
                one.hold.keep_at_least(keep, now);
            }
            held.sort_by(|one, other| one.hold.key.name().cmp(other.hold.key.name()));
            return Ok(held);
        }
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
        release::delete_all(&self.core.store, releases, deadline);
        let end = |(one, begun)| self.ends_to_leave(one, begun);
        held.iter().zip(begun).map(end).collect()
    }
}
