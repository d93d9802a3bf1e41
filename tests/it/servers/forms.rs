//! The forms of 0.1 that are in Redis and in parcels, as text. Programs of several versions share
//! locks, so all later versions read them: see "Versions" in `CONTRIBUTING.md`.

use std::time::Duration;

use relatch::{Found, LockManager, LockParcel, Owner};

use crate::support::{MINUTE, Rig};

/// Host, process, thread and nonce.
const TOKEN: &str = "app-1-42-43-00112233445566778899aabbccddeeff";
const KEPT: &str = "kept:app-1-42-43-00112233445566778899aabbccddeeff";
const COUNTER: &str = "lock:fence:{lock:orders:42}";
const PARCEL: &str = "relatch1:29650:0:app-1-42-43-00112233445566778899aabbccddeeff:orders%3A42";
const FENCED_PARCEL: &str =
    "relatch1:29650:7:app-1-42-43-00112233445566778899aabbccddeeff:orders%3A42";

const NAME: &str = "orders:42";

fn set(rig: &Rig, key: &str, value: &str) {
    rig.server.query::<()>(&["SET", key, value, "PX", "60000"]);
}

#[test]
fn the_forms_of_0_1_are_read() {
    let rig = Rig::new();
    // The user of a lock may not look at all keys.
    let operator = LockManager::connect(&rig.server.bare_url()).expect("connects");
    let found = || {
        let mut all = operator.survey(MINUTE).map(|it| it.expect("a lock"));
        let one = all.next().expect("a lock");
        assert!(all.next().is_none());
        one.found
    };
    let lock = rig.locks.named(NAME);
    let holder = || lock.holder().expect("an answer").expect("a holder");
    set(&rig, "lock:orders:42", TOKEN);
    let owner = holder().owner().expect("an owner");
    assert_eq!((&*owner.host, owner.pid, owner.thread), ("app-1", 42, 43));
    assert_eq!(Owner::parse(TOKEN), Some(owner));
    assert_eq!(found(), Found::Held);
    assert!(lock.try_lock().expect("an answer").is_none());

    set(&rig, "lock:orders:42", KEPT);
    assert_eq!(holder().owner(), None);
    let shown = holder().to_string();
    assert!(shown.starts_with("app-1-42-43, which is done ("), "{shown}");
    assert_eq!(found(), Found::Kept);

    for (text, fence) in [(PARCEL, None), (FENCED_PARCEL, Some(7))] {
        set(&rig, "lock:orders:42", TOKEN);
        rig.server
            .query::<()>(&["SET", COUNTER, "8784000000000007"]);
        let parcel: LockParcel = text.parse().expect("a parcel");
        assert_eq!((parcel.key(), parcel.to_string().as_str()), (NAME, text));
        let guard = rig.locks.adopt(&parcel).expect("adopts");
        let grown = fence.map(|_| 8_784_000_000_000_008);
        assert_eq!(guard.fence(), grown, "{text}");
        guard.unlock().expect("held");
    }
    let fenced = lock.fenced(true).lock().expect("a lock");
    assert_eq!(fenced.fence(), Some(8_784_000_000_000_009));
}

#[test]
fn the_forms_of_0_1_are_written() {
    let rig = Rig::new();
    let is_nonce = |nonce: &str| {
        nonce.len() == 32
            && nonce
                .bytes()
                .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
    };
    let lock = rig.locks.named(NAME).fenced(true);
    let guard = lock.lock().expect("a lock");
    let token = guard.token().to_owned();
    let nonce = token.strip_prefix(&format!("{}-", Owner::current()));
    assert!(nonce.is_some_and(is_nonce), "{token}");
    assert_eq!(rig.value_of(NAME).as_ref(), Some(&token));
    let fence = guard.fence().expect("a fence");
    assert_eq!(rig.server.query::<u64>(&["GET", COUNTER]), fence);

    let text = guard.hand_over().expect("hands over").to_string();
    let rest = text.strip_prefix("relatch1:").expect("a parcel");
    let (left, rest) = rest.split_once(':').expect("what was left");
    assert!(left.parse::<u64>().is_ok(), "{text}");
    assert_eq!(rest, format!("{fence}:{token}:orders%3A42"));

    let guard = rig
        .locks
        .adopt(&text.parse().expect("a parcel"))
        .expect("adopts");
    guard.unlock().expect("held");
    let lock = rig.locks.named(NAME).keep_at_least(Duration::from_secs(60));
    let guard = lock.lock().expect("a lock");
    let token = guard.token().to_owned();
    guard.unlock().expect("held");
    assert_eq!(rig.value_of(NAME), Some(format!("kept:{token}")));
}
