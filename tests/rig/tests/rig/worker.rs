//! Worker processes.

use std::thread;

use relatch_rig::{LONG, Worker, role};

use crate::client::SHORT;

/// Answers every line, until its input ends.
pub(crate) fn echo() {
    while let Some(line) = role::next_line() {
        role::report(format!("echo: {line}"));
    }
}

#[test]
fn a_stopped_worker_does_nothing_and_a_killed_one_is_gone() {
    let mut worker = Worker::spawn("echo", &[]);
    worker.send("one");
    assert_eq!(worker.expect_line("echo", LONG), "echo: one");
    worker.stop();
    worker.send("two");
    thread::sleep(SHORT); // Too short a time can only make this green.
    assert!(!worker.printed().contains("two"));
    worker.cont();
    assert_eq!(worker.expect_line("echo: t", LONG), "echo: two");
    worker.stop();
    worker.kill();
    assert!(!worker.wait(LONG).success());
}

/// Here the worker's output always ends before its errors. (Usually that is a matter of luck.)
#[test]
#[should_panic(expected = "the last words")]
fn what_a_worker_prints_after_its_output_has_ended_is_in_the_panic_of_its_parent() {
    let dying = ["sh", "-c", "exec >&-; sleep 0.3; echo the last words >&2"];
    let worker = Worker::spawn_under(&dying, "nobody", &[]);
    worker.expect_line("anything", LONG);
}
