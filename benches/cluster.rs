//! What a cluster costs, beside one server: `cargo bench --bench cluster`. It takes about two
//! minutes. `cargo bench --bench cluster cycle` runs the first two parts alone.
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

const CYCLES: u32 = 200;
const ROUNDS: usize = 61;

const HOLDS: u32 = 10_000;
const RENEWALS: usize = 7;

/// How many renewals go into a round trip.
const BATCH: u32 = 1000;

/// Long enough that no renewal falls due by itself while others are measured.
const EVERY: Duration = Duration::from_secs(40);

fn main() {
    let mut report = Report::new(None);
    eprintln!("cluster: part 1 of 3, cycles on two cores");
    report.part("cycle", "lock and unlock on a node of three masters, the servers on another core");
    cycles(&mut report, pin_apart, false);
    eprintln!("cluster: part 2 of 3, cycles on one core");
    report.part("cycle-one-core", "lock and unlock on a node of three masters, all on one core");
    cycles(&mut report, pin_together, true); // On one core the ratio is steadier, so it has the bound.
    if std::env::args().any(|arg| arg == "cycle") {
        return report.close();
    }
    let (cluster, server) = (Cluster::without_replicas(), Server::start());
    eprintln!("cluster: part 3 of 3, renewals");
    report.part("renewals", "renewing ten thousand holds of three nodes");
    renewals(&mut report, &cluster, &server);
    report.close();
}

fn cycles(report: &mut Report, pin: fn(&Server) -> bool, is_bounded: bool) {
    let (cluster, server) = (Cluster::without_replicas(), Server::start());
    let pinned = (0..3).map(|place| cluster.server(place)).chain([&server]).all(pin);
    report.say("pinned", if pinned { "yes" } else { "no" }.to_owned());
    let key = cluster.key_on(0);
    let managers = [&server.url(), &cluster.url()].map(|url| LockManager::connect(url).expect("connects"));
    let mut by_hand = [&server, cluster.server(0)].map(|of| ByHand::new(of, &format!("lock:{key}")));
    let names = ["one server", "cluster", "one server, by hand", "cluster, by hand"];
    let mut rounds = Rounds::new(&names);
    for _ in 0..ROUNDS {
        for (subject, locks) in managers.iter().enumerate() {
            let cycle = |_| drop(locks.lock(&key).expect("locks"));
            rounds.time(subject, CYCLES, || (0..CYCLES).for_each(cycle));
        }
        for (subject, by_hand) in by_hand.iter_mut().enumerate() {
            rounds.time(2 + subject, CYCLES, || (0..CYCLES).for_each(|_| by_hand.cycle()));
        }
    }
    rounds.print("a cycle");
    let floor = rounds.ratio(3) / rounds.ratio(2);
    report.say("a node by hand, x one server by hand", Figure::number(floor, 3, ""));
    let ratio = rounds.ratio(1);
    if is_bounded {
        bounded(report, "cluster, x one server", ratio, 1.03);
    } else {
        report.say("cluster, x one server", Figure::number(ratio, 3, ""));
    }
    report.say("cluster, beyond what the floor costs", Figure::number(ratio / floor, 3, ""));
}

/// The two commands of a lock, on one connection.
struct ByHand {
    connection: redis::Connection,
    set: redis::Cmd,
    removal: redis::Cmd,
}

impl ByHand {
    fn new(server: &Server, key: &str) -> ByHand {
        let (mut connection, token) = (server.connect(), "host-1-2-00112233445566778899aabbccddeeff");
        let hash = load(&mut connection, include_str!("../src/store/release.lua"));
        let mut set = redis::cmd("SET");
        set.arg(key).arg(token).arg("NX").arg("PX").arg(30_000);
        let mut removal = redis::cmd("EVALSHA");
        removal.arg(hash).arg(1).arg(key).arg(token);
        ByHand { connection, set, removal }
    }

    fn cycle(&mut self) {
        let set = self.set.query(&mut self.connection);
        assert_eq!(set, Ok(redis::Value::Okay));
        assert_eq!(self.removal.query(&mut self.connection), Ok(1));
    }
}

fn renewals(report: &mut Report, cluster: &Cluster, server: &Server) {
    let subjects = [(&server.url(), server), (&cluster.url(), cluster.server(0))];
    let subjects = subjects.map(|(url, of)| (Holds::take(url), of));
    let mut times = [Vec::new(), Vec::new()];
    for round in 1..=RENEWALS {
        eprintln!("cluster: renewals, round {round} of {RENEWALS}");
        for ((holds, of), times) in subjects.iter().zip(&mut times) {
            times.push(holds.renewed(of).as_secs_f64());
        }
    }
    let [one, three] = times.map(median);
    report.say("10,000 holds on one server", Figure::number(one * 1e3, 1, "ms"));
    report.say("10,000 holds on three nodes", Figure::number(three * 1e3, 1, "ms"));
    bounded(report, "three nodes, x one server", three / one, 1.2);
}

struct Holds {
    // Dropped before the manager.
    _guards: Vec<LockGuard>,
    locks: LockManager,
}

impl Holds {
    fn take(url: &str) -> Holds {
        let locks = LockManager::builder(url).lease(3 * EVERY).renew_every(EVERY).build().expect("connects");
        let guards = (0..HOLDS).map(|n| locks.lock(format!("held:{n}")).expect("locks")).collect();
        // The first renewals have each key tracked. `extend` would send them one by one.
        while locks.stats().renewed < HOLDS.into() {
            thread::sleep(EVERY / 40);
        }
        Holds { _guards: guards, locks }
    }

    /// The time to renew all holds. To make them due together, this kills a listener's connection:
    /// when the listener is back, all holds are renewed, since it may have missed invalidations.
    /// Measures from the end of the first batch to the end of the last, and scales that time up to
    /// all batches.
    fn renewed(&self, of: &Server) -> Duration {
        let before = self.locks.stats().renewed;
        let done = |count| {
            while self.locks.stats().renewed < count {
                thread::sleep(Duration::from_micros(100));
            }
            Instant::now()
        };
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "PUBSUB"]).exec(&mut of.connect()).expect("kills");
        let first = done(before + u64::from(BATCH));
        let last = done(before + u64::from(HOLDS));
        (last - first).mul_f64(f64::from(HOLDS) / f64::from(HOLDS - BATCH))
    }
}

fn bounded(report: &mut Report, what: &str, ratio: f64, most: f64) {
    report.must(what, Figure::number(ratio, 3, ""), format!("<= {most:.2}"), ratio <= most);
}
