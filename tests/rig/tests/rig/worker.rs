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
