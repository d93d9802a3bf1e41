//! TLS: which servers are trusted, why a connection is refused, and that deadlines, late replies
//! and wake-ups are the same as without it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use relatch::{Builder, Error, LockManager, Tls, TlsCause, Unlocked};
use relatch_rig::{
    Authority, FakeServer, Identity, LONG, Relay, Reply, Server, Worker, eventually, rights, role,
    throughout, time, within,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, KeyLog, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;

use crate::support::{
    ANSWER, LATE, LEASE, MINUTE, PERIOD, SOON, builder, chain, occupy, returns_by, until_tracked,
};

/// A server whose certificate the authority has issued.
pub(crate) struct TlsRig {
    pub(crate) authority: Authority,
    pub(crate) server: Server,
}

impl TlsRig {
    pub(crate) fn new() -> TlsRig {
        TlsRig::with(&[])
    }

    fn with(args: &[&str]) -> TlsRig {
        let authority = Authority::new();
        let server = Server::with_tls(&authority.issue(&["localhost"]), &authority, args);
        TlsRig { authority, server }
    }

    /// Settings that trust the server.
    pub(crate) fn trusting(&self) -> Tls {
        Tls::new().roots(self.authority.pem())
    }

    pub(crate) fn builder(&self) -> Builder {
        builder(&self.server.tls_url()).tls(self.trusting())
    }

    /// A builder for managers that reach the server through the relay.
    fn through(&self, relay: &Relay) -> Builder {
        builder(&url(relay.port())).tls(self.trusting())
    }

    /// A manager that has connected through the relay. (The timeouts are short, and the machine may
    /// be busy.)
    fn connect_through(
        &self,
        relay: &Relay,
        change: impl FnOnce(Builder) -> Builder,
    ) -> LockManager {
        let locks = change(self.through(relay))
            .build_lazily()
            .expect("options that can work");
        eventually(LONG, "the manager connects", || {
            locks.named("warm-up").holder().is_ok()
        });
        drop(locks.lock("warm-up").expect("locks"));
        locks
    }
}

/// The address of a port of `localhost` with TLS.
pub(crate) fn url(port: u16) -> String {
    format!("rediss://{}localhost:{port}/", rights::login())
}

#[track_caller]
fn assert_works(locks: &LockManager) {
    let guard = locks.lock("a").expect("locks");
    guard.verify().expect("is held");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// Checks that the manager is refused with this cause, at once and by each way to use it.
#[track_caller]
fn assert_refused(builder: impl Fn() -> Builder, wanted: TlsCause) -> String {
    let builds = || builder().connect_timeout(SOON * 4).response_timeout(LONG);
    let error = within(LONG / 2, "a refusal", || builds().build()).expect_err("refused");
    let is_wanted = |error: &Error| matches!(error, Error::Tls { cause, .. } if *cause == wanted);
    assert!(is_wanted(&error), "{error:?}, not {wanted:?}");
    assert!(error.is_redis_failure() && !error.is_timeout());
    let locks = builds()
        .tolerate_outage(LONG)
        .build_lazily()
        .expect("options that can work");
    let waits =
        within(LONG / 2, "no wait for an end of it", || locks.lock("a")).expect_err("refused");
    assert!(is_wanted(&waits), "{waits:?}");
    assert_eq!((locks.stats().refused, locks.stats().unavailable), (1, 0));
    chain(&error)
}

fn refusal(identity: &Identity, tls: &Tls, wanted: TlsCause) -> String {
    let server = Server::with_tls(identity, &Authority::new(), &[]);
    assert_refused(|| builder(&server.tls_url()).tls(tls.clone()), wanted)
}

#[test]
fn a_server_with_a_trusted_certificate_works() {
    let rig = TlsRig::new();
    let locks = rig.builder().build().expect("connects");
    assert_works(&locks);
    let guard = locks.lock("a").expect("locks");
    assert_eq!(rig.server.get("lock:a").as_deref(), Some(guard.token()));
}

#[test]
fn a_login_and_a_database_work_over_tls() {
    let rig = TlsRig::with(&["--requirepass", "canary"]);
    let url =
        |password: &str| format!("rediss://:{password}@localhost:{}/2", rig.server.tls_port());
    let locks = LockManager::builder(&url("canary"))
        .tls(rig.trusting())
        .build()
        .expect("connects");
    let _guard = locks.lock("a").expect("locks");
    let info: String = rig.server.query(&["INFO", "keyspace"]);
    assert!(info.contains("db2:keys=1"), "{info}");
    let error = LockManager::builder(&url("wrong"))
        .tls(rig.trusting())
        .build()
        .expect_err("refused");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "WRONGPASS"),
        "{error:?}"
    );
}

