//! Programs that use the library, beside runs.

use std::fs;

use relatch::LockManager;
use relatch_rig::{LONG, Sig, signal};

use crate::deaths::is_there;
use crate::support::Place;

/// The process that has taken the lock is dead, and its guard still gives the job its time.
#[test]
fn a_waiter_that_reclaims_from_the_dead_does_not_get_the_lock_of_a_job_that_lives() {
    let place = Place::new();
    let options = ["--lease", "3s", "--kill-after", "1s", "k"];
    let mut run = place.start(&options, "job", "trap '' TERM; echo $$ > $1; sleep 60");
    let waiter = LockManager::connect(&place.server.url()).unwrap();
    let lock = waiter.named("k").reclaim_dead(true).wait(LONG);
    assert!(lock.try_lock().unwrap().is_none(), "the run has it");
    signal(run.id(), Sig::Kill);
    run.wait().unwrap();
    let guard = lock.lock().unwrap();
    let job = fs::read_to_string(place.file("job")).unwrap();
    assert!(!is_there(&job), "two at a time");
    assert!(guard.is_valid());
}
