//! `relatch run`: a command under a lock.
//!
//! [`life`] decides what is done when something happens, and knows no process. [`job`] has the
//! processes, [`guard`] is the one that stays if this one is killed, [`group`] finds and kills,
//! [`line`] is what the two say to each other, [`signals`] what others send. [`held`] has the
//! locks, [`nested`] those of the runs around this one, and [`report`] what is said in the end.

mod group;
pub(crate) mod guard;
mod held;
mod job;
mod life;
mod line;
pub(crate) mod nested;
mod report;
mod signals;
mod wanted;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use relatch::{Error, StopHandle};
use signal_hook::consts::{SIGCONT, SIGSTOP};

use crate::args::{Common, Run};
use crate::exit::{self, Failure, code};
use crate::run::group::POLL;
use crate::run::guard::Orders;
use crate::run::held::Held;
use crate::run::job::Job;
use crate::run::life::{Action, Ended, Event, Life, Reason};
use crate::run::nested::Outer;
use crate::run::report::{Outcome, Report};
use crate::run::wanted::Wanted;

/// How long the guard has to end, at the end of all.
const LONGEST_GOODBYE: Duration = Duration::from_secs(1);

/// Runs the command, and returns the exit code.
pub(crate) fn run(common: &Common, options: &Run) -> u8 {
    let mut report = Report::default();
    let (outcome, code) = match Wanted::read(common, options) {
        Ok(wanted) => {
            report.keys.clone_from(&wanted.keys);
            attempt(common, options, &wanted, &mut report)
        }
        Err(failure) => {
            say(&failure.message);
            report.cause = Some(failure.message);
            (Outcome::NotStarted, failure.code)
        }
    };
    if let Some(to) = &options.report
        && let Err(error) = report.write(to, outcome, code)
    {
        say(&format!("the report cannot be written to {to}: {error}"));
    }
    code
}

fn say(message: &str) {
    eprintln!("relatch: {message}");
}

fn attempt(common: &Common, options: &Run, wanted: &Wanted, report: &mut Report) -> (Outcome, u8) {
    let stop = StopHandle::new();
    let (sender, events) = channel();
    let foreground = options.foreground || std::io::stdin().is_terminal();
    if let Err(error) = signals::listen(foreground, &stop, &sender) {
        say(&format!("no signals can be received: {error}"));
        return (Outcome::NotStarted, code::SOFTWARE);
    }
    let outer = if std::env::var_os("RELATCH_HELD").is_some() {
        Outer::from_env()
    } else {
        Outer::default()
    };
    let held = match take(common, options, wanted, &outer, &stop, &sender, report) {
        Ok(held) => held,
        Err(failure) => return not_taken(common, options, &events, failure, report),
    };
    report.fence = held.fence(&wanted.keys[0]);
    if let Some(number) = ends_wait(&events) {
        drop(held);
        return (Outcome::Interrupted, exit::of_signal(number));
    }
    let orders = Orders {
        signal: options.signal,
        kill_after: wanted.plan.kill_after,
        foreground: foreground.then(|| rustix::process::getpgrp().as_raw_nonzero().get()),
    };
    let environment = environment(common, wanted, &held, &outer);
    let job = match Job::start(&wanted.command, &environment, &orders, &sender) {
        Ok(job) => job,
        Err(failure) => {
            drop(held);
            say(&failure.message);
            report.cause = Some(failure.message);
            return (Outcome::NotStarted, failure.code);
        }
    };
    let life = live(&job, &held, &events, wanted, options);
    job.done();
    let outcome = over(&life, held, common, report);
    if life.reason() != Some(Reason::NoGuard) {
        // No process outlives this one, except those that wanted to.
        while has_guard(&events) {}
    }
    outcome
}

/// Waits for the next event. False once the guard has ended, or takes too long to.
fn has_guard(events: &Receiver<Event>) -> bool {
    let next = events.recv_timeout(LONGEST_GOODBYE);
    next.is_ok_and(|event| event != Event::GuardEnded)
}

