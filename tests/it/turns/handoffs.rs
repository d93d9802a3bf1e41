//! Hand-offs: a release passes the lock to the next waiting thread of the process. That takes one
//! round trip, and loses no lock and no turn.
#![cfg(target_os = "linux")] // Elsewhere the system does not show that a thread waits.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use relatch::{Builder, Error, LockManager, LostCause, Owner, Unlocked};
use relatch_rig::{
    Fault, LONG, Server, SetOnDrop, Worker, eventually, throughout, time, unique_key,
};

use crate::support::{
    ANSWER, LISTENING, MINUTE, Rig, SOON, assert_lost, behind, broken_replies, delete,
};

const THREADS: u64 = 8;
const ROUNDS: u64 = 100;
const TURNS: u64 = THREADS * ROUNDS;

/// A hand-off budget that does not end: each release hands the lock off if a thread waits for it.
fn endless(builder: Builder) -> Builder {
    builder.local_handoff(MINUTE)
}

/// [`THREADS`] threads take [`ROUNDS`] turns each with one lock, while `meanwhile` runs; returns
/// the tokens of all turns.
///
/// The threads count the turns without atomic increments, so the count is too low if two threads
/// hold the lock at a time.
fn take_turns(locks: &LockManager, meanwhile: impl FnOnce(&AtomicBool) + Send) -> HashSet<String> {
    let (count, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let turns = move || {
        let mut tokens = Vec::new();
        for _ in 0..ROUNDS {
            let guard = locks.lock("a").expect("locks");
            let before = count.load(Ordering::Relaxed);
            thread::yield_now();
            count.store(before + 1, Ordering::Relaxed);
            assert!(guard.is_valid());
            assert_eq!(
                Owner::parse(guard.token()).as_ref(),
                Some(&relatch::Owner::current())
            );
            tokens.push(guard.token().to_owned());
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        }
        let threads: HashSet<_> = tokens
            .iter()
            .map(|token| Owner::parse(token).map(|owner| owner.thread))
            .collect();
        assert_eq!(
            threads.len(),
            1,
            "all tokens of a thread name this thread: {threads:?}"
        );
        (tokens, threads)
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(turns)).collect();
        scope.spawn(|| meanwhile(done));
        let ends = threads.into_iter().map(ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        ends
    });
    let (tokens, threads): (Vec<_>, Vec<_>) =
        ends.into_iter().map(|it| it.expect("no panic")).unzip();
    assert_eq!(
        threads.into_iter().flatten().collect::<HashSet<_>>().len(),
        8,
        "one name per thread"
    );
    assert_eq!(count.load(Ordering::Relaxed), TURNS);
    let tokens: HashSet<_> = tokens.into_iter().flatten().collect();
    assert_eq!(
        tokens.len() as u64,
        TURNS,
        "every turn has a token of its own"
    );
    tokens
}

