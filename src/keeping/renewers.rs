//! The threads that do the keeper's work, one for each node that has some.
//!
//! A node that is silent holds up its own thread, but no report of a loss and no other node's
//! renewals. Each thread has a connection of its own.

use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::base::background;
use crate::base::clock::Moment;
use crate::base::emit::warn;
use crate::base::sync::HashMap;
use crate::base::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use crate::base::sync::thread::JoinHandle;
use crate::keeping::connection::KeeperConnection;
use crate::keeping::due::{RenewalRequest, WorkDue};
use crate::keeping::renewal;
use crate::keeping::work::Keeper;
use crate::store::{Failure, Node};

/// How often a thread without work checks whether its connection has ended.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// The threads, as the keeper's thread sees them.
#[derive(Default)]
pub(crate) struct Renewers {
    by_node: HashMap<u64, Renewer>,
    /// Threads of nodes that have left the cluster.
    leaving: Vec<JoinHandle<()>>,
}

struct Renewer {
    node: Arc<Node>,
    work: Sender<WorkDue>,
    thread: JoinHandle<()>,
}

impl Renewers {
    /// Hands work out to the threads of the nodes that have the keys.
    pub(crate) fn hand_out(&mut self, keeper: &Arc<Keeper>, work: WorkDue) {
        self.dismiss();
        for (node, work) in by_node(keeper, work) {
            if let Err(error) = self.give(keeper, &node, work) {
                warn!(target: "relatch::keeper", "no thread to renew the leases of {node:?}: {error}");
            }
        }
    }

    /// Gives work to the thread of a node, which may still be busy with earlier work.
    fn give(&mut self, keeper: &Arc<Keeper>, node: &Arc<Node>, work: WorkDue) -> io::Result<()> {
        if self
            .by_node
            .get(&node.number)
            .is_some_and(|renewer| renewer.thread.is_finished())
        {
            // It has panicked, or the node has left the cluster.
            self.by_node.remove(&node.number);
        }
        let renewer = match self.by_node.entry(node.number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(Renewer::start(keeper, node)?),
        };
        // If the thread has just panicked, the work is due again soon.
        let _ = renewer.work.send(work);
        Ok(())
    }

    /// Ends the threads of nodes that have left the cluster. Does not wait.
    fn dismiss(&mut self) {
        let left: Vec<_> = self
            .by_node
            .extract_if(|_, renewer| renewer.node.is_retired())
            .collect();
        self.leaving
            .extend(left.into_iter().map(|(_, renewer)| renewer.thread));
        self.leaving.retain(|thread| !thread.is_finished());
    }

    /// Ends the threads: each ends its round, which has a limit.
    pub(crate) fn stop(self) {
        let threads = self.by_node.into_values().map(|renewer| renewer.thread);
        for thread in threads.collect::<Vec<_>>().into_iter().chain(self.leaving) {
            if thread.join().is_err() {
                warn!(target: "relatch::keeper", "a thread that renews leases had panicked");
            }
        }
    }
}

impl Renewer {
    fn start(keeper: &Arc<Keeper>, node: &Arc<Node>) -> io::Result<Renewer> {
        let (work, inbox) = mpsc::channel();
        let keeper = Arc::clone(keeper);
        let its_node = Arc::clone(node);
        let run = move || serve(&keeper, &its_node, &inbox);
        let thread = background::spawn("relatch-renewer", run)?;
        Ok(Renewer {
            node: Arc::clone(node),
            work,
            thread,
        })
    }
}

