//! Options, keys and addresses that cannot work, and unusual ones that work.

use std::error::Error as StdError;
use std::io::{Read, Write};
use std::iter;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Builder, Error, LockManager, Unlocked};
use relatch_rig::{LONG, Proxy, Server, Worker, eventually, role, within};

use crate::support::connect;

/// The limit of a wait that ends without the lock.
const WAIT: Duration = Duration::from_millis(300);

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(3);

/// A password that must never be seen.
const CANARY: &str = "canary7Qx";

const HOUR: Duration = Duration::from_secs(3600);

/// All that an error and its sources display, to users and to developers.
fn everything(error: &Error) -> String {
    let first: &dyn StdError = error;
    let all = iter::successors(Some(first), |&error| error.source());
    all.map(|error| format!("{error}\n{error:?}\n{error:#?}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[track_caller]
fn assert_names_option(error: &Error, name: &str, shown: &str) {
    assert!(
        matches!(error, Error::InvalidOption { option, .. } if *option == name),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("`{name}`")) && text.contains(shown),
        "{text}"
    );
}

#[test]
fn row_35_impossible_leases_are_refused_and_nothing_is_sent() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    let sent = proxy.log().len();
    let cases = [
        Duration::ZERO,
        Duration::from_micros(500),
        Duration::from_micros(9999),
        25 * HOUR,
        Duration::MAX,
    ];
    for lease in cases {
        let lock = locks.named("a").lease(lease);
        let shown = format!("{lease:?}");
        for refused in [
            lock.lock().map(Some),
            lock.try_lock(),
            lock.try_lock_for(WAIT),
        ] {
            assert_names_option(&refused.expect_err("refused"), "lease", &shown);
        }
        assert_names_option(
            &lock.with_lock(|| unreachable!()).expect_err("refused"),
            "lease",
            &shown,
        );
        let built = LockManager::builder(&proxy.url()).lease(lease).build();
        assert_names_option(&built.expect_err("refused"), "lease", &shown);
    }
    assert_eq!(proxy.log().len(), sent);
    assert_eq!(proxy.connections_accepted(), 1);
}

#[test]
fn row_35_the_shortest_and_the_longest_lease_work() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks.named("long").lease(24 * HOUR).lock().expect("locks");
    assert!(server.pttl("lock:long") > 86_000_000);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    // If the lease of 10 ms ends before the answer arrives, `lock` tries again.
    let guard = locks
        .named("short")
        .lease(Duration::from_millis(10))
        .renew(false)
        .wait(LONG)
        .lock()
        .expect("locks");
    assert!(guard.remaining() <= Duration::from_millis(8));
    eventually(LONG, "the key expires", || !server.exists("lock:short"));
    assert!(!guard.is_valid());
    drop(guard);
    let raised = LockManager::builder(&server.url())
        .max_lease(48 * HOUR)
        .build()
        .expect("connects");
    drop(
        raised
            .named("longer")
            .lease(25 * HOUR)
            .lock()
            .expect("below the raised cap"),
    );
}

#[test]
fn row_35_impossible_settings_are_refused_and_nothing_is_sent() {
    type Change = fn(Builder) -> Builder;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let cases: [(&str, &str, Change); 9] = [
        ("pool_size", "0", |it| it.pool_size(0)),
        ("connect_timeout", "0ns", |it| {
            it.connect_timeout(Duration::ZERO)
        }),
        ("connect_timeout", "2h", |it| {
            it.connect_timeout(Duration::MAX)
        }),
        ("response_timeout", "0ns", |it| {
            it.response_timeout(Duration::ZERO)
        }),
        ("response_timeout", "500µs", |it| {
            it.response_timeout(Duration::from_micros(500))
        }),
        ("response_timeout", "", |it| {
            it.response_timeout(Duration::MAX)
        }),
        ("poll_every", "999µs", |it| {
            it.poll_every(Duration::from_micros(999))
        }),
        ("max_lease", "0ns", |it| it.max_lease(Duration::ZERO)),
        ("max_lease", "", |it| it.max_lease(Duration::MAX)),
    ];
    for (option, shown, change) in cases {
        let shown = if shown == "2h" {
            "18446744073709551615"
        } else {
            shown
        };
        let built = change(LockManager::builder(&proxy.url())).build();
        assert_names_option(&built.expect_err(option), option, shown);
        let unchecked = change(LockManager::builder(&proxy.url())).build_lazily();
        assert_names_option(&unchecked.expect_err(option), option, shown);
    }
    assert_eq!(proxy.connections_accepted(), 0);
}

