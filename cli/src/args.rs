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

/// The command line. An empty variable counts as unset.
fn command() -> clap::Command {
    Cli::command().mut_args(|argument| {
        let text = argument.get_env().and_then(env::var_os);
        // In a job, the prefix comes from its run, even if it is empty.
        let is_told = argument.get_id() == "prefix" && set("RELATCH_HELD").is_some();
        if text.is_some_and(|text| text.is_empty()) && !is_told {
            argument.env(Resettable::Reset)
        } else {
            argument
        }
    })
}

/// The options of all commands.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// The Redis to use: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, `unix://`,
    /// `redis+sentinel://`, `redis+cluster://` [default: --redis-file, `RELATCH_URL`, `REDIS_URL`,
    /// or `redis://127.0.0.1/`, in this order]. Other users of the machine can read the command
    /// line: put a password in the variable or the file
    #[arg(long, global = true, value_name = "URL", help_heading = "Redis")]
    pub(crate) redis: Option<String>,
    /// Read the URL from FILE, and reread its password for each connection
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
    /// Trust the certificate authorities in this PEM file [default: the system's, or those in the
    /// file that `SSL_CERT_FILE` names]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "RELATCH_CACERT",
        help_heading = "Redis"
    )]
    pub(crate) cacert: Option<PathBuf>,
    /// Present the certificate in this PEM file to Redis
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "RELATCH_CERT",
        help_heading = "Redis"
    )]
    pub(crate) cert: Option<PathBuf>,
    /// The private key for that certificate [default: in the same file]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "RELATCH_CERT_KEY",
        help_heading = "Redis",
        requires = "cert"
    )]
    pub(crate) cert_key: Option<PathBuf>,
    /// The name that Redis's certificate must carry [default: the host in the URL]
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "RELATCH_SNI",
        help_heading = "Redis"
    )]
    pub(crate) sni: Option<String>,
    /// The prefix of every key in Redis
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
    /// Print nothing about a busy lock or about success
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The options of the commands that answer a question.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Write JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cmd {
    /// Run a command under a lock
    Run(Box<Run>),
    /// In a job: check whether the job still holds its locks
    Confirm(Confirm),
    /// Show who holds a lock
    Holder(Holder),
    /// List the locks in Redis
    Ls(Ls),
    /// Wait until a lock is free, without taking it
    Wait(Wait),
    /// Delete a lock that somebody else holds
    ForceUnlock(ForceUnlock),
    /// Check Redis, the network and the access rights
    Doctor(Doctor),
    /// Print the manual page or completions
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
    /// Fail at once if the lock is busy
    #[arg(short, long, visible_alias = "nb", overrides_with = "wait")]
    pub(crate) nonblock: bool,
    /// How long to wait for a busy lock; 0 means --nonblock [default: forever]. The wait continues
    /// through a Redis outage
    #[arg(short, long, visible_alias = "timeout", value_name = "SPAN", value_parser = span::parse)]
    pub(crate) wait: Option<Duration>,
    /// How long to retry, once a second, if Redis is unreachable at the start; then exit with 69
    /// [default: try once]
    #[arg(long, value_name = "SPAN", default_value = "0", hide_default_value = true, value_parser = span::parse)]
    pub(crate) connect_within: Duration,
    /// The exit code if the lock is still busy when the wait ends [default: 75]
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Silently treat a busy lock as success, like -E 0 -q
    #[arg(short = 'x', long)]
    pub(crate) busy_ok: bool,
    /// An additional key to lock: the job gets all of its locks, or none
    #[arg(short, long = "key", value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// Run at most N jobs at a time on all machines together, 1 to 64. Each job finds its slot
    /// number in `RELATCH_SLOT`. Without this option, the same KEY names a different lock
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(1..=64), conflicts_with_all = ["shared", "exclusive", "keys", "fence"])]
    pub(crate) slots: Option<u8>,
    /// Take a shared (read) lock: up to 64 jobs can hold it at a time with --shared, while none
    /// holds it with --exclusive. Without either option, the same KEY names a different lock
    #[arg(long, conflicts_with_all = ["exclusive", "keys", "fence"])]
    pub(crate) shared: bool,
    /// Take an exclusive (write) lock: nobody else holds it with --shared or --exclusive. Without
    /// either option, the same KEY names a different lock
    #[arg(short = 'e', long, conflicts_with = "keys")]
    pub(crate) exclusive: bool,
    /// How long Redis keeps the lock after this process dies [default: 30s, or --at-least if that
    /// is longer]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) lease: Option<Duration>,
    /// Terminate a job that runs longer than this, and exit with 124; 0 means no limit
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock for at least this long, even if the job ends sooner or fails (but not if it
    /// cannot be started). After a crash, the lock stays for that long too, unless --lease is
    /// shorter
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) at_least: Option<Duration>,
    /// Give the job a fencing token in `RELATCH_FENCE`
    #[arg(long)]
    pub(crate) fence: bool,
    /// The signal to send to the job when its lock is lost or is about to be
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    pub(crate) signal: i32,
    /// Kill the job this long after that signal; at most a third of the lease [default: 5s]. If the
    /// key was deleted or taken, relatch waits at most 1s
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// What to do with a job whose lock is lost
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,
    /// Keep the job in this process group, as flock does. This is the default if there is a
    /// terminal: `/dev/tty` can be opened, or standard input is a terminal
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Append a JSON object that describes the outcome to FILE, or write it to a descriptor:
    /// `fd:3`, which the shell opens for appending (`3>>file`)
    #[arg(long, value_name = "FILE|fd:N")]
    pub(crate) report: Option<String>,
    /// Treat a lock that an outer run holds as busy (75), rather than running at once
    #[arg(long)]
    pub(crate) no_reentry: bool,
    /// Print what happens
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The standard output belongs to the job
    #[arg(long, hide = true, action = ArgAction::SetTrue, value_parser = UnknownArgumentValueParser::suggest_arg("--report"))]
    json: Option<String>,
    /// For scripts written for `flock`: here, no descriptor holds the lock
    #[arg(short = 'o', long = "close", hide = true)]
    close: bool,
    /// Pass this line to $SHELL -c, instead of running a command
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub(crate) line: Option<OsString>,
    /// The lock. With --slots, --shared or --exclusive, the same KEY names a different lock
    pub(crate) key: String,
    /// The command and its arguments. relatch's own options must come before it
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Send the signal, then kill the job
    Kill,
    /// Let the job finish, and exit with 76
    Warn,
}

