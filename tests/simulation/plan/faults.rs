//! What goes wrong in a scene, drawn from its seed.

use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Engine, Failover, Fault, LinkFault, Master, ServerFault, any};

impl Fault {
    /// What goes wrong in a scene, and after how many milliseconds.
    pub(super) fn draw_some(
        draw: &mut SmallRng,
        engine: Engine,
        keys: usize,
        processes: usize,
    ) -> Vec<(u64, Fault)> {
        if engine == Engine::Memory || draw.random_ratio(1, 4) {
            return Vec::new();
        }
        let kinds: Vec<u32> = (0..3).map(|_| draw.random_range(0..28)).collect();
        let one = |_| {
            let kind = any(draw, &kinds);
            let latest = any(draw, &[300, 1_500, 6_000]);
            let at = draw.random_range(0..latest);
            (at, Fault::draw(draw, kind, engine, keys, processes))
        };
        (0..4).map(one).collect()
    }

    fn draw(
        draw: &mut SmallRng,
        kind: u32,
        engine: Engine,
        keys: usize,
        processes: usize,
    ) -> Fault {
        let millis = any(draw, &[5, 100, 700, 3_000]);
        let process = draw.random_range(0..processes);
        let (server, key) = (draw.random_range(0..60), draw.random_range(0..keys));
        match (kind, engine) {
            (0..=4, Engine::Sentinel(_) | Engine::Cluster(_)) => {
                Fault::Failover(Failover::draw(draw))
            }
            (5 | 6, Engine::Cluster(_)) => Fault::MoveSlot(key),
            (5 | 7, Engine::Sentinel(_) | Engine::Replicas(_) | Engine::Cluster(_)) => {
                Fault::Lag(millis)
            }
            (0..=11, _) => Fault::Link(server, LinkFault::draw(draw), millis),
            (12, _) => Fault::Pause(process, millis),
            (13 | 14, _) if draw.random_ratio(1, 3) => {
                let closes = kind == 13;
                Fault::Kill { process, closes }
            }
            (15, _) => Fault::Delete(key),
            (16, _) => {
                let step = draw.random_range(1..5_000);
                Fault::ClockStep(any(draw, &[step, -step]))
            }
            _ => Fault::Server(server, ServerFault::draw(draw), millis),
        }
    }
}

impl LinkFault {
    pub(crate) fn draw(draw: &mut SmallRng) -> LinkFault {
        match draw.random_range(0..16) {
            0 | 1 => LinkFault::Silence([true; 2]),
            2 => LinkFault::Silence([true, false]),
            3 => LinkFault::Silence([false, true]),
            4 => LinkFault::Hangs,
            5 | 6 => LinkFault::Refusal,
            7..=9 => {
                let least = any(draw, &[0, 10, 80]);
                LinkFault::Slow(least, least + any(draw, &[1, 30, 200]))
            }
            10 | 11 => LinkFault::ResetAll,
            12 | 13 => LinkFault::Resets(any(draw, &[3, 20])),
            14 => LinkFault::Repeats(any(draw, &[2, 10])),
            _ => LinkFault::HalfOpen,
        }
    }
}

impl ServerFault {
    fn draw(draw: &mut SmallRng) -> ServerFault {
        match draw.random_range(0..17) {
            0 | 1 => ServerFault::Stops,
            2..=4 => ServerFault::Restart {
                keeps: draw.random_bool(0.7),
            },
            5 => ServerFault::ScriptFlush,
            6 => ServerFault::KillClients,
            7 => ServerFault::Loading,
            8 => ServerFault::ReadOnly,
            9 => ServerFault::OutOfMemory,
            10 => ServerFault::LacksReplicas,
            11 => ServerFault::Stuck,
            12 => ServerFault::Pause {
                only_writes: draw.random_bool(0.5),
            },
            13 => ServerFault::Password,
            14 => ServerFault::Readdressed,
            _ => ServerFault::ProxyFails,
        }
    }
}

impl Failover {
    fn draw(draw: &mut SmallRng) -> Failover {
        let hows = [Master::Dies, Master::Stops, Master::Planned, Master::CutOff];
        let longest = any(draw, &[50, 500, 3_000]);
        Failover {
            shard: draw.random_range(0..60),
            how: any(draw, &hows),
            after: draw.random_range(1..longest),
            back: any(draw, &[20, 1_000, 8_000]),
            learns: any(draw, &[0, 100, 8_000]),
        }
    }
}