#[test]
fn row_35_the_longest_wait_is_a_wait() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    let held = theirs.lock("a").expect("locks");
    thread::scope(|scope| {
        let waiters = [
            scope.spawn(|| ours.named("a").wait(Duration::MAX).lock().map(drop)),
            scope.spawn(|| {
                ours.named("a")
                    .try_lock_for(Duration::MAX)
                    .map(|it| drop(it.expect("not busy for ever")))
            }),
        ];
        server.reset_stats();
        eventually(LONG, "the waiters wait", || server.calls("set") > 2);
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        drop(held);
        for waiter in waiters {
            waiter.join().expect("no panic").expect("locks");
        }
    });
}

#[test]
fn row_35_a_wait_of_zero_is_one_attempt() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    let free = ours.named("a").wait(Duration::ZERO);
    drop(free.lock().expect("the lock is free"));
    thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(theirs.lock("a").expect("locks")));
    });
    server.reset_stats();
    let error = within(SLACK, "one attempt", || free.lock()).expect_err("busy");
    assert!(
        matches!(
            &error,
            Error::Timeout {
                holder: Some(_),
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(server.calls("set"), 1);
    let tried = within(SLACK, "one attempt", || {
        ours.named("a").try_lock_for(Duration::ZERO)
    });
    assert!(tried.expect("answers").is_none());
    assert_eq!(server.calls("set"), 2);
}

#[test]
fn row_35_a_wait_does_not_spin() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(theirs.lock("a").expect("locks")));
    });
    server.reset_stats();
    let start = Instant::now();
    assert!(
        ours.named("a")
            .try_lock_for(WAIT)
            .expect("answers")
            .is_none()
    );
    assert!(start.elapsed() >= WAIT);
    let tries = server.calls("set");
    assert!((3..=25).contains(&tries), "{tries} attempts in {WAIT:?}");
}

#[test]
fn row_35_a_wait_works_though_no_outage_is_tolerated() {
    let server = Server::start();
    let ours = LockManager::builder(&server.url())
        .tolerate_outage(Duration::ZERO)
        .build()
        .expect("connects");
    let held = connect(&server).lock("a").expect("locks");
    thread::scope(|scope| {
        server.reset_stats();
        let waiter = scope.spawn(|| ours.lock("a").map(drop));
        eventually(LONG, "the waiter waits", || server.calls("set") > 2);
        drop(held);
        waiter.join().expect("no panic").expect("locks");
    });
    server.kill();
    let error = within(2 * SLACK, "lock", || ours.lock("a")).expect_err("gone");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn row_36_keys_are_sent_byte_for_byte() {
    let server = Server::start();
    let locks = connect(&server);
    let longest = "k".repeat(64 * 1024);
    for key in [
        "a",
        " ",
        "with\nnewline\r\n",
        "with\0nul",
        "\u{1f512} schl\u{fc}ssel",
        "{tag}:*?[]",
        "../..",
        &longest,
    ] {
        let guard = locks.lock(key).expect("locks");
        assert_eq!(guard.key(), key);
        assert_eq!(
            server.get(&format!("lock:{key}")).as_deref(),
            Some(guard.token()),
            "{key:?}"
        );
        assert_eq!(
            locks
                .named(key)
                .holder()
                .expect("answers")
                .expect("somebody")
                .owner()
                .as_ref(),
            Some(&relatch::Owner::current())
        );
        assert_eq!(server.query::<i64>(&["DBSIZE"]), 1);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
    }
}

#[test]
fn row_36_impossible_keys_are_refused_and_nothing_is_sent() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    let sent = proxy.log().len();
    let too_long = "k".repeat(65 * 1024);
    for key in ["", &too_long] {
        let errors = [
            locks.lock(key).expect_err("lock"),
            locks.try_lock(key).expect_err("try_lock"),
            locks
                .named(key)
                .try_lock_for(WAIT)
                .expect_err("try_lock_for"),
            locks
                .with_lock(key, || unreachable!())
                .expect_err("with_lock"),
            locks.named(key).holder().expect_err("holder"),
            locks.named(key).force_unlock().expect_err("force_unlock"),
        ];
        for error in errors {
            assert!(
                matches!(error, Error::InvalidKey { length, .. } if length == key.len()),
                "{error:?}"
            );
            assert!(
                error.to_string().contains(&key.len().to_string()),
                "{error}"
            );
            assert!(
                error.to_string().len() < 200,
                "the key itself is not repeated"
            );
        }
    }
    assert_eq!(proxy.log().len(), sent);
}

