//! Several locks at a time.
//!
//! They are taken one after the other, in the order of their keys, which all programs share. So two
//! callers never each hold what the other waits for. A caller that waits for one of the locks keeps
//! those before it, and holds none behind it.

use std::rc::Rc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::base::options::Options;
use crate::hold::Unlocked;
use crate::keeping::thread_map::{self, Held};
use crate::session::Session;
use crate::waiting::patience::{Patience, SLOW_ANSWER};

impl Session {
    /// Takes all these locks, or none. The names are sorted, and no two are the same.
    pub(crate) fn enter_all(
        &self,
        names: &[&str],
        options: &Options,
        limit: Option<Duration>,
    ) -> Result<Vec<Rc<Held>>, Error> {
        let (patience, mut held) = (self.patience(limit), Vec::with_capacity(names.len()));
        let entered = self.enter_each(names, options, &patience, &mut held);
        // One of them may have been lost while this thread waited for another one.
        let lost = held.iter().find_map(|one| one.hold.check(Moment::now()).err());
        if let Err(error) = lost.map_or(entered, Err) {
            // The limit of the call counts for this, too. What is not answered by then, the keeper
            // goes on with.
            let soon = patience.deadline.max(Moment::now().after(SLOW_ANSWER));
            for also in
                self.leave_all(&held, soon.min(self.one_release())).into_iter().filter_map(Result::err)
            {
                debug!(target: "relatch::release", "giving back what was taken before {error}: {also}");
            }
            return Err(error);
        }
        held.sort_by(|one, other| one.hold.key.name().cmp(other.hold.key.name()));
        Ok(held)
    }

    /// Takes the locks, and adds each to `held` as soon as this thread has it.
    fn enter_each(
        &self,
        names: &[&str],
        options: &Options,
        patience: &Patience,
        held: &mut Vec<Rc<Held>>,
    ) -> Result<(), Error> {
        let is_mine = |name: &&&str| thread_map::find(self.id, name).is_some();
        let (mine, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_mine(name));
        // What this thread has already comes first: if it is lost, nothing is to be sent.
        for name in mine.into_iter().chain(others) {
            held.push(self.enter(name.into(), options, patience, None)?);
        }
        Ok(())
    }

    /// Takes one guard off each of these holds, and releases those that have no other, all of them
    /// by the deadline. The results have the order of `held`.
    ///
    /// Each release gets an equal share of the time that is left: the node of one may be silent.
    pub(crate) fn leave_all(&self, held: &[Rc<Held>], deadline: Moment) -> Vec<Result<Unlocked, Error>> {
        let mut to_release = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let leave = |one: &Rc<Held>| {
            let now = Moment::now();
            let share = deadline.since(now) / to_release;
            to_release -= 1;
            self.leave(one, now.after(share))
        };
        held.iter().map(leave).collect()
    }
}
