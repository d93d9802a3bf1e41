//! A Redis Cluster: its nodes say which node has which slot.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::base::emit::{debug, info, warn};
use crate::client::servers::node::Common;
use crate::client::servers::slots::ranges;
use crate::client::servers::source::{Limits, News, Source, View};
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::{Failure, accept};
use crate::client::wire::resp::Reply;

/// What a node is asked.
const QUESTIONS: [&[&str]; 2] = [&["CLUSTER", "SLOTS"], &["CLUSTER", "INFO"]];

pub(crate) struct Cluster {
    /// The nodes that the program named.
    pub(crate) seeds: Vec<Arc<Endpoint>>,
    pub(crate) common: Arc<Common>,
}

impl Source for Cluster {
    fn name(&self, node: Option<&str>) -> String {
        let seeds = || -> Vec<_> { self.seeds.iter().map(|it| it.name()).collect() };
        node.map_or_else(
            || format!("the cluster of {}", seeds().join(", ")),
            str::to_owned,
        )
    }

    /// First those of the last map, then those that the program named.
    fn candidates(&self, known: Vec<Arc<Endpoint>>) -> Vec<Arc<Endpoint>> {
        let seeds = self.seeds.iter().map(Arc::clone);
        let mut all: Vec<_> = known.into_iter().chain(seeds).collect();
        let mut named = BTreeSet::new();
        all.retain(|it| named.insert(it.place().clone()));
        all
    }

    fn ask(&self, candidate: &Arc<Endpoint>, limits: &Limits<'_>) -> Result<View, Failure> {
        let access = self.common.access();
        let asked = access.ask(candidate, QUESTIONS, limits.time, limits.connected);
        let view = asked.and_then(|replies| read(replies, candidate.place()));
        view.inspect_err(|failure| {
            let name = candidate.name();
            debug!(target: "relatch::cluster", "{name} sent no map: {failure:?}");
        })
    }

    /// A node that refuses the question says more than one that is away.
    fn explain(&self, failures: Vec<(Arc<Endpoint>, Failure)>) -> Failure {
        let mut failures: Vec<_> = failures.into_iter().map(|(_, failure)| failure).collect();
        match failures.iter().rposition(|it| !it.can_pass()) {
            Some(at) => failures.swap_remove(at),
            None if failures.is_empty() => Failure::not_sent("no node was asked"),
            None => failures.swap_remove(0),
        }
    }

    fn tell(&self, news: News<'_>) {
        match news {
            News::Moved(count, _) => {
                debug!(target: "relatch::cluster", "{count} slots moved to another node");
            }
            News::Failing(failure) => {
                let why = failure.text();
                warn!(target: "relatch::cluster", "no node sent a map of the cluster: {why}");
            }
            News::Back => {
                info!(target: "relatch::cluster", "a node sent a map of the cluster again");
            }
            News::Stuck(what) => {
                warn!(target: "relatch::cluster", "the thread that reads the map {what}");
            }
            News::Unreported(_) | News::Reported => {}
        }
    }

    fn is_quick(&self) -> bool {
        false
    }

    fn thread(&self) -> &'static str {
        "relatch-cluster"
    }
}

/// Reads the replies of the server at `asked` to [`QUESTIONS`].
fn read([slots, info]: [Reply; 2], asked: &Place) -> Result<View, Failure> {
    let (ranges, replicas) = ranges(&accept(slots)?, asked)?;
    if ranges.is_empty() {
        return Err(Failure::not_sent(format!("{asked} knows no slots")));
    }
    // Without the right to ask, nothing is known about the node.
    let info = info.text().unwrap_or_default();
    let of = |name| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    Ok(View {
        ranges,
        replicas,
        is_well: of("cluster_state").is_none_or(|state| state == "ok"),
        epoch: of("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()),
        ..View::empty(asked.clone())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::client::servers::slots::tests::any_slots;
    use crate::client::wire::resp::tests::garbled_reply;

    fn info(state: &str, epoch: u64) -> Reply {
        Reply::Bytes(format!("cluster_state:{state}\r\ncluster_slots_ok:16384\r\ncluster_current_epoch:{epoch}\r\n").into_bytes())
    }

    fn at(port: u16) -> Place {
        Place::Tcp {
            host: "a".to_owned(),
            port,
        }
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn what_a_node_says_is_read_as_it_was_written(slots in any_slots(), is_well: bool, epoch: u64) {
            let said = info(if is_well { "ok" } else { "fail" }, epoch);
            let Ok(view) = read([slots, said], &at(1)) else {
                return Ok(()); // It has no slots.
            };
            prop_assert_eq!((view.is_well, view.epoch, view.sender), (is_well, Some(epoch), at(1)));
        }

        /// Whatever else a node says, its map counts, and can be an old one.
        #[test]
        fn any_node_has_a_view(slots in any_slots(), said in garbled_reply(Just(info("ok", 7)))) {
            let is_empty = matches!(&slots, Reply::Array(all) if all.is_empty());
            prop_assert_eq!(read([slots, said], &at(1)).is_ok(), !is_empty);
        }
    }
}