#[test]
fn a_certificate_that_nobody_trusted_has_issued_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    refusal(
        &theirs.issue(&["localhost"]),
        &Tls::new().roots(ours.pem()),
        TlsCause::UnknownIssuer,
    );
    let own = Identity::self_signed(&["localhost"]);
    refusal(&own, &Tls::new().roots(ours.pem()), TlsCause::UnknownIssuer);
    // The system does not trust it either. (A system without any authority cannot be asked.)
    let server = Server::with_tls(&own, &ours, &[]);
    match builder(&server.tls_url()).build_lazily() {
        Ok(_) => _ = assert_refused(|| builder(&server.tls_url()), TlsCause::UnknownIssuer),
        Err(error) => assert!(error.to_string().contains("set `roots`"), "{error}"),
    }
    let trusted = builder(&server.tls_url()).tls(Tls::new().roots(own.certificate.as_str()));
    assert_works(&trusted.build().expect("it is trusted by itself"));
}

#[test]
fn a_certificate_for_another_host_is_refused() {
    let authority = Authority::new();
    let tls = Tls::new().roots(authority.pem());
    let text = refusal(
        &authority.issue(&["elsewhere.example.org"]),
        &tls,
        TlsCause::WrongName,
    );
    assert!(
        text.contains("localhost") && text.contains("elsewhere.example.org"),
        "{text}"
    );
}

#[test]
fn an_expired_certificate_is_refused() {
    let authority = Authority::new();
    let tls = Tls::new().roots(authority.pem());
    refusal(
        &authority.issue_expired(&["localhost"]),
        &tls,
        TlsCause::Expired,
    );
}

#[test]
fn an_address_that_the_certificate_does_not_name_needs_a_server_name() {
    let rig = TlsRig::new();
    let by_address = format!(
        "rediss://{}127.0.0.1:{}/",
        rights::login(),
        rig.server.tls_port()
    );
    let with = |tls: Tls| builder(&by_address).tls(tls);
    assert_refused(|| with(rig.trusting()), TlsCause::WrongName);
    assert_works(
        &with(rig.trusting().server_name("localhost"))
            .build()
            .expect("connects"),
    );
    assert_refused(
        || with(rig.trusting().server_name("elsewhere")),
        TlsCause::WrongName,
    );
    let authority = Authority::new();
    let server = Server::with_tls(&authority.issue(&["127.0.0.1"]), &authority, &[]);
    let by_address = format!(
        "rediss://{}127.0.0.1:{}/",
        rights::login(),
        server.tls_port()
    );
    let tls = Tls::new().roots(authority.pem());
    assert_works(
        &builder(&by_address)
            .tls(tls)
            .build()
            .expect("the certificate names the address"),
    );
}

#[test]
fn a_port_without_tls_is_found_out() {
    let rig = &TlsRig::new();
    let closed = Server::with(&["--requirepass", "canary"]);
    // Some servers wait for more, and others answer to what they take for a command.
    let answers = FakeServer::start(|_| Reply::Bytes(b"-ERR unknown command\r\n".to_vec()));
    let answering = format!("rediss://{}/", answers.address());
    thread::scope(|scope| {
        for plain in [url(rig.server.port()), url(closed.port()), answering] {
            scope.spawn(move || {
                assert_refused(|| builder(&plain).tls(rig.trusting()), TlsCause::PlainRedis);
            });
        }
    });
}

