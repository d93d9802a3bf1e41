//! The password must not appear in an error, a `Debug`, a log line or a panic. A process of its own
//! goes through all of them with a logger at the finest level, and its parent searches everything
//! that it printed.

use std::any::type_name;
use std::error::Error as StdError;
use std::fmt::Debug;
use std::fs;
use std::iter;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use relatch::{
    Error, LockGuard, LockManager, LockParcel, LostLock, Replicas, SetupCause, SystemCause,
    TlsCause,
};
use relatch_rig::{
    FakeServer, Fault, Identity, LONG, Proxy, Reply, Server, Worker, eventually, role,
};
use tempfile::TempDir;

/// How long the managers here wait for an answer.
const ANSWER: Duration = Duration::from_millis(300);

/// The password.
const PASSWORD: &str = "pa7Qx@wd/9Zk";

/// The password, as it is written in a URL.
const IN_URL: &str = "pa7Qx%40wd%2F9Zk";

/// Pieces of the password that are the same in both forms, and occur in nothing else.
const PIECES: [&str; 2] = ["7Qx", "9Zk"];

/// URLs with mistakes, and with a password (`P`) in the right place or elsewhere.
const BAD_URLS: [&str; 25] = [
    "P",
    "u:P@127.0.0.1",
    "//u:P@127.0.0.1/",
    "redis:u:P@127.0.0.1/",
    "redis://u:P",
    "redis://u:P/",
    "redis://u:P@",
    "redis://:P@/",
    "redis://u:P@127.0.0.1:99999/",
    "redis://u:P@127.0.0.1/three",
    "redis://u:P@127.0.0.1/?db=3",
    "redis://u:P@127.0.0.1/3#P",
    "redis://127.0.0.1/?password=P",
    "redis://u:P%FF@127.0.0.1/three",
    "redis://u%FF:P@127.0.0.1/",
    "http://u:P@127.0.0.1/",
    "rediss://u:P@127.0.0.1/",
    "redis+sentinel://u:P@127.0.0.1",
    "redis+sentinel://u:P@127.0.0.1:x/m",
    "redis+sentinel://u:P@127.0.0.1/m/three",
    "rediss+sentinel://P@127.0.0.1/m",
    "redis+cluster://u:P@127.0.0.1:x,127.0.0.1",
    "redis+cluster://u:P@127.0.0.1/three",
    "rediss+cluster://P@127.0.0.1",
    "unix:///nowhere.sock?db=three&user=u&pass=P",
];

/// Prints every log line of every crate.
struct Printer;

impl Log for Printer {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        println!("{} {} {}", record.level(), record.target(), record.args());
    }

    fn flush(&self) {}
}

/// Prints a value of a public type, and the name of the type.
fn show<T: Debug>(value: &T) {
    println!("{value:?}\n{value:#?}");
    let name = type_name::<T>().split('<').next().expect("a first part");
    role::report(format!(
        "type {}",
        name.rsplit("::").next().expect("a name")
    ));
}

/// Prints an error with its sources, makes it the message of a panic, and prints its kind.
fn show_error(what: &str, error: &Error) {
    let first: &dyn StdError = error;
    let all = iter::successors(Some(first), |&error| error.source());
    all.for_each(|error| println!("{error}\n{error:?}\n{error:#?}"));
    show(error);
    let variant = format!("{error:?}");
    let variant = variant.split([' ', '{']).next().expect("a name").to_owned();
    let code = if let Error::Refused { code, .. } = error {
        code
    } else {
        ""
    };
    role::report(format!("{what}: {variant} {code}"));
    // As `expect` would show the error.
    panics(|| panic!("as the test wants it: {error:?}"));
}

fn panics(action: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(action)).expect_err("a panic, whose message is printed");
}

