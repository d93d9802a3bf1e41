//! What happens in a scene: drawn from its seed, before it begins.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::base::sync::scheduler::Order;
use crate::simulation::judge::ledger::Kind;
use crate::simulation::scene::taste::Taste;
use crate::simulation::world::engine::{Decoy, Engine};
use crate::simulation::world::faults::Fault;
use crate::simulation::world::troubles::{Ailment, Trouble};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) order: Order,
    pub(crate) engine: Engine,
    pub(crate) keys: usize,
    /// Whether all locks have a fencing token.
    pub(crate) fenced: bool,
    pub(crate) processes: Vec<Program>,
    /// What goes wrong, and when, in milliseconds.
    pub(crate) faults: Vec<(u64, Fault)>,
}

/// A process. Times are in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Millionths by which its clock is fast.
    pub(crate) drift: i64,
    pub(crate) lease: u64,
    pub(crate) response: u64,
    pub(crate) renews: bool,
    /// The limit of all waits that say nothing else.
    pub(crate) waits: Option<u64>,
    pub(crate) tracks: bool,
    pub(crate) pool: u32,
    pub(crate) managers: usize,
    pub(crate) reclaims: bool,
    pub(crate) outage: u64,
    pub(crate) handoff: u64,
    pub(crate) polls: u64,
    pub(crate) warns: Option<u64>,
    pub(crate) on_lost: OnLost,
    pub(crate) threads: Vec<Vec<Op>>,
}

/// What the callback for losses does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLost {
    Returns,
    Blocks,
    Panics,
}

/// What a thread does, one after the other.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Sleep(u64),
    Lock {
        key: usize,
        how: How,
        terms: Terms,
        under: Vec<Under>,
        end: End,
    },
    With {
        key: usize,
        with: With,
        terms: Terms,
        under: Vec<Under>,
        body: Body,
    },
    Several {
        keys: Vec<usize>,
        how: How,
        manager: usize,
        under: Vec<Under>,
        end: SeveralEnd,
    },
    /// Takes over what somebody has handed over, if there is anything.
    Adopt {
        key: usize,
        terms: Terms,
        under: Vec<Under>,
        end: End,
    },
    /// Goes on with a hold that another thread of the process has left.
    Attach,
    ForceUnlock(usize),
    ForceUnlockIf(usize),
    Holder(usize),
    /// Asks for what is held, and which threads wait.
    Look,
    Stop,
    Shutdown {
        manager: usize,
        limit: u64,
        releases: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// Waits as long as the manager says: in most programs without a limit.
    Lock,
    Try,
    /// Waits for so many milliseconds.
    For(u64),
}

/// The options of one lock.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are the options that the lock has"
)]
pub(crate) struct Terms {
    pub(crate) manager: usize,
    pub(crate) keeps: u64,
    /// It is not reentrant.
    pub(crate) once: bool,
    /// It has a `max_hold`, of so many leases.
    pub(crate) most_leases: u64,
    /// It is not renewed.
    pub(crate) unrenewed: bool,
    /// Its lease is twice that of the others.
    pub(crate) doubled: bool,
    /// It is renewed five times in a lease.
    pub(crate) often: bool,
    /// The process can stop its waits.
    pub(crate) heeds: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum With {
    Lock,
    Try,
    Result,
}

/// How a closure under a lock ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Returns,
    Fails,
    Panics,
}

