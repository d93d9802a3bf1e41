//! What goes to the terminal: answers to the standard output, and the rest to the standard error.
//!
//! Anybody who may write to Redis chooses the text of keys and values. None of it moves a cursor,
//! breaks a line, or turns the direction of what follows.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::process;

use serde_json::Value;

use crate::exit::{Failure, code};

/// Writes an answer. If nobody reads any more (`relatch ls | head`), that is no failure, and the
/// end.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(code::OK.into()),
        Err(error) => Err(Failure::new(
            code::SOFTWARE,
            format!("the standard output: {error}"),
        )),
    }
}

/// Says something to a person, in one line.
pub(crate) fn tell(text: &str) {
    // If nobody reads it, nobody misses it.
    let _ = writeln!(io::stderr(), "relatch: {}", plain(text));
}

/// A text for a terminal: characters that cannot be seen are written as `\n` or `\u{202e}`.
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

/// An object in one line. Like [`plain`], as JSON has it.
pub(crate) fn json_line(object: &Value) -> String {
    let mut line = String::new();
    // All that is not ASCII stands in a text, where each character may be written as a number.
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
        // Of terminals, of lines, of directions, of nothing to be seen, of nobody.
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
