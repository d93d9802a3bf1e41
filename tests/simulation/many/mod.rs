//! Scenes of slots, and of readers and writers: several holders at a time.
//!
//! `RELATCH_SEED=n cargo test --lib many_holders` replays the scene of a seed, and prints what
//! happened in it.

mod judge;
mod plan;

use std::cell::RefCell;
use std::env;
use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{self, Ended, fail, later, now, one_in, thread, trace};
use crate::simulation::judge::Judge;
use crate::simulation::many::judge::{EVERY, FREE, Hold, JUDGE, exists, judge_now, waits_for_free};
use crate::simulation::many::plan::{Op, Plan, Want};
use crate::simulation::world::engine::Servers;
use crate::{Error, Lock, LockGuard};

/// After this, a scene hangs.
const LONGEST: u64 = 300_000;

pub(super) fn of(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn play(plan: &'static Plan) {
    JUDGE.take();
    let servers = Rc::new(Servers::start(plan.engine, &Judge::idle()));
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
