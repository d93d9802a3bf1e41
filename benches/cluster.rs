//! What a cluster costs, beside one server: `cargo bench --bench cluster`. It takes about three
//! minutes. With `cycle` behind that, it runs the first two parts alone; with `renewals`, the last.
//!
//! First, one thread locks and unlocks a free lock of one node, in turns with the same on a server
//! of its own. The servers have a core to themselves, as if a network lay between them and the
//! program. Then the same once more, with the program and all servers on one core. Last, ten
//! thousand holds are renewed, those on three nodes in turns with those on one server.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use relatch::{LockGuard, LockManager};
use relatch_rig::{Cluster, Server};

use support::figures::{Figure, Report};
use support::{Rounds, load, median, pin_apart, pin_together};

const CYCLES: u32 = 20;
const ROUNDS: usize = 201;
const STARTS: usize = 7;

const HOLDS: u32 = 10_000;
const RENEWALS: usize = 7;

/// How many renewals go into a round trip.
const BATCH: u32 = 1000;

/// Long enough that no renewal falls due by itself while others are measured.
const EVERY: Duration = Duration::from_secs(15);

fn main() {
    let mut report = Report::new(None);
    if std::env::args().any(|arg| arg == "renewals") {
        renewals(&mut report);
        return report.close();
    }
    eprintln!("cluster: part 1 of 3, cycles on two cores");
    report.part(
        "cycle",
        "lock and unlock on a node of three masters, the servers on another core",
    );
    cycles(&mut report, pin_apart);
    eprintln!("cluster: part 2 of 3, cycles on one core");
    report.part(
        "cycle-one-core",
        "lock and unlock on a node of three masters, all on one core",
    );
    cycles(&mut report, pin_together);
    if std::env::args().any(|arg| arg == "cycle") {
        return report.close();
    }
    renewals(&mut report);
    report.close();
}

/// The subjects take turns of a few milliseconds, since a shared machine is slower or faster for
/// longer than that. And whether two processes of one program are equally fast is up to
/// chance: where their memory lies, and what they share a cache with. So each start measures its
/// own servers, and the median counts.
fn cycles(report: &mut Report, pin: fn(&Server) -> bool) {
    let starts: Vec<Start> = (1..=STARTS)
        .map(|number| Start::measured(number, pin))
        .collect();
    let of = |figure: fn(&Start) -> f64| median(starts.iter().map(figure).collect());
    report.say(
        "pinned",
        if starts.iter().all(|it| it.is_pinned) {
            "yes"
        } else {
            "no"
        }
        .to_owned(),
    );
    report.say(
        "a node by hand, x one server by hand",
        Figure::number(of(|it| it.floor), 3, ""),
    );
    bounded(report, "cluster, x one server", of(|it| it.cycle), 1.03);
    let beyond = of(|it| it.cycle / it.floor);
    report.say(
        "cluster, beyond what the floor costs",
        Figure::number(beyond, 3, ""),
    );
}

/// What one cluster cost beside one server, each newly started.
struct Start {
    is_pinned: bool,
    cycle: f64,
    /// The same two commands by hand: what the node itself needs more than the server.
    floor: f64,
}

impl Start {
    fn measured(number: usize, pin: fn(&Server) -> bool) -> Start {
        let (cluster, server) = (Cluster::without_replicas(), Server::start());
        let is_pinned = (0..3)
            .map(|place| cluster.server(place))
            .chain([&server])
            .all(pin);
        let key = cluster.key_on(0);
        let managers =
            [&server.url(), &cluster.url()].map(|url| LockManager::connect(url).expect("connects"));
        let mut by_hand =
            [&server, cluster.server(0)].map(|of| ByHand::new(of, &format!("lock:{key}")));
        let names = [
            "one server",
            "cluster",
            "one server, by hand",
            "cluster, by hand",
        ];
        let mut rounds = Rounds::new(&names);
        for _ in 0..ROUNDS {
            for (subject, locks) in managers.iter().enumerate() {
                let cycle = |_| drop(locks.lock(&key).expect("locks"));
                rounds.time(subject, CYCLES, || (0..CYCLES).for_each(cycle));
            }
            for (subject, by_hand) in by_hand.iter_mut().enumerate() {
                rounds.time(2 + subject, CYCLES, || {
                    (0..CYCLES).for_each(|_| by_hand.cycle());
                });
            }
        }
        rounds.print(&format!("a cycle, start {number} of {STARTS}"));
        Start {
            is_pinned,
            cycle: rounds.ratio(1),
            floor: rounds.ratio(3) / rounds.ratio(2),
        }
    }
}

/// The two commands of a lock, on one connection.
struct ByHand {
    connection: redis::Connection,
    set: redis::Cmd,
    removal: redis::Cmd,
}

