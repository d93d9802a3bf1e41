//! Handing a hold over to another process (`hand_over`, `adopt`). What threads, losses and lost
//! answers do to such a hold: `src/simulation/rows/handing`.

use std::time::Duration;

use relatch::{Error, LockManager, LockParcel, LostCause, Unlocked};
use relatch_rig::{LONG, Server, Worker, eventually, role, throughout, within};

use crate::support::{LEASE, MINUTE, PERIOD, Rig, SOON, assert_lost, connect};

/// A parcel of the lock `name`, whose sender this process is.
#[track_caller]
fn parcel_of(locks: &LockManager, name: &str) -> LockParcel {
    let guard = locks.lock(name).expect("locks");
    guard.hand_over().expect("hands over")
}

#[test]
fn what_cannot_be_adopted_is_refused_before_anybody_is_asked() {
    let locks = LockManager::in_memory();
    let parcel = parcel_of(&locks, "a");
    let of_b = parcel.to_string().replace(":a", ":b");
    let of_b: LockParcel = of_b.parse().expect("a parcel");
    let _guard = locks.lock("b").expect("locks");
    let memory = locks.memory().expect("in memory");
    memory.go_away(MINUTE);
    let held = locks.adopt(&of_b);
    assert!(matches!(held, Err(Error::AlreadyHeld { .. })), "{held:?}");
    let error = locks.named("c").adopt(&parcel).expect_err("another lock");
    let text = "option `adopt` cannot be a parcel of lock \"a\": it is for another lock".to_owned();
    assert_eq!(error.to_string(), text);
    let lock = locks.named("a").lease(Duration::ZERO);
    let refused = lock.adopt(&parcel);
    assert!(matches!(refused, Err(Error::InvalidOption { .. })));
    memory.go_away(Duration::ZERO);
    assert!(locks.adopt(&parcel).is_ok(), "it is as good as before");
}

/// The counter is no number; or it is gone and the server's clock is behind, or the fence is made
/// up. Its successor would be stored, and from 2^53 on no lock is numbered.
#[test]
fn a_parcel_that_is_ahead_of_the_counter_and_of_the_clock_is_not_adopted() {
    const COUNTER: &str = "lock:fence:{lock:a}";
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let lock = rig.locks.named("a").fenced(true);
    let guard = lock.lock().expect("locks");
    let fence = guard.fence().expect("it is fenced");
    let parcel = guard.hand_over().expect("hands over");
    let ahead = |by: u64| -> LockParcel {
        let [old, new] = [fence, fence + by].map(|it| it.to_string());
        parcel.to_string().replace(&old, &new).parse().expect("one")
    };
    let refused = |parcel: &LockParcel| {
        let error = rig.locks.adopt(parcel).map(drop).expect_err("refused");
        assert!(
            matches!(&error, Error::Refused { code, .. } if code == "NOFENCE"),
            "{error:?}"
        );
    };
    let set = |value: &str| rig.server.query::<()>(&["SET", COUNTER, value]);
    let a_day = 24 * 3_600_000_000;
    for made_up in [a_day, (1 << 53) - 2 - fence, u64::MAX - fence] {
        refused(&ahead(made_up));
    }
    assert_eq!(rig.server.get(COUNTER), Some(fence.to_string()));
    set("x");
    refused(&parcel);
    rig.server.query::<()>(&["DEL", COUNTER]);
    refused(&ahead(a_day));
    set(&(fence + a_day).to_string());
    let adopted = rig.locks.adopt(&ahead(a_day)).expect("adopts");
    assert_eq!(adopted.fence(), Some(fence + a_day + 1));
    drop(adopted);
    assert_eq!(lock.lock().expect("locks").fence(), Some(fence + a_day + 2));
}

/// A role: takes or adopts the lock `a`, and hands it over, as each line says.
pub(crate) fn hand_over_as_told() {
    let builder = LockManager::builder(&role::arg("url")).lease(5 * SOON);
    let builder = builder.renew_every(PERIOD);
    let locks = builder.build().expect("connects");
    let mut held = None;
    role::report("ready");
    while let Some(line) = role::next_line() {
        role::report(match line.as_str() {
            "hand over" => {
                let guard = held
                    .take()
                    .unwrap_or_else(|| locks.lock("a").expect("locks"));
                guard.hand_over().expect("hands over").to_string()
            }
            parcel => match locks.adopt(&parcel.parse().expect("a parcel")) {
                Ok(guard) => held.insert(guard).token().to_owned(),
                Err(error) => format!("{error:?}"),
            },
        });
    }
    std::mem::forget(held); // The input ends when the process is about to be killed.
}

/// A process hands a lock over and dies. Of three others, one has the lock, and dies with it.
#[test]
fn of_many_processes_that_get_a_parcel_one_has_the_lock() {
    let server = Server::start();
    let mut workers = [(); 4].map(|()| Worker::spawn("hander", &[("url", &server.url())]));
    for worker in &workers {
        worker.expect_line("ready", LONG);
    }
    let [sender, others @ ..] = &mut workers;
    let parcel = sender.ask("hand over");
    sender.kill();
    for worker in &mut *others {
        worker.send(&parcel);
    }
    let said = others.each_ref().map(|it| it.expect_line("", LONG));
    let won = |it: &String| !it.starts_with("Lost");
    assert_eq!(said.iter().filter(|it| won(it)).count(), 1, "{said:?}");
    let winner = said.iter().position(won).expect("one");
    let is_held = || assert_eq!(server.get("lock:a").as_ref(), Some(&said[winner]));
    eventually(LONG, "it is renewed", || server.calls("pexpire") > 3);
    throughout(2 * LEASE, is_held);
    others[winner].kill();
    let locks = connect(&server);
    let guard = within(LONG, "the lease ends", || locks.lock("a")).expect("locks");
    let parcel = parcel.parse().expect("a parcel");
    std::thread::scope(|scope| {
        let late = scope.spawn(|| locks.adopt(&parcel).map(drop));
        assert_lost(&late.join().expect("no panic"), LostCause::Taken);
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}
