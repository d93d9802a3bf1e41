//! What the nodes of a cluster say of it, and whom to believe.

use std::collections::BTreeSet;

use crate::base::emit::debug;
use crate::client::servers::slots::{Range, ranges};
use crate::client::wire::endpoint::Place;
use crate::client::wire::failure::{Failure, accept};
use crate::client::wire::resp::Reply;

/// What a node is asked.
pub(crate) const QUESTIONS: [&[&str]; 2] = [&["CLUSTER", "SLOTS"], &["CLUSTER", "INFO"]];

/// How many maps that may be old are compared. If the whole cluster is not well, all maps may be.
const MOST_DOUBTS: u32 = 3;

/// What a node says of its cluster.
#[derive(Debug)]
pub(crate) struct View {
    /// Where the node is, as it was named to this process.
    pub(crate) sender: Place,
    pub(crate) ranges: Vec<Range>,
    pub(crate) replicas: BTreeSet<Place>,
    pub(crate) is_well: bool,
    /// Each failover has a higher one. `u64::MAX` if the node does not say.
    pub(crate) epoch: u64,
}

impl View {
    /// Reads the replies of the server at `asked` to [`QUESTIONS`].
    pub(crate) fn new([slots, info]: [Reply; 2], asked: &Place) -> Result<View, Failure> {
        let (ranges, replicas) = ranges(&accept(slots)?, asked)?;
        // Without the right to ask, nothing is known about the node.
        let info = info.text().unwrap_or_default();
        let of = |name| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let is_well = of("cluster_state").is_none_or(|state| state == "ok");
        let epoch = of("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
        let sender = asked.clone();
        Ok(View {
            sender,
            ranges,
            replicas,
            is_well,
            epoch: epoch.unwrap_or(u64::MAX),
        })
    }

    /// Asks one node after the other for its view. If none has one, returns the failure that says
    /// most.
    ///
    /// A node that was cut off from the others for a while has an old map, and says that the
    /// cluster is not well, or that its epoch is older than `least_epoch`, which was seen before.
    /// Such a map counts only if none of the first few nodes has a better one: a flight back to the
    /// old masters would cost more than a late map.
    pub(crate) fn best(
        nodes: impl Iterator<Item = Place>,
        least_epoch: u64,
        ask: impl Fn(&Place) -> Result<View, Failure>,
    ) -> Result<View, Failure> {
        let mut last = None;
        let mut doubtful = None::<View>;
        let mut doubts = 0;
        for place in nodes {
            match ask(&place) {
                Ok(view) if view.ranges.is_empty() => {
                    last.get_or_insert_with(|| {
                        Failure::not_sent(format!("{place} knows no slots"))
                    });
                }
                Ok(view) if view.is_well && least_epoch <= view.epoch => return Ok(view),
                Ok(view) => {
                    debug!(target: "relatch::cluster", "the map of {place} may be old");
                    doubts += 1;
                    if doubtful
                        .as_ref()
                        .is_none_or(|other| other.rank() < view.rank())
                    {
                        doubtful = Some(view);
                    }
                    if doubts == MOST_DOUBTS {
                        break;
                    }
                }
                Err(failure) => {
                    debug!(target: "relatch::cluster", "{place} has sent no map: {failure:?}");
                    // That a node refuses the question says more than that another is away.
                    if failure.can_pass() {
                        last.get_or_insert(failure);
                    } else {
                        last = Some(failure);
                    }
                }
            }
        }
        doubtful.ok_or_else(|| last.unwrap_or_else(|| Failure::not_sent("no node was asked")))
    }

    fn rank(&self) -> (bool, u64) {
        (self.is_well, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::servers::slots::tests::any_slots;
    use crate::client::wire::resp::tests::garbled_reply;
    use crate::simulation::garbled;

    fn info(state: &str, epoch: u64) -> Reply {
        Reply::Bytes(format!("cluster_state:{state}\r\ncluster_slots_ok:16384\r\ncluster_current_epoch:{epoch}\r\n").into_bytes())
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn what_a_node_says_is_read_as_it_was_written(slots in any_slots(), is_well: bool, epoch: u64) {
            let said = info(if is_well { "ok" } else { "fail" }, epoch);
            let view = View::new([slots, said], &at(1)).unwrap();
            prop_assert_eq!((view.is_well, view.epoch, view.sender), (is_well, epoch, at(1)));
        }

        /// Whatever else a node says, its map counts, and can be an old one.
        #[test]
        fn any_node_has_a_view(slots in any_slots(), said in garbled_reply(Just(info("ok", 7)))) {
            prop_assert!(View::new([slots, said], &at(1)).is_ok());
        }
    }

    fn at(port: u16) -> Place {
        Place::Tcp {
            host: "a".to_owned(),
            port,
        }
    }

    /// What a node at this port says: its state and its epoch. `None`: nothing.
    type Said = Option<(&'static str, u64)>;

    /// The port of the node that is believed, and how many nodes were asked.
    fn believed(said: &[Said], least_epoch: u64) -> (Option<u16>, usize) {
        let asked = std::cell::Cell::new(0);
        let places = (1..).take(said.len()).map(at);
        let view = View::best(places, least_epoch, |place| {
            asked.set(asked.get() + 1);
            let (state, epoch) =
                said[asked.get() - 1].ok_or_else(|| Failure::not_sent("silence"))?;
            let Place::Tcp { port, .. } = place else {
                unreachable!()
            };
            let server = Reply::Array(vec![Reply::Nil, Reply::Int((*port).into())]);
            let slots = Reply::Array(vec![Reply::Int(0), Reply::Int(16383), server]);
            View::new([Reply::Array(vec![slots]), info(state, epoch)], place)
        });
        let port = view.ok().map(|view| match &view.ranges[0].1 {
            Place::Tcp { port, .. } => *port,
            #[cfg(unix)]
            Place::Unix(_) => unreachable!(),
        });
        (port, asked.get())
    }

    #[test]
    fn the_first_node_that_is_well_and_up_to_date_is_believed() {
        let well = Some(("ok", 7));
        let old = Some(("ok", 6));
        let cut_off = Some(("fail", 9));
        assert_eq!(believed(&[well, None], 7), (Some(1), 1));
        assert_eq!(believed(&[None, cut_off, old, well, well], 7), (Some(4), 4));
        assert_eq!(believed(&[cut_off, well], 0), (Some(2), 2));
        assert_eq!(believed(&[None, None], 0), (None, 2));
    }

    #[test]
    fn without_such_a_node_a_few_are_compared() {
        let old = Some(("ok", 6));
        let older = Some(("ok", 5));
        let cut_off = Some(("fail", 9));
        assert_eq!(
            believed(&[cut_off, older, old], 7),
            (Some(3), 3),
            "of a cluster that was reset"
        );
        assert_eq!(believed(&[cut_off, None], 7), (Some(1), 2));
        assert_eq!(
            believed(&[cut_off, cut_off, cut_off, old], 7),
            (Some(1), 3),
            "the fourth is not asked"
        );
    }
}
