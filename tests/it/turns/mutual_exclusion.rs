//! One holder at a time: a counter without atomic increments loses no update. Every waiter gets a
//! turn.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use redis::{Client, Connection};
use relatch::LockManager;
use relatch_rig::{Cluster, Server, SetOnDrop, Worker, role};

use crate::support::until_queued;

/// A limit that is longer than all increments take together.
pub(crate) const COUNTING: Duration = Duration::from_secs(60);

/// The limit of a wait that ends without the lock.
const WAIT: Duration = Duration::from_millis(200);

/// All commands about a lock, and the first command of a connection.
const TRAFFIC: [&str; 8] = [
    "set", "get", "pttl", "eval", "evalsha", "ping", "del", "exists",
];

/// The key that is incremented. It has the prefix of the locks, so that a user with the rights for
/// locks may use it, too.
pub(crate) const COUNTER: &str = "lock:counter";

/// How a thread does one increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Locked,
    /// Under a lock that the thread takes three times.
    Reentrant,
    /// Without any lock, to show that the test works.
    Bare,
}

impl How {
    fn parse(name: &str) -> How {
        let all = [How::Locked, How::Reentrant, How::Bare];
        all.into_iter()
            .find(|how| format!("{how:?}") == name)
            .expect("a way to count")
    }

    fn run(self, locks: &LockManager, increment: impl FnOnce()) {
        match self {
            How::Locked => locks.with_lock("a", increment).expect("runs"),
            How::Reentrant => {
                let outer = locks.lock("a").expect("locks");
                let inner = locks.lock("a").expect("locks again");
                drop(outer);
                locks.with_lock("a", increment).expect("runs");
                drop(inner);
            }
            How::Bare => increment(),
        }
    }
}

/// Adds one with a read and a write, which loses updates if two threads do it at a time.
pub(crate) fn increment(connection: &mut Connection) {
    let found: Option<u64> = redis::cmd("GET")
        .arg(COUNTER)
        .query(connection)
        .expect("a reply");
    thread::yield_now();
    let _pause: String = redis::cmd("PING").query(connection).expect("a reply");
    let next = found.unwrap_or(0) + 1;
    redis::cmd("SET")
        .arg(COUNTER)
        .arg(next)
        .query::<()>(connection)
        .expect("a reply");
}

/// Has `threads` threads share one manager, and each increment the counter `rounds` times.
fn count(server: &Server, threads: u64, rounds: u64, how: How) {
    let locks = LockManager::connect(&server.url()).expect("connects");
    count_with(&locks, &server.bare_url(), threads, rounds, how);
}

/// The same with a manager of the caller's.
pub(crate) fn count_with(locks: &LockManager, url: &str, threads: u64, rounds: u64, how: How) {
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let client = Client::open(url).expect("a valid address");
                let mut connection = client.get_connection().expect("connects");
                (0..rounds).for_each(|_| how.run(locks, || increment(&mut connection)));
            });
        }
    });
}

pub(crate) fn total(server: &Server) -> u64 {
    server
        .get(COUNTER)
        .expect("a count")
        .parse()
        .expect("a number")
}

/// The role of a process that counts; it begins when it receives a line.
pub(crate) fn count_as_told() {
    let builder = LockManager::builder(&role::arg("locks")).tolerate_outage(COUNTING);
    #[cfg(feature = "tls")]
    let builder = match role::arg("roots").as_str() {
        "" => builder,
        roots => builder.tls(relatch::Tls::new().roots(roots)),
    };
    let locks = builder.build_lazily().expect("options that can work");
    role::report("ready");
    role::next_line();
    count_with(
        &locks,
        &role::arg("url"),
        2,
        40,
        How::parse(&role::arg("how")),
    );
}

/// What four processes with two threads each count to. Without a lost update, it is 320.
fn total_of_processes(how: How) -> u64 {
    let server = Server::start();
    count_in_processes(&server, &server.url(), "", how);
    total(&server)
}

/// Has four processes with two threads each increment the counter, under a lock at `locks`. If that
/// is an address for TLS, the processes trust `roots`.
pub(crate) fn count_in_processes(server: &Server, locks: &str, roots: &str, how: How) {
    let (url, how) = (&*server.bare_url(), &*format!("{how:?}"));
    let args = [
        ("url", url),
        ("locks", locks),
        ("roots", roots),
        ("how", how),
    ];
    let mut children = [(); 4].map(|()| Worker::spawn("count", &args));
    for child in &children {
        child.expect_line("ready", COUNTING);
    }
    for child in &mut children {
        child.send("go");
    }
    for child in &mut children {
        assert!(child.wait(COUNTING).success());
    }
    assert!(!server.exists("lock:a"));
}

fn total_of_threads(how: How) -> u64 {
    let server = Server::start();
    count(&server, 8, 50, how);
    assert!(!server.exists("lock:a"));
    total(&server)
}

#[test]
fn threads_lose_no_update_under_the_lock() {
    assert_eq!(total_of_threads(How::Locked), 400);
}

