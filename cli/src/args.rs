//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::span;

/// Locks on Redis, for the shell: runs a command under a lock, and shows who has which lock.
#[derive(Debug, Parser)]
#[command(
    name = "relatch",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Cmd,
}

/// What all commands have.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Where Redis is: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, `unix://`,
    /// `redis+sentinel://`, `redis+cluster://` [default: what --redis-file, `RELATCH_URL` or
    /// `REDIS_URL` says, else `redis://127.0.0.1/`]. Others on the machine can read a command line:
    /// a password belongs into the variable or the file
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Reads the URL from a file
    #[arg(long, global = true, value_name = "FILE", env = "RELATCH_REDIS_FILE")]
    pub(crate) redis_file: Option<PathBuf>,
    /// The text that each key begins with in Redis
    #[arg(
        long,
        global = true,
        value_name = "TEXT",
        env = "RELATCH_PREFIX",
        default_value = "lock:",
        hide_env_values = true
    )]
    pub(crate) prefix: String,
    /// Writes JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Says nothing about a busy lock, or about what is well
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Says what it does
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cmd {
    /// Runs a command under a lock
    Run(Box<Run>),
    /// Inside of a job: is the lock still ours?
    Confirm(Confirm),
    /// Who has a lock
    Holder(Holder),
    /// The locks that are in Redis
    Ls(Ls),
    /// Waits until a lock is free, without taking it
    Wait(Wait),
    /// Deletes a lock that somebody else holds
    ForceUnlock(ForceUnlock),
    /// Looks for what is wrong with the Redis, the network and the rights
    Doctor(Doctor),
    /// Prints the manual page or completions
    #[command(hide = true)]
    Generate(Generate),
}

#[derive(Args, Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command line"
)]
#[command(override_usage = "relatch run [OPTIONS] KEY [--] CMD [ARG]...
       relatch run [OPTIONS] KEY -c LINE")]
pub(crate) struct Run {
    /// Does not wait for a busy lock
    #[arg(short, long, visible_alias = "nb", overrides_with = "wait")]
    pub(crate) nonblock: bool,
    /// How long to wait for a busy lock; 0 is --nonblock [default: for ever]. A Redis that does not
    /// answer at the start is not waited for (exit code 69)
    #[arg(short, long, visible_alias = "timeout", value_name = "SPAN", value_parser = span::parse)]
    pub(crate) wait: Option<Duration>,
    /// The exit code for a lock that was busy until the end
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// A busy lock is no failure, and nothing to speak of: -E 0 -q
    #[arg(short = 'x', long)]
    pub(crate) busy_ok: bool,
    /// Another key: all are locked, or none
    #[arg(short, long = "key", value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// How long Redis keeps the lock after this process has died [default: 30s, or `--at-least` if
    /// that is longer]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) lease: Option<Duration>,
    /// Ends a job that runs for longer (exit code 124)
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// How long the lock stays taken at least, also if the job is done sooner, or fails, but not if
    /// it cannot be started. After a crash, it stays taken for as long, unless --lease is shorter
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) at_least: Option<Duration>,
    /// Gives the job a fencing token, in `RELATCH_FENCE`
    #[arg(long)]
    pub(crate) fence: bool,
    /// What the job gets when the lock is about to be lost, or is lost
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    pub(crate) signal: i32,
    /// How long after that signal the job is killed, at most a third of the lease [default: 5s].
    /// If the key is deleted or another has it: 1s at most
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// What becomes of a job whose lock is lost
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,
    /// The job stays in the terminal's foreground: it can read from the terminal and gets Ctrl-C
    /// from it. The default at a terminal
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Appends one JSON object on what happened to a file, or to the file of a descriptor: `fd:3`,
    /// which the shell opens for appending (`3>>file`)
    #[arg(long, value_name = "FILE|fd:N")]
    pub(crate) report: Option<String>,
    /// A lock that a run around this one has is busy (75), and no reason to run at once
    #[arg(long)]
    pub(crate) no_reentry: bool,
    /// `flock` has these; a lock here is always exclusive, and the job never has it in a descriptor
    #[arg(short = 'e', long = "exclusive", hide = true)]
    exclusive: bool,
    #[arg(short = 'o', long = "close", hide = true)]
    close: bool,
    /// A line for the shell, in place of a command: for $SHELL -c
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub(crate) line: Option<OsString>,
    /// The lock
    pub(crate) key: String,
    /// The command and its arguments. Options end where it begins
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// It gets the signal, and is killed
    Kill,
    /// It goes on, and the exit code is 76
    Warn,
}

#[derive(Args, Debug)]
pub(crate) struct Confirm {
    /// The lock [default: the one that the job was started with]
    pub(crate) key: Option<String>,
    /// For how long the lock has to be ours at least
    #[arg(long = "for", value_name = "SPAN", default_value = "0", value_parser = span::parse)]
    pub(crate) span: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Holder {
    /// The lock
    pub(crate) key: String,
}

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only keys that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) begin: String,
    /// Also what cannot be a lock: keys that never expire, or that are no strings
    #[arg(long)]
    pub(crate) all: bool,
    /// The order of the lines. (Redis does not know for how long a lock has been held)
    #[arg(long, value_name = "BY", default_value = "key")]
    pub(crate) sort: Sort,
    /// Again and again, until it is interrupted [default: each 2s]
    #[arg(long, value_name = "SPAN", num_args = 0..=1, require_equals = true, default_missing_value = "2", value_parser = span::parse)]
    pub(crate) watch: Option<Duration>,
    /// How long to go through the keys of Redis, before it is a failure
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = span::parse)]
    pub(crate) limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By name
    Key,
    /// What expires first comes first
    Left,
    /// By holder: host, process, thread
    Holder,
}

#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// The lock
    pub(crate) key: String,
    /// For how long at most [default: for ever]
    #[arg(short, long, visible_alias = "timeout", value_name = "SPAN", value_parser = span::parse)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct ForceUnlock {
    /// The lock
    pub(crate) key: String,
    /// Only if this token still has it: what `holder` shows, also with `hex:` in front of bytes
    /// that cannot be seen
    #[arg(long, value_name = "TOKEN")]
    pub(crate) if_token: Option<String>,
    /// Does not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The lease that the programs use
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span::parse)]
    pub(crate) for_lease: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Generate {
    pub(crate) what: Paper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paper {
    Man,
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// The signals with a name, by number.
const SIGNALS: [(&str, i32); 11] = [
    ("HUP", signal_hook::consts::SIGHUP),
    ("INT", signal_hook::consts::SIGINT),
    ("QUIT", signal_hook::consts::SIGQUIT),
    ("ABRT", signal_hook::consts::SIGABRT),
    ("KILL", signal_hook::consts::SIGKILL),
    ("USR1", signal_hook::consts::SIGUSR1),
    ("USR2", signal_hook::consts::SIGUSR2),
    ("PIPE", signal_hook::consts::SIGPIPE),
    ("ALRM", signal_hook::consts::SIGALRM),
    ("TERM", signal_hook::consts::SIGTERM),
    ("STOP", signal_hook::consts::SIGSTOP),
];

/// Reads the name or the number of a signal that can end a process.
fn signal(text: &str) -> Result<i32, String> {
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = SIGNALS
        .iter()
        .find(|(known, number)| *known == name || number.to_string() == name);
    match found {
        Some((name, number)) if *name != "STOP" => Ok(*number),
        _ => Err(
            "no signal that ends a process: write TERM, INT, HUP, QUIT, USR1, USR2 or KILL"
                .to_owned(),
        ),
    }
}