/// What a thread does under a lock.
#[derive(Clone, Debug)]
pub(crate) enum Under {
    Work(u64),
    Extend,
    ExtendTo(u64),
    Ensure(u64),
    Confirm(u64),
    Verify,
    /// Another thread waits until so much is left.
    WatchRisk(u64),
    /// Another thread waits for a loss.
    WatchLoss(u64),
    Inner(Op),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Unlock,
    UnlockNow,
    Drop,
    Panic,
    /// The guard goes to another thread of the process, and this one waits for that.
    Detach,
    /// The guard goes to another thread of the process, and this one does something else.
    Leave,
    HandOver,
    /// The guard is forgotten, and the thread ends.
    Forget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeveralEnd {
    Unlock,
    Drop,
    Panic,
    /// They are taken for a closure.
    With,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut draw = SmallRng::seed_from_u64(seed ^ 0x5eed);
        let draw = &mut draw;
        let engine = Engine::draw(draw);
        let switches = [1, 4, 16, 64][draw.random_range(0..4)];
        let stalls = if draw.random_ratio(1, 4) { 500 } else { 0 };
        let order = Order {
            switches,
            stalls,
            longest: Duration::MAX,
        };
        let keys = draw.random_range(1..=3);
        let fenced = draw.random_ratio(1, 3);
        let count = if engine == Engine::Memory {
            1
        } else {
            draw.random_range(1..=3)
        };
        let mut taste = Taste::draw(draw, keys);
        let programs = (0..count).map(|_| Program::draw(draw, &mut taste, count == 1));
        let mut processes: Vec<_> = programs.collect();
        if engine == Engine::Memory {
            // Two managers in memory know nothing of each other.
            for program in &mut processes {
                program.managers = 1;
            }
        }
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
}

impl Program {
    fn draw(draw: &mut SmallRng, taste: &mut Taste, is_alone: bool) -> Program {
        let lease = [500, 2_000, 10_000][draw.random_range(0..3)];
        let threads = draw.random_range(1..=3);
        let mut program = Program {
            drift: if draw.random_ratio(1, 8) {
                draw.random_range(-9_000..=9_000)
            } else {
                draw.random_range(-200..=200)
            },
            lease,
            response: [100, 500, 2_000][draw.random_range(0..3)],
            renews: !draw.random_ratio(1, 6),
            waits: draw
                .random_ratio(1, 8)
                .then(|| [300, 3_000][draw.random_range(0..2)]),
            tracks: !draw.random_ratio(1, 6),
            pool: [1, 2, 8][draw.random_range(0..3)],
            managers: if draw.random_ratio(1, 5) { 2 } else { 1 },
            reclaims: draw.random_ratio(1, 4),
            outage: [300, 2_000, 10_000][draw.random_range(0..3)],
            handoff: [0, 5, 50][draw.random_range(0..3)],
            polls: [20, 64, 300][draw.random_range(0..3)],
            warns: draw.random_ratio(1, 4).then(|| draw.random_range(10..300)),
            on_lost: [OnLost::Returns, OnLost::Blocks, OnLost::Panics][draw.random_range(0..3)],
            threads: Vec::new(),
        };
        program.threads = (0..threads)
            .map(|_| taste.ops(draw, &program, is_alone))
            .collect();
        program
    }
}

impl Plan {
    /// The server's clock is set back, and the counter may be lost as well.
    pub(crate) fn may_lose_fences(&self) -> bool {
        let is_set_back =
            |it: &(u64, Fault)| matches!(it.1, Fault::ClockStep { millis } if millis < 0);
        // A replica that takes the place of its master may lack the last writes.
        let loses = |it: &(u64, Fault)| {
            matches!(
                it.1,
                Fault::Failover { .. }
                    | Fault::Ailment {
                        ailment: Ailment::Restart { keeps: false },
                        ..
                    }
            )
        };
        self.faults.iter().any(is_set_back) && self.faults.iter().any(loses)
    }

    /// What goes wrong with the network or the servers, from when until when, in nanoseconds from
    /// the beginning.
    pub(crate) fn troubles(&self) -> Vec<(Kind, u64, u64)> {
        let trouble = |(at, fault): &(u64, Fault)| {
            let (kind, millis) = match fault {
                // Programs never hear of a script that a server does not know.
                Fault::Ailment {
                    ailment: Ailment::ScriptFlush,
                    ..
                }
                | Fault::Pause { .. }
                | Fault::Kill { .. }
                | Fault::Delete { .. } => return None,
                Fault::Trouble {
                    trouble: Trouble::HalfOpen,
                    millis,
                    ..
                } => (Kind::Break, millis + 30_000), // Until the connections are used.
                Fault::Trouble {
                    trouble: Trouble::ResetAll,
                    millis,
                    ..
                }
                | Fault::Ailment {
                    ailment: Ailment::Restart { .. } | Ailment::KillClients,
                    millis,
                    ..
                } => (Kind::Break, millis + 3_000),
                Fault::Trouble { millis, .. } | Fault::Ailment { millis, .. } => {
                    (Kind::Outage, millis + 3_000)
                }
                Fault::Failover {
                    after,
                    back,
                    learns,
                    ..
                } => (Kind::Failover, after + back + learns + 20_000),
                Fault::Lag { .. } => (Kind::Outage, 10_000),
                Fault::ClockStep { .. } => (Kind::Break, 10_000),
                Fault::MoveSlot { .. } => (Kind::Move, 10_000),
            };
            Some((kind, at * 1_000_000, (at + millis) * 1_000_000))
        };
        // Something may be wrong with the way all the time.
        let is_dark = matches!(self.engine, Engine::Server(Decoy::Dead | Decoy::Silent));
        let always = is_dark.then_some((Kind::Outage, 0, u64::MAX / 2));
        self.faults
            .iter()
            .filter_map(trouble)
            .chain(always)
            .collect()
    }
}
