//! The master that the sentinels name, and the connections to it.
//!
//! Each new connection asks the sentinels first. If they name another master than before, or report
//! a switch, all connections to the old master are ended at once: those of the pool, the keeper's
//! and the listener's. A thread that is blocked in one of them gets an error, and tries again over
//! a new connection.

use std::fmt;
use std::mem;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::background::{Background, Stopped};
use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{info, warn};
use crate::base::sync::{Mutex, MutexGuard};
use crate::client::servers::sentinels::Sentinels;
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::link::Link;
use crate::client::wire::resp::Reply;
use crate::client::wire::stream::Ender;
use crate::client::wire::tls;

/// How often the thread checks whether it has to stop, while the sentinels report nothing.
const SILENCE: Duration = Duration::from_secs(1);

/// How often the thread asks all sentinels where the master is, although nothing was reported. A
/// report can be lost, the user may have no right to subscribe, and the sentinel that the thread
/// listens to may be cut off from the others, together with the old master.
pub(crate) const LOOKS_EVERY: Duration = Duration::from_secs(10);

pub(crate) struct Master {
    pub(crate) sentinels: Sentinels,
    /// TLS, if connections to the master use it.
    tls: Option<tls::Client>,
    state: Mutex<State>,
    /// Called after each switch.
    on_switch: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The thread that receives the sentinels' reports.
    watch: Background,
    /// A failure of the thread was logged, and it has not subscribed since.
    has_warned: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The server that is the master, as far as is known.
    endpoint: Option<Arc<Endpoint>>,
    /// How often `endpoint` has changed.
    generation: u64,
    /// The connections to `endpoint`, and those that are being opened to a server that a sentinel
    /// has named. Some may have been closed.
    open: Vec<Opened>,
}

struct Opened {
    ender: Ender,
    endpoint: Arc<Endpoint>,
    /// The sentinel that named the server.
    sentinel: Arc<Endpoint>,
}

impl State {
    /// True if another server than this one has become the master since `generation`. Then the
    /// sentinel that named this server may not have heard of that.
    fn has_left(&self, endpoint: &Endpoint, generation: u64) -> bool {
        self.generation != generation
            && self
                .endpoint
                .as_ref()
                .is_some_and(|it| it.name() != endpoint.name())
    }
}

impl Master {
    pub(crate) fn new(sentinels: Sentinels, tls: Option<tls::Client>) -> Master {
        Master {
            sentinels,
            tls,
            has_warned: AtomicBool::new(false),
            state: Mutex::default(),
            on_switch: OnceLock::new(),
            watch: Background::default(),
        }
    }

    /// Registers `call`, which is called after each switch.
    pub(crate) fn on_switch(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_switch.set(Box::new(call)); // The node sets it once.
    }

    /// The name of the master, and its address if that is known.
    pub(crate) fn describe(&self) -> String {
        let name = self.sentinels.name();
        match &self.state.lock().endpoint {
            Some(endpoint) => format!("{} ({name})", endpoint.name()),
            None => format!("{name} (sentinels {})", self.sentinels.addresses()),
        }
    }

    /// Opens a connection to the server that the sentinels name. `open` gets the server, and a
    /// function that it calls as soon as the connection can be ended; and it checks the server's
    /// role.
    ///
    /// If that fails because of a switch, the sentinels are asked again. If it fails for another
    /// reason, the sentinel that named the server is asked last the next time: perhaps only this
    /// sentinel has not heard of a switch. A server that refuses the login may be no master at all:
    /// a sentinel does so, since it has other users. So a refusal stands only if the next sentinel
    /// names this server, too.
    pub(crate) fn connect(
        &self,
        deadline: Moment,
        open: impl Fn(&Endpoint, &dyn Fn(Ender) -> Result<(), Failure>) -> Result<Link, Failure>,
    ) -> Result<Link, Failure> {
        let mut refusals: Vec<(Arc<Endpoint>, Failure)> = Vec::new();
        loop {
            let generation = self.state.lock().generation;
            let named = self.sentinels.master(deadline);
            let (place, sentinel) =
                named.map_err(|failure| refusals.pop().map_or(failure, |(_, refusal)| refusal))?;
            let endpoint = self.endpoint(place);
            if let Some(at) = refusals
                .iter()
                .position(|(by, _)| by.name() == endpoint.name())
            {
                return Err(refusals.swap_remove(at).1);
            }
            let opened = open(&endpoint, &|ender| {
                self.opened(generation, ender, &endpoint, &sentinel)
            });
            match opened.and_then(|link| self.confirmed(&endpoint, generation).map(|()| link)) {
                Ok(link) => return Ok(link),
                Err(failure) if !self.state.lock().has_left(&endpoint, generation) => {
                    self.sentinels.doubt(&sentinel);
                    if failure.can_pass() || !matches!(failure, Failure::Refused(_)) {
                        return Err(failure);
                    }
                    refusals.push((endpoint, failure));
                }
                Err(failure) if deadline <= Moment::now() => return Err(failure),
                Err(_) => {}
            }
        }
    }

