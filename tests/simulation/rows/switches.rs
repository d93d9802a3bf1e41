//! Masters that sentinels name.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::LockManager;
use crate::base::sync::scheduler::{below, change_link, later, now, pause, reset_all, thread};
use crate::simulation::redis::{Redis, Settings};
use crate::simulation::rows::nodes::{locks, silence};
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes_with, since, some};
use crate::simulation::world::engine::{Copies, Engine, address};
use crate::simulation::world::replication::{follow, leave};
use crate::simulation::world::sentinels;
use crate::simulation::world::server::Server;

/// A master and a replica.
pub(super) const SENTINELS: Engine = Engine::Sentinel(Copies::ONE);

impl World {
    /// The replica is the master from now on. The old one does not know of that.
    pub(super) fn promote(&self) {
        self.promotes(0, 1);
    }

    pub(super) fn promotes(&self, old: usize, new: usize) {
        let [old, new] = [old, new].map(|number| &self.servers.nodes[number]);
        leave(old, new);
        new.borrow_mut().act(Redis::promote);
    }

    /// A sentinel makes this one a replica of the new master.
    pub(super) fn demotes(&self, old: usize, new: usize) {
        let [old, new] = [old, new].map(|number| &self.servers.nodes[number]);
        old.borrow_mut().act(Redis::kill_clients);
        follow(new, old);
    }

    pub(super) fn sentinel_names(&self, sentinel: usize, node: SocketAddr, epoch: u64) {
        let server = &self
            .servers
            .sentinels
            .as_ref()
            .expect("there are some")
            .servers[sentinel];
        let place = (node.ip().to_string(), node.port());
        server
            .borrow_mut()
            .act(|redis, now| redis.switch_master(place, epoch, now));
    }
}

