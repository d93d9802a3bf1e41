//! Processes: several live in a run, and each has its own id, host, clock and statics.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use super::threads::of_process;
use super::{START, later, world};

const MILLION: i64 = 1_000_000;

/// A process of a run.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) host: String,
    /// By how much its clock is faster than the true one, in millionths.
    drift: i64,
    /// It runs no thread until then.
    paused_until: u64,
    is_dead: bool,
    /// See [`PerProcess`].
    pub(super) statics: Vec<(usize, Rc<dyn Any>)>,
}

impl Process {
    pub(super) fn new(number: usize, drift: i64) -> Process {
        let (pid, host) = (
            1000 + u32::try_from(number).expect("a few"),
            format!("host{}", number % 3),
        );
        Process {
            pid,
            host,
            drift,
            paused_until: 0,
            is_dead: false,
            statics: Vec::new(),
        }
    }

    pub(super) fn can_run(&self, now: u64) -> bool {
        !self.is_dead && self.paused_until <= now
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// What its clock shows.
    pub(super) fn clock(&self, now: u64) -> u64 {
        let passed = (now - START).cast_signed();
        let ahead = passed / MILLION * self.drift + passed % MILLION * self.drift / MILLION;
        now.checked_add_signed(ahead).expect("a time")
    }

    /// How long a wait of `span` by its clock takes, in nanoseconds.
    pub(super) fn true_span(&self, span: Duration) -> u64 {
        let nanos = i64::try_from(span.as_nanos()).expect("a short time");
        let speed = MILLION + self.drift;
        let true_nanos = nanos / speed * MILLION + nanos % speed * MILLION / speed;
        true_nanos.cast_unsigned()
    }
}

/// Begins a process, whose clock is faster than the true one by `drift` millionths.
pub(crate) fn process(drift: i64) -> usize {
    world(|world| {
        let number = world.processes.len();
        world.processes.push(Process::new(number, drift));
        number
    })
    .expect("inside a run")
}

/// The process id and the host of this thread's process. `None` outside a run.
pub(crate) fn id() -> Option<(u32, String)> {
    world(|world| {
        let process = world.state(world.running).process;
        let process = &world.processes[process];
        (process.pid, process.host.clone())
    })
}

/// No thread of the process ever runs again, and no destructor of one. Its system `closes` its
/// connections, unless that has lost power: then they stay open at the other end.
pub(crate) fn kill(process: usize, closes: bool) {
    world(|world| world.processes[process].is_dead = true);
    if closes {
        super::network::close_all_of(process);
    }
}

/// The process runs no thread for `span`, as after SIGSTOP.
pub(crate) fn pause(process: usize, span: Duration) {
    world(|world| {
        let until = world.now + u64::try_from(span.as_nanos()).expect("a short time");
        let paused = &mut world.processes[process].paused_until;
        *paused = (*paused).max(until);
    });
    later(span, || ()); // So that the clock gets there.
}

/// True if no process of the run has this id, or if that one was killed. `None` outside a run.
pub(crate) fn is_dead(pid: u32) -> Option<bool> {
    world(|world| {
        world
            .processes
            .iter()
            .all(|process| process.pid != pid || process.is_dead)
    })
}

/// A static that each process of a run has a copy of.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    real: T,
    new: fn() -> T,
}

impl<T: 'static> PerProcess<T> {
    pub(crate) const fn new(real: T, new: fn() -> T) -> PerProcess<T> {
        PerProcess { real, new }
    }

    pub(crate) fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        match of_process(std::ptr::from_ref(self).addr(), self.new) {
            Some(found) => f(&found),
            None => f(&self.real),
        }
    }
}
