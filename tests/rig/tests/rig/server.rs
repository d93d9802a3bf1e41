//! A server of a test's own.

use relatch_rig::{LONG, Server, eventually, server_version};

use crate::client::{connect, connect_hasty, ping, set};

#[test]
fn a_server_counts_calls_and_connections() {
    let server = Server::start();
    assert_eq!(server.calls("set"), 0);
    let mut connection = connect(&server.bare_url());
    eventually(LONG, "one client", || server.connections() == 1);
    set(&mut connection, "a").expect("a reply");
    set(&mut connection, "a").expect("a reply");
    assert_eq!(server.get("a").as_deref(), Some("1"));
    assert_eq!((server.pttl("a"), server.pttl("b")), (-1, -2));
    server.query::<i64>(&["CLIENT", "ID"]);
    assert_eq!(server.calls("SET"), 2);
    // Servers before 7 count a command as a whole.
    let counts_subcommands = server_version() >= (7, 0);
    assert_eq!(server.calls("client|id"), u64::from(counts_subcommands));
    assert_eq!(server.calls("client") > 0, !counts_subcommands);
    assert_eq!(server.total_calls(&["set", "get", "del"]), 3);
    server.reset_stats();
    assert_eq!(server.total_calls(&["set", "get"]), 0);
    drop(connection);
    eventually(LONG, "no client", || server.connections() == 0);
}

#[test]
fn a_paused_server_answers_nobody_and_a_killed_one_forgets() {
    let server = Server::start();
    let mut connection = connect_hasty(&server.bare_url());
    set(&mut connection, "a").expect("a reply");
    server.pause();
    assert!(server.is_running());
    assert!(ping(&mut connection).expect_err("paused").is_timeout());
    server.resume();
    assert!(server.exists("a"));
    let (port, pid) = (server.port(), server.pid());
    server.kill();
    assert!(!server.is_running());
    assert!(server.command(&["PING"]).is_err());
    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert!(!server.exists("a"));
}
