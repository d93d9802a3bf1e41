//! A proxy that sends an answer twice: each later answer of the connection comes in the place of
//! the one before it.

use std::thread;

use relatch::{LockManager, Unlocked};
use relatch_rig::{ClusterSetup, Fault, LONG, eventually, unique_key};

use crate::many::cluster::{connect, patient, small};
use crate::many::cluster_moves::key;
use crate::support::{ANSWER, MINUTE, Rig, SOON, behind, delete, renewals_of};

/// The answer twice, and not in one piece with what follows.
fn twice(answer: &str) -> Fault {
    Fault::Replace(answer.repeat(2).into_bytes())
}

/// How long the next answer is late, so that nothing shows yet that there is one answer too many.
fn late() -> Fault {
    Fault::DelayReply(ANSWER / 5)
}

#[test]
fn row_37_an_ok_that_comes_twice_in_one_batch_is_taken_for_no_lock() {
    for fenced in [false, true] {
        let rig = Rig::with(|builder| builder.fenced(fenced));
        let other = LockManager::connect(&rig.server.url()).expect("connects");
        let held = other.lock("a").expect("locks");
        let first = "CLIENT TRACKING ON REDIRECT * NOLOOP";
        rig.proxy.always(first, twice("+OK\r\n"));
        for command in ["SET lock:a", "EVALSHA * 2 lock:a"] {
            rig.proxy.always(command, late());
        }
        let other_token = held.token().to_owned();
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| drop(rig.locks.named("a").try_lock_for(LONG).expect("answers")));
            eventually(LONG, "two batches begin with an `OK`", || {
                assert!(!waiter.is_finished(), "two holders");
                rig.proxy.commands(first) > 1
            });
            assert_eq!(rig.value_of("a"), Some(other_token));
            rig.proxy.clear();
            assert_eq!(held.unlock().expect("unlocks"), Unlocked::Released);
            waiter.join().expect("no panic");
        });
    }
}

#[test]
fn row_37_an_ok_to_asking_that_comes_twice_is_taken_for_no_lock() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let [locks, others] = [(); 2].map(|()| connect(&cluster.url()));
    let name = cluster.key_on(0);
    let held = others.named(&name).renew(false).lock().expect("locks");
    let moving = cluster.begin_move(cluster.slot_of(&name), 1);
    moving.move_keys();
    cluster.proxy(1).always("ASKING", twice("+OK\r\n"));
    cluster
        .proxy(1)
        .always(&format!("SET {}", key(&name)), late());
    let taken = locks.try_lock(&name);
    assert!(cluster.proxy(1).fired() > 0, "nobody asks the new owner");
    assert!(!matches!(taken, Ok(Some(_))), "two holders: {taken:?}");
    drop(taken);
    cluster.proxy(1).clear();
    moving.end();
    assert_eq!(held.unlock().expect("unlocks"), Unlocked::Released);
}

/// The answer to a release behind `ASKING` is then the first `OK`, and that to the claim of the
/// next thread is the `OK` to the second `ASKING`.
#[test]
#[cfg(target_os = "linux")]
fn row_37_an_ok_to_asking_that_comes_twice_hands_no_lock_off() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let locks = patient(&cluster.url())
        .local_handoff(MINUTE)
        .renew(false)
        .build()
        .expect("connects");
    let name = cluster.key_on(0);
    let guard = locks.lock(&name).expect("locks");
    let moving = cluster.begin_move(cluster.slot_of(&name), 1);
    cluster
        .server(0)
        .query::<()>(&["SET", &key(&name), "somebody else", "PX", "60000"]);
    moving.move_keys();
    cluster.proxy(1).on("ASKING", twice("+OK\r\n"));
    cluster
        .proxy(1)
        .always(&format!("SET {}", key(&name)), late());
    thread::scope(|scope| {
        let next = behind(scope, || {
            locks
                .named(&name)
                .try_lock_for(SOON)
                .map(|taken| taken.is_some())
        });
        let _ = guard.unlock(); // Its answer makes no sense, and it is sent again.
        assert!(cluster.proxy(1).fired() > 0, "nobody asks the new owner");
        let taken = next.join().expect("no panic");
        assert!(!matches!(taken, Ok(true)), "two holders");
    });
    cluster.proxy(1).clear();
    moving.end();
}

/// One of two holds is lost. The answer to the renewal of the other does not stand for it.
#[test]
fn row_37_an_answer_to_a_renewal_that_comes_twice_renews_no_other_hold() {
    let rig = Rig::renewing();
    rig.proxy.lose_messages(true);
    // In which order the two are renewed is chance.
    for _ in 0..6 {
        let [kept, lost] = [(); 2].map(|()| rig.locks.lock(unique_key("a")).expect("locks"));
        let answer = format!("${}\r\n{}\r\n", kept.token().len(), kept.token());
        rig.proxy
            .always(&renewals_of(&rig.server, kept.key()), twice(&answer));
        rig.proxy
            .always(&renewals_of(&rig.server, lost.key()), late());
        delete(&rig.server, lost.key());
        eventually(4 * SOON, "the loss is found", || !lost.is_valid());
        rig.proxy.clear();
    }
}

/// Redis has forgotten the scripts. The second copy of what it says comes in the place of the
/// answer to the whole script, which was executed.
#[test]
fn row_37_a_script_is_not_taken_for_unknown_twice() {
    const UNKNOWN: &str = "-NOSCRIPT as the test wants it\r\n";
    let rig = Rig::with(|builder| builder.renew(false).local_handoff(MINUTE));
    let forget = |at_once: bool| {
        rig.server.query::<()>(&["SCRIPT", "FLUSH"]);
        if at_once {
            rig.proxy.on("EVALSHA", twice(UNKNOWN));
        } else {
            // As if the copy came later.
            rig.proxy.on("EVAL", Fault::Replace(UNKNOWN.into()));
        }
    };
    for at_once in [true, false] {
        let guard = rig.locks.lock("a").expect("locks");
        forget(at_once);
        assert_eq!(
            guard.unlock().expect("executed, or sent again"),
            Unlocked::Released,
            "{at_once}"
        );
        assert_eq!(rig.value_of("a"), None);
        forget(at_once);
        let guard = rig
            .locks
            .named("a")
            .fenced(true)
            .lock()
            .expect("sent again, with another token");
        assert_eq!(rig.value_of("a").as_deref(), Some(guard.token()));
        rig.proxy.clear();
        drop(guard);
        // The release goes out with the claim of the next thread.
        #[cfg(target_os = "linux")]
        thread::scope(|scope| {
            let guard = rig.locks.lock("a").expect("locks");
            let next = behind(scope, || {
                drop(rig.locks.named("a").wait(LONG).lock().expect("locks"));
            });
            forget(at_once);
            assert_eq!(
                guard.unlock().expect("executed, or sent again"),
                Unlocked::Released,
                "{at_once}"
            );
            next.join().expect("no panic");
            rig.proxy.clear();
        });
    }
}
