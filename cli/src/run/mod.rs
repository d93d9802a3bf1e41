//! `relatch run`: a command under a lock.
//!
//! [`life`] decides how the run reacts to each event, and [`doubt`] which processes already got a
//! signal; neither knows a process. [`job`] has the processes. [`guard`] is the process that
//! survives if this one is killed. [`family`] finds and kills processes by what [`process`] reads.
//! [`line`] has the words between the wrapper and the guard, [`signals`] receives signals, and
//! [`spawn`] starts a process the way this one was started. [`taking`] takes the locks in the
//! requested [`mode`], and [`held`] is the first thread's view of them. [`nested`] has the locks of
//! outer runs, [`outcome`] the result of a run, and [`report`] the report about it.
//!
//! The first thread waits for events and for nothing else: not for Redis, a name server, or a
//! reader of its messages.
//!
//! No process of a job should live while another holder runs. In these cases, relatch cannot keep
//! that promise:
//!
//! - The wrapper and the guard are both killed, or both stopped, before one has done the other's
//!   part. (The wrapper is the guard's parent, and continues it. Nothing continues the wrapper.) If
//!   a run is stopped, so are the wrapper and the guard of a run inside it.
//! - The whole machine is suspended for longer than the lease. When it resumes, the job may act
//!   before the guard does. (The same goes for a process in an uninterruptible sleep, which the
//!   kernel does not let die.) A fence protects against that.
//! - The lock is deleted or taken by force. Another holder may have it before Redis reports the
//!   loss and the job's time to end is over.
//! - The lock is lost, and this process may not signal one of the job's processes (`sudo`). As long
//!   as the lock is ours, such a process keeps it. relatch does not see it if `/proc` hides other
//!   users' processes (`hidepid`).
//! - The job ends normally, and a process has left its session: that process is no longer part of
//!   the job. A process that another program starts for the job (`at`, `systemd-run`, a container)
//!   never was.
//! - A look at `/proc` misses a process twice in a row ([`family::Family::is_empty`]). Or `/proc`
//!   cannot be read, for lack of file descriptors or memory, and a process has left the job's
//!   group.
//! - A process leaves the job's group where the system does not show which process descends from
//!   which (macOS). With `--foreground`, that is every process but the first.

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

/// Runs the command and returns the exit code, unless this process ends by the signal that ended
/// the job.
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
    // A panic would release the lock while unwinding, and the job would continue.
    panic::set_hook(Box::new(|panic| {
        tell(&panic.to_string());
        drain();
        std::process::exit(code::SOFTWARE.into());
    }));
    // This may block on a pipe that nobody writes to. Until it returns, signals keep their default
    // actions.
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

/// Turns a write that would exceed the file size limit (`ulimit -f`) into an error. By default,
/// such a write ends the process. (The job has the default again: handlers do not survive `exec`.)
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

/// The first lock on the command line, as reported to the job.
struct First {
    /// The name, or the key of a slot or a gate.
    key: String,
    token: String,
    fence: Option<u64>,
    slot: Option<u32>,
}

impl First {
    /// The lock belongs to this run or to an outer one.
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

/// The variables that the job gets in addition to this process's environment.
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

/// Looks after the job until none of its processes is left. The guard has been told that the lock
/// is valid until `told`.
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
    // Once the guard has ended, this process looks for the job's processes. Usually none is left,
    // and the next events say so.
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
            // Stop only this process: whatever sent the stop has stopped any others that it meant
            // to.
            let _ = kill_process(getpid(), Signal::STOP);
        }
        Action::Resume => job.signal(SIGCONT, Scope::Job),
        Action::ResumeGroup => {
            let _ = kill_current_process_group(Signal::CONT);
            job.signal(SIGCONT, Scope::Job);
        }
    }
}
