//! Readers beside each other, and a writer alone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::Connection;
use relatch::{DetachedHold, Error, LockManager, LostCause, ReadWriteLock};
use relatch_rig::{LONG, Server, Worker, eventually, role};

use crate::slots::semaphore::{says, under_kills};
use crate::support::{ANSWER, LEASE, MINUTE, PERIOD, Rig, SOON, connect, redis_connection};

/// Reads, and leaves it to nobody.
fn read(cache: &ReadWriteLock) -> DetachedHold {
    let guard = cache.read_lock().lock().expect("reads");
    guard.detach().expect("detaches")
}

fn others(server: &Server) -> LockManager {
    let builder = LockManager::builder(&server.url()).poll_every(MINUTE);
    builder.wait(LONG).build().expect("connects")
}

#[test]
fn readers_are_beside_each_other_and_a_writer_is_alone() {
    for locks in [&Rig::new().locks, &LockManager::in_memory()] {
        let cache = locks.read_write("a", 3);
        let readers = [(); 2].map(|()| read(&cache));
        assert!(cache.try_with_write(|| {}).expect("asks").is_none());
        assert!(
            cache.try_with_read(|| {}).expect("asks").is_some(),
            "the gate is open again"
        );
        drop(readers);
        let writing = cache
            .write_lock()
            .lock()
            .expect("writes")
            .detach()
            .expect("detaches");
        assert!(cache.try_with_write(|| {}).expect("asks").is_none());
        assert!(cache.try_with_read(|| {}).expect("asks").is_none());
        drop(writing);
        assert_eq!(cache.with_read(|| 5).expect("reads"), 5);
        assert_eq!(cache.with_write(|| 6).expect("writes"), 6);
        let free = cache.read_lock().holders().expect("answers").is_empty();
        assert!(free && cache.write_lock().holder().expect("answers").is_none());
    }
}

#[test]
fn a_thread_enters_again_and_never_waits_for_itself() {
    let rig = Rig::with(|builder| builder.wait(LONG));
    let cache = rig.locks.read_write("a", 3);
    cache
        .with_write_result(|outer| {
            cache.with_write(|| assert_eq!(outer.depth(), 2))?;
            cache.with_read_result(|inner| {
                assert_eq!(inner.slot(), Some(1));
                cache.with_write(|| assert_eq!(outer.depth(), 2))
            })
        })
        .expect("writes");
    cache
        .with_read_result(|outer| {
            let error = cache.with_write(|| {}).expect_err("it reads");
            assert!(matches!(error, Error::WouldDeadlock { .. }), "{error:?}");
            assert!(outer.is_valid());
            Ok::<(), Error>(())
        })
        .expect("reads");
    // A writer waits at the gate, and the reader reads again.
    let reading = cache.read_lock().lock().expect("reads");
    thread::scope(|scope| {
        let writer = scope.spawn(|| cache.with_write(|| {}));
        eventually(LONG, "the writer has the gate", || {
            rig.server.exists("lock:{a}#0")
        });
        cache
            .with_read(|| assert_eq!(reading.depth(), 2))
            .expect("reads again");
        drop(reading);
        writer.join().expect("no panic").expect("writes");
    });
}

/// No wait ends by a poll here.
#[test]
fn a_writer_waits_for_the_readers_that_are_there_and_for_no_other() {
    let rig = Rig::with(|builder| builder.wait(LONG).poll_every(MINUTE));
    for writes in [&rig.locks, &others(&rig.server)] {
        let (cache, theirs) = (rig.locks.read_write("a", 3), writes.read_write("a", 3));
        let mut readers: Vec<_> = (0..2).map(|_| read(&cache)).collect();
        thread::scope(|scope| {
            let writer = scope.spawn(|| theirs.with_write(Instant::now).expect("writes"));
            eventually(LONG, "the writer has the gate", || {
                rig.server.exists("lock:{a}#0")
            });
            let tried = cache.try_with_read(|| {}).expect("asks");
            assert!(tried.is_none(), "the gate is shut");
            let reader_is_named = || {
                let waiting = writes.waiting();
                let holder = waiting.iter().find_map(|it| it.holder.as_ref());
                let tokens = (1..=2).filter_map(|it| rig.server.get(&format!("lock:{{a}}#{it}")));
                holder.is_some_and(|it| tokens.into_iter().any(|token| it.raw == *token))
            };
            eventually(LONG, "the holder is named", reader_is_named);
            let reader = scope.spawn(|| cache.with_read(Instant::now).expect("reads"));
            eventually(LONG, "the slots and the gate are tracked", || {
                rig.server.tracked_keys() >= 3
            });
            drop(readers.pop());
            thread::sleep(ANSWER);
            assert!(!writer.is_finished() && !reader.is_finished());
            let freed = Instant::now();
            drop(readers.pop());
            let wrote = writer.join().expect("no panic");
            assert!(freed <= wrote && wrote <= reader.join().expect("no panic"));
        });
    }
}

