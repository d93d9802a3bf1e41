//! The weather: which faults happen while the workers take locks. A seed decides that.

use std::fs;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use relatch_rig::{Fault, Proxy, Server, SlotMove, Worker, now};
use tempfile::TempDir;

use crate::roles::HOLD;
use crate::servers::{AHEAD, MASTERS, Servers, Way};

/// How many processes take locks.
const PROCESSES: u64 = 3;

/// Longer than a worker takes to start, and to finish its last turn.
const FINISH: Duration = Duration::from_secs(30);

/// What goes wrong, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Commands and replies are held up, now and then for longer than the lease.
    Delays,
    /// Commands and replies are lost.
    Losses,
    /// Connections end before a command is forwarded, in place of a reply, or in the middle of a
    /// reply.
    Cuts,
    /// Nothing passes for a while.
    BlackHoles,
    /// The server is stopped, and continued.
    Pauses,
    /// The server is killed, and started again without its keys.
    Restarts,
    /// A process is stopped, and continued.
    Stops,
    /// A process is killed.
    Kills,
    /// Keys are evicted, deleted, flushed, replaced.
    Evictions,
    /// The server's clock steps.
    Clocks,
    /// The master is killed, alone or with all but a replica that was cut off, or stopped, or
    /// replaced by an operator. All replicas acknowledge locks.
    Failovers,
    /// Slots of a cluster move from one master to another, with the keys that are contended for.
    SlotsMove,
    /// The same as `Failovers` to the masters of a cluster, one after the other.
    MastersFailOver,
}

impl Weather {
    /// Whether the server itself deletes locks that are held.
    pub(crate) fn deletes_held_locks(self) -> bool {
        matches!(
            self,
            Weather::Restarts | Weather::Evictions | Weather::Clocks
        )
    }

    /// Whether masters are replaced. Replicas acknowledge locks then.
    pub(crate) fn replaces_masters(self) -> bool {
        matches!(self, Weather::Failovers | Weather::MastersFailOver)
    }

    /// The lease of most keys. If the server deletes held locks, it is so long that the report of a
    /// loss comes well before the end of the lease. And a hold should outlive a failover.
    pub(crate) fn lease(self) -> Duration {
        let others = if self.deletes_held_locks() { 3000 } else { 300 };
        Duration::from_millis(if self.replaces_masters() {
            5000
        } else {
            others
        })
    }

    /// How many locks there are. With failovers there are more: then some are held for long, to
    /// outlive a failover, and the others are taken meanwhile.
    fn keys(self) -> u32 {
        if self.replaces_masters() { 24 } else { 6 }
    }

    /// How long faults happen in one round. A failover takes seconds.
    pub(crate) fn round(self) -> Duration {
        Duration::from_secs(if self.replaces_masters() { 5 } else { 1 })
    }

