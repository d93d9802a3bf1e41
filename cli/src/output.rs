//! What goes to the terminal: answers to standard output, and the rest to standard error.
//!
//! Anybody who can write to Redis chooses the text of keys and values. None of it can move the
//! cursor, break a line, or change the direction of the text that follows.
//!
//! It may be that nothing reads standard error (a full pipe, Ctrl-S). So a dedicated thread writes
//! to it, and no lock, job or signal waits for it.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::exit::{Failure, code};

/// Writes an answer. False if the reader has gone (`relatch ls | head`). That is not a failure, and
/// does not change the exit code.
pub(crate) fn write(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(
            code::SOFTWARE,
            format!("standard output: {error}"),
        )),
    }
}

/// How many lines may wait to be written. Further lines are dropped.
const MOST_LINES: usize = 64;

/// How long the process waits at its end for these lines to be written.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// The thread that writes to standard error. It starts with the first line.
static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

struct Writer {
    lines: SyncSender<String>,
    /// Disconnected once all lines are written.
    ended: Receiver<Infallible>,
}

impl Writer {
    fn start() -> io::Result<Writer> {
        let (lines, to_write) = sync_channel::<String>(MOST_LINES);
        let (is_writing, ended) = channel();
        thread::Builder::new()
            .name("stderr".to_owned())
            .spawn(move || {
                for line in to_write {
                    // If nobody can read it, nobody misses it.
                    let _ = io::stderr().write_all(line.as_bytes());
                }
                drop(is_writing);
            })?;
        Ok(Writer { lines, ended })
    }
}

fn writer() -> MutexGuard<'static, Option<Writer>> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a one-line message for the user. Does not wait for a reader.
pub(crate) fn tell(text: &str) {
    say(format!("relatch: {}\n", plain(text)));
}

/// Writes a text to standard error unchanged. Does not wait for a reader.
pub(crate) fn say(line: String) {
    let mut writer = writer();
    if writer.is_none() {
        *writer = Writer::start().ok();
    }
    let _ = match &*writer {
        Some(writer) => writer.lines.try_send(line).map_err(io::Error::other),
        // The system cannot start a thread. Here, waiting is better than losing the line.
        None => io::stderr().write_all(line.as_bytes()),
    };
}

/// Waits briefly until all lines are written. This is the last thing that a process does.
pub(crate) fn drain() {
    let writer = writer().take();
    if let Some(Writer { lines, ended }) = writer {
        drop(lines);
        let _ = ended.recv_timeout(LONGEST_DRAIN);
    }
}

/// A text for a terminal: invisible characters are written as `\n` or `\u{202e}`.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if is_seen(c) {
            plain.push(c);
        } else {
            plain.extend(c.escape_debug());
        }
    }
    plain
}

/// An object on one line. Escapes the same characters as [`plain`], in JSON's notation.
pub(crate) fn json_line(object: &Value) -> String {
    let mut line = String::new();
    // Anything that is not ASCII is inside a string, where JSON allows each character to be
    // escaped.
    for c in object.to_string().chars() {
        if is_seen(c) {
            line.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(line, "\\u{unit:04x}"); // Writing to a text does not fail.
            }
        }
    }
    line.push('\n');
    line
}

fn is_seen(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_written_out() {
        assert_eq!(plain("a\\b \"é日\" 'x'"), "a\\b \"é日\" 'x'");
        // Terminal controls, line breaks, direction marks, zero-width and private-use characters.
        for c in [
            '\0',
            '\n',
            '\r',
            '\t',
            '\x08',
            '\x1b',
            '\x7f',
            '\u{9b}',
            '\u{85}',
            '\u{2028}',
            '\u{2029}',
            '\u{61c}',
            '\u{200e}',
            '\u{200f}',
            '\u{202a}',
            '\u{202e}',
            '\u{2066}',
            '\u{2069}',
            '\u{200b}',
            '\u{feff}',
            '\u{301}',
            '\u{e0041}',
            '\u{e000}',
        ] {
            let text = format!("a{c}b");
            assert!(!plain(&text).contains(c), "{c:?}");
            let line = json_line(&text.clone().into());
            assert!(!line.trim_end().contains(c), "{line}");
            assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        }
    }
}
