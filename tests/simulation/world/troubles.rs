//! What goes wrong with one server, or on the way to it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::base::sync::scheduler::{change_link, later, lose_all, now, reset_all};
use crate::simulation::judge;
use crate::simulation::redis::Redis;
use crate::simulation::world::engine::Servers;
use crate::simulation::world::replication::follow;

/// What is wrong between the processes and a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// Nothing arrives at the server, or nothing comes from it, or both.
    Silence([bool; 2]),
    /// Connects hang. What is open goes on.
    Hangs,
    /// Connects are refused, and all connections are reset.
    Refusal,
    /// Bytes take so many milliseconds, at least and at most.
    Slow(u64, u64),
    /// All connections are reset.
    ResetAll,
    /// Connections are reset in the middle of what they carry.
    Resets(u32),
    /// Answers come twice.
    Repeats(u32),
    /// Whatever is sent over the connections that are open now vanishes.
    HalfOpen,
}

impl Trouble {
    pub(crate) fn draw(draw: &mut SmallRng) -> Trouble {
        match draw.random_range(0..16) {
            0 | 1 => Trouble::Silence([true; 2]),
            2 => Trouble::Silence([true, false]),
            3 => Trouble::Silence([false, true]),
            4 => Trouble::Hangs,
            5 | 6 => Trouble::Refusal,
            7..=9 => {
                let least = [0, 10, 80][draw.random_range(0..3)];
                Trouble::Slow(least, least + [1, 30, 200][draw.random_range(0..3)])
            }
            10 | 11 => Trouble::ResetAll,
            12 | 13 => Trouble::Resets([3, 20][draw.random_range(0..2)]),
            14 => Trouble::Repeats([2, 10][draw.random_range(0..2)]),
            _ => Trouble::HalfOpen,
        }
    }

    pub(crate) fn happens(self, address: SocketAddr, millis: u64, keys: usize) {
        let (span, until) = (Duration::from_millis(millis), now() + millis * 1_000_000);
        change_link(address, |link| match self {
            Trouble::Silence([there, here]) => {
                // What was held back already is due at the old end, and must not be overtaken.
                let [old_there, old_here] = link.silent_until;
                link.silent_until = [
                    old_there.max(u64::from(there) * until),
                    old_here.max(u64::from(here) * until),
                ];
            }
            Trouble::Hangs => link.hangs_until = until,
            Trouble::Refusal => link.refuses_until = link.refuses_until.max(until),
            Trouble::Slow(least, most) => link.latency = (least * 1_000_000, most * 1_000_000),
            Trouble::Resets(one_in) => link.resets = one_in,
            Trouble::Repeats(one_in) => link.repeats = one_in,
            Trouble::ResetAll | Trouble::HalfOpen => {}
        });
        match self {
            Trouble::Refusal | Trouble::ResetAll => reset_all(address),
            Trouble::HalfOpen => lose_all(address),
            Trouble::Slow(..) => {
                later(span, move || {
                    change_link(address, |link| link.latency = (20_000, 60_000));
                });
            }
            Trouble::Resets(_) => later(span, move || change_link(address, |link| link.resets = 0)),
            Trouble::Repeats(_) => {
                // The documented weakness of a plain `SET`: a second `OK` is taken for an answer.
                (0..keys).for_each(|key| judge::removed(key, until + 1_000_000_000));
                later(span, move || change_link(address, |link| link.repeats = 0));
            }
            Trouble::Silence(_) | Trouble::Hangs => {}
        }
    }
}

/// What is wrong with a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ailment {
    /// The process is stopped, and executes later what has come meanwhile.
    Stops,
    /// The server restarts, with or without its data.
    Restart {
        keeps: bool,
    },
    /// The server restarts with its data, and has another address behind the same name.
    Readdressed,
    ScriptFlush,
    KillClients,
    Loading,
    ReadOnly,
    OutOfMemory,
    LacksReplicas,
    Stuck,
    Pause {
        only_writes: bool,
    },
    Password,
    /// The proxy in front of it answers with errors.
    ProxyFails,
}

