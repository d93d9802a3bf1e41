//! Sentinel: the master dies, hangs or is replaced, and what sentinels and their users may say.

use std::thread;
use std::time::{Duration, Instant};

use relatch::{Builder, Error, LockManager, LostCause, Replicas, Unlocked};
use relatch_rig::{
    LONG, MASTER, Proxy, Sentinels, Server, Setup, Worker, compile_preload, eventually, rights,
    within,
};
use tempfile::TempDir;

use crate::support::{
    ANSWER, MINUTE, SOON, assert_lost, before_the_demotion, chain, renewals, take, unhurried,
    until_tracked,
};

/// A manager that waits through a failover, and whose leases outlast it. It has time for an answer
/// on a busy machine.
pub(crate) fn patient(url: &str) -> Builder {
    LockManager::builder(url)
        .connect_timeout(2 * SOON)
        .response_timeout(2 * SOON)
        .tolerate_outage(LONG)
        .lease(MINUTE)
        .renew_every(Duration::from_millis(500))
}

/// Tries until the servers answer: a busy machine may take longer than the connect timeout.
pub(crate) fn connected(build: impl Fn() -> Result<LockManager, Error>) -> LockManager {
    let mut built = None;
    eventually(LONG, "it connects", || {
        built = build().ok();
        built.is_some()
    });
    built.expect("connected")
}

/// Sentinels that take no master for dead, however busy the machine is.
fn calm() -> Setup {
    Setup {
        replicas: 0,
        down_after: LONG,
        ..Setup::default()
    }
}

/// How many connections of managers a server has.
fn clients_of(server: &Server) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST"]);
    let clients = clients.lines();
    clients.filter(|it| it.contains(" name=relatch:")).count()
}

/// The connections that wait for the reports of a sentinel.
fn subscribers(sentinels: &Sentinels) -> Vec<u64> {
    (0..3)
        .flat_map(|place| sentinels.sentinel(place).clients_with("sub=3"))
        .collect()
}

/// An array of strings, as a server sends it.
pub(crate) fn array(parts: &[&str]) -> String {
    let parts: Vec<_> = parts
        .iter()
        .map(|part| format!("${}\r\n{part}\r\n", part.len()))
        .collect();
    format!("*{}\r\n{}", parts.len(), parts.concat())
}

/// A hold of one manager, and the wait of another, which sleeps until an invalidation wakes it. The
/// sentinel of the URL dies as well. No replica has the lock that was taken last.
#[test]
fn a_hold_and_a_wait_survive_the_death_of_the_master() {
    let sentinels = Sentinels::with(Setup {
        tls: cfg!(feature = "tls"),
        ..Setup::default()
    });
    let build = || {
        let builder = patient(&sentinels.url_with(&[sentinels.sentinel(0).port()]))
            .renew_every(MINUTE / 3)
            .poll_every(LONG);
        #[cfg(feature = "tls")]
        let builder = builder
            .tls(relatch::Tls::new().roots(sentinels.roots()))
            .sentinel_tls(None);
        builder.build()
    };
    let (locks, others) = (connected(build), connected(build));
    let guard = locks.lock("a").expect("locks");
    sentinels.until_in_sync();
    (1..3).for_each(|it| sentinels.cut_off(it));
    let lost = locks.lock("b").expect("locks");
    lost.set_lease(MINUTE).expect("extends");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&others, "a"));
        eventually(LONG, "the waiter waits", || others.stats().waited > 0);
        sentinels.sentinel(0).kill();
        sentinels.server(0).kill();
        let master = sentinels.until_replaced(0);
        let cause = within(LONG / 2, "the news of the loss", || {
            lost.watch().wait_lost(LONG)
        });
        assert_eq!(cause, Some(LostCause::Deleted));
        assert_lost(&lost.unlock(), LostCause::Deleted);
        eventually(LONG, "the hold is at the new master", || {
            guard.verify().is_ok()
        });
        let kept = sentinels.server(master).get("lock:a");
        assert_eq!(kept.as_deref(), Some(guard.token()));
        assert!(guard.is_valid() && !waiter.is_finished() && renewals(&locks, "a") > 0);
        until_tracked(sentinels.server(master), 1);
        let released = Instant::now();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        let woken = waiter.join().expect("no panic") - released;
        assert!(woken < 5 * SOON, "{woken:?}");
    });
}