#[test]
fn a_turn_costs_one_set_and_one_release() {
    // The timeout is long, because an answer that came too late on a busy machine would cost more
    // commands.
    let rig = Rig::with(|builder| endless(builder).response_timeout(LONG));
    let tokens = take_turns(&rig.locks, |_| ());
    let calls = ["set", "evalsha"].map(|it| rig.server.calls(it));
    assert_eq!(calls, [TURNS, TURNS]);
    assert_eq!(rig.server.calls("get"), TURNS, "those of the releases");
    assert_eq!(
        rig.server.total_calls(&["eval", "pttl"]) + rig.server.total_calls(&LISTENING),
        0
    );
    assert_eq!(
        rig.tokens_sent("a").into_iter().collect::<HashSet<_>>(),
        tokens
    );
    let stats = rig.locks.stats();
    assert!(
        stats.handed_off > TURNS / 2 && stats.handed_off < TURNS,
        "{stats:?}"
    );
    assert_eq!((stats.acquired, stats.lost), (TURNS + 1, 0));
    assert!(stats.waited >= stats.handed_off, "{stats:?}");
    assert_eq!(rig.server.query::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn the_end_of_a_hand_off_budget_loses_no_turn() {
    let never = [Duration::ZERO, Duration::from_nanos(1)];
    for longest in [never[0], never[1], Duration::from_millis(1), ANSWER / 60] {
        let rig = Rig::with(|builder| builder.local_handoff(longest).response_timeout(LONG));
        take_turns(&rig.locks, |_| ());
        // A listener begins with a `SET` and a `DEL` of its own, which do not count.
        let calls = ["set", "del"].map(|it| rig.server.calls(it) - rig.proxy.commands("DEL"));
        assert_eq!(calls, [TURNS, TURNS], "{longest:?}");
        let handed_off = rig.locks.stats().handed_off;
        assert_eq!(
            handed_off == 0,
            never.contains(&longest),
            "{longest:?}: {handed_off}"
        );
        assert_eq!(rig.server.query::<i64>(&["DBSIZE"]), 0);
    }
}

#[test]
fn hand_offs_work_while_redis_forgets_the_script_again_and_again() {
    // The timeout is long, because a release may take two round trips, and the server is kept busy.
    let rig = Rig::with(|builder| endless(builder).response_timeout(LONG));
    take_turns(&rig.locks, |done| {
        while !done.load(Ordering::Relaxed) {
            rig.server.query::<()>(&["SCRIPT", "FLUSH"]);
        }
    });
    assert!(rig.server.calls("eval") > 0, "the script was forgotten");
    assert!(rig.locks.stats().handed_off > 0);
    assert_eq!(rig.locks.stats().lost, 0);
    assert_eq!(rig.server.query::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn the_lock_is_handed_to_the_waiter_that_came_first() {
    // Each hand-off has its answer in time, also on a busy machine.
    let rig = Rig::with(|builder| endless(builder).response_timeout(LONG));
    let (reported, order) = mpsc::channel();
    let held = rig.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        for number in 0..6 {
            let (locks, reported) = (&rig.locks, reported.clone());
            behind(scope, move || {
                let guard = locks.lock("a").expect("locks");
                reported.send(number).expect("awaited");
                drop(guard);
            });
        }
        drop(held);
    });
    assert_eq!(
        order.try_iter().collect::<Vec<_>>(),
        (0..6).collect::<Vec<_>>()
    );
    assert_eq!(rig.locks.stats().handed_off, 6);
}

#[test]
fn a_lost_lock_is_handed_to_the_next_waiter() {
    let rig = Rig::with(endless);
    let rig = &rig;
    for taken in [false, true] {
        let name = &unique_key("a");
        let key = format!("lock:{name}");
        let first = rig.locks.lock(name).expect("locks");
        thread::scope(|scope| {
            let second = behind(scope, || {
                let guard = rig.locks.lock(name).expect("locks");
                assert_eq!(rig.value_of(name).as_deref(), Some(guard.token()));
                let at = Instant::now();
                assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
                at
            });
            let start = Instant::now();
            delete(&rig.server, name);
            if taken {
                rig.server.query::<()>(&["SET", &key, "other", "PX", "500"]);
            }
            let cause = if taken {
                LostCause::Taken
            } else {
                LostCause::Deleted
            };
            assert_lost(&first.unlock(), cause);
            let took = second.join().expect("no panic") - start;
            let earliest = if taken {
                SOON * 45 / 100
            } else {
                Duration::ZERO
            };
            assert!((earliest..earliest + SOON).contains(&took), "{took:?}");
        });
    }
    assert_eq!(rig.locks.stats().lost, 2);
    assert_eq!(rig.server.query::<i64>(&["DBSIZE"]), 0);
}

/// Every fault, for both commands of a hand-off, and how often the fault strikes: once or twice.
fn faults_of_a_hand_off() -> Vec<(&'static str, Fault, u64)> {
    let faults = broken_replies().into_iter().chain([
        Fault::DropReply,
        Fault::SwallowCommand,
        Fault::CutBeforeForward,
        Fault::DelayReply(ANSWER / 2),
        Fault::DelayReply(ANSWER * 3 / 2),
        Fault::DelayCommand(ANSWER / 2),
        Fault::DelayCommand(ANSWER * 3 / 2),
        Fault::Answer(b"-ERR as the test wants it\r\n".to_vec()),
        Fault::Answer(b"-NOSCRIPT as the test wants it\r\n".to_vec()),
    ]);
    let both = faults.flat_map(|fault| [("EVALSHA * 1", fault.clone()), ("SET", fault)]);
    let faults =
        both.flat_map(|(command, fault)| [1, 2].map(|times| (command, fault.clone(), times)));
    // The waiter sends the second `SET` itself, and a refusal would end its wait.
    faults
        .filter(|it| !matches!(it, ("SET", Fault::Answer(_), 2)))
        .collect()
}

#[test]
fn row_12_a_hand_off_whose_answer_is_lost_loses_no_turn() {
    let rig = Rig::with(endless);
    let rig = &rig;
    for (command, fault, times) in faults_of_a_hand_off() {
        let what = format!("{command}: {fault:?}, {times} times");
        let name = &unique_key("a");
        let (released, holding) = (&AtomicBool::new(false), &AtomicU64::new(0));
        let hold = move || {
            let guard = rig.locks.lock(name).expect("locks");
            assert!(
                released.load(Ordering::SeqCst),
                "taken before the first holder began to release"
            );
            assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
            assert_eq!(rig.value_of(name).as_deref(), Some(guard.token()));
            assert!(guard.is_valid());
            holding.fetch_sub(1, Ordering::SeqCst);
            guard.unlock()
        };
        let first = rig.locks.lock(name).expect("locks");
        thread::scope(|scope| {
            let others = [(); 2].map(|()| behind(scope, hold));
            let fired = rig.proxy.fired();
            rig.proxy
                .on_times(&format!("{command} lock:{name}"), times, fault);
            released.store(true, Ordering::SeqCst);
            let (took, unlocked) = time(|| first.unlock());
            let kept = matches!(
                unlocked,
                Ok(Unlocked::Released) | Err(Error::Unconfirmed { .. })
            );
            assert!(kept, "{what}: {unlocked:?}");
            assert!(took < ANSWER + SOON, "{what}: {took:?}");
            rig.proxy.wait_fired(fired + 1, LONG);
            let (took, ends) = time(|| others.map(|it| it.join().expect("no panic")));
            assert!(
                took < 5 * SOON,
                "{what}: {took:?}: the turn came too late: was a wake-up lost?"
            );
            for unlocked in ends {
                let kept = matches!(
                    unlocked,
                    Ok(Unlocked::Released) | Err(Error::Unconfirmed { .. })
                );
                assert!(kept, "{what}: {unlocked:?}");
            }
        });
        rig.proxy.clear();
        eventually(5 * SOON, &format!("nothing is left of {what}"), || {
            rig.value_of(name).is_none()
        });
        rig.assert_works(name);
    }
    let stats = rig.locks.stats();
    assert!(stats.handed_off > 20 && stats.lost == 0, "{stats:?}");
    assert!(rig.locks.held().is_empty());
}

#[test]
fn row_13_a_hand_off_into_a_black_hole_leaves_no_waiter_asleep() {
    let rig = Rig::with(endless);
    let rig = &rig;
    for cut in [true, false] {
        let name = &unique_key("a");
        let first = rig.locks.lock(name).expect("locks");
        thread::scope(|scope| {
            let second = behind(scope, || {
                let guard = rig.locks.named(name).wait(LONG).lock().expect("locks");
                assert_eq!(rig.value_of(name).as_deref(), Some(guard.token()));
                guard.unlock()
            });
            rig.proxy.black_hole(true);
            let unlocked = first.unlock();
            assert!(
                matches!(unlocked, Err(Error::Unconfirmed { .. })),
                "{unlocked:?}"
            );
            rig.proxy.black_hole(false);
            if cut {
                rig.proxy.cut_all();
            }
            let (took, unlocked) = time(|| second.join().expect("no panic"));
            assert_eq!(unlocked.expect("unlocks"), Unlocked::Released);
            assert!(
                took < 5 * SOON,
                "{took:?}: the turn came too late: was a wake-up lost?"
            );
        });
        eventually(5 * SOON, "nothing is left", || rig.value_of(name).is_none());
    }
    assert_eq!(rig.locks.stats().lost, 0);
}

/// When the next waiter learns that the lock was taken for it, the lease is over already.
#[test]
fn a_hand_off_answered_after_the_lease_gives_no_lock() {
    let lease = ANSWER;
    let rig = Rig::with(|builder| {
        endless(builder)
            .lease(lease)
            .renew(false)
            .response_timeout(LONG / 4)
    });
    let first = rig.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let second = behind(scope, || {
            let guard = rig.locks.named("a").wait(LONG).lock().expect("locks");
            guard.token().to_owned()
        });
        rig.proxy.on("SET lock:a", Fault::DelayReply(2 * lease));
        let _ = first.unlock();
        let token = second.join().expect("no panic");
        assert_ne!(
            rig.tokens_sent("a")[1],
            token,
            "the token that was sent with the release"
        );
    });
}

