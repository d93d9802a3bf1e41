//! The proxy spoils what it is told to, holds back what it is told to, and counts it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use redis::RedisResult;
use relatch_rig::{Fault, LONG, Proxy, Server, eventually};

use crate::client::{SHORT, connect, connect_hasty, ping, set};

fn server_and_proxy() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

#[test]
fn a_proxy_counts_what_it_passes_on() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    assert_eq!(set(&mut connection, "a").as_deref(), Ok("OK"));
    assert!(server.exists("a"));
    for words in [["RPUSH", "l", "1"], ["BLPOP", "l", "0"]] {
        let command = redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection);
        command.expect("a reply");
    }
    assert_eq!(proxy.connections_accepted(), 1);
    assert_eq!(
        ["set", "BLPOP l", "* l"].map(|it| proxy.commands(it)),
        [1, 1, 2]
    );
    assert_eq!(proxy.fired(), 0);
    assert!(
        proxy
            .log()
            .ends_with(&["SET", "RPUSH", "BLPOP"].map(String::from))
    );
    let log = proxy.log_in_full();
    assert_eq!(log.last().expect("a command"), &["BLPOP", "l", "0"]);
}

/// What a command with a fault leads to.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Timeout,
    End,
}

#[test]
fn each_fault_spoils_the_next_command_and_no_other() {
    use Fault::{CutBeforeForward, CutBeforeReply, DropReply, HalfReply, SwallowCommand};
    for (fault, seen, is_executed) in [
        (DropReply, Seen::Timeout, true),
        (CutBeforeReply, Seen::End, true),
        (HalfReply, Seen::End, true),
        (SwallowCommand, Seen::Timeout, false),
        (CutBeforeForward, Seen::End, false),
    ] {
        let (server, proxy) = server_and_proxy();
        let is_open = seen == Seen::Timeout;
        let by = if is_open { connect_hasty } else { connect };
        let mut connection = by(&proxy.bare_url());
        let name = format!("{fault:?}");
        proxy.on("set", fault);
        let error = set(&mut connection, "a").expect_err("no reply");
        let is_over = if error.is_timeout() {
            Seen::Timeout
        } else {
            Seen::End
        };
        assert_eq!(is_over, seen, "{name}: {error}");
        proxy.wait_fired(1, LONG);
        assert_eq!(server.exists("a"), is_executed, "{name}");
        eventually(LONG, &name, || (server.connections() == 1) == is_open);
        assert!(set(&mut connect(&proxy.bare_url()), "b").is_ok(), "{name}");
        assert_eq!((proxy.commands("SET"), proxy.fired()), (2, 1), "{name}");
    }
}

#[test]
fn what_is_delayed_takes_its_time() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    for (fault, is_executed) in [
        (Fault::DelayReply(2 * SHORT), true),
        (Fault::DelayCommand(2 * SHORT), false),
        (Fault::ByteByByte(SHORT), true),
    ] {
        server.query::<()>(&["FLUSHALL"]);
        let name = format!("{fault:?}");
        proxy.on("SET", fault);
        let (start, before) = (Instant::now(), proxy.fired());
        thread::scope(|scope| {
            let client = scope.spawn(|| set(&mut connection, "a"));
            proxy.wait_fired(before + 1, LONG);
            let is_as_said = server.exists("a") == is_executed;
            assert!(is_as_said || start.elapsed() >= 2 * SHORT, "{name}");
            assert_eq!(client.join().expect("no panic").as_deref(), Ok("OK"));
        });
        assert!(start.elapsed() >= 2 * SHORT, "{name}");
    }
    // It arrives though its client has left.
    drop(connection);
    let mut hasty = connect_hasty(&proxy.bare_url());
    proxy.on("SET", Fault::DelayCommand(3 * SHORT));
    assert!(set(&mut hasty, "b").expect_err("no reply").is_timeout());
    drop(hasty);
    eventually(LONG, "the command arrives", || server.exists("b"));
}