impl ByHand {
    fn new(server: &Server, key: &str) -> ByHand {
        let (mut connection, token) = (
            server.connect(),
            "host-1-2-00112233445566778899aabbccddeeff",
        );
        let hash = load(
            &mut connection,
            include_str!("../src/client/commands/lua/release.lua"),
        );
        let mut set = redis::cmd("SET");
        set.arg(key).arg(token).arg("NX").arg("PX").arg(30_000);
        let mut removal = redis::cmd("EVALSHA");
        removal.arg(hash).arg(1).arg(key).arg(token);
        ByHand {
            connection,
            set,
            removal,
        }
    }

    fn cycle(&mut self) {
        let set = self.set.query(&mut self.connection);
        assert_eq!(set, Ok(redis::Value::Okay));
        assert_eq!(self.removal.query(&mut self.connection), Ok(1));
    }
}

fn renewals(report: &mut Report) {
    eprintln!("cluster: part 3 of 3, renewals");
    report.part(
        "renewals",
        "renewing ten thousand holds of three nodes, the servers on another core",
    );
    let (cluster, server) = (Cluster::without_replicas(), Server::start());
    let pinned = (0..3)
        .map(|place| cluster.server(place))
        .chain([&server])
        .all(pin_apart);
    report.say("pinned", if pinned { "yes" } else { "no" }.to_owned());
    let nodes = (0..3).map(|place| cluster.server(place)).collect();
    let subjects = [(server.url(), vec![&server]), (cluster.url(), nodes)];
    let mut subjects = subjects.map(|(url, servers)| Holds::take(&url, &servers));
    let mut times = [Vec::new(), Vec::new()];
    for round in 1..=RENEWALS {
        eprintln!("cluster: renewals, round {round} of {RENEWALS}");
        for (holds, times) in subjects.iter_mut().zip(&mut times) {
            times.push(holds.renewed().as_secs_f64());
        }
    }
    let [one, three] = times.map(median);
    report.say(
        "10,000 holds on one server",
        Figure::number(one * 1e3, 1, "ms"),
    );
    report.say(
        "10,000 holds on three nodes",
        Figure::number(three * 1e3, 1, "ms"),
    );
    bounded(report, "three nodes, x one server", three / one, 1.2);
}

struct Holds {
    // Dropped before the manager.
    _guards: Vec<LockGuard>,
    locks: LockManager,
    /// To each server that has keys of these holds, with one of the keys.
    servers: Vec<(redis::Connection, String)>,
}

impl Holds {
    fn take(url: &str, servers: &[&Server]) -> Holds {
        let locks = LockManager::builder(url)
            .lease(3 * EVERY)
            .renew_every(EVERY)
            .build()
            .expect("connects");
        let guards = (0..HOLDS)
            .map(|n| locks.lock(format!("held:{n}")).expect("locks"))
            .collect();
        // The first renewals have each key tracked. `extend` would send them one by one.
        while locks.stats().renewed < HOLDS.into() {
            thread::sleep(EVERY / 40);
        }
        let servers = servers.iter().map(|server| {
            let mut connection = server.connect();
            let key = (0..HOLDS)
                .map(|n| format!("lock:held:{n}"))
                .find(|key| touch(&mut connection, key).is_ok());
            (connection, key.expect("each node has some"))
        });
        Holds {
            _guards: guards,
            locks,
            servers: servers.collect(),
        }
    }

    /// The time to renew all holds. To make them due together, this kills the connections of the
    /// listeners: when a listener is back, all holds of its node are renewed, since it may have
    /// missed invalidations. (Before that, each listener hears of a key. If it did not, its pause
    /// before it connects again would be twice as long with each kill.) Measures from the end of
    /// the first batch to the end of the last, and scales that time up to all batches.
    fn renewed(&mut self) -> Duration {
        let renewed = || self.locks.stats().renewed;
        let done = |count| {
            while renewed() < count {
                thread::sleep(Duration::from_micros(100));
            }
            Instant::now()
        };
        let before = renewed();
        for (connection, key) in &mut self.servers {
            touch(connection, key).expect("it has the key");
        }
        done(before + self.servers.len() as u64);
        let before = renewed();
        for (connection, _) in &mut self.servers {
            redis::cmd("CLIENT")
                .arg(&["KILL", "TYPE", "PUBSUB"])
                .exec(connection)
                .expect("kills");
        }
        let first = done(before + u64::from(BATCH));
        let last = done(before + u64::from(HOLDS));
        (last - first).mul_f64(f64::from(HOLDS) / f64::from(HOLDS - BATCH))
    }
}

/// Sets the expiry of a key, so that its holder's listener hears of it.
fn touch(connection: &mut redis::Connection, key: &str) -> Result<(), redis::RedisError> {
    redis::cmd("EXPIRE")
        .arg(key)
        .arg((3 * EVERY).as_secs())
        .exec(connection)
}

fn bounded(report: &mut Report, what: &str, ratio: f64, most: f64) {
    report.must(
        what,
        Figure::number(ratio, 3, ""),
        format!("<= {most:.2}"),
        ratio <= most,
    );
}
