//! What the tests here share: managers behind a proxy, how their locks look in Redis, and how soon
//! something has to happen. Servers, proxy and workers, which do not use relatch, are in
//! `tests/rig`.

// The roles of worker processes.
pub(crate) mod worker_roles;
// The server behind `hostile_server`: it replies as Redis does, except to one command.
pub(crate) mod lying_server;
// What that server replies to this command: garbage.
pub(crate) mod garbage_replies;

use std::error::Error as StdError;
use std::iter;
#[cfg(target_os = "linux")]
use std::sync::mpsc;
#[cfg(target_os = "linux")]
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use relatch::{Builder, Error, LockGuard, LockManager, LockParcel, LostCause, Unlocked};
use relatch_rig::rights::{self, least_rights};
use relatch_rig::{
    CLAIM, Fault, LONG, Proxy, Server, Terminator, eventually, server_version, within,
};

/// How long the managers of a rig wait for a connection, and for an answer.
pub(crate) const ANSWER: Duration = Duration::from_millis(300);

/// How much later than its limit a call may return.
pub(crate) const LATE: Duration = Duration::from_millis(100);

/// A short time for a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// A lease whose end no test waits for.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A short time from one renewal to the next.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// A lease that a test can wait for.
pub(crate) const LEASE: Duration = Duration::from_millis(600);

/// The script of a renewal.
const RENEW: &str = include_str!("../../../src/client/commands/lua/renew.lua");

/// The commands that set up invalidations. (A server before 7 counts `client` with all its
/// subcommands.)
pub(crate) const LISTENING: [&str; 4] = ["client", "client|id", "client|tracking", "subscribe"];

/// A manager that reaches its server through a proxy.
pub(crate) struct Rig {
    pub(crate) locks: LockManager,
    pub(crate) proxy: Proxy,
    pub(crate) server: Server,
    /// In front of the proxy, for a manager that uses TLS.
    _terminator: Option<Terminator>,
}

/// How a rig's manager is connected to the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    Tcp,
    #[cfg(feature = "tls")]
    Tls,
}

impl Rig {
    /// With timeouts that no busy machine reaches: see [`unhurried`].
    pub(crate) fn new() -> Rig {
        Rig::with(|builder| builder)
    }

    /// Like [`new`](Rig::new), with further settings.
    pub(crate) fn with(change: impl FnOnce(Builder) -> Builder) -> Rig {
        Rig::at(Over::Tcp, |url| change(unhurried(url)))
    }

    /// With timeouts that a test can wait for ([`builder`]), with or without TLS. Faults strike what
    /// is inside of it.
    pub(crate) fn over(over: Over, change: impl FnOnce(Builder) -> Builder) -> Rig {
        Rig::at(over, |url| change(builder(url)))
    }

    fn at(over: Over, configure: impl FnOnce(&str) -> Builder) -> Rig {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let (builder, terminator) = match over {
            Over::Tcp => (configure(&proxy.url()), None),
            #[cfg(feature = "tls")]
            Over::Tls => {
                let terminator = Terminator::start(proxy.port());
                let tls = relatch::Tls::new().roots(terminator.roots());
                (configure(&terminator.url()).tls(tls), Some(terminator))
            }
        };
        let locks = builder.build_lazily().expect("options that can work");
        // The timeouts are short here, and the machine may be busy.
        eventually(LONG, "the manager connects", || {
            locks.named("warm-up").holder().is_ok()
        });
        // Makes Redis load the scripts of a release and of a waiter's attempt.
        drop(locks.lock("warm-up").expect("locks"));
        server.query::<String>(&["SCRIPT", "LOAD", CLAIM]);
        server.reset_stats();
        Rig {
            locks,
            proxy,
            server,
            _terminator: terminator,
        }
    }

    /// The value of a lock's key.
    pub(crate) fn value_of(&self, name: &str) -> Option<String> {
        self.server.get(&format!("lock:{name}"))
    }

