//! Processes and threads that are stopped, suspended, forked, killed, or end with a lock.

use std::fs;
use std::mem::forget;
use std::net::TcpListener;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockGuard, LockManager, SystemCause, Unlocked};
use relatch_rig::rights::login;
use relatch_rig::{
    Cluster, LONG, Proxy, Server, Worker, compile_preload, eventually, role, within,
};
use tempfile::TempDir;

use crate::support::{MINUTE, Rig, behind, occupy, returns_by, until_tracked};

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(3);

/// A lease that a test can wait for.
const LEASE: Duration = Duration::from_millis(600);

/// A rig with leases and waits that a test can wait for.
fn rig() -> Rig {
    Rig::with_defaults(|builder| builder.lease(LEASE).wait(LONG / 4))
}

/// A second manager for the same server, which stands for another process.
fn others(server: &Server) -> LockManager {
    LockManager::builder(&server.url())
        .wait(LONG / 4)
        .build()
        .expect("connects")
}

/// A process that takes the lock `a` on request.
fn worker(launcher: &[&str], url: &str, lease: Duration) -> Worker {
    let lease = lease.as_millis().to_string();
    let child = Worker::spawn_under(
        launcher,
        "worker",
        &[("url", url), ("lease", &lease), ("reclaim", "no")],
    );
    child.expect_line("ready", LONG);
    child
}

#[test]
fn row_01_a_process_stopped_past_its_lease_sees_an_invalid_lock_first() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let lease = 4 * LEASE;
    let mut child = worker(&["env"], &proxy.url(), lease);
    let token = child.ask("lock");
    eventually(LONG, "the hold is renewed", || {
        proxy.commands("EVALSHA") >= 3
    });
    assert_eq!(child.ask("valid"), "true");
    child.send("watch");
    child.expect_line("watching", LONG);
    child.stop();
    assert_eq!(server.get("lock:a"), Some(token));
    let guard = within(lease + SLACK, "the lease", || others(&server).lock("a")).expect("locks");

    proxy.black_hole(true); // From now on, no answer comes from Redis.
    child.cont();
    assert_eq!(child.expect_line("", LONG), "false");
    assert_eq!(child.ask("valid"), "false");
    assert!(child.ask("again").contains("Lost"));
    proxy.black_hole(false);
    let unlocked = child.ask("unlock");
    assert!(unlocked.contains("Lost"), "{unlocked}");
    assert_eq!(
        server.get("lock:a").as_deref(),
        Some(guard.token()),
        "the other's key is untouched"
    );
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// Looking up a name takes longer than the connect timeout, as if the first name server were dead.
#[test]
fn the_time_to_look_up_a_name_does_not_count_as_time_to_connect() {
    let server = Server::start();
    let dir = TempDir::new().expect("a temporary directory");
    let preload = format!(
        "LD_PRELOAD={}",
        compile_preload("slow_names", dir.path()).display()
    );
    let url = server.url().replace("127.0.0.1", "localhost");
    let child = Worker::spawn_under(
        &["env", &preload],
        "resolver",
        &[("url", &url), ("limit", "300")],
    );
    child.expect_line("Ok(Released)", LONG);
}

/// What listens at the first address of the server's name accepts connections and is silent, or
/// closes them. It may be tried again, but not first: Redis is at the second address.
#[test]
fn the_next_address_of_a_name_is_tried_if_the_first_one_answers_nothing() {
    let (server, cluster) = (Server::start(), Cluster::without_replicas());
    let dir = TempDir::new().expect("a temporary directory");
    let preload = format!(
        "LD_PRELOAD={}",
        compile_preload("two_addresses", dir.path()).display()
    );
    let at = |address: &str| {
        address
            .rsplit(':')
            .next()
            .and_then(|it| it.parse().ok())
            .expect("a port")
    };
    for (url, port) in [
        ("redis", server.port()),
        ("redis+cluster", at(&cluster.address(0))),
    ] {
        let url = format!("{url}://{}twofold:{port}/", login());
        // Bound once: a process that another test forks keeps a closed listener for a moment, in
        // which its address could not be bound again.
        let other = TcpListener::bind(("127.0.0.2", port)).expect("a free address");
        other.set_nonblocking(true).expect("a listener");
        for closes in [false, true] {
            // Unless it is told to accept, the system does it.
            let child = Worker::spawn_under(
                &["env", &preload],
                "resolver",
                &[("url", &url), ("limit", "3000")],
            );
            let until = Instant::now() + LONG;
            while closes && Instant::now() < until && !child.printed().contains("Ok(Released)") {
                drop(other.accept());
                thread::sleep(Duration::from_millis(1));
            }
            child.expect_line("Ok(Released)", LONG);
        }
    }
}

