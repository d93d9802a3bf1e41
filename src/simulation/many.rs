//! Scenes of slots, and of readers and writers: several holders at a time.
//!
//! `RELATCH_SEED=n cargo test --lib many_holders` replays the scene of a seed, and prints what
//! happened in it.

use std::cell::RefCell;
use std::env;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::base::sync::scheduler::{
    self, Ended, Order, as_process, change_link, fail, kill, later, now, one_in, pause, thread,
    thread_number, trace,
};
use crate::simulation::judge::ledger;
use crate::simulation::world::engine::{Copies, Decoy, Engine, Servers};
use crate::simulation::world::failover::{Failover, How};
use crate::simulation::world::troubles::Trouble;
use crate::{Error, Lock, LockGuard, LockWatch};

/// For how long a slot is free at most while a thread waits for one, and nothing goes wrong.
const FREE: u64 = 1_500;

/// How often that is looked at.
const EVERY: u64 = 100;

/// After this, a scene hangs.
const LONGEST: u64 = 300_000;

thread_local! {
    static JUDGE: RefCell<Judge> = RefCell::default();
}

#[derive(Default)]
struct Judge {
    holds: Vec<Rc<Hold>>,
    dead: Vec<usize>,
    /// The processes that were paused, or are at the end of a network that fails.
    is_troubled: bool,
    /// The processes with a thread that waits for ever, since when, and for which lock.
    waits: Vec<(usize, u64, Want)>,
    /// How many threads have not ended, of each process.
    running: Vec<(usize, usize)>,
}

struct Hold {
    process: usize,
    thread: u64,
    /// Zero: it is a writer.
    slot: u32,
    /// (Those of a killed process are never dropped.)
    watch: ManuallyDrop<LockWatch>,
    has_ended: std::cell::Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Slot(usize),
    Read,
    Write,
}

/// What a thread does: what it takes, how long it waits at most, and how long it works.
type Op = (Want, Option<u64>, u64);

#[derive(Debug)]
struct Plan {
    engine: Engine,
    slots: usize,
    lease: u64,
    response: u64,
    /// The threads of each process.
    processes: Vec<Vec<Vec<Op>>>,
    faults: Vec<(u64, Fault)>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(usize, bool),
    Pause(usize, u64),
    Trouble(usize, Trouble, u64),
    Failover(usize, How),
}

impl Plan {
    fn of(seed: u64) -> Plan {
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

    fn order(seed: u64) -> Order {
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
                    let how = [How::Dies, How::Stops, How::Planned][draw.random_range(0..3)];
                    Fault::Failover(draw.random_range(0..3), how)
                }
                _ => loop {
                    let trouble = Trouble::draw(draw);
                    // A repeated answer is the documented weakness of a plain `SET`.
                    if !matches!(trouble, Trouble::Repeats(_)) {
                        break Fault::Trouble(draw.random_range(0..8), trouble, millis);
                    }
                },
            }
        };
        (0..draw.random_range(1..=4))
            .map(|_| (draw.random_range(0..1_500), one(draw)))
            .collect()
    }

    fn happens(self, servers: &Rc<Servers>, processes: &[usize]) {
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
            Fault::Trouble(server, trouble, millis) => {
                let address = servers.address(server);
                trouble.happens(address, millis, 0);
                later(of(millis), move || {
                    change_link(address, |link| link.refuses_until = 0)
                });
            }
            Fault::Failover(shard, how) => {
                let shards = servers.shards.borrow().len();
                let begins = Failover {
                    servers: Rc::clone(servers),
                    shard: shard % shards,
                    how,
                    after: of(200),
                    back: of(1_000),
                    learns: of(100),
                    keys: 0,
                };
                begins.begin();
            }
        }
    }
}

