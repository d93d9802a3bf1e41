//! Sentinel: the master dies, hangs or is replaced; sentinels are silent, wrong or gone.

use std::fs;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Builder, Error, LockManager, LostCause, Unlocked};
use relatch_rig::{
    FakeServer, Fault, LONG, MASTER, Proxy, Reply, Sentinels, Server, Setup, Worker,
    compile_preload, eventually, is_alone, rights, time, within,
};
use tempfile::TempDir;

use crate::support::{
    ANSWER, MINUTE, SOON, assert_lost, assert_unavailable, before_the_demotion, builder, chain,
    redis_connection, renewals, returns_by, take, until_tracked,
};

/// From one renewal to the next: long enough that a loss found sooner was not found by chance.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);

/// A manager that waits through a failover, and whose leases outlast it.
pub(crate) fn patient(url: &str) -> Builder {
    builder(url)
        .tolerate_outage(LONG)
        .lease(MINUTE)
        .renew_every(PERIOD)
}

pub(crate) fn connect(url: &str) -> LockManager {
    connected(|| patient(url).build())
}

/// Tries until the sentinels answer: a busy machine may take longer than the connect timeout.
fn connected(build: impl Fn() -> Result<LockManager, Error>) -> LockManager {
    let mut built = None;
    eventually(LONG, "it connects", || {
        built = build().ok();
        built.is_some()
    });
    built.expect("connected")
}

/// A manager whose waiters sleep until an invalidation wakes them.
fn without_polling(url: &str) -> LockManager {
    connected(|| patient(url).poll_every(LONG).build())
}

/// Sentinels that take no master for dead, however busy the machine is.
fn calm(replicas: usize) -> Setup {
    Setup {
        replicas,
        down_after: LONG,
        ..Setup::default()
    }
}

/// A proxy in front of each sentinel, and the address that names the proxies. No sentinel tells of
/// another one, so that nothing goes past the proxies.
pub(crate) fn behind_proxies(sentinels: &Sentinels) -> (Vec<Proxy>, String) {
    let proxies: Vec<_> = (0..3)
        .map(|place| Proxy::start(sentinels.sentinel(place).port()))
        .collect();
    for it in &proxies {
        it.always("SENTINEL SENTINELS", Fault::Answer(b"*0\r\n".to_vec()));
    }
    let url = sentinels.url_with(&proxies.iter().map(Proxy::port).collect::<Vec<_>>());
    (proxies, url)
}

/// Waits until the manager receives the reports of a sentinel behind one of the proxies.
#[track_caller]
pub(crate) fn until_subscribed(proxies: &[Proxy]) {
    // After the subscription, the manager asks once more who is the master.
    let has_subscribed = |proxy: &Proxy| {
        let sent = proxy.log_in_full();
        let subscribed = sent
            .iter()
            .position(|it| it[0].eq_ignore_ascii_case("SUBSCRIBE"));
        subscribed.is_some_and(|at| {
            sent[at..]
                .iter()
                .any(|it| it[0].eq_ignore_ascii_case("SENTINEL"))
        })
    };
    eventually(LONG, "the manager has subscribed", || {
        proxies.iter().any(has_subscribed)
    });
}

/// When a sentinel reports a new master.
fn report_of(sentinel: &Server) -> Receiver<Instant> {
    let url = sentinel.bare_url();
    let ((subscribed, is_subscribed), (reports, reported)) = (mpsc::channel(), mpsc::channel());
    // The thread ends when the sentinel does.
    thread::spawn(move || {
        let mut connection = redis_connection(&url);
        let mut pubsub = connection.as_pubsub();
        pubsub.subscribe("+switch-master").expect("subscribes");
        subscribed.send(()).expect("awaited");
        while pubsub.get_message().is_ok() {
            let _ = reports.send(Instant::now());
        }
    });
    is_subscribed.recv().expect("subscribes");
    reported
}

/// How many connections of managers a server has.
pub(crate) fn clients_of(server: &Server) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST"]);
    clients
        .lines()
        .filter(|line| line.contains(" name=relatch:"))
        .count()
}

