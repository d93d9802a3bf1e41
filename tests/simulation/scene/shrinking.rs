//! Makes a scene that fails smaller, and prints it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::sync::scheduler::{self, Ended};
use crate::simulation::scene;
use crate::simulation::scene::plan::{Op, Plan, Under};

/// In how many orders a smaller scene is tried. (What fails in one order need not fail in another.)
const ORDERS: u64 = 30;

/// How many steps all tries together take.
const MOST_STEPS: u64 = 20_000_000;

/// Prints the scene of a plan, and what happened in it. If it fails, so does a smaller one that is
/// printed, too.
pub(crate) fn show(plan: Plan, seed: u64) {
    let ended = play(&plan, seed, true);
    print(&plan, &ended);
    if ended.failure.is_none() {
        return;
    }
    let (mut smallest, mut order, mut steps) = (plan, seed, ended.steps);
    while let Some((plan, seed)) = smaller(&smallest).find_map(|plan| {
        let mut fails = |seed: &u64| {
            let ended = (steps < MOST_STEPS).then(|| play(&plan, *seed, false));
            steps += ended.as_ref().map_or(0, |ended| ended.steps);
            ended.is_some_and(|ended| ended.failure.is_some())
        };
        (order..order + ORDERS)
            .find(&mut fails)
            .map(|seed| (plan, seed))
    }) {
        (smallest, order) = (plan, seed);
    }
    println!("\nA smaller scene that fails:\n");
    print(&smallest, &play(&smallest, order, true));
}

fn print(plan: &Plan, ended: &Ended) {
    println!("{plan:#?}\n{}", ended.text.as_deref().unwrap_or_default());
    match &ended.failure {
        Some(failure) => println!("*** RELATCH_SEED={} failed: {failure}", ended.seed),
        None => println!("RELATCH_SEED={}: all is well", ended.seed),
    }
}

fn play(plan: &Plan, seed: u64, keeps_text: bool) -> Ended {
    let (plan, order) = (Arc::new(plan.clone()), plan.order);
    let last = Rc::new(Cell::new(None));
    let keeps = Rc::clone(&last);
    scheduler::keep_text(keeps_text);
    scheduler::run(
        seed..seed + 1,
        move |_| order,
        move |_| scene::play(&plan),
        move |it| keeps.set(Some(it)),
    );
    scheduler::keep_text(false);
    last.take().expect("a run ends")
}

/// The plans with one thing less.
fn smaller(plan: &Plan) -> impl Iterator<Item = Plan> + use<> {
    let plan = plan.clone();
    let without = |plan: &Plan, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    let mut found = Vec::new();
    for process in 0..plan.processes.len() {
        for thread in 0..plan.processes[process].threads.len() {
            found.push(without(&plan, &|plan| {
                plan.processes[process].threads[thread].clear();
            }));
        }
    }
    (0..plan.faults.len())
        .for_each(|at| found.push(without(&plan, &|plan| _ = plan.faults.remove(at))));
    for process in 0..plan.processes.len() {
        for thread in 0..plan.processes[process].threads.len() {
            let ops = &plan.processes[process].threads[thread];
            found.extend(fewer_ops(ops).map(|ops| {
                without(&plan, &|plan| {
                    plan.processes[process].threads[thread].clone_from(&ops);
                })
            }));
        }
    }
    found.retain(|it| format!("{it:?}") != format!("{plan:?}"));
    found.into_iter()
}

/// The same with one operation less, or one thing less that is done under the lock of one.
fn fewer_ops(ops: &[Op]) -> impl Iterator<Item = Vec<Op>> {
    (0..ops.len()).flat_map(|at| {
        let mut less = ops.to_vec();
        let mut op = less.remove(at);
        let mut found = vec![less];
        for under in 0..under_of(&mut op).map_or(0, |it| it.len()) {
            let mut less = ops.to_vec();
            under_of(&mut less[at]).map(|it| it.remove(under));
            found.push(less);
        }
        found
    })
}

/// What a thread does under the lock that the operation takes.
fn under_of(op: &mut Op) -> Option<&mut Vec<Under>> {
    match op {
        Op::Lock { under, .. }
        | Op::With { under, .. }
        | Op::Several { under, .. }
        | Op::Adopt { under, .. } => Some(under),
        _ => None,
    }
}
