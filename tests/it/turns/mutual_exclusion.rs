//! One holder at a time: a counter without atomic increments loses no update. In a process, one
//! turn follows another in one round trip.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use redis::{Client, Connection};
use relatch::{LockManager, Owner, Unlocked};
use relatch_rig::{LONG, Server, Worker, role};

use crate::support::{LISTENING, MINUTE, Rig};

/// A limit that is longer than all increments take together.
pub(crate) const COUNTING: Duration = Duration::from_secs(60);

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

#[test]
fn processes_lose_no_update_under_the_lock() {
    assert_eq!(total_of_processes(How::Locked), 320);
}

#[test]
fn processes_lose_updates_without_the_lock() {
    assert!(
        total_of_processes(How::Bare) < 320,
        "the other tests prove nothing"
    );
}

/// Threads count their turns without atomic increments, so the count is too low if two of them have
/// the lock at a time. A thread that waits for another one sends nothing.
#[test]
fn a_turn_costs_one_set_and_one_release() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 100;
    const TURNS: u64 = THREADS * ROUNDS;
    // The timeout is long, because an answer that came too late on a busy machine would cost more
    // commands.
    let rig = &Rig::with(|builder| builder.local_handoff(MINUTE).response_timeout(LONG));
    let count = &AtomicU64::new(0);
    // A thread that is alone hands nothing off.
    let all = &Barrier::new(usize::try_from(THREADS).expect("a few"));
    let turn = |_| {
        let guard = rig.locks.lock("a").expect("locks");
        let before = count.load(Ordering::Relaxed);
        thread::yield_now();
        count.store(before + 1, Ordering::Relaxed);
        assert!(guard.is_valid());
        let owner = Owner::parse(guard.token());
        assert_eq!(owner, Some(Owner::current()));
        let token = guard.token().to_owned();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        token
    };
    let tokens: HashSet<_> = thread::scope(|scope| {
        let turns = || {
            all.wait();
            (0..ROUNDS).map(turn).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(turns)).collect();
        let ends = threads.into_iter().map(|it| it.join().expect("no panic"));
        ends.flatten().collect()
    });
    assert_eq!(count.load(Ordering::Relaxed), TURNS);
    assert_eq!(tokens.len() as u64, TURNS, "each turn has its own token");
    let calls = ["set", "evalsha", "get"].map(|it| rig.server.calls(it));
    assert_eq!(calls, [TURNS; 3], "the `GET`s are those of the releases");
    let others = rig.server.total_calls(&["eval", "pttl"]) + rig.server.total_calls(&LISTENING);
    assert_eq!(others, 0);
    let stats = rig.locks.stats();
    assert!(
        stats.handed_off > TURNS / 2 && stats.handed_off < TURNS,
        "{stats:?}"
    );
    assert_eq!((stats.acquired, stats.lost), (TURNS + 1, 0));
}