#[test]
fn a_pipeline_has_its_replies_in_order() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.on("SET a", Fault::DelayReply(SHORT));
    proxy.on("SET b", Fault::Answer(b"+forged\r\n".to_vec()));
    proxy.on("SET d", Fault::Replace(b"+lied\r\n".to_vec()));
    let mut pipeline = redis::pipe();
    for key in ["a", "b", "c", "d"] {
        pipeline.cmd("SET").arg(key).arg(key);
    }
    let replies: RedisResult<Vec<String>> = pipeline.cmd("GET").arg("c").query(&mut connection);
    let expected = ["OK", "forged", "OK", "lied", "c"].map(String::from);
    assert_eq!(replies, Ok(expected.to_vec()));
    assert!(server.exists("d") && !server.exists("b"));
}

#[test]
fn rules_fire_as_often_as_they_were_armed() {
    let (_server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    let answer = |text: &str| Fault::Answer(format!("+{text}\r\n").into_bytes());
    proxy.always("PING", answer("always"));
    proxy.on("PING", answer("once"));
    proxy.on_times("ping", 2, answer("twice"));
    for expected in ["once", "twice", "twice", "always", "always", "always"] {
        assert_eq!(ping(&mut connection).as_deref(), Ok(expected));
    }
    proxy.clear();
    assert_eq!(ping(&mut connection).as_deref(), Ok("PONG"));
    assert_eq!(proxy.fired(), 6);
}

#[test]
#[should_panic(expected = "0 of 1 faults")]
fn waiting_for_a_fault_has_an_end() {
    let (_server, proxy) = server_and_proxy();
    proxy.wait_fired(1, SHORT);
}

#[test]
fn a_black_hole_lets_nothing_through() {
    let (server, proxy) = server_and_proxy();
    let [mut old, mut other] = [(); 2].map(|()| connect(&proxy.bare_url()));
    ping(&mut old).and(ping(&mut other)).expect("replies");
    for soon_gives_up in [&old, &other] {
        let set = soon_gives_up.set_read_timeout(Some(SHORT));
        set.expect("a timeout");
    }
    proxy.black_hole(true);
    assert!(set(&mut old, "a").expect_err("no reply").is_timeout());
    let mut new = TcpStream::connect(("127.0.0.1", proxy.port())).expect("a connection");
    new.set_read_timeout(Some(SHORT)).expect("a timeout");
    new.write_all(b"SET b 1\r\n").expect("sent");
    assert!(new.read(&mut [0]).is_err(), "neither a reply nor the end");
    drop(old);
    assert_eq!(server.connections(), 2, "no end of a client is seen");
    proxy.black_hole(false);
    new.write_all(b"SET c 1\r\n").expect("sent");
    eventually(LONG, "the new connection works", || server.exists("c"));
    eventually(LONG, "the end is seen", || server.connections() == 2);
    assert!(!server.exists("a"));
    proxy.black_hole(true);
    server.kill();
    let error = ping(&mut other).expect_err("no reply");
    assert!(error.is_timeout(), "no end of the server is seen: {error}");
}

#[test]
fn connects_are_refused_and_connections_cut() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.refuse(true);
    let error = TcpStream::connect(("127.0.0.1", proxy.port())).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(ping(&mut connection).is_ok(), "the old one stays");
    proxy.refuse(false);
    let mut connections = [connection, connect(&proxy.bare_url())];
    proxy.cut_all();
    for connection in &mut connections {
        let error = ping(connection).expect_err("cut");
        assert!(error.is_connection_dropped(), "{error}");
    }
    eventually(LONG, "no client", || server.connections() == 0);
}

#[test]
fn held_replies_come_in_order_afterwards() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.hold_replies(true);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut pipeline = redis::pipe();
            pipeline.cmd("SET").arg("a").arg("1").cmd("PING");
            pipeline.query::<(String, String)>(&mut connection)
        });
        eventually(LONG, "the command is executed", || server.exists("a"));
        assert!(!client.is_finished());
        proxy.hold_replies(false);
        let replies = client.join().expect("no panic");
        assert_eq!(replies, Ok(("OK".to_owned(), "PONG".to_owned())));
    });
}