#[test]
fn an_impossible_url_is_refused_and_its_password_is_not_shown() {
    for url in [
        String::new(),
        CANARY.to_owned(),
        format!("http://user:{CANARY}@127.0.0.1/"),
        format!("redis://user:{CANARY}@127.0.0.1/three"),
        format!("redis://user:{CANARY}@127.0.0.1/?db=3"),
        format!("redis://user:{CANARY}@127.0.0.1:99999/"),
        format!("rediss://user:{CANARY}@127.0.0.1:99999/"),
        format!("redis://:{CANARY}@/"),
    ] {
        for result in [
            LockManager::connect(&url),
            LockManager::builder(&url).build_lazily(),
        ] {
            let error = result.expect_err(&url);
            assert_names_option(&error, "url", "");
            assert!(!everything(&error).contains(CANARY), "{error:?}");
        }
        let builder = format!("{:?}", LockManager::builder(&url));
        assert!(!builder.contains(CANARY), "{builder}");
    }
}

#[test]
fn a_password_that_was_not_escaped_is_not_shown() {
    // A slash ends the address part of a URL, so the rest of the password looks like a path.
    for url in [
        format!("redis://user:/{CANARY}@127.0.0.1/"),
        format!("redis://user:12/{CANARY}@127.0.0.1/"),
        format!("redis://user:12/{CANARY}@127.0.0.1/3?x=y"),
    ] {
        let error = LockManager::connect(&url).expect_err(&url);
        assert_names_option(&error, "url", "");
        assert!(!everything(&error).contains(CANARY), "{error}");
    }
}

#[test]
fn a_wrong_login_is_refused_and_the_password_is_not_shown() {
    let server = Server::with(&["--requirepass", "right"]);
    let at = format!("127.0.0.1:{}", server.port());
    for (login, code) in [
        (format!(":{CANARY}"), "WRONGPASS"),
        (format!("nobody:{CANARY}"), "WRONGPASS"),
    ] {
        let error = LockManager::connect(&format!("redis://{login}@{at}/")).expect_err("refused");
        assert!(
            matches!(&error, Error::Refused { code: is, .. } if is == code),
            "{error:?}"
        );
        assert!(
            error.to_string().contains(&at) && !everything(&error).contains(CANARY),
            "{error:?}"
        );
        let late = LockManager::builder(&format!("redis://{login}@{at}/"))
            .build_lazily()
            .expect("builds");
        let lock = late.named("a");
        let error = lock.lock().expect_err("refused");
        assert!(
            error.to_string().contains(&at) && !everything(&error).contains(CANARY),
            "{error:?}"
        );
        assert!(!format!("{late:#?}{lock:#?}").contains(CANARY));
    }
    let error = LockManager::connect(&format!("redis://{at}/")).expect_err("refused");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "NOAUTH"),
        "{error:?}"
    );
    assert!(error.to_string().contains(&at), "{error}");
}

#[test]
fn a_database_that_does_not_exist_is_refused() {
    let server = Server::start();
    let error = LockManager::connect(&format!("{}99", server.bare_url())).expect_err("refused");
    assert!(
        matches!(&error, Error::Refused { message, .. } if message.contains("DB")),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains(&format!("127.0.0.1:{}", server.port())),
        "{error}"
    );
    let third = LockManager::connect(&format!("{}3", server.bare_url())).expect("connects");
    let _guard = third.lock("a").expect("locks");
    assert!(!server.exists("lock:a"), "the key is in the first database");
    let info: String = server.query(&["INFO", "keyspace"]);
    assert!(info.contains("db3:keys=1"), "{info}");
}

