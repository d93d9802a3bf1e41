//! The commands that take a lock, with or without a fencing token.

use crate::base::clock::Moment;
use crate::base::sync::seeded_bugs;
use crate::client::commands::compare::Holds as _;
use crate::client::commands::connection::{ServerConnection, next};
use crate::client::commands::replicas::{ReplicaWait, left_behind};
use crate::client::commands::reply::{AdoptReply, ClaimReply, Tracking, read_adoption, read_set};
use crate::client::commands::runs::Runs;
use crate::client::commands::wanted::{Goal, Wanted, set};
use crate::client::wire::failure::{Failure, accept_change};
use crate::client::wire::resp::{Batch, Reply};

/// Taking a lock.
pub(crate) trait Claims {
    /// One attempt to take a lock: `SET key token NX PX lease`, or a script if the hold is to have
    /// a fencing token. If replicas have to acknowledge the lock, it is taken only once they have.
    fn claim(&mut self, wanted: Wanted<'_>, deadline: Moment) -> Result<ClaimReply, Failure>;

    /// An attempt that also learns who has the lock, if it is busy. If `listener` is given, Redis
    /// sends that listener an invalidation when the key changes.
    fn claim_or_look(
        &mut self,
        wanted: Wanted<'_>,
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure>;

    /// One attempt to take a lock over from the holder of the token `old`: compare and swap. If
    /// replicas have to acknowledge the lock, it counts only once they have. If too few do, the key
    /// keeps the new token. The attempt may be repeated. The fencing token, if one is wanted, is
    /// larger than `least_fence`.
    fn adopt(
        &mut self,
        old: &str,
        least_fence: u64,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<AdoptReply, Failure>;
}

impl Claims for ServerConnection {
    fn claim(&mut self, wanted: Wanted<'_>, deadline: Moment) -> Result<ClaimReply, Failure> {
        if wanted.is_plain() && !self.asking {
            let set = Batch::of(&set(wanted.key, wanted.token, &wanted.times()[0]));
            let mut reply = next(&mut self.exchange(&set, deadline)?.into_iter());
            if seeded_bugs::is_in("takes a redirect for success")
                && matches!(&reply, Reply::Error(error) if error.is_redirect())
            {
                reply = Reply::Ok;
            }
            if !self.follow(&reply, deadline)? {
                let claim = accept_change(reply).and_then(|reply| read_set(&reply));
                return settled(self, wanted, claim, deadline);
            }
        }
        self.claim_or_look(wanted, None, deadline)
            .map(|(reply, _)| reply)
    }

    fn claim_or_look(
        &mut self,
        wanted: Wanted<'_>,
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        let times = wanted.times();
        let (script, args) = wanted.script(&times);
        let keys = wanted.keys();
        let calls = [(&*keys, &*args)];
        let runs = Runs {
            listener,
            ..Runs::of(script, &calls)
        };
        let (mut replies, tracking) = runs.send(self, deadline)?;
        let claim = wanted.read_script(accept_change(replies.remove(0)));
        let claim = settled(self, wanted, script.explained(claim), deadline)?;
        Ok((claim, tracking))
    }

    fn adopt(
        &mut self,
        old: &str,
        least_fence: u64,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<AdoptReply, Failure> {
        let times = wanted.times();
        let least_fence = least_fence.to_string();
        let (script, args) = wanted.adoption(old, &least_fence, &times);
        let read = |reply| read_adoption(reply, wanted.token, wanted.counter.is_some());
        let reply = script.invoke(self, &wanted.keys(), &args, deadline, read)?;
        if matches!(reply, AdoptReply::Adopted { .. })
            && let Some(wait) = ReplicaWait::new(&self.lent.node, deadline)
        {
            let acknowledged = wait.for_lock(self, deadline);
            acknowledged.map_err(|failure| left_behind(failure, None))?;
        }
        Ok(reply)
    }
}

/// The result of an attempt, if the replicas agree. If too few do, deletes the key again.
///
/// The second round trip is sent only for a lock that was free. If `WAIT` went out after each
/// `SET`, a try that finds the lock busy would wait until the replicas have the writes of other
/// clients.
fn settled(
    connection: &mut ServerConnection,
    wanted: Wanted<'_>,
    claim: Result<ClaimReply, Failure>,
    deadline: Moment,
) -> Result<ClaimReply, Failure> {
    let claim = connection.judged(claim)?;
    if !matches!(claim, ClaimReply::Taken { .. }) || matches!(wanted.goal, Goal::NoSlot { .. }) {
        return Ok(claim);
    }
    let wait = ReplicaWait::new(&connection.lent.node, deadline);
    let wait = wait.filter(|_| !seeded_bugs::is_in("waits for no replica"));
    match wait.map_or(Ok(()), |wait| wait.for_lock(connection, deadline)) {
        Ok(()) => Ok(claim),
        Err(failure @ Failure::Unanswered { .. }) => Err(failure),
        Err(failure) => Err(
            match connection.remove(&wanted.places(), wanted.token, deadline) {
                Ok(_) => failure,
                Err(removal) => left_behind(removal, Some(&failure)),
            },
        ),
    }
}
