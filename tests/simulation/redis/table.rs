//! The commands that the crate sends, with what Redis says of them in `COMMAND INFO`.

use crate::simulation::redis::resp::{Reply, error};
use crate::simulation::redis::state::State;

/// The reply, or the error in place of it.
pub(super) type Answer = Result<Reply, Reply>;

pub(super) struct Command {
    pub(super) name: &'static str,
    /// How many words it has. Negative: at least so many.
    arity: isize,
    flags: u16,
    keys: Keys,
    pub(super) run: fn(&mut State, &[&[u8]]) -> Answer,
}

/// Which words of a command are keys.
#[derive(Clone, Copy)]
enum Keys {
    None,
    First,
    All,
    /// As many as the third word says.
    Counted,
}

pub(super) const WRITE: u16 = 1;
/// Refused while the memory is full.
pub(super) const DENY_OOM: u16 = 1 << 1;
/// Reads keys, which tracking remembers.
pub(super) const READ: u16 = 1 << 2;
pub(super) const NO_SCRIPT: u16 = 1 << 3;
/// Allowed while the data set is loaded.
pub(super) const LOADING: u16 = 1 << 4;
/// Allowed while a replica has lost its master.
pub(super) const STALE: u16 = 1 << 5;
/// Needs no login.
pub(super) const NO_AUTH: u16 = 1 << 6;
/// Allowed while a script runs for too long.
pub(super) const BUSY: u16 = 1 << 7;
/// Waits while writes are paused.
pub(super) const MAY_WRITE: u16 = 1 << 8;
/// Allowed to a subscriber.
pub(super) const PUB_SUB: u16 = 1 << 9;
/// Known to a sentinel.
const SENTINEL: u16 = 1 << 10;
/// Known to a server that is no sentinel.
const SERVER: u16 = 1 << 11;

const READS: u16 = SERVER | READ;
const WRITES: u16 = SERVER | WRITE;
const ALWAYS: u16 = SERVER | LOADING | STALE;
const SCRIPT: u16 = SERVER | NO_SCRIPT | STALE | MAY_WRITE;
const CLIENT: u16 = ALWAYS | NO_SCRIPT | SENTINEL;
const LOGIN: u16 = CLIENT | NO_AUTH | BUSY;

/// Those that are called most come first.
static COMMANDS: &[Command] = &[
    command("evalsha", -3, SCRIPT, Keys::Counted, State::evalsha),
    command("get", 2, READS, Keys::First, State::get),
    command("set", -3, WRITES | DENY_OOM, Keys::First, State::set),
    command("pttl", 2, READS, Keys::First, State::pttl),
    command("pexpire", 3, WRITES, Keys::First, State::pexpire),
    command("del", -2, WRITES, Keys::All, State::del),
    command("time", 1, ALWAYS, Keys::None, State::time),
    command(
        "ping",
        -1,
        SERVER | PUB_SUB | SENTINEL,
        Keys::None,
        State::ping,
    ),
    command("eval", -3, SCRIPT, Keys::Counted, State::eval),
    command("wait", 3, SERVER | NO_SCRIPT, Keys::None, State::wait),
    command("asking", 1, SERVER, Keys::None, State::asking),
    command("auth", -2, LOGIN, Keys::None, State::auth),
    command("hello", -1, LOGIN, Keys::None, State::hello),
    command("select", 2, ALWAYS, Keys::None, State::select),
    command(
        "subscribe",
        -2,
        CLIENT | PUB_SUB,
        Keys::None,
        State::subscribe,
    ),
    command(
        "client|tracking",
        -3,
        CLIENT,
        Keys::None,
        State::client_tracking,
    ),
    command("client|id", 2, CLIENT, Keys::None, State::client_id),
    command(
        "client|setname",
        3,
        CLIENT,
        Keys::None,
        State::client_setname,
    ),
    command(
        "cluster|slots",
        2,
        SERVER | STALE,
        Keys::None,
        State::cluster_slots,
    ),
    command(
        "cluster|info",
        2,
        SERVER | STALE,
        Keys::None,
        State::cluster_info,
    ),
    command(
        "sentinel|get-master-addr-by-name",
        3,
        SENTINEL,
        Keys::None,
        State::sentinel_address,
    ),
    command(
        "sentinel|sentinels",
        3,
        SENTINEL,
        Keys::None,
        State::sentinel_others,
    ),
    command(
        "sentinel|master",
        3,
        SENTINEL,
        Keys::None,
        State::sentinel_master,
    ),
];

const fn command(
    name: &'static str,
    arity: isize,
    flags: u16,
    keys: Keys,
    run: fn(&mut State, &[&[u8]]) -> Answer,
) -> Command {
    Command {
        name,
        arity,
        flags,
        keys,
        run,
    }
}

impl Command {
    pub(super) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn takes(&self, words: usize) -> bool {
        let least = self.arity.unsigned_abs();
        if self.arity < 0 {
            words >= least
        } else {
            words == least
        }
    }

    /// The error for a command that has too few words, or too many.
    pub(super) fn wrong_number(&self) -> Reply {
        error(&format!(
            "ERR wrong number of arguments for '{}' command",
            self.name
        ))
    }

    /// The keys among the words of this command.
    pub(super) fn keys<'a, 'b>(&self, args: &'b [&'a [u8]]) -> &'b [&'a [u8]] {
        let keys = match self.keys {
            Keys::None => None,
            Keys::First => args.get(1..2),
            Keys::All => args.get(1..),
            Keys::Counted => {
                let count = args
                    .get(2)
                    .and_then(|count| std::str::from_utf8(count).ok()?.parse::<u16>().ok());
                count.and_then(|count| args.get(3..3 + usize::from(count)))
            }
        };
        keys.unwrap_or_default()
    }
}

/// The command of this name, or the error in place of it.
pub(super) fn find(args: &[&[u8]], at_sentinel: bool) -> Result<&'static Command, Reply> {
    let known_to = if at_sentinel { SENTINEL } else { SERVER };
    let mut known = COMMANDS.iter().filter(|it| it.is(known_to));
    let is_of = |it: &Command| {
        let Some((name, rest)) = it.name.split_at_checked(args[0].len()) else {
            return false;
        };
        let is_rest = |sub| args.get(1).is_some_and(|word| is(word, sub));
        rest.strip_prefix('|').map_or(rest.is_empty(), is_rest) && is(args[0], name)
    };
    known
        .find(|it| is_of(it))
        .ok_or_else(|| unknown(args, at_sentinel))
}

fn unknown(args: &[&[u8]], at_sentinel: bool) -> Reply {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let (name, rest) = (text(args[0]), args[1..].iter());
    let other = if at_sentinel { "sentinel" } else { "cluster" };
    if (is(args[0], "client") || is(args[0], other)) && args.len() > 1 {
        let (sub, name) = (text(args[1]), name.to_uppercase());
        return error(&format!("ERR unknown subcommand '{sub}'. Try {name} HELP."));
    }
    let shown: String = rest.map(|arg| ["'", &text(arg), "' "].concat()).collect();
    error(&format!(
        "ERR unknown command '{name}', with args beginning with: {shown}"
    ))
}

/// True if this word means that option.
pub(super) fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}