#[derive(Args, Debug)]
pub(crate) struct Confirm {
    /// The lock [default: all locks of the job and of its outer runs]
    pub(crate) key: Option<String>,
    /// Require that the locks stay valid for at least this long
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
    /// List only keys that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) begin: String,
    /// Include keys that cannot be locks: those that never expire, or are not strings
    #[arg(long)]
    pub(crate) all: bool,
    /// The order of the lines. (Redis does not record how long a lock has been held)
    #[arg(long, value_name = "BY", default_value = "key")]
    pub(crate) sort: Sort,
    /// Repeat until interrupted [default: every 2s]
    #[arg(long, value_name = "SPAN", num_args = 0..=1, require_equals = true, default_missing_value = "2", value_parser = span::parse)]
    pub(crate) watch: Option<Duration>,
    /// How long the key scan may take
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = span::parse)]
    pub(crate) limit: Duration,
    #[command(flatten)]
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By name
    Key,
    /// By time left, shortest first
    Left,
    /// By holder: host, process, thread
    Holder,
}

#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// The lock
    pub(crate) key: String,
    /// How long to wait [default: forever]
    #[arg(short = 'w', long = "wait", visible_alias = "timeout", value_name = "SPAN", value_parser = span::parse)]
    pub(crate) limit: Option<Duration>,
    #[command(flatten)]
    pub(crate) answer: Answer,
}

#[derive(Args, Debug)]
pub(crate) struct ForceUnlock {
    /// The lock
    pub(crate) key: String,
    /// Delete the lock only if this token still holds it. `holder` shows the token, which begins
    /// with `hex:` if it is not text
    #[arg(long, value_name = "TOKEN")]
    pub(crate) if_token: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) answer: Answer,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The lease that your programs use
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
            "not a signal that ends a process: write TERM, INT, HUP, QUIT, USR1, USR2 or KILL (for flock's \
             -s, write --shared)"
                .to_owned(),
        ),
    }
}
