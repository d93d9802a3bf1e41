//! The beginning of a connection: the login, and what is at the other end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use relatch::{Error, LockManager};
use relatch_rig::{FakeServer, LONG, Reply, Server, SetOnDrop, eventually};

use crate::support::{ANSWER, assert_unavailable, builder, chain, renewals, server_for};

#[track_caller]
fn assert_refused(error: &Error, words: &str) {
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

/// The server answers no command of the login before it has got the last one.
#[test]
fn a_login_is_one_batch() {
    let server = FakeServer::start(|command| {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let reply = match command[..] {
            ["SELECT", "3"] => "+OK\r\n*0\r\n+OK\r\n+OK\r\n",
            ["PING"] => "+PONG\r\n",
            [] | ["AUTH", "secret"] | ["HELLO", "2"] | ["CLIENT", "SETNAME", _] => "",
            _ => "-ERR not expected here\r\n",
        };
        Reply::Bytes(reply.as_bytes().to_vec())
    });
    LockManager::connect(&format!("redis://:secret@{}/3", server.address())).expect("connects");
}

#[test]
fn connections_are_named_after_their_process() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let _guard = locks.lock("a").expect("locks");
    let clients: String = server.query(&["CLIENT", "LIST"]);
    let name = clients
        .lines()
        .find_map(|line| line.split(" name=relatch:").nth(1)?.split(' ').next());
    assert!(
        name.is_some_and(|name| name.ends_with(&format!("-{}", std::process::id()))),
        "{clients}"
    );
}

#[test]
fn a_server_without_hello_or_client_works() {
    let renamed = [
        "--rename-command",
        "HELLO",
        "",
        "--rename-command",
        "CLIENT",
        "",
    ];
    let server = Server::with(&renamed);
    let locks = LockManager::connect(&server.bare_url()).expect("connects");
    locks.with_lock("a", || ()).expect("locks");
}

#[test]
fn a_server_outside_of_a_cluster_is_refused_as_one_of_its_nodes() {
    let server = Server::start();
    let url = server.bare_url().replace("redis://", "redis+cluster://");
    let error = LockManager::connect(&url).expect_err("not a node");
    assert_refused(
        &error,
        "this server is not part of a cluster: its URL is redis://host:port",
    );
}

/// It calls itself standalone, and does not say whether it is.
#[test]
fn a_server_that_refuses_to_name_its_slots_is_not_told_to_be_outside_of_a_cluster() {
    let (_server, url) = server_for(&["~*", "&*", "+@all", "-cluster"]);
    let error =
        LockManager::connect(&url.replace("redis://", "redis+cluster://")).expect_err("no right");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "NOPERM"),
        "{error:?}"
    );
}

#[test]
fn a_node_that_knows_no_cluster_has_no_slots() {
    let server = Server::with(&["--cluster-enabled", "yes"]);
    let error = LockManager::connect(&server.bare_url()).expect_err("no slots");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        chain(&error).contains("knows no slots"),
        "{}",
        chain(&error)
    );
}

#[test]
fn too_many_clients_are_an_outage_and_not_a_missing_command() {
    let server = Server::with(&["--maxclients", "1"]);
    // The connection that found the server started may still count.
    eventually(LONG, "the test's own connection is the one", || {
        server.command(&["PING"]).is_ok()
    });
    let error = builder(&server.bare_url())
        .build()
        .expect_err("one client more");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        chain(&error).contains("max number of clients"),
        "{}",
        chain(&error)
    );
}

/// A server that ends the connection in the middle of a login may be well soon, whatever it has
/// said about the first command.
#[test]
fn a_login_that_is_cut_off_is_tried_again() {
    let cuts = AtomicUsize::new(3);
    let server = FakeServer::start(move |command| {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let cut = || {
            cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok()
        };
        match command[..] {
            [] => Reply::Bytes(Vec::new()),
            ["HELLO", "2"] => Reply::Bytes(b"-NOPERM this user has no permissions\r\n".to_vec()),
            ["CLIENT", "SETNAME", _] if cut() => Reply::Close,
            ["EVALSHA", _, _, _] => Reply::Bytes(b"$-1\r\n".to_vec()), // A look who has the lock.
            ["EVALSHA", _, _, _, token, _] => {
                Reply::Bytes(format!("${}\r\n{token}\r\n", token.len()).into())
            }
            ["EVALSHA", _, _, _, _] => Reply::Bytes(b":1\r\n".to_vec()), // A release.
            _ => Reply::Bytes(b"+OK\r\n".to_vec()),
        }
    });
    let locks = builder(&format!("redis://{}/", server.address()))
        .build_lazily()
        .expect("sends nothing");
    drop(
        locks
            .lock("a")
            .expect("the fourth connection is not cut off"),
    );
}

