//! The weather: which faults happen while the workers take locks. A seed decides that.

use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use relatch_rig::{Fault, Proxy, Server, SlotMove, Worker, now};
use tempfile::TempDir;

use crate::roles::HOLD;
use crate::servers::{MASTERS, Servers, Way, fail_over, masters};

/// How many processes take locks.
const PROCESSES: u64 = 3;

/// Longer than a worker takes to start, and to finish its last turn.
const FINISH: Duration = Duration::from_secs(60);

/// What goes wrong, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Commands and replies are lost, or held up, now and then for longer than the lease.
    /// Connections end before a command is forwarded, in place of a reply, or in the middle of one.
    /// The server is stopped, and continued. All over TLS.
    Messages,
    /// Keys are evicted, deleted, flushed, replaced. The server is killed, and started again
    /// without its keys.
    Losses,
    /// A process is stopped and continued, or killed.
    Processes,
    /// Slots of a cluster move from one master to another, with the keys that are contended for.
    SlotsMove,
    /// The masters of a cluster are killed, stopped, or replaced by an operator, one after the
    /// other. A replica acknowledges locks.
    MastersFailOver,
}

impl Weather {
    /// Whether the server itself deletes locks that are held.
    pub(crate) fn deletes_held_locks(self) -> bool {
        self == Weather::Losses
    }

    pub(crate) fn needs_cluster(self) -> bool {
        matches!(self, Weather::SlotsMove | Weather::MastersFailOver)
    }

    /// The lease of most keys. If the server deletes held locks, it is so long that the report of a
    /// loss comes well before the end of the lease. And a hold should outlive a failover.
    pub(crate) fn lease(self) -> Duration {
        Duration::from_millis(match self {
            Weather::Losses => 6000,
            Weather::MastersFailOver => 5000,
            _ => 300,
        })
    }

    /// How many locks there are. With failovers there are more: then some are held for long, to
    /// outlive a failover, and the others are taken meanwhile.
    fn keys(self) -> u32 {
        if self == Weather::MastersFailOver {
            24
        } else {
            6
        }
    }

    /// How long faults happen in one round. A failover takes seconds.
    pub(crate) fn round(self) -> Duration {
        Duration::from_secs(if self == Weather::MastersFailOver {
            5
        } else {
            1
        })
    }

    /// The lease of one of the keys. It is longer than a round, so that an orphan is still there
    /// when the round is over. But if processes are killed, or a failover loses a release, workers
    /// have to wait for the end of leases. In these cases, and if the server deletes held locks,
    /// all keys have the same lease.
    fn long_lease(self) -> Duration {
        match self {
            Weather::Messages | Weather::SlotsMove => Duration::from_secs(60),
            _ => self.lease(),
        }
    }
}

/// Workers, the servers with their proxies, and what happens to them.
pub(crate) struct Scene {
    weather: Weather,
    rng: StdRng,
    pub(crate) servers: Servers,
    workers: Vec<Worker>,
    seeds: u64,
    pub(crate) records: TempDir,
    pub(crate) deaths: Vec<(u32, Duration)>,
    strikes: u64,
    /// The longest time that the move of keys from one master to another has taken.
    pub(crate) moved_within: Duration,
}

impl Scene {
    pub(crate) fn new(weather: Weather, mut rng: StdRng) -> Scene {
        let mut scene = Scene {
            weather,
            seeds: rng.random(),
            rng,
            servers: Servers::start(weather),
            workers: Vec::new(),
            records: TempDir::new().expect("a temporary directory"),
            deaths: Vec::new(),
            strikes: 0,
            moved_within: Duration::ZERO,
        };
        for _ in 0..PROCESSES {
            scene.add_worker();
        }
        for worker in &scene.workers {
            worker.expect_line("ready", FINISH);
        }
        scene
    }

