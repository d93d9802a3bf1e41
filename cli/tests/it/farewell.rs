//! How long a job may run, and how it hears that it has to end.

use relatch_rig::{LONG, eventually};

use crate::belonging::{DAEMON, UNTIL};
use crate::deaths::guard_of;
use crate::support::{Place, is_there, stdout};

/// Its guard hears of each renewal.
#[test]
fn a_job_may_run_for_longer_than_its_first_lease() {
    let place = Place::new();
    let options = ["--lease", "6s", "--kill-after", "100ms"];
    let run = [&["run"], &options[..], &["k", "sleep", "6.5"]].concat();
    assert_eq!(place.code(&run), 0);
}

/// Neither the wrapper nor the guard ends it when the lease is over.
#[test]
fn a_job_that_is_only_warned_ends_by_itself() {
    let place = Place::new();
    let line = "redis-cli -u $REDIS_URL del lock:k >/dev/null; sleep 1.5; echo done; exit 3";
    let output = place.job(&["--lease", "1s", "--on-lost", "warn", "k"], line);
    let seen = (output.status.code(), &*stdout(&output));
    assert_eq!(seen, (Some(76), "done\n"));
}

/// So does its daemon.
#[test]
fn a_job_without_a_wrapper_gets_its_signal_and_its_time() {
    let place = Place::new();
    let script = "trap 'sleep 0.3; echo got >> got; exit' USR1
        echo > $1; until test -e end; do sleep 0.01; done";
    let script = format!("({DAEMON} &); {UNTIL}; {script}");
    let mut run = place.start(&["--signal", "USR1", "k"], "ready", &script);
    let guard = guard_of(run.id());
    run.end("KILL");
    eventually(LONG, "the job is over", || !is_there(guard));
    assert_eq!(place.text("got"), "got\n");
    assert!(!is_there(place.text("daemon")));
}