/// Nobody knows whether Redis executed the `SET` for the next waiter.
#[test]
fn the_token_of_a_hand_off_without_an_answer_is_not_used_again() {
    let rig = Rig::with(endless);
    for fault in [
        Fault::CutBeforeForward,
        Fault::CutBeforeReply,
        Fault::DropReply,
    ] {
        let name = unique_key("a");
        let first = rig.locks.lock(&name).expect("locks");
        thread::scope(|scope| {
            let second = behind(scope, || rig.locks.named(&name).wait(LONG).lock().map(drop));
            rig.proxy.on(&format!("SET lock:{name}"), fault);
            let _ = first.unlock();
            second
                .join()
                .expect("no panic")
                .expect("the waiter's turn comes");
        });
        let sent = rig.tokens_sent(&name);
        assert!(sent.len() > 2 && !sent[2..].contains(&sent[1]), "{sent:?}");
    }
}

/// The longest of thirty waits for a lock that the threads of one manager hand off to each other.
/// `turn` takes the lock from outside that manager, and releases it.
fn longest_wait(server: &Server, mut turn: impl FnMut()) -> Duration {
    let locks = LockManager::connect(&server.url()).expect("connects");
    let done = &AtomicBool::new(false);
    let (locks, turns) = (&locks, &AtomicU64::new(0));
    let longest = thread::scope(|scope| {
        let _end = SetOnDrop(done);
        for _ in 0..THREADS {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    // Each turn is so long that all other threads wait again before it ends.
                    let body = || {
                        turns.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_micros(50));
                    };
                    locks.with_lock("a", body).expect("runs");
                }
            });
        }
        let mut longest = Duration::ZERO;
        for round in 1..=30 {
            eventually(LONG, "the threads take turns", || {
                turns.load(Ordering::Relaxed) > 100 * round
            });
            longest = longest.max(time(&mut turn).0);
        }
        longest
    });
    assert!(
        locks.stats().handed_off > turns.load(Ordering::Relaxed) / 2,
        "{:?}",
        locks.stats()
    );
    longest
}

