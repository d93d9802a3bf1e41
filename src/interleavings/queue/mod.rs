//! The queue of a key, with its threads' steps in many orders.
//!
//! The queue and the steps of a release are the real ones. Redis has one key here.

mod scene;

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::options::Lease;
use crate::base::owner::holder::Holder;
use crate::base::sync::scheduler::{in_many_orders, step};
use crate::base::sync::thread::{self, JoinHandle};
use crate::hold::tests::sample_by;
use crate::interleavings::queue::scene::{LONG, SHORT, Scene, micros_below, millis};
use crate::waiting::deadlocks::end_cycles;
use crate::waiting::handoff::Claim;
use crate::waiting::patience::WithoutExpiry;
use crate::waiting::patience::tests::until;
use crate::waiting::place::NoTurn;
use crate::waiting::wait::tests::{WaitRig, mine};

fn spawn(scene: &Arc<Scene>, visits: impl FnOnce(&Scene) + Send + 'static) -> JoinHandle<()> {
    let scene = Arc::clone(scene);
    thread::spawn(move || visits(&scene))
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("the thread does not panic");
    }
}

/// No wait ends by itself here. If a thread is not woken, the run fails.
#[test]
fn each_waiter_has_the_turn_once_alone_and_in_the_order_of_arrival() {
    in_many_orders(1_000, Duration::ZERO, || {
        let scene = Scene::new(LONG);
        let visitor = |n: u64| {
            spawn(&scene, move |scene| {
                assert!(scene.visit(n, Moment::NEVER));
                assert!(scene.visit(n + 10, Moment::NEVER));
            })
        };
        let threads: Vec<_> = (0..3).map(visitor).collect();
        join(threads);
        scene.end();
        let log = scene.log.lock();
        assert_eq!(log.arrived, log.served);
    });
}

/// Some of the waiters have a deadline, which may come at any moment. The others have to be woken.
#[test]
fn a_waiter_that_gives_up_delays_no_other_and_its_claim_is_deleted() {
    in_many_orders(1_000, millis(100), || {
        let scene = Scene::new(LONG);
        let patient = |n| spawn(&scene, move |scene| assert!(scene.visit(n, Moment::NEVER)));
        let hasty = |n| {
            spawn(&scene, move |scene| {
                scene.visit(n, Moment::now().after(micros_below(20_000)));
                scene.visit(n + 10, Moment::PAST);
            })
        };
        let threads = [patient(0), hasty(1), hasty(2), patient(3)];
        join(threads);
        scene.end();
    });
}

/// Holds run out. Their turns end late (while they are passed over, or after that) or never.
#[test]
fn a_hold_that_is_over_is_passed_over_and_its_late_end_ends_no_other_turn() {
    in_many_orders(1_000, Duration::from_secs(2), || {
        let scene = Scene::new(SHORT);
        let patient = |n| spawn(&scene, move |scene| assert!(scene.visit(n, Moment::NEVER)));
        let hasty = spawn(&scene, |scene| {
            _ = scene.visit(1, Moment::now().after(micros_below(20_000)));
        });
        let threads = [patient(0), hasty, patient(2), patient(3)];
        join(threads);
        scene.end();
    });
}

/// A key is deleted, its holder does not notice, and the keeper reports the loss. No wait ends by
/// itself here.
#[test]
fn the_first_waiter_is_woken_when_the_hold_in_front_is_lost() {
    in_many_orders(800, Duration::ZERO, || {
        let scene = Scene::new(LONG);
        let turn = scene.free_turn();
        let hold = Arc::new(sample_by("deleted", LONG));
        turn.holds(&hold);
        let waiters =
            [1, 2].map(|n| spawn(&scene, move |scene| assert!(scene.visit(n, Moment::NEVER))));
        step();
        hold.lose(LostCause::Deleted);
        scene.keeper.report_loss(&hold);
        scene.log.lock().losses += 1;
        join(waiters);
        drop(turn);
        scene.end();
    });
}

/// A thread waits for a lock that it holds itself, through another manager. As long as it waits,
/// the lock is not released.
#[test]
fn a_thread_that_waits_for_itself_learns_it_wherever_it_is_in_the_queue() {
    in_many_orders(800, Duration::ZERO, || {
        let scene = Scene::new(LONG);
        let turn = scene.free_turn();
        let other = spawn(&scene, |scene| assert!(scene.visit(1, Moment::NEVER)));
        let itself = spawn(&scene, |scene| {
            let claim = || Claim {
                token: "".into(),
                lease: Lease::new(LONG),
                counter: None,
            };
            let (mut rig, core) = (WaitRig::new(), Arc::clone(&scene.keeper.core));
            rig.wake = Arc::new(move || core.wake_waiters());
            let patience = until(Moment::NEVER);
            let queues = &scene.keeper.core.queues;
            let joined = queues.join(&"key".into(), &rig.wait_of_holder(&patience, 3), claim);
            assert!(matches!(joined, Err(NoTurn::MustNotWait(_))));
        });
        let holder = Holder::new(mine(3).as_bytes(), None);
        turn.saw(&holder, &WithoutExpiry::default(), Duration::ZERO);
        end_cycles(|it| it.seen.as_ref() == Some(&holder.raw));
        join([itself]);
        drop(turn);
        join([other]);
        scene.end();
    });
}
