//! The exclusion and the faults on the wire once more, over TLS. The faults strike behind a
//! terminator, so that the manager sees them on a connection that is encrypted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use relatch::LockManager;
use relatch_rig::{LONG, Relay, Server, SetOnDrop, eventually};

use crate::leases::renewals;
use crate::support::Over;
use crate::turns::mutual_exclusion::{
    COUNTER, COUNTING, How, count_in_processes, count_with, total,
};
use crate::wire::tls::{TlsRig, url};
use crate::wire::{lost_answers, outages};

#[test]
fn threads_lose_no_update_over_tls() {
    let rig = TlsRig::new();
    let locks = rig.builder().build().expect("connects");
    count_with(&locks, &rig.server.bare_url(), 8, 50, How::Locked);
    assert_eq!(total(&rig.server), 400);
}

#[test]
fn processes_lose_no_update_over_tls() {
    let rig = TlsRig::new();
    count_in_processes(
        &rig.server,
        &rig.server.tls_url(),
        rig.authority.pem(),
        How::Locked,
    );
    assert_eq!(total(&rig.server), 320);
}

/// Runs `count` while all connections are cut, again and again: each time that some more increments
/// were done.
fn while_connections_are_cut(server: &Server, relay: &Relay, count: impl FnOnce()) {
    let done = &AtomicBool::new(false);
    let counted = || {
        server
            .get(COUNTER)
            .map_or(0, |it| it.parse::<u64>().expect("a number"))
    };
    let cuts = thread::scope(|scope| {
        let cutting = scope.spawn(|| {
            let mut cuts = 0;
            while !done.load(Ordering::SeqCst) {
                let before = counted();
                eventually(LONG, "locks are taken over new connections", || {
                    counted() > before + 5 || done.load(Ordering::SeqCst)
                });
                relay.cut_all();
                cuts += 1;
            }
            cuts
        });
        let stop = SetOnDrop(done);
        count();
        drop(stop);
        cutting.join().expect("no panic")
    });
    assert!(
        cuts > 3 && relay.connections_accepted() > cuts,
        "{cuts} cuts"
    );
}

#[test]
fn threads_lose_no_update_over_tls_while_connections_are_cut() {
    let rig = TlsRig::new();
    let relay = Relay::start(rig.server.tls_port());
    let count = || {
        // With one manager, the queue within the process would be enough to exclude the others.
        let builder = LockManager::builder(&url(relay.port()))
            .tls(rig.trusting())
            .tolerate_outage(COUNTING);
        let locks = builder.build_lazily().expect("options that can work");
        count_with(&locks, &rig.server.bare_url(), 2, 50, How::Reentrant);
    };
    while_connections_are_cut(&rig.server, &relay, || {
        thread::scope(|scope| {
            [(); 4]
                .map(|()| scope.spawn(count))
                .map(|it| it.join().expect("no panic"))
        });
    });
    assert_eq!(total(&rig.server), 400);
}

#[test]
fn processes_lose_no_update_over_tls_while_connections_are_cut() {
    let rig = TlsRig::new();
    let relay = Relay::start(rig.server.tls_port());
    let locks = url(relay.port());
    let count = || count_in_processes(&rig.server, &locks, rig.authority.pem(), How::Locked);
    while_connections_are_cut(&rig.server, &relay, count);
    assert_eq!(total(&rig.server), 320);
}

#[test]
fn row_08_a_hold_whose_renewals_have_no_answer_ends_with_its_lease_over_tls() {
    renewals::a_hold_whose_renewals_have_no_answer_ends_with_its_lease(Over::Tls);
}

#[test]
fn row_08_a_hold_in_a_black_hole_ends_with_its_lease_over_tls() {
    renewals::a_hold_in_a_black_hole_ends_with_its_lease(Over::Tls);
}

#[test]
fn row_11_a_set_whose_answer_is_cut_off_takes_the_lock_over_tls() {
    lost_answers::a_set_whose_answer_is_cut_off_takes_the_lock(Over::Tls);
}

#[test]
fn row_11_a_set_whose_answer_never_comes_leaves_a_lock_or_no_key_over_tls() {
    lost_answers::a_set_whose_answer_never_comes_leaves_a_lock_or_no_key(Over::Tls);
}

#[test]
fn row_11_an_attempt_that_gives_up_leaves_no_key_over_tls() {
    lost_answers::an_attempt_that_gives_up_leaves_no_key(Over::Tls);
}

#[test]
fn row_12_a_release_whose_answer_is_lost_is_never_reported_as_lost_over_tls() {
    lost_answers::a_release_whose_answer_is_lost_is_never_reported_as_lost(Over::Tls);
}

#[test]
fn row_12_a_release_whose_answer_never_comes_is_unconfirmed_over_tls() {
    lost_answers::a_release_whose_answer_never_comes_is_unconfirmed(Over::Tls);
}

#[test]
fn row_12_a_repeated_release_does_not_delete_the_next_holders_key_over_tls() {
    lost_answers::a_repeated_release_does_not_delete_the_next_holders_key(Over::Tls);
}

#[test]
fn row_13_taking_a_lock_in_a_black_hole_ends_by_its_deadline_over_tls() {
    outages::taking_a_lock_in_a_black_hole_ends_by_its_deadline(Over::Tls);
}

#[test]
fn row_13_a_question_in_a_black_hole_ends_by_the_response_timeout_over_tls() {
    outages::a_question_in_a_black_hole_ends_by_the_response_timeout(Over::Tls);
}

#[test]
fn row_13_releasing_in_a_black_hole_ends_by_the_response_timeout_over_tls() {
    outages::releasing_in_a_black_hole_ends_by_the_response_timeout(Over::Tls);
}
