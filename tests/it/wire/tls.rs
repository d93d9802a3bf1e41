//! TLS: which servers are trusted, why a connection is refused, and that a handshake ends in time.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use relatch::{Builder, Error, LockManager, Tls, TlsCause, Unlocked};
use relatch_rig::{
    Authority, FakeServer, Identity, LONG, Relay, Reply, Server, Worker, eventually, rights, role,
    throughout, within,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{
    ClientConfig, KeyLog, ProtocolVersion, RootCertStore, SupportedCipherSuite,
    SupportedProtocolVersion,
};
use tempfile::TempDir;

use crate::support::{ANSWER, MINUTE, SOON, chain, unhurried};

/// A server whose certificate the authority has issued.
struct TlsRig {
    authority: Authority,
    server: Server,
}

impl TlsRig {
    fn new() -> TlsRig {
        TlsRig::with(&[])
    }

    fn with(args: &[&str]) -> TlsRig {
        let authority = Authority::new();
        let server = Server::with_tls(&authority.issue(&["localhost"]), &authority, args);
        TlsRig { authority, server }
    }

    /// Settings that trust the server.
    fn trusting(&self) -> Tls {
        Tls::new().roots(self.authority.pem())
    }

    fn builder(&self) -> Builder {
        unhurried(&self.server.tls_url()).tls(self.trusting())
    }

    /// A builder for managers that reach the server through the relay.
    fn through(&self, relay: &Relay) -> Builder {
        unhurried(&url(relay.port())).tls(self.trusting())
    }
}

/// The address of a port of `localhost` with TLS.
fn url(port: u16) -> String {
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
    assert_refused(|| unhurried(&server.tls_url()).tls(tls.clone()), wanted)
}

#[test]
fn a_certificate_that_is_not_trusted_or_expired_or_for_another_host_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let tls = Tls::new().roots(ours.pem());
    let unknown = theirs.issue(&["localhost"]);
    refusal(&unknown, &tls, TlsCause::UnknownIssuer);
    let expired = ours.issue_expired(&["localhost"]);
    refusal(&expired, &tls, TlsCause::Expired);
    let elsewhere = ours.issue(&["elsewhere.example.org"]);
    let text = refusal(&elsewhere, &tls, TlsCause::WrongName);
    let names = ["localhost", "elsewhere.example.org"];
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    // The system does not trust it either. (A system without any authority cannot be asked.)
    let own = Identity::self_signed(&["localhost"]);
    let server = Server::with_tls(&own, &ours, &[]);
    match unhurried(&server.tls_url()).build_lazily() {
        Ok(_) => _ = assert_refused(|| unhurried(&server.tls_url()), TlsCause::UnknownIssuer),
        Err(error) => assert!(error.to_string().contains("set `roots`"), "{error}"),
    }
    let trusted = unhurried(&server.tls_url()).tls(Tls::new().roots(own.certificate.as_str()));
    assert_works(&trusted.build().expect("it is trusted by itself"));
}

#[test]
fn an_address_that_the_certificate_does_not_name_needs_a_server_name() {
    let authority = Authority::new();
    let tls = || Tls::new().roots(authority.pem());
    let server_of = |name| Server::with_tls(&authority.issue(&[name]), &authority, &[]);
    let by_address = |server: &Server, tls| {
        let (login, port) = (rights::login(), server.tls_port());
        unhurried(&format!("rediss://{login}127.0.0.1:{port}/")).tls(tls)
    };
    let server = server_of("localhost");
    assert_refused(|| by_address(&server, tls()), TlsCause::WrongName);
    let elsewhere = || tls().server_name("elsewhere");
    assert_refused(|| by_address(&server, elsewhere()), TlsCause::WrongName);
    let named = by_address(&server, tls().server_name("localhost"));
    assert_works(&named.build().expect("connects"));
    let server = server_of("127.0.0.1");
    assert_works(&by_address(&server, tls()).build().expect("connects"));
}