    /// The lease of one of the keys. It is longer than a round, so that an orphan is still there
    /// when the round is over. But if processes are killed, or a failover loses a release, workers
    /// have to wait for the end of leases. In these cases, and if the server deletes held locks,
    /// all keys have the same lease.
    fn long_lease(self) -> Duration {
        if self.deletes_held_locks() || self.replaces_masters() || self == Weather::Kills {
            self.lease()
        } else {
            Duration::from_secs(60)
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
    /// The directory of the file that says how far the server's clock is ahead.
    clock: TempDir,
    pub(crate) stops: Vec<(u32, Duration, Duration)>,
    pub(crate) deaths: Vec<(u32, Duration)>,
    strikes: u64,
    /// The longest time that the move of keys from one master to another has taken.
    pub(crate) moved_within: Duration,
}

impl Scene {
    pub(crate) fn new(weather: Weather, over_tls: bool, mut rng: StdRng) -> Scene {
        let [records, clock] = [(); 2].map(|()| TempDir::new().expect("a temporary directory"));
        let servers = Servers::start(weather, over_tls, clock.path());
        let mut scene = Scene {
            weather,
            seeds: rng.random(),
            rng,
            servers,
            workers: Vec::new(),
            records,
            clock,
            stops: Vec::new(),
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
        let [lease, long] =
            [self.weather.lease(), self.weather.long_lease()].map(|it| it.as_millis().to_string());
        let dir = self.records.path().to_str().expect("UTF-8");
        let (url, seed) = (self.servers.url(), self.seeds.to_string());
        let replicas = match self.weather {
            Weather::Failovers => "all",
            Weather::MastersFailOver => "1",
            _ => "none",
        };
        let [nodes, keys] = [
            self.servers.nodes().to_string(),
            self.weather.keys().to_string(),
        ];
        let args = [
            ("url", &*url),
            ("seed", &*seed),
            ("lease", &*lease),
            ("long", &*long),
            ("dir", dir),
        ];
        let more = [("replicas", replicas), ("roots", self.servers.roots())];
        let args = [&args[..], &more, &[("nodes", &*nodes), ("keys", &*keys)]].concat();
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

    /// The server, or the master.
    fn server(&self) -> &Server {
        self.servers.server()
    }

    /// How often a fault happened. A fault of messages counts only if it has spoilt a message.
    pub(crate) fn faults(&self) -> u64 {
        let of_messages = matches!(
            self.weather,
            Weather::Delays | Weather::Losses | Weather::Cuts
        );
        if of_messages {
            self.proxy().fired()
        } else {
            self.strikes
        }
    }

    /// Whether sentinels have replaced a master that was well. On a busy machine, a new master may
    /// be silent for longer than they wait. They may then promote a server that was started again,
    /// and has no data yet. Which replicas had acknowledged a lock does not matter then.
    pub(crate) fn was_replaced_uncalled(&self) -> bool {
        self.weather == Weather::Failovers && self.servers.switches() as u64 > self.strikes
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
            assert_eq!(worker.ask("end"), "clean");
            assert!(worker.wait(FINISH).success());
        }
    }

    fn strike(&mut self) {
        match self.weather {
            Weather::Delays => {
                let fault = self.delay();
                self.spoil(fault);
            }
            Weather::Losses => {
                let fault = self.lose();
                self.spoil(fault);
                self.lasts(20, 120); // Each loss costs a worker a response timeout.
            }
            Weather::Cuts if self.rng.random_ratio(1, 8) => self.proxy().cut_all(),
            Weather::Cuts => {
                let fault = self.cut();
                self.spoil(fault);
            }
            Weather::BlackHoles => {
                self.proxy().black_hole(true);
                self.lasts(20, 250);
                self.proxy().black_hole(false);
                self.lasts(100, 400);
            }
            Weather::Pauses => {
                self.server().pause();
                self.lasts(10, 400);
                self.server().resume();
                self.lasts(50, 300);
            }
            Weather::Restarts => {
                self.server().kill();
                self.lasts(1, 300);
                self.server().restart();
                self.lasts(200, 600);
            }
            Weather::Stops => self.stop(),
            Weather::Kills => {
                let place = self.rng.random_range(0..self.workers.len());
                let mut worker = self.workers.swap_remove(place);
                self.deaths.push((worker.pid(), now()));
                worker.kill();
                self.add_worker();
                self.workers
                    .last()
                    .expect("just added")
                    .expect_line("ready", FINISH);
                self.lasts(50, 200);
            }
            Weather::Evictions => self.take_keys_away(),
            Weather::Clocks => {
                let ahead = self.rng.random_range(-90..90).to_string();
                fs::write(self.clock.path().join(AHEAD), ahead)
                    .expect("a file that can be written to");
                self.lasts(50, 500);
            }
            Weather::Failovers => {
                // Most locks are taken now: while the only master is away, none can be.
                self.lasts(600, 1400);
                self.fail_over();
            }
            Weather::MastersFailOver => self.fail_over(),
            Weather::SlotsMove => self.move_slots(),
        }
    }

    /// The proxy in front of the only server.
    fn proxy(&self) -> &Proxy {
        self.servers.proxies()[0]
    }

    /// Replaces a master in one of four ways. The workers hold some of its locks until that is
    /// done: a hold that ends before the failover does shows nothing. While a replica is cut off,
    /// they also hold each other lock of the master that they get. (A manager that waits for
    /// replicas gets none then. With one that does not, these locks are lost.)
    fn fail_over(&mut self) {
        // Each round has the way in which a lock that not all replicas acknowledged is lost.
        let way = match if self.strikes == 0 {
            0
        } else {
            self.rng.random_range(0..4)
        } {
            0 => Way::KilledAfter(self.millis(500, 1200)),
            1 => Way::Killed,
            2 => Way::Stopped,
            _ => Way::ByOperator,
        };
        let choice = self.rng.random_range(0..100);
        let old = self.servers.a_master(choice);
        let names = self.servers.names_at(old, self.names());
        // Few enough that most threads go on to take locks.
        let few = (names.len() / 2).min(4);
        hold(&mut self.workers, &names[..few]);
        self.lasts(100, 500);
        let Scene {
            servers, workers, ..
        } = self;
        servers.fail_over(old, way, choice, || hold(workers, &names));
        hold(&mut self.workers, &[]);
    }

    /// The names of all locks.
    fn names(&self) -> Vec<String> {
        (0..self.weather.keys())
            .map(|it| format!("k{it}"))
            .collect()
    }

    /// Moves the slots of some locks to another master, with or without pauses before and after the
    /// keys move. Meanwhile both masters redirect clients to each other.
    fn move_slots(&mut self) {
        let to = self.rng.random_range(0..MASTERS);
        let mut names = self.names();
        names.retain(|_| self.rng.random_ratio(1, 3));
        let [before, after] = [(); 2].map(|()| {
            if self.rng.random() {
                self.millis(1, 300)
            } else {
                Duration::ZERO
            }
        });
        let Servers::Cluster(cluster) = &self.servers else {
            return;
        };
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
    fn spoil(&mut self, fault: Fault) {
        let commands = [
            "SET",
            "SET",
            "EVALSHA",
            "EVALSHA",
            "EVALSHA * 1 * * *",
            "EVALSHA * 1 *",
            "*",
        ];
        let command = commands[self.rng.random_range(0..commands.len())];
        self.proxy().on(command, fault);
    }

    fn delay(&mut self) -> Fault {
        let most = if self.rng.random_ratio(1, 10) {
            400
        } else {
            90
        };
        let delay = self.millis(1, most);
        if self.rng.random() {
            Fault::DelayReply(delay)
        } else {
            Fault::DelayCommand(delay)
        }
    }

    fn lose(&mut self) -> Fault {
        if self.rng.random() {
            Fault::DropReply
        } else {
            Fault::SwallowCommand
        }
    }

    fn cut(&mut self) -> Fault {
        match self.rng.random_range(0..7) {
            0..3 => Fault::CutBeforeForward,
            3..6 => Fault::CutBeforeReply,
            _ => Fault::HalfReply,
        }
    }

    /// Stops a process, often for longer than its leases.
    fn stop(&mut self) {
        let place = self.rng.random_range(0..self.workers.len());
        let since = now();
        self.workers[place].stop();
        self.lasts(10, 500);
        let worker = &self.workers[place];
        worker.cont();
        self.stops.push((worker.pid(), since, now()));
    }

    fn take_keys_away(&mut self) {
        let key = format!("lock:k{}", self.rng.random_range(0..self.weather.keys()));
        match self.rng.random_range(0..6) {
            0 => self.server().query::<()>(&["FLUSHALL"]),
            1 => self
                .server()
                .query::<()>(&["SET", &key, "somebody", "PX", "50"]),
            2 => {
                self.server()
                    .query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
                self.server()
                    .query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
                self.lasts(1, 20);
                self.server()
                    .query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            _ => self.server().query::<()>(&["DEL", &key]),
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
