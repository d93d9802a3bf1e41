//! What goes wrong in a scene happens.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{
    change_link, kill, later, lose_all, now, pause, reset_all, trace,
};
use crate::simulation::judge::excuses::Excuse;
use crate::simulation::plan::{Fault, LinkFault, ServerFault, path};
use crate::simulation::redis::Redis;
use crate::simulation::world::cluster::move_slot;
use crate::simulation::world::engine::Servers;
use crate::simulation::world::failover::Failing;
use crate::simulation::world::replication::follow;

fn span(millis: u64) -> (Duration, u64) {
    (Duration::from_millis(millis), now() + millis * 1_000_000)
}

impl Fault {
    /// It happens now, in a scene with these processes.
    pub(crate) fn happens(self, servers: &Rc<Servers>, processes: &[usize]) {
        trace(|| format!("*** {self:?}"));
        let judge = &servers.judge;
        match self {
            Fault::Link(server, fault, millis) => {
                let address = servers.address(server);
                fault.happens(address, millis);
                if let LinkFault::Repeats(_) = fault {
                    // A second `OK` is taken for an answer to another `SET`.
                    let until = now() + millis * 1_000_000 + 1_000_000_000;
                    judge.all_removed(Excuse::Repeated, until);
                }
            }
            Fault::Server(server, fault, millis) => fault.happens(servers, server, millis),
            Fault::Pause(process, millis) => {
                let (span, until) = span(millis);
                judge.paused(processes[process], until);
                pause(processes[process], span);
            }
            Fault::Kill { process, closes } => strike(servers, processes[process], closes),
            Fault::Delete(key) => {
                let (master, judge) = (servers.master_of_key(key), judge.clone());
                servers.nodes[master].borrow_mut().event(move |server| {
                    judge.removed(Excuse::Deleted, key, now());
                    server.act(|redis, now| redis.delete(path(key), now));
                });
            }
            Fault::ClockStep(millis) => {
                if millis > 0 {
                    judge.all_removed(Excuse::ClockStep, now());
                }
                for node in &servers.nodes {
                    let step = |redis: &mut Redis, _| redis.step_clock(millis * 1_000_000);
                    node.borrow_mut().act(step);
                }
            }
            Fault::Lag(millis) => {
                servers.lag(millis);
                let servers = Rc::clone(servers);
                later(Duration::from_secs(5), move || servers.lag(0));
            }
            Fault::Failover(failover) => Failing::begin(servers, failover),
            Fault::MoveSlot(key) => move_slot(servers, key),
        }
    }
}

impl LinkFault {
    pub(crate) fn happens(self, address: SocketAddr, millis: u64) {
        let (span, until) = span(millis);
        change_link(address, |link| match self {
            LinkFault::Silence([there, here]) => {
                // What was held back already is due at the old end, and must not be overtaken.
                let [old_there, old_here] = link.silent_until;
                link.silent_until = [
                    old_there.max(u64::from(there) * until),
                    old_here.max(u64::from(here) * until),
                ];
            }
            LinkFault::Hangs => link.hangs_until = until,
            LinkFault::Refusal => link.refuses_until = link.refuses_until.max(until),
            LinkFault::Slow(least, most) => link.latency = (least * 1_000_000, most * 1_000_000),
            LinkFault::Resets(one_in) => link.resets = one_in,
            LinkFault::Repeats(one_in) => link.repeats = one_in,
            LinkFault::ResetAll | LinkFault::HalfOpen => {}
        });
        match self {
            LinkFault::Refusal | LinkFault::ResetAll => reset_all(address),
            LinkFault::HalfOpen => lose_all(address),
            LinkFault::Silence(_) | LinkFault::Hangs => {}
            LinkFault::Slow(..) | LinkFault::Resets(_) | LinkFault::Repeats(_) => {
                let ends = move || {
                    change_link(address, |link| match self {
                        LinkFault::Slow(..) => link.latency = (20_000, 60_000),
                        LinkFault::Resets(_) => link.resets = 0,
                        _ => link.repeats = 0,
                    });
                };
                later(span, ends);
            }
        }
    }
}

impl ServerFault {
    fn happens(self, servers: &Rc<Servers>, number: usize, millis: u64) {
        let (span, until) = span(millis);
        let number = number % servers.addresses.borrow().len();
        let server = servers.server(number);
        let has_replicas = servers.nodes.len() > servers.shards.borrow().len();
        match self {
            ServerFault::Restart { keeps } => restart(servers, number, keeps),
            ServerFault::Readdressed if servers.sentinels.is_some() => {}
            ServerFault::Readdressed => {
                if server.borrow().runs() {
                    restart(servers, number, true);
                    servers.move_to_another_address(number);
                }
            }
            ServerFault::Stops => {
                server.borrow_mut().stop();
                later(span, move || server.borrow_mut().go_on());
            }
            ServerFault::ProxyFails => server.borrow_mut().proxy_fails_until = until,
            ServerFault::ReadOnly if has_replicas => {}
            _ => {
                let begins = move |redis: &mut Redis, now| self.begins(redis, now, until);
                server.borrow_mut().event(move |server| server.act(begins));
                let ends = move |redis: &mut Redis, now| match self {
                    ServerFault::Password => redis.settings().password = None,
                    ServerFault::OutOfMemory => redis.faults().out_of_memory = false,
                    ServerFault::LacksReplicas => redis.faults().lacks_replicas = false,
                    ServerFault::ReadOnly => redis.promote(now),
                    _ => {}
                };
                later(span, move || {
                    server.borrow_mut().event(move |server| server.act(ends));
                });
            }
        }
    }

    fn begins(self, redis: &mut Redis, now: u64, until: u64) {
        match self {
            ServerFault::ScriptFlush => redis.script_flush(),
            ServerFault::KillClients => redis.kill_clients(now),
            ServerFault::Loading => redis.faults().loading_until = until,
            ServerFault::ReadOnly => redis.demote(now),
            ServerFault::OutOfMemory => redis.faults().out_of_memory = true,
            ServerFault::LacksReplicas => redis.faults().lacks_replicas = true,
            ServerFault::Stuck => redis.faults().stuck_until = until,
            ServerFault::Pause { only_writes } => redis.pause_until(until, only_writes),
            ServerFault::Password => redis.settings().password = Some("another".to_owned()),
            ServerFault::Stops
            | ServerFault::Restart { .. }
            | ServerFault::Readdressed
            | ServerFault::ProxyFails => {}
        }
    }
}

/// A server begins anew. Its replicas, or it itself, load all data of their master.
fn restart(servers: &Rc<Servers>, number: usize, keeps: bool) {
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
        for key in servers.keys_of(at) {
            servers.judge.removed(Excuse::Restarted, key, now());
        }
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

/// Ends the process, but not in the middle of a panic: shuttle would end that panic after the
/// scene.
fn strike(servers: &Rc<Servers>, process: usize, closes: bool) {
    if std::thread::panicking() {
        let servers = Rc::clone(servers);
        let again = move || strike(&servers, process, closes);
        return later(Duration::from_millis(1), again);
    }
    servers.judge.killed(process);
    kill(process, closes);
}