#[test]
fn a_writer_that_gives_up_opens_the_gate() {
    let rig = Rig::new();
    let cache = rig.locks.read_write("a", 3);
    let reader = read(&cache);
    let hasty = cache.write_lock().wait(SOON);
    let error = hasty.with_lock(|| {}).expect_err("somebody reads");
    assert!(error.is_timeout(), "{error:?}");
    assert!(!rig.server.exists("lock:{a}#0"));
    cache.with_read(|| {}).expect("reads");
    drop(reader);
    cache.with_write(|| {}).expect("writes");
}

#[test]
fn a_writer_that_loses_its_gate_while_it_waits_does_not_write() {
    let rig = Rig::with(|builder| builder.wait(LONG));
    let cache = rig.locks.read_write("a", 3);
    let reader = read(&cache);
    thread::scope(|scope| {
        let writer = scope.spawn(|| cache.with_write(|| {}));
        eventually(LONG, "the writer waits", || rig.server.tracked_keys() >= 2);
        rig.server
            .query::<()>(&["SET", "lock:{a}#0", "theirs", "PX", "60000"]);
        eventually(LONG / 2, "the writer ends", || writer.is_finished());
        let error = writer
            .join()
            .expect("no panic")
            .expect_err("it has lost the gate");
        assert!(
            matches!(error, Error::Lost { .. } | Error::OuterLost { .. }),
            "{error:?}"
        );
    });
    assert_eq!(rig.server.get("lock:{a}#0").as_deref(), Some("theirs"));
    drop(reader);
}

/// Nothing tells the process that its gate is gone.
#[test]
fn a_writer_proves_its_gate_when_no_reader_is_left() {
    let rig = Rig::with(|it| it.client_tracking(false).poll_every(PERIOD).wait(LONG));
    let reader = read(&others(&rig.server).read_write("a", 3));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            rig.locks
                .read_write("a", 3)
                .with_write(|| panic!("another has the gate"))
        });
        eventually(LONG, "the writer has the gate", || {
            rig.server.exists("lock:{a}#0")
        });
        let theirs = ["SET", "lock:{a}#0", "theirs", "PX", "60000"];
        rig.server.query::<()>(&theirs);
        drop(reader);
        let error = writer
            .join()
            .expect("no panic")
            .expect_err("another has the gate");
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    });
}

#[test]
fn a_wrong_number_of_readers_is_named_and_a_fence_is_the_writers() {
    let rig = Rig::new();
    for count in [0, 65] {
        let cache = rig.locks.read_write("a", count);
        for error in [cache.with_read(|| {}), cache.with_write(|| {})] {
            let error = error.expect_err("no such lock");
            assert!(error.to_string().contains(&count.to_string()), "{error}");
        }
    }
    let cache = rig.locks.read_write("a", 2);
    let read = cache.read_lock().fenced(true).lock().map(drop);
    assert!(matches!(read, Err(Error::NoFence { .. })), "{read:?}");
    let write = cache.write_lock().fenced(true).lock().expect("writes");
    assert!(write.fence() > Some(0));
}

/// Another thread of the process waits at the gate.
#[test]
fn a_writer_reads_though_a_reader_waits_for_it() {
    let locks = LockManager::in_memory();
    let cache = locks.read_write("a", 3);
    let writing = cache.write_lock().lock().expect("writes");
    thread::scope(|scope| {
        let reader = scope.spawn(|| cache.with_read(|| {}));
        eventually(LONG, "a reader waits", || !locks.waiting().is_empty());
        cache.with_read(|| {}).expect("a writer may read");
        drop(writing);
        reader.join().expect("no panic").expect("reads");
    });
}

