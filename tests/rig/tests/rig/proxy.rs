//! The proxy does what it says.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use redis::RedisResult;
use relatch_rig::{Fault, LONG, Proxy, Server, eventually, within};

use crate::client::{SHORT, connect, connect_hasty, ping, set};

fn server_and_proxy() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

#[test]
fn a_proxy_passes_everything_on() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    assert_eq!(set(&mut connection, "a").as_deref(), Ok("OK"));
    assert!(server.exists("a"));
    let value = "x".repeat(3 << 20);
    let echoed: RedisResult<String> = redis::cmd("ECHO").arg(&value).query(&mut connection);
    assert!(echoed.as_deref() == Ok(&*value), "3 MiB and back");
    let pushed: RedisResult<u64> = redis::cmd("RPUSH")
        .arg(&["l", "1", "2"])
        .query(&mut connection);
    assert_eq!(pushed, Ok(2));
    let popped: RedisResult<(String, i32)> =
        redis::cmd("BLPOP").arg("l").arg(0).query(&mut connection);
    assert_eq!(popped, Ok(("l".to_owned(), 1)));

    assert_eq!(proxy.connections_accepted(), 1);
    assert_eq!(proxy.commands("set"), 1);
    assert_eq!(proxy.commands("BLPOP l"), 1);
    assert_eq!(proxy.commands("* l"), 2);
    assert_eq!(proxy.fired(), 0);
    let log = proxy.log();
    assert!(log.ends_with(&["SET", "ECHO", "RPUSH", "BLPOP"].map(String::from)));
    assert_eq!(
        proxy.log_in_full().last().expect("a command"),
        &["BLPOP", "l", "0"]
    );
}

#[test]
fn a_proxy_passes_messages_between_replies() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    let mut subscriber = connection.as_pubsub();
    subscriber.subscribe(&["a", "b"]).expect("two replies");
    for number in 0..3 {
        let heard: u64 = server.query(&["PUBLISH", "b", &number.to_string()]);
        assert_eq!(heard, 1);
        let message = subscriber.get_message().expect("a message");
        assert_eq!(message.get_payload::<i32>(), Ok(number));
        subscriber.subscribe("c").expect("a reply");
    }
}

#[test]
fn a_client_learns_that_the_server_behind_the_proxy_is_gone() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    ping(&mut connection).expect("a reply");
    server.kill();
    let error = ping(&mut connection).expect_err("no server");
    assert!(error.is_connection_dropped(), "{error}");
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("a connection");
    stream.write_all(b"PING\r\n").expect("sent");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("the end");
    assert!(reply.is_empty());
    server.restart();
    assert!(ping(&mut connect(&proxy.bare_url())).is_ok());
}

#[test]
fn the_server_learns_that_the_client_behind_the_proxy_is_gone() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    ping(&mut connection).expect("a reply");
    assert_eq!(server.connections(), 1);
    drop(connection);
    eventually(LONG, "no client", || server.connections() == 0);
}

#[test]
fn drop_reply_executes_and_sends_no_reply() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect_hasty(&proxy.bare_url());
    proxy.on("set", Fault::DropReply);
    let error = set(&mut connection, "a").expect_err("no reply");
    assert!(error.is_timeout(), "{error}");
    proxy.wait_fired(1, LONG);
    assert!(server.exists("a"));
    assert_eq!(server.connections(), 1, "the connection is open");
    assert!(
        set(&mut connect(&proxy.bare_url()), "b").is_ok(),
        "only once"
    );
}

#[test]
fn cut_before_reply_executes_and_ends_the_connection() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.on("SET", Fault::CutBeforeReply);
    let error = set(&mut connection, "a").expect_err("no reply");
    assert!(error.is_connection_dropped(), "{error}");
    assert!(server.exists("a"));
    assert_eq!(proxy.fired(), 1);
}

#[test]
fn half_reply_ends_within_the_reply() {
    let (_server, proxy) = server_and_proxy();
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("a connection");
    proxy.on("PING", Fault::HalfReply);
    stream.write_all(b"PING\r\n").expect("sent");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("the end");
    assert_eq!(reply, b"+PO");
}

#[test]
fn swallow_command_keeps_it_from_the_server() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect_hasty(&proxy.bare_url());
    proxy.on("SET", Fault::SwallowCommand);
    assert!(
        set(&mut connection, "a")
            .expect_err("no reply")
            .is_timeout()
    );
    proxy.wait_fired(1, LONG);
    assert_eq!(server.calls("set"), 0);
    assert_eq!(proxy.commands("SET"), 1);
}

#[test]
fn cut_before_forward_keeps_it_from_the_server() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.on("SET", Fault::CutBeforeForward);
    let error = set(&mut connection, "a").expect_err("no reply");
    assert!(error.is_connection_dropped(), "{error}");
    assert_eq!(server.calls("set"), 0);
}

#[test]
fn delay_reply_executes_at_once() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.on("SET", Fault::DelayReply(2 * SHORT));
    let start = Instant::now();
    thread::scope(|scope| {
        let client = scope.spawn(|| set(&mut connection, "a"));
        proxy.wait_fired(1, LONG);
        assert!(server.exists("a"));
        assert_eq!(client.join().expect("no panic").as_deref(), Ok("OK"));
    });
    assert!(start.elapsed() >= 2 * SHORT);
}