#[test]
fn a_server_that_does_not_speak_tls_is_found_out() {
    let authority = Authority::new();
    for garbage in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "\0\0\0\0\0\0\0\0",
        "220 mail.example.org\r\n",
    ] {
        let server = FakeServer::start(|_| Reply::Bytes(garbage.as_bytes().to_vec()));
        let address = server.address();
        let port = address.split(':').nth(1).expect("a port");
        let url = format!("rediss://localhost:{port}/");
        let text = assert_refused(
            || builder(&url).tls(Tls::new().roots(authority.pem())),
            TlsCause::NotTls,
        );
        assert!(!text.contains("HTTP") && !text.contains("mail"), "{text}");
    }
}

#[test]
fn a_url_without_tls_at_a_port_with_tls_says_so() {
    let rig = TlsRig::new();
    let plain = format!("redis://127.0.0.1:{}/", rig.server.tls_port());
    let error = builder(&plain).build().expect_err("no TLS");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(chain(&error).contains("TLS"), "{}", chain(&error));
}

/// The handshake breaks off after some bytes, or all of it comes byte by byte.
#[test]
fn a_handshake_that_does_not_end_ends_by_the_connect_timeout() {
    let rig = TlsRig::new();
    for bytes in [0, 3, 100, 700] {
        let relay = Relay::start(rig.server.tls_port());
        relay.hold_after(bytes);
        returns_by(ANSWER, "a silent handshake", || {
            let (took, error) = time(|| rig.through(&relay).build().expect_err("no handshake"));
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(chain(&error).contains("TLS handshake"), "{}", chain(&error));
            relay.hold_after(bytes);
            took
        });
    }
    let relay = Relay::start(rig.server.tls_port());
    relay.drip(Duration::from_millis(1));
    returns_by(ANSWER, "a handshake in drips", || {
        let before = relay.bytes_to_clients();
        let (took, error) = time(|| {
            rig.through(&relay)
                .build()
                .expect_err("no handshake in time")
        });
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(relay.bytes_to_clients() > before + 10, "it dripped");
        took
    });
    relay.release();
    eventually(LONG, "the handshake works", || {
        rig.through(&relay).build().is_ok()
    });
}

#[test]
fn a_handshake_may_take_the_whole_connect_timeout() {
    let rig = TlsRig::new();
    let relay = Relay::start(rig.server.tls_port());
    relay.hold_after(3);
    let url = format!("rediss://{}127.0.0.1:{}/", rights::login(), relay.port());
    let tls = rig.trusting().server_name("localhost");
    let builder = LockManager::builder(&url)
        .tls(tls)
        .connect_timeout(4 * SOON)
        .response_timeout(LONG);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| builder.build());
        eventually(LONG, "the handshake has begun", || {
            relay.bytes_to_clients() == 3
        });
        throughout(2 * SOON + ANSWER, || {
            assert!(!connecting.is_finished(), "it gave up");
        });
        relay.release();
        connecting.join().expect("no panic").expect("connects");
    });
}

/// Another process: without settings, it trusts what the system does, which is `SSL_CERT_FILE`. Its
/// default provider has no cipher at all.
pub(crate) fn connect_as_told() {
    let mut useless = rustls::crypto::ring::default_provider();
    useless.cipher_suites.clear();
    useless.install_default().expect("the first");
    let locks = LockManager::builder(&role::arg("url"))
        .connect_timeout(LONG)
        .response_timeout(LONG);
    let locks = locks.build().expect("connects");
    while role::next_line().is_some() {
        role::report(locks.lock("a").expect("locks").token());
    }
}

#[test]
fn without_settings_the_authorities_of_the_system_are_trusted_and_read_once() {
    let (rig, dir) = (TlsRig::new(), TempDir::new().expect("a folder"));
    let file = dir.path().join("authorities.pem");
    fs::write(&file, rig.authority.pem()).expect("a file can be written");
    let trusted = format!("SSL_CERT_FILE={}", file.display());
    let launcher = ["env", "-u", "SSL_CERT_DIR", &*trusted];
    let mut worker =
        Worker::spawn_under(&launcher, "connector", &[("url", &*rig.server.tls_url())]);
    worker.ask("lock");
    fs::remove_file(&file).expect("a file can be removed");
    assert!(
        rig.server
            .query::<u64>(&["CLIENT", "KILL", "TYPE", "normal"])
            > 0
    );
    worker.ask("lock over a new connection");
    assert!(worker.wait(LONG).success(), "{}", worker.printed());
}

