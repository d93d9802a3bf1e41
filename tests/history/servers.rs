//! Where the locks are: on one server, on a master with replicas, or on a cluster.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use relatch_rig::{
    Cluster, ClusterSetup, Exchange, Proxy, Sentinels, Server, Setup, Terminator, compile_preload,
};

use crate::faults::Weather;

/// The file that says how far the server's clock is ahead.
pub(crate) const AHEAD: &str = "ahead";

/// How many masters a cluster has. They come first.
pub(crate) const MASTERS: usize = 3;

/// How many sentinels watch a master.
const SENTINELS: usize = 3;

/// Where the locks are.
pub(crate) enum Servers {
    One {
        server: Box<Server>,
        proxy: Proxy,
        terminator: Option<Box<Terminator>>,
    },
    Watched(Box<Sentinels>),
    Cluster(Box<Cluster>),
}

/// How a master is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is killed, together with all that it wrote for so long.
    KilledAfter(Duration),
    Killed,
    Stopped,
    ByOperator,
}

impl Servers {
    pub(crate) fn start(weather: Weather, over_tls: bool, clock: &Path) -> Servers {
        let server = match weather {
            Weather::Failovers => {
                let setup = Setup {
                    proxied: true,
                    tls: over_tls,
                    ..Setup::default()
                };
                return Servers::Watched(Box::new(Sentinels::with(setup)));
            }
            Weather::SlotsMove | Weather::MastersFailOver => {
                let setup = ClusterSetup {
                    masters: MASTERS,
                    proxied: true,
                    ..ClusterSetup::default()
                };
                return Servers::Cluster(Box::new(Cluster::with(setup)));
            }
            Weather::Clocks => {
                let path = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
                let shim = path(compile_preload("wall_clock", clock));
                let ahead = path(clock.join(AHEAD));
                Server::in_env(&[], &[("LD_PRELOAD", &shim), ("WALL_CLOCK_OFFSET", &ahead)])
            }
            _ => Server::start(),
        };
        let proxy = Proxy::start(server.port());
        let terminator = over_tls.then(|| Box::new(Terminator::start(proxy.port())));
        Servers::One {
            server: Box::new(server),
            proxy,
            terminator,
        }
    }

    /// The only server, or the master.
    pub(crate) fn server(&self) -> &Server {
        match self {
            Servers::One { server, .. } => server,
            Servers::Watched(sentinels) => sentinels.server(sentinels.master()),
            Servers::Cluster(_) => unreachable!("a cluster has several masters"),
        }
    }

    /// The proxies in front of the servers.
    pub(crate) fn proxies(&self) -> Vec<&Proxy> {
        match self {
            Servers::One { proxy, .. } => vec![proxy],
            Servers::Watched(sentinels) => (0..sentinels.count())
                .map(|it| sentinels.proxy(it))
                .collect(),
            Servers::Cluster(cluster) => (0..cluster.count()).map(|it| cluster.proxy(it)).collect(),
        }
    }

    /// What the servers were sent, in the order in which it was sent, and what they answered.
    pub(crate) fn journal(&self) -> Vec<Exchange> {
        let mut all: Vec<_> = self.proxies().iter().flat_map(|it| it.journal()).collect();
        all.sort_by_key(|exchange| exchange.sent);
        all
    }

    /// How often sentinels have replaced the master. (A sentinel logs each time.)
    pub(crate) fn switches(&self) -> usize {
        let Servers::Watched(sentinels) = self else {
            return 0;
        };
        let switches = |log: String| log.matches("# +switch-master ").count();
        let logs = (0..SENTINELS).filter_map(|place| sentinels.sentinel(place).log());
        logs.map(switches).max().unwrap_or(0)
    }

