//! `relatch run`: a command under a lock.
//!
//! [`life`] decides what is done when something happens, and [`doubt`] who has got a signal
//! already; both know no process. [`job`] has the processes, [`guard`] is the one that stays if
//! this one is killed, [`family`] finds and kills by what [`process`] reads, [`line`] is what the
//! two say to each other, [`signals`] what others send, and [`spawn`] starts a process as this one
//! was started. [`taking`] has the locks, in the [`mode`] that was asked for, and [`held`] is what
//! the first thread knows of them, [`nested`] those of the runs around this one, [`outcome`] what a
//! run comes to, and [`report`] what is said of it in the end.
//!
//! The first thread waits for events and for nothing else: not for Redis, a name server, or who
//! reads what is said.
//!
//! No process of a job shall live while another holder runs. What does not keep that promise, and
//! cannot:
//!
//! - The wrapper and the guard are both killed, or both stopped, before one has done the other's
//!   part. (The wrapper is the guard's parent, and continues it. Nobody continues the wrapper.) So
//!   are those of a run inside of a run that is stopped.
//! - All of the machine stands still for longer than the lease. When it goes on, the job may act
//!   before the guard does. (So does a process that the kernel does not let die, in an
//!   uninterruptible sleep.) A fence is for that.
//! - The lock is deleted or taken by force. Another may have it before Redis has said so and the
//!   job's farewell is over.
//! - A process that this one may not signal (`sudo`), when the lock is lost. As long as the lock
//!   is ours, such a process keeps it. It is not seen if `/proc` hides the processes of others
//!   (`hidepid`).
//! - A process that left the session, when the job just ends: it is not of the job any more. And
//!   what others have started for the job (`at`, `systemd-run`, a container): it never was.
//! - A look at `/proc` that misses a process twice in a row ([`family::Family::is_empty`]). And as
//!   long as `/proc` cannot be read, for lack of files or memory, what has left the job's group.
//! - Where the system does not tell who descends from whom (macOS), what leaves the job's group;
//!   with `--foreground`, all but the first process.

mod doubt;
mod family;
pub(crate) mod guard;
mod held;
mod job;
mod life;
mod line;
pub(crate) mod mode;
pub(crate) mod nested;
mod outcome;
mod process;
mod report;
mod signals;
mod taking;
mod spawn;
mod wanted;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::panic;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};

use relatch::StopHandle;
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use signal_hook::consts::{SIGCONT, SIGSTOP, SIGXFSZ};

use crate::args::{Common, Run};
use crate::connect;
use crate::exit::{self, Failure, code};
use crate::output::{drain, tell};
use crate::run::family::{Pause, Scope};
use crate::run::guard::Orders;
use crate::run::held::Held;
use crate::run::job::Job;
use crate::run::life::{Action, Event, Life};
use crate::run::line::{Until, now};
use crate::run::mode::Part;
use crate::run::nested::Outer;
use crate::run::outcome::{not_taken, over};
use crate::run::process::own_group;
use crate::run::report::{Outcome, Report, To};
use crate::run::taking::Taking;
use crate::run::wanted::Wanted;

/// Runs the command, and returns the exit code, if no signal has ended the job.
pub(crate) fn run(common: &Common, options: &Run) -> u8 {
    let to = match options.report.as_deref().map(To::read).transpose() {
        Ok(to) => to,
        Err(failure) => {
            tell(&failure.message);
            return failure.code;
        }
    };
    let mut report = Report::default();
    let (outcome, code) = match Wanted::read(options) {
        Ok(wanted) => {
            report.keys.clone_from(&wanted.keys);
            attempt(common, options, &wanted, &mut report)
        }
        Err(failure) => {
            tell(&failure.message);
            report.cause = Some(failure.message);
            (Outcome::NotStarted, failure.code)
        }
    };
    if let Some(to) = to
        && let Err(error) = report.write(to, outcome, code)
    {
        let to = options.report.as_deref().unwrap_or_default();
        tell(&format!("cannot write the report to {to}: {error}"));
    }
    drain();
    if let (Outcome::Ended | Outcome::Interrupted, Some(number)) = (outcome, report.signal()) {
        exit::by_signal(number);
    }
    code
}

fn attempt(common: &Common, options: &Run, wanted: &Wanted, report: &mut Report) -> (Outcome, u8) {
    // A panic would give the lock back on its way out, and the job would live on.
    panic::set_hook(Box::new(|panic| {
        tell(&panic.to_string());
        drain();
        std::process::exit(code::SOFTWARE.into());
    }));
    // This may read a pipe that nobody writes to. Signals have their defaults until then.
    let outer = Outer::from_env(common);
    let stop = StopHandle::new();
    let (sender, events) = channel();
    let heard = survive_full_files().and_then(|()| signals::listen(&stop, &sender));
    let handle = match heard {
        Ok(handle) => handle,
        Err(error) => return without_signals(&error),
    };
    let taking = Taking {
        common: common.clone(),
        options: options.clone(),
        wanted: wanted.clone(),
        outer: outer.clone(),
        stop,
        events: sender.clone(),
        cause: Arc::new(OnceLock::new()),
        answered: Arc::new(AtomicBool::new(false)),
    };
    let held = match Held::take(taking, &events, report) {
        Ok(held) => held,
        Err(failed) => return not_taken(common, options, wanted, failed, report),
    };
    if let Err(error) = signals::listen_for_stops(&handle) {
        held.unlock_unused();
        return without_signals(&error);
    }
    let first = First::of(common, options, wanted, &held, &outer);
    (report.fence, report.slot) = (first.fence, first.slot);
    let environment = environment(common, &held, &outer, &first);
    let shares_group = wanted.plan.shares_group;
    let group = if shares_group { own_group() } else { 0 };
    let orders = Orders {
        signal: options.signal,
        kill_after: wanted.plan.kill_after,
        until: held.good_until(&wanted.plan),
        group,
    };
    let job = match Job::start(&wanted.command, &environment, &orders, &sender) {
        Ok(job) => job,
        Err(error) => {
            held.unlock_unused();
            let message = format!("cannot start the guard process: {error}");
            let failure = Failure::new(code::SOFTWARE, message);
            return not_taken(common, options, wanted, failure.into(), report);
        }
    };
    let life = live(job, &held, &events, wanted, options, orders.until);
    over(&life, held, options, wanted, report)
}