#[test]
fn a_server_that_closes_in_the_handshake_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let closes = thread::spawn(move || {
        let mut client = listener.accept().expect("a client").0;
        let mut hello = [0; 16];
        client.read_exact(&mut hello).expect("a hello");
        client.write_all(&[]).expect("nothing");
    });
    let builder = LockManager::builder(&format!("rediss://127.0.0.1:{port}/"));
    let error = builder
        .tls(Tls::new().roots(Authority::new().pem()))
        .build()
        .expect_err("closed");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    closes.join().expect("no panic");
}

/// The reply to a claim is cut in the middle of its record. The next command gets its own reply.
#[test]
fn a_reply_that_is_cut_at_the_deadline_reaches_no_other_command() {
    let rig = TlsRig::new();
    let relay = Relay::start(rig.server.tls_port());
    let locks = rig.connect_through(&relay, |builder| {
        builder.pool_size(1).lease(MINUTE).renew(false)
    });
    // Another client has this lock. A late `+OK` for the reply to an attempt would give it away.
    occupy(&rig.server, "busy", MINUTE);
    for bytes in [1, 5, 10, 20] {
        let key = format!("cut-{bytes}");
        relay.hold_after(bytes);
        let error = locks
            .named(&key)
            .wait(ANSWER)
            .lock()
            .expect_err("no whole reply");
        assert!(error.is_timeout() || error.is_redis_failure(), "{error:?}");
        let is_busy = || {
            let taken = locks.try_lock("busy");
            assert!(
                !matches!(taken, Ok(Some(_))),
                "a late reply was taken for another"
            );
            taken.is_ok()
        };
        let sets = rig.server.calls("set");
        thread::scope(|scope| {
            let next = scope.spawn(is_busy);
            // No new connection works yet. Over the old one, this command would reach the server.
            eventually(LONG, "the next command was sent or given up", || {
                next.is_finished() || rig.server.calls("set") > sets
            });
            relay.release();
            next.join().expect("no late reply");
        });
        eventually(LONG, "the server answers", is_busy);
        eventually(LONG, "what the cut attempt left is removed", || {
            !rig.server.exists(&format!("lock:{key}"))
        });
    }
}

#[test]
fn a_server_that_wants_a_certificate_gets_one() {
    let rig = TlsRig::with(&["--tls-auth-clients", "yes"]);
    let (ours, theirs) = (
        rig.authority.issue(&["client"]),
        Authority::new().issue(&["client"]),
    );
    let with = |identity: &Identity| {
        rig.trusting()
            .client_certificate(identity.certificate.as_str(), identity.key.as_str())
    };
    assert_refused(|| rig.builder(), TlsCause::ClientCertificate);
    assert_refused(
        || rig.builder().tls(with(&theirs)),
        TlsCause::ClientCertificate,
    );
    let expired = rig.authority.issue_expired(&["client"]);
    assert_refused(
        || rig.builder().tls(with(&expired)),
        TlsCause::ClientCertificate,
    );
    assert_eq!(rig.server.calls("set"), 0, "nothing was executed");
    assert_works(&rig.builder().tls(with(&ours)).build().expect("connects"));
}

/// With TLS 1.2, the server refuses a client within the handshake; with TLS 1.3, after it.
#[test]
fn both_versions_of_tls_work() {
    for (name, version) in [
        ("TLSv1.2", &rustls::version::TLS12),
        ("TLSv1.3", &rustls::version::TLS13),
    ] {
        let open = TlsRig::with(&["--tls-protocols", name]);
        assert_works(&open.builder().build().expect("connects"));
        let config = |authority| Tls::from_config(config(authority, version));
        assert_works(
            &open
                .builder()
                .tls(config(&open.authority))
                .build()
                .expect("connects"),
        );
        let strict = TlsRig::with(&["--tls-protocols", name, "--tls-auth-clients", "yes"]);
        assert_refused(|| strict.builder(), TlsCause::ClientCertificate);
    }
    let old = TlsRig::with(&["--tls-protocols", "TLSv1.2"]);
    let new = || Tls::from_config(config(&old.authority, &rustls::version::TLS13));
    assert_refused(|| old.builder().tls(new()), TlsCause::Other);
}

