//! Cuts a stream of RESP into whole frames.
//!
//! Only the lengths are understood, not the values: what comes out are the very bytes that went in. Commands and
//! replies are the same to it, since a command is an array of bulk strings. RESP3 is understood too.

use std::sync::OnceLock;

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

/// Whole frames, until more bytes are needed: `None` is not the end.
impl Iterator for Splitter {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let length = frame_length(&self.pending)?;
        Some(self.pending.drain(..length).collect())
    }
}

/// Returns the strings of a command; for anything that is not an array of strings, what can be made of it.
pub(crate) fn words(frame: &[u8]) -> Vec<String> {
    let Some((header, mut rest)) = split_line(frame) else {
        return Vec::new();
    };
    if frame[0] != b'*' {
        return text(header).split_whitespace().map(String::from).collect();
    }
    let mut words = Vec::new();
    while let Some(length) = frame_length(rest) {
        let (element, after) = rest.split_at(length);
        let (line, body) = split_line(element).unwrap_or((element, &[]));
        words.push(text(if body.is_empty() { line } else { &body[..body.len() - 2] }));
        rest = after;
    }
    words
}

/// The script by which a waiter asks for a lock and looks who has it.
pub(crate) const CLAIM: &str = include_str!("../../../src/store/claim.lua");

/// Its hash.
pub(crate) fn claim_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| redis::Script::new(CLAIM).get_hash().to_owned())
}

/// Returns the words of a command, with an attempt by script as the `SET` that it is: rules and tests that speak of
/// attempts mean both kinds.
pub(crate) fn by_deed(mut words: Vec<String>) -> Vec<String> {
    let is_claim = words.len() == 6 && [CLAIM, claim_hash()].contains(&words[1].as_str());
    if is_claim {
        words.drain(1..3);
        "SET".clone_into(&mut words[0]);
        words.insert(3, "PX".to_owned());
    }
    words
}

/// Whether a reply is the answer to no command: a pub/sub message, or any push of RESP3.
///
/// An array reply whose first element is the string `message` is taken for one too.
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

/// Returns where `count` frames that begin at `start` end.
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
    use super::{CLAIM, Splitter, by_deed, claim_hash, is_unsolicited, replies_to, words};

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
    fn a_command_is_read_as_words() {
        assert_eq!(words(FRAMES[0]), ["SET", "a", "\r\n\r\n"]);
        assert_eq!(words(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), ["GET", ""]);
        assert_eq!(words(b"PING twice\r\n"), ["PING", "twice"]);
    }

    #[test]
    fn an_attempt_by_script_is_a_set() {
        let command =
            |script: &str| by_deed(["EVAL", script, "1", "a", "token", "10"].map(String::from).into());
        assert_eq!(command(claim_hash()), ["SET", "a", "token", "PX", "10"]);
        assert_eq!(command(CLAIM), ["SET", "a", "token", "PX", "10"]);
        assert_eq!(command("other").len(), 6);
    }

    #[test]
    fn pub_sub_is_told_from_replies() {
        assert!(is_unsolicited(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"));
        assert!(!is_unsolicited(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
        let subscribe = ["SUBSCRIBE", "a", "b"].map(String::from);
        assert_eq!(replies_to(&subscribe), 2);
        assert_eq!(replies_to(&["GET", "a"].map(String::from)), 1);
    }
}
