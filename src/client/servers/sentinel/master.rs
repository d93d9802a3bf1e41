//! The master that the sentinels name, and the connections to it.
//!
//! Each new connection asks the sentinels first. If they name another master than before, or report
//! a switch, all connections to the old master are ended at once: those of the pool, the keeper's
//! and the listener's. A thread that is blocked in one of them gets an error, and tries again over
//! a new connection.

use std::mem;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crate::base::background::Background;
use crate::base::clock::Moment;
use crate::base::emit::info;
use crate::base::sync::{Mutex, MutexGuard};
use crate::client::servers::sentinel::named::NamedMaster;
use crate::client::servers::sentinel::sentinels::Sentinels;
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::link::Link;
use crate::client::wire::socket::Ender;
use crate::client::wire::tls;

pub(crate) struct Master {
    pub(crate) sentinels: Sentinels,
    /// TLS, if connections to the master use it.
    tls: Option<tls::Client>,
    pub(super) state: Mutex<MasterState>,
    /// Called after each switch.
    on_switch: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The thread that receives the sentinels' reports.
    pub(super) watch: Background,
    /// A failure of the thread was logged, and it has not subscribed since.
    pub(super) has_warned: AtomicBool,
}

#[derive(Default)]
pub(super) struct MasterState {
    /// The server that is the master, as far as is known.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    /// How often `endpoint` has changed.
    pub(super) generation: u64,
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

impl MasterState {
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
    /// reason, the sentinel that named the server is asked last from now on: perhaps only this
    /// sentinel has not heard of a switch. A server that refuses the login may be no master at all:
    /// a sentinel does so, since it has other users. So if no connection can be made, or a refusal
    /// cannot pass, that stands only if another answer names this server, too, or if no sentinel
    /// answers any more.
    pub(crate) fn connect(
        &self,
        deadline: Moment,
        open: impl Fn(&Endpoint, &dyn Fn(Ender) -> Result<(), Failure>) -> Result<Link, Failure>,
    ) -> Result<Link, Failure> {
        let mut refusals: Vec<(Arc<Endpoint>, Failure)> = Vec::new();
        loop {
            let generation = self.state.lock().generation;
            let named = self.sentinels.master(deadline);
            let NamedMaster {
                place, sentinel, ..
            } = named.map_err(|failure| refusals.pop().map_or(failure, |(_, refusal)| refusal))?;
            let endpoint = self.endpoint(place);
            if let Some(at) = refusals
                .iter()
                .position(|(refusing, _)| refusing.name() == endpoint.name())
            {
                return Err(refusals.swap_remove(at).1);
            }
            let opened = open(&endpoint, &|ender| {
                self.opened(generation, ender, &endpoint, &sentinel)
            });
            match opened.and_then(|link| self.confirmed(&endpoint, generation).map(|()| link)) {
                Ok(link) => return Ok(link),
                // There was a switch meanwhile: the sentinels are asked again, if there is time.
                Err(failure) if self.state.lock().has_left(&endpoint, generation) => {
                    if deadline <= Moment::now() {
                        return Err(failure);
                    }
                }
                Err(failure) => {
                    self.sentinels.doubt(&sentinel);
                    match &failure {
                        Failure::NotSent(_) if refusals.len() < self.sentinels.all().len() => {}
                        Failure::Refused(_) if !failure.can_pass() => {}
                        _ => return Err(failure),
                    }
                    refusals.push((endpoint, failure));
                }
            }
        }
    }

    /// The endpoint at this place. The known one has the address that worked last.
    pub(super) fn endpoint(&self, place: Place) -> Arc<Endpoint> {
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
        // A connection from before a switch is not listed any more, and then no sentinel is
        // doubted: the one that named the old master may be the one that has reported the switch.
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
        let endpoint = Arc::clone(endpoint);
        let sentinel = Arc::clone(sentinel);
        state.open.push(Opened {
            ender,
            endpoint,
            sentinel,
        });
        Ok(())
    }

    /// A server that the sentinels named has said that it is the master. If the master was
    /// elsewhere before, this is a switch that nobody reported.
    fn confirmed(&self, endpoint: &Arc<Endpoint>, generation: u64) -> Result<(), Failure> {
        let state = self.state.lock();
        if state.has_left(endpoint, generation) {
            return Err(replaced());
        }
        self.move_to(state, endpoint);
        Ok(())
    }

    /// Notes where the master is now, and ends all connections that lead elsewhere.
    ///
    /// At the start, no master is known. A thread may be opening a connection to the old master by
    /// then, because the sentinel that it asked has not heard of a switch.
    pub(super) fn move_to(&self, mut state: MutexGuard<'_, MasterState>, endpoint: &Arc<Endpoint>) {
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
}

fn replaced() -> Failure {
    Failure::not_sent("the master was replaced while the connection was opened")
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use relatch_rig::{FakeServer, Reply as Say};

    use super::*;
    use crate::client::wire::login::{Access, Expected};

    pub(in super::super) fn master() -> Master {
        let access = Access::new(None, 0, Expected::Sentinel);
        Master::new(
            Sentinels::new("mymaster".to_owned(), [], access, None, false),
            None,
        )
    }

    pub(in super::super) fn at(port: u16) -> Arc<Endpoint> {
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
            // Meanwhile another thread learns of the switch. (To learn of the first master counts
            // as a switch, too.)
            master.move_to(master.state.lock(), &at(switch));
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

    /// The sentinel shows no epoch, so nothing else tells that its answer is old.
    #[test]
    fn an_answer_that_a_switch_overtakes_leads_no_connection_back() {
        let known = Arc::<OnceLock<Arc<Master>>>::default();
        let its_known = Arc::clone(&known);
        let sentinel = FakeServer::start(move |command| {
            let words: Vec<_> = command.iter().map(String::as_str).collect();
            Say::Bytes(match words[..] {
                [] => Vec::new(),
                ["CLIENT", ..] => b"+OK\r\n".to_vec(),
                ["SENTINEL", "get-master-addr-by-name", _] => {
                    let master = its_known.get().expect("it is there");
                    let state = master.state.lock();
                    let is_first = state.generation == 1;
                    if is_first {
                        master.move_to(state, &at(7002));
                    }
                    let port = if is_first { 7001 } else { 7002 };
                    format!("*2\r\n$9\r\n127.0.0.1\r\n$4\r\n{port}\r\n").into_bytes()
                }
                _ => b"-NOPERM\r\n".to_vec(),
            })
        });
        let address = sentinel.address();
        let (host, port) = address.rsplit_once(':').expect("an address");
        let place = Place::announced(host, port.parse().expect("a port")).expect("a host");
        let access = Access::new(None, 0, Expected::Sentinel);
        let sentinels = Sentinels::new("mymaster".to_owned(), [place], access, None, false);
        let master = Arc::new(Master::new(sentinels, None));
        master.move_to(master.state.lock(), &at(7001));
        assert!(known.set(Arc::clone(&master)).is_ok());
        let opened = RefCell::new(Vec::new());
        let open = |endpoint: &Endpoint, _: &dyn Fn(Ender) -> Result<(), Failure>| {
            opened.borrow_mut().push(endpoint.name().to_owned());
            Err(Failure::not_sent("nobody is there"))
        };
        let limit = Moment::now().after(Duration::from_secs(60));
        assert!(master.connect(limit, open).is_err());
        assert_eq!(opened.take().pop().as_deref(), Some("127.0.0.1:7002"));
    }
}