/// A key log that panics while this is true.
#[derive(Debug)]
struct Panics(Arc<AtomicBool>);

impl KeyLog for Panics {
    fn log(&self, _: &str, _: &[u8], _: &[u8]) {
        assert!(!self.0.load(Ordering::SeqCst), "the key log");
    }
}

/// A connection is opened by a call, by the drop of a guard, and by the keeper.
#[test]
fn a_panic_in_a_configuration_of_tls_ends_only_the_connection() {
    let (rig, panics) = (TlsRig::new(), Arc::new(AtomicBool::new(false)));
    let mut config = ClientConfig::clone(&config(&rig.authority, &rustls::version::TLS13));
    config.key_log = Arc::new(Panics(Arc::clone(&panics)));
    let builder = rig.builder().tls(Tls::from_config(Arc::new(config)));
    let locks = builder
        .lease(MINUTE)
        .renew_every(ANSWER)
        .build()
        .expect("connects");
    let guard = locks.lock("a").expect("locks");
    panics.store(true, Ordering::SeqCst);
    rig.server
        .query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let error = locks.try_lock("b").expect_err("no connection");
    assert!(
        matches!(
            error,
            Error::Tls {
                cause: TlsCause::Other,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        chain(&error).contains("a key log or a logger panicked"),
        "{}",
        chain(&error)
    );
    eventually(LONG, "a renewal fails", || locks.stats().renewal_errors > 0);
    drop(guard);
    panics.store(false, Ordering::SeqCst);
    assert_works(&locks);
}

fn config(authority: &Authority, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM"))
        .expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]);
    Arc::new(
        versions
            .expect("a version")
            .with_root_certificates(roots)
            .with_no_client_auth(),
    )
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let authority = Authority::new();
    let (ours, theirs) = (authority.issue(&["a"]), authority.issue(&["a"]));
    let other = || config(&authority, &rustls::version::TLS13);
    let trusting = || Tls::new().roots(authority.pem());
    for (tls, reason) in [
        (Tls::new().roots(""), "`roots`"),
        (Tls::new().roots("canary"), "`roots`"),
        (Tls::new().roots(ours.key.as_str()), "`roots`"),
        (
            Tls::new().roots("-----BEGIN CERTIFICATE-----\ncanary\n-----END CERTIFICATE-----\n"),
            "`roots`",
        ),
        (
            Tls::new().roots("-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n"),
            "`roots`",
        ),
        (
            trusting().client_certificate("canary", ours.key.as_str()),
            "the chain",
        ),
        (
            trusting().client_certificate(ours.certificate.as_str(), "canary"),
            "the key",
        ),
        (
            trusting().client_certificate(ours.certificate.as_str(), theirs.key.as_str()),
            "does not fit",
        ),
        (trusting().server_name("no name"), "`server_name`"),
        (trusting().server_name(""), "`server_name`"),
        (
            Tls::from_config(other()).roots(authority.pem()),
            "`from_config`",
        ),
        (
            Tls::from_config(other()).provider(Arc::clone(other().crypto_provider())),
            "`from_config`",
        ),
    ] {
        let error = LockManager::builder("rediss://localhost/")
            .tls(tls)
            .build()
            .expect_err(reason);
        assert!(
            matches!(error, Error::InvalidOption { option: "tls", .. }),
            "{error:?}"
        );
        let text = chain(&error);
        assert!(
            text.contains(reason) && !text.contains("canary") && !text.contains("BEGIN"),
            "{text}"
        );
    }
    let error = LockManager::builder("redis://localhost/")
        .tls(Tls::new())
        .build()
        .expect_err("no TLS in the URL");
    assert!(
        matches!(error, Error::InvalidOption { option: "tls", .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("`rediss`"), "{error}");
    let sentinels =
        LockManager::builder("redis+sentinel://localhost/m").sentinel_login(None, "canary");
    let error = sentinels
        .sentinel_tls(Tls::new().roots("canary"))
        .build()
        .expect_err("no certificate");
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

/// Another process may install any default: no connection depends on it.
#[test]
fn the_provider_that_is_given_is_used() {
    let rig = TlsRig::new();
    let mut provider = rustls::crypto::ring::default_provider();
    provider
        .cipher_suites
        .retain(|suite| suite.tls13().is_some());
    let tls = rig.trusting().provider(Arc::new(provider));
    assert_works(&rig.builder().tls(tls).build().expect("connects"));
    let mut useless = rustls::crypto::ring::default_provider();
    useless.cipher_suites.clear();
    let error = rig
        .builder()
        .tls(rig.trusting().provider(Arc::new(useless)))
        .build()
        .expect_err("no ciphers");
    assert!(
        matches!(error, Error::InvalidOption { option: "tls", .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("`provider`"), "{error}");
}

/// A waiter of another manager is woken by the release, long before it would ask by itself.
#[test]
fn waiters_are_woken_over_tls() {
    let rig = TlsRig::new();
    let [ours, theirs] = [(), ()].map(|()| {
        let builder = LockManager::builder(&rig.server.tls_url()).tls(rig.trusting());
        builder.lease(MINUTE).build().expect("connects")
    });
    for _ in 0..3 {
        let guard = theirs.lock("a").expect("locks");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| ours.lock("a").map(drop));
            until_tracked(&rig.server, 1);
            let released = time(|| {
                guard.unlock().expect("unlocks");
                waiter.join().expect("no panic").expect("locks");
            });
            assert!(released.0 < LONG / 4, "{released:?}");
        });
    }
}

/// The listener reads from a connection over TLS, and is ended at once.
#[test]
fn dropping_the_last_handle_over_tls_is_quick() {
    let rig = TlsRig::new();
    returns_by(Duration::from_millis(100), "the drop", || {
        let builder = LockManager::builder(&rig.server.tls_url()).tls(rig.trusting());
        let locks = builder
            .response_timeout(LONG / 4)
            .build()
            .expect("connects");
        let guard = locks.lock("a").expect("locks");
        guard.set_lease(MINUTE).expect("extends");
        eventually(LONG, "the listener listens", || {
            rig.server.listeners().len() == 1
        });
        eventually(LONG, "the key is tracked", || rig.server.tracked_keys() > 0);
        drop(guard);
        // After a message, the listener looks by itself whether it has to stop. So the invalidation
        // has to be over.
        throughout(Duration::from_millis(100), || {});
        let took = time(|| drop(locks)).0;
        eventually(LONG, "the listener is gone", || {
            rig.server.listeners().is_empty()
        });
        took
    });
}

#[test]
fn a_connection_that_is_cut_costs_no_hold() {
    let rig = TlsRig::new();
    let relay = Relay::start(rig.server.tls_port());
    let locks = rig.connect_through(&relay, |builder| {
        builder.lease(LEASE * 5).renew_every(PERIOD)
    });
    let guard = locks.lock("a").expect("locks");
    for _ in 0..3 {
        let (connections, renewed) = (relay.connections_accepted(), renewals(&locks));
        relay.cut_all();
        eventually(LONG, "it is renewed over a new connection", || {
            renewals(&locks) > renewed + 1 && relay.connections_accepted() > connections
        });
        guard.ensure(PERIOD).expect("is held");
    }
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

fn renewals(locks: &LockManager) -> u32 {
    crate::support::renewals(locks, "a")
}

/// A connection whose other end is gone without a sign costs half of the time, and the lock is
/// released over another.
#[test]
fn a_half_open_connection_over_tls_costs_a_timeout() {
    let rig = TlsRig::new();
    let relay = Relay::start(rig.server.tls_port());
    let locks = rig.connect_through(&relay, |builder| {
        builder.renew(false).client_tracking(false)
    });
    returns_by(ANSWER, "a release into a half-open connection", || {
        let mut guard = None;
        eventually(LONG, "the lock is free", || {
            guard = locks.try_lock("a").ok().flatten();
            guard.is_some()
        });
        let connections = relay.connections_accepted();
        relay.strand_all();
        let (took, released) = time(|| guard.expect("just taken").unlock());
        assert!(
            relay.connections_accepted() > connections,
            "over a new connection"
        );
        // On a busy machine, the handshake may take too long.
        if matches!(released, Ok(Unlocked::Released)) {
            took
        } else {
            LONG
        }
    });
    eventually(SOON + LATE, "the key is removed", || {
        !rig.server.exists("lock:a")
    });
}