/// Tries a URL in every way, and prints every value and error on the way.
fn try_url(what: &str, url: &str) {
    show(&LockManager::builder(url));
    let hasty = || {
        LockManager::builder(url)
            .connect_timeout(ANSWER)
            .response_timeout(ANSWER)
    };
    show_error(what, &hasty().build().expect_err(what));
    match hasty().build_lazily() {
        Err(error) => show_error(what, &error),
        Ok(locks) => {
            show(&locks);
            let lock = locks.named("a").wait(ANSWER);
            show(&lock);
            for error in [
                lock.lock().err(),
                lock.try_lock().err(),
                lock.holder().err(),
                lock.force_unlock().err(),
            ] {
                show_error(what, &error.expect(what));
            }
        }
    }
}

/// The role of the process that prints.
pub(crate) fn spill() {
    log::set_logger(&Printer).expect("the only logger");
    log::set_max_level(LevelFilter::Trace);
    show_urls();
    show_logins();
    show_silence();
    show_sentinels();
    show_clusters();
    show(&TlsCause::Other);
    show(&SystemCause::NoThread);
    show(&SetupCause::NotInstalled);
    #[cfg(feature = "tls")]
    show_tls();
    let proxy = Proxy::start(port("good"));
    let url = url("worker", IN_URL, proxy.port());
    show_values(&url);
    show_faults(&proxy, &url);
    role::report("end");
}

fn port(name: &str) -> u16 {
    role::arg(name).parse().expect("a port")
}

fn url(user: &str, password: &str, port: u16) -> String {
    format!("redis://{user}:{password}@127.0.0.1:{port}/")
}

fn show_urls() {
    for url in BAD_URLS {
        for password in [PASSWORD, IN_URL] {
            let url = url.replace('P', password);
            show(&LockManager::builder(&url));
            for built in [
                LockManager::connect(&url),
                LockManager::builder(&url).build_lazily(),
            ] {
                // Some of these are valid URLs, though not as intended: the password is a path,
                // which does not exist.
                if let Err(error) = built {
                    show_error("a bad url", &error);
                }
            }
        }
    }
}

fn show_logins() {
    let good = port("good");
    try_url(
        "a wrong password",
        &url("worker", &format!("{IN_URL}-not"), good),
    );
    try_url("an unknown user", &url("nobody", IN_URL, good));
    try_url(
        "no password",
        &format!("redis://{IN_URL}@127.0.0.1:{good}/"),
    );
    try_url("no right", &url("nothing", IN_URL, good));
    try_url("no database", &format!("{}99", url("worker", IN_URL, good)));
    // Redis repeats the first 128 bytes of an unknown command in its error.
    try_url("no AUTH", &url("worker", IN_URL, port("unknowing")));
    try_url(
        "no AUTH",
        &url("worker", &IN_URL.repeat(20), port("unknowing")),
    );
    let proxy = Proxy::start(good);
    let url = url("worker", IN_URL, proxy.port());
    for (what, fault) in [
        (
            "an echo",
            Fault::Answer(format!("-{PASSWORD} is no command\r\n").into_bytes()),
        ),
        (
            "an echo",
            Fault::Answer(format!("-ERR worker {PASSWORD}?\r\n").into_bytes()),
        ),
        (
            "a broken answer",
            Fault::Answer(format!("{PASSWORD}?\r\n\r\n").into_bytes()),
        ),
        ("a broken answer", Fault::HalfReply),
        ("a broken answer", Fault::CutBeforeReply),
        ("no answer", Fault::DropReply),
    ] {
        proxy.clear();
        proxy.always("AUTH", fault);
        try_url(what, &url);
    }
    let echoes = FakeServer::start(|args| match args.first().map(String::as_str) {
        Some("AUTH") => say_and_close(&format!("-ERR no {}", args.join(" "))),
        _ => Reply::Bytes(Vec::new()),
    });
    try_url(
        "an echo and the end",
        &format!("redis://worker:{IN_URL}@{}/", echoes.address()),
    );
    // The login succeeds. What comes with it or later is answered with the password.
    let later = FakeServer::start(|args| match args.first().map(String::as_str) {
        None => Reply::Bytes(Vec::new()),
        Some("AUTH" | "HELLO" | "CLIENT") => Reply::Bytes(b"+OK\r\n".to_vec()),
        Some(_) => Reply::Bytes(format!("-ERR no {PASSWORD}\r\n").into_bytes()),
    });
    let later = later.address();
    try_url("a late echo", &format!("redis://worker:{IN_URL}@{later}/"));
    try_url(
        "a node's echo",
        &format!("redis+cluster://worker:{IN_URL}@{later}"),
    );
    let builder = LockManager::builder(&format!("redis+sentinel://{later}/mymaster"));
    let builder = builder
        .sentinel_login(Some("worker"), PASSWORD)
        .tolerate_outage(ANSWER);
    show_error(
        "a sentinel's echo",
        &builder.build().expect_err("no sentinel"),
    );
}

