//! Threads that wait for each other: who closes the cycle learns it at once, and the others go on.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, Lock, LockManager};
use relatch_rig::{LONG, Server, Worker, eventually, role};

#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{ANSWER, LATE, LEASE, MINUTE, PERIOD, SOON, connect, occupy};

/// How soon the thread that closes a cycle learns it.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Thread `n` takes lock `n` of `keys`, waits until all have done so, and then takes the next
/// thread's lock. One of them closes the cycle. Checks its error, and that the others get their
/// locks.
fn in_a_circle(managers: &[&LockManager], keys: &[&str]) {
    let all_hold = Barrier::new(keys.len());
    let started = Instant::now();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..keys.len())
            .map(|n| {
                let (all_hold, locks) = (&all_hold, managers[n % managers.len()]);
                scope.spawn(move || {
                    let mine = locks.lock(keys[n]).expect("locks");
                    all_hold.wait();
                    let next = locks.lock(keys[(n + 1) % keys.len()]).map(drop);
                    mine.unlock().expect("it was held all the time");
                    (n, next)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect()
    });
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    let failed: Vec<_> = outcomes
        .into_iter()
        .filter(|(_, next)| next.is_err())
        .collect();
    let [(closer, Err(error))] = &failed[..] else {
        panic!("one of them learns it: {failed:?}")
    };
    let Error::WouldDeadlock { key, cycle, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(key, keys[(closer + 1) % keys.len()]);
    let named: Vec<_> = cycle.iter().map(|it| it.key.as_str()).collect();
    let wanted: Vec<_> = (1..=keys.len())
        .map(|step| keys[(closer + step) % keys.len()])
        .collect();
    assert_eq!(named, wanted, "each waits for the lock of the next");
    let text = error.to_string();
    for blocked in cycle {
        assert!(
            text.contains(&format!("thread {} waits for", blocked.thread.thread)),
            "{text}"
        );
    }
}

#[test]
fn row_33_who_closes_a_cycle_of_two_threads_learns_it_and_the_other_goes_on() {
    let server = Server::start();
    in_a_circle(&[&connect(&server)], &["a", "b"]);
}

#[test]
fn a_cycle_may_have_many_threads_and_lead_through_several_managers() {
    let server = Server::start();
    let [one, two, three] = [(); 3].map(|()| connect(&server));
    in_a_circle(&[&one], &["a", "b", "c", "d", "e"]);
    in_a_circle(&[&one, &two, &three], &["a", "b", "c"]);
}

#[test]
fn the_error_comes_at_once() {
    let server = Server::start();
    let (locks, theirs) = (connect(&server), connect(&server));
    thread::scope(|scope| {
        let outer = locks.lock("a").expect("locks");
        let other = scope.spawn(|| {
            let guard = theirs.lock("b").expect("locks");
            theirs.lock("a").map(|inner| drop((inner, guard)))
        });
        eventually(LONG, "the other thread waits", || {
            theirs.waiting().len() == 1
        });
        let asked = Instant::now();
        let error = locks
            .lock("b")
            .expect_err("the other waits for this thread");
        assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
        assert!(matches!(error, Error::WouldDeadlock { .. }), "{error:?}");
        assert!(outer.is_valid(), "what it holds stays");
        drop(outer);
        other.join().expect("no panic").expect("the other goes on");
    });
}

/// The wait that would end first fails in any case, so it ends now. The other one is disturbed by
/// nothing, whichever of them closes the cycle.
#[test]
fn of_a_circle_the_wait_with_the_shorter_limit_ends_at_once() {
    let server = Server::start();
    let (locks, theirs) = (connect(&server), connect(&server));
    thread::scope(|scope| {
        let guard = locks.lock("a").expect("locks");
        let brief = scope.spawn(|| {
            let guard = theirs.lock("b").expect("locks");
            let taken = theirs.named("a").wait(MINUTE).lock().map(drop);
            let told = Instant::now();
            drop(guard);
            (taken, told)
        });
        eventually(LONG, "the other thread waits", || {
            theirs.waiting().len() == 1
        });
        let asked = Instant::now();
        locks.lock("b").map(drop).expect("the other lets go");
        drop(guard);
        let (taken, told) = brief.join().expect("no panic");
        assert!(told - asked < AT_ONCE, "{:?}", told - asked);
        let error = taken.expect_err("its wait ends");
        assert!(
            matches!(&error, Error::WouldDeadlock { key, .. } if key == "a"),
            "{error:?}"
        );
    });
}

/// A hold that is lost keeps nobody waiting.
#[test]
fn a_hold_that_is_lost_makes_no_deadlock() {
    let server = Server::start();
    let (locks, elsewhere) = (connect(&server), connect(&server));
    thread::scope(|scope| {
        let guard = elsewhere.lock("a").expect("locks");
        let other = scope.spawn(|| {
            let guard = locks.named("b").lease(LEASE).renew_every(PERIOD).lock();
            let taken = locks.lock("a").map(drop);
            drop(guard);
            taken
        });
        eventually(LONG, "the other thread waits", || {
            locks.waiting().len() == 1
        });
        // This thread sleeps, and does not just find the lock free.
        occupy(&server, "b", LEASE);
        eventually(LONG, "the keeper finds the loss", || {
            locks.stats().lost == 1
        });
        locks
            .lock("b")
            .map(drop)
            .expect("free when somebody's lease ends");
        drop(guard);
        let taken = other.join().expect("no panic");
        assert!(
            matches!(&taken, Err(Error::OuterLost { outer, .. }) if outer == "b"),
            "{taken:?}"
        );
    });
}

/// The end of a hold would end the wait, and its thread would go on without its lock.
#[test]
fn a_hold_that_will_be_lost_excuses_no_deadlock() {
    let server = Server::start();
    let ways: [fn(Lock) -> Lock; 2] = [|lock| lock.renew(false), |lock| lock.max_hold(MINUTE)];
    for change in ways {
        let locks = connect(&server);
        thread::scope(|scope| {
            let guard = change(locks.named("a").lease(MINUTE))
                .lock()
                .expect("locks");
            let other = scope.spawn(|| {
                let guard = change(locks.named("b").lease(MINUTE))
                    .lock()
                    .expect("locks");
                let inner = locks.lock("a").map(drop);
                guard.unlock().expect("it was held all the time");
                inner
            });
            eventually(LONG, "the other thread waits", || {
                locks.waiting().len() == 1
            });
            let closed = locks.lock("b").map(drop);
            assert!(
                matches!(closed, Err(Error::WouldDeadlock { .. })),
                "{closed:?}"
            );
            guard.unlock().expect("it was held all the time");
            other.join().expect("no panic").expect("the lock is free");
        });
    }
    let (first, second) = (connect(&server), connect(&server));
    let guard = first.named("a").renew(false).lock().expect("locks");
    let own = second.lock("a").map(drop);
    assert!(matches!(own, Err(Error::WouldDeadlock { .. })), "{own:?}");
    drop(guard);
}

/// Nothing waits, so nothing waits for itself.
#[test]
fn a_single_try_of_a_lock_that_the_thread_holds_through_another_manager_is_busy() {
    let server = Server::start();
    let (first, second) = (connect(&server), connect(&server));
    let guard = first.lock("a").expect("locks");
    assert!(second.try_lock("a").expect("it answers").is_none());
    // Nor if another thread asks Redis, and has learnt who the holder is.
    thread::scope(|scope| {
        let other = scope.spawn(|| second.named("a").wait(2 * LONG).lock().map(drop));
        eventually(LONG, "it knows the holder", || {
            second.waiting().iter().any(|it| it.holder.is_some())
        });
        assert!(second.try_lock("a").expect("it answers").is_none());
        guard.unlock().expect("it was held all the time");
        other.join().expect("no panic").expect("it is free");
    });
    assert!(second.try_lock("a").expect("it answers").is_some());
}

/// A thread that has waited, and still holds what it held meanwhile, waits for nobody.
#[test]
fn a_wait_that_is_over_closes_no_cycle() {
    let server = Server::start();
    let (locks, theirs) = (connect(&server), connect(&server));
    let (done, is_done) = mpsc::channel::<()>();
    let (inside, is_inside) = mpsc::channel();
    thread::scope(|scope| {
        let b = theirs.lock("b").expect("locks");
        let locks = &locks;
        scope.spawn(move || {
            let _a = locks.lock("a").expect("locks");
            drop(locks.lock("b").expect("free in the end"));
            inside.send(()).expect("awaited");
            let _ = is_done.recv();
        });
        eventually(LONG, "the other thread waits", || {
            locks.waiting().len() == 1
        });
        drop(b);
        is_inside.recv().expect("it has had the lock");
        let _b = locks.lock("b").expect("locks");
        let error = locks.named("a").wait(ANSWER).lock().expect_err("busy");
        assert!(error.is_timeout(), "the other waits for nobody: {error:?}");
        drop(done);
    });
}

/// One thread sleeps, and knows only of the first holder. The second holder closes the cycle.
#[test]
#[cfg(target_os = "linux")]
fn a_holder_that_changes_during_the_wait_closes_the_cycle() {
    let server = Server::start();
    // However long the first hold lasts, the second one follows it without a turn for others.
    let one = LockManager::builder(&server.url())
        .local_handoff(MINUTE)
        .build()
        .expect("connects");
    let seldom = LockManager::builder(&server.url())
        .client_tracking(false)
        .poll_every(ANSWER);
    let two = seldom.build().expect("connects");
    let errors = thread::scope(|scope| {
        let k = one.lock("k").expect("locks");
        let first = scope.spawn(|| {
            let _s = two.lock("s").expect("locks");
            two.lock("k").map(drop)
        });
        eventually(LONG, "it waits for this thread", || {
            two.waiting().len() == 1
        });
        let second = behind(scope, || {
            let _k = one.lock("k").expect("handed off");
            one.lock("s").map(drop)
        });
        drop(k);
        let end = Instant::now() + LONG;
        while !(first.is_finished() && second.is_finished()) && Instant::now() < end {
            thread::sleep(LATE);
        }
        // If nobody learns it, both wait for ever, and so would this test.
        for locks in [&one, &two] {
            let _ = locks.shutdown(Duration::ZERO);
        }
        [first, second].map(|it| it.join().expect("no panic"))
    });
    let found = errors
        .iter()
        .filter(|it| matches!(it, Err(Error::WouldDeadlock { .. })))
        .count();
    assert_eq!(found, 1, "{errors:?}");
}

#[test]
fn a_timeout_lists_what_the_waiter_held() {
    let server = Server::start();
    let (here, there) = (connect(&server), connect(&server));
    occupy(&server, "c", MINUTE);
    let error = here.named("c").wait(ANSWER).lock().expect_err("busy");
    assert!(
        matches!(&error, Error::Timeout { held, .. } if held.is_empty()),
        "{error:?}"
    );
    let _outer = (
        here.lock("a").expect("locks"),
        there.lock("b").expect("locks"),
    );
    let error = thread::scope(|scope| {
        let _elsewhere = scope
            .spawn(|| here.lock("x").map(drop))
            .join()
            .expect("no panic");
        here.named("c").wait(ANSWER).lock().expect_err("busy")
    });
    assert!(
        matches!(&error, Error::Timeout { held, .. } if held == &["a", "b"]),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains("this thread held \"a\", \"b\" meanwhile"),
        "{error}"
    );
    let error = here
        .named("c")
        .wait(Duration::ZERO)
        .lock()
        .expect_err("busy");
    assert!(
        matches!(&error, Error::Timeout { held, .. } if held == &["a", "b"]),
        "{error:?}"
    );
}

/// Nobody knows of both waits. So each lasts until its deadline, and the error says what to look
/// for.
#[test]
fn row_33_a_deadlock_of_two_processes_ends_by_the_deadline() {
    let server = Server::start();
    let locks = connect(&server);
    let mut other = Worker::spawn("embracer", &[("url", &server.url())]);
    let guard = locks.lock("a").expect("locks");
    let owner = other.expect_line("", LONG);
    other.send("take a");
    assert_eq!(other.expect_line("takes", LONG), "takes a");
    let error = locks.named("b").wait(SOON).lock().expect_err("busy");
    let Error::Timeout {
        holder: Some(holder),
        held,
        waited,
        ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(
        (held.as_slice(), holder.owner().map(|it| it.to_string())),
        (&["a".to_owned()][..], Some(owner))
    );
    assert!(*waited >= SOON && *waited < LONG, "{waited:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("lock \"b\" was still busy after ") && text.contains(&holder.to_string()),
        "{text}"
    );
    drop(guard);
    assert_eq!(other.expect_line("has", LONG), "has a");
    other.send("end");
    assert!(other.wait(LONG).success());
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
}

/// Takes `b` and then, when told to, `a`.
pub(crate) fn embrace_as_told() {
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    let outer = locks.lock("b").expect("locks");
    role::report(relatch::Owner::current());
    role::next_line();
    role::report("takes a");
    let inner = locks
        .named("a")
        .wait(LONG)
        .lock()
        .expect("the other gives up");
    role::report("has a");
    drop((outer, inner));
    role::next_line();
}

/// Threads that take two locks in opposite orders, and let go when they learn it: all make
/// progress.
#[test]
fn threads_that_let_go_after_the_error_make_progress() {
    let server = Server::start();
    let locks = connect(&server);
    let start = Instant::now();
    thread::scope(|scope| {
        for keys in [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]] {
            let locks = &locks;
            scope.spawn(move || {
                let mut done = 0;
                while done < 50 {
                    let _outer = locks.lock(keys[0]).expect("one lock is no deadlock");
                    match locks.lock(keys[1]) {
                        Ok(_) => done += 1,
                        Err(Error::WouldDeadlock { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(start.elapsed() < LONG + LATE, "{:?}", start.elapsed());
}
