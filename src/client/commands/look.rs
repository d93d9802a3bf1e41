//! The commands for a lock that somebody else may hold, and the test of a listener.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;
use crate::client::commands::connection::{ServerConnection, next};
use crate::client::commands::reply::{
    Compared, Seen, Tracking, read_compared, read_deleted, read_seen, read_tracking,
};
use crate::client::commands::script::{FORCE, LOOK, LOOK_FENCED, RELEASE, Script};
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
    router: &Arc<Topology>,
    node: &Arc<Node>,
    probe: &str,
) -> Result<TrackingConnection, Failure> {
    let probe = router
        .key_at(node, probe)
        .ok_or_else(|| Failure::not_sent("the node has no slots"))?;
    let mut tracking = router.noting(node, node.open_tracking())?;
    let mut connection =
        ServerConnection::pinned(router, node, Moment::NEVER).map_err(Failure::of_an_attempt)?;
    let until = Moment::now().after(node.common.response_timeout);
    if let Err(failure) = connection.change(&probe, tracking.id, until) {
        // If the master was replaced in between, the new one does not know the listener. And a slot
        // of a cluster may have moved.
        let redirects = |refusal| router.redirected(refusal, node).is_some();
        let passes =
            tracking.probe() || matches!(&failure, Failure::Refused(refusal) if redirects(refusal));
        return Err(if passes {
            failure.of_an_attempt()
        } else {
            failure
        });
    }
    drop(connection); // The answer may take a response timeout.
    node.hears(&mut tracking, &probe)?;
    Ok(tracking)
}

/// What everybody may do.
pub(crate) trait Looks {
    /// Who has a lock, and with a `counter` the fencing token of the hold. Takes one more round
    /// trip if Redis has forgotten the script.
    fn look(&mut self, key: &str, counter: Option<&str>, deadline: Moment)
    -> Result<Seen, Failure>;

    /// An error if the server is a replica: of what it has not, it does not know that it is
    /// nowhere.
    fn expect_master(&self) -> Result<(), Failure>;

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
        let script: &Script = if counter.is_some() {
            &LOOK_FENCED
        } else {
            &LOOK
        };
        let args: Vec<_> = counter.into_iter().collect();
        let reply = self.run_script(script, key, &args, deadline);
        if let (Some(_), Err(Failure::Refused(refusal))) = (counter, &reply)
            && refusal.code == "TRYAGAIN"
        {
            // The slot is on its way to another node, and only one of the two keys is there. Before
            // version 7, the old node redirects the script though it has the lock's key.
            self.begin_anew(key, deadline)?;
            return self.look(key, None, deadline);
        }
        self.conclude(script, read_seen(reply))
    }

    fn expect_master(&self) -> Result<(), Failure> {
        match &self.link {
            Some(link) if link.role == Role::Replica => {
                let message = "the server is a replica, and does not know whether a lock is free: \
                               give the address of the master, or use sentinels";
                Err(Failure::Refused(Refusal::found("READONLY", message)))
            }
            _ => Ok(()),
        }
    }

    fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure> {
        let reply = self.run_once(&FORCE, key, None, deadline)?;
        let deleted = accept_change(reply).and_then(read_deleted);
        self.conclude(&FORCE, deleted)
    }

    fn force_if(&mut self, key: &str, value: &[u8], deadline: Moment) -> Result<Compared, Failure> {
        let reply = self.run_once(&RELEASE, key, Some(value), deadline)?;
        self.conclude(&RELEASE, read_compared(accept_change(reply)))
    }
}

impl ServerConnection {
    /// Sends a script whole, and once to the node that has the key: before a second try, another
    /// holder could take the lock.
    fn run_once(
        &mut self,
        script: &Script,
        key: &str,
        argument: Option<&[u8]>,
        deadline: Moment,
    ) -> Result<Reply, Failure> {
        let whole = script.whole(key, &[]);
        let parts = whole.into_iter().map(str::as_bytes).chain(argument);
        let parts: Vec<_> = parts.collect();
        loop {
            let batch = self.ask(Batch::default()).and(&parts);
            let reply = self.exchange(&batch, deadline)?.pop().unwrap_or(Reply::Nil);
            if !self.follow(&reply, deadline)? {
                return Ok(reply);
            }
        }
    }

    /// Changes a key so that Redis sends an invalidation of it to a listener. Fails with `Refused`
    /// only if Redis refuses `CLIENT TRACKING` or access to the key. Any other refusal is
    /// `NotSent`.
    fn change(&mut self, key: &str, listener: u64, deadline: Moment) -> Result<(), Failure> {
        let batch = Batch::of(&[
            "CLIENT",
            "TRACKING",
            "ON",
            "REDIRECT",
            &listener.to_string(),
        ])
        .and(&["GET", key])
        .and(&set(key, "-", "1000"))
        .and(&["DEL", key]);
        let mut replies = self.exchange(&batch, deadline)?.into_iter();
        if let Tracking::Refused(refusal) = read_tracking(next(&mut replies), 0) {
            return Err(Failure::Refused(refusal));
        }
        replies
            .try_for_each(|reply| accept(reply).map(drop))
            .map_err(Failure::of_a_trial)
    }
}
