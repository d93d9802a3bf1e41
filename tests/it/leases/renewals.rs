//! The keeper's renewals: from when a renewed lease counts, when renewals stop, and that nothing is
//! renewed after its release.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{Error, LockGuard, LockManager, LostCause, Unlocked};
use relatch_rig::{Fault, LONG, Proxy, Server, eventually, throughout, time, unique_key};

use crate::support::{
    ANSWER, LEASE, Over, PERIOD, Rig, SOON, renewals, renewals_of, returns_by, trusted,
};

#[test]
fn row_07_a_renewal_counts_from_its_send() {
    let lease = 3 * SOON;
    let rig = Rig::with(|builder| {
        builder
            .lease(lease)
            .renew_every(PERIOD)
            .response_timeout(lease)
    });
    let renewal = renewals_of(&rig.server, "a");
    rig.proxy.on(&renewal, Fault::DelayReply(lease / 2));
    rig.proxy.always(&renewal, Fault::SwallowCommand);
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "the hold is renewed", || {
        renewals(&rig.locks, "a") == 1
    });
    let remaining = guard.remaining();
    assert!(
        remaining + lease / 2 <= trusted(lease),
        "{remaining:?}: as if counted from the answer"
    );
    assert!(guard.is_valid(), "the rest of the lease is valid");
    assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Expired));
    assert_eq!(renewals(&rig.locks, "a"), 1);
}

/// If the period counted from the answers, slow answers would lengthen the period, and that time
/// would be missing at the end of the lease.
#[test]
fn row_07_slow_answers_do_not_lengthen_the_renewal_period() {
    const ROUNDS: u32 = 5;
    let (period, late) = (Duration::from_millis(550), Duration::from_millis(500));
    let rig = Rig::with(|builder| {
        builder
            .renew_every(period)
            .connect_timeout(LONG)
            .response_timeout(LONG)
    });
    rig.proxy
        .always(&renewals_of(&rig.server, "a"), Fault::DelayReply(late));
    let _guard = rig.locks.lock("a").expect("locks");
    let start = Instant::now();
    eventually(LONG, "the hold is renewed", || {
        renewals(&rig.locks, "a") == ROUNDS
    });
    let took = start.elapsed();
    let from_answers = ROUNDS * (period + late);
    assert!(
        took + late * 2 < from_answers,
        "{took:?}: a period was counted from an answer?"
    );
}

/// Waits for the end of a hold's validity, and checks that the hold is valid until then and no
/// longer. Returns the earliest moment at which the validity could end. Runs `look` every 2 ms.
fn ends_exactly(guard: &LockGuard, mut look: impl FnMut()) -> Instant {
    let (before, remaining, after) = (Instant::now(), guard.remaining(), Instant::now());
    let (earliest, latest) = (before + remaining, after + remaining);
    eventually(LONG, "the lease runs out", || {
        look();
        let before = Instant::now();
        let valid = guard.is_valid();
        assert!(valid || Instant::now() >= earliest, "lost before its end");
        assert!(
            !valid || before <= latest + Duration::from_micros(100),
            "valid after its end"
        );
        !valid
    });
    earliest
}

