//! What goes wrong while the workers take locks. A seed decides when, and to whom.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use rand::RngExt;
use rand::rngs::StdRng;
use relatch_rig::{Fault as Reply, Proxy, Server};

use super::LEASE_MS;
use super::history::{Fault, What};
use super::slot::Slot;
use crate::worker::now;

/// What goes wrong, over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Weather {
    /// Nothing, but the work often takes longer than the lease.
    LongWork,
    /// A holder is stopped for longer than the lease, and continued.
    Pauses,
    /// A holder is killed, and another process starts in its place.
    Kills,
    /// The server ends all connections.
    Cuts,
    /// The server executes a command, and the connection ends in place of the answer.
    LostReplies,
    /// An answer is on its way for longer than the lease.
    LateReplies,
    /// The server does nothing for a while (`CLIENT PAUSE`).
    SilentServer,
    /// An operator deletes keys.
    Deletions,
    /// The server is killed, and started again without its keys.
    Restarts,
}

/// How long to wait for the command that is to be spoilt: some locks send few.
const SECOND: Duration = Duration::from_secs(1);

/// What can be done to a run.
pub(crate) struct Scene<'a> {
    pub(crate) server: &'a Server,
    pub(crate) proxy: &'a Proxy,
    pub(crate) slots: &'a [Slot],
    pub(crate) keys: &'a [String],
    pub(crate) faults: Vec<Fault>,
}

impl Weather {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Weather::LongWork => "Work longer than the lease",
            Weather::Pauses => "Holders paused",
            Weather::Kills => "Holders killed",
            Weather::Cuts => "Connections cut",
            Weather::LostReplies => "Replies lost",
            Weather::LateReplies => "Replies late",
            Weather::SilentServer => "Redis silent",
            Weather::Deletions => "Keys deleted",
            Weather::Restarts => "Redis restarted",
        }
    }

    /// How many milliseconds the next hold takes: mostly a few. One in 100 shall live to see a
    /// fault, and ends before a lease that nobody renews.
    pub(crate) fn work(self, rng: &mut StdRng) -> u32 {
        let long = self == Weather::LongWork && rng.random_ratio(1, 10);
        match rng.random_range(0..100) {
            _ if long => rng.random_range(LEASE_MS * 6 / 5..LEASE_MS * 2),
            0 => rng.random_range(LEASE_MS * 3 / 10..LEASE_MS * 8 / 10),
            _ => rng.random_range(0..5),
        }
    }

    /// Lets one fault happen.
    pub(crate) fn strike(self, scene: &mut Scene<'_>, rng: &mut StdRng) -> Result<()> {
        let lease = u64::from(LEASE_MS);
        match self {
            Weather::LongWork => pause(rng, 50, 51),
            Weather::Pauses => {
                if let Some(worker) = scene.slots.iter().position(Slot::is_inside) {
                    let from = now();
                    scene.slots[worker].stop(|| pause(rng, lease * 12 / 10, lease * 18 / 10));
                    scene.note(What::Stop, from, Some(worker), None);
                }
                pause(rng, 100, 400);
            }
            Weather::Kills => {
                if let Some(slot) = scene.slots.iter().find(|it| it.is_inside()) {
                    slot.kill();
                }
                pause(rng, 200, 500);
            }
            Weather::Cuts => {
                for kind in ["normal", "pubsub"] {
                    scene.server.command(&["CLIENT", "KILL", "TYPE", kind])?;
                }
                pause(rng, 200, 800);
            }
            Weather::LostReplies | Weather::LateReplies => {
                let late = Duration::from_millis(rng.random_range(lease * 11 / 10..lease * 3 / 2));
                scene.proxy.clear();
                for command in ["SET", "EVALSHA", "EVAL"] {
                    let fault = match self {
                        Weather::LateReplies => Reply::DelayReply(late),
                        _ => Reply::CutBeforeReply,
                    };
                    scene.proxy.on_nth(command, rng.random_range(2..20), fault);
                }
                let (before, end) = (scene.proxy.fired(), Instant::now() + SECOND);
                while scene.proxy.fired() == before && Instant::now() < end {
                    pause(rng, 1, 5);
                }
            }
            Weather::SilentServer => {
                let span = rng.random_range(lease / 5..lease * 3 / 2);
                let pause_for = span.to_string();
                scene.server.command(&["CLIENT", "PAUSE", &pause_for])?;
                pause(rng, span + 300, span + 800);
            }
            Weather::Deletions => {
                scene.delete(rng.random_range(0..scene.keys.len()))?;
                pause(rng, 20, 100);
            }
            Weather::Restarts => {
                let from = now();
                scene.server.kill();
                pause(rng, 1, 300);
                scene.server.restart();
                scene.note(What::Restart, from, None, None);
                pause(rng, 600, 1200);
            }
        }
        Ok(())
    }
}

/// Sleeps for some milliseconds.
fn pause(rng: &mut StdRng, from: u64, to: u64) {
    thread::sleep(Duration::from_millis(rng.random_range(from..to)));
}

impl Scene<'_> {
    /// Deletes a key as an operator would.
    fn delete(&mut self, place: usize) -> Result<()> {
        let key = &self.keys[place];
        let from = now();
        let names = super::names_of(key);
        let names = names.iter().map(String::as_str);
        let del: Vec<&str> = ["DEL"].into_iter().chain(names).collect();
        let deleted = self.server.command(&del)?;
        if deleted == redis::Value::Int(1) {
            let key = Some(key.clone());
            self.note(What::Delete, from, None, key);
        }
        Ok(())
    }

    fn note(&mut self, what: What, from: u64, worker: Option<usize>, key: Option<String>) {
        self.faults.push(Fault {
            what,
            from,
            to: now(),
            worker,
            key,
        });
    }
}