#[test]
fn a_delayed_command_arrives_after_its_client_has_left() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect_hasty(&proxy.bare_url());
    proxy.on("SET", Fault::DelayCommand(3 * SHORT));
    let start = Instant::now();
    assert!(
        set(&mut connection, "a")
            .expect_err("no reply")
            .is_timeout()
    );
    drop(connection);
    eventually(LONG, "the command arrives", || server.exists("a"));
    assert!(start.elapsed() >= 3 * SHORT);
}

#[test]
fn byte_by_byte_takes_its_time() {
    let (_server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.on("SET", Fault::ByteByByte(SHORT / 4));
    let start = Instant::now();
    assert_eq!(set(&mut connection, "a").as_deref(), Ok("OK"));
    let gaps = u32::try_from("+OK\r\n".len() - 1).expect("4");
    assert!(start.elapsed() >= SHORT / 4 * gaps);
}

#[test]
fn replace_executes_and_answer_does_not() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    proxy.on("SET", Fault::Replace(b"+DONE\r\n".to_vec()));
    proxy.on(
        "SET",
        Fault::Answer(b"-READONLY You can't write\r\n".to_vec()),
    );
    assert_eq!(set(&mut connection, "a").as_deref(), Ok("DONE"));
    let error = set(&mut connection, "b").expect_err("the answer");
    assert_eq!(error.code(), Some("READONLY"));
    assert!(server.exists("a") && !server.exists("b"));
    assert_eq!(ping(&mut connection).as_deref(), Ok("PONG"));
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
    assert!(!server.exists("b"));
}

#[test]
fn rules_fire_as_often_as_they_were_armed() {
    let (_server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    let answer = |text: &str| Fault::Answer(format!("+{text}\r\n").into_bytes());
    proxy.always("PING", answer("always"));
    proxy.on("PING", answer("once"));
    proxy.on_times("ping", 2, answer("twice"));
    let mut replies = Vec::new();
    for _ in 0..6 {
        replies.push(ping(&mut connection).expect("a reply"));
    }
    let expected = ["once", "twice", "twice", "always", "always", "always"];
    assert_eq!(replies, expected);
    assert_eq!(proxy.fired(), 6);
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
    let mut old = connect_hasty(&proxy.bare_url());
    ping(&mut old).expect("a reply");
    proxy.on("SET", Fault::CutBeforeForward);
    proxy.black_hole(true);
    assert!(set(&mut old, "a").expect_err("no reply").is_timeout());
    let mut new = TcpStream::connect(("127.0.0.1", proxy.port())).expect("a connection");
    new.set_read_timeout(Some(SHORT)).expect("a timeout");
    new.write_all(b"SET b 1\r\n").expect("sent");
    assert!(new.read(&mut [0]).is_err(), "neither a reply nor the end");
    drop(old);
    assert_eq!(
        server.connections(),
        1,
        "the server does not know that its client has left"
    );
    assert_eq!(proxy.fired(), 0);

    proxy.black_hole(false);
    proxy.clear();
    eventually(LONG, "the server knows", || server.connections() == 0);
    assert_eq!(server.calls("set"), 0);
    assert_eq!(ping(&mut connect(&proxy.bare_url())).as_deref(), Ok("PONG"));
    new.write_all(b"SET c 1\r\n").expect("sent");
    eventually(LONG, "the old connection works", || server.exists("c"));
}

#[test]
fn the_end_of_the_server_is_lost_in_a_black_hole() {
    let (server, proxy) = server_and_proxy();
    let mut connection = connect_hasty(&proxy.bare_url());
    ping(&mut connection).expect("a reply");
    proxy.black_hole(true);
    server.kill();
    let error = ping(&mut connection).expect_err("no reply");
    assert!(error.is_timeout(), "{error}");
}

#[test]
fn refused_connects_are_accepted_again_on_the_same_port() {
    let (_server, proxy) = server_and_proxy();
    let mut connection = connect(&proxy.bare_url());
    for _ in 0..3 {
        proxy.refuse(true);
        proxy.refuse(true);
        let error = TcpStream::connect(("127.0.0.1", proxy.port())).expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        assert!(ping(&mut connection).is_ok(), "the old one stays");
        proxy.refuse(false);
        proxy.refuse(false);
        assert!(ping(&mut connect(&proxy.bare_url())).is_ok());
    }
    assert_eq!(proxy.connections_accepted(), 4);
}

#[test]
fn cut_all_ends_every_connection() {
    let (server, proxy) = server_and_proxy();
    let mut connections = [(); 3].map(|()| connect(&proxy.bare_url()));
    for connection in &mut connections {
        ping(connection).expect("a reply");
    }
    proxy.cut_all();
    for connection in &mut connections {
        let error = ping(connection).expect_err("cut");
        assert!(error.is_connection_dropped(), "{error}");
    }
    eventually(LONG, "no client", || server.connections() == 0);
    assert!(ping(&mut connect(&proxy.bare_url())).is_ok());
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

#[test]
fn a_proxy_ends_while_replies_are_delayed_or_held() {
    let (server, proxy) = server_and_proxy();
    let mut connections = [(); 4].map(|()| connect(&proxy.bare_url()));
    proxy.on("SET", Fault::DelayReply(2 * LONG));
    proxy.on("SET", Fault::DelayCommand(2 * LONG));
    proxy.on("SET", Fault::ByteByByte(2 * LONG));
    for connection in &mut connections {
        let command = redis::cmd("SET").arg("a").arg("1").get_packed_command();
        connection.send_packed_command(&command).expect("sent");
    }
    proxy.wait_fired(3, LONG);
    proxy.hold_replies(true);
    server.pause();
    within(LONG, "dropping the proxy", || drop(proxy));
}