impl Ailment {
    pub(crate) fn draw(draw: &mut SmallRng) -> Ailment {
        match draw.random_range(0..17) {
            0 | 1 => Ailment::Stops,
            2..=4 => Ailment::Restart {
                keeps: draw.random_bool(0.7),
            },
            5 => Ailment::ScriptFlush,
            6 => Ailment::KillClients,
            7 => Ailment::Loading,
            8 => Ailment::ReadOnly,
            9 => Ailment::OutOfMemory,
            10 => Ailment::LacksReplicas,
            11 => Ailment::Stuck,
            12 => Ailment::Pause {
                only_writes: draw.random_bool(0.5),
            },
            13 => Ailment::Password,
            14 => Ailment::Readdressed,
            _ => Ailment::ProxyFails,
        }
    }

    pub(crate) fn happens(self, servers: &Rc<Servers>, number: usize, millis: u64, keys: usize) {
        let (span, until) = (Duration::from_millis(millis), now() + millis * 1_000_000);
        let number = number % servers.addresses.borrow().len();
        let server = servers.server(number);
        match self {
            Ailment::Restart { keeps } => restart(servers, number, keeps, keys),
            Ailment::Readdressed if servers.sentinels.is_some() => {}
            Ailment::Readdressed => {
                if server.borrow().runs() {
                    restart(servers, number, true, keys);
                    servers.move_to_another_address(number);
                }
            }
            Ailment::Stops => {
                server.borrow_mut().stop();
                later(span, move || server.borrow_mut().go_on());
            }
            Ailment::ProxyFails => server.borrow_mut().proxy_fails_until = until,
            Ailment::ReadOnly if servers.nodes.len() > servers.shards.borrow().len() => {}
            _ => server
                .borrow_mut()
                .event(move |server| server.act(|redis, now| self.begins(redis, now, until))),
        }
        let server = servers.server(number);
        if matches!(
            self,
            Ailment::ReadOnly | Ailment::OutOfMemory | Ailment::LacksReplicas | Ailment::Password
        ) {
            let has_replicas = servers.nodes.len() > servers.shards.borrow().len();
            let ends = move |redis: &mut Redis, now| {
                redis.settings().password = None;
                redis.faults().out_of_memory = false;
                redis.faults().lacks_replicas = false;
                if !has_replicas {
                    redis.promote(now);
                }
            };
            later(span, move || {
                server.borrow_mut().event(move |server| server.act(ends));
            });
        }
    }

    fn begins(self, redis: &mut Redis, now: u64, until: u64) {
        match self {
            Ailment::ScriptFlush => redis.script_flush(),
            Ailment::KillClients => redis.kill_clients(now),
            Ailment::Loading => redis.faults().loading_until = until,
            Ailment::ReadOnly => redis.demote(now),
            Ailment::OutOfMemory => redis.faults().out_of_memory = true,
            Ailment::LacksReplicas => redis.faults().lacks_replicas = true,
            Ailment::Stuck => redis.faults().stuck_until = until,
            Ailment::Pause { only_writes } => redis.pause_until(until, only_writes),
            Ailment::Password => redis.settings().password = Some("another".to_owned()),
            Ailment::Stops
            | Ailment::Restart { .. }
            | Ailment::Readdressed
            | Ailment::ProxyFails => {}
        }
    }
}

/// A server begins anew. Its replicas, or it itself, load all data of their master.
fn restart(servers: &Rc<Servers>, number: usize, keeps: bool, keys: usize) {
    let Some(at) = servers.shard_of(number) else {
        return servers
            .server(number)
            .borrow_mut()
            .event(|it| it.act(|redis, now| redis.restart(true, now)));
    };
    let shard = servers.shards.borrow()[at].clone();
    let server = &servers.nodes[number];
    if !server.borrow().runs() {
        return;
    }
    let keeps = keeps || shard.is_busy || number != shard.master;
    if !keeps {
        servers
            .keys_of(at, keys)
            .into_iter()
            .for_each(|key| judge::removed(key, now()));
    }
    server
        .borrow_mut()
        .act(|redis, now| redis.restart(keeps, now));
    if !shard.is_busy {
        for replica in &shard.replicas {
            if number == shard.master || number == *replica {
                follow(&servers.nodes[shard.master], &servers.nodes[*replica]);
            }
        }
    }
}