/// How long after the end of its lease the loss of `a` is reported, if `cut` keeps renewals from
/// being answered. `restore` ends what `cut` began.
fn reported_after_end(over: Over, cut: impl FnOnce(&Rig), restore: impl FnOnce(&Rig)) -> Duration {
    let lease = 3 * LEASE;
    let reported = Arc::new(Mutex::new(None));
    let recorder = Arc::clone(&reported);
    let rig = Rig::over(over, |builder| {
        let builder = builder
            .lease(lease)
            .renew_every(PERIOD)
            .response_timeout(lease / 3);
        builder.on_lost(move |lost| *recorder.lock() = Some((Instant::now(), lost.cause)))
    });
    let renewal = renewals_of(&rig.server, "a");
    let guard = rig.locks.lock("a").expect("locks");
    cut(&rig);
    // A try over a new connection gets no further than its login.
    let tries = || rig.proxy.commands(&renewal) + rig.proxy.commands("HELLO");
    let (mut sent, mut last) = (tries(), None);
    let before = sent;
    let end = ends_exactly(&guard, || {
        let seen = tries();
        if seen > sent {
            (sent, last) = (seen, Some(Instant::now()));
        }
    });
    eventually(LONG, "the loss is reported", || reported.lock().is_some());
    restore(&rig);
    let (at, cause) = reported.lock().expect("just looked");
    assert!(sent - before >= 2, "tried again");
    // A try takes a third of the lease at most, and the pauses are short. So the last one began no
    // longer than that before the end.
    assert!(
        last.is_some_and(|last| last + lease / 2 >= end),
        "{sent} tries, and then no more"
    );
    assert_eq!((cause, renewals(&rig.locks, "a")), (LostCause::Expired, 0));
    // As long as the key exists, a release would find its token, and succeed.
    eventually(LONG, "the key expires", || rig.value_of("a").is_none());
    assert!(matches!(
        guard.unlock(),
        Err(Error::Lost {
            cause: LostCause::Expired,
            ..
        })
    ));
    assert!(at >= end, "reported before its end");
    at - end
}

/// Checks that one of up to ten tries takes at most 10 ms, and that none takes a second.
fn assert_prompt(mut timed: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    while took.len() < 10
        && took
            .last()
            .is_none_or(|&last| last > Duration::from_millis(10))
    {
        took.push(timed());
        assert!(took.last() < Some(&SOON), "{took:?}");
    }
    assert!(
        took.last() <= Some(&Duration::from_millis(10)),
        "reported so long after the end: {took:?}"
    );
}

#[test]
fn row_08_a_hold_whose_renewals_have_no_answer_ends_with_its_lease() {
    a_hold_whose_renewals_have_no_answer_ends_with_its_lease(Over::Tcp);
}

pub(crate) fn a_hold_whose_renewals_have_no_answer_ends_with_its_lease(over: Over) {
    let swallow = |rig: &Rig| {
        rig.proxy
            .always(&renewals_of(&rig.server, "a"), Fault::SwallowCommand);
    };
    assert_prompt(|| reported_after_end(over, swallow, |rig| rig.proxy.clear()));
}

#[test]
fn row_08_a_hold_in_a_black_hole_ends_with_its_lease() {
    a_hold_in_a_black_hole_ends_with_its_lease(Over::Tcp);
}

pub(crate) fn a_hold_in_a_black_hole_ends_with_its_lease(over: Over) {
    let back = |rig: &Rig| {
        rig.proxy.black_hole(false);
        rig.proxy.cut_all();
    };
    assert_prompt(|| reported_after_end(over, |rig| rig.proxy.black_hole(true), back));
}

#[test]
fn row_09_a_closure_that_outlasts_its_lease_is_lost_only_if_redis_denies_it() {
    let rig = Rig::new();
    let lock = rig.locks.named("a").renew(false).lease(LEASE / 4);
    let overrun = |then: &dyn Fn()| {
        lock.with_lock_result(|guard| {
            ends_exactly(guard, || ());
            then();
            Ok(())
        })
    };
    let gone = || eventually(LONG, "the key expires", || rig.value_of("a").is_none());
    let lost = overrun(&|| {
        gone();
        rig.server
            .query::<()>(&["SET", "lock:a", "other", "PX", "60000"]);
    });
    assert!(
        matches!(
            lost,
            Err(Error::Lost {
                cause: LostCause::Taken,
                ..
            })
        ),
        "{lost:?}"
    );
    assert_eq!(rig.value_of("a").as_deref(), Some("other"));
    rig.server.query::<()>(&["DEL", "lock:a"]);
    let lost = overrun(&gone);
    assert!(
        matches!(
            lost,
            Err(Error::Lost {
                cause: LostCause::Expired,
                ..
            })
        ),
        "{lost:?}"
    );
    // Redis decides. Here Redis keeps the key for longer than the lease, as after a step of its
    // clock, so no other holder could have taken the lock.
    let kept = lock.with_lock_result(|guard| {
        rig.server.query::<()>(&["PEXPIRE", "lock:a", "60000"]);
        ends_exactly(guard, || ());
        Ok::<_, Error>(())
    });
    assert!(kept.is_ok(), "{kept:?}");
    assert_eq!(rig.value_of("a"), None);
    assert_eq!(rig.proxy.commands(&renewals_of(&rig.server, "a")), 0);
}