/// The password changes with each connection, as a token that expires does.
#[test]
fn the_provider_is_asked_for_each_connection() {
    let server = Server::start();
    let user = |password: &str| {
        let user = [
            "ACL",
            "SETUSER",
            "worker",
            "on",
            "resetpass",
            password,
            "~*",
            "&*",
            "+@all",
        ];
        server.query::<()>(&user);
    };
    let password = Arc::new(Mutex::new("first".to_owned()));
    user(">first");
    let (current, asked) = (Arc::clone(&password), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&asked);
    let builder = LockManager::builder(&server.bare_url()).credentials(move || {
        count.fetch_add(1, Ordering::SeqCst);
        ("worker".to_owned(), current.lock().clone())
    });
    let locks = builder.build().expect("connects");
    locks.with_lock("a", || ()).expect("locks");
    assert_eq!(
        (asked.load(Ordering::SeqCst), server.users()),
        (1, vec!["worker".to_owned()])
    );
    let cut = || {
        for id in server.clients_with("user=worker") {
            server.query::<()>(&["CLIENT", "KILL", "ID", &id.to_string()]);
        }
    };
    cut();
    locks.with_lock("a", || ()).expect("logs in once more");
    assert!(
        asked.load(Ordering::SeqCst) > 1,
        "also for a password that is still right"
    );
    user(">second");
    cut();
    let error = locks.lock("a").expect_err("the password is old");
    assert_refused(&error, "WRONGPASS");
    "second".clone_into(&mut password.lock());
    locks
        .with_lock("a", || ())
        .expect("logs in with the new password");
}

/// The first calls after the connections are gone, of whatever threads, do not return.
#[test]
fn a_provider_that_stands_still_costs_no_hold() {
    let server = Server::start();
    let (stands, goes_on) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (standing, end) = (Arc::clone(&stands), Arc::clone(&goes_on));
    let lease = Duration::from_secs(3);
    let builder = builder(&server.bare_url())
        .lease(lease)
        .renew_every(lease / 30);
    let builder = builder.credentials(move || {
        let less = |it: usize| it.checked_sub(1);
        if standing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .is_ok()
        {
            eventually(10 * LONG, "the test is done", || end.load(Ordering::SeqCst));
        }
        ("worker".to_owned(), "password".to_owned())
    });
    let user = [
        "ACL",
        "SETUSER",
        "worker",
        "on",
        ">password",
        "~*",
        "&*",
        "+@all",
    ];
    server.query::<()>(&user);
    let _goes_on = SetOnDrop(&goes_on);
    let locks = builder.build().expect("connects");
    let guard = locks.lock("a").expect("locks");
    eventually(LONG, "it is renewed", || renewals(&locks, "a") > 0);
    stands.store(3, Ordering::SeqCst);
    for id in server.clients_with("user=worker") {
        server.query::<()>(&["CLIENT", "KILL", "ID", &id.to_string()]);
    }
    let before = renewals(&locks, "a");
    eventually(LONG, "it is renewed for longer than the lease", || {
        renewals(&locks, "a") > before + 40
    });
    assert_eq!(stands.load(Ordering::SeqCst), 0, "nobody has asked");
    assert!(guard.is_valid());
}

#[test]
fn a_provider_that_panics_is_an_outage() {
    let server = Server::start();
    let builder = builder(&server.bare_url()).credentials(|| panic!("expected here: no token"));
    let locks = builder.build_lazily().expect("sends nothing");
    let taken = locks.named("a").try_lock_for(ANSWER);
    assert_unavailable(&taken);
    let error = chain(&taken.expect_err("just looked"));
    assert!(
        error.contains("credentials panicked") && !error.contains("token"),
        "{error}"
    );
}

#[test]
fn a_password_in_the_url_and_a_provider_contradict_each_other() {
    let builder = LockManager::builder("redis://:secret@127.0.0.1/");
    let error = builder
        .credentials(|| (String::new(), String::new()))
        .build()
        .expect_err("which one?");
    assert!(
        matches!(
            error,
            Error::InvalidOption {
                option: "credentials",
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn the_url_names_the_database() {
    let server = Server::start();
    let url = server.bare_url();
    let locks =
        LockManager::connect(&format!("{}/3", url.trim_end_matches('/'))).expect("connects");
    let _guard = locks.lock("a").expect("locks");
    assert_eq!(server.get("lock:a"), None);
    assert_eq!(server.clients_with("db=3").len(), 1);
}

#[test]
fn settings_of_sentinels_need_sentinels() {
    let builder = LockManager::builder("redis://127.0.0.1/").sentinel_login(None, "secret");
    let error = builder.build_lazily().expect_err("no sentinels");
    assert!(
        matches!(
            error,
            Error::InvalidOption {
                option: "sentinel_login",
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!error.to_string().contains("secret"), "{error}");
}