    /// The keys of all locks.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = |server: &Server| server.query::<Vec<String>>(&["KEYS", "lock:*"]);
        match self {
            Servers::Cluster(cluster) => {
                let masters = (0..cluster.count()).filter(|&it| cluster.is_master(it));
                masters.flat_map(|it| keys(cluster.server(it))).collect()
            }
            _ => keys(self.server()),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Servers::One {
                terminator: Some(terminator),
                ..
            } => terminator.url(),
            Servers::One { proxy, .. } => proxy.url(),
            Servers::Watched(sentinels) => sentinels.url(),
            Servers::Cluster(cluster) => cluster.url(),
        }
    }

    /// Whom the workers have to trust; empty without TLS.
    pub(crate) fn roots(&self) -> &str {
        match self {
            Servers::One {
                terminator: Some(terminator),
                ..
            } => terminator.roots(),
            Servers::Watched(sentinels) => sentinels.roots(),
            Servers::One { .. } | Servers::Cluster(_) => "",
        }
    }

    /// To how many servers a manager may have connections for locks.
    pub(crate) fn nodes(&self) -> usize {
        match self {
            Servers::One { .. } | Servers::Watched(_) => 1,
            Servers::Cluster(cluster) => cluster.count(),
        }
    }

    /// The place of the master, or of one of them: `choice` says which.
    pub(crate) fn a_master(&self, choice: usize) -> usize {
        match self {
            Servers::One { .. } => 0,
            Servers::Watched(sentinels) => sentinels.master(),
            Servers::Cluster(cluster) => {
                let masters: Vec<_> = (0..cluster.count())
                    .filter(|&it| cluster.is_master(it))
                    .collect();
                masters[choice % masters.len()]
            }
        }
    }

    /// Those of the locks `names` that a master has.
    pub(crate) fn names_at(&self, master: usize, mut names: Vec<String>) -> Vec<String> {
        if let Servers::Cluster(cluster) = self {
            let slots = cluster.slots_of(master);
            names.retain(|it| slots.contains(&cluster.slot_of(it)));
        }
        names
    }

    /// Has another server become the master in the place of `old`, and waits until all others are
    /// replicas in sync: only then are locks taken again, and only then is the next failover safe.
    /// `choice` says which server. If that one is cut off first, calls `cut_off` when it is.
    pub(crate) fn fail_over(&self, old: usize, way: Way, choice: usize, cut_off: impl FnOnce()) {
        match self {
            Servers::One { .. } => unreachable!("there is no replica"),
            Servers::Watched(sentinels) => replace_master(sentinels, old, way, choice, cut_off),
            Servers::Cluster(cluster) => replace_one_master(cluster, old, way, cut_off),
        }
    }
}

fn replace_master(
    sentinels: &Sentinels,
    old: usize,
    way: Way,
    choice: usize,
    cut_off: impl FnOnce(),
) {
    match way {
        Way::KilledAfter(cut_off_for) => {
            let last = (old + 1 + choice % (sentinels.count() - 1)) % sentinels.count();
            sentinels.cut_off(last);
            cut_off();
            // Locks are taken meanwhile, or refused. This waits for no event.
            thread::sleep(cut_off_for);
            leave_one(sentinels, old, last);
        }
        Way::Killed => {
            sentinels.server(old).kill();
            sentinels.until_replaced(old);
            sentinels.restart(old);
        }
        Way::Stopped => {
            sentinels.server(old).pause();
            sentinels.until_replaced(old);
            sentinels.server(old).resume();
        }
        Way::ByOperator => {
            sentinels.fail_over();
        }
    }
    sentinels.until_in_sync();
}

/// Kills all servers but the replica `last`, which was cut off, and has it become the master. It
/// lacks all that the master `old` wrote meanwhile, even if the other replica had it.
fn leave_one(sentinels: &Sentinels, old: usize, last: usize) {
    let others = || (0..sentinels.count()).filter(|&place| place != last);
    others().for_each(|place| sentinels.server(place).kill());
    sentinels.until_replaced(old);
    sentinels
        .server(last)
        .query::<()>(&["CONFIG", "SET", "masterauth", ""]);
    others().for_each(|place| sentinels.restart(place));
}

/// Replaces the master of one of the groups.
fn replace_one_master(cluster: &Cluster, old: usize, way: Way, cut_off: impl FnOnce()) {
    let new = cluster.replicas_of(old)[0];
    match way {
        Way::KilledAfter(cut_off_for) => {
            cluster.cut_off(new);
            cut_off();
            thread::sleep(cut_off_for); // As in `replace_master`.
            cluster.server(old).kill();
            cluster.until_replaced(old);
            cluster.heal(new);
            cluster.server(old).restart();
        }
        Way::Killed => {
            cluster.server(old).kill();
            cluster.until_replaced(old);
            cluster.server(old).restart();
        }
        Way::Stopped => {
            cluster.server(old).pause();
            cluster.until_replaced(old);
            cluster.server(old).resume();
        }
        Way::ByOperator => cluster.fail_over(new),
    }
    cluster.until_well();
}