#[test]
fn row_10_no_lease_is_extended_after_max_hold() {
    let (lease, limit) = (LEASE / 3, LEASE);
    let rig = Rig::with(|builder| builder.lease(lease).renew_every(lease / 4).max_hold(limit));
    let renewal = renewals_of(&rig.server, "a");
    let start = Instant::now();
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "max_hold passes", || {
        start.elapsed() >= limit + lease / 4
    });
    let sent = rig.proxy.commands(&renewal);
    assert!((2..=14).contains(&sent), "{sent} renewals");
    assert_eq!(guard.watch().wait_lost(3 * SOON), Some(LostCause::Expired));
    let took = start.elapsed();
    assert!(
        took >= limit && took <= limit + lease + SOON / 2,
        "{took:?}"
    );
    eventually(lease, "the lease runs out in Redis", || {
        rig.value_of("a").is_none()
    });
    let sent = rig.proxy.commands(&renewal);
    throughout(lease, || {
        assert_eq!(rig.proxy.commands(&renewal), sent, "renewed after its end");
    });
    assert!(matches!(
        guard.unlock(),
        Err(Error::Lost {
            cause: LostCause::Expired,
            ..
        })
    ));
}

#[test]
fn row_17_renewals_do_not_wait_for_the_pool() {
    let rig = Rig::with(|builder| {
        builder
            .pool_size(1)
            .lease(LEASE)
            .renew_every(PERIOD)
            .response_timeout(3 * LEASE)
    });
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.on("SET lock:b", Fault::DelayReply(2 * LEASE));
    thread::scope(|scope| {
        let busy = scope.spawn(|| rig.locks.try_lock("b").expect("answers").is_some());
        eventually(LONG, "the only connection is in use", || {
            rig.proxy.commands("SET lock:b") == 1
        });
        throughout(3 * LEASE / 2, || {
            assert!(guard.is_valid());
            assert_eq!(rig.value_of("a").as_deref(), Some(guard.token()));
        });
        assert!(!busy.is_finished(), "the connection was free");
        assert!(busy.join().expect("no panic"));
    });
    assert!(renewals(&rig.locks, "a") >= 3);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn row_18_a_hold_survives_a_renewal_that_fails() {
    let rig = Rig::with(|builder| builder.lease(2 * LEASE).renew_every(PERIOD));
    let loading = Fault::Answer(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec());
    let faults = [
        Fault::CutBeforeForward,
        Fault::CutBeforeReply,
        Fault::HalfReply,
        Fault::SwallowCommand,
    ];
    for (n, fault) in faults
        .into_iter()
        .chain([Fault::DropReply, loading])
        .enumerate()
    {
        let key = unique_key("a");
        let errors = rig.locks.stats().renewal_errors;
        rig.proxy.on(&renewals_of(&rig.server, &key), fault.clone());
        let guard = rig.locks.lock(&key).expect("locks");
        rig.proxy
            .wait_fired(u64::try_from(n + 1).expect("few"), LONG);
        eventually(LONG, "the hold is renewed", || {
            renewals(&rig.locks, &key) >= 1
        });
        assert!(guard.is_valid(), "{fault:?}");
        assert_eq!(rig.locks.stats().renewal_errors, errors + 1, "{fault:?}");
        assert_eq!(
            guard.unlock().expect("unlocks"),
            Unlocked::Released,
            "{fault:?}"
        );
    }
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.refuse(true);
    rig.proxy.cut_all();
    let errors = rig.locks.stats().renewal_errors;
    eventually(LONG, "several fail", || {
        rig.locks.stats().renewal_errors >= errors + 3
    });
    rig.proxy.refuse(false);
    let before = renewals(&rig.locks, "a");
    eventually(LONG, "the hold is renewed", || {
        renewals(&rig.locks, "a") > before
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_eq!(rig.locks.stats().lost, 0);
}

#[test]
fn row_18_one_lost_answer_costs_no_hold_whose_lease_is_shorter_than_the_response_timeout() {
    let rig = Rig::with(|builder| {
        builder
            .lease(LEASE)
            .renew_every(PERIOD)
            .response_timeout(2 * LEASE)
    });
    // Tried up to ten times: a busy machine may stop all threads for a lease.
    let outlives = || {
        rig.proxy
            .on(&renewals_of(&rig.server, "a"), Fault::SwallowCommand);
        let guard = rig.locks.lock("a").expect("locks");
        eventually(LONG, "the hold is renewed or lost", || {
            renewals(&rig.locks, "a") >= 1 || !guard.is_valid()
        });
        guard.is_valid()
    };
    assert!((0..10).any(|_| outlives()), "each time, the hold is lost");
}

/// The first connection for a renewal is silent. The next one has time for it.
#[test]
fn row_18_a_silent_login_costs_no_hold_whose_lease_is_shorter_than_the_timeouts() {
    let rig = Rig::with(|builder| {
        builder
            .connect_timeout(LONG)
            .response_timeout(LONG)
            .client_tracking(false)
    });
    let guard = rig.locks.named("a").lease(8 * SOON).lock().expect("locks");
    rig.proxy.on("HELLO", Fault::SwallowCommand);
    eventually(LONG, "renewed or lost", || {
        renewals(&rig.locks, "a") > 0 || !guard.is_valid()
    });
    assert_eq!(rig.proxy.fired(), 1);
    assert!(guard.is_valid(), "it was not renewed");
}

#[test]
fn row_32_nothing_is_renewed_after_its_release() {
    const ENOUGH: u32 = 12;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (lease, every) = (Duration::from_millis(30), Duration::from_millis(5));
    let builder = LockManager::builder(&proxy.url())
        .lease(lease)
        .renew_every(every);
    let locks = builder.build().expect("connects");
    let renewal = renewals_of(&server, "*").replace("lock:*", "*");
    let start = Instant::now();
    let hammer = |key: &str| {
        let (mut released, mut round) = (0, 0);
        // (On a busy machine, most holds are lost, since their lease is so short.)
        let goes_on =
            |released| released < ENOUGH || proxy.commands(&renewal) < u64::from(2 * ENOUGH);
        while start.elapsed() < SOON || goes_on(released) && start.elapsed() < LONG {
            round += 1;
            let guard = locks.lock(key).expect("locks");
            let token = guard.token().to_owned();
            // Each release comes close to a renewal, sometimes a little earlier, sometimes later.
            let _ = guard
                .watch()
                .wait_lost(every * (round % 3) + Duration::from_micros(200 * u64::from(round % 7)));
            released += u32::from(guard.unlock().is_ok());
            let standing = server.get(&format!("lock:{key}"));
            assert_ne!(standing.as_ref(), Some(&token), "stands after its release");
            let left = server.pttl(&format!("lock:{key}"));
            assert!(left <= 30, "{left} ms");
        }
        released
    };
    let released: u32 = thread::scope(|scope| {
        let threads = ["a", "b", "b", "c"].map(|key| scope.spawn(move || hammer(key)));
        threads
            .map(|it| it.join().expect("no panic"))
            .into_iter()
            .sum()
    });
    assert!(released >= 4 * ENOUGH, "{released} rounds");
    assert!(
        proxy.commands(&renewal) >= u64::from(2 * ENOUGH),
        "hardly anything was renewed"
    );
    for key in ["a", "b", "c"] {
        assert_eq!(server.get(&format!("lock:{key}")), None, "{key}");
    }
    assert!(locks.held().is_empty());
}

#[test]
fn row_32_a_renewal_answered_after_the_release_changes_nothing() {
    for late in [Fault::DelayReply(LEASE / 2), Fault::DelayCommand(LEASE / 2)] {
        let rig = Rig::with(|builder| {
            builder
                .lease(10 * LEASE)
                .renew_every(PERIOD)
                .response_timeout(SOON)
        });
        rig.proxy.on(&renewals_of(&rig.server, "a"), late);
        // The release is executed at once, but its answer comes after the renewal's.
        rig.proxy.on("EVALSHA * 1 lock:a", Fault::DelayReply(LEASE));
        let guard = rig.locks.lock("a").expect("locks");
        eventually(LONG, "a renewal is under way", || rig.proxy.fired() == 1);
        let watch = guard.watch();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        throughout(LEASE, || {
            assert!(!watch.is_valid());
            assert_eq!(watch.wait_lost(LONG), None, "the lock was released");
            assert_eq!(rig.value_of("a"), None);
        });
        let stats = rig.locks.stats();
        assert_eq!((stats.lost, stats.renewed), (0, 0));
    }
}

#[test]
fn a_hold_without_renewals_is_invalid_before_another_takes_its_lock() {
    let rig = Rig::new();
    let lease = Duration::from_millis(200);
    rig.proxy
        .always(&renewals_of(&rig.server, "a"), Fault::SwallowCommand);
    let other = LockManager::connect(&rig.server.url()).expect("connects");
    let done = thread::scope(|scope| {
        rig.locks.named("a").lease(lease).with_lock_result(|guard| {
            let taker = scope.spawn(|| {
                let taken = other.lock("a").expect("locks");
                let at = Instant::now();
                assert_eq!(rig.value_of("a").as_deref(), Some(taken.token()));
                std::mem::forget(taken); // The key stays for the rest of the test.
                at
            });
            let mut last_valid = Instant::now();
            let mut now = last_valid;
            while guard.is_valid() {
                last_valid = now;
                thread::yield_now();
                now = Instant::now();
            }
            let taken = taker.join().expect("no panic");
            assert!(
                last_valid < taken,
                "valid while another holder had the lock"
            );
            Ok(())
        })
    });
    assert!(matches!(done, Err(Error::Lost { .. })), "{done:?}");
    assert!(
        rig.value_of("a").is_some(),
        "the other holder's key is untouched"
    );
}

#[test]
fn a_release_without_an_answer_is_repeated_in_the_background() {
    let rig = Rig::new();
    rig.proxy.always("EVALSHA", Fault::SwallowCommand);
    let guard = rig.locks.lock("a").expect("locks");
    let unlocked = guard.unlock();
    assert!(
        matches!(unlocked, Err(Error::Unconfirmed { .. })),
        "{unlocked:?}"
    );
    assert!(rig.value_of("a").is_some());
    assert!(rig.locks.held().is_empty());
    rig.proxy.clear();
    eventually(2 * SOON, "the key is deleted", || {
        rig.value_of("a").is_none()
    });
    eventually(SOON, "the late release is counted", || {
        rig.locks.stats().late_releases == 1
    });
    let sent = rig.proxy.log().len();
    throughout(ANSWER, || {
        assert_eq!(rig.proxy.log().len(), sent, "the key is deleted once");
    });
    // This manager has no keeper yet, and its attempt loses two connections.
    let rig = Rig::with(|builder| builder.renew(false));
    rig.proxy.on_times("SET lock:b", 2, Fault::CutBeforeReply);
    assert!(matches!(
        rig.locks.try_lock("b"),
        Err(Error::Unavailable { .. })
    ));
    eventually(SOON, "the key is deleted", || rig.value_of("b").is_none());
    returns_by(SOON, "the lock is free", || {
        time(|| rig.locks.lock("b").expect("locks").unlock()).0
    });
}
