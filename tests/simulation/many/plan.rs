//! What happens in a scene of slots: drawn from its seed, before it begins.

use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::base::sync::scheduler::{Order, change_link, kill, later, pause, trace};
use crate::simulation::many::judge::JUDGE;
use crate::simulation::many::of;
use crate::simulation::plan::{self, Copies, Decoy, Engine, Failover, LinkFault, Master};
use crate::simulation::world::engine::Servers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Slot(usize),
    Read,
    Write,
}

/// What a thread does: what it takes, how long it waits at most, and how long it works.
pub(super) type Op = (Want, Option<u64>, u64);

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) engine: Engine,
    pub(super) slots: usize,
    pub(super) lease: u64,
    pub(super) response: u64,
    /// The threads of each process.
    pub(super) processes: Vec<Vec<Vec<Op>>>,
    pub(super) faults: Vec<(u64, Fault)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Kill(usize, bool),
    Pause(usize, u64),
    Link(usize, LinkFault, u64),
    Failover(usize, Master),
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let mut draw = SmallRng::seed_from_u64(seed ^ 0x5107);
        let draw = &mut draw;
        let engine = match draw.random_range(0..8) {
            0 => Engine::Memory,
            1 => Engine::Sentinel(Copies::ONE_SAFE),
            2 => Engine::Cluster(Copies::ONE_SAFE),
            _ => Engine::Server(Decoy::None),
        };
        let count = if engine == Engine::Memory {
            1
        } else {
            draw.random_range(1..=4)
        };
        let (slots, is_read_write) = (draw.random_range(1..=3), draw.random_bool(0.4));
        let wants = |draw: &mut SmallRng| match is_read_write {
            true if draw.random_ratio(1, 3) => Want::Write,
            true => Want::Read,
            false => Want::Slot(slots),
        };
        let op = |draw: &mut SmallRng| {
            let limit = [None, None, Some(0), Some(20), Some(400)][draw.random_range(0..5)];
            let longest = [2, 20, 400][draw.random_range(0..3)];
            (wants(draw), limit, draw.random_range(0..longest))
        };
        let mut processes: Vec<Vec<Vec<Op>>> = Vec::new();
        for _ in 0..count {
            let threads = draw.random_range(1..=4);
            let ops =
                (0..threads).map(|_| (0..draw.random_range(1..=8)).map(|_| op(draw)).collect());
            processes.push(ops.collect());
        }
        // One process thinks that there are more.
        if !is_read_write && draw.random_ratio(1, 4) {
            let more = processes[0].iter_mut().flatten();
            more.for_each(|op| op.0 = Want::Slot(slots + 1));
        }
        let faults = Fault::draw_some(draw, engine, count);
        Plan {
            engine,
            slots,
            lease: [300, 2_000][draw.random_range(0..2)],
            response: [100, 500][draw.random_range(0..2)],
            processes,
            faults,
        }
    }

    pub(super) fn order(seed: u64) -> Order {
        Order {
            switches: [1, 4, 16, 64][usize::try_from(seed % 4).expect("a few")],
            stalls: 0,
            longest: Duration::MAX,
        }
    }
}

impl Fault {
    fn draw_some(draw: &mut SmallRng, engine: Engine, count: usize) -> Vec<(u64, Fault)> {
        if engine == Engine::Memory || draw.random_ratio(1, 4) {
            return Vec::new();
        }
        let kind = draw.random_range(0..4);
        let one = |draw: &mut SmallRng| {
            let (process, millis) = (draw.random_range(0..count), draw.random_range(1..1_500));
            match (kind, engine) {
                (0, _) => Fault::Kill(process, draw.random_bool(0.7)),
                (1, _) => Fault::Pause(process, millis),
                (2, Engine::Sentinel(_) | Engine::Cluster(_)) => {
                    let how =
                        [Master::Dies, Master::Stops, Master::Planned][draw.random_range(0..3)];
                    Fault::Failover(draw.random_range(0..3), how)
                }
                _ => loop {
                    let trouble = LinkFault::draw(draw);
                    // A repeated answer is the documented weakness of a plain `SET`.
                    if !matches!(trouble, LinkFault::Repeats(_)) {
                        break Fault::Link(draw.random_range(0..8), trouble, millis);
                    }
                },
            }
        };
        (0..draw.random_range(1..=4))
            .map(|_| (draw.random_range(0..1_500), one(draw)))
            .collect()
    }

    pub(super) fn happens(self, servers: &Rc<Servers>, processes: &[usize]) {
        trace(|| format!("*** {self:?}"));
        if !matches!(self, Fault::Kill(..)) {
            JUDGE.with_borrow_mut(|judge| judge.is_troubled = true);
        }
        match self {
            Fault::Kill(process, closes) => {
                JUDGE.with_borrow_mut(|judge| judge.dead.push(processes[process]));
                kill(processes[process], closes);
            }
            Fault::Pause(process, millis) => pause(processes[process], of(millis)),
            Fault::Link(server, trouble, millis) => {
                let address = servers.address(server);
                trouble.happens(address, millis);
                later(of(millis), move || {
                    change_link(address, |link| link.refuses_until = 0);
                });
            }
            Fault::Failover(shard, how) => {
                let failover = Failover {
                    shard,
                    how,
                    after: 200,
                    back: 1_000,
                    learns: 100,
                };
                plan::Fault::Failover(failover).happens(servers, processes);
            }
        }
    }
}
