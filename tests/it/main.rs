//! The one integration binary.
mod aftermath;
mod dead_links;
mod endings;
mod errands;
mod exclusion;
mod face;
mod forced;
mod forwarded;
mod handing;
mod half_open;
mod hearing;
mod hostile;
mod input;
mod late;
mod limits;
mod liar;
mod lock;
mod logs;
mod loss;
mod network;
mod nonsense;
mod older;
mod outage;
mod processes;
mod reclaim;
mod redis;
mod renewal;
mod rights;
mod roles;
mod secrets;
mod stalls;
mod support;
mod tidy;
mod threads;
mod time;
mod upkeep;
mod verdicts;
mod waiting;

/// Where a worker process begins. In a run of the tests there is no role, and nothing to do.
#[test]
fn worker_entry() {
    if let Some(role) = relatch_rig::role::name() {
        roles::run_role(&role);
    }
}
