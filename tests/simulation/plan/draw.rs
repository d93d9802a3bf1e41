//! What a seed makes a scene of. Each scene has a few kinds of operations and of faults, so that
//! rare combinations come often enough (swarm testing).

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{
    Body, Choice, Copies, End, Engine, Fault, How, OnLost, Op, Plan, Program, SeveralEnd, Take,
    Under, With,
};
use crate::base::sync::scheduler::Order;

/// One of these.
pub(crate) fn any<T: Copy>(draw: &mut SmallRng, of: &[T]) -> T {
    of[draw.random_range(0..of.len())]
}

/// The number of one of these weights.
pub(crate) fn weighed(draw: &mut SmallRng, weights: &[u32]) -> usize {
    let mut at = draw.random_range(0..weights.iter().sum());
    let is_it = |weight: &u32| at.checked_sub(*weight).map(|rest| at = rest).is_none();
    weights.iter().position(is_it).unwrap_or(0)
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let draw = &mut SmallRng::seed_from_u64(seed ^ 0x5eed);
        let engine = Engine::draw(draw);
        let order = Order {
            switches: any(draw, &[1, 4, 16, 64]),
            stalls: if draw.random_ratio(1, 4) { 500 } else { 0 },
            longest: Duration::MAX,
        };
        let keys = draw.random_range(1..=3);
        let fenced = draw.random_ratio(1, 3);
        let is_in_memory = engine == Engine::Memory;
        let count = if is_in_memory {
            1
        } else {
            draw.random_range(1..=3)
        };
        let weights = Weights::draw(draw, keys);
        let mut program = |_| {
            let mut program = Program::draw(draw);
            // Two managers in memory know nothing of each other.
            program.managers = if is_in_memory { 1 } else { program.managers };
            let threads = any(draw, &[1, 2, 3, 6]);
            let of = |_| weights.thread(draw, &program, count == 1);
            program.threads = (0..threads).map(of).collect();
            program
        };
        let processes = (0..count).map(&mut program).collect();
        let faults = Fault::draw_some(draw, engine, keys, count);
        Plan {
            order,
            engine,
            keys,
            fenced,
            processes,
            faults,
        }
    }

    /// Nothing happens.
    pub(crate) fn empty() -> Plan {
        Plan {
            order: Order {
                switches: 1,
                stalls: 0,
                longest: Duration::MAX,
            },
            engine: Engine::Memory,
            keys: 0,
            fenced: false,
            processes: Vec::new(),
            faults: Vec::new(),
        }
    }
}

impl Engine {
    fn draw(draw: &mut SmallRng) -> Engine {
        let count = draw.random_range(1..=2);
        let wanted = draw.random_range(0..=count);
        match draw.random_range(0..16) {
            0 => Engine::Memory,
            1 | 2 => Engine::Replicas(Copies { count, wanted }),
            3..=6 => Engine::Sentinel(Copies { count, wanted }),
            7 => Engine::Cluster(Copies::NONE),
            8..=10 => Engine::Cluster(Copies {
                count: 1,
                wanted: wanted.min(1),
            }),
            _ => Engine::Server,
        }
    }
}

impl Program {
    fn draw(draw: &mut SmallRng) -> Program {
        Program {
            drift: if draw.random_ratio(1, 8) {
                draw.random_range(-9_000..=9_000)
            } else {
                draw.random_range(-200..=200)
            },
            lease: any(draw, &[500, 2_000, 10_000]),
            response: any(draw, &[100, 500, 2_000]),
            renews: !draw.random_ratio(1, 6),
            waits: draw.random_ratio(1, 8).then(|| any(draw, &[300, 3_000])),
            tracks: !draw.random_ratio(1, 6),
            pool: any(draw, &[1, 2, 8]),
            managers: if draw.random_ratio(1, 5) { 2 } else { 1 },
            reclaims: draw.random_ratio(1, 4),
            outage: any(draw, &[300, 2_000, 10_000]),
            handoff: any(draw, &[0, 5, 50]),
            polls: any(draw, &[20, 64, 300]),
            on_lost: any(draw, &[OnLost::Returns, OnLost::Blocks, OnLost::Panics]),
            threads: Vec::new(),
        }
    }
}

