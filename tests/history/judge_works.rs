//! The checker finds each violation, and nothing else, in histories made up for it. Times are in
//! milliseconds.

use std::time::Duration;

use relatch_rig::Exchange;

use crate::judge::{World, judge};
use crate::record::Claim;

const LEASE: u64 = 300;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A claim that was valid until just before its release, and then released.
fn claim(token: &str, from: u64, to: u64) -> Claim {
    Claim {
        by: (1, 1),
        key: "a".to_owned(),
        asked: at(from - 10),
        answered: Some(at(from)),
        token: Some(token.to_owned()),
        renewed: true,
        valid: Some((at(to - 1), at(from - 5 + LEASE))),
        released: Some(at(to)),
        ended: Some((at(to + 1), "Released".to_owned())),
    }
}

fn exchange(args: &str, sent: u64, reply: &str) -> Exchange {
    let args = args.split(' ').map(str::to_owned).collect();
    let answered = (!reply.is_empty()).then(|| (at(sent + 2), format!("{reply}\r\n").into_bytes()));
    Exchange {
        args,
        sent: at(sent),
        answered,
    }
}

fn set(token: &str, sent: u64, reply: &str) -> Exchange {
    exchange(&format!("SET lock:a {token} NX PX {LEASE}"), sent, reply)
}

fn release(token: &str, sent: u64, reply: &str) -> Exchange {
    exchange(&format!("EVALSHA hash 1 lock:a {token}"), sent, reply)
}

/// Two holds, one after the other, without a violation.
fn in_order() -> (Vec<Claim>, Vec<Exchange>) {
    let claims = vec![claim("x", 100, 150), claim("y", 200, 250)];
    let (first, second) = (set("x", 95, "+OK"), release("x", 150, ":1"));
    (
        claims,
        vec![first, second, set("y", 195, "+OK"), release("y", 250, ":1")],
    )
}

/// Checks that the checker finds `expected` after `change`, or nothing if `expected` is empty.
#[track_caller]
fn found(expected: &str, change: impl FnOnce(&mut Vec<Claim>, &mut Vec<Exchange>)) {
    found_in(&World::default(), expected, change);
}

#[track_caller]
fn found_in(
    world: &World,
    expected: &str,
    change: impl FnOnce(&mut Vec<Claim>, &mut Vec<Exchange>),
) {
    let (mut claims, mut journal) = in_order();
    change(&mut claims, &mut journal);
    let violations = judge(&claims, &journal, world).violations;
    // One change often causes more than one violation.
    let is_found = match expected {
        "" => violations.is_empty(),
        _ => violations.iter().any(|it| it.starts_with(expected)),
    };
    assert!(is_found, "{violations:?}");
}

#[test]
fn correct_histories_have_no_violation() {
    found("", |_, _| {});
    // An answer was lost, so the time of execution is unknown.
    found("", |_, journal| {
        journal[1] = release("x", 150, "");
    });
    found("", |_, journal| {
        journal[0] = set("x", 95, "");
    });
    // The hold expired by the clock, and so was reported as lost. Its key lived a moment longer.
    found("", |claims, _| {
        claims[0].valid = Some((at(140), at(145)));
        claims[0].ended = Some((at(151), "Lost".to_owned()));
    });
}

#[test]
fn two_holders_at_a_time_are_found() {
    found("two at a time for 1ms", |claims, _| {
        claims[0].valid = Some((at(199), at(395)));
        claims[0].released = Some(at(201));
    });
    // A dead process trusts no hold.
    let dead = World {
        deaths: vec![(1, at(190))],
        ..World::default()
    };
    found_in(&dead, "", |claims, journal| {
        (claims[0].released, claims[0].ended) = (None, None);
        claims[0].valid = Some((at(149), at(395)));
        claims[1].by = (2, 1);
        journal[1] = release("x", 192, ":1");
    });
    // The loss had not been reported yet, but the hold was not valid any longer.
    found("", |claims, _| {
        claims[0].valid = Some((at(140), at(145)));
    });
}

#[test]
fn a_token_that_is_used_twice_is_found() {
    found("a token was used twice", |claims, journal| {
        claims[1].token = Some("x".to_owned());
        journal[2] = set("x", 195, "+OK");
        journal[3] = release("x", 250, ":1");
    });
}

