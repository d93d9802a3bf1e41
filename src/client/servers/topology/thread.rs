//! The thread that asks for the map, and tells which keys have a different node than before.
//!
//! It asks one server after another until it finds one that is well and up to date. Since only this
//! thread asks, and pauses, a storm of errors costs about one map a second.

use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::client::servers::slots::slot;
use crate::client::servers::source::belief::{Epochs, Poll};
use crate::client::servers::source::{Limits, News, Source, View};
use crate::client::servers::topology::shared::Shared;
use crate::client::servers::topology::turns::in_turn;
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::resp::Reply;
use crate::client::wire::subscription::Subscription;

/// How often the map is asked for even if nothing shows that it is out of date. A node that was
/// demoted may keep its connections open and stay silent: then no waiter would learn of its
/// successor. A report can be lost, too, and the sentinel that sends the reports may be cut off
/// from the others, together with the old master.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// The pause after a map of a cluster was read. Meanwhile, threads follow redirects.
pub(super) const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// The longest pause after a map that brought no news, or after no map, where answers cost little.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How often the thread checks whether it has to stop, while nothing is reported.
const SILENCE: Duration = Duration::from_secs(1);

pub(super) struct Reader<'a> {
    shared: &'a Arc<Shared>,
    epochs: Epochs,
    /// When all are asked again.
    look_at: Moment,
    pauses: Backoff,
    /// The same map has come again although something had shown that it is out of date.
    repeats: bool,
    /// Who reports changes.
    reports: Option<(Subscription, Arc<Endpoint>)>,
    subscribe_at: Moment,
    subscribe_pauses: Backoff,
    /// The log says that nobody reports changes.
    is_unreported: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Reader<'a> {
        Reader {
            shared,
            epochs: Epochs::default(),
            look_at: Moment::now().after(LOOKS_EVERY),
            pauses: Backoff::for_listener(),
            repeats: false,
            reports: None,
            subscribe_at: Moment::PAST,
            subscribe_pauses: Backoff::for_listener(),
            is_unreported: false,
        }
    }

    pub(super) fn run(mut self) {
        if let Some(source) = self.shared.source() {
            while !self.shared.thread.is_stopping() {
                self.round(source);
            }
        }
    }

    /// Asks for the map once, and sleeps until it is to be asked for again.
    fn round(&mut self, source: &dyn Source) {
        let mut state = self.shared.state.lock();
        let wanted = mem::take(&mut state.wanted);
        let doubted = state.doubted.take();
        state.begun += 1;
        drop(state);
        let began = Moment::now();
        let is_look = self.look_at <= began;
        if is_look || !source.is_quick() {
            self.look_at = began.after(LOOKS_EVERY);
            if self.reports.is_some() {
                self.subscribe_pauses.reset();
            }
        }
        let read = self.read(source, doubted.as_ref(), is_look && source.is_quick());
        if self.shared.thread.is_stopping() {
            return;
        }
        let is_new = match read {
            Ok(view) => Some(self.take_in(source, &view, began)),
            Err(failure) => {
                self.note(source, failure);
                None
            }
        };
        // `wanted`: something has shown that the map is out of date. If the same map has come
        // again, its sender may not have heard of the change yet. So the map is read once more;
        // only once, since there may be no change. Without this, a waiter that has followed a
        // redirect would poll until the map shows its node.
        self.repeats = wanted && is_new == Some(false) && !self.repeats;
        if self.repeats {
            self.shared.state.lock().wanted = true;
        }
        let pause = self.pause(source, is_new);
        let nodes = self.shared.state.lock().nodes.nodes();
        for node in nodes {
            node.sweep(); // It closes idle connections.
        }
        if self.subscribed(source) {
            return; // There may have been a change just before.
        }
        self.sleep(source, Moment::now().after(pause), false);
        self.sleep(source, self.look_at, true);
    }

    fn pause(&mut self, source: &dyn Source, is_new: Option<bool>) -> Duration {
        let [least, longest] = if source.is_quick() {
            [Duration::ZERO, LONGEST_PAUSE]
        } else {
            [LEAST_INTERVAL; 2]
        };
        if is_new.is_some_and(|is_new| is_new || !source.is_quick()) {
            self.pauses.reset();
            least
        } else {
            self.pauses.pause().min(longest)
        }
    }

    /// Asks one server after another. With `asks_all`, the newest answer counts.
    fn read(
        &mut self,
        source: &dyn Source,
        doubted: Option<&Place>,
        asks_all: bool,
    ) -> Result<View, Failure> {
        let shared = self.shared;
        let mut is_patient = false;
        loop {
            let known = shared.state.lock().nodes.endpoints();
            let candidates = source.candidates(known);
            let mut poll = Poll::new(&mut self.epochs, doubted, asks_all);
            let ask = |candidate: &_, limits: &Limits<'_>| {
                poll.hear(candidate, source.ask(candidate, limits))
            };
            let silent = in_turn(shared, source, &candidates, is_patient, ask);
            let failure = match poll.believe() {
                Ok(view) => return Ok(view),
                Err(failures) => source.explain(failures),
            };
            // Where an answer costs little, and somebody was there to answer, nobody is far away.
            let is_near = source.is_quick() && silent < candidates.len();
            if silent == 0 || is_patient || is_near || !failure.can_pass() {
                return Err(failure);
            }
            // Perhaps they are far away, or the machine is busy.
            is_patient = true;
        }
    }

    /// Notes that nobody has sent a map.
    fn note(&self, source: &dyn Source, failure: Failure) {
        let mut state = self.shared.state.lock();
        state.ended = state.begun;
        let is_news = state.failure.is_none();
        let told = failure.copy();
        state.failure = Some(failure);
        drop(state);
        self.shared.changed.notify_all();
        if is_news {
            source.tell(News::Failing(&told));
        }
    }

    /// Takes in what a server says, and tells which keys have a different node now (`on_move`).
    /// True if there are such keys, or no map was known before.
    ///
    /// A command that found its node in the old map may still open a connection there, or use one:
    /// all of these connections end here, before the keys are reported.
    fn take_in(&mut self, source: &dyn Source, view: &View, began: Moment) -> bool {
        let shared = self.shared;
        if let Some(copies) = view.copies {
            shared.common.has_replicas(copies);
        }
        source.prefer(&view.sender);
        let mut state = shared.state.lock();
        state.began = began;
        state.ended = state.begun;
        let was_failing = state.failure.take().is_some();
        let before = state.nodes.map().cloned();
        if before.is_none() {
            state.wanted = false; // What was wanted was the first map.
        }
        let map = state.nodes.take_in(view);
        let gone = state.nodes.forget(LOOKS_EVERY);
        drop(state);
        shared.changed.notify_all();
        if was_failing {
            source.tell(News::Back);
        }
        for node in &gone {
            node.retire();
        }
        let Some(before) = before else {
            return true;
        };
        if let ([old], [new]) = (&*before.masters, &*map.masters)
            && old.number != new.number
        {
            self.epochs.leave(old.endpoint.place());
        }
        let moved = map.differs_from(&before);
        let count = moved.iter().filter(|moved| **moved).count();
        if count > 0 {
            source.tell(News::Moved(count, view));
            if let Some(call) = shared.on_move.get() {
                call(&|key| moved[usize::from(slot(key))]);
            }
        }
        count > 0
    }

    /// Subscribes to reports, if there are any, and it is time. True if that has succeeded just
    /// now.
    fn subscribed(&mut self, source: &dyn Source) -> bool {
        if self.reports.is_some() || Moment::now() < self.subscribe_at {
            return false;
        }
        let all = source.candidates(Vec::new());
        let mut last = None;
        let (shared, reports) = (self.shared, &mut self.reports);
        let mut ask = |candidate: &Arc<_>, limits: &Limits<'_>| {
            match source.subscribe(candidate, limits) {
                Some(Ok(subscription)) => *reports = Some((subscription, Arc::clone(candidate))),
                Some(Err(failure)) => _ = last.get_or_insert(failure),
                None => {}
            }
            reports.is_some()
        };
        if in_turn(shared, source, &all, false, &mut ask) == all.len() {
            in_turn(shared, source, &all, true, ask);
        }
        if let Some((_, sentinel)) = &self.reports {
            source.prefer(sentinel.place());
            if mem::take(&mut self.is_unreported) {
                source.tell(News::Reported);
            }
            return true;
        }
        self.subscribe_at = last.map_or(Moment::NEVER, |failure| {
            self.unreported(source, &failure);
            Moment::now().after(self.subscribe_pauses.pause())
        });
        false
    }

    fn unreported(&mut self, source: &dyn Source, failure: &Failure) {
        if !mem::replace(&mut self.is_unreported, true) && !self.shared.thread.is_stopping() {
            source.tell(News::Unreported(failure));
        }
    }
}