/// Turns a write that would make a file larger than `ulimit -f` allows into an error. By default it
/// ends the process. (The job has the default: a handler does not outlive the start of a program.)
fn survive_full_files() -> io::Result<()> {
    if !signals::is_ignored(SIGXFSZ) {
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

fn without_signals(error: &io::Error) -> (Outcome, u8) {
    tell(&format!("cannot receive signals: {error}"));
    (Outcome::NotStarted, code::SOFTWARE)
}

/// The first lock of the command line, as the job is told of it.
struct First {
    /// The name, or the key of a slot or a gate.
    key: String,
    token: String,
    fence: Option<u64>,
    slot: Option<u32>,
}

impl First {
    /// It is this run's, or that of a run around it.
    fn of(common: &Common, options: &Run, wanted: &Wanted, held: &Held, outer: &Outer) -> First {
        let (name, prefix) = (&wanted.keys[0], &common.prefix);
        let taken = held.taken().find(|taken| taken.name == name);
        let (key, token, fence, part) = match (taken, outer.get(prefix, name, wanted.mode)) {
            (Some(taken), _) => (taken.key, taken.token, taken.fence, taken.part),
            (None, Some(has)) => (has.key(prefix), &*has.token, has.fence, has.part),
            (None, None) => (&**name, "", None, Part::Whole),
        };
        First {
            key: key.to_owned(),
            token: token.to_owned(),
            fence: fence.filter(|_| options.fence),
            slot: part.slot().filter(|_| options.slots.is_some()),
        }
    }
}

/// What the job's environment has besides this process's.
fn environment(
    common: &Common,
    held: &Held,
    outer: &Outer,
    first: &First,
) -> BTreeMap<&'static str, OsString> {
    let (keys, tokens) = outer.with(&common.prefix, held.taken());
    let mut all = BTreeMap::from([
        ("RELATCH_HELD", OsString::from("1")),
        ("RELATCH_KEY", (&*first.key).into()),
        (keys, tokens.into()),
        ("RELATCH_PREFIX", (&*common.prefix).into()),
        ("RELATCH_TOKEN", (&*first.token).into()),
    ]);
    if let Some(fence) = first.fence {
        all.insert("RELATCH_FENCE", fence.to_string().into());
    }
    if let Some(slot) = first.slot {
        all.insert("RELATCH_SLOT", slot.to_string().into());
    }
    all.extend(connect::for_job(common));
    all
}

/// Looks after the job until nobody of it is left. The guard was told that the lock is good until
/// `told`.
fn live(
    mut job: Job,
    held: &Held,
    events: &Receiver<Event>,
    wanted: &Wanted,
    options: &Run,
    mut told: Until,
) -> Life {
    let plan = &wanted.plan;
    let mut life = Life::new(plan.clone());
    let mut event = Event::Time;
    // Once the guard has ended, this process looks for the job. Usually nobody is left, and the
    // next events say just that.
    let mut look_at = None;
    let mut pause = Pause::SHORTEST;
    loop {
        event = job.on(event);
        if look_at.is_none() && job.is_alone() {
            look_at = Some(now() + pause.next());
        }
        for action in life.on(event, held.at()) {
            act(action, &mut job, life.scope(), options);
        }
        if life.is_over() {
            return life;
        }
        let until = held.good_until(plan);
        if until.0 > told.0 + plan.lease / 20 {
            told = until;
            job.good_until(until);
        }
        let at = held.at();
        let limit = life.next_look(at).saturating_sub(at.held_for);
        let left = look_at.map_or(limit, |time| time.saturating_sub(now()));
        let is_due = look_at.is_some() && (left.is_zero() || job.is_gone(life.scope()));
        event = if is_due {
            look_at = Some(now() + pause.next());
            job.look(life.scope())
        } else {
            let event = events.recv_timeout(limit.min(left));
            event.unwrap_or(Event::Time)
        };
    }
}

fn act(action: Action, job: &mut Job, scope: Scope, options: &Run) {
    match action {
        Action::Forward(number, to) => job.signal(number, to),
        Action::Ask => {
            job.signal(options.signal, scope);
            job.signal(SIGCONT, scope);
        }
        Action::Kill => job.kill(scope),
        Action::StopAll(whom) => {
            job.signal(SIGSTOP, whom);
            // Only this process: what stopped it has stopped the others that it meant.
            let _ = kill_process(getpid(), Signal::STOP);
        }
        Action::Resume => job.signal(SIGCONT, Scope::Job),
        Action::ResumeGroup => {
            let _ = kill_current_process_group(Signal::CONT);
            job.signal(SIGCONT, Scope::Job);
        }
    }
}
