//! What a run should do, according to its command line.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::time::Duration;

use rustix::process::{Pid, getpid};

use crate::args::{OnLost, Run};
use crate::exit::{Failure, code};
use crate::run::life::Plan;
use crate::run::mode::Mode;
use crate::run::process::{own_group, own_session};
use crate::span;

/// The default for `--lease`.
const USUAL_LEASE: Duration = Duration::from_secs(30);

/// The library's maximum.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);

/// The default for `--kill-after`, unless a third of the lease is shorter.
const USUAL_KILL_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The keys, in the order of the command line.
    pub(crate) keys: Vec<String>,
    /// How the keys are locked. There is only one key, except in `Mode::Alone`.
    pub(crate) mode: Mode,
    pub(crate) command: Vec<OsString>,
    pub(crate) plan: Plan,
    /// `None` means forever.
    pub(crate) wait: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) fenced: bool,
}

impl Wanted {
    pub(crate) fn read(options: &Run) -> Result<Wanted, Failure> {
        let mut keys = vec![options.key.clone()];
        keys.extend(options.keys.iter().cloned());
        let at_least = options.at_least.unwrap_or_default();
        // If this process is killed, the lock should stay for that long too.
        let lease = options.lease.unwrap_or(USUAL_LEASE.max(at_least));
        for (name, given) in [("--lease", options.lease), ("--at-least", options.at_least)] {
            if let Some(span) = given.filter(|span| *span > LONGEST_LEASE) {
                let [span, most] = [span, LONGEST_LEASE].map(span::show);
                let message = format!("{name} is {span}: the maximum is {most}");
                return Err(Failure::new(code::CONFIG, message));
            }
        }
        let third = lease / 3;
        let kill_after = options.kill_after.unwrap_or(USUAL_KILL_AFTER.min(third));
        if kill_after > third {
            let message = "--kill-after is more than a third of the lease: too little time would be left \
                 for renewals";
            return Err(Failure::new(code::CONFIG, message));
        }
        // As with `flock`: in a group of its own, a job could not use the terminal.
        let shares_group =
            options.foreground || io::stdin().is_terminal() || File::open("/dev/tty").is_ok();
        Ok(Wanted {
            keys,
            mode: Mode::of(options),
            command: command(options)?,
            plan: Plan {
                lease,
                kill_after,
                max_hold: options.max_hold.filter(|limit| !limit.is_zero()),
                only_warn: options.on_lost == OnLost::Warn,
                shares_group,
                can_stop: can_stop(),
            },
            wait: if options.nonblock {
                Some(Duration::ZERO)
            } else {
                options.wait
            },
            at_least,
            fenced: options.fence,
        })
    }
}

impl Wanted {
    /// The lock's name for people. The library has its own names for slots and their gate.
    pub(crate) fn shown(&self, key: &str) -> String {
        match self.mode {
            Mode::Alone => format!("lock {key:?}"),
            mode => format!("lock {:?} ({mode})", self.keys[0]),
        }
    }

    /// What the holder that keeps this run waiting has.
    pub(crate) fn has_it(&self) -> &'static str {
        match self.mode {
            Mode::Slots(2..) => "has a slot",
            _ => "has it",
        }
    }
}

/// Whether something in the session, such as a shell with job control, may continue this process
/// after Ctrl-Z. The first process of a container cannot even stop itself, and nothing would
/// continue a process in the session leader's group, as under `ssh -t` or `xterm -e`.
fn can_stop() -> bool {
    // (Zero means that both began outside this container.)
    let leads = own_session().is_some_and(|session| session != 0 && session == own_group());
    getpid() != Pid::INIT && !leads
}

/// The command, or the line for the shell.
fn command(options: &Run) -> Result<Vec<OsString>, Failure> {
    let usage = |message: &str| Failure::new(code::USAGE, message);
    match (&options.line, &options.command[..]) {
        (Some(line), []) => {
            let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| "/bin/sh".into());
            Ok(vec![shell, "-c".into(), line.clone()])
        }
        (Some(_), _) => Err(usage("-c takes one line for the shell, and no command")),
        (None, []) => Err(usage(
            "a command is missing: relatch run KEY [--] CMD [ARG...]",
        )),
        (None, command) => Ok(command.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Cmd};

    /// The key and the command from a command line after `relatch run`.
    fn read(line: &[&str]) -> Result<(String, Vec<OsString>, bool), u8> {
        let whole = ["relatch", "run"].iter().chain(line);
        let cli = Cli::try_parse_from(whole).map_err(|_| code::USAGE)?;
        let Cmd::Run(options) = &cli.command else {
            panic!("{line:?} is a run");
        };
        let wanted = Wanted::read(options).map_err(|failure| failure.code)?;
        Ok((wanted.keys[0].clone(), wanted.command, options.nonblock))
    }

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn options_end_where_the_command_begins() {
        for (line, nonblock) in [
            (&["k", "a", "-n", "--"][..], false),
            (&["k", "--", "a", "-n", "--"], false),
            (&["-n", "k", "a", "-n", "--"], true),
            (&["k", "-n", "a", "-n", "--"], true),
            (&["k", "-n", "--", "a", "-n", "--"], true),
            (&["-n", "--", "k", "a", "-n", "--"], true),
        ] {
            let expected = Ok(("k".to_owned(), words(&["a", "-n", "--"]), nonblock));
            assert_eq!(read(line), expected, "{line:?}");
        }
    }

    #[test]
    fn a_line_is_for_the_shell() {
        for line in [&["k", "-c", "a b"][..], &["-c", "a b", "k"]] {
            let (key, command, _) = read(line).unwrap();
            assert_eq!((&*key, &command[1..]), ("k", &words(&["-c", "a b"])[..]));
        }
        for line in [
            &["k"][..],
            &["k", "--"],
            &["k", "-c"],
            &["k", "-c", "a", "b"],
            &[],
        ] {
            assert_eq!(read(line), Err(code::USAGE), "{line:?}");
        }
        assert_eq!(read(&["k", "--nonsense", "a"]), Err(code::USAGE));
    }
}