/// How many of them receive invalidations.
fn listeners_of(server: &Server) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST", "TYPE", "PUBSUB"]);
    clients
        .lines()
        .filter(|line| line.contains(" name=relatch:"))
        .count()
}

/// A server that answers as a sentinel would, which takes the server at `port` for the master and
/// knows no other sentinel.
pub(crate) fn sentinel_that_names(port: u16) -> FakeServer {
    sentinel_that_says(move || Some((port, 0)))
}

/// The same, with the port and the epoch that `view` returns. While that is `None`, it closes its
/// connections.
pub(crate) fn sentinel_that_says(
    view: impl Fn() -> Option<(u16, u64)> + Send + Sync + 'static,
) -> FakeServer {
    FakeServer::start(move |args| {
        let Some((port, epoch)) = view() else {
            return Reply::Close;
        };
        let words: Vec<_> = args.iter().map(|it| it.to_lowercase()).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let reply = match words[..] {
            [] => String::new(),
            ["sentinel", "get-master-addr-by-name", _] => array(&["127.0.0.1", &port.to_string()]),
            ["sentinel", "master", _] => {
                array(&["num-slaves", "2", "config-epoch", &epoch.to_string()])
            }
            ["sentinel", ..] => array(&[]),
            ["subscribe", channel] => {
                let reply = format!(
                    "*3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:1\r\n",
                    channel.len()
                );
                let is_last = channel == "+slave";
                return if is_last {
                    Reply::Subscribed
                } else {
                    Reply::Bytes
                }(reply.into_bytes());
            }
            ["ping"] => array(&["pong", ""]),
            _ => "+OK\r\n".to_owned(),
        };
        Reply::Bytes(reply.into_bytes())
    })
}

/// An array of strings, as a server sends it.
pub(crate) fn array(parts: &[&str]) -> String {
    let parts: Vec<_> = parts
        .iter()
        .map(|part| format!("${}\r\n{part}\r\n", part.len()))
        .collect();
    format!("*{}\r\n{}", parts.len(), parts.concat())
}

pub(crate) fn port_of(fake: &FakeServer) -> u16 {
    fake.address()
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port")
}

#[test]
fn a_hold_and_a_wait_survive_the_death_of_the_master() {
    let sentinels = Sentinels::start();
    survive_the_death_of_the_master(&sentinels, || patient(&sentinels.url()));
}

/// A hold of one manager, and the wait of another, which sleeps until an invalidation wakes it.
pub(crate) fn survive_the_death_of_the_master(
    sentinels: &Sentinels,
    builder: impl Fn() -> Builder,
) {
    let locks = builder().build().expect("connects");
    let others = builder().poll_every(LONG).build().expect("connects");
    let guard = locks.lock("a").expect("locks");
    sentinels.until_in_sync();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&others, "a"));
        eventually(LONG, "the waiter waits", || others.stats().waited > 0);
        sentinels.server(0).kill();
        let master = sentinels.until_replaced(0);
        eventually(LONG, "the hold is at the new master", || {
            guard.verify().is_ok()
        });
        assert_eq!(
            sentinels.server(master).get("lock:a").as_deref(),
            Some(guard.token())
        );
        assert!(guard.is_valid() && !waiter.is_finished());
        let before = renewals(&locks, "a");
        eventually(LONG, "the hold is renewed there", || {
            renewals(&locks, "a") > before
        });
        // The waiter is woken by the new master, and has a connection of its own for that.
        eventually(LONG, "both managers listen", || {
            listeners_of(sentinels.server(master)) == 2
        });
        until_tracked(sentinels.server(master), 1);
        let released = Instant::now();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        let taken = waiter.join().expect("no panic");
        assert!(taken - released < SOON, "{:?}", taken - released);
    });
}

#[test]
fn a_wait_ends_by_its_deadline_while_there_is_no_master() {
    let sentinels = Sentinels::with(Setup {
        replicas: 0,
        ..Setup::default()
    });
    let locks = connect(&sentinels.url());
    drop(locks.lock("a").expect("locks"));
    sentinels.server(0).kill();
    returns_by(4 * ANSWER, "a wait without a master", || {
        let (took, taken) = time(|| locks.named("a").try_lock_for(4 * ANSWER));
        assert_unavailable(&taken);
        took
    });
}