    fn add_worker(&mut self) {
        self.seeds = self.seeds.wrapping_add(1);
        let millis = |span: Duration| span.as_millis().to_string();
        let replicas = u32::from(self.weather == Weather::MastersFailOver);
        let (url, roots) = self.servers.url_and_roots();
        let dir = self.records.path().to_str().expect("UTF-8");
        let args = [
            ("url", url),
            ("seed", self.seeds.to_string()),
            ("lease", millis(self.weather.lease())),
            ("long", millis(self.weather.long_lease())),
            ("dir", dir.to_owned()),
            ("replicas", replicas.to_string()),
            ("roots", roots.to_owned()),
            ("nodes", self.servers.nodes().to_string()),
            ("keys", self.weather.keys().to_string()),
        ];
        let args = args.each_ref().map(|(name, value)| (*name, &**value));
        self.workers.push(Worker::spawn("worker", &args));
    }

    /// Causes faults for `span`, and one at least.
    pub(crate) fn rage(&mut self, span: Duration) {
        let end = now() + span;
        while self.strikes == 0 || now() < end {
            self.lasts(5, 60);
            self.strike();
            self.strikes += 1;
        }
        self.servers.proxies().iter().for_each(|it| it.clear());
    }

    fn server(&self) -> &Server {
        self.servers.server()
    }

    /// How often a fault happened. A fault of messages counts only if it has spoilt a message.
    pub(crate) fn faults(&self) -> u64 {
        match self.weather {
            Weather::Messages => self.proxy().fired(),
            _ => self.strikes,
        }
    }

    /// Has the workers stop, and checks that they do.
    pub(crate) fn end(&mut self) {
        for worker in &mut self.workers {
            worker.send("stop");
        }
        for worker in &self.workers {
            worker.expect_line("stopped", FINISH);
        }
    }

    /// Has the workers drop their managers. A worker that leaves a thread or a file behind fails.
    pub(crate) fn leave(&mut self) {
        for worker in &mut self.workers {
            worker.send("end");
            worker.expect_line("clean", FINISH);
            assert!(worker.wait(FINISH).success());
        }
    }

    fn strike(&mut self) {
        match self.weather {
            Weather::Messages => match self.rng.random_range(0..10) {
                0 => self.proxy().cut_all(),
                1 => {
                    self.server().pause();
                    self.lasts(10, 400);
                    self.server().resume();
                    self.lasts(50, 300);
                }
                _ => self.spoil(),
            },
            Weather::Losses => self.take_keys_away(),
            Weather::Processes if self.rng.random_ratio(1, 3) => {
                let place = self.rng.random_range(0..self.workers.len());
                let mut worker = self.workers.swap_remove(place);
                self.deaths.push((worker.pid(), now()));
                worker.kill();
                self.add_worker();
                let new = self.workers.last().expect("just added");
                new.expect_line("ready", FINISH);
            }
            Weather::Processes => {
                let place = self.rng.random_range(0..self.workers.len());
                self.workers[place].stop();
                self.lasts(10, 500); // Often for longer than the lease.
                self.workers[place].cont();
            }
            Weather::MastersFailOver => self.fail_over(),
            Weather::SlotsMove => self.move_slots(),
        }
    }

    /// The proxy in front of the only server.
    fn proxy(&self) -> &Proxy {
        self.servers.proxies()[0]
    }

