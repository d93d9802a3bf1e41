//! Which of the servers that are asked for the map to believe.
//!
//! For a moment after a failover, some still name the old master, and a planned failover leaves it
//! writable. A node that was cut off from the others for a while does the same. A client that knows
//! better must not go back there: it would find none of its new locks, and take them for lost.
//!
//! Each failover has an epoch of its own, higher than those before. But the sentinel that leads a
//! failover names the new master before it shows the new epoch. So the master that was left is
//! remembered as well.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::servers::source::View;
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;

/// How long an epoch counts while nobody shows it, if not all can be asked. (Servers that were set
/// up anew begin with a lower epoch.) All are asked every ten seconds, so a server that knows the
/// epoch may miss two questions.
const COUNTS_FOR: Duration = Duration::from_secs(30);

/// How many maps of servers that are not well are compared. If the whole cluster is not well, all
/// maps may be old.
const MOST_DOUBTS: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The newest epoch that a server which is well has shown.
    newest: u64,
    /// Since when nobody has shown it. `None` if somebody did in the last poll.
    missing_since: Option<Moment>,
    /// The master that this process last switched away from, and the newest epoch at that time.
    left: Option<(Place, u64)>,
}

impl Epochs {
    /// True if the server with this view has not heard of the latest failover. Without an epoch,
    /// nobody can tell.
    fn is_outdated(&self, view: &View, doubted: Option<&Place>) -> bool {
        let Some(epoch) = view.epoch else {
            return false;
        };
        // If the master that was named instead cannot be used, the one that was left may be the
        // master after all.
        let was_left = self.left.as_ref().is_some_and(|(place, at)| {
            let is_successor_doubted = doubted.is_some_and(|it| it != place);
            !is_successor_doubted && view.only_master() == Some(place) && epoch <= *at
        });
        epoch < self.newest || was_left
    }

    /// Notes a view that is believed.
    fn note(&mut self, view: &View) {
        if let Some(epoch) = view
            .epoch
            .filter(|epoch| view.is_well && self.newest <= *epoch)
        {
            self.newest = epoch;
            self.missing_since = None;
        }
    }

    /// Notes that this is not the master any more.
    pub(crate) fn leave(&mut self, master: &Place) {
        self.left = Some((master.clone(), self.newest));
    }

    /// Forgets everything, because nobody knows better than this view.
    fn begin_anew(&mut self, view: &View) {
        *self = Epochs {
            newest: view.epoch.unwrap_or_default(),
            ..Epochs::default()
        };
    }
}

/// A question to one server after another.
pub(crate) struct Poll<'a> {
    epochs: &'a mut Epochs,
    /// A master that could not be used. An answer that names it counts for less than one with the
    /// same epoch that names another master.
    doubted: Option<&'a Place>,
    /// All are asked, and the newest epoch counts.
    asks_all: bool,
    /// The most informative of the views that are up to date, and of the others.
    current: Option<View>,
    outdated: Option<View>,
    /// How many views come from servers that are not well.
    doubts: u32,
    failures: Vec<(Arc<Endpoint>, Failure)>,
}

