//! What goes wrong in a scene.

use std::rc::Rc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::base::sync::scheduler::{kill, later, now, pause, trace};
use crate::simulation::judge;
use crate::simulation::scene::path;
use crate::simulation::world::cluster::move_slot;
use crate::simulation::world::engine::{Engine, Servers};
use crate::simulation::world::failover::{Failover, How};
use crate::simulation::world::troubles::{Ailment, Trouble};

/// Times are milliseconds.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Something is wrong between the processes and a server.
    Trouble {
        server: usize,
        trouble: Trouble,
        millis: u64,
    },
    /// Something is wrong with a server.
    Ailment {
        server: usize,
        ailment: Ailment,
        millis: u64,
    },
    Pause {
        process: usize,
        millis: u64,
    },
    Kill {
        process: usize,
        /// The system closes its connections. A machine without power does not.
        closes: bool,
    },
    /// Somebody deletes the key, or it is evicted.
    Delete {
        key: usize,
    },
    /// The clocks of all servers are set forward or back.
    ClockStep {
        millis: i64,
    },
    /// Replicas are slow, for five seconds.
    Lag {
        millis: u64,
    },
    Failover {
        shard: usize,
        how: How,
        after: u64,
        back: u64,
        learns: u64,
    },
    MoveSlot {
        key: usize,
    },
}

impl Fault {
    /// What goes wrong in a scene, and after how many milliseconds. A scene has few kinds of
    /// faults, so that rare combinations happen often enough.
    pub(crate) fn draw_some(
        draw: &mut SmallRng,
        engine: Engine,
        keys: usize,
        processes: usize,
    ) -> Vec<(u64, Fault)> {
        if engine == Engine::Memory || draw.random_ratio(1, 4) {
            return Vec::new();
        }
        let kinds: Vec<u32> = (0..3).map(|_| draw.random_range(0..28)).collect();
        let mut one = |_| {
            let kind = kinds[draw.random_range(0..kinds.len())];
            let latest = [300, 1_500, 6_000][draw.random_range(0..3)];
            (
                draw.random_range(0..latest),
                Fault::draw(draw, kind, engine, keys, processes),
            )
        };
        (0..4).map(&mut one).collect()
    }

    fn draw(
        draw: &mut SmallRng,
        kind: u32,
        engine: Engine,
        keys: usize,
        processes: usize,
    ) -> Fault {
        let millis = [5, 100, 700, 3_000][draw.random_range(0..4)];
        let process = draw.random_range(0..processes);
        let (server, key) = (draw.random_range(0..60), draw.random_range(0..keys));
        match (kind, engine) {
            (0..=4, Engine::Sentinel(_) | Engine::Cluster(_)) => Fault::failover(draw),
            (5 | 6, Engine::Cluster(_)) => Fault::MoveSlot { key },
            (5 | 7, Engine::Sentinel(_) | Engine::Replicas(_) | Engine::Cluster(_)) => {
                Fault::Lag { millis }
            }
            (0..=11, _) => Fault::Trouble {
                server,
                trouble: Trouble::draw(draw),
                millis,
            },
            (12, _) => Fault::Pause { process, millis },
            (13 | 14, _) if draw.random_ratio(1, 3) => {
                let closes = kind == 13;
                Fault::Kill { process, closes }
            }
            (15, _) => Fault::Delete { key },
            (16, _) => {
                let step = draw.random_range(1..5_000);
                Fault::ClockStep {
                    millis: if draw.random_bool(0.5) { step } else { -step },
                }
            }
            _ => Fault::Ailment {
                server,
                ailment: Ailment::draw(draw),
                millis,
            },
        }
    }

    fn failover(draw: &mut SmallRng) -> Fault {
        let hows = [How::Dies, How::Stops, How::Planned, How::CutOff];
        let longest = [50, 500, 3_000][draw.random_range(0..3)];
        Fault::Failover {
            shard: draw.random_range(0..60),
            how: hows[draw.random_range(0..hows.len())],
            after: draw.random_range(1..longest),
            back: [20, 1_000, 8_000][draw.random_range(0..3)],
            learns: [0, 100, 8_000][draw.random_range(0..3)],
        }
    }

    /// It happens now.
    pub(crate) fn happens(&self, servers: &Rc<Servers>, processes: &[usize], keys: usize) {
        trace(|| format!("*** {self:?}"));
        match *self {
            Fault::Trouble {
                server,
                trouble,
                millis,
            } => {
                let address = servers.address(server);
                trouble.happens(address, millis, keys);
            }
            Fault::Ailment {
                server,
                ailment,
                millis,
            } => ailment.happens(servers, server, millis, keys),
            Fault::Pause { process, millis } => {
                judge::paused(processes[process], now() + millis * 1_000_000);
                pause(processes[process], Duration::from_millis(millis));
            }
            Fault::Kill { process, closes } => strike(processes[process], closes),
            Fault::Delete { key } => {
                let master = servers.master_of_key(key);
                servers.nodes[master].borrow_mut().event(move |server| {
                    judge::removed(key, now());
                    server.act(|redis, now| redis.delete(path(key), now));
                });
            }
            Fault::ClockStep { millis } => step_clocks(servers, millis, keys),
            Fault::Lag { millis } => {
                servers.lag(millis);
                let servers = Rc::clone(servers);
                later(Duration::from_secs(5), move || servers.lag(0));
            }
            Fault::Failover {
                shard,
                how,
                after,
                back,
                learns,
            } => {
                let shard = shard % servers.shards.borrow().len();
                let [after, back, learns] = [after, back, learns].map(Duration::from_millis);
                let servers = Rc::clone(servers);
                Failover {
                    servers,
                    shard,
                    how,
                    after,
                    back,
                    learns,
                    keys,
                }
                .begin();
            }
            Fault::MoveSlot { key } => move_slot(servers, key),
        }
    }
}

/// The clocks of all servers are set forward or back.
fn step_clocks(servers: &Servers, millis: i64, keys: usize) {
    if millis > 0 {
        (0..keys).for_each(|key| judge::removed(key, now()));
    }
    for node in &servers.nodes {
        node.borrow_mut()
            .act(|redis, _| redis.step_clock(millis * 1_000_000));
    }
}

/// Ends the process, but not in the middle of a panic: shuttle would end that panic after the
/// scene.
fn strike(process: usize, closes: bool) {
    if std::thread::panicking() {
        return later(Duration::from_millis(1), move || strike(process, closes));
    }
    judge::killed(process);
    kill(process, closes);
}