/// A lock is lost with its master. Returns how long after the report of the switch its holder is
/// told. If the manager does not get the report, it finds the switch by itself.
fn lose_a_lock(gets_the_report: bool) -> Duration {
    let sentinels = Sentinels::with(Setup {
        replicas: 1,
        ..Setup::default()
    });
    let (proxies, url) = behind_proxies(&sentinels);
    for it in &proxies {
        it.lose_messages(!gets_the_report);
    }
    let locks = connect(&url);
    until_subscribed(&proxies);
    let reported = report_of(sentinels.sentinel(0));
    sentinels.cut_off(1);
    let guard = locks.lock("a").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    sentinels.server(0).kill();
    assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
    let lost = Instant::now();
    let reported = reported.recv_timeout(LONG).expect("the switch is reported");
    assert_lost(&guard.unlock(), LostCause::Deleted);
    lost.saturating_duration_since(reported)
}

#[test]
fn a_lock_that_was_lost_with_its_master_is_reported_with_the_switch() {
    returns_by(Duration::ZERO, "the report of the loss", || {
        lose_a_lock(true)
    });
}

#[test]
fn without_the_report_of_a_switch_a_lost_lock_is_noticed_within_a_renewal_period() {
    returns_by(PERIOD, "the report of the loss", || lose_a_lock(false));
}

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
    let (locks, others) = (connect(&sentinels.url()), without_polling(&sentinels.url()));
    let guard = locks.lock("held").expect("locks");
    sentinels.until_in_sync();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&others, "held"));
        eventually(LONG, "the waiter waits", || others.stats().waited > 0);
        // The first sentinel, from which the managers get reports, leads the failover. It reports
        // the switch late, when all replicas follow the new master.
        let master = sentinels.fail_over();
        eventually(SOON, "the old master has no client", || {
            clients_of(sentinels.server(0)) == 0
        });
        sentinels.server(0).reset_stats();
        for key in 0..50 {
            locks.with_lock(format!("{key}"), || {}).expect("runs");
        }
        guard.verify().expect("the key was replicated");
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        waiter.join().expect("no panic");
        let sent = sentinels
            .server(0)
            .total_calls(&["set", "get", "evalsha", "eval"]);
        if !sentinels.is_master(0) {
            return false;
        }
        assert_eq!(sent, 0);
        assert!(sentinels.server(master).calls("set") >= 50);
        sentinels.until_in_sync();
        locks.with_lock("a", || {}).expect("runs");
        true
    })
}

#[test]
fn a_switch_whose_report_is_lost_is_noticed_when_the_old_master_is_demoted() {
    let sentinels = Sentinels::start();
    let (proxies, url) = behind_proxies(&sentinels);
    for it in &proxies {
        it.lose_messages(true);
    }
    let locks = connect(&url);
    until_subscribed(&proxies);
    let master = sentinels.fail_over();
    locks
        .with_lock("a", || {})
        .expect("runs, at whichever master");
    sentinels.until_in_sync();
    let guard = within(LONG, "a free lock", || locks.lock("b")).expect("locks");
    assert_eq!(
        sentinels.server(master).get("lock:b").as_deref(),
        Some(guard.token())
    );
}