/// Connects to `port`, and returns the error, which has to be `Unavailable`.
#[track_caller]
fn unavailable_at(port: u16) -> Error {
    let url = format!("redis://:{CANARY}@127.0.0.1:{port}/");
    let builder = LockManager::builder(&url)
        .connect_timeout(WAIT)
        .response_timeout(WAIT);
    let error = within(WAIT + SLACK, "connecting", || builder.build()).expect_err("no Redis");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
    assert!(!everything(&error).contains(CANARY), "{error:?}");
    error
}

#[test]
fn a_closed_port_is_unavailable() {
    let server = Server::start();
    server.kill();
    let error = unavailable_at(server.port());
    assert!(
        everything(&error).to_lowercase().contains("refused"),
        "{error:?}"
    );
}

#[test]
fn a_port_that_never_answers_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let error = unavailable_at(listener.local_addr().expect("bound").port());
    assert!(
        error.to_string().ends_with(": there was no answer in time"),
        "{error}"
    );
}

/// Checks that connecting fails with `Unavailable` at a port that treats its first connection as
/// `treat` does.
fn unavailable_behind(treat: fn(TcpStream)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::scope(|scope| {
        scope.spawn(|| treat(listener.accept().expect("a client").0));
        unavailable_at(port);
    });
}

#[test]
fn a_port_that_closes_is_unavailable() {
    unavailable_behind(drop);
}

#[test]
fn a_web_server_is_unavailable() {
    unavailable_behind(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new()); // Until the client has left.
    });
}

#[test]
fn the_address_can_come_from_the_environment() {
    let server = Server::start();
    let (url, elsewhere) = (server.url(), "redis://127.0.0.1:1/".to_owned());
    let cases = [
        (Some(&*url), None),
        (None, Some(&*url)),
        (Some(&*url), Some(&*elsewhere)),
        (Some(""), Some(&*url)),
    ];
    for (number, (relatch_url, redis_url)) in cases.into_iter().enumerate() {
        assert_eq!(
            connected_by(relatch_url, redis_url),
            "locked",
            "case {number}"
        );
    }
    let wanted = "no address of Redis: set the environment variable RELATCH_URL or REDIS_URL";
    assert_eq!(connected_by(None, None), wanted);
    assert!(connected_by(None, Some(&elsewhere)).contains("unavailable"));
    let not_utf8 = [
        "sh",
        "-c",
        "RELATCH_URL=$(printf '\\377') REDIS_URL=redis:// exec \"$@\"",
        "sh",
    ];
    let told = Worker::spawn_under(&not_utf8, "from env", &[]).expect_line("", LONG);
    assert!(
        told.contains("`RELATCH_URL`") && told.contains("not UTF-8"),
        "{told}"
    );
}

/// What a process reports that connects with these variables.
fn connected_by(relatch_url: Option<&str>, redis_url: Option<&str>) -> String {
    let variables = [("RELATCH_URL", relatch_url), ("REDIS_URL", redis_url)];
    let settings = variables.map(|(name, url)| url.map(|url| format!("{name}={url}")));
    let unset = ["env", "-u", "RELATCH_URL", "-u", "REDIS_URL"].map(str::to_owned);
    let launcher: Vec<_> = unset
        .into_iter()
        .chain(settings.into_iter().flatten())
        .collect();
    let launcher: Vec<_> = launcher.iter().map(String::as_str).collect();
    Worker::spawn_under(&launcher, "from env", &[]).expect_line("", LONG)
}

/// The process of [`connected_by`].
pub(crate) fn connect_as_told() {
    let locked = Builder::from_env().build().and_then(|locks| {
        let _held = locks.lock("a")?;
        // With another prefix, it is another lock.
        Builder::from_env()
            .prefix("lock:other:")
            .build()?
            .lock("a")
            .map(drop)
    });
    role::report(locked.map_or_else(|error| error.to_string(), |()| "locked".to_owned()));
}
