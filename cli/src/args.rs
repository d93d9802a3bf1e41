//! The command line.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::builder::{RangedU64ValueParser, Resettable, UnknownArgumentValueParser};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::connect::set;
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

impl Cli {
    pub(crate) fn read(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
        let matches = command().try_get_matches_from(arguments)?;
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
    }
}

/// The command line, to which an empty variable counts as not set.
fn command() -> clap::Command {
    Cli::command().mut_args(|argument| {
        let text = argument.get_env().and_then(env::var_os);
        // In a job, the prefix is that of its run.
        let is_told = argument.get_id() == "prefix" && set("RELATCH_HELD").is_some();
        if text.is_some_and(|text| text.is_empty()) && !is_told {
            argument.env(Resettable::Reset)
        } else {
            argument
        }
    })
}

/// What all commands have.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Where Redis is: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, `unix://`,
    /// `redis+sentinel://`, `redis+cluster://` [default: what --redis-file, `RELATCH_URL` or
    /// `REDIS_URL` says, else `redis://127.0.0.1/`]. Others on the machine can read a command line:
    /// a password belongs into the variable or the file
    #[arg(long, global = true, value_name = "URL", help_heading = "Redis")]
    pub(crate) redis: Option<String>,
    /// Reads the URL from a file, and its password anew for each connection
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "RELATCH_REDIS_FILE",
        help_heading = "Redis"
    )]
    pub(crate) redis_file: Option<PathBuf>,
    /// That URL, if the file can be read only once.
    #[arg(skip)]
    pub(crate) piped: OnceLock<String>,
    /// The authorities whose certificates are trusted, in PEM form [default: those of the system,
    /// or of the file that `SSL_CERT_FILE` names]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "RELATCH_CACERT",
        help_heading = "Redis"
    )]
    pub(crate) cacert: Option<PathBuf>,
    /// The certificate that Redis is shown, in PEM form
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "RELATCH_CERT",
        help_heading = "Redis"
    )]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key [default: in the file of the certificate]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "RELATCH_CERT_KEY",
        help_heading = "Redis",
        requires = "cert"
    )]
    pub(crate) cert_key: Option<PathBuf>,
    /// The name that the certificate of Redis must have [default: the host of the URL]
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "RELATCH_SNI",
        help_heading = "Redis"
    )]
    pub(crate) sni: Option<String>,
    /// The text that each key begins with in Redis
    #[arg(
        long,
        global = true,
        value_name = "TEXT",
        env = "RELATCH_PREFIX",
        default_value = "lock:",
        hide_env_values = true,
        help_heading = "Redis"
    )]
    pub(crate) prefix: String,
    /// Says nothing about a busy lock, or about what is well
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The options of the commands that answer.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Writes JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cmd {
    /// Runs a command under a lock
    Run(Box<Run>),
    /// Inside of a job: are the locks still ours?
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
    /// How long to wait for a busy lock; 0 is --nonblock [default: for ever]. An outage of Redis
    /// meanwhile is bridged
    #[arg(short, long, visible_alias = "timeout", value_name = "SPAN", value_parser = span::parse)]
    pub(crate) wait: Option<Duration>,
    /// How long Redis may be away at the start, before it is exit code 69. It is tried each second
    /// [default: once]
    #[arg(long, value_name = "SPAN", default_value = "0", hide_default_value = true, value_parser = span::parse)]
    pub(crate) connect_within: Duration,
    /// The exit code for a lock that was busy until the end
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// A busy lock is no failure, and nothing to speak of: -E 0 -q
    #[arg(short = 'x', long)]
    pub(crate) busy_ok: bool,
    /// Another key: all are locked, or none
    #[arg(short, long = "key", value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// At most N jobs at a time, 1 to 64, over all machines. Each has a number of its own, in
    /// `RELATCH_SLOT`. Without this option, KEY is another lock
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(1..=64), conflicts_with_all = ["shared", "exclusive", "keys", "fence"])]
    pub(crate) slots: Option<u8>,
    /// A reader's lock: others have it at the same time with --shared, 64 at most, and nobody with
    /// --exclusive. Without either, KEY is another lock
    #[arg(long, conflicts_with_all = ["exclusive", "keys", "fence"])]
    pub(crate) shared: bool,
    /// A writer's lock: nobody else has it with --shared or --exclusive. Without either, KEY is
    /// another lock
    #[arg(short = 'e', long, conflicts_with = "keys")]
    pub(crate) exclusive: bool,
    /// How long Redis keeps the lock after this process has died [default: 30s, or `--at-least` if
    /// that is longer]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) lease: Option<Duration>,
    /// Ends a job that runs for longer (exit code 124); 0 is no limit
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
    /// The job stays in this process's group, as below flock. The default if there is a terminal:
    /// `/dev/tty` opens, or the input is one
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Appends one JSON object on what happened to a file, or writes it to a descriptor: `fd:3`,
    /// which the shell opens for appending (`3>>file`)
    #[arg(long, value_name = "FILE|fd:N")]
    pub(crate) report: Option<String>,
    /// A lock that a run around this one has is busy (75), and no reason to run at once
    #[arg(long)]
    pub(crate) no_reentry: bool,
    /// Says what it does
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The standard output is the job's
    #[arg(long, hide = true, action = ArgAction::SetTrue, value_parser = UnknownArgumentValueParser::suggest_arg("--report"))]
    json: Option<String>,
    /// `flock` has this; here, the job never has the lock in a descriptor
    #[arg(short = 'o', long = "close", hide = true)]
    close: bool,
    /// A line for the shell, in place of a command: for $SHELL -c
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub(crate) line: Option<OsString>,
    /// The lock. With --slots, --shared or --exclusive, it is another lock than without
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
    /// The lock [default: all that the job, and the runs around it, were started with]
    pub(crate) key: Option<String>,
    /// For how long it has to be ours at least
    #[arg(long = "for", value_name = "SPAN", default_value = "0", value_parser = span::parse)]
    pub(crate) span: Duration,
    #[command(flatten)]
    pub(crate) answer: Answer,
}

#[derive(Args, Debug)]
pub(crate) struct Holder {
    /// The lock
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) answer: Answer,
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
    #[command(flatten)]
    pub(crate) answer: Answer,
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
    #[arg(short = 'w', long = "wait", visible_alias = "timeout", value_name = "SPAN", value_parser = span::parse)]
    pub(crate) limit: Option<Duration>,
    #[command(flatten)]
    pub(crate) answer: Answer,
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
    #[command(flatten)]
    pub(crate) answer: Answer,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The lease that the programs use
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span::parse)]
    pub(crate) for_lease: Duration,
    #[command(flatten)]
    pub(crate) answer: Answer,
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
            "no signal that ends a process: write TERM, INT, HUP, QUIT, USR1, USR2 or KILL (the -s of \
             flock is --shared here)"
                .to_owned(),
        ),
    }
}
