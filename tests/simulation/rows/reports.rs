//! What sentinels report, and what they do not answer.

use std::net::SocketAddr;

use crate::base::sync::scheduler::{below, change_link, now, one_in, reset_all, thread};
use crate::simulation::redis::Watched;
use crate::simulation::rows::nodes::{locks, silence};
use crate::simulation::rows::switches::SENTINELS;
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes_with, since, some};
use crate::simulation::world::engine::address;
use crate::simulation::world::replication::follow;
use crate::simulation::world::sentinels;

impl World {
    /// The replica is the master from now on, without this key. All sentinels know that, and none
    /// has reported it yet.
    fn promotes_without(&self, key: &str) {
        let key = format!("lock:{key}");
        self.servers.nodes[1]
            .borrow_mut()
            .act(|redis, now| redis.delete(key.as_bytes(), now));
        self.promote();
        self.sentinels_know(1, 2, 1);
    }

    /// None of them reports it.
    pub(super) fn sentinels_know(&self, master: usize, epoch: u64, replicas: u32) {
        let place = |address: SocketAddr| (address.ip().to_string(), address.port());
        let known = Watched {
            name: "main".to_owned(),
            master: place(self.servers.address(master)),
            epoch,
            replicas,
            others: sentinels::addresses().map(place).collect(),
        };
        let sentinels = self.servers.sentinels.as_ref().expect("there are some");
        for it in &sentinels.servers {
            it.borrow_mut().act(|redis, _| redis.watch(known.clone()));
        }
    }

    fn report(&self, channel: &str, payload: &str) {
        let sentinels = self.servers.sentinels.as_ref().expect("there are some");
        sentinels.servers[0]
            .borrow_mut()
            .act(|redis, now| redis.publish(channel, payload, now));
    }
}

fn first() -> SocketAddr {
    sentinels::addresses().next().expect("there are three")
}

/// From now on, nobody listens there.
fn refuses(address: SocketAddr) {
    change_link(address, |link| link.refuses_until = u64::MAX);
    reset_all(address);
}

#[test]
fn a_report_of_a_switch_reaches_each_hold_at_once() {
    in_scenes_with(SENTINELS, 80, |world| {
        let locks = locks(SENTINELS, |builder| builder.lease(60 * SECOND));
        let guard = locks.lock("a").expect("locks");
        // It is renewed after 20 s.
        thread::sleep(SECOND + some(40 * SECOND));
        world.promotes_without("a");
        let of_a_replica = "slave a:1 a 1 @ main b 1";
        let (channel, payload) = [
            ("+switch-master", "main a 1 b 1"),
            ("+promoted-slave", of_a_replica),
            ("+slave", of_a_replica),
        ][usize::try_from(below(3)).expect("small")];
        world.report(channel, payload);
        thread::sleep(5 * QUICK);
        assert!(!guard.is_valid(), "{channel}");
    });
}

/// The old master dies, is silent, or becomes a replica, by a sentinel or by hand.
#[test]
fn without_a_report_a_loss_is_told_within_a_renewal_period() {
    in_scenes_with(SENTINELS, 120, |world| {
        let tracks = one_in(2);
        let locks = locks(SENTINELS, |builder| {
            let builder = builder.lease(60 * SECOND).renew_every(SECOND);
            builder.client_tracking(tracks).response_timeout(SECOND / 5)
        });
        let guard = locks.lock("a").expect("locks");
        thread::sleep(2 * SECOND + some(SECOND));
        world.promotes_without("a");
        let old = world.servers.address(0);
        let mut most = SECOND + 50 * QUICK;
        match below(4) {
            0 => refuses(old),
            1 => {
                silence(old, 60 * SECOND);
                most += SECOND / 5; // Until the renewal has waited in vain.
            }
            2 => world.demotes(0, 1),
            _ => follow(&world.servers.nodes[1], &world.servers.nodes[0]),
        }
        thread::sleep(most);
        assert!(!guard.is_valid());
    });
}

/// The old master is well, and takes itself for the master.
#[test]
fn a_switch_that_nobody_reports_is_noticed_within_ten_seconds() {
    in_scenes_with(SENTINELS, 40, |world| {
        let locks = locks(SENTINELS, |builder| builder.lease(60 * SECOND));
        let guard = locks.lock("a").expect("locks");
        thread::sleep(some(20 * SECOND));
        world.promotes_without("a");
        thread::sleep(10 * SECOND + 50 * QUICK);
        assert!(!guard.is_valid());
        drop(guard);
        let _guard = locks.lock("b").expect("locks");
        assert!(world.node_has(1, "b") && !world.node_has(0, "b"));
    });
}

