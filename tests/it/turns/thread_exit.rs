//! What runs when a thread ends: managers and guards in thread-locals, and locks that a
//! thread-local takes as it is dropped.
//!
//! A thread's locals are dropped one after the other; the last one that the thread began to use is
//! dropped first. So a local of the program may be dropped before or after the map in which relatch
//! keeps the thread's holds. It may also be dropped after the locals of other libraries, which
//! panic if they are used then. Such a panic aborts the process.

use std::cell::RefCell;
use std::process;
use std::thread;
use std::time::Duration;

use relatch::{LockGuard, LockManager};
use relatch_rig::{LONG, Server, Worker, eventually, role, throughout};

use crate::support::PERIOD;

/// The lease of a lock: a key that is not released stays for longer than a test waits.
const LEASE: Duration = Duration::from_secs(60);

/// Whether the program's local is first used before relatch's map or after the map. If before, the
/// map is gone when the local is dropped.
const ORDERS: [&str; 2] = ["before", "after"];

/// How the thread ends: it returns, or it ends the process, as a main thread does.
const ENDS: [&str; 2] = ["returns", "exits"];

/// Runs an action when the thread's locals are dropped.
struct Last(Option<Box<dyn FnOnce()>>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(deed) = self.0.take() {
            deed();
        }
    }
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last(None)) };
}

/// A role: a process with a thread that ends, and a thread-local that acts when it is dropped.
pub(crate) fn end_as_told() {
    if role::arg("end") == "returns" {
        return thread::spawn(prepare).join().expect("no panic");
    }
    prepare();
    process::exit(0); // Drops the locals of the thread that calls it.
}

fn prepare() {
    if role::arg("order") == "before" {
        LAST.with(|_| ());
    }
    let builder = LockManager::builder(&role::arg("url"))
        .lease(LEASE)
        .wait(LONG);
    let builder = builder.on_lost(|_| role::report("a lock was lost"));
    let locks = builder.build().expect("connects");
    let least = match &*role::arg("deed") {
        "keep" => LONG / 2,
        _ => Duration::ZERO,
    };
    let lock = locks.named("a").renew_every(PERIOD).keep_at_least(least);
    let guard = lock.lock().expect("locks");
    if role::arg("threads") == "all" {
        eventually(LONG, "the keeper and the listener run", || {
            locks.stats().renewed > 0
        });
        let lost = locks.lock("lost").expect("locks");
        let _ = locks.named("lost").force_unlock().expect("deletes");
        let watch = lost.watch();
        let _ = lost.verify().expect_err("the key is deleted");
        let _ = watch.wait_lost(LONG).expect("the hold is lost");
    }
    let deed = deed(&role::arg("deed"), locks, guard);
    LAST.with(|last| last.borrow_mut().0 = Some(deed));
    role::report("prepared");
}

fn deed(name: &str, locks: LockManager, guard: LockGuard) -> Box<dyn FnOnce()> {
    match name {
        "drop both" => Box::new(move || drop((guard, locks))),
        "drop the manager first" => Box::new(move || drop((locks, guard))),
        "drop the guard" => Box::new(move || {
            drop(guard);
            eventually(LONG, "the lock is released", || {
                locks.named("a").holder().expect("answers").is_none()
            });
        }),
        "keep" => Box::new(move || {
            drop(guard);
            throughout(PERIOD, || {
                assert!(
                    locks.named("a").holder().expect("answers").is_some(),
                    "it was deleted"
                );
            });
        }),
        "drop the manager" => {
            drop(guard);
            Box::new(move || drop(locks))
        }
        "unlock" => Box::new(move || {
            role::report(format!("{:?}", guard.unlock().map_err(|it| it.to_string())));
        }),
        "reenter" => Box::new(move || {
            let again = locks.named("a").wait(Duration::ZERO).lock();
            role::report(format!(
                "{:?}",
                again.map(|it| it.depth()).map_err(|it| it.is_timeout())
            ));
            drop(guard);
        }),
        "lock others" => Box::new(move || {
            drop(locks.lock("b").expect("locks"));
            drop(locks.try_lock("c").expect("asks"));
            drop(locks.named("d").try_lock_for(LONG).expect("asks"));
            assert_eq!(locks.with_lock("e", || 5).expect("locks"), 5);
            let long = locks.lock("f").expect("locks");
            assert!(long.is_valid() && long.remaining() > Duration::ZERO);
            long.ensure(LEASE / 2).expect("the lock is held");
            long.set_lease(2 * LEASE).expect("the lock is held");
            long.verify().expect("the lock is held");
            drop(long);
            let forced = locks.named("a").force_unlock().expect("answers");
            assert!(forced.is_some(), "the lock was held");
            drop(guard);
            // Another holder has this lock.
            drop(locks.lock("foreign").expect("locks when its lease is over"));
            eventually(LONG, "all are released", || {
                ["a", "b", "c", "d", "e", "f"]
                    .iter()
                    .all(|key| locks.named(key).holder().expect("answers").is_none())
            });
        }),
        other => panic!("no such deed: {other}"),
    }
}