/// Each caller has a number of readers of its own.
#[test]
fn a_writer_that_knows_of_fewer_readers_waits_for_all() {
    let rig = Rig::with(|builder| builder.wait(LONG));
    let (many, few) = (rig.locks.read_write("a", 5), rig.locks.read_write("a", 3));
    let mut readers: Vec<_> = (0..4).map(|_| read(&many)).collect();
    drop(readers.drain(..3));
    assert!(
        few.try_with_write(|| {}).expect("asks").is_none(),
        "the fourth slot is taken"
    );
    drop(readers);
    let fourth: Vec<_> = (0..3).map(|_| read(&many)).collect();
    many.with_read_result(|guard| {
        assert_eq!(guard.slot(), Some(4));
        let error = few.with_write(|| {}).expect_err("this thread reads");
        assert!(matches!(error, Error::WouldDeadlock { .. }), "{error:?}");
        Ok::<(), Error>(())
    })
    .expect("reads");
    drop(fourth);
}

/// Redis sends no invalidation over the connection that has changed the key.
#[test]
fn a_writer_that_goes_wakes_the_readers_of_its_own_process() {
    let rig = Rig::with(|builder| builder.pool_size(1).wait(LONG).poll_every(MINUTE));
    let cache = rig.locks.read_write("a", 3);
    drop(read(&cache));
    let writing = cache.write_lock().lock().expect("writes");
    thread::scope(|scope| {
        let reader = scope.spawn(|| cache.with_read(|| {}));
        eventually(LONG, "a reader waits", || !rig.locks.waiting().is_empty());
        thread::sleep(ANSWER / 2); // It sleeps by now.
        drop(writing);
        reader.join().expect("no panic").expect("reads");
    });
}

/// Under the name of the gate or a slot, a thread may have a plain lock.
#[test]
fn a_plain_lock_of_that_name_is_no_write_and_no_read() {
    let rig = Rig::with(|builder| builder.wait(LONG));
    let cache = rig.locks.read_write("a", 3);
    let reader = read(&cache);
    let gate = rig.locks.lock("{a}#0").expect("locks");
    let error = cache
        .with_write(|| {})
        .expect_err("it has not waited for the reader");
    assert!(matches!(error, Error::AlreadyHeld { .. }), "{error:?}");
    assert!(cache.write_lock().assert_held().is_err() && cache.write_lock().current().is_none());
    drop((gate, reader));
    let slot = rig.locks.lock("{a}#2").expect("locks");
    let error = cache
        .with_read(|| {})
        .expect_err("it has not passed the gate");
    assert!(matches!(error, Error::AlreadyHeld { .. }), "{error:?}");
    assert!(cache.read_lock().assert_held().is_err());
    drop(slot);
}

#[test]
fn a_writer_that_reads_keeps_both_to_its_thread() {
    let locks = LockManager::in_memory();
    let cache = locks.read_write("a", 3);
    let writing = cache.write_lock().lock().expect("writes");
    let reading = cache.read_lock().lock().expect("reads");
    let refused = reading.detach().map(drop).expect_err("it has both");
    assert!(
        matches!(refused, Error::OtherGuards { depth: 2, .. }),
        "{refused:?}"
    );
    let _reading = cache.read_lock().lock().expect("reads");
    let refused = writing.hand_over().map(drop).expect_err("it has both");
    assert!(
        matches!(refused, Error::OtherGuards { depth: 2, .. }),
        "{refused:?}"
    );
}

#[test]
fn a_writer_that_waits_for_readers_is_listed_and_hears_of_a_loss() {
    let rig = Rig::with(|builder| builder.wait(LONG));
    let cache = rig.locks.read_write("a", 3);
    let reader = read(&cache);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let _outer = rig.locks.lock("b").expect("locks");
            cache.with_write(|| {})
        });
        eventually(LONG, "the writer waits", || rig.server.exists("lock:{a}#0"));
        eventually(LONG, "it is listed", || rig.locks.waiting().len() == 1);
        rig.locks.named("b").force_unlock().expect("deletes");
        eventually(LONG / 2, "the writer ends", || writer.is_finished());
        let error = writer
            .join()
            .expect("no panic")
            .expect_err("it has lost `b`");
        assert!(matches!(error, Error::OuterLost { .. }), "{error:?}");
    });
    assert!(!rig.server.exists("lock:{a}#0"));
    drop(reader);
}

#[test]
fn a_read_of_a_dead_writer_is_reclaimed() {
    let rig = Rig::with(|builder| builder.wait(LONG).reclaim_dead(true));
    let mut dead = Worker::spawn("writer", &[("url", &rig.server.url())]);
    dead.expect_line("writes", LONG);
    dead.kill();
    let cache = rig.locks.read_write("a", 3);
    cache
        .with_read(|| {})
        .expect("reads, long before the lease ends");
}