#[test]
fn a_switch_that_sentinels_report_is_followed_at_once() {
    in_scenes_with(SENTINELS, 60, |world| {
        let locks = locks(SENTINELS, |builder| builder);
        let guard = locks.lock("a").expect("locks");
        thread::sleep(SECOND + some(SECOND));
        world.promote();
        (0..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        thread::sleep(5 * QUICK);
        drop(locks.lock("b").expect("locks"));
        drop(locks.lock("c").expect("locks"));
        let kept = locks.lock("d").expect("locks");
        assert!(world.node_has(1, "d") && !world.node_has(0, "d"));
        drop(kept);
        guard.unlock().expect("unlocks");
        assert!(!world.node_has(1, "a"));
    });
}

/// The first sentinel, which is the one that is listened to, is cut off with the old master.
#[test]
fn a_switch_that_one_sentinel_does_not_hear_of_is_followed_soon() {
    in_scenes_with(SENTINELS, 40, |world| {
        let locks = locks(SENTINELS, |builder| builder);
        drop(locks.lock("a").expect("locks"));
        thread::sleep(some(10 * SECOND));
        world.promote();
        (1..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        thread::sleep(11 * SECOND);
        let _guard = locks.lock("b").expect("locks");
        assert!(world.node_has(1, "b"), "taken at the old master");
    });
}

/// One sentinel knows the new master, and is silent from then on.
#[test]
fn a_sentinel_that_knows_less_leads_nobody_back() {
    in_scenes_with(SENTINELS, 60, |world| {
        let locks = locks(SENTINELS, |builder| builder);
        drop(locks.lock("a").expect("locks"));
        thread::sleep(SECOND + some(SECOND));
        world.promote();
        (0..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        thread::sleep(5 * QUICK);
        drop(locks.lock("a").expect("locks"));
        // Two of them have forgotten it, as after a restart with an old file.
        let known = sentinels::addresses().next().expect("there are three");
        (1..3).for_each(|it| world.sentinel_names(it, world.servers.address(0), 1));
        silence(known, 5 * SECOND);
        reset_all(world.servers.address(1));
        let taken = locks.named("b").try_lock_for(some(2 * SECOND));
        assert!(!world.node_has(0, "b"), "taken at the old master");
        drop(taken);
        thread::sleep(6 * SECOND);
        let _guard = locks.lock("b").expect("locks");
        assert!(world.node_has(1, "b"));
    });
}

/// What a sentinel names is a sentinel, a replica, a server that refuses the login, or none. Others
/// know better.
#[test]
fn a_sentinel_that_names_a_wrong_server_is_passed_over() {
    in_scenes_with(SENTINELS, 80, |world| {
        let other = Settings {
            password: Some("another".to_owned()),
            ..Settings::default()
        };
        let _other = Server::start(
            address(100),
            "other",
            Redis::new(other),
            &world.servers.judge,
        );
        for node in &world.servers.nodes {
            node.borrow_mut().redis.settings().password = Some("right".to_owned());
        }
        let itself = sentinels::addresses().next().expect("there are three");
        let wrong = [itself, address(100), address(101), address(1)];
        let wrong = wrong[usize::try_from(below(4)).expect("small")];
        world.sentinel_names(0, wrong, 1);
        let url = "redis+sentinel://:right@sentinel1:6379,sentinel2:6379,sentinel3:6379/main";
        let locks = LockManager::builder(url)
            .build_lazily()
            .expect("options that can work");
        let asked = now();
        drop(locks.lock("a").expect("another sentinel knows better"));
        assert!(since(asked) < SECOND, "took {:?}", since(asked));
    });
}

/// The report comes before the thread that would hear it has subscribed, or just after.
#[test]
fn a_switch_during_the_first_connection_is_followed_at_once() {
    in_scenes_with(SENTINELS, 200, |world| {
        let locks = locks(SENTINELS, |builder| builder);
        let servers = Rc::clone(&world.servers);
        later(some(QUICK), move || {
            let world = World { servers };
            world.promote();
            (0..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        });
        drop(locks.lock("a").expect("locks"));
        thread::sleep(50 * QUICK);
        let kept = locks.lock("b").expect("locks");
        assert!(world.node_has(1, "b") && !world.node_has(0, "b"));
        drop(kept);
    });
}

/// The old master goes on, and would renew the hold as well.
#[test]
fn a_hold_goes_with_its_master_however_many_connections_there_are() {
    in_scenes_with(SENTINELS, 10, |world| {
        let locks = locks(SENTINELS, |builder| builder.lease(3 * SECOND));
        let guard = locks.lock("a").expect("locks");
        // It is renewed, and the keys that are renewed are tracked.
        thread::sleep(2 * SECOND);
        let busy = |number: u64| {
            let locks = locks.clone();
            thread::spawn(move || {
                for _ in 0..20 {
                    drop(locks.lock(format!("b{number}")).expect("locks"));
                }
            })
        };
        let all: Vec<_> = (0..8).map(busy).collect();
        for it in all {
            it.join().expect("no panic");
        }
        world.promote();
        (0..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        for _ in 0..10 {
            thread::sleep(SECOND);
            world.servers.nodes[1].borrow_mut().act(Redis::advance);
            assert!(guard.is_valid() && world.node_has(1, "a"));
        }
    });
}

/// The sentinel that is asked first has not heard of a switch. The old master is gone.
#[test]
fn a_question_is_not_refused_by_the_old_master_if_another_sentinel_knows_the_new_one() {
    in_scenes_with(SENTINELS, 40, |world| {
        world.promote();
        let old = world.servers.address(0);
        change_link(old, |link| link.refuses_until = u64::MAX);
        reset_all(old);
        let force = || {
            locks(SENTINELS, |builder| builder)
                .named("a")
                .force_unlock()
        };
        // They all name the old master: one question to each is enough.
        let asked = now();
        assert!(force().is_err());
        assert!(since(asked) < 10 * QUICK, "took {:?}", since(asked));
        (1..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        let found = force();
        assert!(matches!(found, Ok(None)), "{found:?}");
    });
}

/// What happens, and when.
type Event = (Duration, fn(&World));

/// This process is stopped for `span`, and `events` happen meanwhile.
fn during_a_stop(world: &World, span: Duration, events: [Event; 2]) {
    for (after, event) in events {
        let servers = Rc::clone(&world.servers);
        later(after, move || event(&World { servers }));
    }
    pause(0, span);
    thread::sleep(Duration::ZERO);
}

/// The map is the same as before. The hold was lost by the first switch.
#[test]
fn a_switch_there_and_back_during_a_stop_loses_no_time_and_hides_no_loss() {
    in_scenes_with(SENTINELS, 60, |world| {
        let locks = locks(SENTINELS, |builder| builder.lease(60 * SECOND));
        let guard = locks.lock("a").expect("locks");
        // It is renewed once.
        thread::sleep(25 * SECOND + some(SECOND));
        let there = |world: &World| {
            world.promotes(0, 1);
            (0..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
            let key = "lock:a".as_bytes();
            let delete = |redis: &mut Redis, now| redis.delete(key, now);
            world.servers.nodes[1].borrow_mut().act(delete);
            world.demotes(0, 1);
        };
        let back = |world: &World| {
            world.promotes(1, 0);
            (0..3).for_each(|it| world.sentinel_names(it, world.servers.address(0), 3));
            world.demotes(1, 0);
        };
        during_a_stop(world, 2 * SECOND, [(SECOND / 2, there), (SECOND, back)]);
        thread::sleep(20 * QUICK);
        assert!(!guard.is_valid(), "nobody has asked");
        drop(guard);
        let asked = now();
        let _guard = locks.lock("b").expect("locks");
        assert!(since(asked) < 10 * QUICK, "took {:?}", since(asked));
        assert!(world.node_has(0, "b"));
    });
}

/// The sentinel that reports has heard of the first switch only. None of the masters was told.
#[test]
fn two_switches_during_a_stop_lead_to_the_last_master() {
    let engine = Engine::Sentinel(Copies::TWO);
    in_scenes_with(engine, 60, move |world| {
        let locks = locks(engine, |builder| builder);
        drop(locks.lock("a").expect("locks"));
        thread::sleep(SECOND + some(SECOND));
        let first = |world: &World| {
            world.promotes(0, 1);
            (0..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        };
        let second = |world: &World| {
            world.promotes(1, 2);
            (1..3).for_each(|it| world.sentinel_names(it, world.servers.address(2), 3));
        };
        during_a_stop(world, 12 * SECOND, [(SECOND, first), (2 * SECOND, second)]);
        thread::sleep(20 * QUICK);
        let _guard = locks.lock("b").expect("locks");
        let has = [0, 1, 2].map(|node| world.node_has(node, "b"));
        assert_eq!(has, [false, false, true]);
    });
}
