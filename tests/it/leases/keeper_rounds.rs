//! The rounds of the keeper: it sends all due commands together, and no call waits for the answer
//! to another call.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use relatch::{Error, LockGuard};
use relatch_rig::{Fault, LONG, SetOnDrop, eventually, throughout};

#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{ANSWER, Rig, SOON, renewals, returns_by};

/// How many threads act at the same time.
const MANY: usize = 24;

/// The lease of a lock that ends soon.
const LEASE: Duration = Duration::from_secs(1);

/// How long each thread waits until it gives up.
const WAIT: Duration = Duration::from_millis(100);

/// The names of [`MANY`] locks.
fn names() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("many-{number}"))
}

/// Has [`MANY`] threads give up on a `SET` without an answer. The keeper cleans up after each.
fn give_up(rig: &Rig) {
    thread::scope(|scope| {
        for name in names() {
            scope.spawn(move || make_orphan(rig, &name));
        }
    });
}

/// Has [`MANY`] threads hold a lock each, and extend their locks all at the same time, after
/// `before`. No extension is answered.
fn extend_in_vain(rig: &Rig, before: impl FnOnce()) {
    let (held, go) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for name in names() {
            let (held, go) = (&held, &go);
            scope.spawn(move || {
                let guard = rig.locks.lock(name).expect("locks");
                held.fetch_add(1, Ordering::SeqCst);
                eventually(LONG, "all begin", || go.load(Ordering::SeqCst));
                assert!(guard.set_lease(LONG).is_err());
            });
        }
        eventually(LONG, "all hold a lock", || {
            held.load(Ordering::SeqCst) == MANY
        });
        before();
        go.store(true, Ordering::SeqCst);
    });
}

/// How long after the end of a lease the loss of its hold is reported, while `faults` keeps the
/// keeper busy.
fn reported_after_end(faults: impl FnOnce(&Rig)) -> Duration {
    let (sender, reports) = mpsc::channel();
    let rig = Rig::with(|builder| {
        let builder = builder.pool_size(u32::try_from(MANY).expect("a few") + 1);
        builder.on_lost(move |lost| _ = sender.send((lost.key.clone(), Instant::now())))
    });
    let lock = rig.locks.named("short").lease(LEASE);
    let guard = lock.lock().expect("locks");
    let end = Instant::now() + guard.remaining();
    faults(&rig);
    let (key, at) = reports.recv_timeout(LONG).expect("the loss is reported");
    assert_eq!(key, "short");
    assert!(!guard.is_valid());
    rig.proxy.black_hole(false);
    rig.proxy.clear();
    rig.proxy.cut_all();
    at.saturating_duration_since(end)
}

#[test]
fn a_loss_is_reported_before_orphans_are_cleaned_up() {
    returns_by(Duration::ZERO, "the report of the loss", || {
        reported_after_end(|rig| {
            for script in ["EVALSHA", "EVAL"] {
                rig.proxy.always(script, Fault::SwallowCommand);
            }
            give_up(rig);
        })
    });
}

#[test]
fn a_loss_is_reported_before_all_extensions_are_answered() {
    // The report waits for one try of the extensions, and for its repetition.
    returns_by(Duration::from_millis(500), "the report of the loss", || {
        reported_after_end(|rig| {
            extend_in_vain(rig, || rig.proxy.black_hole(true));
        })
    });
}

/// Checks that the keeper sends one command for each of [`names`] in one pipeline. They fall due in
/// `fall_due`, while the keeper awaits the answer to a command for the lock `first`, which is
/// delayed for as long as need be.
///
/// They get no answer. So a keeper that waited for the answer to one would not send the next.
fn assert_go_out_together(fall_due: impl for<'s, 'e> FnOnce(&'s Scope<'s, 'e>, &'e Rig)) {
    let pool = u32::try_from(MANY).expect("a few") + 1;
    let rig = Rig::with(|builder| {
        let builder = builder.connect_timeout(LONG).response_timeout(4 * LONG);
        builder.pool_size(pool)
    });
    rig.proxy
        .on("EVALSHA * 1 lock:first", Fault::DelayReply(4 * LONG));
    thread::scope(|scope| {
        fall_due(scope, &rig);
        rig.proxy.always("EVALSHA", Fault::DropReply);
        rig.proxy.end_delays();
        let sent = |name: String| rig.proxy.commands(&format!("EVALSHA * 1 lock:{name}"));
        eventually(LONG, "all are sent", || names().all(|name| sent(name) > 0));
        rig.proxy.clear();
        rig.proxy.cut_all();
    });
}

#[test]
fn many_clean_ups_are_sent_together() {
    assert_go_out_together(|_, rig| {
        make_orphan(rig, "first");
        let attempts = rig.proxy.commands("SET lock:first");
        rig.proxy.wait_fired(attempts + 1, LONG); // And the answer to the clean-up.
        give_up(rig);
        throughout(WAIT, || {}); // Each clean-up is due 20 ms after its attempt.
    });
}

#[test]
#[cfg(target_os = "linux")]
fn many_extensions_are_sent_together() {
    assert_go_out_together(|scope, rig| {
        let extend = |name: &str| {
            let held = rig
                .locks
                .lock(name)
                .expect("locks")
                .detach()
                .expect("not entered twice");
            behind(scope, move || {
                held.attach()
                    .expect("is held")
                    .set_lease(LONG)
                    .expect("extends");
            });
        };
        extend("first");
        rig.proxy.wait_fired(1, LONG);
        names().for_each(|name| extend(&name));
    });
}