#[test]
fn a_master_that_accepts_and_is_silent_leads_back_to_the_sentinels() {
    let sentinels = Sentinels::start();
    let (proxies, url) = behind_proxies(&sentinels);
    for it in &proxies {
        it.lose_messages(true);
    }
    let locks = connect(&url);
    let held = locks.lock("held").expect("locks");
    sentinels.until_in_sync();
    sentinels.server(0).pause();
    let guard = locks
        .named("a")
        .try_lock_for(LONG)
        .expect("a master answers")
        .expect("a free lock");
    let master = sentinels.master();
    assert_ne!(master, 0);
    assert_eq!(
        sentinels.server(master).get("lock:a").as_deref(),
        Some(guard.token())
    );
    held.verify().expect("the key was replicated");
    sentinels.server(0).resume();
    sentinels.until_in_sync();
    for guard in [guard, held] {
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
    assert!(!sentinels.server(master).exists("lock:a"));
}

/// Takes locks in several threads, all of which release at a time, over as many connections as the
/// manager has to open for that.
pub(crate) fn open_connections(locks: &LockManager, count: usize) {
    let all_have_one = Barrier::new(count);
    thread::scope(|scope| {
        for key in 0..count {
            let all_have_one = &all_have_one;
            scope.spawn(move || {
                let guard = locks.lock(format!("{key}")).expect("locks");
                all_have_one.wait();
                drop(guard);
            });
        }
    });
}

#[test]
fn a_silent_sentinel_costs_its_timeout_once() {
    let sentinels = Sentinels::with(calm(0));
    let silent = Proxy::start(sentinels.sentinel(0).port());
    silent.black_hole(true);
    let ports = [
        silent.port(),
        sentinels.sentinel(1).port(),
        sentinels.sentinel(2).port(),
    ];
    let (took, locks) =
        time(|| LockManager::connect(&sentinels.url_with(&ports)).expect("connects"));
    assert!(took < SOON, "{took:?}");
    drop(locks.lock("a").expect("locks"));
    // The thread that subscribes may have asked it as well.
    let asked = silent.connections_accepted();
    assert!(asked <= 2, "{asked}");
    let clients = || clients_of(sentinels.server(0));
    let before = clients();
    sentinels
        .server(0)
        .query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    locks.with_lock("a", || {}).expect("runs");
    open_connections(&locks, 8);
    assert!(before > 0 && clients() > 0);
    assert_eq!(silent.connections_accepted(), asked);
}

#[test]
fn a_sentinel_that_names_a_replica_a_dead_server_or_a_sentinel_is_not_asked_alone() {
    let sentinels = Sentinels::with(calm(1));
    let dead = Server::start();
    dead.kill();
    // A sentinel may name itself. Its users are others than the servers'.
    let other_users = FakeServer::start(|command| {
        Reply::Bytes(if command.is_empty() {
            Vec::new()
        } else {
            b"-WRONGPASS no such user\r\n".to_vec()
        })
    });
    let [replica, itself] = [sentinels.server(1).port(), sentinels.sentinel(1).port()];
    for wrong in [replica, dead.port(), itself, port_of(&other_users)] {
        let liar = sentinel_that_names(wrong);
        let alone = builder(&sentinels.url_with(&[port_of(&liar)]))
            .build_lazily()
            .expect("an address");
        let refused = alone.named("a").try_lock_for(2 * ANSWER);
        let refuses =
            wrong == port_of(&other_users) || wrong == itself && !rights::login().is_empty();
        assert!(
            refused.as_ref().is_err_and(
                |it| it.is_redis_failure() && refuses == matches!(it, Error::Refused { .. })
            ),
            "{refused:?}"
        );
        if wrong == replica {
            let said = chain(&refused.expect_err("no master"));
            assert!(said.contains("is a replica"), "{said}");
        }
        let ports = [port_of(&liar), sentinels.sentinel(0).port()];
        let locks = builder(&sentinels.url_with(&ports))
            .build_lazily()
            .expect("an address");
        let guard = locks
            .named("a")
            .try_lock_for(LONG)
            .expect("the other sentinel knows")
            .expect("a free lock");
        assert_eq!(
            sentinels.server(0).get("lock:a").as_deref(),
            Some(guard.token())
        );
    }
    // It knows other users than the servers: that it has refused the login is no missing right.
    sentinels.sentinel(1).query::<()>(&["ACL", "LOG", "RESET"]);
}

/// Without `HELLO`, only the refusal of a write shows that the server is a replica.
#[test]
fn without_hello_a_sentinel_that_names_a_replica_is_not_asked_alone() {
    let [master, replica] = [(); 2].map(|()| Server::with(&["--rename-command", "HELLO", ""]));
    replica.query::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let [liar, other] = [&replica, &master].map(|it| sentinel_that_names(it.port()));
    let hosts = [&liar, &other].map(FakeServer::address).join(",");
    let url = format!("redis+sentinel://{}{hosts}/{MASTER}", rights::login());
    let locks = builder(&url).build_lazily().expect("an address");
    let guard = locks
        .named("a")
        .try_lock_for(LONG)
        .expect("the other sentinel knows")
        .expect("a free lock");
    assert_eq!(master.get("lock:a").as_deref(), Some(guard.token()));
    // The sentinel that was right is asked first from then on.
    let refused = || replica.total_calls(&["client", "client|setname"]);
    let before = refused();
    master.query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    open_connections(&locks, 4);
    assert_eq!(refused(), before);
}

#[test]
fn a_sentinel_that_has_not_heard_of_a_switch_does_not_lead_back_to_the_old_master() {
    // What the first and the last sentinel say: as long as both are well, when the first is gone,
    // when the last is gone as well, and when they were set up anew.
    const WELL: u8 = 0;
    const ONE_IS_GONE: u8 = 1;
    const BOTH_ARE_GONE: u8 = 2;
    const ANEW: u8 = 3;

    let [old, new] = [(); 2].map(|()| Server::start());
    let (old_port, new_port) = (old.port(), new.port());
    let state = Arc::new(AtomicU8::new(WELL));
    let says = |gone_from: u8| {
        let state = Arc::clone(&state);
        sentinel_that_says(move || match state.load(Ordering::SeqCst) {
            ANEW => Some((old_port, 0)),
            now => (now < gone_from).then_some((new_port, 5)),
        })
    };
    let [first, last] = [says(ONE_IS_GONE), says(BOTH_ARE_GONE)];
    let behind = sentinel_that_says(move || Some((old_port, 4)));
    let ports = [&first, &behind, &last]
        .map(port_of)
        .map(|port| format!("127.0.0.1:{port}"));
    let url = new
        .url()
        .replace(&new.address(), &ports.join(","))
        .replace("redis:", "redis+sentinel:");
    let locks = connect(&format!("{url}{MASTER}"));
    let guard = locks.lock("a").expect("locks");
    let cut = || new.query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let calls = || old.total_calls(&["hello", "set", "evalsha"]);
    state.store(ONE_IS_GONE, Ordering::SeqCst);
    for _ in 0..5 {
        cut();
        locks.with_lock("b", || {}).expect("runs");
    }
    guard.verify().expect("it is where it was");
    // Only the sentinel that has not heard answers. Soon the others may do so, too.
    state.store(BOTH_ARE_GONE, Ordering::SeqCst);
    for _ in 0..5 {
        cut();
        locks.with_lock("b", || {}).expect("runs");
    }
    assert!(guard.is_valid());
    drop(guard);
    assert_eq!(calls(), 0);
    state.store(ANEW, Ordering::SeqCst);
    eventually(2 * LONG, "all are asked again", || {
        locks.with_lock("b", || {}).expect("runs");
        calls() > 0
    });
}

#[test]
fn sentinels_have_a_login_of_their_own() {
    let password = "canary-of-the-sentinels";
    let sentinels = Sentinels::with(Setup {
        password: Some(password.into()),
        ..calm(0)
    });
    let locks = builder(&sentinels.url())
        .sentinel_login(None, password)
        .build()
        .expect("connects");
    let guard = locks.lock("a").expect("locks");
    drop(guard);
    let named = builder(&sentinels.url()).sentinel_login(Some("default"), password);
    named.build().expect("connects with a user's name");
    for (login, code) in [(None, "NOAUTH"), (Some("canary-wrong"), "WRONGPASS")] {
        let without = builder(&sentinels.url());
        let with = match login {
            Some(password) => without.sentinel_login(None, password),
            None => without,
        };
        let said = format!("{with:?}");
        let error = with.build().expect_err("refused");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let said = format!("{said} {} {error:?}", chain(&error));
        assert!(said.contains(code) && said.contains("sentinel"), "{said}");
        assert!(!said.contains("canary"), "{said}");
    }
}

/// The rights that a user needs at the sentinels, read from the command in docs/engines.md.
fn rights_at_sentinels() -> Vec<&'static str> {
    let page = include_str!("../../../docs/engines.md");
    let mut lines = page.lines();
    let rights = lines.find_map(|line| line.strip_prefix("ACL SETUSER locks on >password "));
    rights
        .expect("docs/engines.md says how the user is made")
        .split(' ')
        .collect()
}

