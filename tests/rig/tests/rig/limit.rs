//! A test that hangs.

use std::path::Path;
use std::thread;

use relatch_rig::{LONG, Limit, Server, Worker, eventually, role};

/// The role of a process whose test never ends.
pub(crate) fn hang() {
    let done = Limit::begin("a test that ends");
    let _limit = Limit::begin("a test that hangs");
    let server = Server::start();
    drop(done);
    role::report(server.pid());
    loop {
        thread::park();
    }
}

#[test]
fn a_test_that_hangs_ends_the_run_and_its_servers_and_is_named() {
    let mut worker = Worker::spawn("hang", &[("limit", "2")]);
    let server = worker.expect_line("", LONG);
    let status = worker.wait(LONG);
    assert!(!status.success(), "{status}");
    eventually(LONG, "the server is gone", || {
        !Path::new("/proc").join(&server).exists()
    });
    let named = |name: &str| worker.printed().contains(&format!("{name:?}"));
    eventually(LONG, "what was printed arrives", || {
        named("a test that hangs")
    });
    assert!(!named("a test that ends"), "{}", worker.printed());
}
