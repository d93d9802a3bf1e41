//! Worker processes.

use relatch_rig::{LONG, Sig, Worker, role, signal};

use crate::client::SHORT;

/// Answers every line with the greeting from its arguments and the line, until its input ends.
pub(crate) fn echo() {
    let greeting = role::arg("greeting");
    while let Some(line) = role::next_line() {
        role::report(format!("{greeting}: {line}"));
    }
}

#[test]
fn a_worker_receives_lines_and_reports() {
    let mut worker = Worker::spawn("echo", &[("greeting", "echo")]);
    worker.send("one");
    worker.send("two");
    worker.send("three");
    assert_eq!(worker.expect_line("echo", LONG), "echo: one");
    assert_eq!(worker.expect_line("echo: th", LONG), "echo: three");
    assert!(worker.wait(LONG).success());
}

#[test]
fn a_stopped_worker_goes_on_where_it_was() {
    let mut worker = Worker::spawn("echo", &[("greeting", "echo")]);
    worker.stop();
    worker.send("one");
    worker.cont();
    assert_eq!(worker.expect_line("", LONG), "echo: one");
}

#[test]
fn a_worker_can_be_killed_in_either_way() {
    let mut worker = Worker::spawn("echo", &[("greeting", "echo")]);
    worker.send("one");
    worker.expect_line("echo", LONG);
    worker.stop();
    worker.kill();
    assert!(!worker.wait(LONG).success());

    let mut worker = Worker::spawn("echo", &[("greeting", "echo")]);
    signal(worker.pid(), Sig::Term);
    assert!(!worker.wait(LONG).success());
}

#[test]
#[should_panic(expected = "no role is called")]
fn what_a_worker_prints_is_in_the_panic_of_its_parent() {
    let worker = Worker::spawn("nobody", &[]);
    worker.expect_line("anything", LONG);
}

/// Here the worker's output always ends before its errors. (Usually that is a matter of luck.)
#[test]
#[should_panic(expected = "the last words")]
fn what_a_worker_prints_after_its_output_has_ended_is_in_the_panic_too() {
    let dying = ["sh", "-c", "exec >&-; sleep 0.3; echo the last words >&2"];
    let worker = Worker::spawn_under(&dying, "nobody", &[]);
    worker.expect_line("anything", LONG);
}

#[test]
#[should_panic(expected = "it printed")]
fn waiting_for_a_line_has_an_end() {
    let worker = Worker::spawn("echo", &[("greeting", "echo")]);
    worker.expect_line("anything", SHORT);
}
