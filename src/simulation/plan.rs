//! What happens in a scene: drawn from its seed, before it begins.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::base::scheduler::Order;
use crate::simulation::engine::Engine;
use crate::simulation::faults::Fault;

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) order: Order,
    pub(super) engine: Engine,
    pub(super) keys: usize,
    pub(super) processes: Vec<Program>,
    /// What goes wrong, and when, in milliseconds.
    pub(super) faults: Vec<(u64, Fault)>,
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Millionths by which its clock is fast.
    pub(super) drift: i64,
    pub(super) lease: Duration,
    pub(super) response: Duration,
    pub(super) renews: bool,
    pub(super) tracks: bool,
    pub(super) pool: u32,
    pub(super) threads: Vec<Vec<Op>>,
}

/// What a thread does, one after the other.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Sleep(u64),
    Lock { key: usize, how: How, under: Vec<Under>, end: End },
    Several { keys: Vec<usize>, how: How, millis: u64 },
    ForceUnlock(usize),
    Holder(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// Waits without a limit.
    Lock,
    Try,
    /// Waits for so many milliseconds.
    For(u64),
}

/// What a thread does under a lock.
#[derive(Clone, Debug)]
pub(super) enum Under {
    Work(u64),
    Extend,
    Confirm(u64),
    Verify,
    Inner(Op),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Unlock,
    Drop,
    Panic,
    /// The guard goes to another thread of the process.
    Detach,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let mut draw = SmallRng::seed_from_u64(seed ^ 0x5eed);
        let draw = &mut draw;
        let engine = Engine::draw(draw);
        let switches = [1, 2, 4, 16][draw.random_range(0..4)];
        let stalls = if draw.random_ratio(1, 4) { 500 } else { 0 };
        let order = Order { switches, stalls, longest: Duration::MAX };
        let keys = draw.random_range(1..=3);
        let count = if engine == Engine::Memory { 1 } else { draw.random_range(1..=3) };
        let processes: Vec<_> = (0..count).map(|_| Program::draw(draw, keys, count)).collect();
        let faults = Fault::draw_some(draw, engine, keys, count);
        Plan { order, engine, keys, processes, faults }
    }
}

impl Program {
    fn draw(draw: &mut SmallRng, keys: usize, processes: usize) -> Program {
        let lease = Duration::from_millis([500, 2_000, 10_000][draw.random_range(0..3)]);
        let threads = draw.random_range(1..=3);
        Program {
            drift: draw.random_range(-200..=200),
            lease,
            response: Duration::from_millis([100, 500, 2_000][draw.random_range(0..3)]),
            renews: !draw.random_ratio(1, 6),
            tracks: !draw.random_ratio(1, 6),
            pool: [1, 2, 8][draw.random_range(0..3)],
            threads: (0..threads).map(|_| ops(draw, keys, processes == 1)).collect(),
        }
    }
}

/// What a thread does. Nobody finds a deadlock between processes. So unless `is_alone`, a thread that
/// holds locks waits for ever only for a key behind all of them.
fn ops(draw: &mut SmallRng, keys: usize, is_alone: bool) -> Vec<Op> {
    let held = if is_alone { None } else { Some(Vec::new()) };
    (0..draw.random_range(1..=5)).map(|_| Op::draw(draw, keys, 0, held.as_deref())).collect()
}

impl Op {
    fn draw(draw: &mut SmallRng, keys: usize, depth: u32, held: Option<&[usize]>) -> Op {
        let key = draw.random_range(0..keys);
        match draw.random_range(0..20) {
            0 | 1 if depth == 0 => Op::Sleep(draw.random_range(0..3_000)),
            2 if depth == 0 => Op::ForceUnlock(key),
            3 => Op::Holder(key),
            4 | 5 if depth == 0 => {
                let keys = (0..keys).filter(|_| draw.random_bool(0.7)).collect();
                Op::Several { keys, how: How::draw(draw), millis: draw.random_range(0..50) }
            }
            _ => {
                let count = draw.random_range(0..=3);
                let is_safe = held.is_none_or(|held| held.contains(&key) || held.iter().all(|it| *it < key));
                let how = match How::draw(draw) {
                    How::Lock if !is_safe => How::For(300),
                    how => how,
                };
                let held = held.map(|held| [held, &[key]].concat());
                Op::Lock {
                    key,
                    how,
                    under: (0..count).map(|_| Under::draw(draw, keys, depth, held.as_deref())).collect(),
                    end: End::draw(draw),
                }
            }
        }
    }
}

impl How {
    fn draw(draw: &mut SmallRng) -> How {
        match draw.random_range(0..4) {
            0 | 1 => How::Lock,
            2 => How::Try,
            _ => How::For([0, 1, 20, 300, 3_000][draw.random_range(0..5)]),
        }
    }
}

impl Under {
    fn draw(draw: &mut SmallRng, keys: usize, depth: u32, held: Option<&[usize]>) -> Under {
        match draw.random_range(0..12) {
            0 => Under::Extend,
            1 => Under::Confirm(draw.random_range(0..400)),
            2 => Under::Verify,
            3..=5 if depth < 3 => Under::Inner(Op::draw(draw, keys, depth + 1, held)),
            6 => Under::Work(draw.random_range(0..4_000)),
            _ => Under::Work(draw.random_range(0..20)),
        }
    }
}

impl End {
    fn draw(draw: &mut SmallRng) -> End {
        match draw.random_range(0..16) {
            0 => End::Panic,
            1 => End::Detach,
            2..=6 => End::Drop,
            _ => End::Unlock,
        }
    }
}
