//! The thread that hears of another master: from the sentinels' reports, or because it asks them
//! all.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{info, warn};
use crate::client::servers::sentinel::master::Master;
use crate::client::servers::sentinel::named::NamedMaster;
use crate::client::servers::sentinel::sentinels::Sentinels;
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::resp::Reply;

/// How often the thread checks whether it has to stop, while the sentinels report nothing.
const SILENCE: Duration = Duration::from_secs(1);

/// How often the thread asks all sentinels where the master is, although nothing was reported. A
/// report can be lost, the user may have no right to subscribe, and the sentinel that the thread
/// listens to may be cut off from the others, together with the old master.
pub(crate) const LOOKS_EVERY: Duration = Duration::from_secs(10);

impl Master {
    /// Starts the thread that receives the sentinels' reports, once. Each of its connections is
    /// opened, and each of its questions answered, within `limit`.
    pub(crate) fn watch(self: &Arc<Master>, limit: Duration) {
        if !self.watch.was_started() {
            let master = Arc::clone(self);
            if let Err(error) = self
                .watch
                .start("relatch-sentinel", move || master.run(limit))
            {
                self.warn_once(&error);
            }
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self, limit: Duration) {
        if let Err(what) = self.watch.stop(limit) {
            warn!(target: "relatch::sentinel", "the thread that listens to the sentinels {what}");
        }
    }

    fn run(&self, limit: Duration) {
        let mut pauses = Backoff::for_listener();
        let mut look_at = Moment::now().after(LOOKS_EVERY);
        while !self.watch.is_stopping() {
            let began = Moment::now();
            let ended = self.receive(limit, &mut look_at);
            if self.watch.is_stopping() {
                return;
            }
            if let Err(failure) = ended {
                self.warn_once(&failure.into_cause());
            }
            if began.after(LOOKS_EVERY) <= Moment::now() {
                pauses.reset();
            }
            self.look_if_due(&mut look_at, limit);
            self.watch
                .pause(pauses.pause().min(look_at.since(Moment::now())));
        }
    }

    /// Asks all sentinels if it is time for that.
    fn look_if_due(&self, look_at: &mut Moment, limit: Duration) {
        if *look_at <= Moment::now() {
            // Without an answer, the next connection asks.
            let _ = self.look(Sentinels::newest_master, limit);
            *look_at = Moment::now().after(LOOKS_EVERY);
        }
    }

    /// Subscribes, and receives reports until the connection ends.
    fn receive(&self, limit: Duration, look_at: &mut Moment) -> Result<(), Failure> {
        let (subscription, sentinel) = self.sentinels.subscribe(Moment::now().after(limit))?;
        let ender = subscription.ender();
        if !self.watch.ends_by(move || ender.end()) {
            return Ok(());
        }
        // The sentinels may have reported a switch before this connection subscribed.
        self.look(Sentinels::master, limit)?;
        if self.has_warned.swap(false, Ordering::Relaxed) {
            info!(target: "relatch::sentinel", "a sentinel reports switches again");
        }
        subscription.listen((SILENCE, limit), |report| {
            if self.watch.is_stopping() {
                return ControlFlow::Break(());
            }
            self.look_if_due(look_at, limit);
            if let Some(report) = report.as_ref().and_then(Reply::text) {
                self.heard(report, &sentinel, limit);
            }
            ControlFlow::Continue(())
        })
    }

    /// Asks where the master is, and how many replicas it has. `ask` is [`Sentinels::master`] or
    /// [`Sentinels::newest_master`].
    fn look(
        &self,
        ask: impl Fn(&Sentinels, Moment) -> Result<NamedMaster, Failure>,
        limit: Duration,
    ) -> Result<(), Failure> {
        loop {
            let generation = self.state.lock().generation;
            let named = ask(&self.sentinels, Moment::now().after(limit))?;
            let endpoint = self.endpoint(named.place);
            let state = self.state.lock();
            if state.generation == generation {
                self.move_to(state, &endpoint);
                return Ok(());
            }
            // Another thread has learnt of a switch, so the answer may be older than that.
        }
    }

    /// Handles a report: a switch of any master, or a promoted or new replica of any master.
    fn heard(&self, report: &str, sentinel: &Arc<Endpoint>, limit: Duration) {
        let words: Vec<_> = report.split(' ').collect();
        // Without an answer, the next connection asks.
        let look = || _ = self.look(Sentinels::master, limit);
        match words[..] {
            [name, old_host, old_port, host, port] if name == self.sentinels.name() => {
                // This sentinel knows of the switch. Others may not know yet.
                self.sentinels.prefer(sentinel);
                let places = place(old_host, old_port).zip(place(host, port));
                if !places.is_some_and(|(old, new)| self.follow(&old, new)) {
                    look();
                }
            }
            ["slave", .., name, _, _] if name == self.sentinels.name() => {
                self.sentinels.prefer(sentinel);
                look();
            }
            _ => {}
        }
    }

    /// A sentinel reports that the master has moved from `old` to `new`. Follows it if the master
    /// was at `old`, or nowhere yet. False if the master was known at a third place: then the
    /// report comes late, or an earlier one was missed.
    fn follow(&self, old: &Place, new: Place) -> bool {
        let endpoint = self.endpoint(new);
        let state = self.state.lock();
        let may_be_at = |name: &str| {
            state
                .endpoint
                .as_ref()
                .is_none_or(|here| here.name() == name)
        };
        let was_at_old = may_be_at(&old.to_string());
        let is_at_new = may_be_at(endpoint.name());
        if was_at_old {
            self.move_to(state, &endpoint);
        }
        was_at_old || is_at_new
    }

    fn warn_once(&self, failure: &dyn fmt::Display) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            warn!(target: "relatch::sentinel",
                "no sentinel reports switches, so a switch is noticed when the old master fails, or after \
                some ten seconds: {failure}");
        }
    }
}