/// Takes and releases a lock of a Redis that has a name.
pub(crate) fn resolve_as_told() {
    let limit = Duration::from_millis(role::arg("limit").parse().expect("milliseconds"));
    let locks = LockManager::builder(&role::arg("url"))
        .connect_timeout(limit)
        .build_lazily();
    let locks = locks.expect("options that can work");
    role::report(format!("{:?}", locks.lock("a").and_then(LockGuard::unlock)));
}

#[test]
fn row_02_a_machine_suspended_past_the_lease_sees_an_invalid_lock_first() {
    let server = Server::start();
    let dir = TempDir::new().expect("a temporary directory");
    let shim = compile_preload("wall_clock", dir.path());
    let (new, offset) = (dir.path().join("new"), dir.path().join("offset"));
    let suspend_for = |seconds: &str| {
        fs::write(&new, seconds).expect("a file can be written");
        fs::rename(&new, &offset).expect("a file can be renamed");
    };
    let preload = format!("LD_PRELOAD={}", shim.display());
    let clock = format!("BOOT_CLOCK_OFFSET={}", offset.display());
    let mut child = worker(&["env", &preload, &clock], &server.url(), LONG);
    child.ask("lock");
    assert_eq!(child.ask("valid"), "true");

    suspend_for("5");
    let remaining: u128 = child.ask("remaining").parse().expect("a number");
    assert!(
        (9_000..15_000).contains(&remaining),
        "{remaining} ms of 20 s, after a sleep of 5 s"
    );
    assert_eq!(child.ask("valid"), "true");

    suspend_for("20");
    // Redis, on a machine that stayed awake, has given the lock to another holder.
    server.query::<()>(&["SET", "lock:a", "somebody", "PX", "60000"]);
    assert_eq!(child.ask("valid"), "false");
    assert_eq!(child.ask("remaining"), "0");
    let again = child.ask("again");
    assert!(again.contains("Lost"), "{again}");
    let unlocked = child.ask("unlock");
    assert!(unlocked.contains("Lost"), "{unlocked}");
    assert_eq!(server.get("lock:a").as_deref(), Some("somebody"));
}

/// One thread sleeps until Redis reports a change. Another is the second in the queue of another
/// lock, and waits behind threads without a limit.
#[test]
fn a_wait_ends_at_its_deadline_though_the_machine_was_suspended_meanwhile() {
    let server = Server::start();
    for key in ["a", "b"] {
        occupy(&server, key, 60 * LONG);
    }
    let dir = TempDir::new().expect("a temporary directory");
    let (shim, offset) = (
        compile_preload("wall_clock", dir.path()),
        dir.path().join("offset"),
    );
    let preload = format!("LD_PRELOAD={}", shim.display());
    let clock = format!("BOOT_CLOCK_OFFSET={}", offset.display());
    let mut child = Worker::spawn_under(
        &["env", &preload, &clock],
        "two waiters",
        &[("url", &server.url())],
    );
    until_tracked(&server, 2);
    assert_eq!(child.ask("wait"), "asleep");
    fs::write(&offset, "100").expect("a file can be written");
    for _ in 0..2 {
        child.expect_line("timed out", LONG / 4);
    }
}

