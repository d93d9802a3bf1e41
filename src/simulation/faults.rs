//! What goes wrong in a scene.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::base::scheduler::{change_link, kill, now, pause, reset_all, trace};
use crate::simulation::engine::{Engine, Servers};
use crate::simulation::judge;
use crate::simulation::redis::Redis;
use crate::simulation::scene::name;

#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Nothing arrives, for so many milliseconds.
    Silence(u64),
    /// Connects are refused, and all connections are reset.
    Refusal(u64),
    /// All connections are reset.
    Resets,
    Pause {
        process: usize,
        millis: u64,
    },
    Kill {
        process: usize,
    },
    /// The server restarts, with or without its data.
    Restart {
        keeps: bool,
    },
    ScriptFlush,
    Delete {
        key: usize,
    },
}

/// How many kinds of faults there are.
const KINDS: u32 = 8;

impl Fault {
    /// What goes wrong in a scene, and after how many milliseconds. A scene has few kinds of faults,
    /// so that rare combinations happen often enough.
    pub(super) fn draw_some(
        draw: &mut SmallRng,
        engine: Engine,
        keys: usize,
        processes: usize,
    ) -> Vec<(u64, Fault)> {
        if engine == Engine::Memory || draw.random_ratio(1, 3) {
            return Vec::new();
        }
        let kinds: Vec<u32> = (0..3).map(|_| draw.random_range(0..KINDS)).collect();
        let mut one = |_| {
            let kind = kinds[draw.random_range(0..kinds.len())];
            (draw.random_range(0..6_000), Fault::draw(draw, kind, keys, processes))
        };
        (0..3).map(&mut one).collect()
    }

    fn draw(draw: &mut SmallRng, kind: u32, keys: usize, processes: usize) -> Fault {
        let millis = [5, 100, 700, 3_000][draw.random_range(0..4)];
        let process = draw.random_range(0..processes);
        match kind {
            0 => Fault::Silence(millis),
            1 => Fault::Refusal(millis),
            2 => Fault::Resets,
            3 => Fault::Pause { process, millis },
            4 if draw.random_ratio(1, 4) => Fault::Kill { process },
            5 => Fault::Restart { keeps: draw.random_bool(0.7) },
            6 => Fault::ScriptFlush,
            _ => Fault::Delete { key: draw.random_range(0..keys) },
        }
    }

    /// It happens now.
    pub(super) fn happens(&self, servers: &Servers, processes: &[usize], keys: usize) {
        trace(|| format!("*** {self:?}"));
        let Some((address, server)) = servers.nodes.first() else { return };
        let address = *address;
        let act = |act: &dyn Fn(&mut Redis, u64)| server.borrow_mut().act(act);
        match self {
            Fault::Silence(millis) => {
                let until = now() + millis * 1_000_000;
                change_link(address, |link| link.silent_until = until);
            }
            Fault::Refusal(millis) => {
                let until = now() + millis * 1_000_000;
                change_link(address, |link| link.refuses_until = until);
                reset_all(address);
            }
            Fault::Resets => reset_all(address),
            Fault::Pause { process, millis } => {
                judge::paused(processes[*process], now() + millis * 1_000_000);
                pause(processes[*process], Duration::from_millis(*millis));
            }
            Fault::Kill { process } => {
                judge::killed(processes[*process]);
                kill(processes[*process]);
            }
            Fault::Restart { keeps } => {
                if !keeps {
                    (0..keys).for_each(|key| judge::removed(key, now()));
                }
                act(&|redis, now| redis.restart(*keeps, now));
            }
            Fault::ScriptFlush => act(&|redis, _| redis.script_flush()),
            Fault::Delete { key } => {
                judge::removed(*key, now());
                act(&|redis, now| redis.delete(format!("lock:{}", name(*key)).as_bytes(), now));
            }
        }
    }
}
