//! One worker at a time, which takes locks as it is told. If its process ends, another one starts.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use relatch_rig::{Sig, freeze, signal};

use super::history::Turn;
use super::weather::Weather;
use super::{LEASE_MS, STEP_MS, WAIT_MS};
use crate::languages::Program;
use crate::peer::Peer;
use crate::stage::{START, Worker};
use crate::worker::now;

/// How long a turn may take: several times as long as its wait, its work and all faults.
const PATIENCE: Duration = Duration::from_secs(20);

/// The place of a worker. The weather reaches its process here.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    process: Mutex<Process>,
    inside: AtomicBool,
}

#[derive(Debug, Default)]
struct Process {
    /// Its id, from its start until it is waited for: the id of no other process.
    pid: Option<u32>,
    killed: Option<u64>,
}

/// What the workers of a run do.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) program: &'a Program,
    pub(crate) peer: Peer,
    pub(crate) url: &'a str,
    pub(crate) keys: &'a [String],
    pub(crate) weather: Weather,
    pub(crate) over: &'a AtomicBool,
    pub(crate) seed: u64,
}

impl Slot {
    /// Whether the worker has a lock.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::SeqCst)
    }

    /// Stops the process until `pause` is over.
    pub(crate) fn stop(&self, pause: impl FnOnce()) {
        let process = self.process();
        if let Some(pid) = process.pid {
            freeze(pid);
            pause();
            signal(pid, Sig::Cont);
        }
    }

    /// Kills the process.
    pub(crate) fn kill(&self) {
        let mut process = self.process();
        if let Some(pid) = process.pid {
            process.killed = Some(now());
            signal(pid, Sig::Kill);
        }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start(&self, work: Work<'_>) -> Result<Worker> {
        let mut command = work.program.worker(work.url, work.peer, LEASE_MS);
        command.stderr(Stdio::null());
        let mut worker = Worker::start(command)?;
        worker.hear_within("ready", START)?;
        // One turn that nobody sees: to open connections, and to load what is loaded late.
        let own = format!("warm:{}", worker.pid());
        worker.tell(&format!("hold {own} {WAIT_MS} 0 {STEP_MS}"))?;
        self.listen(&worker, &mut Turn::default())
            .context("a worker does not begin")?;
        *self.process() = Process {
            pid: Some(worker.pid()),
            killed: None,
        };
        Ok(worker)
    }

    /// Has the worker take locks until `over`. Returns what it did, and the worker.
    pub(crate) fn work(
        &self,
        number: usize,
        mut worker: Worker,
        work: Work<'_>,
    ) -> Result<(Vec<Turn>, Worker)> {
        let mut rng = StdRng::seed_from_u64(work.seed ^ (number as u64 + 1));
        let mut turns = Vec::new();
        while !work.over.load(Ordering::SeqCst) {
            let key = work.keys[rng.random_range(0..work.keys.len())].clone();
            let span = work.weather.work(&mut rng);
            let mut turn = Turn {
                worker: number,
                key,
                asks: now(),
                ..Turn::default()
            };
            // If the process has ended, this fails, and there is no line below.
            let _ = worker.tell(&format!("hold {} {WAIT_MS} {span} {STEP_MS}", turn.key));
            let ended = self.listen(&worker, &mut turn);
            self.inside.store(false, Ordering::SeqCst);
            if let Err(why) = ended {
                turn.hung = why == RecvTimeoutError::Timeout;
                let mut process = self.process();
                turn.died = process.killed.or(Some(now()));
                process.pid = None;
                drop(process);
                drop(worker);
                worker = self.start(work)?;
            }
            turns.push(turn);
        }
        Ok((turns, worker))
    }

    /// Takes in the lines of a turn until its end.
    fn listen(&self, worker: &Worker, turn: &mut Turn) -> Result<(), RecvTimeoutError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let line = worker.line(end.saturating_duration_since(Instant::now()))?;
            if turn.hear(&line) {
                return Ok(());
            }
            let inside = turn.has.is_some() && turn.gives.is_none();
            self.inside.store(inside, Ordering::SeqCst);
        }
    }
}
