//! Cuts a stream of RESP into whole frames.
//!
//! The splitter understands the lengths and not the values: the bytes that come out are those that
//! went in. It treats commands and replies alike, since a command is an array of bulk strings. It
//! understands RESP3 too.

use std::sync::{LazyLock, OnceLock};

/// An incremental splitter: bytes go in as they arrive, whole frames come out.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    pending: Vec<u8>,
}

impl Splitter {
    /// Adds bytes that arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }
}

/// Yields whole frames. `None` means that more bytes are needed, not that the stream has ended.
impl Iterator for Splitter {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let length = frame_length(&self.pending)?;
        Some(self.pending.drain(..length).collect())
    }
}

/// Returns the strings of a command, its name first. Anything that is not an array of strings is
/// split as well as possible.
pub(crate) fn args(frame: &[u8]) -> Vec<String> {
    let Some((header, mut rest)) = split_line(frame) else {
        return Vec::new();
    };
    if frame[0] != b'*' {
        return text(header).split_whitespace().map(String::from).collect();
    }
    let mut args = Vec::new();
    while let Some(length) = frame_length(rest) {
        let (element, after) = rest.split_at(length);
        let (line, body) = split_line(element).unwrap_or((element, &[]));
        args.push(text(if body.is_empty() {
            line
        } else {
            &body[..body.len() - 2]
        }));
        rest = after;
    }
    args
}

/// The script with which a waiter attempts to take a lock, and finds out who holds it.
pub const CLAIM: &str = include_str!("../../../src/client/commands/lua/claim.lua");

/// The hash of [`CLAIM`].
pub fn claim_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| redis::Script::new(CLAIM).get_hash().to_owned())
}

/// Returns an attempt by script as the `SET` that the script does, and any other command unchanged.
/// So rules and tests that name `SET` mean attempts of both kinds.
pub fn as_set(mut args: Vec<String>) -> Vec<String> {
    let is_claim = args.len() == 6 && [CLAIM, claim_hash()].contains(&args[1].as_str());
    if is_claim {
        args.drain(1..3);
        "SET".clone_into(&mut args[0]);
        args.insert(3, "PX".to_owned());
    }
    args
}

/// Returns a renewal by the text of its script as one by its hash, and any other command unchanged.
/// So rules and tests that name a renewal need not know whether it is the first of a connection.
pub fn by_hash(mut args: Vec<String>) -> Vec<String> {
    static RENEW: LazyLock<redis::Script> = LazyLock::new(|| {
        redis::Script::new(include_str!("../../../src/client/commands/lua/renew.lua"))
    });
    if args.len() > 3
        && args[0] == "EVAL"
        && redis::Script::new(&args[1]).get_hash() == RENEW.get_hash()
    {
        "EVALSHA".clone_into(&mut args[0]);
        RENEW.get_hash().clone_into(&mut args[1]);
    }
    args
}

/// Whether a reply answers no command: a pub/sub message, or any push of RESP3.
///
/// An array of three elements that begins with the string `message` counts as a pub/sub message,
/// even if it answers a command. So does an array of four that begins with `pmessage`.
pub(crate) fn is_unsolicited(reply: &[u8]) -> bool {
    reply.starts_with(b">")
        || reply.starts_with(b"*3\r\n$7\r\nmessage\r\n")
        || reply.starts_with(b"*4\r\n$8\r\npmessage\r\n")
}

/// How many replies the server will give to a command.
pub(crate) fn replies_to(command: &[String]) -> usize {
    let name = command.first().map_or("", String::as_str);
    let channels = command.len().saturating_sub(1);
    match name.to_ascii_lowercase().as_str() {
        "subscribe" | "psubscribe" | "ssubscribe" => channels,
        "unsubscribe" | "punsubscribe" | "sunsubscribe" => channels.max(1),
        _ => 1,
    }
}

/// Returns the length of the frame that `bytes` begins with, if all of it is there.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let (header, _) = split_line(bytes)?;
    let line = header.len() + 2;
    let count = || text(&header[1..]).parse::<usize>().ok();
    match header.first() {
        Some(b'$' | b'=' | b'!') => match count() {
            Some(length) => Some(line + length + 2).filter(|&end| end <= bytes.len()),
            None => Some(line),
        },
        Some(b'*' | b'~' | b'>') => skip(bytes, line, count().unwrap_or(0)),
        Some(b'%') => skip(bytes, line, 2 * count().unwrap_or(0)),
        Some(b'|') => skip(bytes, line, 2 * count().unwrap_or(0) + 1),
        _ => Some(line),
    }
}

/// Returns the end of the `count` frames that begin at `start`.
fn skip(bytes: &[u8], start: usize, count: usize) -> Option<usize> {
    (0..count).try_fold(start, |at, _| Some(at + frame_length(&bytes[at..])?))
}

/// Splits after the first line, whose end is left out.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], &bytes[end + 2..]))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{CLAIM, Splitter, args, as_set, claim_hash, is_unsolicited, replies_to};

    const FRAMES: [&[u8]; 9] = [
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\n\r\n\r\n\r\n",
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*2\r\n:1\r\n$-1\r\n*1\r\n-ERR in there\r\n",
        b"%1\r\n+a\r\n*1\r\n#t\r\n",
    ];

    #[test]
    fn every_frame_comes_out_whole_however_it_arrives() {
        let stream = FRAMES.concat();
        for chunk in 1..=stream.len() {
            let mut splitter = Splitter::default();
            let mut frames = Vec::new();
            for bytes in stream.chunks(chunk) {
                splitter.push(bytes);
                frames.extend(splitter.by_ref());
            }
            assert_eq!(frames, FRAMES, "in chunks of {chunk}");
        }
    }

    #[test]
    fn a_command_is_split_into_its_arguments() {
        assert_eq!(args(FRAMES[0]), ["SET", "a", "\r\n\r\n"]);
        assert_eq!(args(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), ["GET", ""]);
        assert_eq!(args(b"PING twice\r\n"), ["PING", "twice"]);
    }

    #[test]
    fn an_attempt_by_script_is_a_set() {
        let command = |script: &str| {
            as_set(
                ["EVAL", script, "1", "a", "token", "10"]
                    .map(String::from)
                    .into(),
            )
        };
        assert_eq!(command(claim_hash()), ["SET", "a", "token", "PX", "10"]);
        assert_eq!(command(CLAIM), ["SET", "a", "token", "PX", "10"]);
        assert_eq!(command("other").len(), 6);
    }

    #[test]
    fn pub_sub_messages_are_not_replies() {
        assert!(is_unsolicited(
            b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
        ));
        assert!(!is_unsolicited(
            b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
        ));
        let subscribe = ["SUBSCRIBE", "a", "b"].map(String::from);
        assert_eq!(replies_to(&subscribe), 2);
        assert_eq!(replies_to(&["GET", "a"].map(String::from)), 1);
    }
}