/// Gives each sentinel a user with these rights. Returns a manager that logs in as that user.
fn with_rights(sentinels: &Sentinels, rights: &[&str]) -> LockManager {
    for place in 0..3 {
        let user = ["ACL", "SETUSER", "watcher", "reset", "on", ">canary"];
        sentinels
            .sentinel(place)
            .query::<()>(&[&user, rights].concat());
    }
    patient(&sentinels.url())
        .sentinel_login(Some("watcher"), "canary")
        .build()
        .expect("connects")
}

#[test]
fn a_user_with_the_least_rights_at_the_sentinels_is_refused_nothing() {
    let sentinels = Sentinels::with(Setup {
        demoted_after: Duration::from_secs(8),
        ..Setup::default()
    });
    let locks = with_rights(&sentinels, &rights_at_sentinels());
    drop(locks.lock("a").expect("locks"));
    let subscribed = || !sentinels.sentinel(0).clients_with("sub=3").is_empty();
    eventually(LONG, "the manager has subscribed", subscribed);
    let master = sentinels.fail_over();
    eventually(SOON, "the old master has no client", || {
        clients_of(sentinels.server(0)) == 0
    });
    let guard = locks.lock("a").expect("locks");
    assert_eq!(
        sentinels.server(master).get("lock:a").as_deref(),
        Some(guard.token())
    );
    for place in 0..3 {
        let refused = sentinels.sentinel(place).refused();
        assert!(refused.is_empty(), "{refused:?}");
    }
}

