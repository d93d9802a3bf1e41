//! How long a job may run, and how it hears that it has to end.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use relatch_rig::{LONG, Sig, eventually, signal};

use crate::deaths::{guard_of, is_stopped, is_there};
use crate::support::{Place, spawn, stdout};

/// A job that waits for its end. Its first argument is the file in which it says that it runs.
const LIVES: &str = "echo $$ > $1; until test -e end; do sleep 0.01; done";

fn got(place: &Place) -> String {
    fs::read_to_string(place.file("got")).unwrap_or_default()
}

/// Its guard hears of each renewal.
#[test]
fn a_job_may_run_for_longer_than_its_first_lease() {
    let place = Place::new();
    let options = ["--lease", "3s", "--kill-after", "100ms"];
    let run = [&["run"], &options[..], &["k", "sleep", "3.5"]].concat();
    assert_eq!(place.code(&run), 0);
}

/// Neither the wrapper nor the guard ends it when the lease is over.
#[test]
fn a_job_that_is_only_warned_ends_by_itself() {
    let place = Place::new();
    let line = "redis-cli -u $REDIS_URL del lock:k >/dev/null; sleep 1.5; echo done; exit 3";
    let output = place.output(&["run", "--lease", "1s", "--on-lost", "warn", "k", "-c", line]);
    let seen = (output.status.code(), &*stdout(&output));
    assert_eq!(seen, (Some(76), "done\n"));
}

#[test]
fn each_signal_that_is_promised_is_passed_on() {
    let place = Place::new();
    let names = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"];
    let trap = "trap \"echo $name >> got\" $name";
    let script = format!("for name in {}; do {trap}; done; {LIVES}", names.join(" "));
    let mut run = place.start(&["k"], "ready", &script);
    for name in names {
        let id = run.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
        eventually(LONG, name, || got(&place).contains(name));
    }
    fs::write(place.file("end"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0));
}

#[test]
fn a_job_without_a_wrapper_gets_its_signal_and_its_time() {
    let place = Place::new();
    let script = format!("trap 'sleep 0.3; echo got >> got; exit' USR1; {LIVES}");
    let mut run = place.start(&["--signal", "USR1", "k"], "ready", &script);
    let guard = guard_of(run.id()).to_string();
    signal(run.id(), Sig::Kill);
    run.wait().unwrap();
    eventually(LONG, "the job is over", || !is_there(&guard));
    assert_eq!(got(&place), "got\n");
}

/// A job that is stopped has to go on, or it would not hear of its end.
#[test]
fn a_job_that_is_stopped_hears_of_its_end() {
    let place = Place::new();
    let script = format!("trap 'echo got >> got; exit' TERM; echo $$ > $1; kill -STOP $$; {LIVES}");
    for guard_dies in [true, false] {
        for file in ["ready", "got"] {
            let _ = fs::remove_file(place.file(file));
        }
        let mut run = place.start(&["--kill-after", "10s", "k"], "ready", &script);
        let guard = guard_of(run.id());
        let job = fs::read_to_string(place.file("ready")).unwrap();
        eventually(LONG, "the job is stopped", || is_stopped(&job));
        signal(if guard_dies { guard } else { run.id() }, Sig::Kill);
        run.wait().unwrap();
        eventually(LONG, "the job is over", || !is_there(&guard.to_string()));
        assert_eq!(got(&place), "got\n", "{guard_dies}");
    }
}

/// The guard has a process group of its own, and so is not stopped with the others.
#[test]
fn a_job_that_stays_stopped_is_dead_before_the_next_holder() {
    let place = Place::new();
    let options = ["--foreground", "--lease", "3s", "--kill-after", "100ms"];
    let mut run = place.relatch(&[&["run"], &options[..], &["k", "-c"]].concat());
    run.arg("echo $$ > ready; sleep 60").process_group(0);
    let mut run = spawn(&mut run);
    let job = || fs::read_to_string(place.file("ready")).unwrap_or_default();
    eventually(LONG, "the job runs", || job().ends_with('\n'));
    let group = format!("-{}", run.id());
    let send = |name| Command::new("kill").args([name, "--", &group]).status();
    assert!(send("-STOP").unwrap().success());
    assert_eq!(place.code(&["run", "k", "true"]), 0);
    assert!(!is_there(&job()));
    assert!(send("-CONT").unwrap().success());
    assert_eq!(run.wait().unwrap().code(), Some(76));
}
