//! The commands that go over a connection to a server, and what their replies mean.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::holder::Holder;
use crate::base::seeded_bugs;
use crate::store::failure::Failure;
use crate::store::node::Node;
use crate::store::replicas::{Wait, left_behind};
use crate::store::reply::{
    AdoptReply, ClaimReply, Compared, Seen, Tracking, accepted, adopted, allowed, compared, deleted,
    extended, seen, tracking, unexpected, was_set,
};
use crate::store::resp::{Batch, Reply};
use crate::store::route::{Route, next, redirection};
use crate::store::router::Router;
use crate::store::script::{DELETE, FORCE, KEEP, LOOK, LOOK_FENCED, RELEASE, RENEW, Script};
use crate::store::tracking::TrackingConnection;
use crate::store::wanted::{Wanted, set};

/// A borrowed connection.
///
/// Each command waits for its reply until the deadline, but no longer than the response timeout.
/// The first command may have less time (`Link::limit`).
///
/// If the node answers that another node of a cluster has the slot of the key, this becomes a
/// connection to that node, and the command is sent again. A command that was redirected was not
/// executed, so the last node to which a command was sent is the only one that may execute it.
pub(crate) struct ServerConnection {
    route: Route,
}

/// A lease that is to be extended, if the key still holds the token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a str,
    pub(crate) lease: u64,
}

/// Opens a connection for invalidations of this node's keys. `probe` is a key that nobody else
/// uses, or the beginning of one: it is changed, to make sure that its invalidation comes.
pub(super) fn listen(
    router: &Arc<Router>,
    node: &Arc<Node>,
    probe: &str,
) -> Result<TrackingConnection, Failure> {
    let probe = router.key_at(node, probe).ok_or_else(|| Failure::not_sent("the node has no slots"))?;
    let mut tracking = router.noting(node.open_tracking())?;
    let route = Route::pinned(router, node, Moment::NEVER).map_err(Failure::of_an_attempt)?;
    let until = Moment::now().after(node.common.response_timeout);
    if let Err(failure) = ServerConnection::new(route).change(&probe, tracking.id, until) {
        // If the master was replaced in between, the new one does not know the listener. And a slot
        // of a cluster may have moved.
        let redirects = |refusal| router.redirected(refusal, node).is_some();
        let passes =
            tracking.has_ended() || matches!(&failure, Failure::Refused(refusal) if redirects(refusal));
        return Err(if passes { failure.of_an_attempt() } else { failure });
    }
    node.hears(&mut tracking, &probe)?;
    Ok(tracking)
}

impl ServerConnection {
    pub(super) fn new(route: Route) -> ServerConnection {
        ServerConnection { route }
    }

