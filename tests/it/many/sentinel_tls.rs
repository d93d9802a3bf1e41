//! TLS and sentinels: to the master, to the sentinels, and to both.

use std::time::Duration;

use relatch::{Builder, Error, LockManager, Tls, TlsCause};
use relatch_rig::{
    Authority, FakeServer, LONG, MASTER, Relay, Sentinels, Server, Setup, Terminator, within,
};

use crate::many::sentinel::{
    patient, port_of, sentinel_that_names, survive_the_death_of_the_master,
};
use crate::support::{SOON, chain};

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
    assert!(
        matches!(&error, Error::Tls { cause, .. } if *cause == wanted),
        "{error:?}, not {wanted:?}"
    );
    assert!(!chain(&error).contains("canary"), "{}", chain(&error));
}

#[test]
fn a_master_that_sentinels_name_is_reached_over_tls_and_in_no_other_way() {
    let authority = Authority::new();
    let server = Server::with_tls(
        &authority.issue(&["localhost"]),
        &authority,
        &["--requirepass", "canary"],
    );
    // The sentinel names an address, and the certificate has a name.
    let trusting = || Tls::new().roots(authority.pem()).server_name("localhost");
    let url = |port: u16| format!("rediss+sentinel://:canary@127.0.0.1:{port}/{MASTER}");
    let sentinel = sentinel_that_names(server.tls_port());
    let plain = |port: u16| patient(&url(port)).sentinel_tls(None);
    assert_works(plain(port_of(&sentinel)).tls(trusting()), &server);
    let nameless = Tls::new().roots(authority.pem());
    assert_refused(plain(port_of(&sentinel)).tls(nameless), TlsCause::WrongName);
    // A port without TLS gets no password.
    let sentinel = sentinel_that_names(server.port());
    server.reset_stats();
    assert_refused(
        plain(port_of(&sentinel)).tls(trusting()),
        TlsCause::PlainRedis,
    );
    assert_eq!(server.calls("auth"), 0);
}

/// Who stands in for a sentinel would name a server with a certificate of its own, and get the
/// password.
#[test]
fn with_tls_to_the_master_a_sentinel_in_plain_text_is_not_believed() {
    let authority = Authority::new();
    let server = Server::with_tls(
        &authority.issue(&["localhost"]),
        &authority,
        &["--requirepass", "canary"],
    );
    let (sentinel, terminator, port) = sentinels_over_tls(server.tls_port());
    let trusting = || Tls::new().roots(authority.pem()).server_name("localhost");
    let builder = |port: u16| {
        patient(&format!(
            "rediss+sentinel://:canary@localhost:{port}/{MASTER}"
        ))
    };
    let liar = sentinel_that_names(server.tls_port());
    server.reset_stats();
    let refused = builder(port_of(&liar)).tls(trusting()).build();
    let error = refused.expect_err("it speaks no TLS");
    assert!(!chain(&error).contains("canary"), "{}", chain(&error));
    assert_eq!(server.calls("auth"), 0);
    // The settings of the master are those of the sentinels, too, unless these have their own.
    assert_refused(builder(port).tls(trusting()), TlsCause::UnknownIssuer);
    let own = || Tls::new().roots(terminator.roots());
    assert_works(builder(port).tls(trusting()).sentinel_tls(own()), &server);
    assert_works(
        builder(port_of(&sentinel))
            .tls(trusting())
            .sentinel_tls(None),
        &server,
    );
    // The last call counts.
    assert_works(
        builder(port)
            .tls(trusting())
            .sentinel_tls(None)
            .sentinel_tls(own()),
        &server,
    );
}

/// Sentinels behind a terminator, and the port of that.
fn sentinels_over_tls(named: u16) -> (FakeServer, Terminator, u16) {
    let sentinel = sentinel_that_names(named);
    let terminator = Terminator::start(port_of(&sentinel));
    let url = terminator.url();
    let port = url
        .trim_end_matches('/')
        .rsplit(':')
        .next()
        .and_then(|it| it.parse().ok());
    (sentinel, terminator, port.expect("a port"))
}

#[test]
fn sentinels_are_asked_over_tls_if_that_is_set_and_the_master_without_it() {
    let server = Server::start();
    let (_sentinel, terminator, port) = sentinels_over_tls(server.port());
    let builder = || LockManager::builder(&format!("redis+sentinel://localhost:{port}/{MASTER}"));
    assert_works(
        builder().sentinel_tls(Tls::new().roots(terminator.roots())),
        &server,
    );
    let other = Authority::new();
    assert_refused(
        builder().sentinel_tls(Tls::new().roots(other.pem())),
        TlsCause::UnknownIssuer,
    );
    let without = builder().build().expect_err("the sentinels speak TLS");
    assert!(without.is_redis_failure(), "{without:?}");
    // The settings are those of the sentinels, and of nothing else.
    let plain = sentinel_that_names(server.port());
    let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", port_of(&plain));
    assert_works(LockManager::builder(&url), &server);
    let over = LockManager::builder(&url).sentinel_tls(Tls::new().roots(other.pem()));
    assert!(
        over.build()
            .expect_err("the sentinel speaks no TLS")
            .is_redis_failure()
    );
}

#[test]
fn settings_of_sentinels_without_sentinels_are_refused_by_their_name() {
    for tls in [Some(Tls::new()), None] {
        let built = LockManager::builder("rediss://127.0.0.1/")
            .sentinel_tls(tls)
            .build_lazily();
        let error = built.expect_err("the URL names no sentinels");
        assert!(
            matches!(
                error,
                Error::InvalidOption {
                    option: "sentinel_tls",
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

/// None of them answers in the time that a sentinel gets first.
#[test]
fn sentinels_over_tls_may_be_far_away() {
    let server = Server::start();
    let (_sentinel, terminator, port) = sentinels_over_tls(server.port());
    let relays = [(); 2].map(|()| Relay::start(port));
    for relay in &relays {
        relay.be_far(Duration::from_millis(150));
    }
    let [one, other] = relays.each_ref().map(Relay::port);
    let url = format!("redis+sentinel://localhost:{one},localhost:{other}/{MASTER}");
    let builder = LockManager::builder(&url);
    assert_works(
        builder.sentinel_tls(Tls::new().roots(terminator.roots())),
        &server,
    );
}

/// Keeper, listener and pool follow the switch over TLS, too.
#[test]
fn over_tls_a_hold_and_a_wait_survive_the_death_of_the_master() {
    let sentinels = Sentinels::with(Setup {
        tls: true,
        ..Setup::default()
    });
    let trusting = |roots: &str| {
        patient(&sentinels.url())
            .tls(Tls::new().roots(roots))
            .sentinel_tls(None)
    };
    assert_refused(trusting(Authority::new().pem()), TlsCause::UnknownIssuer);
    survive_the_death_of_the_master(&sentinels, || {
        trusting(sentinels.roots()).connect_timeout(SOON)
    });
}