fn keys(server: &Server) -> Vec<String> {
    server.query(&["KEYS", "*"])
}

/// Runs the role for each pair of [`ORDERS`] and [`ENDS`]. `check` judges the result by the order.
fn end(deed: &str, threads: &str, check: impl Fn(&Server, &str, &Worker) + Sync) {
    let check = &check;
    let one = |order: &str, end: &str| {
        let server = Server::start();
        let url = server.url();
        if deed == "lock others" {
            server.query::<()>(&["SET", "lock:foreign", "somebody", "PX", "2000"]);
        }
        let args = [
            ("url", &*url),
            ("deed", deed),
            ("order", order),
            ("end", end),
            ("threads", threads),
        ];
        let mut child = Worker::spawn("ender", &args);
        child.expect_line("prepared", LONG);
        let status = child.wait(LONG);
        assert!(
            status.success(),
            "{deed}, {order}, {end}: {status}; {}",
            child.printed()
        );
        check(&server, order, &child);
        eventually(LONG, "no key outlasts its lease", || {
            keys(&server).is_empty()
        });
    };
    thread::scope(|scope| {
        for order in ORDERS {
            for end in ENDS {
                scope.spawn(move || one(order, end));
            }
        }
    });
}

#[test]
fn a_manager_dropped_as_a_thread_local_stops_its_threads() {
    end("drop the manager", "all", |server, _, _| {
        assert!(!server.exists("lock:a"));
    });
}

#[test]
fn a_guard_dropped_as_a_thread_local_is_released() {
    for deed in ["drop the guard", "drop both", "drop the manager first"] {
        end(deed, "all", |server, order, _| {
            assert!(!server.exists("lock:a"), "{deed}, {order}");
        });
    }
    end("unlock", "few", |_, order, child| {
        let said = child.expect_line("", LONG);
        assert!(said.contains("Ok(Released)"), "{order}: {said}");
    });
}

#[test]
fn a_lock_to_be_kept_is_not_deleted_as_its_thread_ends() {
    end("keep", "few", |server, order, _| {
        let value = server.get("lock:a").expect("it is there");
        assert!(value.starts_with("kept:"), "{order}: {value}");
    });
}

/// It may wait for them, and force-unlock its own.
#[test]
fn a_thread_local_can_take_locks_as_it_is_dropped() {
    for threads in ["few", "all"] {
        end("lock others", threads, |server, _, _| {
            assert!(keys(server).is_empty());
        });
    }
}

#[test]
fn a_thread_local_can_reenter_a_lock_only_while_the_map_of_holds_exists() {
    end("reenter", "few", |_, order, child| {
        let said = child.expect_line("", LONG);
        let expected = if order == "after" {
            "Ok(2)"
        } else {
            "Err(true)"
        };
        assert_eq!(said, expected, "{order}");
    });
}