impl<'a> Poll<'a> {
    pub(crate) fn new(
        epochs: &'a mut Epochs,
        doubted: Option<&'a Place>,
        asks_all: bool,
    ) -> Poll<'a> {
        Poll {
            epochs,
            doubted,
            asks_all,
            current: None,
            outdated: None,
            doubts: 0,
            failures: Vec::new(),
        }
    }

    /// Takes in what one server has answered. True if no other server has to be asked.
    pub(crate) fn hear(&mut self, from: &Arc<Endpoint>, answer: Result<View, Failure>) -> bool {
        let view = match answer {
            Ok(view) => view,
            Err(failure) => {
                self.failures.push((Arc::clone(from), failure));
                return false;
            }
        };
        if view.ranges.is_empty() {
            return false;
        }
        let doubted = self.doubted;
        let undoubted = |view: &View| doubted.is_none() || view.only_master() != doubted;
        let is_outdated = self.epochs.is_outdated(&view, doubted);
        let is_sound = view.is_well && !is_outdated && undoubted(&view);
        self.doubts += u32::from(!view.is_well && !is_outdated);
        let rank = |view: &View| (view.is_well, view.epoch, undoubted(view));
        let best = if is_outdated {
            &mut self.outdated
        } else {
            &mut self.current
        };
        if best.as_ref().is_none_or(|best| rank(best) < rank(&view)) {
            *best = Some(view);
        }
        is_sound && !self.asks_all || self.doubts == MOST_DOUBTS
    }

    /// The view that is believed. One that is out of date is believed only if all have answered, or
    /// nobody has shown the newer epoch for a while: going back to the old master would cost more
    /// than a late map. Without a view, returns the failures.
    pub(crate) fn believe(self) -> Result<View, Vec<(Arc<Endpoint>, Failure)>> {
        let Poll {
            epochs,
            current,
            outdated,
            failures,
            ..
        } = self;
        let now = Moment::now();
        // (If nobody has answered, nobody can have forgotten it.)
        let is_answered = current.is_some() || outdated.is_some();
        let missing_since = is_answered.then(|| *epochs.missing_since.get_or_insert(now));
        let is_forgotten = missing_since.is_some_and(|since| now.since(since) > COUNTS_FOR);
        match (current, outdated) {
            (Some(view), _) if view.is_well => {
                epochs.note(&view);
                Ok(view)
            }
            (None, Some(old)) if failures.is_empty() || is_forgotten => {
                epochs.begin_anew(&old);
                Ok(old)
            }
            (Some(_), Some(old)) if old.is_well && is_forgotten => {
                epochs.begin_anew(&old);
                Ok(old)
            }
            (Some(view), _) => Ok(view),
            (None, _) => Err(failures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Place {
        Place::Tcp {
            host: "a".to_owned(),
            port,
        }
    }

    /// What a server says: the port of the master, the epoch, whether it is well.
    type Said = (u16, Option<u64>, bool);

    const SILENCE: Said = (0, None, false);

    fn well(port: u16, epoch: u64) -> Said {
        (port, Some(epoch), true)
    }

    fn cut_off(port: u16, epoch: u64) -> Said {
        (port, Some(epoch), false)
    }

    /// The port of the master that is believed, and how many servers were asked.
    fn ask(epochs: &mut Epochs, doubted: Option<u16>, all: bool, said: &[Said]) -> (u16, usize) {
        let doubted = doubted.map(at);
        let from = Arc::new(Endpoint::new(at(9), None));
        let mut poll = Poll::new(epochs, doubted.as_ref(), all);
        let content = said.iter().position(|said @ &(port, epoch, is_well)| {
            let view = View {
                is_well,
                epoch,
                ..View::of_one(at(port), at(9))
            };
            let silence = Failure::not_sent("silence");
            let answer = if *said == SILENCE {
                Err(silence)
            } else {
                Ok(view)
            };
            poll.hear(&from, answer)
        });
        let master = match poll.believe().map(|it| it.only_master().cloned()) {
            Ok(Some(Place::Tcp { port, .. })) => port,
            _ => 0,
        };
        (master, content.map_or(said.len(), |at| at + 1))
    }

    /// The newest epoch is this one.
    fn epochs(newest: u64) -> Epochs {
        Epochs {
            newest,
            ..Epochs::default()
        }
    }

    #[test]
    fn the_first_that_is_well_and_up_to_date_is_believed() {
        let first = |newest, said: &[Said]| ask(&mut epochs(newest), None, false, said);
        assert_eq!(first(7, &[well(1, 7), SILENCE]), (1, 1));
        let all = [SILENCE, cut_off(2, 9), well(3, 6), well(4, 7), well(5, 8)];
        assert_eq!(first(7, &all), (4, 4));
        assert_eq!(first(0, &[SILENCE, SILENCE]), (0, 2));
        assert_eq!(first(7, &[(1, None, true)]), (1, 1), "nobody can tell");
        assert_eq!(first(7, &[cut_off(1, 9), SILENCE]), (1, 2));
        let all = [cut_off(1, 9), cut_off(2, 9), cut_off(3, 9), well(4, 9)];
        assert_eq!(first(7, &all), (1, 3), "the fourth is not asked");
    }

    /// They were set up anew, and one is left over from before.
    #[test]
    fn an_older_epoch_counts_if_all_have_answered_or_nobody_shows_the_newer_one_for_long() {
        let older = [well(1, 5), well(2, 6)];
        assert_eq!(ask(&mut epochs(7), None, false, &older), (2, 2));
        let mut epochs = epochs(7);
        let ask = |epochs: &mut Epochs, said: &[Said]| ask(epochs, None, false, said).0;
        assert_eq!(
            ask(&mut epochs, &[well(1, 6), SILENCE]),
            0,
            "the silent one may know better"
        );
        assert_eq!(ask(&mut epochs, &[cut_off(1, 9), well(2, 6)]), 1);
        let is_missing = |span| Some(Moment::now().before(span));
        epochs.missing_since = is_missing(COUNTS_FOR / 3 * 2);
        assert_eq!(
            ask(&mut epochs, &[well(1, 6), SILENCE]),
            0,
            "it has missed two questions"
        );
        epochs.missing_since = is_missing(2 * COUNTS_FOR);
        assert_eq!(ask(&mut epochs, &[cut_off(1, 9), well(2, 6)]), 2);
        assert_eq!(
            ask(&mut epochs, &[well(1, 5), SILENCE]),
            0,
            "it begins anew with that epoch"
        );
    }

    /// The process was stopped for a long time before it asked.
    #[test]
    fn only_polls_show_that_an_epoch_is_missing() {
        let mut epochs = epochs(7);
        assert_eq!(ask(&mut epochs, None, false, &[well(1, 7)]), (1, 1));
        assert!(epochs.missing_since.is_none());
        ask(&mut epochs, None, false, &[well(1, 6), SILENCE]);
        let since = epochs.missing_since;
        ask(&mut epochs, None, false, &[SILENCE]);
        assert!(since.is_some() && epochs.missing_since == since);
        ask(&mut epochs, None, false, &[well(1, 8)]);
        assert!(epochs.missing_since.is_none());
    }

    #[test]
    fn the_newest_of_all_counts_and_one_without_an_epoch_only_if_no_other_shows_one() {
        let newest = |said: &[Said]| ask(&mut Epochs::default(), None, true, said);
        let unknown = |port| (port, None, true);
        assert_eq!(newest(&[well(1, 3), unknown(2), well(2, 4)]), (2, 3));
        assert_eq!(newest(&[unknown(3), well(1, 3), well(2, 4)]), (2, 3));
        assert_eq!(newest(&[unknown(1), unknown(2), SILENCE]), (1, 3));
    }

    /// The sentinel that leads a failover names 2 before it shows the new epoch.
    #[test]
    fn the_master_that_was_left_does_not_count_at_the_epoch_at_which_it_was_left() {
        let mut epochs = epochs(3);
        epochs.leave(&at(1));
        let ask = |epochs: &mut Epochs, said: &[Said]| ask(epochs, None, false, said).0;
        assert_eq!(ask(&mut epochs, &[well(1, 3), well(2, 3)]), 2);
        assert_eq!(ask(&mut epochs, &[well(1, 3), SILENCE]), 0);
        assert_eq!(
            ask(&mut epochs, &[well(1, 4)]),
            1,
            "a later failover leads back"
        );
    }

    #[test]
    fn a_master_that_cannot_be_used_counts_less_than_another_of_the_same_epoch() {
        let ask = |said: &[Said]| ask(&mut epochs(3), Some(1), false, said);
        assert_eq!(ask(&[well(1, 3), well(2, 3), well(3, 3)]), (2, 2));
        assert_eq!(ask(&[well(1, 3), well(1, 3)]), (1, 2));
        assert_eq!(
            ask(&[well(1, 4), well(2, 3)]),
            (1, 2),
            "the other has not heard of it"
        );
        assert_eq!(
            ask(&[well(1, 3), well(2, 2)]),
            (1, 2),
            "that one is out of date"
        );
        let mut left = epochs(3);
        left.leave(&at(2));
        let said = [well(1, 3), well(2, 3)];
        assert_eq!(super::tests::ask(&mut left, Some(1), false, &said), (2, 2));
    }
}
