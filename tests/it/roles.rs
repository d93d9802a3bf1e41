//! What a process of our own can be told to be: each role is a function that runs in a re-executed test binary.
//!
//! A role reads its arguments with [`role::arg`], hears its parent with [`role::hear`] and answers with
//! [`role::tell`]; it ends by returning.

use crate::support::role;

/// Runs the role named `name`, on the main test thread of a child process.
pub(crate) fn run_role(name: &str) {
    match name {
        "echo" => echo(),
        "count" => crate::exclusion::count_as_told(),
        "install" => crate::face::install_as_told(),
        other => panic!("no role is called {other:?}; add it to tests/it/roles.rs"),
    }
}

/// Answers every line with the greeting it was given and the line, until its input ends.
fn echo() {
    let greeting = role::arg("greeting");
    while let Some(line) = role::hear() {
        role::tell(&format!("{greeting}: {line}"));
    }
}
