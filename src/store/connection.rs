//! The commands that go over a connection, and what their replies mean.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::holder::Holder;
use crate::base::seeded_bugs;
use crate::store::failure::{Failure, Refusal, comes_from_wrong_server};
use crate::store::node::Node;
use crate::store::pool::LinkRef;
use crate::store::replicas::{Wait, left_behind};
use crate::store::reply::{
    ClaimReply, Compared, Seen, Tracking, accepted, alive, allowed, claimed, compared, deleted, fence, seen,
    tracking, was_set,
};
use crate::store::resp::{Batch, Reply};
use crate::store::router::Router;
use crate::store::script::{FORCE, RELEASE, RENEW, Script};
use crate::store::wanted::{Wanted, set};

/// A borrowed connection.
///
/// Each command waits for its reply until the deadline, but no longer than the response timeout.
/// The first command may have less time (`Link::limit`).
///
/// If the node answers that another node of a cluster has the slot of the key, this becomes a
/// connection to that node, and the command is sent again. A command that was redirected was not
/// executed, so the last node to which a command was sent is the only one that may execute it.
pub(crate) struct Connection {
    link: LinkRef,
    node: Arc<Node>,
    router: Arc<Router>,
    /// The node has not got the slot yet: each command for it needs an `ASKING` in front.
    asking: bool,
    /// How many more redirects are followed.
    redirects: u8,
    /// A redirect has led to another node than the one that the borrower knows.
    redirected: bool,
}

/// The most redirects that one command follows. More mean that the nodes do not agree.
const MOST_REDIRECTS: u8 = 5;

/// A lease that is to be extended, if the key still holds the token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a str,
    pub(crate) lease: u64,
}

impl Connection {
    pub(super) fn new(link: LinkRef, node: Arc<Node>, router: Arc<Router>) -> Connection {
        Connection { link, node, router, asking: false, redirects: MOST_REDIRECTS, redirected: false }
    }

    /// A connection that stays with its node, and follows no redirect.
    pub(super) fn pinned(link: LinkRef, node: Arc<Node>, router: Arc<Router>) -> Connection {
        Connection { redirects: 0, ..Connection::new(link, node, router) }
    }

    /// The node at the other end.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Notes that Redis may have ended the connection before its next use.
    pub(crate) fn doubt(&mut self) {
        self.link.doubt();
    }

    /// True if the connection must not be used again.
    pub(crate) fn is_over(&self) -> bool {
        self.link.is_over()
    }