#[test]
fn one_right_at_the_sentinels_is_enough_to_find_the_master() {
    let sentinels = Sentinels::with(calm(0));
    let needed = "+sentinel|get-master-addr-by-name";
    let locks = with_rights(&sentinels, &["resetchannels", "-@all", needed]);
    drop(locks.lock("a").expect("locks"));
    let all = rights_at_sentinels();
    let others: Vec<_> = all
        .iter()
        .copied()
        .filter(|right| *right != needed)
        .collect();
    assert_eq!(others.len() + 1, all.len());
    for place in 0..3 {
        sentinels.sentinel(place).query::<()>(
            &[
                &["ACL", "SETUSER", "watcher", "reset", "on", ">canary"],
                &*others,
            ]
            .concat(),
        );
    }
    let refused = patient(&sentinels.url())
        .sentinel_login(Some("watcher"), "canary")
        .build();
    let said = chain(&refused.expect_err("a right is missing"));
    assert!(
        said.contains("NOPERM") && said.contains("sentinel"),
        "{said}"
    );
}

#[test]
fn without_the_channels_a_switch_is_noticed_when_the_old_master_is_demoted_or_fails() {
    let sentinels = Sentinels::start();
    let is_for_reports = |right: &&str| right.starts_with('&') || *right == "+subscribe";
    let others: Vec<_> = rights_at_sentinels()
        .into_iter()
        .filter(|it| !is_for_reports(it))
        .collect();
    let locks = with_rights(&sentinels, &others);
    let guard = locks.lock("held").expect("locks");
    sentinels.until_in_sync();
    let refused = || {
        (0..3)
            .flat_map(|place| sentinels.sentinel(place).refused())
            .collect::<Vec<_>>()
    };
    let needs = |(_, what): &(String, String)| what == "subscribe";
    eventually(LONG, "the right to subscribe is missing", || {
        refused().iter().any(needs)
    });
    let is_used = |name: &str, master: usize| {
        let other = locks
            .named(name)
            .try_lock_for(LONG)
            .expect("a master answers")
            .expect("a free lock");
        assert_eq!(
            sentinels
                .server(master)
                .get(&format!("lock:{name}"))
                .as_deref(),
            Some(other.token())
        );
        guard.verify().expect("the key was replicated");
    };
    let master = sentinels.fail_over();
    // Now the old master is a replica.
    sentinels.until_in_sync();
    is_used("a", master);
    sentinels.until_in_sync();
    sentinels.server(master).kill();
    is_used("b", sentinels.until_replaced(master));
}