#[test]
fn a_port_without_tls_is_found_out() {
    let rig = &TlsRig::new();
    let closed = Server::with(&["--requirepass", "canary"]);
    // Some servers wait for more, and others answer to what they take for a command.
    let says = |text: &'static str| FakeServer::start(|_| Reply::Bytes(text.into()));
    let fakes = [
        ("-ERR unknown command\r\n", TlsCause::PlainRedis),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", TlsCause::NotTls),
        ("\0\0\0\0\0\0\0\0", TlsCause::NotTls),
    ]
    .map(|(text, cause)| (says(text), cause));
    thread::scope(|scope| {
        let check = |url: String, cause| {
            scope.spawn(move || {
                let text = assert_refused(|| unhurried(&url).tls(rig.trusting()), cause);
                assert!(!text.contains("HTTP"), "{text}");
            });
        };
        check(url(rig.server.port()), TlsCause::PlainRedis);
        check(url(closed.port()), TlsCause::PlainRedis);
        for (fake, cause) in &fakes {
            check(format!("rediss://{}/", fake.address()), *cause);
        }
    });
    let closes = FakeServer::start(|_| Reply::Close);
    let url = format!("rediss://{}/", closes.address());
    let error = unhurried(&url)
        .tls(rig.trusting())
        .build()
        .expect_err("closed");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn a_url_without_tls_at_a_port_with_tls_says_so() {
    let rig = TlsRig::new();
    let plain = format!("redis://127.0.0.1:{}/", rig.server.tls_port());
    let error = unhurried(&plain).build().expect_err("no TLS");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(chain(&error).contains("TLS"), "{}", chain(&error));
}

/// The handshake breaks off after some bytes, or all of it comes byte by byte. One that goes on in
/// time may take most of the timeout.
#[test]
fn a_handshake_that_does_not_end_ends_by_the_connect_timeout() {
    let rig = TlsRig::new();
    let relay = Relay::start(rig.server.tls_port());
    let builder = || {
        let builder = rig.through(&relay).connect_timeout(4 * SOON);
        builder.response_timeout(LONG)
    };
    let build = || within(8 * SOON, "a connection", || builder().build());
    relay.drip(Duration::from_millis(20));
    let error = build().expect_err("no handshake in time");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    relay.release();
    relay.hold_after(700);
    let error = build().expect_err("no handshake");
    assert!(chain(&error).contains("TLS handshake"), "{}", chain(&error));
    let relay = Relay::start(rig.server.tls_port());
    relay.hold_after(3);
    let builder = rig.through(&relay).connect_timeout(8 * SOON);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| builder.response_timeout(LONG).build());
        eventually(LONG, "the handshake has begun", || {
            relay.bytes_to_clients() == 3
        });
        throughout(5 * SOON, || {
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
    let url = rig.server.tls_url();
    let mut worker = Worker::spawn_under(&launcher, "connector", &[("url", &*url)]);
    worker.ask("lock");
    fs::remove_file(&file).expect("a file can be removed");
    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
    assert!(rig.server.query::<u64>(&kill) > 0);
    worker.ask("lock over a new connection");
    assert!(worker.wait(LONG).success(), "{}", worker.printed());
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

/// With TLS 1.2, the server refuses a client within the handshake; with TLS 1.3, after it. The
/// provider that is given is used, whatever the default is.
#[test]
fn both_versions_of_tls_work() {
    for (name, version) in [
        ("TLSv1.2", &rustls::version::TLS12),
        ("TLSv1.3", &rustls::version::TLS13),
    ] {
        let open = TlsRig::with(&["--tls-protocols", name]);
        let config = Tls::from_config(config(&open.authority, version));
        let with = |tls: Tls| open.builder().tls(tls).build();
        assert_works(&with(open.trusting()).expect("connects"));
        assert_works(&with(config).expect("connects"));
        let provided = |has: fn(&SupportedCipherSuite) -> bool| {
            let mut provider = rustls::crypto::ring::default_provider();
            provider.cipher_suites.retain(has);
            open.trusting().provider(Arc::new(provider))
        };
        let is_new = version.version == ProtocolVersion::TLSv1_3;
        let of_1_3 = with(provided(|suite| suite.tls13().is_some()));
        assert_eq!(of_1_3.is_ok(), is_new, "{of_1_3:?}");
        let error = with(provided(|_| false)).expect_err("no ciphers");
        assert!(error.to_string().contains("`provider`"), "{error}");
        let strict = TlsRig::with(&["--tls-protocols", name, "--tls-auth-clients", "yes"]);
        assert_refused(|| strict.builder(), TlsCause::ClientCertificate);
    }
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
    let text = chain(&error);
    assert!(text.contains("a key log or a logger panicked"), "{text}");
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
    let (certificate, key) = (ours.certificate.as_str(), ours.key.as_str());
    let other = || Tls::from_config(config(&authority, &rustls::version::TLS13));
    let trusting = || Tls::new().roots(authority.pem());
    let no_certificate = "-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n";
    for (tls, reason) in [
        (Tls::new().roots(""), "`roots`"),
        (Tls::new().roots(key), "`roots`"),
        (Tls::new().roots(no_certificate), "`roots`"),
        (trusting().client_certificate("canary", key), "the chain"),
        (
            trusting().client_certificate(certificate, "canary"),
            "the key",
        ),
        (
            trusting().client_certificate(certificate, theirs.key.as_str()),
            "does not match",
        ),
        (trusting().server_name("no name"), "`server_name`"),
        (other().roots(authority.pem()), "`from_config`"),
    ] {
        let error = LockManager::builder("rediss://localhost/").tls(tls);
        let error = error.build().expect_err(reason);
        let is_it = matches!(error, Error::InvalidOption { option: "tls", .. });
        let text = chain(&error);
        assert!(is_it && text.contains(reason), "{error:?}");
        assert!(
            !text.contains("canary") && !text.contains("BEGIN"),
            "{text}"
        );
    }
    let plain = LockManager::builder("redis://localhost/").tls(Tls::new());
    let error = plain.build().expect_err("no TLS in the URL");
    assert!(error.to_string().contains("`rediss`"), "{error}");
    let sentinels = LockManager::builder("redis+sentinel://localhost/m");
    let sentinels = sentinels.sentinel_login(None, "canary");
    let error = sentinels.sentinel_tls(Tls::new().roots("canary")).build();
    let error = error.expect_err("no certificate").to_string();
    assert!(error.contains("`sentinel_tls`"), "{error}");
}
