//! The commands for a lock that somebody else may hold, and the test of a listener.

use std::borrow::Cow;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;
use crate::client::commands::connection::{ServerConnection, next};
use crate::client::commands::reply::{
    Compared, Seen, Tracking, read_compared, read_deleted, read_seen, read_tracking,
};
use crate::client::commands::runs::tracking;
use crate::client::commands::script::{FORCE, LOOK, RELEASE, Script};
use crate::client::commands::wanted::set;
use crate::client::servers::node::Node;
use crate::client::servers::topology::Topology;
use crate::client::servers::tracking::TrackingConnection;
use crate::client::wire::failure::{Failure, accept, accept_change};
use crate::client::wire::link::Role;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::{Batch, Reply};

/// Opens a connection for invalidations of this node's keys. `probe` is a key that nobody else
/// uses, or the beginning of one: it is changed, to make sure that its invalidation comes.
pub(crate) fn listen(
    topology: &Arc<Topology>,
    node: &Arc<Node>,
    probe: &str,
) -> Result<TrackingConnection, Failure> {
    let probe = topology
        .key_at(node, probe)
        .ok_or_else(|| Failure::not_sent("the node has no slots"))?;
    let mut tracking = topology.noting(node, node.open_tracking())?;
    let mut connection =
        ServerConnection::pinned(topology, node, Moment::NEVER).map_err(Failure::of_an_attempt)?;
    let until = Moment::now().after(node.common.response_timeout);
    if let Err(failure) = change(&mut connection, &probe, tracking.id, until) {
        // If the master was replaced in between, the new one does not know the listener. And a slot
        // of a cluster may have moved.
        let redirects = |refusal| topology.redirected(refusal, node).is_some();
        let passes =
            tracking.probe() || matches!(&failure, Failure::Refused(refusal) if redirects(refusal));
        return Err(if passes {
            failure.of_an_attempt()
        } else {
            failure
        });
    }
    drop(connection); // The answer may take a response timeout.
    let until = Moment::now().after(node.common.response_timeout);
    tracking.expect(&probe, until)?;
    Ok(tracking)
}

/// What anybody may do.
pub(crate) trait Looks {
    /// Who has a lock, and with a `counter` the fencing token of the hold. Takes one more round
    /// trip if Redis has forgotten the script.
    fn look(&mut self, key: &str, counter: Option<&str>, deadline: Moment)
    -> Result<Seen, Failure>;

    /// An error if the server was a replica at the login: it cannot know that a key it lacks is
    /// nowhere. It may be a master by now, so the next question logs in anew.
    fn expect_master(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Deletes a key whatever its value, and returns the value.
    fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure>;

    /// Deletes a key if its value is this one, byte by byte.
    fn force_if(&mut self, key: &str, value: &[u8], deadline: Moment) -> Result<Compared, Failure>;
}

impl Looks for ServerConnection {
    fn look(
        &mut self,
        key: &str,
        counter: Option<&str>,
        deadline: Moment,
    ) -> Result<Seen, Failure> {
        let keys: Vec<_> = [key].into_iter().chain(counter).collect();
        let seen = LOOK.invoke(self, &keys, &[], deadline, read_seen);
        if let (Some(_), Err(Failure::Refused(refusal))) = (counter, &seen)
            && refusal.code == "TRYAGAIN"
        {
            // The slot is on its way to another node, and only one of the two keys is there. Before
            // version 7, the old node redirects the script although it has the lock's key. Without
            // `ASKING`, the new node leads back to the old one.
            self.asking = false;
            return self.look(key, None, deadline);
        }
        seen
    }

    fn expect_master(&mut self) -> Result<(), Failure> {
        match &mut self.lent.link {
            Some(link) if link.role == Role::Replica => {
                link.broken = true;
                let message = "the server is a replica, and does not know whether a lock is free: \
                               give the address of the master, or use sentinels";
                Err(Failure::Refused(Refusal::found("READONLY", message)))
            }
            _ => Ok(()),
        }
    }

    fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure> {
        let read = |reply: Result<_, _>| reply.and_then(read_deleted);
        run_once(self, &FORCE, key, None, deadline, read)
    }

    fn force_if(&mut self, key: &str, value: &[u8], deadline: Moment) -> Result<Compared, Failure> {
        run_once(self, &RELEASE, key, Some(value), deadline, read_compared)
    }
}

/// Sends a script whole, and only once to the node that has the key: before a second try, another
/// holder could take the lock.
fn run_once<T>(
    connection: &mut ServerConnection,
    script: &Script,
    key: &str,
    argument: Option<&[u8]>,
    deadline: Moment,
    read: impl FnOnce(Result<Reply, Failure>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let whole = script.command(true, &[key], &[]);
    let parts = whole.into_iter().chain(argument.map(Cow::Borrowed));
    let parts: Vec<_> = parts.collect();
    loop {
        let batch = connection.begin(Batch::default()).and(&parts);
        let reply = connection.exchange(&batch, deadline)?.pop();
        let reply = reply.unwrap_or(Reply::Nil);
        if !connection.follow(&reply, deadline)? {
            return connection.judged(script.explained(read(accept_change(reply))));
        }
    }
}

/// Changes a key so that Redis sends an invalidation of it to a listener. Fails with `Refused` only
/// if Redis refuses `CLIENT TRACKING` or access to the key. Any other refusal is `NotSent`.
fn change(
    connection: &mut ServerConnection,
    key: &str,
    listener: u64,
    deadline: Moment,
) -> Result<(), Failure> {
    let batch = tracking(Some(listener), &[])
        .and(&["GET", key])
        .and(&set(key, "-", "1000"))
        .and(&["DEL", key]);
    let mut replies = connection.exchange(&batch, deadline)?.into_iter();
    if let Tracking::Refused(refusal) = read_tracking(next(&mut replies), 0) {
        return Err(Failure::Refused(refusal));
    }
    replies
        .try_for_each(|reply| accept(reply).map(drop))
        .map_err(Failure::of_a_trial)
}
