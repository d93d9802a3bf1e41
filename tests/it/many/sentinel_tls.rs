//! TLS and sentinels: to the master, to the sentinels, and to both.

use relatch::{Builder, Error, LockManager, Tls, TlsCause};
use relatch_rig::{Authority, FakeServer, LONG, MASTER, Reply, Server, Terminator, within};

use crate::many::sentinel::{array, patient};
use crate::support::{SOON, chain};

/// A server that answers as a sentinel would, which takes the server at `port` for the master and
/// knows no other sentinel; and its own port.
fn sentinel_that_names(port: u16) -> (FakeServer, u16) {
    let fake = FakeServer::start(move |args| {
        let words: Vec<_> = args.iter().map(|it| it.to_lowercase()).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let reply = match words[..] {
            [] => String::new(),
            ["sentinel", "get-master-addr-by-name", _] => array(&["127.0.0.1", &port.to_string()]),
            ["sentinel", ..] => array(&[]),
            _ => "+OK\r\n".to_owned(),
        };
        Reply::Bytes(reply.into_bytes())
    });
    let own = port_in(&fake.address());
    (fake, own)
}

fn port_in(address: &str) -> u16 {
    let port = address.trim_end_matches('/').rsplit(':').next();
    port.and_then(|it| it.parse().ok()).expect("a port")
}

/// Checks that locks work, and that they are in this server.
#[track_caller]
fn assert_works(builder: Builder, server: &Server) {
    let locks = builder.connect_timeout(LONG).build().expect("connects");
    let guard = locks.lock("a").expect("locks");
    assert_eq!(server.get("lock:a").as_deref(), Some(guard.token()));
}

#[track_caller]
fn assert_refused(builder: Builder, wanted: TlsCause) {
    let refused = within(LONG, "a refusal", || {
        builder.connect_timeout(2 * SOON).build()
    });
    let error = refused.expect_err("refused");
    let is_it = matches!(&error, Error::Tls { cause, .. } if *cause == wanted);
    assert!(is_it, "{error:?}, not {wanted:?}");
    assert!(!chain(&error).contains("canary"), "{}", chain(&error));
}

/// Who stands in for a sentinel would name a server with a certificate of its own, and get the
/// password. So a sentinel in plain text is believed only if the program says so.
#[test]
fn a_master_that_sentinels_name_is_reached_over_tls_and_in_no_other_way() {
    let authority = Authority::new();
    let identity = authority.issue(&["localhost"]);
    let server = Server::with_tls(&identity, &authority, &["--requirepass", "canary"]);
    let (_sentinel, plain) = sentinel_that_names(server.tls_port());
    let terminator = Terminator::start(plain);
    let encrypted = port_in(&terminator.url());
    // The sentinel names an address, and the certificate has a name.
    let trusting = || Tls::new().roots(authority.pem()).server_name("localhost");
    let builder = |port: u16| {
        let url = format!("rediss+sentinel://:canary@localhost:{port}/{MASTER}");
        patient(&url).tls(trusting())
    };
    assert_works(builder(plain).sentinel_tls(None), &server);
    let own = || Tls::new().roots(terminator.roots());
    assert_works(
        builder(encrypted).sentinel_tls(None).sentinel_tls(own()),
        &server,
    );
    let nameless = Tls::new().roots(authority.pem());
    assert_refused(
        builder(plain).tls(nameless).sentinel_tls(None),
        TlsCause::WrongName,
    );
    // The settings of the master are those of the sentinels, too, unless these have their own.
    assert_refused(builder(encrypted), TlsCause::UnknownIssuer);
    server.reset_stats();
    let error = builder(plain)
        .build()
        .expect_err("the sentinel speaks no TLS");
    assert!(!chain(&error).contains("canary"), "{}", chain(&error));
    // A port without TLS gets no password.
    let (_liar, port) = sentinel_that_names(server.port());
    assert_refused(builder(port).sentinel_tls(None), TlsCause::PlainRedis);
    assert_eq!(server.calls("auth"), 0);
}

#[test]
fn sentinels_are_asked_over_tls_if_that_is_set_and_the_master_without_it() {
    let server = Server::start();
    let (_sentinel, plain) = sentinel_that_names(server.port());
    let terminator = Terminator::start(plain);
    let encrypted = port_in(&terminator.url());
    let url = |port: u16| format!("redis+sentinel://localhost:{port}/{MASTER}");
    let own = Tls::new().roots(terminator.roots());
    assert_works(
        LockManager::builder(&url(encrypted)).sentinel_tls(own.clone()),
        &server,
    );
    let other = Tls::new().roots(Authority::new().pem());
    assert_refused(
        LockManager::builder(&url(encrypted)).sentinel_tls(other),
        TlsCause::UnknownIssuer,
    );
    let without = LockManager::builder(&url(encrypted)).build();
    assert!(without.expect_err("they speak TLS").is_redis_failure());
    let over = LockManager::builder(&url(plain))
        .sentinel_tls(own.clone())
        .build();
    assert!(over.expect_err("it speaks no TLS").is_redis_failure());
    let no_sentinels = LockManager::builder("rediss://127.0.0.1/").sentinel_tls(own);
    let error = no_sentinels.build_lazily().expect_err("the URL names none");
    let is_named = matches!(
        error,
        Error::InvalidOption {
            option: "sentinel_tls",
            ..
        }
    );
    assert!(is_named, "{error:?}");
}
