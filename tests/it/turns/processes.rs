//! Processes and threads that are stopped, suspended, forked, killed, or end with a lock.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockManager, SystemCause, Unlocked};
use relatch_rig::{LONG, Proxy, Server, Worker, compile_preload, eventually, role, within};
use tempfile::TempDir;

use crate::support::{MINUTE, SOON};

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(5);

/// A lease that a test can wait for, and that lasts for as long as the machine is busy.
const LEASE: Duration = Duration::from_secs(4);

/// A second manager for the same server, which stands for another process.
fn others(server: &Server) -> LockManager {
    LockManager::builder(&server.url())
        .wait(LONG)
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
    let mut child = worker(&["env"], &proxy.url(), LEASE);
    let token = child.ask("lock");
    eventually(LONG, "the hold is renewed", || {
        proxy.commands("EVALSHA") >= 2
    });
    assert_eq!(child.ask("valid"), "true");
    child.send("watch");
    child.expect_line("watching", LONG);
    child.stop();
    assert_eq!(server.get("lock:a"), Some(token));
    let guard = within(LEASE + SLACK, "the lease", || others(&server).lock("a")).expect("locks");

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

/// Runs `script` with a process that holds the lock `a`, and whose machine it can suspend: a shim
/// shows the process a later time.
fn suspended(server: &Server, script: impl FnOnce(&mut Worker, &dyn Fn(&str))) {
    let dir = TempDir::new().expect("a temporary directory");
    let shim = compile_preload("wall_clock", dir.path());
    let (new, offset) = (dir.path().join("new"), dir.path().join("offset"));
    let suspend_for = |seconds: &str| {
        fs::write(&new, seconds).expect("a file can be written");
        fs::rename(&new, &offset).expect("a file can be renamed");
    };
    let preload = format!("LD_PRELOAD={}", shim.display());
    let clock = format!("BOOT_CLOCK_OFFSET={}", offset.display());
    let mut child = worker(&["env", &preload, &clock], &server.url(), MINUTE);
    child.ask("lock");
    assert_eq!(child.ask("valid"), "true");
    script(&mut child, &suspend_for);
}

#[test]
fn row_02_a_machine_suspended_past_the_lease_sees_an_invalid_lock_first() {
    let server = Server::start();
    suspended(&server, |child, suspend_for| {
        suspend_for("30");
        let remaining: u128 = child.ask("remaining").parse().expect("a number");
        assert!(
            (10_000..30_000).contains(&remaining) || server.calls("pexpire") > 0,
            "{remaining} ms of a minute, after a sleep of 30 s"
        );
        suspend_for("120");
        // Redis, on a machine that stayed awake, has given the lock to another holder.
        server.query::<()>(&["SET", "lock:a", "somebody", "PX", "60000"]);
        assert_eq!(child.ask("valid"), "false");
        assert_eq!(child.ask("remaining"), "0");
        for call in ["again", "unlock"] {
            let told = child.ask(call);
            assert!(told.contains("Lost"), "{told}");
        }
        assert_eq!(server.get("lock:a").as_deref(), Some("somebody"));
    });
}

/// The next renewal is due then. By a clock that stops during suspend, it would be due in 18 s.
#[test]
fn row_02_a_machine_suspended_for_part_of_the_lease_renews_on_resume() {
    let server = Server::start();
    suspended(&server, |child, suspend_for| {
        let renewals = || server.calls("pexpire");
        eventually(LONG, "the hold is renewed", || renewals() > 0);
        // When its listener listens, it is renewed once more. Too short a time can only make this
        // green.
        thread::sleep(2 * SOON);
        let before = renewals();
        suspend_for("30");
        eventually(LONG / 2, "it is renewed again", || renewals() > before);
        assert_eq!(child.ask("valid"), "true");
    });
}

/// A process whose C library's `sync` forks (see `tests/rig/preload/fork.c`).
fn forking(role: &str, url: &str) -> (TempDir, Worker) {
    let dir = TempDir::new().expect("a temporary directory");
    let fork = compile_preload("fork", dir.path());
    let preload = format!("LD_PRELOAD={}", fork.display());
    let child = Worker::spawn_under(&["env", &preload], role, &[("url", url)]);
    (dir, child)
}

/// The role `forker` checks what both processes see.
#[test]
fn row_25_a_fork_of_a_process_with_a_lock_does_not_hold_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (_dir, mut child) = forking("forker", &proxy.url());
    child.expect_line("forking", LONG);
    let token = server.get("lock:a");
    assert!(token.is_some());
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

/// Waits until nothing has been sent for a while, so that threads that have just started send
/// nothing later.
fn until_quiet(proxy: &Proxy) {
    let (mut sent, mut since) = (0, Instant::now());
    eventually(LONG, "nothing is sent", || {
        let now = proxy.log().len();
        if now != sent {
            (sent, since) = (now, Instant::now());
        }
        since.elapsed() > SOON
    });
}

#[test]
fn a_fork_of_a_process_with_a_lock_in_memory_ends() {
    let (_dir, mut child) = forking("forker-in-memory", "");
    child.expect_line("fine", LONG);
    assert!(child.wait(LONG).success());
}

#[test]
fn a_process_and_its_fork_draw_different_tokens() {
    let server = Server::start();
    let (_dir, mut child) = forking("drawer", &server.url());
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

/// The lock is not released, and a waiter of another process has it when the lease ends.
fn ends(end: impl FnOnce(&mut Worker)) {
    let early = Duration::from_millis(20);
    let server = Server::start();
    let ours = others(&server);
    let mut child = worker(&["env"], &server.url(), LEASE);
    let token = child.ask("lock");
    eventually(LONG, "the hold is renewed", || server.calls("pexpire") >= 1);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = ours.lock("a").expect("locks");
            assert!(guard.is_valid());
            Instant::now()
        });
        eventually(LONG, "another waits", || ours.stats().waited == 1);
        end(&mut child);
        let before = Instant::now();
        assert_eq!(server.get("lock:a"), Some(token), "it was released");
        let left = server.pttl("lock:a").try_into().expect("the key is there");
        let left = Duration::from_millis(left);
        let took = waiter.join().expect("no panic") - before;
        assert!(
            (left.saturating_sub(early)..left + SLACK).contains(&took),
            "{took:?} for a lease with {left:?} left"
        );
    });
}

#[test]
fn row_26_the_lock_of_a_process_that_exits_expires() {
    ends(|child| {
        child.send("exit");
        assert_eq!(child.wait(SLACK).code(), Some(7));
    });
}

#[test]
fn row_28_the_lock_of_a_killed_process_is_free_after_its_lease() {
    ends(Worker::kill);
}
