//! The beginning of a connection: the login, and what is at the other end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use relatch::{Error, LockManager};
use relatch_rig::{FakeServer, Reply, Server};

use crate::support::{SOON, assert_unavailable, chain, server_for, unhurried};

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
    let builder = unhurried(&format!("redis://:secret@{}/3", server.address()));
    builder.build().expect("connects");
}

#[test]
fn connections_are_named_after_their_process_and_use_the_database_of_the_url() {
    let server = Server::start();
    let url = format!("{}/3", server.bare_url().trim_end_matches('/'));
    let locks = LockManager::connect(&url).expect("connects");
    let _guard = locks.lock("a").expect("locks");
    let clients: String = server.query(&["CLIENT", "LIST"]);
    let mut clients = clients.lines().filter(|line| line.contains(" db=3 "));
    let process = format!("-{} ", std::process::id());
    assert!(clients.all(|it| it.contains(" name=relatch:") && it.contains(&process)));
    assert_eq!(server.get("lock:a"), None, "in another database");
}

#[test]
fn a_server_without_hello_or_client_works() {
    let renamed = ["HELLO", "CLIENT"].map(|name| ["--rename-command", name, ""]);
    let server = Server::with(renamed.as_flattened());
    let locks = LockManager::connect(&server.bare_url()).expect("connects");
    locks.with_lock("a", || ()).expect("locks");
}

/// A server without the right to say so is not told to be outside of a cluster, and a node that
/// knows no cluster has no slots.
#[test]
fn a_server_outside_of_a_cluster_is_refused_as_one_of_its_nodes() {
    let as_node = |url: &str| {
        let url = url.replace("redis://", "redis+cluster://");
        LockManager::connect(&url).expect_err("no cluster")
    };
    let server = Server::start();
    assert_refused(
        &as_node(&server.bare_url()),
        "this server is not part of a cluster: its URL is redis://host:port",
    );
    let (_server, url) = server_for(&["~*", "&*", "+@all", "-cluster"]);
    assert_refused(&as_node(&url), "NOPERM");
    let alone = Server::with(&["--cluster-enabled", "yes"]);
    let error = as_node(&alone.bare_url());
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = chain(&error);
    assert!(text.contains("knows no slots"), "{text}");
}

/// The password changes with each connection, as a token that expires does.
#[test]
fn the_provider_is_asked_for_each_connection() {
    let server = Server::start();
    let set_password = |password: &str| {
        let rights = [">", password].concat();
        let user = ["on", "resetpass", &rights, "~*", "&*", "+@all"];
        server.query::<()>(&[&["ACL", "SETUSER", "worker"][..], &user].concat());
    };
    let password = Arc::new(Mutex::new("first".to_owned()));
    set_password("first");
    let (current, asked) = (Arc::clone(&password), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&asked);
    let builder = LockManager::builder(&server.bare_url()).credentials(move || {
        count.fetch_add(1, Ordering::SeqCst);
        ("worker".to_owned(), current.lock().clone())
    });
    let locks = builder.build().expect("connects");
    locks.with_lock("a", || ()).expect("locks");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    set_password("second");
    for id in server.clients_with("user=worker") {
        server.query::<()>(&["CLIENT", "KILL", "ID", &id.to_string()]);
    }
    let error = locks.lock("a").expect_err("the password is old");
    assert_refused(&error, "WRONGPASS");
    "second".clone_into(&mut password.lock());
    locks
        .with_lock("a", || ())
        .expect("logs in with the new password");
}

#[test]
fn a_provider_that_panics_is_an_outage() {
    let server = Server::start();
    let builder = unhurried(&server.bare_url()).credentials(|| panic!("expected here: no token"));
    let locks = builder.build_lazily().expect("sends nothing");
    let taken = locks.named("a").try_lock_for(SOON);
    assert_unavailable(&taken);
    let error = chain(&taken.expect_err("just looked"));
    assert!(
        error.contains("credentials panicked") && !error.contains("token"),
        "{error}"
    );
}

#[test]
fn logins_that_contradict_each_other_are_refused() {
    let two = LockManager::builder("redis://:secret@127.0.0.1/")
        .credentials(|| (String::new(), String::new()));
    let no_sentinels = LockManager::builder("redis://127.0.0.1/").sentinel_login(None, "secret");
    for (builder, wanted) in [(two, "credentials"), (no_sentinels, "sentinel_login")] {
        let error = builder.build_lazily().expect_err(wanted);
        let is_it = matches!(error, Error::InvalidOption { option, .. } if option == wanted);
        assert!(is_it, "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