#[test]
fn a_sentinel_with_another_password_is_passed_over() {
    let sentinels = Sentinels::with(calm(0));
    let other = Server::with(&["--requirepass", "secret"]);
    let ports = [other.port(), sentinels.sentinel(0).port()];
    // Without a login (`NOAUTH`), and with a wrong one (`WRONGPASS`).
    sentinels.sentinel(0).query::<()>(&[
        "ACL", "SETUSER", "watcher", "on", ">canary", "~*", "&*", "+@all",
    ]);
    let with = |builder: Builder| builder.sentinel_login(Some("watcher"), "canary");
    for builder in [
        builder(&sentinels.url_with(&ports)),
        with(builder(&sentinels.url_with(&ports))),
    ] {
        let locks = builder.build().expect("connects");
        drop(locks.lock("a").expect("watcher"));
    }
    let refused = with(builder(&sentinels.url_with(&ports[..1]))).build();
    let said = chain(&refused.expect_err("there is no other"));
    assert!(said.contains("WRONGPASS"), "{said}");
}

#[test]
fn sentinels_that_are_gone_are_named_by_the_error() {
    let sentinels = Sentinels::with(calm(0));
    let locks = connect(&sentinels.url());
    drop(locks.lock("a").expect("locks"));
    (0..3).for_each(|place| sentinels.sentinel(place).kill());
    // Nobody has to be asked for a connection that is there.
    drop(locks.lock("a").expect("locks"));
    let error = builder(&sentinels.url()).build().expect_err("no sentinel");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        chain(&error).contains("no sentinel reachable"),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_name_that_no_sentinel_knows_is_named_by_the_error() {
    let sentinels = Sentinels::with(calm(0));
    let url = sentinels.url().replace(MASTER, "othermaster");
    let error = builder(&url).build().expect_err("no such master");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let said = chain(&error);
    assert!(
        said.contains("no sentinel knows") && said.contains("othermaster"),
        "{said}"
    );
}

#[test]
fn a_server_in_the_place_of_a_sentinel_is_named_by_the_error_and_so_is_the_reverse() {
    let sentinels = Sentinels::with(calm(0));
    let url = sentinels.url_with(&[sentinels.server(0).port()]);
    let error = builder(&url).build().expect_err("no sentinel");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let said = chain(&error);
    assert!(said.contains("is not a sentinel"), "{said}");
    let error = builder(&sentinels.sentinel(0).bare_url())
        .build()
        .expect_err("no server");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(
        chain(&error).contains("this is a sentinel"),
        "{}",
        chain(&error)
    );
}

#[test]
fn other_sentinels_are_learnt() {
    let sentinels = Sentinels::start();
    let locks = connect(&sentinels.url_with(&[sentinels.sentinel(0).port()]));
    drop(locks.lock("a").expect("locks"));
    sentinels.sentinel(0).kill();
    sentinels.server(0).kill();
    let master = sentinels.until_replaced(0);
    let guard = within(LONG, "a free lock", || locks.lock("a")).expect("locks");
    assert_eq!(
        sentinels.server(master).get("lock:a").as_deref(),
        Some(guard.token())
    );
}

/// A sentinel that is asked has a third of a second. On a busy machine, the test may take longer
/// than that to see what was sent.
#[test]
fn connecting_asks_one_sentinel_in_one_round_trip() {
    assert!(
        (0..5).any(|_| asks_one_sentinel()),
        "more than the pool's and the keeper's connection asked"
    );
}

fn asks_one_sentinel() -> bool {
    let sentinels = Sentinels::with(Setup {
        proxied: true,
        ..calm(0)
    });
    let (proxies, url) = behind_proxies(&sentinels);
    let locks = connect(&url);
    until_subscribed(&proxies);
    drop(locks.lock("a").expect("locks"));
    let asked = || {
        proxies
            .iter()
            .map(|it| it.commands("SENTINEL GET-MASTER-ADDR-BY-NAME"))
            .sum::<u64>()
    };
    let (before, sent) = (asked(), sentinels.proxy(0).log().len());
    // All that is asked is sent before the first reply, so it is one round trip.
    for it in &proxies {
        it.hold_replies(true);
    }
    sentinels
        .server(0)
        .query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&locks, "a"));
        eventually(LONG, "a sentinel is asked", || asked() > before);
        eventually(LONG, "and for the others", || {
            proxies[0].log().last().is_some_and(|it| it == "SENTINEL")
        });
        for it in &proxies {
            it.hold_replies(false);
        }
        waiter.join().expect("no panic");
    });
    assert!(
        sentinels.proxy(0).log()[sent..]
            .iter()
            .any(|it| it == "SET")
    );
    asked() <= before + 2 && proxies[1].commands("SENTINEL") + proxies[2].commands("SENTINEL") == 0
}