#[test]
#[should_panic(expected = "the turn went wrong")]
fn a_panic_in_one_turn_ends_the_test_while_others_take_turns() {
    longest_wait(&Server::start(), || panic!("the turn went wrong"));
}

#[test]
fn another_manager_gets_its_turn_beside_hand_offs() {
    let server = Server::start();
    let others = LockManager::connect(&server.url()).expect("connects");
    let longest = longest_wait(&server, || others.with_lock("a", || ()).expect("runs"));
    assert!(
        longest < 2 * SOON,
        "{longest:?}: the hand-offs let no other in"
    );
}

#[test]
fn another_process_gets_its_turn_beside_hand_offs() {
    let server = Server::start();
    let mut child = Worker::spawn(
        "worker",
        &[
            ("url", &server.url()),
            ("lease", "30000"),
            ("reclaim", "no"),
        ],
    );
    child.expect_line("ready", LONG);
    let longest = longest_wait(&server, || {
        assert!(Owner::parse(&child.ask("lock")).is_some());
        throughout(ANSWER / 60, || ());
        assert_eq!(child.ask("unlock"), "Ok(Released)");
    });
    assert!(
        longest < 2 * SOON,
        "{longest:?}: the hand-offs let no other in"
    );
}

/// A process near Redis takes the lock again and again, and a distant waiter is woken at each
/// release. The distant waiter comes too late for the shortest pause, and could starve. It gets a
/// turn because the near process pauses for longer after each long hold, and sometimes after a
/// short one.
#[test]
fn a_waiter_far_from_redis_gets_its_turn_beside_a_near_process() {
    for hold in [150, 10].map(Duration::from_millis) {
        let rig = &Rig::with(|builder| builder.response_timeout(SOON));
        rig.proxy
            .always("SET lock:a", Fault::DelayCommand(Duration::from_millis(2)));
        let near = &LockManager::connect(&rig.server.url()).expect("connects");
        let done = &AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = SetOnDrop(done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    near.with_lock("a", || thread::sleep(hold)).expect("runs");
                }
            });
            for _ in 0..3 {
                eventually(LONG, "the near one has the lock", || {
                    rig.server.exists("lock:a")
                });
                let guard = rig
                    .locks
                    .named("a")
                    .try_lock_for(LONG)
                    .expect("answers")
                    .expect("the distant waiter is let in");
                guard.unlock().expect("unlocks");
            }
        });
    }
}