    /// Replaces a master in one of three ways. The workers hold some of its locks until that is
    /// done: a hold that ends before the failover does shows nothing. While a replica is cut off,
    /// they also hold each other lock of the master that they get. (A manager that waits for
    /// replicas gets none then. With one that does not, these locks are lost.)
    fn fail_over(&mut self) {
        // Each round has the way in which a lock that no replica acknowledged is lost.
        let is_first = self.strikes == 0;
        let way = match self.rng.random_range(0..3) {
            way if way == 0 || is_first => Way::KilledAfter(self.millis(500, 1200)),
            1 => Way::Stopped,
            _ => Way::ByOperator,
        };
        let choice = self.rng.random_range(0..100);
        let (cluster, mut names) = (self.servers.cluster(), self.names());
        let masters = masters(cluster);
        let old = masters[choice % masters.len()];
        let slots = cluster.slots_of(old);
        names.retain(|it| slots.contains(&cluster.slot_of(it)));
        // Few enough that most threads go on to take locks.
        let few = (names.len() / 2).min(4);
        hold(&mut self.workers, &names[..few]);
        self.lasts(100, 500);
        let workers = &mut self.workers;
        fail_over(self.servers.cluster(), old, way, || hold(workers, &names));
        hold(&mut self.workers, &[]);
    }

    /// The names of all locks.
    fn names(&self) -> Vec<String> {
        let numbers = 0..self.weather.keys();
        numbers.map(|it| format!("k{it}")).collect()
    }

    /// Moves the slots of some locks to another master, with or without pauses before and after the
    /// keys move. Meanwhile both masters redirect clients to each other.
    fn move_slots(&mut self) {
        let to = self.rng.random_range(0..MASTERS);
        let mut names = self.names();
        names.retain(|_| self.rng.random_ratio(1, 3));
        let [before, after] = [(); 2].map(|()| {
            let is_paused: bool = self.rng.random();
            self.millis(1, 300) * u32::from(is_paused)
        });
        let cluster = self.servers.cluster();
        let elsewhere = names.iter().filter(|it| cluster.node_of(it) != to);
        let moves: Vec<_> = elsewhere
            .map(|it| cluster.begin_move(cluster.slot_of(it), to))
            .collect();
        thread::sleep(before);
        for it in &moves {
            let since = now();
            it.move_keys();
            self.moved_within = self.moved_within.max(now().saturating_sub(since));
        }
        thread::sleep(after);
        moves.into_iter().for_each(SlotMove::end);
    }

    /// Spoils one of the next commands of the protocol.
    fn spoil(&mut self) {
        let commands = ["SET", "EVALSHA", "EVALSHA * 1 * * *", "EVALSHA * 1 *", "*"];
        let command = commands[self.rng.random_range(0..commands.len())];
        let most = [90, 90, 90, 400][self.rng.random_range(0..4)];
        let delay = self.millis(1, most);
        let faults = [
            Fault::DelayReply(delay),
            Fault::DelayCommand(delay),
            Fault::DropReply,
            Fault::SwallowCommand,
            Fault::CutBeforeForward,
            Fault::CutBeforeReply,
            Fault::HalfReply,
        ];
        let fault = &faults[self.rng.random_range(0..faults.len())];
        self.proxy().on(command, fault.clone());
    }

    fn take_keys_away(&mut self) {
        let key = format!("lock:k{}", self.rng.random_range(0..self.weather.keys()));
        let kind = self.rng.random_range(0..8);
        let query = |words: &[&str]| self.server().query::<()>(words);
        match kind {
            0 => query(&["FLUSHALL"]),
            1 => query(&["SET", &key, "somebody", "PX", "50"]),
            2 => {
                query(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
                query(&["CONFIG", "SET", "maxmemory", "1"]);
                self.lasts(1, 20);
                self.server()
                    .query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            3 | 4 => {
                self.server().kill();
                self.lasts(1, 300);
                self.server().restart();
                self.lasts(200, 500);
            }
            _ => query(&["DEL", &key]),
        }
        self.lasts(10, 100);
    }

    /// Sleeps for as long as a fault lasts, or until the next one. This sleep waits for no event.
    fn lasts(&mut self, least: u64, most: u64) {
        thread::sleep(self.millis(least, most));
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(least..most))
    }
}

/// Has the workers hold these locks for long, and no others.
fn hold(workers: &mut [Worker], names: &[String]) {
    let line = format!("{HOLD} {}", names.join(" "));
    for worker in workers {
        worker.send(&line);
    }
}