/// How often the operations of a scene come, relative to others of their kind.
struct Weights {
    keys: usize,
    ops: Vec<u32>,
    under: Vec<u32>,
    ends: Vec<u32>,
    choices: Vec<u32>,
}

/// What a thread has when it does something.
#[derive(Clone, Copy)]
struct Place<'a> {
    program: &'a Program,
    depth: u32,
    /// The locks that the thread holds. `None`: a deadlock would be found.
    ///
    /// Nobody finds a deadlock between processes. So a thread that holds locks waits for ever only
    /// for a key behind all of them.
    held: Option<&'a [usize]>,
}

impl Weights {
    fn draw(draw: &mut SmallRng, keys: usize) -> Weights {
        let mut some = |weights: &[u32]| {
            let mut one = |weight: &u32| if draw.random_bool(0.5) { *weight } else { 0 };
            let mut some: Vec<u32> = weights.iter().map(&mut one).collect();
            some[0] = weights[0]; // The first one always comes.
            some
        };
        Weights {
            keys,
            ops: some(&[10, 2, 4, 3, 3, 3, 1, 1, 1, 1, 1, 1]),
            under: some(&[8, 2, 1, 2, 1, 1, 6]),
            ends: some(&[8, 2, 6, 1, 2, 3, 3, 2]),
            choices: some(&[8, 2, 1, 1, 1, 2, 1, 1]),
        }
    }

    /// What a thread does.
    fn thread(&self, draw: &mut SmallRng, program: &Program, is_alone: bool) -> Vec<Op> {
        let none: &[usize] = &[];
        let place = Place {
            program,
            depth: 0,
            held: (!is_alone).then_some(none),
        };
        let count = draw.random_range(1..=5);
        let mut ops: Vec<Op> = (0..count).map(|_| self.op(draw, place)).collect();
        if draw.random_ratio(1, 4) {
            // A job that is done again and again.
            let (key, manager) = (
                draw.random_range(0..self.keys),
                draw.random_range(0..place.program.managers),
            );
            let again = Take {
                keys: vec![key],
                manager,
                choice: Choice::None,
                under: vec![Under::Work(draw.random_range(0..3))],
            };
            let again = Op::Lock(again, How::draw(draw), End::Unlock);
            ops.extend(vec![again; draw.random_range(2..=16)]);
        }
        let forgets = |op: &Op| matches!(op, Op::Lock(.., End::Forget) | Op::Adopt(_, End::Forget));
        if let Some(last) = ops.iter().position(forgets) {
            ops.truncate(last + 1);
        }
        ops
    }

    fn op(&self, draw: &mut SmallRng, place: Place<'_>) -> Op {
        let key = draw.random_range(0..self.keys);
        let is_outside = place.depth == 0;
        match weighed(draw, &self.ops) {
            1 if is_outside => {
                let longest = any(draw, &[30, 300, 3_000]);
                Op::Sleep(draw.random_range(0..longest))
            }
            2 => {
                let with = any(draw, &[With::Lock, With::Try, With::Result]);
                let with = if place.is_safe(&[key]) {
                    with
                } else {
                    With::Try
                };
                let bodies = [Body::Returns, Body::Returns, Body::Fails, Body::Panics];
                Op::With(self.take(draw, place, vec![key]), with, any(draw, &bodies))
            }
            3 => self.several(draw, place),
            4 => Op::Adopt(self.take(draw, place, vec![key]), self.end(draw, place)),
            5 => Op::Attach,
            6 if is_outside => Op::ForceUnlock(key),
            7 if is_outside => Op::ForceUnlockIf(key),
            8 => Op::Holder(key),
            9 => Op::Look,
            10 if draw.random_ratio(1, 3) => Op::Stop,
            11 if draw.random_ratio(1, 3) => Op::Shutdown {
                manager: draw.random_range(0..place.program.managers),
                limit: any(draw, &[0, 20, 500, 3_000]),
                releases: draw.random_bool(0.5),
            },
            _ => {
                let how = place.may_wait(How::draw(draw), &[key]);
                Op::Lock(
                    self.take(draw, place, vec![key]),
                    how,
                    self.end(draw, place),
                )
            }
        }
    }