impl Reader<'_> {
    /// Sleeps until this moment. Returns early if the thread has to stop, if a report has come and,
    /// if it `heeds` that, when something wants the map.
    fn sleep(&mut self, source: &dyn Source, until: Moment, heeds: bool) {
        let shared = self.shared;
        let Some((mut subscription, sentinel)) = self.reports.take() else {
            return self.sleep_without_reports(until, heeds);
        };
        let ender = subscription.ender();
        let mut state = shared.state.lock();
        if heeds && state.wanted || until <= Moment::now() {
            drop(state);
            self.reports = Some((subscription, sentinel));
            return;
        }
        state.sleeps_in = Some(ender.clone()).filter(|_| heeds);
        drop(state);
        let mut is_reported = false;
        let mut hear = |said: Option<Reply>| {
            if let Some(said) = said.as_ref().and_then(Reply::text) {
                is_reported = source.is_change(said);
            }
            let is_over = shared.thread.is_stopping() || until <= Moment::now();
            if is_over || is_reported {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let silence = until.since(Moment::now()).min(SILENCE);
        let patience = shared.common.connect_timeout;
        let ended = if shared.thread.ends_by(move || ender.end()) {
            subscription.listen((silence, patience), &mut hear)
        } else {
            Ok(())
        };
        let is_wanted = heeds && shared.state.lock().sleeps_in.take().is_none();
        match ended {
            Ok(()) if !is_wanted => self.reports = Some((subscription, Arc::clone(&sentinel))),
            Err(failure) if !is_wanted => {
                self.unreported(source, &failure);
                self.subscribe_at = Moment::now().after(self.subscribe_pauses.pause());
            }
            _ => self.subscribe_at = Moment::PAST,
        }
        if is_reported {
            // This sentinel knows of the change, and others may not know yet. Its answer comes with
            // an epoch. The report has none, and may be one of several that come late.
            source.prefer(sentinel.place());
            shared.state.lock().wanted = true;
        }
    }

    fn sleep_without_reports(&self, until: Moment, heeds: bool) {
        let shared = self.shared;
        if !heeds {
            return shared.thread.pause(until.since(Moment::now()));
        }
        let weak = Arc::downgrade(shared);
        let wake = move || {
            if let Some(shared) = weak.upgrade() {
                shared.want(&mut shared.state.lock());
            }
        };
        if shared.thread.ends_by(wake) {
            let until = until.min(self.subscribe_at);
            let mut state = shared.state.lock();
            while !state.wanted && Moment::now() < until {
                let wait = until.one_wait_from(Moment::now());
                shared.changed.wait_for(&mut state, wait);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::base::options::Settings;
    use crate::client::servers::node::{Common, Node};
    use crate::client::servers::source::cluster::Cluster;
    use crate::client::servers::source::sentinel::Sentinels;
    use crate::client::servers::topology::nodes::Nodes;
    use crate::client::wire::login::{Access, Expected};

    fn at(port: u16) -> Place {
        Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        }
    }

    fn view(port: u16) -> View {
        View::of_one(at(port), at(port))
    }

    fn shared(expected: Expected) -> Arc<Shared> {
        let access = Access::new(None, 0, expected);
        let common = Arc::new(Common::new(access, &Settings::default()).unwrap());
        let nodes = Nodes::new(None, Arc::clone(&common));
        let source: Box<dyn Source> = if expected == Expected::ClusterNode {
            let common = Arc::clone(&common);
            let seeds = vec![Arc::new(Endpoint::new(at(7001), None))];
            Box::new(Cluster { seeds, common })
        } else {
            let access = Access::new(None, 0, Expected::Sentinel);
            let name = "mymaster".to_owned();
            Box::new(Sentinels::new(name, [at(1)], access, None, false))
        };
        Arc::new(Shared::new(Some(source), nodes, common))
    }

    const CLUSTER: Expected = Expected::ClusterNode;
    const SENTINELS: Expected = Expected::Master;

    fn take_in(reader: &mut Reader<'_>, view: &View, began: Moment) {
        reader.take_in(reader.shared.source().unwrap(), view, began);
    }

    fn owner(shared: &Shared) -> Arc<Node> {
        shared.state.lock().nodes.owner(b"").unwrap()
    }

    fn master(shared: &Shared) -> Place {
        owner(shared).endpoint.place().clone()
    }

    #[test]
    fn a_map_is_as_old_as_the_question_for_it() {
        let (shared, asked) = (self::shared(CLUSTER), Moment::now());
        take_in(&mut Reader::new(&shared), &view(7001), asked);
        let is_known = |since| shared.map_since(since, Moment::PAST).is_ok();
        assert!(is_known(Moment::PAST) && is_known(asked));
        assert!(!is_known(asked.after(Duration::from_nanos(1))));
    }

    /// Otherwise all processes would ask the same node.
    #[test]
    fn each_master_is_asked_first_at_times() {
        let shared = self::shared(CLUSTER);
        let ranges = (0..3).map(|n| (n..=n, at(7001 + n)));
        let view = View {
            ranges: ranges.collect(),
            ..view(7001)
        };
        take_in(&mut Reader::new(&shared), &view, Moment::now());
        let asked = || shared.state.lock().nodes.endpoints()[0].place().clone();
        let first: BTreeSet<_> = (0..200).map(|_| asked()).collect();
        assert_eq!(first, [7001, 7002, 7003].map(at).into());
    }

    /// Otherwise the keeper would renew a lock that was just taken: once more for each process.
    #[test]
    fn the_first_map_moves_no_keys_and_each_other_one_moves_them_once() {
        for expected in [CLUSTER, SENTINELS] {
            let shared = self::shared(expected);
            let moves = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&moves);
            let _ = shared
                .on_move
                .set(Box::new(move |_| _ = count.fetch_add(1, Ordering::Relaxed)));
            let mut reader = Reader::new(&shared);
            let after = |map| {
                take_in(&mut reader, &map, Moment::now());
                moves.load(Ordering::Relaxed)
            };
            let moved = [view(7001), view(7001), view(7002)].map(after);
            assert_eq!(moved, [0, 0, 1]);
        }
    }

    /// By the time the keys are reported, no thread gets a connection there.
    #[test]
    fn the_node_that_was_left_is_retired_before_its_keys_are_told() {
        let shared = self::shared(SENTINELS);
        let mut reader = Reader::new(&shared);
        take_in(&mut reader, &view(7001), Moment::now());
        let old = owner(&shared);
        let seen = Arc::new(AtomicU64::new(0));
        let (sees, left) = (Arc::clone(&seen), Arc::clone(&old));
        let _ = shared.on_move.set(Box::new(move |_| {
            let is_retired = left.is_retired() && left.lend(Moment::NEVER).is_err();
            sees.store(1 + u64::from(is_retired), Ordering::Relaxed);
        }));
        take_in(&mut reader, &view(7002), Moment::now());
        assert_eq!(seen.load(Ordering::Relaxed), 2);
        assert_eq!(master(&shared), at(7002));
    }
}
