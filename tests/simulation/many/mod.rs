//! Scenes of slots, and of readers and writers: several holders at a time.
//!
//! `RELATCH_SEED=n cargo test --lib many_holders` replays the scene of a seed, and prints what
//! happened in it.

mod judge;
mod plan;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::LockManager;
use crate::base::sync::scheduler::{self, fail, later, now, thread};
use crate::simulation::judge::{Judge as Events, Shared};
use crate::simulation::many::judge::{EVERY, FREE, Judge};
use crate::simulation::many::plan::{Op, Plan, Want};
use crate::simulation::number;
use crate::simulation::scene::millis;
use crate::simulation::world::engine::Servers;

/// After this, a scene hangs.
const LONGEST: u64 = 300_000;

/// Returns how many holds there were.
fn play(plan: &Arc<Plan>) -> usize {
    let events = Events::idle();
    let servers = Rc::new(Servers::start(plan.engine, &events));
    let judge = Arc::new(Judge::of(plan, &events));
    let start = |number| {
        let process = scheduler::process(0);
        let (plan, judge, events) = (Arc::clone(plan), Arc::clone(&judge), Arc::clone(&events));
        let live = move || {
            live(process, number, &plan, &judge);
            events.is_at_its_end(process);
        };
        let main = thread::Builder::new().name(format!("main{process}"));
        main.process(process).spawn(live).expect("a thread");
        process
    };
    let processes: Vec<_> = (0..plan.processes.len()).map(start).collect();
    for (at, fault) in plan.faults.clone() {
        let (servers, processes) = (Rc::clone(&servers), processes.clone());
        later(millis(at), move || fault.happens(&servers, &processes));
    }
    let (began, mut free_for) = (now(), 0);
    while !processes.iter().all(|it| events.is_away(*it)) {
        if now() - began > LONGEST * 1_000_000 {
            fail(format!("the scene hangs: {:?}", scheduler::threads_left()));
        }
        thread::sleep(millis(EVERY));
        let is_free = judge.waits_for_free(&servers, free_for);
        free_for = if is_free { free_for + EVERY } else { 0 };
        if free_for > FREE {
            fail(format!("what somebody waits for is free for {free_for} ms"));
        }
    }
    thread::sleep(millis(plan.lease * 2 + 3_000));
    judge.is_clean(&servers);
    scheduler::end();
    judge.holds()
}

/// The life of a process.
fn live(process: usize, number: usize, plan: &Arc<Plan>, judge: &Arc<Judge>) {
    let builder = plan.engine.builder().lease(millis(plan.lease));
    let builder = builder
        .tolerate_outage(millis(60_000))
        .response_timeout(millis(plan.response))
        .connect_timeout(millis(2 * plan.response));
    let locks = builder.build_lazily().expect("options that can work");
    let start = |thread| {
        let (locks, plan, judge) = (locks.clone(), Arc::clone(plan), Arc::clone(judge));
        thread::spawn(move || {
            for op in &plan.processes[number][thread] {
                works(process, &locks, op, &judge);
            }
        })
    };
    let threads: Vec<_> = (0..plan.processes[number].len()).map(start).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
}

fn works(process: usize, locks: &LockManager, op: &Op, judge: &Judge) {
    let take = |want, limit: Option<u64>| {
        let lock = match want {
            Want::Slot(count) => locks.slots("a", count),
            Want::Read(count) => locks.read_write("a", count).read_lock(),
            Want::Write(count) => locks.read_write("a", count).write_lock(),
        };
        judge.takes(process, want, limit, || match limit {
            None => lock.lock().map(Some),
            Some(limit) => lock.try_lock_for(millis(limit)),
        })
    };
    let Some(guard) = take(op.want, op.limit) else {
        return;
    };
    let hold = judge.begins(process, op.want, &guard);
    thread::sleep(millis(op.work));
    if let Want::Write(count) = op.want
        && op.reads
        && guard.is_valid()
        && let Some(reading) = take(Want::Read(count), op.limit)
    {
        let inner = judge.begins(process, Want::Read(count), &reading);
        judge.ends(inner, reading);
    }
    judge.looks();
    judge.ends(hold, guard);
}

#[test]
fn many_holders_keep_to_their_slots_in_hundreds_of_scenes() {
    let seed = number("RELATCH_SEED");
    let first = seed.or(number("RELATCH_FIRST")).unwrap_or(0);
    let count = number("RELATCH_SCENES").unwrap_or(60);
    let count = if seed.is_some() { 1 } else { count };
    scheduler::keep_text(seed.is_some());
    let holds: Arc<Shared<usize>> = Arc::default();
    let played = Arc::clone(&holds);
    let scenes = Rc::new(Cell::new(0));
    let counts = Rc::clone(&scenes);
    scheduler::run(
        first..first + count,
        Plan::order,
        move |seed| {
            let count = play(&Arc::new(Plan::of(seed)));
            played.with(|holds| *holds += count);
        },
        move |ended| {
            let seed = ended.seed;
            counts.set(counts.get() + 1);
            if let Some(text) = ended.text {
                println!("{:#?}\n{text}", Plan::of(seed));
            }
            let failure = ended.failure.unwrap_or_default();
            assert!(failure.is_empty(), "RELATCH_SEED={seed}: {failure}");
        },
    );
    let (scenes, holds) = (scenes.get(), holds.with(|holds| *holds));
    println!("{scenes} scenes, {holds} holds");
    assert!(
        seed.is_some() || holds > scenes,
        "{scenes} scenes had {holds} holds"
    );
}