fn of(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn play(plan: &'static Plan) {
    ledger::rest();
    JUDGE.take();
    let servers = Rc::new(Servers::start(plan.engine));
    let mut processes = Vec::new();
    for threads in &plan.processes {
        let process = scheduler::process(0);
        processes.push(process);
        JUDGE.with_borrow_mut(|judge| judge.running.push((process, 1)));
        let main = thread::Builder::new().name(format!("main{process}"));
        main.process(process)
            .spawn(move || live(process, plan, threads))
            .expect("a thread");
    }
    for (at, fault) in &plan.faults {
        let (servers, processes, fault) = (Rc::clone(&servers), processes.clone(), *fault);
        later(of(*at), move || fault.happens(&servers, &processes));
    }
    let is_over = || {
        JUDGE.with_borrow(|judge| {
            let mut running = judge.running.iter();
            running.all(|(process, left)| *left == 0 || judge.dead.contains(process))
        })
    };
    let (began, mut free_for) = (now(), 0);
    while !is_over() {
        if now() - began > LONGEST * 1_000_000 {
            fail(format!("the scene hangs: {:?}", scheduler::threads_left()));
        }
        thread::sleep(of(EVERY));
        free_for = if waits_for_free(&servers, plan, free_for) {
            free_for + EVERY
        } else {
            0
        };
        if free_for > FREE {
            let waits = JUDGE.with_borrow(|judge| judge.waits.clone());
            fail(format!(
                "what somebody waits for is free for {free_for} ms: {waits:?}"
            ));
        }
    }
    // What the dead held, and what was given up, is gone a lease later.
    thread::sleep(of(plan.lease * 2 + 3_000));
    let left: Vec<_> = (0..=4).filter(|it| exists(&servers, *it)).collect();
    if !left.is_empty() {
        fail(format!("{left:?} are taken at the end"));
    }
    scheduler::end();
}

/// Whether a server that is a master has the key of a slot or, with zero, of the gate.
fn exists(servers: &Servers, slot: u32) -> bool {
    let key = format!("lock:{{a}}#{slot}");
    let masters: Vec<_> = servers.shards.borrow().iter().map(|it| it.master).collect();
    masters.into_iter().any(|master| {
        servers.nodes[master].borrow_mut().act(|redis, now| {
            redis.advance(now);
            redis.get(key.as_bytes()).is_some()
        })
    })
}

/// Whether a thread has waited for so long for what is free, and nothing has gone wrong.
fn waits_for_free(servers: &Servers, plan: &Plan, free_for: u64) -> bool {
    if plan.engine != Engine::Server(Decoy::None) {
        return false;
    }
    let is_shut = exists(servers, 0);
    let free = |most: usize| (1..=most).any(|it| !exists(servers, u32::try_from(it).expect("few")));
    let can_have = |want: Want| match want {
        Want::Slot(most) => free(most),
        Want::Read => !is_shut && free(plan.slots),
        Want::Write => !is_shut,
    };
    JUDGE.with_borrow(|judge| {
        let since = now().saturating_sub((free_for + EVERY) * 1_000_000);
        let idle = |(process, began, want): &(usize, u64, Want)| {
            !judge.dead.contains(process) && *began < since && can_have(*want)
        };
        !judge.is_troubled && judge.waits.iter().any(idle)
    })
}

fn live(process: usize, plan: &'static Plan, threads: &'static [Vec<Op>]) {
    let builder = plan
        .engine
        .builder()
        .lease(of(plan.lease))
        .tolerate_outage(of(60_000));
    let builder = builder
        .response_timeout(of(plan.response))
        .connect_timeout(of(2 * plan.response));
    let locks = builder.build_lazily().expect("options that can work");
    let running: Vec<_> = threads
        .iter()
        .map(|ops| {
            let locks = locks.clone();
            thread::spawn(move || {
                for (want, limit, work) in ops {
                    let cache = locks.read_write("a", plan.slots);
                    let lock = match want {
                        Want::Slot(count) => locks.slots("a", *count),
                        Want::Read => cache.read_lock(),
                        Want::Write => cache.write_lock(),
                    };
                    let Some(guard) = take(process, &lock, *want, *limit) else {
                        continue;
                    };
                    let hold = Hold::begins(process, *want, &guard);
                    thread::sleep(of(*work));
                    if *want == Want::Write && one_in(2) && guard.is_valid() {
                        // A writer may read.
                        if let Some(reading) =
                            take(process, &cache.read_lock(), Want::Read, Some(0))
                        {
                            Hold::begins(process, Want::Read, &reading).ends(reading);
                        }
                    }
                    judge_now();
                    hold.ends(guard);
                }
            })
        })
        .collect();
    for thread in running {
        thread.join().expect("no panic");
    }
    drop(locks);
    JUDGE.with_borrow_mut(|judge| {
        let mut running = judge.running.iter_mut();
        running.find(|it| it.0 == process).expect("it runs").1 = 0;
    });
}

fn take(process: usize, lock: &Lock, want: Want, limit: Option<u64>) -> Option<LockGuard> {
    let began = now();
    if limit.is_none() {
        JUDGE.with_borrow_mut(|judge| judge.waits.push((process, began, want)));
    }
    let taken = match limit {
        None => lock.lock().map(Some),
        Some(limit) => lock.try_lock_for(of(limit)),
    };
    trace(|| {
        format!(
            "{want:?} for {limit:?}: {:?}",
            taken.as_ref().map(Option::is_some)
        )
    });
    JUDGE.with_borrow_mut(|judge| judge.waits.retain(|it| *it != (process, began, want)));
    match taken {
        Ok(taken) => taken,
        // The lease may be shorter than a pause of the network.
        Err(Error::Lost { .. } | Error::OuterLost { .. }) => None,
        // The turn came so late that nobody could be asked.
        Err(error) if error.is_timeout() && limit > Some(0) => None,
        Err(_) if JUDGE.with_borrow(|judge| judge.is_troubled) => None,
        Err(error) => {
            fail(format!("{want:?}: {error:?}"));
            None
        }
    }
}

impl Hold {
    fn begins(process: usize, want: Want, guard: &LockGuard) -> Rc<Hold> {
        let slot = guard.slot().unwrap_or(0);
        let most = if let Want::Slot(most) = want { most } else { 3 };
        if usize::try_from(slot).expect("few") > most || (slot == 0) != (want == Want::Write) {
            fail(format!("{want:?} has got slot {slot}"));
        }
        let hold = Rc::new(Hold {
            process,
            thread: thread_number().expect("inside"),
            slot,
            watch: ManuallyDrop::new(guard.watch()),
            has_ended: std::cell::Cell::new(false),
        });
        JUDGE.with_borrow_mut(|judge| judge.holds.push(Rc::clone(&hold)));
        judge_now();
        hold
    }

    fn ends(&self, guard: LockGuard) {
        self.has_ended.set(true);
        let unlocked = guard.unlock();
        trace(|| format!("slot {} is given back: {unlocked:?}", self.slot));
    }
}

/// No two have one slot, and a writer is alone.
fn judge_now() {
    let holds: Vec<_> = JUDGE.with_borrow(|judge| {
        let is_open = |it: &&Rc<Hold>| !it.has_ended.get() && !judge.dead.contains(&it.process);
        judge.holds.iter().filter(is_open).map(Rc::clone).collect()
    });
    let is_valid = |it: &&Rc<Hold>| as_process(it.process, || it.watch.is_valid());
    let trusted: Vec<_> = holds.iter().filter(is_valid).collect();
    for (number, one) in trusted.iter().enumerate() {
        for other in &trusted[number + 1..] {
            let is_other = (one.process, one.thread) != (other.process, other.thread);
            let is_writer = one.slot == 0 || other.slot == 0;
            if is_other && (one.slot == other.slot || is_writer) {
                let of = |it: &Hold| format!("slot {} in process {}", it.slot, it.process);
                fail(format!("{} is beside {}", of(one), of(other)));
            }
        }
    }
}

#[test]
fn many_holders_keep_to_their_slots_in_hundreds_of_scenes() {
    let number = |name: &str| {
        env::var(name)
            .ok()
            .and_then(|number| number.parse::<u64>().ok())
    };
    let seed = number("RELATCH_SEED");
    let first = seed.or(number("RELATCH_FIRST")).unwrap_or(0);
    let count = if seed.is_some() {
        1
    } else {
        number("RELATCH_SCENES").unwrap_or(300)
    };
    scheduler::keep_text(seed.is_some());
    let taken = Rc::new(RefCell::new((0, 0)));
    let counts = Rc::clone(&taken);
    scheduler::run(
        first..first + count,
        Plan::order,
        |seed| play(Box::leak(Box::new(Plan::of(seed)))),
        move |ended| {
            let Ended {
                seed,
                failure,
                text,
                ..
            } = ended;
            let holds = JUDGE.with_borrow(|judge| judge.holds.len());
            let mut counts = counts.borrow_mut();
            *counts = (counts.0 + 1, counts.1 + holds);
            if let Some(text) = text {
                println!("{:#?}\n{text}", Plan::of(seed));
            }
            assert!(
                failure.is_none(),
                "RELATCH_SEED={seed}: {}",
                failure.unwrap_or_default()
            );
        },
    );
    let (scenes, holds) = *taken.borrow();
    println!("{scenes} scenes, {holds} holds");
    assert!(
        seed.is_some() || holds as u64 > scenes,
        "{scenes} scenes had {holds} holds"
    );
}
