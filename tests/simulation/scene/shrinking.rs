//! Makes a scene that fails smaller, and prints it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::sync::scheduler::{self, Ended};
use crate::simulation::judge::excuses::Excuse;
use crate::simulation::plan::Plan;
use crate::simulation::scene;

/// In how many orders a smaller scene is tried. (What fails in one order need not fail in another.)
const ORDERS: u64 = 30;

/// How many steps all tries together take.
const MOST_STEPS: u64 = 20_000_000;

/// Prints the scene of a seed, without this excuse, and what happened in it. If it fails, so does a
/// smaller one that is printed, too. (No seed leads to the smaller one.)
pub(crate) fn show(seed: u64, off: Option<Excuse>) {
    let play = |plan: &Plan, order: u64, keeps_text| play(plan, order, off, keeps_text);
    let plan = Plan::of(seed);
    let ended = play(&plan, seed, true);
    print(&format!("RELATCH_SEED={seed}"), &plan, &ended);
    if ended.failure.is_none() {
        return;
    }
    let (mut smallest, mut order, mut steps) = (plan, seed, ended.steps);
    while let Some((plan, seed)) = smaller(&smallest).into_iter().find_map(|plan| {
        let mut fails = |seed: &u64| {
            let ended = (steps < MOST_STEPS).then(|| play(&plan, *seed, false));
            steps += ended.as_ref().map_or(0, |ended| ended.steps);
            ended.is_some_and(|ended| ended.failure.is_some())
        };
        let found = (order..order + ORDERS).find(&mut fails);
        found.map(|seed| (plan, seed))
    }) {
        (smallest, order) = (plan, seed);
    }
    print("A smaller scene", &smallest, &play(&smallest, order, true));
}

fn print(name: &str, plan: &Plan, ended: &Ended) {
    let text = ended.text.as_deref().unwrap_or_default();
    println!("\n{name}:\n\n{plan:#?}\n{text}");
    match &ended.failure {
        Some(failure) => println!("*** {name} failed: {failure}"),
        None => println!("{name}: all is well"),
    }
}

fn play(plan: &Plan, seed: u64, off: Option<Excuse>, keeps_text: bool) -> Ended {
    let (plan, order) = (Arc::new(plan.clone()), plan.order);
    let last = Rc::new(Cell::new(None));
    let keeps = Rc::clone(&last);
    scheduler::keep_text(keeps_text);
    scheduler::run(
        seed..seed + 1,
        move |_| order,
        move |_| _ = scene::play(&plan, off),
        move |it| keeps.set(Some(it)),
    );
    scheduler::keep_text(false);
    last.take().expect("a run ends")
}

/// The plans with one fault, one operation, or one thing less that is done under a lock.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let mut without = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        found.push(plan);
    };
    (0..plan.faults.len()).for_each(|at| without(&|plan| _ = plan.faults.remove(at)));
    for (process, program) in plan.processes.iter().enumerate() {
        for (thread, ops) in program.threads.iter().enumerate() {
            for (at, op) in ops.iter().enumerate() {
                without(&|plan| _ = plan.processes[process].threads[thread].remove(at));
                let under = op.clone().under().map_or(0, |it| it.len());
                for inner in 0..under {
                    without(&|plan| {
                        let op = &mut plan.processes[process].threads[thread][at];
                        _ = op.under().map(|it| it.remove(inner));
                    });
                }
            }
        }
    }
    found
}