/// Takes the locks. Those that a run around this process has are there already.
fn take(
    common: &Common,
    options: &Run,
    wanted: &Wanted,
    outer: &Outer,
    stop: &StopHandle,
    events: &Sender<Event>,
    report: &mut Report,
) -> Result<Held, Failed> {
    let manager = held::manager(common, events)?;
    let mut missing = Vec::new();
    for key in &wanted.keys {
        if outer.still_has(&manager.locks, &common.prefix, key)? {
            if options.no_reentry {
                let message = format!("lock {key:?} is held by a run around this one");
                return Err(Failed::Busy(message));
            }
        } else {
            missing.push(&**key);
        }
    }
    if missing.is_empty() {
        // Nothing to take, so nothing to look after: the outer run does that.
        let mut command = Command::new(&wanted.command[0]);
        let error = command.args(&wanted.command[1..]).exec();
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => code::NOT_FOUND,
            _ => code::NOT_EXECUTABLE,
        };
        let message = format!("{}: {error}", wanted.command[0].display());
        return Err(Failure::new(code, message).into());
    }
    held::take(manager, &missing, wanted, common.verbose, stop, report).map_err(Failed::from)
}

/// Why there is no lock.
enum Failed {
    Busy(String),
    Lock(Box<Error>),
    Other(Failure),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Lock(Box::new(error))
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed::Other(failure)
    }
}

/// The outcome if the lock was not taken.
fn not_taken(
    common: &Common,
    options: &Run,
    events: &Receiver<Event>,
    failed: Failed,
    report: &mut Report,
) -> (Outcome, u8) {
    let quiet = common.quiet || options.busy_ok;
    let busy = match (options.conflict_exit_code, options.busy_ok) {
        (Some(code), _) => code,
        (None, true) => code::OK,
        (None, false) => code::BUSY,
    };
    let failure = match failed {
        Failed::Busy(message) => {
            if !quiet {
                say(&message);
            }
            report.cause = Some(message);
            return (Outcome::Busy, busy);
        }
        Failed::Other(failure) => failure,
        Failed::Lock(error) => {
            let message = error.to_string();
            let code = exit::code_of(&error);
            match *error {
                Error::Timeout { holder, .. } if code == code::BUSY => {
                    report.holder = holder.map(|holder| *holder);
                    return not_taken(common, options, events, Failed::Busy(message), report);
                }
                Error::Stopped { .. } => {
                    let number = ends_wait(events).unwrap_or(signal_hook::consts::SIGTERM);
                    return (Outcome::Interrupted, exit::of_signal(number));
                }
                _ => Failure::new(code, message),
            }
        }
    };
    say(&failure.message);
    report.cause = Some(failure.message);
    let outcome = match failure.code {
        code::UNAVAILABLE => Outcome::Unavailable,
        code::REFUSED => Outcome::Refused,
        _ => Outcome::NotStarted,
    };
    (outcome, failure.code)
}

/// The signal that has ended the wait, if there was one. Nothing has been started by then.
fn ends_wait(events: &Receiver<Event>) -> Option<i32> {
    events.try_iter().find_map(|event| match event {
        Event::Signal(number) if signals::ENDS.contains(&number) => Some(number),
        _ => None,
    })
}

/// What the job's environment has besides this process's.
fn environment(
    common: &Common,
    wanted: &Wanted,
    held: &Held,
    outer: &Outer,
) -> BTreeMap<&'static str, OsString> {
    let key = &wanted.keys[0];
    let token = held.token(key).or_else(|| outer.token(&common.prefix, key));
    let (keys, tokens) = outer.with(&common.prefix, held.tokens());
    let mut all = BTreeMap::from([
        ("RELATCH_HELD", OsString::from("1")),
        ("RELATCH_KEY", key.into()),
        (keys, tokens.into()),
        ("RELATCH_PREFIX", (&*common.prefix).into()),
        ("RELATCH_TOKEN", token.unwrap_or_default().into()),
    ]);
    if let Some(fence) = held.fence(key) {
        all.insert("RELATCH_FENCE", fence.to_string().into());
    }
    // So that `relatch confirm` in the job asks the same Redis.
    if let Some(url) = &common.redis {
        all.insert("RELATCH_URL", url.into());
    } else if let Some(file) = &common.redis_file {
        all.insert("RELATCH_REDIS_FILE", file.into());
    }
    all
}