/// The names of this process's threads that are managers'.
pub(crate) fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("relatch")).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn dropping_the_manager_ends_its_threads_also_while_sentinels_are_silent() {
    if !is_alone(
        module_path!(),
        "dropping_the_manager_ends_its_threads_also_while_sentinels_are_silent",
    ) {
        return;
    }
    let sentinels = Sentinels::with(calm(0));
    let connect = || patient(&sentinels.url()).response_timeout(LONG);
    // Whether the sentinels are silent when the manager is dropped, and when its thread connects.
    for (silent, before) in [(false, false), (true, false), (true, true)] {
        let locks = connect().build().expect("connects");
        drop(locks.lock("a").expect("locks"));
        let subscribed =
            || (0..3).any(|place| !sentinels.sentinel(place).clients_with("sub=3").is_empty());
        eventually(LONG, "a thread subscribes", subscribed);
        let pause = || (0..3).for_each(|place| sentinels.sentinel(place).pause());
        if silent {
            pause();
        }
        let connecting = before.then(|| {
            let locks = connect().build_lazily().expect("an address");
            assert_unavailable(&locks.named("a").try_lock_for(ANSWER));
            locks
        });
        assert!(
            threads().iter().any(|it| it.starts_with("relatch-sentine")),
            "{:?}",
            threads()
        );
        // A thread that nobody ends looks every second whether it has to stop.
        within(SOON / 2, "dropping the manager", || drop(locks));
        within(SOON, "dropping a manager that connects", || {
            drop(connecting);
        });
        // The system may list a thread for a moment after it was joined.
        let has_ended = || !threads().iter().any(|it| it.starts_with("relatch-sentine"));
        eventually(SOON / 2, "its thread was joined", has_ended);
        eventually(SOON, "all its threads have ended", || threads().is_empty());
        if silent {
            (0..3).for_each(|place| sentinels.sentinel(place).resume());
        }
    }
}

#[test]
fn a_fork_leaves_the_connections_to_sentinels_alone() {
    let sentinels = Sentinels::with(calm(0));
    let (proxies, url) = behind_proxies(&sentinels);
    let dir = TempDir::new().expect("a temporary directory");
    let preload = format!(
        "LD_PRELOAD={}",
        compile_preload("fork", dir.path()).display()
    );
    let mut child = Worker::spawn_under(
        &["env", &preload],
        "forker",
        &[("url", &*url), ("holding", "yes")],
    );
    child.expect_line("forking", LONG);
    until_subscribed(&proxies);
    let subscribers = || -> Vec<_> {
        (0..3)
            .flat_map(|place| sentinels.sentinel(place).clients_with("sub=3"))
            .collect()
    };
    eventually(LONG, "it is subscribed", || subscribers().len() == 1);
    let before = subscribers();
    child.send("fork");
    let ended = child.expect_line("the copy", LONG);
    assert!(ended.contains("Some(0)"), "{ended}: {}", child.printed());
    assert_eq!(
        subscribers(),
        before,
        "the parent's subscription stayed open"
    );
    child.send("go on");
    child.expect_line("fine", LONG);
    assert!(child.wait(LONG).success());
}

/// If all sentinels are silent for a moment, they may be far away. A closed port is not silent.
#[test]
fn a_silent_sentinel_beside_one_that_is_away_is_asked_once() {
    let [silent, away] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let [silent_address, away_address] = [&silent, &away].map(|it| it.local_addr().expect("bound"));
    drop(away);
    let url = format!("redis+sentinel://{silent_address},{away_address}/mymaster");
    let locks = LockManager::builder(&url)
        .connect_timeout(LONG)
        .build_lazily()
        .expect("sends nothing");
    let (took, taken) = time(|| locks.try_lock("a"));
    assert!(taken.is_err_and(|error| error.is_redis_failure()));
    assert!(took < LONG / 4, "{took:?}");
}
