//! The conditions on the machine during a measurement.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How many loops keep the machine busy.
const LOOPS: usize = 2;

/// The conditions of a measurement. The report has each table once per setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Setting {
    /// Nothing else runs; the scheduler places all processes.
    Free,
    /// Server and clients share one core.
    OneCore,
    /// Two threads of another process never rest; the scheduler places all.
    Busy,
}

/// The conditions of a setting. They last until this is dropped.
pub(crate) struct Surroundings {
    before: CpuSet,
    over: Arc<AtomicBool>,
}

impl Setting {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Setting::Free => "free",
            Setting::OneCore => "on one core",
            Setting::Busy => "beside two busy loops",
        }
    }

    /// Creates the conditions, for this thread and the processes that it starts from now on.
    pub(crate) fn enter(self) -> Result<Surroundings> {
        let before = sched_getaffinity(None)?;
        let over = Arc::new(AtomicBool::new(false));
        let surroundings = Surroundings {
            before,
            over: Arc::clone(&over),
        };
        if self == Setting::OneCore {
            let first = (0..CpuSet::MAX_CPU)
                .find(|core| before.is_set(*core))
                .context("no core")?;
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one)?;
        }
        for _ in 0..if self == Setting::Busy { LOOPS } else { 0 } {
            let over = Arc::clone(&over);
            thread::spawn(move || while !black_box(&over).load(Ordering::Relaxed) {});
        }
        Ok(surroundings)
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = sched_setaffinity(None, &self.before);
    }
}
