//! What happens in a scene of slots: drawn from its seed, before it begins.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::base::sync::scheduler::Order;
use crate::simulation::plan::{Copies, Engine, Failover, Fault, LinkFault, Master, any};

/// One of so many slots, or a part of a lock for so many readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Slot(usize),
    Read(usize),
    Write(usize),
}

/// What a thread takes, how long it waits at most, and how long it works. A writer may read as
/// well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) want: Want,
    pub(super) limit: Option<u64>,
    pub(super) work: u64,
    pub(super) reads: bool,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) engine: Engine,
    pub(super) lease: u64,
    pub(super) response: u64,
    /// The threads of each process.
    pub(super) processes: Vec<Vec<Vec<Op>>>,
    pub(super) faults: Vec<(u64, Fault)>,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let draw = &mut SmallRng::seed_from_u64(seed ^ 0x5107);
        let engine = match draw.random_range(0..8) {
            0 => Engine::Memory,
            1 => Engine::Sentinel(Copies::ONE_SAFE),
            2 => Engine::Cluster(Copies::ONE_SAFE),
            _ => Engine::Server,
        };
        let is_in_memory = engine == Engine::Memory;
        let count = if is_in_memory {
            1
        } else {
            draw.random_range(1..=4)
        };
        let (slots, is_read_write) = (draw.random_range(1..=3), draw.random_bool(0.4));
        // Some think that there are more.
        let differs = draw.random_ratio(1, 3);
        let op = |draw: &mut SmallRng, slots| Op {
            want: match is_read_write {
                true if draw.random_ratio(1, 3) => Want::Write(slots),
                true => Want::Read(slots),
                false => Want::Slot(slots),
            },
            limit: any(draw, &[None, None, Some(0), Some(20), Some(400)]),
            work: {
                let longest = any(draw, &[2, 20, 400]);
                draw.random_range(0..longest)
            },
            reads: draw.random_bool(0.5),
        };
        let thread = |draw: &mut SmallRng| {
            let more = if differs { draw.random_range(0..=3) } else { 0 };
            let ops = draw.random_range(1..=8);
            (0..ops).map(|_| op(draw, slots + more)).collect()
        };
        let process = |_| {
            let threads = draw.random_range(1..=4);
            (0..threads).map(|_| thread(draw)).collect()
        };
        let processes = (0..count).map(process).collect();
        Plan {
            engine,
            lease: any(draw, &[300, 2_000]),
            response: any(draw, &[100, 500]),
            processes,
            faults: faults(draw, engine, count),
        }
    }

    pub(super) fn order(seed: u64) -> Order {
        Order {
            switches: [1, 4, 16, 64][usize::try_from(seed % 4).expect("a few")],
            stalls: 0,
            longest: Duration::MAX,
        }
    }

    /// Something has gone wrong by then besides the end of a process.
    pub(super) fn is_troubled(&self, millis: u64) -> bool {
        let is_it = |it: &(u64, Fault)| it.0 <= millis && !matches!(it.1, Fault::Kill { .. });
        self.faults.iter().any(is_it)
    }

    /// The highest number of a slot.
    pub(super) fn most(&self) -> usize {
        let ops = self.processes.iter().flatten().flatten();
        ops.map(|op| op.want.most()).max().unwrap_or(0)
    }
}

impl Want {
    pub(super) fn most(self) -> usize {
        let (Want::Slot(most) | Want::Read(most) | Want::Write(most)) = self;
        most
    }
}

fn faults(draw: &mut SmallRng, engine: Engine, count: usize) -> Vec<(u64, Fault)> {
    if engine == Engine::Memory || draw.random_ratio(1, 4) {
        return Vec::new();
    }
    let kind = draw.random_range(0..4);
    let one = |draw: &mut SmallRng| {
        let (process, millis) = (draw.random_range(0..count), draw.random_range(1..1_500));
        match (kind, engine) {
            (0, _) => Fault::Kill {
                process,
                closes: draw.random_bool(0.7),
            },
            (1, _) => Fault::Pause(process, millis),
            (2, Engine::Sentinel(_) | Engine::Cluster(_)) => Fault::Failover(Failover {
                shard: draw.random_range(0..3),
                how: any(draw, &[Master::Dies, Master::Stops, Master::Planned]),
                after: 200,
                back: 1_000,
                learns: 100,
            }),
            // A repeated answer is the documented weakness of a plain `SET`.
            _ => match LinkFault::draw(draw) {
                LinkFault::Repeats(_) => Fault::Pause(process, millis),
                fault => Fault::Link(draw.random_range(0..8), fault, millis),
            },
        }
    };
    let count = draw.random_range(1..=4);
    (0..count)
        .map(|_| (draw.random_range(0..1_500), one(draw)))
        .collect()
}