/// The rights that a user needs at the sentinels, read from the command in docs/engines.md.
fn rights_at_sentinels() -> Vec<&'static str> {
    let page = include_str!("../../../docs/engines.md");
    let mut lines = page.lines();
    let rights = lines.find_map(|line| line.strip_prefix("ACL SETUSER locks on >password "));
    let rights = rights.expect("docs/engines.md says how the user is made");
    rights.split(' ').collect()
}

/// Gives each sentinel a user with these rights. Returns the builder of a manager that logs in so.
fn with_rights(sentinels: &Sentinels, rights: &[&str]) -> Builder {
    for place in 0..3 {
        let user = ["ACL", "SETUSER", "watcher", "reset", "on", ">canary"];
        let sentinel = sentinels.sentinel(place);
        sentinel.query::<()>(&[&user, rights].concat());
    }
    patient(&sentinels.url()).sentinel_login(Some("watcher"), "canary")
}

/// The user has the least rights at the sentinels.
#[test]
fn after_a_planned_failover_nothing_goes_to_the_old_master() {
    before_the_demotion(nothing_goes_to_the_old_master);
}

/// False if the old master was demoted too soon.
fn nothing_goes_to_the_old_master() -> bool {
    let sentinels = Sentinels::with(Setup {
        demoted_after: Duration::from_secs(8),
        ..Setup::default()
    });
    let build = || with_rights(&sentinels, &rights_at_sentinels()).build();
    let locks = connected(build);
    let guard = locks.lock("held").expect("locks");
    sentinels.until_in_sync();
    eventually(LONG, "it subscribes", || {
        !subscribers(&sentinels).is_empty()
    });
    // The first sentinel, from which the manager gets reports, leads the failover. It reports the
    // switch late, when all replicas follow the new master.
    let master = sentinels.fail_over();
    eventually(LONG, "the old master has no client", || {
        clients_of(sentinels.server(0)) == 0
    });
    sentinels.server(0).reset_stats();
    for key in 0..50 {
        locks.with_lock(format!("{key}"), || {}).expect("runs");
    }
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    let old = sentinels.server(0);
    let sent = old.total_calls(&["set", "get", "evalsha", "eval"]);
    if !sentinels.is_master(0) {
        return false;
    }
    assert_eq!(sent, 0);
    assert!(sentinels.server(master).calls("set") >= 50);
    for place in 0..3 {
        let refused = sentinels.sentinel(place).refused();
        assert!(refused.is_empty(), "{refused:?}");
    }
    true
}

#[test]
fn without_the_channels_a_switch_is_noticed_when_the_old_master_is_demoted_or_fails() {
    let sentinels = Sentinels::start();
    let is_for_reports = |right: &&str| right.starts_with('&') || *right == "+subscribe";
    let rights = rights_at_sentinels().into_iter();
    let others: Vec<_> = rights.filter(|it| !is_for_reports(it)).collect();
    let locks = connected(|| with_rights(&sentinels, &others).build());
    let guard = locks.lock("held").expect("locks");
    sentinels.until_in_sync();
    eventually(LONG, "the right to subscribe is missing", || {
        let refused = (0..3).flat_map(|place| sentinels.sentinel(place).refused());
        refused.into_iter().any(|(_, what)| what == "subscribe")
    });
    let is_used = |name: &str, master: usize| {
        let taken = locks.named(name).try_lock_for(LONG);
        let other = taken.expect("a master answers").expect("a free lock");
        let found = sentinels.server(master).get(&format!("lock:{name}"));
        assert_eq!(found.as_deref(), Some(other.token()));
        guard.verify().expect("the key was replicated");
    };
    let master = sentinels.fail_over();
    sentinels.until_in_sync(); // Now the old master is a replica.
    is_used("a", master);
    sentinels.until_in_sync();
    sentinels.server(master).pause();
    is_used("b", sentinels.until_replaced(master));
    sentinels.server(master).resume();
}