#[test]
fn a_claim_that_outlives_its_key_is_found() {
    found("it outlives its key by 1ms", |claims, _| {
        claims[0].valid = Some((at(149), at(398)));
    });
    found("no server ever had its token", |_, journal| {
        journal[0] = set("x", 95, "$-1");
    });
    found("valid, after its key was deleted", |_, journal| {
        journal.push(release("y", 230, ":1"));
    });
    // Too few replicas acknowledged the first try, so it was taken back.
    let taken_back = |reply: &'static str| {
        move |_: &mut Vec<Claim>, journal: &mut Vec<Exchange>| {
            journal.insert(2, set("y", 185, "+OK"));
            journal.insert(3, release("y", 190, ":1"));
            journal[4] = set("y", 195, reply);
        }
    };
    found("", taken_back("+OK"));
    found("valid, after its key was deleted", taken_back("$-1"));
}

#[test]
fn a_renewal_extends_the_claim() {
    let renewed = |reply: &'static str| {
        move |claims: &mut Vec<Claim>, journal: &mut Vec<Exchange>| {
            claims[0].valid = Some((at(149), at(430)));
            journal.push(exchange(
                &format!("EVALSHA hash 1 lock:a x {LEASE}"),
                130,
                reply,
            ));
        }
    };
    found("", renewed("$1\r\nx"));
    found("it outlives its key", renewed(":0"));
}

#[test]
fn a_release_that_reports_a_wrong_result_is_found() {
    found("said to be released", |_, journal| {
        journal[1] = release("x", 150, ":0");
    });
    let lost = |claims: &mut Vec<Claim>, _: &mut Vec<Exchange>| {
        claims[0].ended = Some((at(151), "Lost".to_owned()));
    };
    found("said to be lost, but nobody took it away", lost);
    // The hold was valid when its release was sent, and its lease ended before the answer came.
    let ran_out = |sent| {
        move |claims: &mut Vec<Claim>, journal: &mut Vec<Exchange>| {
            claims[0].valid = Some((at(149), at(155)));
            claims[0].ended = Some((at(161), "Lost".to_owned()));
            journal[1] = release("x", sent, ":0");
        }
    };
    found("said to be lost, but nobody took it away", ran_out(151));
    // The release was sent after the lease had ended: the process may have been delayed before it
    // looked at the clock.
    found("", ran_out(156));
    let deletes_held_locks = World {
        reported_within: Some(at(100)),
        ..World::default()
    };
    // The server had deleted the key before.
    found_in(&deletes_held_locks, "", |_, journal| {
        journal[1] = release("x", 150, ":0");
    });
    found_in(
        &deletes_held_locks,
        "said to be lost, but it was released",
        lost,
    );
    let deleted = |sent| {
        move |_: &mut Vec<Claim>, journal: &mut Vec<Exchange>| journal[1] = release("x", sent, ":1")
    };
    found("it deleted what was not its own", deleted(97 + LEASE + 3));
    // Redis counts whole milliseconds, and may keep the key for the rest of one.
    found("", deleted(97 + LEASE + 1));
}

#[test]
fn a_loss_that_is_reported_late_is_found() {
    let reported = |limit: u64| World {
        reported_within: Some(at(limit)),
        ..World::default()
    };
    let overlap = |renewed: bool| {
        move |claims: &mut Vec<Claim>, journal: &mut Vec<Exchange>| {
            claims[0].valid = Some((at(220), at(395)));
            claims[0].released = Some(at(240));
            claims[0].ended = Some((at(241), "Lost".to_owned()));
            claims[0].renewed = renewed;
            journal[1] = release("x", 240, ":0");
        }
    };
    found_in(&reported(30), "", overlap(true));
    found_in(&reported(15), "not reported for 20ms", overlap(true));
    found_in(&reported(15), "", overlap(false));
    // A hold whose loss is not reported does not hide another whose loss should be.
    found_in(&reported(15), "not reported for 20ms", |claims, journal| {
        overlap(true)(claims, journal);
        let mut unrenewed = claim("z", 90, 300);
        unrenewed.renewed = false;
        claims.push(unrenewed);
        journal.extend([set("z", 85, "+OK"), release("z", 300, ":0")]);
    });
}
