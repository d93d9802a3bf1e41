//! A scene as data: what keeps its locks, what its programs do, and what goes wrong. `draw` and
//! `faults` make one of a seed.

mod draw;
mod faults;

pub(crate) use draw::{any, weighed};

use std::sync::LazyLock;

use crate::base::sync::scheduler::Order;

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

/// What keeps the locks of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Memory,
    Server,
    /// A master with replicas whose master never changes.
    Replicas(Copies),
    Sentinel(Copies),
    /// Three masters, each with its replicas.
    Cluster(Copies),
}

/// The replicas of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) count: usize,
    /// How many of them have to acknowledge a lock. Zero: the program does not ask for any.
    pub(crate) wanted: usize,
}

impl Copies {
    pub(crate) const NONE: Copies = Copies::new(0, 0);
    pub(crate) const ONE: Copies = Copies::new(1, 0);
    pub(crate) const TWO: Copies = Copies::new(2, 0);
    /// All that there are have to acknowledge a lock.
    pub(crate) const ONE_SAFE: Copies = Copies::new(1, 1);

    const fn new(count: usize, wanted: usize) -> Copies {
        Copies { count, wanted }
    }

    /// All replicas have what was acknowledged, so no failover loses it.
    pub(crate) fn are_safe(self) -> bool {
        self.wanted == self.count && self.count > 0
    }
}

impl Engine {
    pub(crate) fn copies(self) -> Copies {
        match self {
            Engine::Memory | Engine::Server => Copies::NONE,
            Engine::Replicas(copies) | Engine::Sentinel(copies) | Engine::Cluster(copies) => copies,
        }
    }

    pub(crate) fn masters(self) -> usize {
        match self {
            Engine::Memory => 0,
            Engine::Server | Engine::Replicas(_) | Engine::Sentinel(_) => 1,
            Engine::Cluster(_) => 3,
        }
    }

    pub(crate) fn nodes(self) -> usize {
        self.masters() * (1 + self.copies().count)
    }
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
    Lock(Take, How, End),
    With(Take, With, Body),
    Several(Take, How, SeveralEnd),
    /// Takes over what somebody has handed over, if there is anything.
    Adopt(Take, End),
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

impl Op {
    /// What a thread does under the lock that the operation takes.
    pub(crate) fn under(&mut self) -> Option<&mut Vec<Under>> {
        match self {
            Op::Lock(take, ..)
            | Op::With(take, ..)
            | Op::Several(take, ..)
            | Op::Adopt(take, _) => Some(&mut take.under),
            _ => None,
        }
    }
}

/// What is taken, and what is done under it.
#[derive(Clone, Debug)]
pub(crate) struct Take {
    pub(crate) keys: Vec<usize>,
    pub(crate) manager: usize,
    pub(crate) choice: Choice,
    pub(crate) under: Vec<Under>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// Waits as long as the manager says: in most programs without a limit.
    Lock,
    Try,
    /// Waits for so many milliseconds.
    For(u64),
}

/// The option that a lock has besides those of its manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    None,
    /// It stays taken for so many milliseconds.
    Keeps(u64),
    /// It is not reentrant.
    Once,
    /// It has a `max_hold`, of so many leases.
    Capped(u64),
    Unrenewed,
    /// The process can stop its waits.
    Heeds,
    /// Its lease is twice that of the others.
    Doubled,
    /// It says itself when it is renewed.
    Often,
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
    SetLease(u64),
    Ensure(u64),
    Confirm(u64),
    Verify,
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

/// What goes wrong. Times are milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Something is wrong between the processes and a server.
    Link(usize, LinkFault, u64),
    /// Something is wrong with a server.
    Server(usize, ServerFault, u64),
    Pause(usize, u64),
    Kill {
        process: usize,
        /// The system closes its connections. A machine without power does not.
        closes: bool,
    },
    /// Somebody deletes the key, or it is evicted.
    Delete(usize),
    /// The clocks of all servers are set forward or back.
    ClockStep(i64),
    /// Replicas are slow, for five seconds.
    Lag(u64),
    Failover(Failover),
    /// The slot of a key moves to another shard.
    MoveSlot(usize),
}

/// What is wrong between the processes and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkFault {
    /// Nothing arrives at the server, or nothing comes from it, or both.
    Silence([bool; 2]),
    /// Connects hang. What is open goes on.
    Hangs,
    /// Connects are refused, and all connections are reset.
    Refusal,
    /// Bytes take so many milliseconds, at least and at most.
    Slow(u64, u64),
    /// All connections are reset.
    ResetAll,
    /// Connections are reset in the middle of what they carry.
    Resets(u32),
    /// Answers come twice.
    Repeats(u32),
    /// Whatever is sent over the connections that are open now vanishes.
    HalfOpen,
}

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// The process is stopped, and executes later what has come meanwhile.
    Stops,
    /// The server restarts, with or without its data.
    Restart {
        keeps: bool,
    },
    /// The server restarts with its data, and has another address behind the same name.
    Readdressed,
    ScriptFlush,
    KillClients,
    Loading,
    ReadOnly,
    OutOfMemory,
    LacksReplicas,
    Stuck,
    Pause {
        only_writes: bool,
    },
    Password,
    /// The proxy in front of it answers with errors.
    ProxyFails,
}

/// A replica takes the place of its master.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failover {
    pub(crate) shard: usize,
    pub(crate) how: Master,
    /// When the replica becomes the master, and when the old master is back.
    pub(crate) after: u64,
    pub(crate) back: u64,
    /// How long the old master, when it is back, does not know that it was replaced.
    pub(crate) learns: u64,
}

/// What happens to a master that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Master {
    /// It dies, and begins again later.
    Dies,
    /// It is silent, and goes on later.
    Stops,
    /// Nothing, until it is told.
    Planned,
    /// It hears nothing of the other servers for a time, while programs reach it.
    CutOff,
}

/// The keys of locks at the server. (No scene has more.)
static PATHS: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..40).map(|key| format!("lock:k{key}")).collect());

/// The name of a lock.
pub(crate) fn name(key: usize) -> &'static str {
    &PATHS[key]["lock:".len()..]
}

/// The number of the lock with this name.
pub(crate) fn key_of(name: &str) -> usize {
    name[1..].parse().expect("a key")
}

/// The key of a lock at the server.
pub(crate) fn path(key: usize) -> &'static [u8] {
    PATHS[key].as_bytes()
}