    /// The node at the other end.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.route.node
    }

    /// Notes that Redis may have ended the connection before its next use.
    pub(crate) fn doubt(&mut self) {
        if let Some(link) = &mut self.route.link {
            link.doubt();
        }
    }

    /// True if the connection must not be used again.
    pub(crate) fn is_over(&self) -> bool {
        self.route.link.as_ref().is_none_or(|link| link.is_over())
    }

    /// True if the idle connection is known to have ended. Does not wait.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.route.link.as_mut().is_none_or(|link| link.has_ended())
    }

    /// One attempt to take a lock: `SET key token NX PX lease`, or a script if the hold is to have
    /// a fencing token. If replicas have to acknowledge the lock, it is taken only once they have.
    pub(crate) fn claim(&mut self, wanted: Wanted<'_>, deadline: Moment) -> Result<ClaimReply, Failure> {
        if wanted.counter.is_none() && !self.route.asking {
            let set = Batch::of(&set(wanted.key, wanted.token, &wanted.times()[0]));
            let mut reply = next(&mut self.route.exchange(&set, deadline)?.into_iter());
            if seeded_bugs::is_in("takes a redirect for success") && redirection(&reply).is_some() {
                reply = Reply::Ok;
            }
            if !self.route.follow(&reply, deadline)? {
                let claim = accepted(reply).and_then(|reply| was_set(&reply));
                return self.settled(wanted, claim, deadline);
            }
        }
        self.claim_or_look(wanted, None, deadline).map(|(reply, _)| reply)
    }

    /// An attempt that also learns who has the lock, if it is busy. If `listener` is given, Redis
    /// sends that listener an invalidation when the key changes.
    pub(crate) fn claim_or_look(
        &mut self,
        wanted: Wanted<'_>,
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        let times = wanted.times();
        let (script, args) = wanted.script(&times);
        let add = |batch: Batch, _, teach| batch.and(&script.command(teach, wanted.key, &args));
        let (replies, tracking) = self.route.run_all(listener, 1, add, None, deadline)?;
        let claim = wanted.told(accepted(next(&mut replies.into_iter())));
        let claim = claim.map_err(|failure| script.explain(failure));
        Ok((self.settled(wanted, claim, deadline)?, tracking))
    }

    /// The result of an attempt, if the replicas agree.
    fn settled(
        &mut self,
        wanted: Wanted<'_>,
        claim: Result<ClaimReply, Failure>,
        deadline: Moment,
    ) -> Result<ClaimReply, Failure> {
        let claim = self.route.sensible(claim)?;
        if matches!(claim, ClaimReply::Taken { .. }) {
            self.acknowledged(wanted.key, wanted.token, deadline)?;
        }
        Ok(claim)
    }

    /// Waits until enough replicas have the key that this connection has just set. If they are too
    /// few, deletes the key again.
    ///
    /// The second round trip is sent only for a lock that was free. If `WAIT` went out behind each
    /// `SET`, a try that finds the lock busy would wait until the replicas have the writes of other
    /// clients.
    fn acknowledged(&mut self, key: &str, token: &str, deadline: Moment) -> Result<(), Failure> {
        let wait = Wait::new(&self.route.node, deadline);
        let Some(wait) = wait.filter(|_| !seeded_bugs::is_in("waits for no replica")) else { return Ok(()) };
        let replies = self.route.exchange(&wait.behind(Batch::default()), deadline);
        let reply = next(&mut replies.map_err(|failure| left_behind(failure, None))?.into_iter());
        let Err(failure) = self.route.sensible(wait.judge(reply, "lock")) else { return Ok(()) };
        if matches!(failure, Failure::Unanswered { .. }) {
            return Err(failure);
        }
        match self.remove(key, token, deadline) {
            Ok(_) => Err(failure),
            Err(removal) => Err(left_behind(removal, Some(&failure))),
        }
    }

    /// One attempt to take a lock over from the holder of the token `old`: compare and swap. If
    /// replicas have to acknowledge the lock, it counts only once they have. If they are too few,
    /// the key keeps the new token. The attempt may be repeated. The fencing token, if one is
    /// wanted, is larger than `least`.
    pub(crate) fn adopt(
        &mut self,
        old: &str,
        least: u64,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<AdoptReply, Failure> {
        let (times, least) = (wanted.times(), least.to_string());
        let (script, args) = wanted.adoption(old, &least, &times);
        let reply = self.run(script, wanted.key, &args, deadline);
        let reply = adopted(reply, wanted.token, wanted.counter.is_some());
        let reply = self.route.sensible(reply.map_err(|failure| script.explain(failure)))?;
        if matches!(reply, AdoptReply::Adopted { .. })
            && let Some(wait) = Wait::new(&self.route.node, deadline)
        {
            let replies = self.route.exchange(&wait.behind(Batch::default()), deadline);
            let reply = next(&mut replies.map_err(|failure| left_behind(failure, None))?.into_iter());
            let judged = self.route.sensible(wait.judge(reply, "lock"));
            judged.map_err(|failure| left_behind(failure, None))?;
        }
        Ok(reply)
    }

    /// Compare and delete. Takes one more round trip if Redis has forgotten the script.
    pub(crate) fn remove(&mut self, key: &str, token: &str, deadline: Moment) -> Result<Compared, Failure> {
        let script = if seeded_bugs::is_in("deletes without comparing") { &DELETE } else { &RELEASE };
        self.compare(script, key, &[token], deadline)
    }

    /// Compare and keep: the key holds no token any more, and expires after `rest`, in
    /// milliseconds. Takes one more round trip if Redis has forgotten the script.
    pub(crate) fn keep(
        &mut self,
        key: &str,
        token: &str,
        rest: u64,
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        self.compare(&KEEP, key, &[token, &rest.to_string()], deadline)
    }

    fn compare(
        &mut self,
        script: &Script,
        key: &str,
        args: &[&str],
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        let reply = self.run(script, key, args, deadline);
        self.route.sensible(compared(reply).map_err(|failure| script.explain(failure)))
    }

    fn run(&mut self, script: &Script, key: &str, args: &[&str], deadline: Moment) -> Result<Reply, Failure> {
        let add = |batch: Batch, _, teach| batch.and(&script.command(teach, key, args));
        let (replies, _) = self.route.run_all(None, 1, add, None, deadline)?;
        self.route.sensible(accepted(next(&mut replies.into_iter())))
    }

    /// Compare and delete, for many locks in one round trip. The answers come in the order of the
    /// removals.
    pub(crate) fn remove_all(
        &mut self,
        removals: &[(&str, &str)],
        deadline: Moment,
    ) -> Result<Vec<Result<Compared, Failure>>, Failure> {
        let add = |batch: Batch, n: usize, teach| {
            let (key, token) = removals[n];
            batch.and(&RELEASE.command(teach, key, &[token]))
        };
        let (replies, _) = self.route.run_all(None, removals.len(), add, None, deadline)?;
        Ok(self.comparisons(&RELEASE, replies.into_iter().map(|reply| compared(accepted(reply)))))
    }

    /// Compare and delete the `token` and, behind it in the same round trip, take the lock for
    /// another thread. A claim that Redis refused found the lock busy.
    pub(crate) fn remove_and_claim(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, ClaimReply), Failure> {
        let mut done = self.remove_then(token, wanted, false, deadline)?;
        let is_taken = |claim: &ClaimReply| matches!(claim, ClaimReply::Taken { .. });
        if !is_taken(&done.1) && done.0.is_noscript() {
            done = self.remove_then(token, wanted, true, deadline)?;
            if done.0.is_noscript() {
                return self.route.sensible(Err(unexpected(&done.0)));
            }
        }
        let (removed, claim) = done;
        let mut removed = self.route.sensible(compared(accepted(removed)));
        if is_taken(&claim) && matches!(removed, Err(Failure::Refused(_))) {
            // The script did not run, but the claim found no key, so the key was gone already.
            removed = Ok(Compared::Absent);
        }
        Ok((removed.map_err(|failure| RELEASE.explain(failure)), claim))
    }

    fn remove_then(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        teach: bool,
        deadline: Moment,
    ) -> Result<(Reply, ClaimReply), Failure> {
        let times = wanted.times();
        let removal = RELEASE.command(teach, wanted.key, &[token]);
        let [removed, claimed] = loop {
            let claim = wanted.claim(self.route.asking, teach, &times);
            let replies = self.route.exchange_both([&removal, &claim], deadline)?;
            // While the slot moves, a claim with a fencing token is refused as long as one of its
            // two keys is elsewhere. If the claim was executed, or may have been, it is not sent
            // again.
            let claim_did_nothing = matches!(accepted(replies[1].clone()), Err(Failure::Refused(_)));
            if !(claim_did_nothing && self.route.follow(&replies[0], deadline)?) {
                break replies;
            }
        };
        let claim = wanted.claimed(self.route.asking, claimed);
        let claim = match self.route.sensible(claim) {
            Err(Failure::Refused(_)) => ClaimReply::Busy(None),
            other => other?,
        };
        Ok((removed, claim))
    }

    /// Compare and extend, for many locks in one round trip. If replicas have to acknowledge the
    /// leases and too few do, the answers say of no lease that it was extended: at a failover, the
    /// replica that becomes the master may have the old end. If `listener` is given, Redis sends
    /// that listener an invalidation when one of these keys changes. `teach`: Redis may not know
    /// the script, and gets its text at once. The answers come in the order of the extensions.
    pub(crate) fn extend_all(
        &mut self,
        extensions: &[Extension<'_>],
        listener: Option<u64>,
        teach: bool,
        deadline: Moment,
    ) -> Result<(Vec<Result<Compared, Failure>>, Tracking), Failure> {
        let wait = Wait::new(&self.route.node, deadline);
        let add = |batch: Batch, n: usize, forgotten| {
            let Extension { key, token, lease } = extensions[n];
            let whole = forgotten || teach && n == 0;
            batch.and(&RENEW.command(whole, key, &[token, &lease.to_string()]))
        };
        let (mut replies, tracking) =
            self.route.run_all(listener, extensions.len(), add, wait.as_ref(), deadline)?;
        let acknowledged = wait.as_ref().map_or(Ok(()), |wait| {
            let reply = replies.pop().unwrap_or(Reply::Nil);
            self.route.sensible(wait.judge(reply, "renewal"))
        });
        let answers = replies.into_iter().zip(extensions);
        let answers = answers.map(|(reply, lease)| extended(accepted(reply), lease.token));
        let mut answers = self.comparisons(&RENEW, answers);
        if let Err(failure) = acknowledged {
            let extended = answers.iter_mut().filter(|answer| matches!(answer, Ok(Compared::Done)));
            extended.for_each(|answer| *answer = Err(failure.copy()));
        }
        Ok((answers, tracking))
    }

    /// Gives up a claim whose answer was lost. Sends the compare-and-delete over the connection
    /// that carried the claim, so that Redis executes the claim first.
    ///
    /// Nobody reads the answers, and the connection is not used again. So the script is sent whole:
    /// a NOSCRIPT answer to its hash would go unnoticed.
    pub(crate) fn abandon(mut self, key: &str, token: &str) {
        let batch = self.route.ask(Batch::default()).and(&RELEASE.whole(key, &[token]));
        if let Some(link) = &mut self.route.link {
            // If this fails, the keeper deletes the key: it searches for each token that is given
            // up.
            let _ = link.send(&batch, Moment::now().after(Duration::from_millis(1)));
            link.retire();
        }
    }

    /// Who has a lock, and with a `counter` the fencing token of the hold. Takes one more round
    /// trip if Redis has forgotten the script.
    pub(crate) fn look(
        &mut self,
        key: &str,
        counter: Option<&str>,
        deadline: Moment,
    ) -> Result<Seen, Failure> {
        let script: &Script = if counter.is_some() { &LOOK_FENCED } else { &LOOK };
        let args: Vec<_> = counter.into_iter().collect();
        let reply = self.run(script, key, &args, deadline);
        if let (Some(_), Err(Failure::Refused(refusal))) = (counter, &reply)
            && refusal.code == "TRYAGAIN"
        {
            // The slot is on its way to another node, and only one of the two keys is there. Before
            // version 7, the old node redirects the script though it has the lock's key.
            self.route.begin_anew(key, deadline)?;
            return self.look(key, None, deadline);
        }
        self.route.sensible(seen(reply).map_err(|failure| script.explain(failure)))
    }

    /// Deletes a key whatever its value, and returns the value. Sends the script whole, and once to
    /// the node that has the key: before a second try, another holder could take the lock.
    pub(crate) fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure> {
        let reply = loop {
            let batch = self.route.ask(Batch::default()).and(&FORCE.whole(key, &[]));
            let reply = self.route.exchange(&batch, deadline)?.pop().unwrap_or(Reply::Nil);
            if !self.route.follow(&reply, deadline)? {
                break reply;
            }
        };
        let reply = accepted(reply).map_err(|failure| FORCE.explain(failure));
        self.route.sensible(reply.and_then(deleted))
    }

    /// Changes a key so that Redis sends an invalidation of it to a listener. Fails with `Refused`
    /// only if Redis refuses `CLIENT TRACKING` or access to the key. Any other refusal is
    /// `NotSent`.
    fn change(&mut self, key: &str, listener: u64, deadline: Moment) -> Result<(), Failure> {
        let batch = Batch::of(&["CLIENT", "TRACKING", "ON", "REDIRECT", &listener.to_string()])
            .and(&["GET", key])
            .and(&set(key, "-", "1000"))
            .and(&["DEL", key]);
        let mut replies = self.route.exchange(&batch, deadline)?.into_iter();
        if let Tracking::Refused(refusal) = tracking(next(&mut replies), 0) {
            return Err(Failure::Refused(refusal));
        }
        replies.try_for_each(|reply| allowed(reply).map(drop)).map_err(Failure::of_a_trial)
    }

    fn comparisons(
        &mut self,
        script: &Script,
        read: impl Iterator<Item = Result<Compared, Failure>>,
    ) -> Vec<Result<Compared, Failure>> {
        read.map(|read| self.route.sensible(read.map_err(|failure| script.explain(failure)))).collect()
    }
}