#[test]
fn after_the_end_of_a_subscription_another_sentinel_reports() {
    in_scenes_with(SENTINELS, 40, |world| {
        let locks = locks(SENTINELS, |builder| builder);
        drop(locks.lock("a").expect("locks"));
        thread::sleep(SECOND + some(SECOND));
        if one_in(2) {
            refuses(first());
            thread::sleep(SECOND);
        } else {
            silence(first(), 60 * SECOND);
            // A `PING` after 3 s, a second for its answer, and time for the first one again.
            thread::sleep(5 * SECOND);
        }
        world.promote();
        (1..3).for_each(|it| world.sentinel_names(it, world.servers.address(1), 2));
        thread::sleep(5 * QUICK);
        let _guard = locks.lock("b").expect("locks");
        assert!(world.node_has(1, "b") && !world.node_has(0, "b"));
    });
}

/// The others name the master that was left.
#[test]
fn a_report_that_leads_nowhere_keeps_nobody_from_the_master() {
    in_scenes_with(SENTINELS, 40, |world| {
        let locks = locks(SENTINELS, |builder| builder);
        drop(locks.lock("a").expect("locks"));
        thread::sleep(SECOND + some(SECOND));
        world.sentinel_names(0, address(100), 1);
        thread::sleep(some(2 * QUICK));
        let asked = now();
        drop(locks.lock("b").expect("locks"));
        assert!(since(asked) < SECOND, "took {:?}", since(asked));
    });
}

/// It is silent, away, or has another password. When the master is replaced, another sentinel is
/// asked first.
#[test]
fn a_sentinel_that_does_not_answer_costs_its_time_once() {
    in_scenes_with(SENTINELS, 60, |world| {
        match below(3) {
            0 => silence(first(), 60 * SECOND),
            1 => refuses(first()),
            _ => {
                let sentinels = world.servers.sentinels.as_ref().expect("there are some");
                let mut sentinel = sentinels.servers[0].borrow_mut();
                sentinel.redis.settings().password = Some("another".to_owned());
            }
        }
        let locks = locks(SENTINELS, |builder| builder);
        let asked = now();
        drop(locks.lock("a").expect("locks"));
        let most = SECOND * 3 / 10 + 5 * QUICK;
        assert!(since(asked) < most, "took {:?}", since(asked));
        thread::sleep(some(9 * SECOND));
        world.promotes_without("a");
        refuses(world.servers.address(0));
        let asked = now();
        drop(locks.lock("b").expect("locks"));
        assert!(since(asked) < SECOND / 10, "took {:?}", since(asked));
    });
}

/// No sentinel answers in the time that one gets at first.
#[test]
fn sentinels_may_be_far_away() {
    in_scenes_with(SENTINELS, 20, |_| {
        let latency = 80_000_000 + below(40_000_000);
        for sentinel in sentinels::addresses() {
            change_link(sentinel, |link| link.latency = (latency, latency));
        }
        let locks = locks(SENTINELS, |builder| builder);
        drop(locks.lock("a").expect("locks"));
    });
}

/// Nor does the master, in half of the scenes.
#[test]
fn sentinels_that_are_silent_do_not_delay_the_end_of_a_wait() {
    in_scenes_with(SENTINELS, 60, |world| {
        let locks = locks(SENTINELS, |builder| {
            let builder = builder.connect_timeout(10 * SECOND);
            builder.response_timeout(10 * SECOND)
        });
        if one_in(2) {
            drop(locks.lock("a").expect("locks"));
        }
        sentinels::addresses().for_each(|it| silence(it, 60 * SECOND));
        let master = world.servers.address(0);
        if one_in(2) {
            silence(master, 60 * SECOND);
        } else {
            refuses(master);
        }
        let (limit, asked) = (SECOND / 10 + some(SECOND), now());
        assert!(locks.named("a").try_lock_for(limit).is_err());
        assert!(since(asked) < limit + QUICK, "took {:?}", since(asked));
    });
}

/// Its thread listens to a sentinel, or connects. It may end later.
#[test]
fn the_end_of_a_manager_waits_for_a_response_timeout_at_most_if_sentinels_are_silent() {
    in_scenes_with(SENTINELS, 40, |_| {
        let locks = locks(SENTINELS, |builder| {
            let builder = builder.connect_timeout(10 * SECOND);
            builder.response_timeout(SECOND)
        });
        let is_connected = one_in(2);
        if is_connected {
            drop(locks.lock("a").expect("locks"));
            thread::sleep(some(SECOND));
        }
        sentinels::addresses().for_each(|it| silence(it, 60 * SECOND));
        if !is_connected {
            assert!(locks.named("a").try_lock_for(some(SECOND)).is_err());
        }
        let asked = now();
        drop(locks);
        assert!(since(asked) < 2 * SECOND, "took {:?}", since(asked));
        thread::sleep(12 * SECOND);
    });
}

/// If all are silent, they may be far away. A port that is closed is not far away.
#[test]
fn a_silent_sentinel_beside_others_that_are_away_is_asked_once() {
    in_scenes_with(SENTINELS, 20, |_| {
        silence(first(), 60 * SECOND);
        sentinels::addresses().skip(1).for_each(refuses);
        let locks = locks(SENTINELS, |builder| builder.connect_timeout(10 * SECOND));
        let asked = now();
        assert!(locks.try_lock("a").is_err());
        assert!(since(asked) < SECOND, "took {:?}", since(asked));
    });
}