fn place(host: &str, port: &str) -> Option<Place> {
    Place::announced(host, port.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::client::servers::sentinel::master::tests::{at, master};
    use crate::simulation::garbled;

    #[test]
    fn an_answer_that_a_switch_has_overtaken_is_asked_for_again() {
        let master = master();
        let asked = Cell::new(0);
        let ask = |_: &Sentinels, _| {
            asked.set(asked.get() + 1);
            let named = if asked.get() == 1 { 7001 } else { 7003 };
            if asked.get() == 1 {
                master.move_to(master.state.lock(), &at(7002));
            }
            Ok(NamedMaster {
                place: at(named).place().clone(),
                sentinel: at(7000),
                epoch: None,
                replicas: None,
            })
        };
        master.look(ask, Duration::ZERO).expect("an answer");
        assert!(
            asked.get() == 2 && master.describe().contains(":7003 "),
            "{}",
            master.describe()
        );
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        /// Where the master is said to be is shown in errors and in the log.
        #[test]
        fn any_report_is_followed_or_not(
            reports in proptest::collection::vec(garbled::text(prop_oneof![
                "mymaster 127.0.0.1 700[12] (127.0.0.1|db-2.example|::1) 700[123]",
                "slave 127.0.0.1:7001 127.0.0.1 7001 @ mymaster 127.0.0.1 7002",
            ]), 1..4),
        ) {
            let master = master();
            master.move_to(master.state.lock(), &at(7001));
            for report in reports {
                master.heard(&report, &at(26379), Duration::ZERO);
                let shown = master.describe();
                prop_assert!(garbled::is_one_line(&shown) && shown.is_ascii(), "{:?}", shown);
            }
        }
    }

    /// Where the master is said to be is shown in errors and in the log.
    #[test]
    fn a_report_that_names_no_host_is_not_followed() {
        let master = master();
        let sentinel = at(26379);
        master.move_to(master.state.lock(), &at(7001));
        for host in ["a\nERROR", "a\u{1b}[2J", ""] {
            master.heard(
                &format!("mymaster 127.0.0.1 7001 {host} 7002"),
                &sentinel,
                Duration::ZERO,
            );
            assert!(
                master.describe().contains(":7001 "),
                "{:?}",
                master.describe()
            );
        }
        master.heard(
            "mymaster 127.0.0.1 7001 127.0.0.1 7002",
            &sentinel,
            Duration::ZERO,
        );
        assert!(
            master.describe().contains(":7002 "),
            "{}",
            master.describe()
        );
    }
}