    /// True if the idle connection is known to have ended. Does not wait.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.link.has_ended()
    }

    pub(crate) fn ping(&mut self, deadline: Moment) -> Result<(), Failure> {
        let mut replies = self.exchange(&Batch::of(&["PING"]), deadline)?.into_iter();
        self.sensible(alive(next(&mut replies)))
    }

    /// One attempt to take a lock: `SET key token NX PX lease`, or a script if the hold is to have a
    /// fencing token. If replicas have to acknowledge the lock, it is taken only once they have.
    pub(crate) fn claim(&mut self, wanted: Wanted<'_>, deadline: Moment) -> Result<ClaimReply, Failure> {
        if wanted.counter.is_some() {
            return self.claim_or_look(wanted, None, deadline).map(|(reply, _)| reply);
        }
        let reply = self.run(&wanted.claim(false, &wanted.times()), deadline)?;
        if self.sensible(was_set(&reply))? {
            self.acknowledged(wanted.key, wanted.token, deadline)?;
            return Ok(ClaimReply::Taken { fence: 0 });
        }
        Ok(ClaimReply::Busy(None))
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
        let fill = |batch: Batch, teach| batch.and(&script.command(teach, wanted.key, &args));
        let (replies, tracking) = self.run_all(listener, 1, fill, deadline)?;
        let reply = claimed(accepted(next(&mut replies.into_iter())), wanted.counter.is_some());
        let claim = self.sensible(reply.map_err(|failure| script.explain(failure)))?;
        if matches!(claim, ClaimReply::Taken { .. }) {
            self.acknowledged(wanted.key, wanted.token, deadline)?;
        }
        Ok((claim, tracking))
    }

    /// Waits until enough replicas have the key that this connection has just set. If they are too
    /// few, deletes the key again.
    ///
    /// The second round trip is sent only for a lock that was free. If `WAIT` went out behind each
    /// `SET`, a try that finds the lock busy would wait until the replicas have the writes of other
    /// clients.
    fn acknowledged(&mut self, key: &str, token: &str, deadline: Moment) -> Result<(), Failure> {
        let wait = Wait::new(&self.node, deadline);
        let Some(wait) = wait.filter(|_| !seeded_bugs::is_in("waits for no replica")) else { return Ok(()) };
        let replies = self.exchange(&wait.behind(Batch::default()), deadline);
        let reply = next(&mut replies.map_err(|failure| left_behind(failure, None))?.into_iter());
        let Err(failure) = self.sensible(wait.judge(reply, "lock")) else { return Ok(()) };
        if matches!(failure, Failure::Unanswered { .. }) {
            return Err(failure);
        }
        match self.remove(key, token, deadline) {
            Ok(_) => Err(failure),
            Err(removal) => Err(left_behind(removal, Some(&failure))),
        }
    }

    /// Compare and delete. Takes one more round trip if Redis has forgotten the script.
    pub(crate) fn remove(&mut self, key: &str, token: &str, deadline: Moment) -> Result<Compared, Failure> {
        let mut reply = self.run(&RELEASE.by_hash(key, &[token]), deadline);
        if reply.as_ref().is_err_and(Failure::is_noscript) {
            reply = self.run(&RELEASE.whole(key, &[token]), deadline);
        }
        self.sensible(compared(reply).map_err(|failure| RELEASE.explain(failure)))
    }

    /// Compare and delete, for many locks in one round trip. The answers come in the order of the
    /// removals.
    pub(crate) fn remove_all(
        &mut self,
        removals: &[(&str, &str)],
        deadline: Moment,
    ) -> Result<Vec<Result<Compared, Failure>>, Failure> {
        let fill = |mut batch: Batch, teach: bool| {
            for (n, (key, token)) in removals.iter().enumerate() {
                batch = batch.and(&RELEASE.command(teach && n == 0, key, &[token]));
            }
            batch
        };
        let (replies, _) = self.run_all(None, removals.len(), fill, deadline)?;
        Ok(self.comparisons(&RELEASE, replies))
    }

    /// Compare and delete the `token` and, behind it in the same round trip, take the lock for
    /// another thread. The second part of the result is `Some` if that took the lock, and has the
    /// fencing token (0: none was wanted).
    pub(crate) fn remove_and_claim(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, Option<u64>), Failure> {
        let mut done = self.remove_then(token, wanted, false, deadline)?;
        if done.1.is_none() && done.0.as_ref().is_err_and(Failure::is_noscript) {
            done = self.remove_then(token, wanted, true, deadline)?;
        }
        let (mut removed, fence) = done;
        if fence.is_some() && matches!(removed, Err(Failure::Refused(_))) {
            // The script did not run, but the claim found no key, so the key was gone already.
            removed = Ok(Compared::Absent);
        }
        Ok((removed.map_err(|failure| RELEASE.explain(failure)), fence))
    }

    fn remove_then(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        teach: bool,
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, Option<u64>), Failure> {
        let times = wanted.times();
        let removal = RELEASE.command(teach, wanted.key, &[token]);
        let claim = wanted.claim(teach, &times);
        let mut replies = loop {
            let replies = self.exchange_all(&[&removal, &claim], deadline)?;
            let is_elsewhere = |reply: &Reply| redirection(reply).is_some();
            if !(replies.iter().all(is_elsewhere) && self.follow(&replies[0], deadline)?) {
                break replies.into_iter();
            }
        };
        let removed = compared(accepted(next(&mut replies)));
        let taken = accepted(next(&mut replies));
        let taken = match self.sensible(wanted.taken(taken)) {
            Err(Failure::Refused(_)) => None,
            other => other?,
        };
        Ok((self.sensible(removed), taken))
    }

    /// Compare and extend, for many locks in one round trip. If replicas have to acknowledge the
    /// leases and too few do, the answers say of no lease that it was extended: at a failover, the
    /// replica that becomes the master may have the old end. If `listener` is given, Redis sends
    /// that listener an invalidation when one of these keys changes. The answers come in the order
    /// of the extensions.
    pub(crate) fn extend_all(
        &mut self,
        extensions: &[Extension<'_>],
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(Vec<Result<Compared, Failure>>, Tracking), Failure> {
        let wait = Wait::new(&self.node, deadline);
        let fill = |mut batch: Batch, teach: bool| {
            for (n, extension) in extensions.iter().enumerate() {
                let lease = extension.lease.to_string();
                let args = [extension.token, lease.as_str()];
                batch = batch.and(&RENEW.command(teach && n == 0, extension.key, &args));
            }
            match &wait {
                Some(wait) => wait.behind(batch),
                None => batch,
            }
        };
        let (mut replies, tracking) = self.run_all(listener, extensions.len(), fill, deadline)?;
        let acknowledged = wait.as_ref().map_or(Ok(()), |wait| {
            let reply = replies.pop().unwrap_or(Reply::Nil);
            self.sensible(wait.judge(reply, "renewal"))
        });
        let mut answers = self.comparisons(&RENEW, replies);
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
        let batch = self.behind_asking(&[&RELEASE.whole(key, &[token])]);
        // If this fails, the keeper deletes the key: it searches for each token that is given up.
        let _ = self.link.send(&batch, Moment::now().after(Duration::from_millis(1)));
        self.link.retire();
    }

    /// Who has a lock: `GET key`, `PTTL key`.
    pub(crate) fn look(&mut self, key: &str, deadline: Moment) -> Result<Seen, Failure> {
        let mut replies = self.read_all(&[&["GET", key], &["PTTL", key]], deadline)?.into_iter();
        self.sensible(seen(next(&mut replies), next(&mut replies)))
    }

    /// Who has a lock, and the fencing token of the hold.
    ///
    /// Other clients' commands can come between these four. If the key has the same token before
    /// and after the counter was read, no later hold has raised the counter.
    pub(crate) fn look_at_fence(
        &mut self,
        key: &str,
        counter: &str,
        deadline: Moment,
    ) -> Result<Seen, Failure> {
        let get: &[&str] = &["GET", key];
        let mut replies = self.read_all(&[get, &["PTTL", key], &["GET", counter], get], deadline)?.into_iter();
        let seen = self.sensible(seen(next(&mut replies), next(&mut replies)))?;
        let fence = fence(next(&mut replies));
        Ok(match (seen, next(&mut replies)) {
            (Seen::Somebody(holder), Reply::Bytes(after)) if holder.raw().as_bytes() == after => {
                Seen::Somebody(holder.with_fence(fence))
            }
            (seen, _) => seen,
        })
    }

    /// Deletes a key whatever its value, and returns the value. Sends the script whole, so that one
    /// try is enough: before a second try, another holder could take the lock.
    pub(crate) fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure> {
        let reply = self.run(&FORCE.whole(key, &[]), deadline).map_err(|failure| FORCE.explain(failure))?;
        self.sensible(deleted(reply))
    }

    /// Changes a key so that Redis sends an invalidation of it to a listener. Fails with `Refused`
    /// only if Redis refuses `CLIENT TRACKING` or access to the key. Any other refusal is
    /// `NotSent`.
    pub(super) fn change(&mut self, key: &str, listener: u64, deadline: Moment) -> Result<(), Failure> {
        let batch = Batch::of(&["CLIENT", "TRACKING", "ON", "REDIRECT", &listener.to_string()])
            .and(&["GET", key])
            .and(&set(key, "-", "1000"))
            .and(&["DEL", key]);
        let mut replies = self.exchange(&batch, deadline)?.into_iter();
        if let Tracking::Refused(refusal) = tracking(next(&mut replies), self.link.id) {
            return Err(Failure::Refused(refusal));
        }
        replies.try_for_each(|reply| allowed(reply).map(drop)).map_err(Failure::of_a_trial)
    }

    fn run(&mut self, command: &[&str], deadline: Moment) -> Result<Reply, Failure> {
        loop {
            let reply = next(&mut self.exchange_all(&[command], deadline)?.into_iter());
            if !self.follow(&reply, deadline)? {
                return self.sensible(accepted(reply));
            }
        }
    }

    /// Sends commands that read, for keys of one slot.
    fn read_all(&mut self, commands: &[&[&str]], deadline: Moment) -> Result<Vec<Reply>, Failure> {
        loop {
            let replies = self.exchange_all(commands, deadline)?;
            let elsewhere = replies.iter().find(|reply| redirection(reply).is_some());
            let Some(elsewhere) = elsewhere else { return Ok(replies) };
            if !self.follow(elsewhere, deadline)? {
                return Ok(replies);
            }
        }
    }

    /// Sends commands for one key, each behind an `ASKING` if the node needs that.
    fn exchange_all(&mut self, commands: &[&[&str]], deadline: Moment) -> Result<Vec<Reply>, Failure> {
        let mut replies = self.exchange(&self.behind_asking(commands), deadline)?;
        if self.asking {
            let mut is_own = [false, true].into_iter().cycle();
            replies.retain(|_| is_own.next().unwrap_or(true));
        }
        Ok(replies)
    }

    fn behind_asking(&self, commands: &[&[&str]]) -> Batch {
        commands.iter().fold(Batch::default(), |batch, command| self.ask(batch).and(command))
    }

    fn ask(&self, batch: Batch) -> Batch {
        if self.asking { batch.and(&["ASKING"]) } else { batch }
    }

    /// If the reply says that another node has the slot, goes on with a connection to that node. The
    /// command was not executed then. False for any other reply, and if this follows no redirect.
    fn follow(&mut self, reply: &Reply, deadline: Moment) -> Result<bool, Failure> {
        let Some(refusal) = redirection(reply).filter(|_| self.redirects > 0) else { return Ok(false) };
        let Some((node, asking)) = self.router.redirected(&refusal, &self.node) else { return Ok(false) };
        self.redirects -= 1;
        let link = match &self.link {
            LinkRef::Lent(_) => node.lend(deadline),
            LinkRef::Own(_) => node.own(deadline),
        };
        self.link = self.router.noting(link)?;
        (self.node, self.asking, self.redirected) = (node, asking, true);
        Ok(true)
    }

    /// Runs a script for the `keys` that `fill` puts into a batch. If Redis does not know the
    /// script, the whole batch is sent again. Its first command then has the script's text, and
    /// makes the script known to the other commands.
    ///
    /// If `listener` is given, the batch first asks Redis, once per connection, to send that
    /// listener the invalidations of keys that are read over this connection. The listener is one
    /// of this node: after a redirect, the other node sends no invalidations.
    ///
    /// A batch with more than one key follows no redirect.
    fn run_all(
        &mut self,
        listener: Option<u64>,
        keys: usize,
        fill: impl Fn(Batch, bool) -> Batch,
        deadline: Moment,
    ) -> Result<(Vec<Reply>, Tracking), Failure> {
        let listener = listener.filter(|_| !self.redirected);
        let link = self.link.id;
        let mut result = if listener.is_some() { Tracking::On { link } } else { Tracking::Off };
        let mut to_ask = listener.filter(|listener| !self.link.invalidates_to(*listener));
        let mut teach = false;
        loop {
            let batch = fill(self.ask(begin(to_ask)), teach);
            let mut replies = self.exchange(&batch, deadline)?.into_iter();
            if let Some(listener) = to_ask.take() {
                result = tracking(next(&mut replies), link);
                if matches!(result, Tracking::On { .. }) {
                    self.link.set_listener(listener);
                }
            }
            if self.asking {
                next(&mut replies);
            }
            let replies: Vec<_> = replies.collect();
            if keys == 1 && self.follow(&replies[0], deadline)? {
                result = Tracking::Off;
                continue;
            }
            let unknown = replies.first().is_some_and(Reply::is_noscript);
            if teach || !unknown {
                return Ok((replies, result));
            }
            teach = true;
        }
    }

    fn comparisons(&mut self, script: &Script, replies: Vec<Reply>) -> Vec<Result<Compared, Failure>> {
        let answer =
            |reply| self.sensible(compared(accepted(reply)).map_err(|failure| script.explain(failure)));
        replies.into_iter().map(answer).collect()
    }

    fn exchange(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Reply>, Failure> {
        let limit = self.link.limit(deadline, self.node.common.response_timeout, batch.blocks_for);
        let answer = self.link.exchange(batch, limit);
        if answer.as_ref().is_ok_and(|replies| replies.iter().any(comes_from_wrong_server)) {
            self.node.refused_by_replica(&self.link);
        }
        self.router.heard(&answer);
        answer
    }

    /// Retires the connection after a reply that made no sense.
    fn sensible<T>(&mut self, read: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(Failure::Unanswered { link_stands: false, .. }) = &read {
            self.link.retire();
        }
        read
    }
}

/// The error by which a node of a cluster says that another node has the slot of a key.
fn redirection(reply: &Reply) -> Option<Refusal> {
    match reply {
        Reply::Error(error) if error.starts_with("MOVED ") || error.starts_with("ASK ") => {
            Some(Refusal::new(error))
        }
        _ => None,
    }
}

/// An empty batch or, if `listener` is given, a batch that asks for invalidations. With `NOLOOP`,
/// changes over this connection cause no invalidations, so that an uncontended release costs no
/// extra message.
fn begin(listener: Option<u64>) -> Batch {
    let Some(listener) = listener else {
        return Batch::default();
    };
    Batch::of(&["CLIENT", "TRACKING", "ON", "REDIRECT", &listener.to_string(), "NOLOOP"])
}

/// The next reply. (A link returns as many replies as it sent commands, or an error.)
fn next(replies: &mut impl Iterator<Item = Reply>) -> Reply {
    replies.next().unwrap_or(Reply::Nil)
}