fn say_and_close(line: &str) -> Reply {
    Reply::Endless(
        format!("{line}\r\n").into_bytes(),
        b"x".to_vec(),
        Duration::ZERO,
    )
}

fn show_silence() {
    try_url("a closed port", &url("worker", IN_URL, port("closed")));
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    try_url(
        "a mute port",
        &url("worker", IN_URL, mute.local_addr().expect("bound").port()),
    );
    try_url(
        "no socket",
        &format!("unix:///nowhere.sock?user=worker&pass={IN_URL}"),
    );
}

/// Logins of sentinels, and logins from a function: wrong ones, and where nothing answers.
fn show_sentinels() {
    for (what, place) in [
        ("a sentinel's login", "good"),
        ("no sentinel", "unknowing"),
        ("no sentinel there", "closed"),
    ] {
        let url = format!(
            "redis+sentinel://worker:{IN_URL}@127.0.0.1:{}/mymaster",
            port(place)
        );
        let builder = || {
            let builder =
                LockManager::builder(&url).sentinel_login(Some("worker"), &format!("{PASSWORD}?"));
            builder.connect_timeout(LONG / 4).tolerate_outage(ANSWER)
        };
        show(&builder());
        show_error(what, &builder().build().expect_err(what));
        let locks = builder().build_lazily().expect("sends nothing");
        show_error(what, &locks.lock("a").expect_err(what));
        show(&locks);
    }
    for (what, place) in [
        ("a function's login", "good"),
        ("a function's echo", "unknowing"),
    ] {
        let builder = LockManager::builder(&format!("redis://127.0.0.1:{}/", port(place)));
        let builder = builder.credentials(|| ("worker".to_owned(), format!("{PASSWORD}?")));
        show(&builder);
        show_error(what, &builder.build().expect_err("the password is wrong"));
    }
    show(&Replicas::all());
}

/// URLs of a cluster, where there is none.
fn show_clusters() {
    let url = |password: &str, place| {
        format!(
            "redis+cluster://worker:{password}@127.0.0.1:{}",
            port(place)
        )
    };
    try_url("a cluster's login", &url(&format!("{IN_URL}-not"), "good"));
    try_url("no cluster", &url(IN_URL, "good"));
    try_url("no node there", &url(IN_URL, "closed"));
}

/// Settings with a key, right ones and wrong ones.
#[cfg(feature = "tls")]
fn show_tls() {
    use relatch::Tls;

    let read = |name| fs::read_to_string(format!("{}/{name}", role::arg("pem"))).expect("a file");
    let (certificate, key) = (read("certificate.pem"), read("key.pem"));
    let url = format!("rediss://worker:{IN_URL}@127.0.0.1:{}/", port("good"));
    let builder = |tls: Tls| {
        LockManager::builder(&url)
            .tls(tls)
            .connect_timeout(LONG / 4)
    };
    let trusting = || Tls::new().roots(certificate.as_str());
    for (what, tls) in [
        (
            "no TLS there",
            trusting().client_certificate(certificate.as_str(), key.as_str()),
        ),
        (
            "bad PEM",
            trusting().client_certificate(key.as_str(), certificate.as_str()),
        ),
        (
            "bad PEM",
            trusting().client_certificate(certificate.as_str(), &key[..key.len() / 2]),
        ),
        ("bad PEM", Tls::new().roots(key.as_str())),
        ("bad PEM", Tls::new().roots(PASSWORD)),
    ] {
        show(&tls);
        show(&builder(tls.clone()));
        show_error(what, &builder(tls).build().expect_err(what));
    }
}