/// Waits for `a`, and after a line from the parent also for `b`, behind two threads.
pub(crate) fn wait_as_told() {
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    let wait = |key| {
        let taken = locks.named(key).wait(LONG).lock();
        assert!(matches!(taken, Err(Error::Timeout { .. })), "{taken:?}");
        role::report("timed out");
    };
    let endless = || drop(locks.lock("b")); // It lasts until the parent kills this process.
    thread::scope(|scope| {
        scope.spawn(|| wait("a"));
        scope.spawn(endless);
        role::next_line(); // Both sleep until Redis reports a change.
        behind(scope, endless);
        behind(scope, || wait("b"));
        role::report("asleep");
    });
}

#[test]
fn row_02_a_machine_suspended_for_part_of_the_lease_renews_on_resume() {
    let server = Server::start();
    let dir = TempDir::new().expect("a temporary directory");
    let (shim, offset) = (
        compile_preload("wall_clock", dir.path()),
        dir.path().join("offset"),
    );
    let (preload, clock) = (
        format!("LD_PRELOAD={}", shim.display()),
        format!("BOOT_CLOCK_OFFSET={}", offset.display()),
    );
    let mut child = worker(&["env", &preload, &clock], &server.url(), LONG);
    child.ask("lock");
    // The next renewal is due by now. By a clock that stops during suspend, it would be due in 6 s.
    fs::write(&offset, "10").expect("a file can be written");
    eventually(Duration::from_secs(3), "the hold is renewed", || {
        server.calls("pexpire") >= 1
    });
    assert_eq!(child.ask("valid"), "true");
}

#[test]
fn row_25_a_fork_of_a_process_with_a_lock_does_not_hold_it() {
    fork("yes");
}

#[test]
fn row_25_a_fork_of_a_process_without_a_lock_cannot_use_its_manager() {
    fork("no");
}

#[test]
fn a_fork_of_a_process_with_a_lock_in_memory_ends() {
    let dir = TempDir::new().expect("a temporary directory");
    let preload = format!(
        "LD_PRELOAD={}",
        compile_preload("fork", dir.path()).display()
    );
    let mut child = Worker::spawn_under(&["env", &preload], "forker-in-memory", &[]);
    child.expect_line("fine", LONG);
    assert!(child.wait(LONG).success());
}

#[test]
fn a_process_and_its_fork_draw_different_tokens() {
    let server = Server::start();
    let dir = TempDir::new().expect("a temporary directory");
    let preload = format!(
        "LD_PRELOAD={}",
        compile_preload("fork", dir.path()).display()
    );
    let mut child = Worker::spawn_under(&["env", &preload], "drawer", &[("url", &server.url())]);
    let nonces = [(); 2].map(|()| {
        let token = child.expect_line("", LONG);
        token.rsplit('-').next().expect("a nonce").to_owned()
    });
    assert!(child.wait(LONG).success());
    // In a copy of the whole machine, host, process and thread are the same as well.
    assert_ne!(
        nonces[0], nonces[1],
        "the same token, but for the process id"
    );
}