/// Looks after the job until no process of it is left.
fn live(job: &Job, held: &Held, events: &Receiver<Event>, wanted: &Wanted, options: &Run) -> Life {
    let mut life = Life::new(wanted.plan.clone());
    let mut event = Event::Time;
    let mut has_guard = true;
    let mut told = Duration::ZERO;
    loop {
        has_guard &= event != Event::GuardEnded;
        let at = held.at();
        for action in life.on(event, at) {
            act(action, job, options);
        }
        if life.is_over() {
            if life.reason().is_some() {
                job.kill_those_who_left();
            }
            return life;
        }
        let at = held.at();
        if !wanted.plan.only_warn {
            let until = line::now() + at.left.saturating_sub(wanted.plan.margin());
            if until > told + wanted.plan.lease / 20 {
                told = until;
                job.good_until(until);
            }
        }
        let mut limit = life.next_look(at).saturating_sub(at.held_for);
        if !has_guard {
            limit = limit.min(POLL);
        }
        event = events.recv_timeout(limit).unwrap_or(Event::Time);
        if event == Event::Time && !has_guard && job.is_empty() {
            event = Event::Empty;
        }
    }
}

fn act(action: Action, job: &Job, options: &Run) {
    match action {
        Action::Forward(number) => job.signal(number),
        Action::Ask => {
            job.signal(options.signal);
            job.signal(SIGCONT);
        }
        Action::Kill => job.kill(),
        Action::KillGuard => job.kill_guard(),
        Action::StopAll => {
            job.signal(SIGSTOP);
            // Only this process: what stopped it has stopped the others that it meant.
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::STOP,
            );
        }
        Action::Resume => job.signal(SIGCONT),
    }
}

/// Gives the locks back, and says what the exit code is.
fn over(life: &Life, held: Held, common: &Common, report: &mut Report) -> (Outcome, u8) {
    report.ended = life.ended();
    report.held = held.at().held_for;
    let cause = held.lost_cause();
    let mut is_lost = life.is_lost();
    match held.unlock() {
        Ok(()) => {}
        Err(error) if error.is_lost() => is_lost = true,
        // The job was protected; the key goes when its lease ends.
        Err(error) => say(&error.to_string()),
    }
    let lost = |cause: String, report: &mut Report| {
        let keys = report.keys.join(", ");
        say(&format!(
            "lock {keys:?} was lost while the job ran: {cause}"
        ));
        report.cause = Some(cause);
        (Outcome::Lost, code::LOST)
    };
    match life.reason() {
        Some(Reason::AtRisk) => {
            let cause = cause.unwrap_or_else(|| {
                "no renewal came through; the job was ended before the lease was".to_owned()
            });
            lost(cause, report)
        }
        _ if is_lost => lost(
            cause.unwrap_or_else(|| "the lease ran out".to_owned()),
            report,
        ),
        Some(Reason::TooLong) => {
            say("the job was ended: it ran for longer than --max-hold");
            (Outcome::MaxHold, code::MAX_HOLD)
        }
        reason => {
            if reason.is_some() {
                say("the job was ended: somebody has killed its guard process");
            }
            if common.verbose {
                let held = crate::span::show(report.held);
                say(&format!("the lock was held for {held}"));
            }
            let code = match life.ended() {
                Some(Ended::Code(code)) => u8::try_from(code).unwrap_or(code::SOFTWARE),
                Some(Ended::Signal(number)) => exit::of_signal(number),
                None => code::SOFTWARE,
            };
            (Outcome::Ended, code)
        }
    }
}