/// Two turns last 30 ms and spend the budget, so a hundred turns spend it fifty times. Each time,
/// the process leaves the lock free for a twenty-fourth of the 30 ms. The pause is a sleep, and a
/// sleep is never shorter than requested.
#[test]
fn a_process_pauses_when_its_hand_off_budget_ends_so_that_others_come_first() {
    const HOLD: Duration = Duration::from_millis(15);
    let rig = &Rig::with(|builder| builder.local_handoff(HOLD + HOLD / 3));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    rig.locks
                        .with_lock("a", || throughout(HOLD, || ()))
                        .expect("runs");
                }
            });
        }
    });
    let (mut released, mut gaps) = (None, Vec::new());
    for exchange in rig.proxy.journal() {
        match (&*exchange.args[0], exchange.answered) {
            ("EVALSHA", Some((answered, _))) => released = Some(answered),
            ("SET", _) => {
                gaps.extend(released.and_then(|released| exchange.sent.checked_sub(released)));
            }
            _ => {}
        }
    }
    let pauses = gaps.iter().filter(|gap| **gap >= HOLD / 12).count();
    assert!(
        pauses >= 45,
        "{pauses} pauses in {gaps:?}: no other is let in"
    );
}

/// The old master does not know the script, and refuses the claim behind the release: it has done
/// nothing. The lock was lost before, and the new master says so.
#[test]
#[cfg(target_os = "linux")]
fn a_lock_that_is_lost_at_a_switch_of_masters_is_told_at_a_hand_off() {
    let rig = Rig::with(|builder| endless(builder).client_tracking(false).renew(false));
    thread::scope(|scope| {
        let guard = rig.locks.named("a").lease(MINUTE).lock().expect("locks");
        let next = behind(scope, || rig.locks.lock("a").map(drop));
        delete(&rig.server, "a");
        let unknown = Fault::Answer(b"-NOSCRIPT No matching script.\r\n".to_vec());
        rig.proxy.on("EVALSHA * 1 lock:a", unknown);
        let refused =
            Fault::Answer(b"-READONLY You can't write against a read only replica.\r\n".to_vec());
        rig.proxy.on("SET lock:a", refused);
        let unlocked = guard.unlock();
        assert_eq!(rig.proxy.fired(), 2);
        assert_lost(&unlocked, LostCause::Deleted);
        next.join().expect("no panic").expect("locks");
    });
}