/// A role: builds a manager while the system starts only `left` threads, and then without a limit.
pub(crate) fn build_as_told() {
    let (url, left) = (
        role::arg("url"),
        std::env::var("THREADS_LEFT").expect("a path"),
    );
    let locks = || LockManager::builder(&url);
    fs::write(&left, role::arg("left")).expect("a file can be written");
    let refused = match role::arg("left").as_str() {
        // The first thread is a trial, the second is the pool's.
        "0" | "1" => vec![locks().build().map(drop), locks().build_lazily().map(drop)],
        // The third thread is the keeper.
        // If the lock were kept, `lock` below would wait for ever.
        _ => vec![
            locks()
                .build()
                .expect("connects")
                .named("a")
                .keep_at_least(MINUTE)
                .lock()
                .map(drop),
        ],
    };
    fs::remove_file(&left).expect("it can be removed");
    for error in refused.into_iter().map(|it| it.expect_err("refused")) {
        let source = std::error::Error::source(&error)
            .expect("what the system said")
            .to_string();
        assert!(
            matches!(
                error,
                Error::System {
                    cause: SystemCause::NoThread,
                    ..
                }
            ),
            "{error:?}"
        );
        role::report(source);
    }
    let guard = locks().build().expect("connects").lock("a").expect("locks");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn a_manager_whose_threads_cannot_start_is_an_error() {
    let dir = TempDir::new().expect("a temporary directory");
    let shim = compile_preload("no_threads", dir.path());
    for left in ["0", "1", "2"] {
        let server = Server::start();
        let file = dir.path().join(left);
        let preload = format!("LD_PRELOAD={}", shim.display());
        let threads = format!("THREADS_LEFT={}", file.display());
        let args = [("url", &*server.url()), ("left", left)];
        let mut child = Worker::spawn_under(&["env", &preload, &threads], "builder", &args);
        let status = child.wait(LONG);
        assert!(
            status.success(),
            "{left} threads: {status}; {}",
            child.printed()
        );
        assert!(
            !server.exists("lock:a"),
            "{left} threads: the lock is given back"
        );
    }
}

/// Waits until nothing has been sent for a while, so that threads that have just started send
/// nothing later.
fn until_quiet(proxy: &Proxy) {
    let (mut sent, mut since) = (0, Instant::now());
    eventually(LONG, "nothing is sent", || {
        let now = proxy.log().len();
        if now != sent {
            (sent, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(200)
    });
}

/// Forks a process that holds the lock `a` (if `holding` is `yes`), and checks that the copy does
/// not use the parent's connections. The role `forker` checks what both processes see.
fn fork(holding: &str) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let dir = TempDir::new().expect("a temporary directory");
    let preload = format!(
        "LD_PRELOAD={}",
        compile_preload("fork", dir.path()).display()
    );
    let url = proxy.url();
    let args = [("url", &*url), ("holding", holding)];
    let mut child = Worker::spawn_under(&["env", &preload], "forker", &args);
    child.expect_line("forking", LONG);
    let token = server.get("lock:a");
    assert_eq!(token.is_some(), holding == "yes");
    until_quiet(&proxy);
    let (sent, connections) = (proxy.log_in_full(), proxy.connections_accepted());
    child.send("fork");
    let ended = child.expect_line("the copy", LONG);
    assert!(ended.contains("Some(0)"), "{ended}: {}", child.wait(LONG));
    assert_eq!(proxy.log_in_full(), sent, "over the parent's connections");
    assert_eq!(server.get("lock:a"), token);
    child.send("go on");
    child.expect_line("fine", LONG);
    assert!(child.wait(LONG).success());
    assert_eq!(
        proxy.connections_accepted(),
        connections,
        "the parent's connections stayed open"
    );
    assert!(!server.exists("lock:a") && !server.exists("lock:b"));
}

#[test]
fn row_26_a_lock_whose_guard_was_forgotten_by_an_ended_thread_expires() {
    let rig = rig();
    thread::scope(|scope| {
        scope.spawn(|| {
            forget(rig.locks.lock("a").expect("locks"));
            eventually(LONG, "the hold is renewed", || {
                rig.locks.stats().renewed >= 2
            });
        });
    });
    let (sent, renewed) = (rig.proxy.log_in_full(), rig.locks.stats().renewed);
    let left = Duration::from_millis(
        rig.server
            .pttl("lock:a")
            .try_into()
            .expect("the key is still there"),
    );
    let start = Instant::now();
    let guard = others(&rig.server)
        .lock("a")
        .expect("locks after the lease");
    let took = start.elapsed();
    assert!(
        (left.saturating_sub(LEASE / 10)..left + SLACK).contains(&took),
        "{took:?} for {left:?}"
    );
    assert_eq!(
        rig.proxy.log_in_full(),
        sent,
        "neither renewed nor released"
    );
    assert_eq!(rig.locks.stats().renewed, renewed);
    assert!(guard.is_valid());
}

#[test]
fn row_26_a_thread_that_ends_with_a_forgotten_guard_leaves_the_next_its_turn() {
    let rig = rig();
    let (has, is_held) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            forget(rig.locks.lock("a").expect("locks"));
            has.send(()).expect("awaited");
            // When this thread ends, the other one waits already.
            eventually(LONG, "the hold is renewed", || {
                rig.locks.stats().renewed >= 2
            });
        });
        is_held.recv().expect("the lock is held");
        let guard =
            within(LEASE * 3 + SLACK, "one lease more", || rig.locks.lock("a")).expect("locks");
        assert!(guard.is_valid());
        assert_eq!(rig.server.get("lock:a").as_deref(), Some(guard.token()));
        eventually(LONG, "the new hold is renewed", || {
            rig.locks.stats().renewed >= 4
        });
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    });
}