#[test]
fn sentinels_have_a_login_of_their_own() {
    let password = "canary-of-the-sentinels";
    let sentinels = Sentinels::with(Setup {
        password: Some(password.into()),
        ..calm()
    });
    let proxy = Proxy::start(sentinels.sentinel(0).port());
    let login = if rights::login().is_empty() {
        "default:servers@"
    } else {
        ""
    };
    let url = sentinels.url_with(&[proxy.port()]);
    let url = url.replace("://", &format!("://{login}"));
    for user in [None, Some("default")] {
        let locks = connected(|| unhurried(&url).sentinel_login(user, password).build());
        drop(locks.lock("a").expect("locks"));
    }
    let sent = proxy.log_in_full();
    let own = ["AUTH", "HELLO"];
    let of_the_url = rights::login();
    let of_the_url = of_the_url.trim_end_matches('@').rsplit(':').next();
    let of_the_url = of_the_url.filter(|it| !it.is_empty()).unwrap_or("servers");
    assert!(sent.iter().any(|it| own.contains(&&*it[0])), "{sent:?}");
    assert!(sent.iter().flatten().all(|it| it != of_the_url), "{sent:?}");
    for (wrong, code) in [(None, "NOAUTH"), (Some("canary-wrong"), "WRONGPASS")] {
        let with = unhurried(&sentinels.url());
        let with = match wrong {
            Some(password) => with.sentinel_login(None, password),
            None => with,
        };
        let said = format!("{with:?}");
        let error = with.build().expect_err("refused");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let said = format!("{said} {} {error:?}", chain(&error));
        assert!(said.contains(code) && said.contains("sentinel"), "{said}");
        assert!(!said.contains("canary"), "{said}");
    }
}

/// Another one is needed to know how many replicas there are.
#[test]
fn one_right_at_the_sentinels_is_enough_to_find_the_master() {
    let sentinels = Sentinels::with(calm());
    let needed = "+sentinel|get-master-addr-by-name";
    let with_one = || with_rights(&sentinels, &["resetchannels", "-@all", needed]);
    let locks = connected(|| with_one().build());
    drop(locks.lock("a").expect("locks"));
    let all = with_one().replicas(Replicas::all(), ANSWER / 3);
    let is_refused = |builder: Builder| {
        let said = chain(&builder.build().expect_err("a right is missing"));
        assert!(
            said.contains("NOPERM") && said.contains("sentinel"),
            "{said}"
        );
    };
    is_refused(all);
    let mut others = rights_at_sentinels();
    others.retain(|it| *it != needed);
    is_refused(with_rights(&sentinels, &others));
}

#[test]
fn what_is_wrong_with_sentinels_is_told_by_the_error() {
    let sentinels = Sentinels::with(calm());
    let error = |url: &str| unhurried(url).build().expect_err("no master");
    let server = sentinels.url_with(&[sentinels.server(0).port()]);
    for (url, told) in [
        (
            sentinels.url().replace(MASTER, "othermaster"),
            "no sentinel knows a master named",
        ),
        (server, "is not a sentinel"),
        (sentinels.sentinel(0).bare_url(), "this is a sentinel"),
    ] {
        let error = error(&url);
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(chain(&error).contains(told), "{}", chain(&error));
    }
    let locks = connected(|| unhurried(&sentinels.url()).build());
    drop(locks.lock("a").expect("locks"));
    (0..3).for_each(|place| sentinels.sentinel(place).kill());
    // Nobody has to be asked for a connection that is there.
    drop(locks.lock("a").expect("locks"));
    let error = error(&sentinels.url());
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        chain(&error).contains("no sentinel reachable"),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_fork_leaves_the_connections_to_sentinels_alone() {
    let sentinels = Sentinels::with(calm());
    let dir = TempDir::new().expect("a temporary directory");
    let preload = compile_preload("fork", dir.path());
    let preload = format!("LD_PRELOAD={}", preload.display());
    let settings = [("url", &*sentinels.url()), ("holding", "yes")];
    let mut child = Worker::spawn_under(&["env", &preload], "forker", &settings);
    child.expect_line("forking", LONG);
    eventually(LONG, "it is subscribed", || {
        subscribers(&sentinels).len() == 1
    });
    let before = subscribers(&sentinels);
    child.send("fork");
    let ended = child.expect_line("the copy", LONG);
    assert!(ended.contains("Some(0)"), "{ended}: {}", child.printed());
    assert_eq!(subscribers(&sentinels), before, "the parent's stayed open");
    child.send("go on");
    child.expect_line("fine", LONG);
    assert!(child.wait(LONG).success());
}
