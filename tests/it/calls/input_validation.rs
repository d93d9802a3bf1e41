//! Options, keys and addresses that cannot work, and unusual ones that work.

use std::time::Duration;

use relatch::{Builder, Error, LockManager, Unlocked};
use relatch_rig::{LONG, Proxy, Server, Worker, role};

use crate::support::PERIOD;

#[track_caller]
fn assert_names_option<T>(refused: Result<T, Error>, name: &str, shown: &str) {
    let error = refused.map(drop).expect_err("refused");
    assert!(
        matches!(&error, Error::InvalidOption { option, .. } if *option == name),
        "{error:?}"
    );
    let text = error.to_string();
    let parts = [&*format!("`{name}`"), shown];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

/// Which values cannot work: unit tests of `base::options`.
#[test]
fn row_35_impossible_options_are_refused_and_nothing_is_sent() {
    type Change = fn(Builder) -> Builder;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    let sent = proxy.log().len();
    for lease in [Duration::ZERO, Duration::from_secs(25 * 3600)] {
        let lock = locks.named("a").lease(lease);
        let shown = format!("{lease:?}");
        for refused in [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.try_lock_for(PERIOD).map(drop),
            lock.with_lock(|| unreachable!()),
        ] {
            assert_names_option(refused, "lease", &shown);
        }
    }
    let cases: [(&str, &str, Change); 4] = [
        ("lease", "0ns", |it| it.lease(Duration::ZERO)),
        ("pool_size", "0", |it| it.pool_size(0)),
        ("response_timeout", "500µs", |it| {
            it.response_timeout(Duration::from_micros(500))
        }),
        ("max_lease", "", |it| it.max_lease(Duration::MAX)),
    ];
    for (option, shown, change) in cases {
        let changed = || change(LockManager::builder(&proxy.url()));
        assert_names_option(changed().build(), option, shown);
        assert_names_option(changed().build_lazily(), option, shown);
    }
    assert_eq!(proxy.log().len(), sent);
    assert_eq!(proxy.connections_accepted(), 1);
}

#[test]
fn row_36_keys_are_sent_byte_for_byte() {
    let server = Server::start();
    let longest = "k".repeat(64 * 1024);
    let keys = [
        "a",
        " ",
        "with\nnewline\r\n",
        "with\0nul",
        "\u{1f512} schl\u{fc}ssel",
        "{tag}:*?[]",
        "../..",
        &longest,
    ];
    for prefix in ["lock:", "", "\u{1f512}"] {
        let builder = LockManager::builder(&server.bare_url()).prefix(prefix);
        let locks = builder.build().expect("connects");
        for key in keys.iter().filter(|it| prefix == "lock:" || it.len() < 9) {
            let guard = locks.lock(*key).expect("locks");
            assert_eq!(guard.key(), *key);
            let stored = server.get(&format!("{prefix}{key}"));
            assert_eq!(stored.as_deref(), Some(guard.token()), "{key:?}");
            let holder = locks.named(*key).holder().expect("answers");
            assert_eq!(holder.expect("this one").raw, guard.token());
            assert_eq!(server.query::<i64>(&["DBSIZE"]), 1);
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
        }
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
        let lock = locks.named(key);
        for refused in [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.try_lock_for(PERIOD).map(drop),
            lock.with_lock(|| unreachable!()),
            lock.holder().map(drop),
            lock.force_unlock().map(drop),
        ] {
            let error = refused.expect_err("refused");
            assert!(
                matches!(error, Error::InvalidKey { length, .. } if length == key.len()),
                "{error:?}"
            );
            assert!(error.to_string().len() < 200, "the key is not repeated");
        }
    }
    assert_eq!(proxy.log().len(), sent);
}

#[test]
fn a_login_or_a_database_that_is_refused_is_told_with_the_server() {
    let server = Server::with(&["--requirepass", "right"]);
    let at = format!("127.0.0.1:{}", server.port());
    for (url, wanted) in [
        (format!("redis://{at}/"), "NOAUTH"),
        (format!("redis://:wrong@{at}/"), "WRONGPASS"),
        (format!("redis://:right@{at}/99"), "DB"),
    ] {
        let error = LockManager::connect(&url).expect_err("refused");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&at) && text.contains(wanted), "{text}");
    }
    let third = LockManager::connect(&format!("redis://:right@{at}/3"));
    let _guard = third.expect("connects").lock("a").expect("locks");
    let info: String = server.query(&["INFO", "keyspace"]);
    assert!(info.contains("db3:keys=1"), "{info}");
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