#[test]
fn row_26_a_forgotten_guard_is_renewed_until_max_hold() {
    let (lease, limit) = (2 * LEASE, 4 * LEASE);
    let rig = rig();
    let lock = rig.locks.named("a").lease(lease).max_hold(limit);
    let start = Instant::now();
    let guard = lock.lock().expect("locks");
    let watch = guard.watch();
    forget(guard);
    let _ = watch.wait_lost(LONG).expect("the hold is lost at last");
    let took = start.elapsed();
    assert!((limit..limit + lease + SLACK).contains(&took), "{took:?}");
    assert!(
        rig.locks.stats().renewed >= 4,
        "{:?}",
        rig.locks.stats().renewed
    );
    assert!(lock.lock().expect_err("a guard is alive").is_lost());
    let other = || others(&rig.server).lock("a").map(drop);
    let taken =
        thread::scope(|scope| within(SLACK, "Redis has let go", || scope.spawn(other).join()));
    taken.expect("no panic").expect("locks");
}

#[test]
fn row_26_the_lock_of_a_process_that_exits_expires() {
    let server = Server::start();
    let mut child = worker(&["env"], &server.url(), LEASE);
    let token = child.ask("lock");
    eventually(LONG, "the hold is renewed", || server.calls("pexpire") >= 2);
    child.send("exit");
    assert_eq!(child.wait(SLACK).code(), Some(7));
    assert_eq!(
        server.get("lock:a"),
        Some(token),
        "the lock was not released"
    );
    drop(within(LEASE + SLACK, "the lease", || others(&server).lock("a")).expect("locks"));
}

#[test]
fn row_26_the_lock_of_a_thread_that_panics_is_released() {
    let rig = rig();
    let panicked = thread::scope(|scope| {
        let held = || -> LockGuard {
            let (_outer, _inner) = (
                rig.locks.lock("a").expect("locks"),
                rig.locks.lock("a").expect("again"),
            );
            assert!(rig.server.exists("lock:a"));
            resume_unwind(Box::new("no message"))
        };
        scope.spawn(move || drop(held())).join()
    });
    assert!(panicked.is_err());
    assert!(!rig.server.exists("lock:a"));
    assert!(rig.locks.held().is_empty());
    let sent = rig.proxy.log();
    assert!(others(&rig.server).try_lock("a").expect("asks").is_some());
    assert_eq!(rig.proxy.log(), sent);
}

#[test]
fn row_28_the_lock_of_a_killed_process_is_free_after_its_lease() {
    let lease = Duration::from_secs(1);
    // The waiter has 100 ms after the lease: these 50 ms, and 50 ms that `returns_by` adds.
    returns_by(Duration::from_millis(50), "what the lease had left", || {
        let server = Server::start();
        let ours = others(&server);
        let mut child = worker(&["env"], &server.url(), lease);
        child.ask("lock");
        eventually(LONG, "the hold is renewed", || server.calls("pexpire") >= 1);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                ours.lock("a")
                    .map(|guard| (guard.is_valid(), Instant::now()))
            });
            eventually(LONG, "another waits", || ours.stats().waited == 1);
            child.kill();
            let before = Instant::now();
            let left = Duration::from_millis(
                server
                    .pttl("lock:a")
                    .try_into()
                    .expect("the key is still there"),
            );
            let after = Instant::now();
            let (valid, taken) = waiter.join().expect("no panic").expect("locks");
            let (took, early) = (taken - before, Duration::from_millis(20));
            assert!(valid);
            assert!(
                left > lease / 4 && took + early >= left,
                "{took:?} for a lease with {left:?} left"
            );
            // `left` counts from Redis's answer, which came between `before` and `after`.
            let late = taken.saturating_duration_since(after + left);
            assert!(late < Duration::from_secs(1), "{late:?}");
            late
        })
    });
}