    /// Several locks at a time.
    fn several(&self, draw: &mut SmallRng, place: Place<'_>) -> Op {
        let keys: Vec<_> = (0..self.keys).filter(|_| draw.random_bool(0.7)).collect();
        let how = place.may_wait(How::draw(draw), &keys);
        let ends = [
            SeveralEnd::Unlock,
            SeveralEnd::Drop,
            SeveralEnd::Panic,
            SeveralEnd::With,
        ];
        let most = if matches!(how, How::Lock) { 4 } else { 3 };
        Op::Several(self.take(draw, place, keys), how, any(draw, &ends[..most]))
    }

    fn take(&self, draw: &mut SmallRng, place: Place<'_>, keys: Vec<usize>) -> Take {
        let choice = match weighed(draw, &self.choices) {
            1 => Choice::Keeps(any(draw, &[1, 50, 700, 3_000])),
            2 => Choice::Once,
            3 => Choice::Capped(draw.random_range(1..=3)),
            4 => Choice::Unrenewed,
            5 => Choice::Heeds,
            6 => Choice::Doubled,
            7 => Choice::Often,
            _ => Choice::None,
        };
        let held = place.held.map(|held| [held, &keys].concat());
        let inside = Place {
            depth: place.depth + 1,
            held: held.as_deref(),
            ..place
        };
        let count = draw.random_range(0..=3);
        Take {
            manager: draw.random_range(0..place.program.managers),
            choice,
            under: (0..count).map(|_| self.under(draw, inside)).collect(),
            keys,
        }
    }

    fn under(&self, draw: &mut SmallRng, place: Place<'_>) -> Under {
        let lease = place.program.lease;
        match weighed(draw, &self.under) {
            1 => Under::SetLease(any(draw, &[lease / 4, lease, lease * 2])),
            2 => Under::Ensure(draw.random_range(0..lease * 2 / 5)),
            3 => Under::Confirm(draw.random_range(0..lease * 2 / 5)),
            4 => Under::Verify,
            5 => Under::WatchLoss(any(draw, &[1, 100, 5_000])),
            6 if place.depth < 4 => Under::Inner(self.op(draw, place)),
            _ if draw.random_ratio(1, 8) => Under::Work(draw.random_range(0..4_000)),
            _ => Under::Work(draw.random_range(0..20)),
        }
    }

    fn end(&self, draw: &mut SmallRng, place: Place<'_>) -> End {
        match weighed(draw, &self.ends) {
            1 => End::UnlockNow,
            2 => End::Drop,
            3 => End::Panic,
            4 => End::Detach,
            5 => End::Leave,
            6 => End::HandOver,
            7 if place.depth == 0 => End::Forget,
            _ => End::Unlock,
        }
    }
}

impl Place<'_> {
    fn is_safe(&self, keys: &[usize]) -> bool {
        // The thread may have lost that lock. Through another manager, it then waits for it as for
        // any other.
        let is_behind = |key: &usize, held: &[usize]| {
            self.program.managers == 1 && held.contains(key) || held.iter().all(|it| it < key)
        };
        self.held
            .is_none_or(|held| keys.iter().all(|key| is_behind(key, held)))
    }

    fn may_wait(&self, how: How, keys: &[usize]) -> How {
        if matches!(how, How::Lock) && !self.is_safe(keys) {
            How::For(300)
        } else {
            how
        }
    }
}

impl How {
    fn draw(draw: &mut SmallRng) -> How {
        let limit = any(draw, &[0, 1, 20, 300, 3_000]);
        any(
            draw,
            &[
                How::Lock,
                How::Lock,
                How::Try,
                How::For(limit),
                How::For(limit),
            ],
        )
    }
}