/// Does rounds of work. What comes during a round is done together in the next one.
fn serve(keeper: &Keeper, node: &Arc<Node>, inbox: &Receiver<WorkDue>) {
    let mut connection = KeeperConnection::new(keeper, Arc::clone(node));
    while !node.is_retired() {
        let work = inbox.recv_timeout(LOOKS_EVERY);
        connection.drop_if_closed();
        match work {
            Ok(mut work) => {
                for more in inbox.try_iter() {
                    work.add(more);
                }
                keeper.work.lock().leases.drop_answered(&mut work);
                renewal::round(keeper, &mut connection, work);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
    // The requests go to the node that has the keys now. (What else was due is due again soon.)
    let requests = inbox.try_iter().flat_map(|work| work.requests);
    let mut work = keeper.work.lock();
    work.requests.extend(requests);
    keeper.wake(work, Moment::PAST);
}

type Parts = HashMap<u64, (Arc<Node>, WorkDue)>;

/// The work of each node. Work for a key without a known node is due again soon; a request for such
/// a key is answered now.
fn by_node(keeper: &Keeper, work: WorkDue) -> impl Iterator<Item = (Arc<Node>, WorkDue)> {
    let mut parts = Parts::default();
    for hold in work.renew {
        if let Some(part) = part_of(&mut parts, keeper, hold.key.in_redis()) {
            part.renew.push(hold);
        }
    }
    for orphan in work.remove {
        if let Some(part) = part_of(&mut parts, keeper, &orphan.redis_key) {
            part.remove.push(orphan);
        }
    }
    for request in work.requests {
        match part_of(&mut parts, keeper, request.hold.key.in_redis()) {
            Some(part) => part.requests.push(request),
            None => refuse(&request),
        }
    }
    parts.into_values()
}

fn part_of<'p>(parts: &'p mut Parts, keeper: &Keeper, redis_key: &str) -> Option<&'p mut WorkDue> {
    let node = keeper.core.store.node_of(redis_key)?;
    let (_, work) = parts
        .entry(node.number)
        .or_insert_with(|| (node, WorkDue::default()));
    Some(work)
}

fn refuse(request: &RenewalRequest) {
    // If the deadline came first, no thread receives the answer.
    let _ = request.answer.send(Err(Failure::NotSent(
        "no known node of the cluster has the key".into(),
    )));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use super::*;
    use crate::base::options::Settings;
    use crate::hold::Hold;
    use crate::hold::tests::sample;
    use crate::keeping::keeper::tests::keeper_without_redis;
    use crate::store::{Store, Target};

    const LEASE: Duration = Duration::from_secs(30);

    /// A node to which nobody can connect.
    fn node() -> Arc<Node> {
        Store::new(Target::nowhere(), &Settings::default())
            .unwrap()
            .node_of("")
            .unwrap()
    }

    /// A keeper with a hold, and two pieces of work in which this hold is due.
    fn due_twice() -> (Arc<Keeper>, Arc<Hold>, [WorkDue; 2]) {
        let (keeper, hold) = (
            keeper_without_redis(),
            Arc::new(sample("a", LEASE, Moment::now())),
        );
        keeper.enter(&hold).unwrap();
        let first = Moment::now().after(LEASE / 2);
        let work = [first, first.after(LEASE / 10)].map(|now| {
            let due = keeper.work.lock().leases.take_due(now);
            assert_eq!(due.renew.len(), 1);
            due
        });
        (keeper, hold, work)
    }

    /// Runs a node's thread until it has done this work.
    fn serves(keeper: &Arc<Keeper>, node: &Arc<Node>, work: impl IntoIterator<Item = WorkDue>) {
        let (sender, inbox) = mpsc::channel();
        work.into_iter().for_each(|work| sender.send(work).unwrap());
        drop(sender);
        serve(keeper, node, &inbox);
    }

    #[test]
    fn what_has_come_during_a_round_is_done_once() {
        let (keeper, _hold, work) = due_twice();
        serves(&keeper, &node(), work);
        assert_eq!(
            keeper.core.counters.read().renewal_errors,
            1,
            "one attempt, to which nobody answers"
        );
    }

    #[test]
    fn a_hold_that_was_released_while_its_work_waited_is_left_alone() {
        let (keeper, hold, work) = due_twice();
        keeper.work.lock().leases.close(&hold, Moment::now());
        serves(&keeper, &node(), work);
        assert_eq!(keeper.core.counters.read().renewal_errors, 0);
    }

    /// If they were dropped, the callers of `extend` would get an error, though another node has
    /// the key.
    #[test]
    fn the_requests_to_a_node_that_has_left_go_back_to_the_keeper_at_once() {
        let (keeper, node) = (keeper_without_redis(), node());
        let requests = [(); 2].map(|()| {
            let hold = Arc::new(sample("a", LEASE, Moment::now()));
            let (answer, answered) = mpsc::channel();
            let request = RenewalRequest {
                hold,
                deadline: Moment::now().after(LEASE),
                answer,
            };
            (
                WorkDue {
                    requests: vec![request],
                    ..WorkDue::default()
                },
                answered,
            )
        });
        keeper.work.lock().sleeps_until = Some(Moment::NEVER);
        node.retire();
        let (work, answers): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        serves(&keeper, &node, work);
        let work = keeper.work.lock();
        assert_eq!(
            (work.requests.len(), work.sleeps_until),
            (2, Some(Moment::PAST))
        );
        assert!(
            answers
                .iter()
                .all(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty)))
        );
    }
}