/// Gives up an attempt, so that an orphan has to be cleaned up. (On a busy machine, a wait may end
/// before there is a connection for an attempt, and then Redis knows nothing of it. Or the attempt
/// ends so late that the next one, by a script, takes the lock.)
fn make_orphan(rig: &Rig, name: &str) {
    let attempt = format!("SET lock:{name}");
    rig.proxy.always(&attempt, Fault::SwallowCommand);
    eventually(LONG, "an attempt has no answer", || {
        drop(rig.locks.named(name).try_lock_for(WAIT));
        rig.proxy.commands(&attempt) > 0
    });
}

#[test]
fn a_clean_up_without_an_answer_delays_no_renewal() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    rig.proxy
        .on("EVALSHA * 1 lock:orphan", Fault::SwallowCommand);
    let guard = rig
        .locks
        .named("held")
        .lease(2 * LEASE)
        .lock()
        .expect("locks");
    make_orphan(&rig, "orphan");
    eventually(LONG, "the hold is renewed all the same", || {
        renewals(&rig.locks, "held") > 0
    });
    assert!(
        rig.proxy.commands("EVALSHA * 1 lock:orphan") > 0,
        "the clean-up came first"
    );
    assert!(guard.is_valid());
}

/// How many releases are late: more than the keeper sends in one pipeline, and too many for a table
/// that is searched entry by entry.
const VERY_MANY: usize = 4000;

#[test]
fn thousands_of_late_releases_delay_no_renewal() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let release = redis::Script::new(include_str!("../../../src/client/commands/lua/release.lua"));
    let all_releases = format!("EVALSHA {}", release.get_hash());
    rig.proxy.always(
        &all_releases,
        Fault::Answer(b"-NOPERM not now\r\n".to_vec()),
    );
    thread::scope(|scope| {
        for thread in 0..4 {
            let rig = &rig;
            scope.spawn(move || {
                for number in 0..VERY_MANY / 4 {
                    let lock = rig
                        .locks
                        .named(format!("late-{thread}-{number}"))
                        .renew(false);
                    let late = lock.lock().expect("locks").unlock();
                    assert!(matches!(late, Err(Error::Unconfirmed { .. })), "{late:?}");
                }
            });
        }
    });
    let held: Vec<_> = names()
        .map(|name| {
            rig.locks
                .named(name)
                .lease(3 * LEASE)
                .lock()
                .expect("locks")
        })
        .collect();
    rig.proxy.clear();
    let before = rig.locks.stats().renewed;
    eventually(2 * LONG, "all are released", || {
        rig.server.query::<usize>(&["DBSIZE"]) == MANY
    });
    eventually(LONG, "all are renewed twice", || {
        rig.locks.stats().renewed >= before + 2 * MANY as u64
    });
    assert!(
        held.iter().all(LockGuard::is_valid),
        "lost: {}",
        rig.locks.stats().lost
    );
}

#[test]
fn orphans_are_cleaned_up_beside_the_shortest_leases() {
    let rig = Rig::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetOnDrop(&done);
        scope.spawn(|| {
            let short = rig.locks.named("short").lease(Duration::from_millis(20));
            while !done.load(Ordering::SeqCst) {
                // On a busy machine, so short a hold may be lost at once.
                let Ok(guard) = short.lock() else { continue };
                eventually(LONG, "the end of the hold", || {
                    !guard.is_valid() || done.load(Ordering::SeqCst)
                });
            }
        });
        eventually(LONG, "the hold is renewed", || {
            rig.locks.stats().renewed > 10
        });
        make_orphan(&rig, "orphan");
        let cleaned = || rig.proxy.commands("EVALSHA * 1 lock:orphan") > 0;
        let start = Instant::now();
        eventually(LONG, "the clean-up, or a long time", || {
            cleaned() || start.elapsed() > SOON
        });
        assert!(cleaned());
    });
}

#[test]
fn a_short_lease_does_not_shorten_the_extension_of_another() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    // The answers come when the short hold is over, but in time for the long one.
    rig.proxy
        .on("EVALSHA * 1 lock:first", Fault::DelayReply(ANSWER));
    rig.proxy.always("EVALSHA", Fault::DelayReply(ANSWER));
    let extend = |name: &'static str, lease: Duration| {
        let rig = &rig;
        move || {
            let guard = rig
                .locks
                .named(name)
                .renew(false)
                .lease(lease)
                .lock()
                .expect("locks");
            let extended = guard.set_lease(lease);
            (extended, guard.is_valid())
        }
    };
    thread::scope(|scope| {
        let first = scope.spawn(extend("first", 2 * LONG));
        rig.proxy.wait_fired(1, LONG);
        let short = scope.spawn(extend("short", ANSWER * 3 / 2));
        let long = scope.spawn(extend("long", 2 * LONG));
        assert!(first.join().expect("no panic").0.is_ok());
        let (extended, _) = long.join().expect("no panic");
        assert!(extended.is_ok(), "{extended:?}");
        assert!(short.join().expect("no panic").0.is_err());
    });
}
