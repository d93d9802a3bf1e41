//! A server of a test's own.

use std::net::TcpListener;

use relatch_rig::{LONG, Server, eventually, server_version, within};

use crate::client::{connect, connect_hasty, ping, set};

#[test]
fn a_server_answers() {
    let server = Server::start();
    assert!(server.is_running());
    let mut connection = connect(&server.bare_url());
    assert_eq!(set(&mut connection, "a").as_deref(), Ok("OK"));
    assert_eq!(server.get("a").as_deref(), Some("1"));
    assert_eq!(server.get("b"), None);
    assert!(server.exists("a") && !server.exists("b"));
    assert_eq!((server.pttl("a"), server.pttl("b")), (-1, -2));
    server.query::<()>(&["PEXPIRE", "a", "60000"]);
    assert!((1..=60_000).contains(&server.pttl("a")));
    assert!(server.command(&["NONSENSE"]).is_err());
    server.query::<()>(&["DEBUG", "SLEEP", "0"]);
}

#[test]
fn a_server_counts_calls_and_connections() {
    let server = Server::start();
    assert_eq!(server.calls("set"), 0);
    let mut connection = connect(&server.bare_url());
    eventually(LONG, "one client", || server.connections() == 1);
    set(&mut connection, "a").expect("a reply");
    set(&mut connection, "a").expect("a reply");
    server.get("a");
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
fn a_server_takes_arguments() {
    let server = Server::with(&["--requirepass", "secret", "--maxmemory", "64mb"]);
    let setting: Vec<String> = server.query(&["CONFIG", "GET", "maxmemory"]);
    assert_eq!(setting[1], (64 << 20).to_string());
    let mut stranger = connect(&server.bare_url());
    let error = ping(&mut stranger).expect_err("no password was given");
    assert_eq!(error.code(), Some("NOAUTH"));
}

#[test]
#[should_panic(expected = "the server ended at once")]
fn a_server_that_cannot_start_says_so() {
    Server::with(&["--no-such-thing", "1"]);
}

#[test]
#[should_panic(expected = "was taken")]
fn a_taken_port_is_distinguished_from_a_failed_start() {
    let server = Server::start();
    server.kill();
    let _squatter = TcpListener::bind(("127.0.0.1", server.port())).expect("a free port");
    server.restart();
}

#[test]
fn a_paused_server_goes_on_where_it_was() {
    let server = Server::start();
    let mut connection = connect_hasty(&server.bare_url());
    server.pause();
    assert!(server.is_running());
    assert!(ping(&mut connection).expect_err("paused").is_timeout());
    server.resume();
    assert_eq!(
        ping(&mut connect(&server.bare_url())).as_deref(),
        Ok("PONG")
    );
}

#[test]
fn a_paused_server_ends_with_its_test() {
    let server = Server::start();
    server.pause();
    within(LONG, "dropping a paused server", || drop(server));
}

#[test]
fn a_killed_server_comes_back_empty_on_its_port() {
    let server = Server::start();
    let (port, pid) = (server.port(), server.pid());
    let mut connection = connect(&server.bare_url());
    set(&mut connection, "a").expect("a reply");
    server.kill();
    assert!(!server.is_running());
    assert!(ping(&mut connection).is_err());
    assert!(server.command(&["PING"]).is_err());
    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert!(!server.exists("a"));
    assert!(ping(&mut connect(&server.bare_url())).is_ok());
}

#[test]
fn a_persistent_server_remembers() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.query::<()>(&["SET", "a", "1"]);
    server.restart();
    eventually(LONG, "loaded", || server.command(&["DBSIZE"]).is_ok());
    assert!(server.exists("a"));
}