    /// The tokens that were sent for a lock, in order.
    pub(crate) fn tokens_sent(&self, name: &str) -> Vec<String> {
        let sent = self.proxy.log_in_full().into_iter();
        let key = format!("lock:{name}");
        sent.filter(|it| it[0] == "SET" && it[1] == key)
            .map(|it| it[2].clone())
            .collect()
    }

    /// Waits until Redis has executed `sets` `SET` commands and the key is gone.
    #[track_caller]
    pub(crate) fn assert_removed(&self, name: &str, sets: u64) {
        eventually(LONG, "the SET is executed", || {
            self.server.calls("set") >= sets
        });
        // Long before its lease ends.
        eventually(LONG / 2, "the orphaned key is removed", || {
            self.value_of(name).is_none()
        });
    }

    /// Checks that the lock can be taken quickly and released, and that its key has the hold's
    /// token.
    #[track_caller]
    pub(crate) fn assert_works(&self, name: &str) {
        let guard = within(LONG / 4, "a free lock", || self.locks.lock(name)).expect("locks");
        assert_eq!(self.value_of(name).as_deref(), Some(guard.token()));
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert_eq!(self.value_of(name), None);
    }
}

/// A builder whose managers wait for [`ANSWER`] and tolerate an outage of four times that.
pub(crate) fn builder(url: &str) -> Builder {
    let builder = LockManager::builder(url)
        .connect_timeout(ANSWER)
        .response_timeout(ANSWER);
    builder.tolerate_outage(4 * ANSWER)
}

/// A builder whose managers take no slow answer for an outage.
pub(crate) fn unhurried(url: &str) -> Builder {
    LockManager::builder(url)
        .connect_timeout(LONG / 2)
        .response_timeout(LONG / 2)
}

/// A manager with the default settings, but for its timeouts.
#[track_caller]
pub(crate) fn connect(server: &Server) -> LockManager {
    unhurried(&server.url()).build().expect("connects")
}

/// A plain connection of the `redis` crate.
pub(crate) fn redis_connection(url: &str) -> Connection {
    let client = Client::open(url).expect("a valid address");
    let connection = client.get_connection_with_timeout(LONG).expect(url);
    connection.set_read_timeout(Some(LONG)).expect("a timeout");
    connection
}

/// What an attempt to take a lock returns.
pub(crate) type Taken = Result<Option<LockGuard>, Error>;

pub(crate) type Take = fn(&LockManager, &str) -> Taken;

/// The ways to take a lock.
pub(crate) const WAYS: [(&str, Take); 3] = [
    ("lock", |locks, name| locks.lock(name).map(Some)),
    ("try_lock", |locks, name| locks.try_lock(name)),
    ("try_lock_for", |locks, name| {
        locks.named(name).try_lock_for(10 * ANSWER)
    }),
];

#[track_caller]
pub(crate) fn assert_unavailable(taken: &Taken) {
    assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
}

#[track_caller]
pub(crate) fn assert_lost<T: std::fmt::Debug>(result: &Result<T, Error>, wanted: LostCause) {
    let is_wanted = matches!(result, Err(Error::Lost { cause, .. }) if *cause == wanted);
    assert!(is_wanted, "{result:?}, not {wanted:?}");
}

