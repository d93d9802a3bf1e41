//! Slots: at most so many holders at a time, and none of the slots is lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use redis::Connection;
use relatch::{DetachedHold, Error, LockGuard, LockManager, LostCause};
use relatch_rig::{Fault, LONG, Server, Worker, eventually, role};

use crate::support::{LEASE, Rig, SOON, connect, redis_connection};

/// The key of a slot in Redis.
fn slot(number: u32) -> String {
    format!("lock:{{a}}#{number}")
}

/// Takes so many slots, and leaves them to nobody.
fn take(locks: &LockManager, count: usize, slots: usize) -> Vec<DetachedHold> {
    let taken = (0..count).map(|_| locks.slots("a", slots).lock().expect("locks"));
    taken
        .map(|guard| guard.detach().expect("detaches"))
        .collect()
}

/// Waits until no slot is taken.
#[track_caller]
fn until_free(server: &Server, slots: u32) {
    eventually(LONG / 2, "all slots are free", || {
        (1..=slots).all(|it| !server.exists(&slot(it)))
    });
}

#[test]
fn each_holder_has_a_slot_of_its_own_and_the_lowest_that_is_free() {
    let rig = Rig::new();
    let slots = rig.locks.slots("a", 3);
    let before = rig.proxy.log().len();
    let guard = slots.lock().expect("locks");
    assert_eq!((guard.slot(), guard.key()), (Some(1), "{a}#1"));
    assert_eq!(rig.server.get(&slot(1)).as_deref(), Some(guard.token()));
    assert!(slots.assert_held().is_ok() && slots.current().is_some());
    let inner = slots.lock().expect("locks again");
    assert_eq!(
        (inner.slot(), guard.depth()),
        (Some(1), 2),
        "it is entered again"
    );
    drop(inner);
    let (mut held, sent) = (
        vec![guard.detach().expect("detaches")],
        rig.proxy.log().split_off(before),
    );
    // (The second one has the text of the script.)
    assert!(sent.len() <= 2, "{sent:?}");
    held.extend(take(&rig.locks, 2, 3));
    let others = connect(&rig.server);
    for locks in [&rig.locks, &others] {
        assert!(locks.slots("a", 3).try_lock().expect("asks").is_none());
    }
    let holders = others.slots("a", 3).holders().expect("answers");
    let tokens: Vec<_> = holders
        .iter()
        .map(|(n, holder)| (*n, &*holder.raw))
        .collect();
    let stored: Vec<_> = (1..=3)
        .map(|n| (n, rig.server.get(&slot(n)).expect("taken")))
        .collect();
    let stored: Vec<_> = stored.iter().map(|(n, token)| (*n, &**token)).collect();
    assert_eq!(tokens, stored);
    // The number is the caller's own.
    let fourth = others.slots("a", 4).lock().expect("locks");
    assert_eq!(fourth.slot(), Some(4));
    drop(held.remove(1));
    let again = slots.lock().expect("locks");
    assert_eq!(again.slot(), Some(2), "the lowest that is free");
}

#[test]
fn what_is_no_lock_takes_a_slot_and_fails_no_caller() {
    let rig = Rig::with(|builder| builder.wait(SOON));
    rig.server.query::<()>(&["RPUSH", &slot(1), "x"]);
    rig.server.query::<()>(&["SET", &slot(2), "theirs"]);
    let guard = rig.locks.slots("a", 3).lock().expect("locks");
    assert_eq!(guard.slot(), Some(3));
    let holders = rig.locks.slots("a", 3).holders().expect("answers");
    assert_eq!(holders.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [2, 3]);
    thread::scope(|scope| {
        let waits = scope.spawn(|| rig.locks.slots("a", 3).lock().map(drop));
        let error = waits.join().expect("no panic").expect_err("all are taken");
        assert!(error.is_timeout(), "{error}");
        assert!(error.to_string().contains("{a}#1-3"), "{error}");
    });
}

#[test]
fn a_loss_and_a_force_unlock_are_those_of_the_slot() {
    let rig = Rig::new();
    let slots = rig.locks.slots("a", 2);
    let guard = slots.lock().expect("locks");
    let named = rig.locks.named("{a}#1");
    assert_eq!(
        named.holder().expect("answers").expect("held").raw,
        guard.token()
    );
    assert!(named.force_unlock().expect("answers").is_some());
    assert!(matches!(
        slots.lock(),
        Err(Error::Lost {
            cause: LostCause::Deleted,
            ..
        })
    ));
    drop(guard);
    for wrong in [slots.holder().map(drop), slots.force_unlock().map(drop)] {
        assert!(
            matches!(wrong, Err(Error::InvalidOption { .. })),
            "{wrong:?}"
        );
    }
    assert_eq!(slots.lock().expect("locks").slot(), Some(1));
}