fn show_moves(locks: &LockManager) {
    let handed = locks.lock("f").expect("locks").detach().expect("detaches");
    show(&handed);
    let handed = handed.attach().expect("attaches");
    let again = locks.lock("f").expect("re-enters");
    let error = again.detach().expect_err("there are two guards");
    show_error("a second guard", &error);
    let parcel = handed.hand_over().expect("hands over");
    show(&parcel);
    drop(locks.adopt(&parcel).expect("adopts"));
    show_error(
        "a used parcel",
        &locks.adopt(&parcel).expect_err("it is used up"),
    );
    show_error(
        "no parcel",
        &PASSWORD.parse::<LockParcel>().expect_err("it is none"),
    );
}

fn show_examinations(locks: &LockManager) {
    let health = locks.check(LONG);
    show(&health);
    show(&health.findings[0]);
    show(&health.findings[0].verdict);
    let survey = locks.survey(LONG);
    show(&survey);
    let surveyed = survey.flatten().next().expect("a lock is held");
    show(&surveyed.found);
    show(&surveyed);
}

fn show_replicas(url: &str) {
    let copied = LockManager::builder(url).replicas(Replicas::at_least(1), ANSWER / 4);
    show(&copied);
    show(&Replicas::at_least(1));
    let copied = copied.build().expect("connects");
    show_error(
        "no replica",
        &copied.try_lock("e").map(drop).expect_err("there is none"),
    );
}

fn show_values(url: &str) {
    let on_lost = |lost: &LostLock| {
        show(lost);
        panic!("{lost:?}");
    };
    let locks = LockManager::builder(url)
        .on_lost(on_lost)
        .build()
        .expect("connects");
    let lock = locks.named("a");
    let guard = lock.lock().expect("locks");
    show(&locks);
    show(&lock);
    show(&guard);
    show(&relatch::Owner::current());
    show(&guard.watch());
    show(&locks.held().pop().expect("held"));
    let other = LockManager::connect(url).expect("connects");
    show_moves(&locks);
    show_examinations(&locks);
    let Err(Error::WouldDeadlock { cycle, .. }) = other.lock("a") else {
        panic!("a thread waits for itself")
    };
    show(&cycle[0]);
    show(&locks.named("a").holder().expect("answers").expect("held"));
    println!(
        "{} {}",
        relatch::Owner::current(),
        locks.named("a").holder().expect("answers").expect("held")
    );
    show(&locks.stats());
    show(&locks.stats().time_waited);
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            locks
                .named("a")
                .wait(LONG / 4)
                .lock()
                .map(drop)
                .expect_err("busy")
        });
        let mut waiting = None;
        eventually(LONG, "the thread waits", || {
            waiting = locks.waiting().pop();
            waiting.is_some()
        });
        let waiting = waiting.expect("it waits");
        println!("{waiting}");
        show(&waiting);
        show_error("a wait", &busy.join().expect("no panic"));
    });
    panics(|| {
        locks
            .with_lock("b", || panic!("{locks:?}"))
            .expect("not reached");
    });
    show_error(
        "an option",
        &locks
            .named("d")
            .lease(Duration::ZERO)
            .lock()
            .expect_err("no lease"),
    );
    show_error("a key", &locks.lock("").expect_err("no key"));
    show_replicas(url);
    locks
        .named("a")
        .force_unlock()
        .expect("answers")
        .expect("held");
    show_error("a loss", &guard.verify().expect_err("lost"));
    show(&guard.watch().wait_lost(LONG).expect("lost"));
    show_error(
        "a loss around another lock",
        &locks.lock("c").expect_err("a lost lock is around it"),
    );
    drop(guard);
    let several = locks.several(["f", "g"]);
    show(&several);
    show(&locks.read_write("h", 2));
    show(&several.lock().expect("locks"));
    show(&relatch::StopHandle::new());
    show(&locks.lock("c").expect("locks").unlock().expect("unlocks"));
    show(&LockManager::in_memory().memory().expect("in memory"));
    let restore = relatch::install_for_test(LockManager::in_memory());
    show(&restore);
    drop(restore);
    show_error(
        "no manager",
        &relatch::with_lock("a", || ()).expect_err("none"),
    );
    relatch::install(locks.clone()).expect("the first");
    show(&relatch::installed().expect("installed"));
    show_error(
        "a second manager",
        &relatch::install(locks).expect_err("the second"),
    );
}

