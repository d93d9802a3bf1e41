//! The threads that renew leases and delete orphans, one for each node that has some.
//!
//! A silent node holds up its own thread, but no report of a loss and no other node's renewals.
//! Each thread has a connection of its own, and takes the work that is due at its node when it is
//! free.

use std::sync::Arc;
use std::time::Duration;

use crate::base::background;
use crate::base::clock::Moment;
use crate::base::emit::warn;
use crate::base::sync::HashMap;
use crate::base::sync::thread::{self, JoinHandle};
use crate::keeping::connection::KeeperConnection;
use crate::keeping::orphans::LAST_RETRY;
use crate::keeping::renewal;
use crate::keeping::work::{Keeper, Part};
use crate::store::Node;

/// How often a thread without work checks whether its connection has ended.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

impl Keeper {
    /// Starts a thread for each node that has something due and no thread. The thread of a node
    /// that has left the cluster ends by itself.
    pub(super) fn start_renewers(self: &Arc<Keeper>) {
        let mut work = self.work.lock();
        let left = work.renewers.extract_if(|_, it| it.is_finished());
        let left: Vec<_> = left.collect();
        let now = Moment::now();
        let nodes = work
            .tokens
            .due(now)
            .filter_map(|key| self.core.store.node_of(key));
        let nodes: HashMap<_, _> = nodes.map(|node| (node.number, node)).collect();
        let mut failed = None;
        for (number, node) in nodes {
            if work.renewers.contains_key(&number) {
                continue;
            }
            let (keeper, its_node) = (Arc::clone(self), Arc::clone(&node));
            match background::spawn("relatch-renewer", move || serve(&keeper, &its_node)) {
                Ok(thread) => _ = work.renewers.insert(number, thread),
                Err(error) => failed = Some((node, error)),
            }
        }
        drop(work);
        for (_, thread) in left {
            join(thread);
        }
        if let Some((node, error)) = failed {
            warn!(target: "relatch::keeper", "cannot start a thread that renews leases at {node:?}: {error}");
            thread::sleep(LAST_RETRY);
        }
    }

    /// Waits until the threads have ended: each finishes its round, which has a limit.
    pub(super) fn join_renewers(&self) {
        let renewers = std::mem::take(&mut self.work.lock().renewers);
        for thread in renewers.into_values() {
            join(thread);
        }
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        warn!(target: "relatch::keeper", "a thread that renews leases panicked");
    }
}

/// Does rounds of work. All work that falls due during a round is done together in the next one.
fn serve(keeper: &Keeper, node: &Arc<Node>) {
    let mut connection = KeeperConnection::new(keeper, Arc::clone(node));
    while !node.is_retired()
        && let Some(work) = keeper.next_round(Part::Node(node), Moment::now().after(LOOKS_EVERY))
    {
        connection.drop_if_closed();
        renewal::round(keeper, &mut connection, &work);
    }
}
