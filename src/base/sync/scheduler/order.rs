//! What happens next in a run: a timer that is due, or one of the threads that can run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::time::Duration;

use rand::distr::Bernoulli;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use shuttle::scheduler::Task;

use super::network::Network;
use super::process::Process;
use super::runs::Ended;
use super::{GHOST, KEEPS_TEXT, Order, START, State, Trace, World};

/// A run with more steps than this counts as endless.
const MOST_STEPS: u64 = 2_000_000;

pub(super) enum Due {
    Wake { task: usize, wait: u64 },
    Call(Box<dyn FnOnce()>),
}

pub(super) enum Next {
    Task(usize),
    Call(Box<dyn FnOnce()>),
    Nobody,
}

impl World {
    pub(super) fn new(seed: u64, order: Order) -> World {
        World {
            seed,
            order,
            now: START,
            chance: SmallRng::seed_from_u64(seed),
            switches: Bernoulli::from_ratio(1, order.switches).expect("a ratio"),
            tasks: vec![State::default()],
            awake: vec![0],
            running: 0,
            chosen: None,
            timers: BinaryHeap::new(),
            dues: Vec::new(),
            processes: vec![Process::new(0, 0)],
            network: Network::default(),
            steps: 0,
            is_alone: false,
            ghosts: Vec::new(),
            is_over: false,
            failure: None,
            trace: Trace {
                hash: 0,
                text: KEEPS_TEXT.get().then(String::new),
            },
        }
    }

    pub(super) fn ended(mut self, panic: Option<String>) -> Ended {
        // Do not drop anything that killed threads left behind: a guard's drop would release its
        // lock.
        let left = self.tasks.drain(..).filter(|task| !task.has_ended);
        left.for_each(std::mem::forget);
        self.trace.note(self.now);
        self.trace.note(self.steps);
        Ended {
            seed: self.seed,
            failure: panic.or(self.failure),
            hash: self.trace.hash,
            text: self.trace.text,
            steps: self.steps,
            took: Duration::from_nanos(self.now - START),
        }
    }

    /// What happens next. Time passes only here, and in steps.
    pub(super) fn next(&mut self, known: Option<&[&Task]>) -> Next {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            self.failure = Some("the run does not end".to_owned());
            self.is_over = true;
            return Next::Nobody;
        }
        let mut stall = self.order.stalls > 0 && self.chance.random_ratio(1, self.order.stalls);
        loop {
            while let Some(Reverse((due, place))) = self.timers.peek().copied()
                && due <= self.now
            {
                self.timers.pop();
                match self.dues[place].take() {
                    Some(Due::Call(call)) => return Next::Call(call),
                    Some(Due::Wake { task, wait }) => self.wake(task, wait),
                    None => unreachable!("each is due once"),
                }
            }
            let awake = if std::mem::take(&mut stall) {
                None
            } else {
                self.one_awake(known)
            };
            if let Some(task) = awake {
                self.running = task;
                self.trace.note(task as u64);
                return Next::Task(task);
            }
            match self.timers.peek() {
                Some(Reverse((due, _))) => self.now = *due,
                None if self.awake.is_empty() => {
                    self.failure = Some(self.describe_deadlock());
                    self.is_over = true;
                    return Next::Nobody;
                }
                None => {}
            }
        }
    }

    /// One of the threads that can run now.
    fn one_awake(&mut self, known: Option<&[&Task]>) -> Option<usize> {
        let World {
            tasks,
            processes,
            awake,
            ..
        } = self;
        let is_known = |task: usize| {
            known.is_none_or(|known| {
                known
                    .binary_search_by_key(&task, |it| usize::from(it.id()))
                    .is_ok()
            })
        };
        awake.retain(|task| {
            let state = &tasks[*task];
            !processes[state.process].is_dead() && (!state.has_ended || is_known(*task))
        });
        let can_run = self
            .awake
            .iter()
            .filter(|task| self.can_run(**task))
            .count();
        let chosen = (can_run > 0).then(|| self.chance.random_range(0..can_run))?;
        self.awake
            .iter()
            .filter(|task| self.can_run(**task))
            .nth(chosen)
            .copied()
    }

    /// True if there is more to do now than what the running thread does. (A switch costs more than
    /// this check.)
    pub(super) fn has_more_to_do(&self) -> bool {
        let (running, now) = (self.running, self.now);
        let is_due = self.timers.peek().is_some_and(|it| it.0.0 <= now);
        let can_run =
            |task: &usize| *task != running && !self.tasks[*task].has_ended && self.can_run(*task);
        is_due || self.order.stalls > 0 || self.awake.iter().any(can_run)
    }

    /// Whether its process lets a thread that does not wait run now.
    fn can_run(&self, task: usize) -> bool {
        self.processes[self.tasks[task].process].can_run(self.now)
    }

    /// The state of a task, which shuttle may have begun without a call of [`thread`].
    pub(super) fn state(&mut self, task: usize) -> &mut State {
        if task < self.tasks.len() {
            return &mut self.tasks[task];
        }
        if let Some(process) = task.checked_sub(GHOST) {
            while self.ghosts.len() <= process {
                self.ghosts.push(State {
                    process: self.ghosts.len(),
                    ..State::default()
                });
            }
            return &mut self.ghosts[process];
        }
        self.awake.extend(self.tasks.len()..=task);
        self.tasks.resize_with(task + 1, State::default);
        &mut self.tasks[task]
    }

    /// A step takes up to 256 ns.
    pub(super) fn tick(&mut self) {
        self.now += 1 + u64::from(self.chance.random::<u8>());
    }

    pub(super) fn wake(&mut self, task: usize, wait: u64) {
        let state = self.state(task);
        if state.wait == wait && state.waits.take().is_some() {
            self.awake.push(task);
        }
    }

    pub(super) fn set_timer(&mut self, due: u64, what: Due) {
        self.timers.push(Reverse((due, self.dues.len())));
        self.dues.push(Some(what));
    }

    pub(super) fn describe_deadlock(&self) -> String {
        let mut text = "nothing happens any more".to_owned();
        for (number, task) in self.tasks.iter().enumerate() {
            if let Some(waits) = task.waits {
                let _ = write!(text, "; thread {number} {:?} waits for {waits}", task.name);
            }
        }
        text
    }
}

impl Trace {
    /// Notes that something has happened: a different order of the same things gives a different
    /// hash.
    fn note(&mut self, what: u64) {
        self.hash = (self.hash.rotate_left(5) ^ what).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}