/// An error and all its sources.
pub(crate) fn chain(error: &Error) -> String {
    let first: &dyn StdError = error;
    let all = iter::successors(Some(first), |&error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Faults after which Redis has executed the command, and the reply breaks off or is no RESP.
pub(crate) fn broken_replies() -> [Fault; 3] {
    let garbage = Fault::Replace(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    [Fault::CutBeforeReply, Fault::HalfReply, garbage]
}

/// Checks that one of up to ten calls returns at most 100 ms after `limit`. A busy machine may delay
/// a call, but hardly ten.
#[track_caller]
pub(crate) fn returns_by(limit: Duration, what: &str, mut timed: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    while took.len() < 10 && took.last().is_none_or(|&last| last > limit + LATE) {
        took.push(timed());
    }
    let in_time = took.last().is_some_and(|&last| last <= limit + LATE);
    assert!(in_time, "{what}: {took:?}, not by {limit:?}");
}

/// Runs a test that has to end before the sentinels demote the old master, at most ten times. The
/// test returns false if it came too late: then it has shown nothing.
#[track_caller]
pub(crate) fn before_the_demotion(mut test: impl FnMut() -> bool) {
    assert!((0..10).any(|_| test()), "ten times, the test came too late");
}

/// The beginning of each command that renews a lock, for a proxy's rule. Loads the script of a
/// renewal into Redis.
pub(crate) fn renewals_of(server: &Server, name: &str) -> String {
    format!(
        "EVALSHA {} 1 lock:{name}",
        server.query::<String>(&["SCRIPT", "LOAD", RENEW])
    )
}

/// How often a lock was renewed, as its manager says.
pub(crate) fn renewals(locks: &LockManager, name: &str) -> u32 {
    locks
        .held()
        .iter()
        .find(|it| it.key == name)
        .map_or(0, |it| it.renewals)
}

/// How long a hold is valid for: a little less than its lease.
pub(crate) fn trusted(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}

/// Gives a lock to a holder that does not use this crate.
#[track_caller]
pub(crate) fn occupy(server: &Server, name: &str, lease: Duration) {
    let millis = lease.as_millis().to_string();
    server.query::<()>(&["SET", &format!("lock:{name}"), "somebody", "PX", &millis]);
}

/// Deletes a lock's key.
#[track_caller]
pub(crate) fn delete(server: &Server, name: &str) {
    server.query::<()>(&["DEL", &format!("lock:{name}")]);
}

/// Waits until Redis tracks this many keys: then the waiters for these keys sleep until an
/// invalidation.
///
/// A new listener tests whether invalidations come, with a key of its own. Through a proxy, Redis
/// may execute the commands of that test one by one, and track that key for a moment. The `DEL` is
/// the last of these commands.
#[track_caller]
pub(crate) fn until_tracked(server: &Server, keys: u64) {
    eventually(LONG, "the listener was tested", || server.calls("del") > 0);
    eventually(LONG, "the waiters wait for an invalidation", || {
        server.tracked_keys() == keys
    });
}

/// Waits for a lock, releases it, and returns when it was taken.
pub(crate) fn take(locks: &LockManager, name: &str) -> Instant {
    let guard = locks
        .named(name)
        .try_lock_for(LONG)
        .expect("answers")
        .expect("the lock becomes free");
    let at = Instant::now();
    assert!(matches!(guard.unlock(), Ok(Unlocked::Released)));
    at
}

/// A hold whose next renewal is far away, and whose key is tracked.
#[track_caller]
pub(crate) fn tracked_hold(server: &Server, locks: &LockManager, name: &str) -> LockGuard {
    let tracked = server.tracked_keys();
    let guard = locks.named(name).lease(MINUTE).lock().expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    eventually(5 * SOON, "the key is tracked", || {
        server.tracked_keys() > tracked
    });
    guard
}

type Injure = fn(&Server, &str);

/// What happens to a lock's key, how that is done, and the cause that the holder learns.
pub(crate) const INJURIES: [(&str, Injure, LostCause); 6] = [
    (
        "deleted",
        |server, key| server.query(&["DEL", key]),
        LostCause::Deleted,
    ),
    (
        "flushed",
        |server, _| server.query(&["FLUSHALL"]),
        LostCause::Deleted,
    ),
    (
        "replaced",
        |server, key| server.query(&["SET", key, "other", "PX", "60000"]),
        LostCause::Taken,
    ),
    (
        "a list",
        |server, key| {
            let script = "redis.call('DEL', KEYS[1]) return redis.call('RPUSH', KEYS[1], 'other')";
            server.query::<()>(&["EVAL", script, "1", key]);
        },
        LostCause::Taken,
    ),
    // As if the server's clock had jumped ahead.
    (
        "expired early",
        |server, key| server.query(&["PEXPIREAT", key, "1"]),
        LostCause::Deleted,
    ),
    ("evicted", evict, LostCause::Deleted),
];

fn evict(server: &Server, key: &str) {
    server.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    eventually(LONG, "the key is evicted", || !server.exists(key));
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
}

/// Starts a thread that runs `body`, which waits for a lock of another thread of this process.
/// Returns when the thread waits.
#[cfg(target_os = "linux")]
pub(crate) fn behind<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    body: impl FnOnce() -> T + Send + 's,
) -> ScopedJoinHandle<'s, T> {
    let (asks, asking) = mpsc::channel();
    let thread = scope.spawn(move || {
        let id = rustix::thread::gettid().as_raw_nonzero().get();
        asks.send(u64::try_from(id).expect("positive"))
            .expect("awaited");
        body()
    });
    until_queued(asking.recv().expect("the thread asks"));
    thread
}

/// Waits until a thread of this process is in the wait queue. The thread must be taking a lock that
/// another thread of the process holds, so that it sleeps only there.
#[cfg(target_os = "linux")]
#[track_caller]
pub(crate) fn until_queued(thread: u64) {
    let mut looks = 0;
    eventually(3 * LONG, "the waiter waits", || {
        looks = if sleeps(thread) { looks + 1 } else { 0 };
        looks == 5
    });
}

/// Whether a thread of this process sleeps, as the system sees it, or has ended.
#[cfg(target_os = "linux")]
fn sleeps(thread: u64) -> bool {
    // A thread that has ended will not wait any more, so nothing has to wait for it.
    let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else {
        return true;
    };
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// A server with a user who has these rights, and that user's address.
pub(crate) fn server_for(rights: &[&str]) -> (Server, String) {
    let server = Server::start();
    grant(&server, rights);
    let url = format!("redis://worker:canary@127.0.0.1:{}/", server.port());
    (server, url)
}

/// Gives the user of [`server_for`] these rights, and no others.
pub(crate) fn grant(server: &Server, rights: &[&str]) {
    let user = [
        "ACL",
        "SETUSER",
        "worker",
        "reset",
        "on",
        ">canary",
        "resetchannels",
        "-@all",
    ];
    server.query::<()>(&[&user, rights, rights::in_cluster()].concat());
}

/// The least rights without these.
pub(crate) fn without(missing: &[&str]) -> Vec<&'static str> {
    least_rights()
        .into_iter()
        .filter(|right| !missing.contains(right))
        .collect()
}

/// Whether an error names the missing right, in the words of any server. Redis 7.0 says "the keys
/// used as arguments" and "the channels"; later servers say "a key" and "a channel". Servers before
/// 7 name a command without its subcommand.
pub(crate) fn names_right(text: &str, right: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_lowercase() && c != '|');
    let mut said = |any_of: &[&str]| words.any(|it| any_of.contains(&it));
    match right.split_at(1) {
        ("+", command) => said(&[name_of_command(command)]),
        ("~", _) => said(&["keys", "key"]),
        ("&", _) => said(&["channels", "channel"]),
        _ => panic!("what kind of right is {right}?"),
    }
}

/// The name under which a server refuses a command. A server before 7 says `client` for
/// `client|id`.
pub(crate) fn name_of_command(command: &str) -> &str {
    let whole = command.split('|').next().expect("a first part");
    if server_version() >= (7, 0) {
        command
    } else {
        whole
    }
}

/// How much of the lease was left when a lock was handed over: the first number of the parcel.
pub(crate) fn lease_left(parcel: &LockParcel) -> Duration {
    let text = parcel.to_string();
    let millis = text.split(':').nth(1).and_then(|it| it.parse().ok());
    Duration::from_millis(millis.expect("a number"))
}