fn show_faults(proxy: &Proxy, url: &str) {
    let builder = LockManager::builder(url)
        .connect_timeout(ANSWER)
        .response_timeout(ANSWER);
    let locks = builder
        .renew_every(ANSWER)
        .tolerate_outage(ANSWER)
        .build()
        .expect("connects");
    let broken = || {
        locks
            .named("a")
            .wait(ANSWER)
            .lock()
            .map(drop)
            .expect_err("no proper answer")
    };
    let garbage = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    for fault in [
        Fault::Replace(garbage),
        Fault::HalfReply,
        Fault::DropReply,
        Fault::Answer(b":7\r\n".to_vec()),
    ] {
        proxy.always("SET", fault);
        show_error("fault", &broken());
        proxy.clear();
    }
    let take = |key: &str| -> LockGuard { locks.named(key).wait(LONG).lock().expect("locks") };
    let renewed = take("renewed");
    proxy.on("EVALSHA * 1 lock:renewed", Fault::CutBeforeReply);
    let errors = locks.stats().renewal_errors;
    eventually(LONG, "a renewal fails", || {
        locks.stats().renewal_errors > errors
    });
    drop(renewed);
    let (guard, dropped) = (take("unlocked"), take("dropped"));
    proxy.black_hole(true);
    show_error("a hole", &broken());
    show_error("a release", &guard.unlock().expect_err("no answer"));
    drop(dropped);
    proxy.black_hole(false);
}

/// A server with two users: one may lock, the other may do nothing.
fn guarded() -> Server {
    let server = Server::with(&["--requirepass", "another"]);
    for (user, rights) in [("worker", "+@all"), ("nothing", "-@all")] {
        let password = format!(">{PASSWORD}");
        server.query::<()>(&[
            "ACL", "SETUSER", user, "on", &password, "~lock:*", "&*", rights,
        ]);
    }
    server
}

/// The types that `lib.rs` exports, by name.
fn public_types() -> Vec<String> {
    let lib =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")).expect("lib.rs");
    let lines = lib.lines().filter(|line| line.starts_with("pub use"));
    let names = lines.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let is_there = |name: &&str| {
        name.starts_with(char::is_uppercase) && (*name != "Tls" || cfg!(feature = "tls"))
    };
    names.filter(is_there).map(str::to_owned).collect()
}