    /// The endpoint at this place. The known one has the address that worked last.
    fn endpoint(&self, place: Place) -> Arc<Endpoint> {
        let found = Endpoint::new(place, self.tls.clone());
        let known = self.state.lock().endpoint.clone();
        known
            .filter(|known| known.name() == found.name())
            .unwrap_or_else(|| Arc::new(found))
    }

    /// Handles a refusal that only a server which is not the master sends, over the connection of
    /// `ender`. The sentinel that named the server is asked last from now on.
    ///
    /// Where the server does not know `HELLO`, or the user may not call it, only such a refusal
    /// shows that a sentinel names a replica. That sentinel would be asked first again, and no lock
    /// could be taken, although other sentinels know the master.
    pub(crate) fn refused_by_replica(&self, ender: &Ender) {
        let state = self.state.lock();
        // A connection from before a switch is not listed any more: the sentinel that named the old
        // master may be the one that has reported the switch.
        let opened = state.open.iter().find(|it| it.ender == *ender);
        let sentinel = opened.map(|it| Arc::clone(&it.sentinel));
        drop(state);
        if let Some(sentinel) = sentinel {
            self.sentinels.doubt(&sentinel);
        }
    }

    /// Notes a connection that was opened to the server that `sentinel` named, in answer to a
    /// question that was asked at `generation`.
    fn opened(
        &self,
        generation: u64,
        ender: Ender,
        endpoint: &Arc<Endpoint>,
        sentinel: &Arc<Endpoint>,
    ) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if state.has_left(endpoint, generation) {
            return Err(replaced());
        }
        if state.open.len() == state.open.capacity() {
            state.open.retain(|it| !it.ender.is_closed());
        }
        let (endpoint, sentinel) = (Arc::clone(endpoint), Arc::clone(sentinel));
        state.open.push(Opened {
            ender,
            endpoint,
            sentinel,
        });
        Ok(())
    }

    /// A server that the sentinels named has said that it is the master. If the master was elsewhere
    /// before, this is a switch that nobody reported.
    fn confirmed(&self, endpoint: &Arc<Endpoint>, generation: u64) -> Result<(), Failure> {
        let state = self.state.lock();
        if state.has_left(endpoint, generation) {
            return Err(replaced());
        }
        self.is_at(state, endpoint);
        Ok(())
    }

    /// Notes where the master is now, and ends all connections that lead elsewhere.
    ///
    /// At the start, no master is known. A thread may be opening a connection to the old master by
    /// then, because the sentinel that it asked has not heard of a switch.
    fn is_at(&self, mut state: MutexGuard<'_, State>, endpoint: &Arc<Endpoint>) {
        let before = state.endpoint.replace(Arc::clone(endpoint));
        if before
            .as_ref()
            .is_some_and(|before| before.name() == endpoint.name())
        {
            return;
        }
        if let Some(before) = &before {
            self.sentinels.leave(before.name());
        }
        state.generation += 1;
        let leads_here = |it: &Opened| it.endpoint.name() == endpoint.name();
        let (kept, ended): (Vec<_>, Vec<_>) =
            mem::take(&mut state.open).into_iter().partition(leads_here);
        state.open = kept;
        drop(state);
        for it in ended {
            it.ender.end();
        }
        if before.is_none() {
            return;
        }
        info!(target: "relatch::sentinel", "the master {:?} is at {} now", self.sentinels.name(), endpoint.name());
        if let Some(call) = self.on_switch.get() {
            call();
        }
    }

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
        match self.watch.stop(limit) {
            Stopped::Ended => {}
            Stopped::Panicked => warn!(target: "relatch::sentinel", "the thread had panicked"),
            Stopped::LeftBehind => warn!(target: "relatch::sentinel",
                "the thread still connects to a sentinel: it is left behind, and ends by itself"),
        }
    }

    fn run(&self, limit: Duration) {
        self.watch.enter();
        let (mut pauses, mut look_at) = (Backoff::for_listener(), Moment::now().after(LOOKS_EVERY));
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
        ask: impl Fn(&Sentinels, Moment) -> Result<(Place, Arc<Endpoint>), Failure>,
        limit: Duration,
    ) -> Result<(), Failure> {
        loop {
            let generation = self.state.lock().generation;
            let (place, _) = ask(&self.sentinels, Moment::now().after(limit))?;
            let endpoint = self.endpoint(place);
            let state = self.state.lock();
            if state.generation == generation {
                self.is_at(state, &endpoint);
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

    /// Follows the master from its old place to a new one. False if it was known to be elsewhere:
    /// then the report comes late, or an earlier one was missed.
    fn follow(&self, old: &Place, new: Place) -> bool {
        let endpoint = self.endpoint(new);
        let state = self.state.lock();
        let is_here = |name: &str| {
            state
                .endpoint
                .as_ref()
                .is_none_or(|here| here.name() == name)
        };
        let (was_here, is_there) = (is_here(&old.to_string()), is_here(endpoint.name()));
        if was_here {
            self.is_at(state, &endpoint);
        }
        was_here || is_there
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

fn replaced() -> Failure {
    Failure::not_sent("the master was replaced while the connection was opened")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::client::wire::login::{Access, Expected};

    fn master() -> Master {
        let access = Access::new(None, 0, Expected::Sentinel);
        Master::new(
            Sentinels::new("mymaster".to_owned(), [], access, None, false),
            None,
        )
    }

    fn at(port: u16) -> Arc<Endpoint> {
        Arc::new(Endpoint::new(
            Place::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            },
            None,
        ))
    }

    #[test]
    fn a_connection_that_was_asked_for_before_a_switch_counts_only_if_it_leads_to_the_new_master() {
        let master = master();
        for switch in [7002, 7003] {
            let asked = master.state.lock().generation;
            // Meanwhile another thread learns of the switch. (The first master counts like one.)
            master.is_at(master.state.lock(), &at(switch));
            assert!(master.confirmed(&at(7001), asked).is_err());
            assert!(
                master.describe().contains(&format!(":{switch} ")),
                "{}",
                master.describe()
            );
            master.confirmed(&at(switch), asked).expect("it is there");
        }
        // A switch that nobody has reported.
        let asked = master.state.lock().generation;
        master
            .confirmed(&at(7001), asked)
            .expect("it says that it is the master");
        assert!(master.describe().contains(":7001 "));
    }

    #[test]
    fn an_answer_that_a_switch_has_overtaken_is_asked_for_again() {
        let (master, asked) = (master(), Cell::new(0));
        let ask = |_: &Sentinels, _| {
            asked.set(asked.get() + 1);
            let named = if asked.get() == 1 { 7001 } else { 7003 };
            if asked.get() == 1 {
                master.is_at(master.state.lock(), &at(7002));
            }
            Ok((at(named).place().clone(), at(7000)))
        };
        master.look(ask, Duration::ZERO).expect("an answer");
        assert!(
            asked.get() == 2 && master.describe().contains(":7003 "),
            "{}",
            master.describe()
        );
    }

    /// Where the master is said to be is shown in errors and in the log.
    #[test]
    fn a_report_that_names_no_host_is_not_followed() {
        let (master, sentinel) = (master(), at(26379));
        master.is_at(master.state.lock(), &at(7001));
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