/// Writes until it is killed.
pub(crate) fn write_as_told() {
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    let _writing = locks
        .read_write("a", 3)
        .write_lock()
        .lock()
        .expect("writes");
    role::report("writes");
    thread::sleep(MINUTE);
}

#[test]
fn a_thread_that_has_the_other_side_through_another_manager_does_not_wait_for_itself() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| connect(&server).read_write("a", 3));
    let refused = |result: Result<(), Error>| {
        let error = result.expect_err("it waits for itself");
        assert!(matches!(error, Error::WouldDeadlock { .. }), "{error:?}");
    };
    one.with_write(|| refused(other.with_read(|| {})))
        .expect("writes");
    one.with_read(|| refused(other.with_write(|| {})))
        .expect("reads");
    one.with_write(|| refused(other.with_write(|| {})))
        .expect("writes");
    one.with_read(|| other.with_read(|| {}).expect("another slot"))
        .expect("reads");
}

/// In memory, a control for tests deletes the gate.
#[test]
fn a_writer_in_memory_that_loses_its_gate_while_it_waits_does_not_write() {
    let locks = LockManager::in_memory();
    let cache = locks.read_write("a", 3);
    let reader = read(&cache);
    thread::scope(|scope| {
        let writer = scope.spawn(|| cache.with_write(|| {}));
        eventually(LONG, "the writer waits", || locks.waiting().len() == 1);
        let memory = locks.memory().expect("it is in memory");
        memory.lose("{a}#0", LostCause::Deleted);
        drop(reader);
        let error = writer
            .join()
            .expect("no panic")
            .expect_err("it has lost the gate");
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    });
}

/// Processes read and write, and one of them is killed every 100 ms.
#[test]
fn killed_processes_leave_no_writer_beside_anybody() {
    let server = Server::start();
    under_kills(&server, "readers", 4, 20);
    let cache = connect(&server).read_write("a", 3);
    let written = cache.write_lock().wait(LONG).lock();
    assert!(written.is_ok(), "{written:?}");
}

/// A hundred thousand acquisitions.
#[test]
#[ignore = "takes minutes: tests/chaos.sh runs it"]
fn many_killed_processes_leave_no_writer_beside_anybody() {
    let server = Server::start();
    let mut taken = 0;
    while taken < 100_000 {
        taken += under_kills(&server, "readers", 32, 300);
    }
    println!("{taken} acquisitions of readers and writers");
    let cache = connect(&server).read_write("a", 3);
    let written = cache.write_lock().wait(LONG).lock();
    assert!(written.is_ok(), "{written:?}");
}

/// Reads in three threads and writes in one, and says if a writer is not alone.
pub(crate) fn read_and_write_as_told() {
    let url = role::arg("url");
    let builder = LockManager::builder(&url).lease(LEASE).wait(LONG);
    let locks = builder.build().expect("connects");
    let (cache, done) = (locks.read_write("a", 3), AtomicU32::new(0));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, done, url) = (&cache, &done, &url);
            scope.spawn(move || {
                let mut redis = redis_connection(url);
                let lock = if thread == 0 {
                    cache.write_lock()
                } else {
                    cache.read_lock()
                };
                loop {
                    let guard = lock.lock().expect("locks");
                    let who = guard.slot().unwrap_or_default();
                    let met = meet(who, guard.token(), &mut redis);
                    if !met.is_empty() && guard.is_valid() {
                        role::report(format!("{who} is beside {met:?}"));
                    }
                    drop(guard);
                    if (done.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(10) {
                        role::report(format!("done {}", done.load(Ordering::Relaxed)));
                    }
                }
            });
        }
    });
}

/// Says in Redis who is inside for a moment. Returns who must not be, but is.
fn meet(who: u32, token: &str, redis: &mut Connection) -> Vec<String> {
    says(who, token, &format!("inside:{who}"), redis);
    thread::sleep(Duration::from_millis(1));
    let forbidden = if who == 0 { 1..=3 } else { 0..=0 };
    let mut met = redis::cmd("MGET");
    forbidden.for_each(|other| _ = met.arg(format!("inside:{other}")));
    let met: Vec<Option<String>> = met.query(redis).expect("answers");
    let mut leaves = redis::cmd("DEL");
    leaves
        .arg(format!("inside:{who}"))
        .query::<()>(redis)
        .expect("answers");
    met.into_iter().flatten().collect()
}