#[test]
fn the_password_is_never_printed() {
    let (good, unknowing) = (guarded(), Server::with(&["--rename-command", "AUTH", ""]));
    let closed = Server::start();
    closed.kill();
    let ports = [&good, &unknowing, &closed].map(|server| server.port().to_string());
    let (pem, identity) = (
        TempDir::new().expect("a folder"),
        Identity::self_signed(&["127.0.0.1"]),
    );
    for (name, text) in [
        ("certificate.pem", &identity.certificate),
        ("key.pem", &identity.key),
    ] {
        fs::write(pem.path().join(name), text).expect("a file can be written");
    }
    let pem = pem.path().to_str().expect("a printable path");
    let mut child = Worker::spawn(
        "spiller",
        &[
            ("good", &*ports[0]),
            ("unknowing", &*ports[1]),
            ("closed", &*ports[2]),
            ("pem", pem),
        ],
    );
    let printed: Vec<_> = iter::repeat_with(|| child.expect_line("", LONG))
        .take_while(|line| line != "end")
        .collect();
    assert!(child.wait(LONG).success(), "{}", child.printed());

    // The process has printed everything ...
    for expected in [
        "a bad url: InvalidOption",
        "a wrong password: Refused WRONGPASS",
        "an unknown user: Refused WRONGPASS",
        "no password: InvalidOption",
        "no right: Refused NOPERM",
        "no database: Refused ",
        "no AUTH: Refused ERR",
        "an echo: Refused ERR",
        "an echo and the end: Unavailable",
        "a late echo: Refused ERR",
        "a late echo: Unavailable",
        "a node's echo: Refused ERR",
        "a sentinel's echo: Refused ERR",
        "a broken answer: Unavailable",
        "no answer: Unavailable",
        "a closed port: Unavailable",
        "a mute port: Unavailable",
        "no socket: Unavailable",
        "a sentinel's login: Refused WRONGPASS",
        "no sentinel: Refused ERR",
        "no sentinel there: Unavailable",
        "a cluster's login: Refused WRONGPASS",
        "no cluster: Refused ",
        "no node there: Unavailable",
        "a function's login: Refused WRONGPASS",
        "a function's echo: Refused ERR",
        "a wait: Timeout",
        "no replica: Unavailable",
        "a loss: Lost",
        "a loss around another lock: OuterLost",
        "fault: Unavailable",
        "a hole: Unavailable",
        "a release: Unconfirmed",
    ] {
        assert!(
            printed.iter().any(|line| line.starts_with(expected)),
            "no {expected:?} in {printed:#?}"
        );
    }
    let types = public_types();
    assert!(types.len() > 12, "{types:?}");
    for name in types {
        assert!(
            printed.contains(&format!("type {name}")),
            "no {name} was shown"
        );
    }
    let printed = child.printed();
    for logged in [
        "DEBUG relatch::acquire taking lock \"a\"",
        "DEBUG relatch::connection 127.0.0.1:",
        "WARN relatch::keeper 1 leases were not renewed",
        "WARN relatch::release the release of lock \"dropped\" is not confirmed",
        "WARN relatch::lost lock \"a\" was lost: its key was deleted",
        "WARN relatch::force_unlock lock \"a\" was force-unlocked",
        "ERROR relatch::lost the on_lost callback panicked",
        "as the test wants it",
    ] {
        assert!(printed.contains(logged), "no {logged:?} in {printed}");
    }
    let of_log = printed.lines().filter(|line| line.contains(" relatch::"));
    assert!(!of_log.into_iter().any(|line| line.contains("EVALSHA")));
    if cfg!(feature = "tls") {
        for expected in ["no TLS there: Tls", "bad PEM: InvalidOption"] {
            assert!(printed.contains(expected), "no {expected:?} in {printed}");
        }
    }
    // ... and has printed no password, no key and no certificate.
    let of_pem =
        [&identity.certificate, &identity.key].map(|pem| pem.lines().nth(1).expect("a line"));
    let of_pem = of_pem.map(|line| &line[line.len() / 2..]);
    // As bytes are printed.
    let bytes = of_pem.map(|half| format!("{:?}", half.as_bytes()));
    let bytes = bytes.each_ref().map(|list| list.trim_matches(['[', ']']));
    let pieces = [&PIECES[..], &of_pem, &bytes].concat();
    let leaks: Vec<_> = printed
        .lines()
        .filter(|line| pieces.iter().any(|piece| line.contains(piece)))
        .collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}