#[test]
fn threads_lose_no_update_under_a_reentrant_lock() {
    assert_eq!(total_of_threads(How::Reentrant), 400);
}

#[test]
fn threads_lose_updates_without_the_lock() {
    assert!(
        total_of_threads(How::Bare) < 400,
        "the other tests prove nothing"
    );
}

#[test]
fn processes_lose_no_update_under_the_lock() {
    assert_eq!(total_of_processes(How::Locked), 320);
}

#[test]
fn processes_lose_no_update_under_a_reentrant_lock() {
    assert_eq!(total_of_processes(How::Reentrant), 320);
}

#[test]
fn processes_lose_updates_without_the_lock() {
    assert!(
        total_of_processes(How::Bare) < 320,
        "the other tests prove nothing"
    );
}

/// Has processes count under a lock of a cluster while `change` is done over and over, at least
/// `least` times. The counter is elsewhere.
fn loses_no_update_while(cluster: &Cluster, least: u32, change: impl Fn() + Sync) {
    let server = Server::start();
    let (mut expected, done, changes) = (0, AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let _end = SetOnDrop(&done);
        let changing = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                change();
                changes.fetch_add(1, Ordering::SeqCst);
            }
        });
        while changes.load(Ordering::SeqCst) < least {
            assert!(!changing.is_finished(), "the cluster cannot be changed");
            count_in_processes(&server, &cluster.url(), "", How::Locked);
            expected += 320;
        }
    });
    println!("{expected} increments, {changes:?} changes");
    assert_eq!(total(&server), expected);
}

#[test]
fn processes_lose_no_update_while_the_slot_of_the_lock_moves() {
    let cluster = Cluster::without_replicas();
    let slot = cluster.slot_of("a");
    loses_no_update_while(&cluster, 10, || {
        let moving = cluster.begin_move(slot, (cluster.owner(slot) + 1) % 3);
        moving.move_keys();
        moving.end();
    });
}

#[test]
fn processes_lose_no_update_while_the_master_of_the_lock_is_failed_over() {
    let cluster = Cluster::start();
    loses_no_update_while(&cluster, 2, || {
        cluster.fail_over(cluster.replicas_of(cluster.node_of("a"))[0]);
    });
}

#[test]
fn managers_of_one_process_exclude_each_other() {
    let server = Server::start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| count(&server, 2, 25, How::Locked));
        }
    });
    assert_eq!(total(&server), 200);
}

#[test]
fn a_thread_that_waits_behind_another_of_its_process_sends_nothing() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    // A renewal is sent, too, if the waits take long.
    let guard = locks.named("a").renew(false).lock().expect("locks");
    thread::scope(|scope| {
        server.reset_stats();
        let waiter = scope.spawn(|| {
            assert!(locks.try_lock("a").expect("answers").is_none());
            assert!(
                locks
                    .named("a")
                    .try_lock_for(WAIT)
                    .expect("answers")
                    .is_none()
            );
            assert!(
                locks
                    .named("a")
                    .wait(WAIT)
                    .lock()
                    .expect_err("busy")
                    .is_timeout()
            );
        });
        waiter.join().expect("no panic");
        let sent: Vec<_> = TRAFFIC
            .iter()
            .map(|it| (it, server.calls(it)))
            .filter(|sent| sent.1 > 0)
            .collect();
        assert!(
            sent.is_empty() && guard.is_valid(),
            "{sent:?}, {:?}",
            guard.verify()
        );
    });
    assert_eq!(guard.depth(), 1);
}

#[test]
#[cfg(target_os = "linux")]
fn threads_take_the_lock_in_the_order_in_which_they_asked() {
    const THREADS: usize = 6;
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let held = locks.lock("a").expect("locks");
    let (reported, order) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (asks, asking) = mpsc::channel();
            let (locks, reported) = (&locks, reported.clone());
            scope.spawn(move || {
                let me = locks
                    .lock(format!("{number}"))
                    .map(|_guard| relatch::Owner::current().thread);
                asks.send(me.expect("runs")).expect("awaited");
                let guard = locks.lock("a").expect("locks");
                reported.send(number).expect("awaited");
                drop(guard);
            });
            until_queued(asking.recv().expect("the thread asks"));
        }
        drop(held);
    });
    assert_eq!(
        order.try_iter().collect::<Vec<_>>(),
        (0..THREADS).collect::<Vec<_>>()
    );
}

#[test]
fn one_pooled_connection_serves_many_threads() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .pool_size(1)
        .wait(COUNTING)
        .build()
        .expect("connects");
    let others = LockManager::connect(&server.url()).expect("connects");
    thread::scope(|scope| {
        for number in 0..32 {
            let locks = if number % 4 == 0 { &others } else { &locks };
            scope.spawn(move || {
                for round in 0..4 {
                    let key = format!("{}", (number + round) % 3);
                    locks
                        .with_lock(key, thread::yield_now)
                        .expect("the waiter's turn comes");
                }
            });
        }
    });
    assert!(server.connections() <= 1 + 8);
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
}