#[test]
fn slots_that_cannot_be_are_refused_and_nothing_is_sent() {
    let rig = Rig::new();
    let before = rig.server.all_calls();
    for count in [0, 65] {
        let taken = rig.locks.slots("a", count).lock().map(drop);
        let error = taken.expect_err("no such set");
        assert!(error.to_string().contains(&count.to_string()), "{error}");
        let option = "slots";
        assert!(
            matches!(error, Error::InvalidOption { option: it, .. } if it == option),
            "{error:?}"
        );
    }
    let fenced = rig.locks.slots("a", 2).fenced(true).lock().map(drop);
    assert!(matches!(fenced, Err(Error::NoFence { .. })), "{fenced:?}");
    assert_eq!(rig.server.all_calls(), before);
}

/// The attempt whose answer was lost has taken the last slot.
#[test]
fn no_caller_waits_for_its_own_lost_attempt() {
    let rig = Rig::new();
    let other = take(&rig.locks, 1, 2);
    rig.proxy
        .on("EVALSHA * 2 lock:{a}#1", Fault::CutBeforeReply);
    let slot = rig.locks.slots("a", 2).try_lock().expect("asks");
    assert_eq!(slot.and_then(|guard| guard.slot()), Some(2));
    drop(other);
    until_free(&rig.server, 2);
}

/// Says in Redis that the holder of a slot uses it, until its key ends: a process may be delayed
/// past its lease before that. Nil if somebody else has said so.
const SAY: &str = "local left = redis.call('PTTL', KEYS[1])
    if left < 1 or redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'late' end
    return redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', left)";

/// False if somebody else uses the slot.
pub(crate) fn says(number: u32, token: &str, key: &str, redis: &mut Connection) -> bool {
    let mut say = redis::cmd("EVAL");
    say.arg(SAY).arg(2).arg(slot(number)).arg(key).arg(token);
    say.query::<Option<String>>(redis)
        .expect("answers")
        .is_some()
}

/// Processes take slots, and one of them is killed every 100 ms.
#[test]
fn killed_processes_leave_no_slot_to_two_and_none_to_nobody() {
    let server = Server::start();
    under_kills(&server, "slots", 4, 20);
    eventually(LONG, "all slots are free a lease later", || {
        (1..=3).all(|it| !server.exists(&slot(it)))
    });
    assert!(!server.exists(&slot(4)));
}

/// A hundred thousand acquisitions.
#[test]
#[ignore = "takes minutes: tests/chaos.sh runs it"]
fn many_killed_processes_leave_no_slot_to_two_and_none_to_nobody() {
    let server = Server::start();
    let mut taken = 0;
    while taken < 100_000 {
        taken += under_kills(&server, "slots", 32, 300);
    }
    println!("{taken} acquisitions of slots");
    eventually(LONG, "all slots are free a lease later", || {
        (1..=3).all(|it| !server.exists(&slot(it)))
    });
}

/// So many processes play a role, and each tenth of a second one of them is killed. Returns how
/// often they say that they had a lock.
pub(crate) fn under_kills(server: &Server, role: &str, processes: usize, kills: usize) -> u64 {
    let spawn = || Worker::spawn(role, &[("url", &server.url()), ("slots", "3")]);
    let mut workers: Vec<_> = (0..processes).map(|_| spawn()).collect();
    let mut printed = String::new();
    for killed in 0..kills {
        thread::sleep(Duration::from_millis(100));
        let mut dead = std::mem::replace(&mut workers[killed % processes], spawn());
        dead.kill();
        printed += &dead.printed();
    }
    eventually(LONG, "some of those that are left go on", || {
        workers.iter().any(|it| it.printed().contains("done 10"))
    });
    let mut taken = 0;
    for mut worker in workers {
        worker.kill();
        printed += &worker.printed();
    }
    for line in printed.lines() {
        assert!(!line.contains("beside"), "{line}");
        taken += u64::from(line.contains("done ")) * 10;
    }
    taken
}

/// Takes slots in four threads, and says if another process uses the same one.
pub(crate) fn use_slots_as_told() {
    let count: usize = role::arg("slots").parse().expect("a number");
    let url = role::arg("url");
    let builder = LockManager::builder(&url).lease(LEASE).wait(LONG);
    let locks = builder.build().expect("connects");
    let done = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut redis = redis_connection(&url);
                loop {
                    let guard = locks.slots("a", count).lock().expect("locks");
                    use_slot(&guard, &mut redis);
                    drop(guard);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(10) {
                        role::report(format!("done {done}"));
                    }
                }
            });
        }
    });
}

fn use_slot(guard: &LockGuard, redis: &mut Connection) {
    let number = guard.slot().expect("a slot");
    let key = format!("used:{number}");
    let is_free = says(number, guard.token(), &key, redis);
    thread::sleep(Duration::from_millis(1));
    if !is_free && guard.is_valid() {
        role::report(format!("another is beside me in {}", guard.key()));
    }
    redis::cmd("DEL")
        .arg(&key)
        .query::<()>(redis)
        .expect("answers");
}
