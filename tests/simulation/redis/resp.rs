//! RESP2, from the server's side: reads commands and writes replies.

/// What a command answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Status(&'static str),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    NilArray,
    /// With its code, such as `ERR`.
    Error(Vec<u8>),
    Array(Vec<Reply>),
    /// The reply comes when the client is no longer blocked.
    Later,
}

pub(super) const OK: Reply = Reply::Status("OK");

/// An error of which the text is known.
pub(super) fn error(text: &str) -> Reply {
    Reply::Error(text.as_bytes().to_vec())
}

pub(super) fn bulk(text: impl AsRef<[u8]>) -> Reply {
    Reply::Bulk(text.as_ref().to_vec())
}

impl Reply {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Status(text) => line(out, b'+', text.as_bytes()),
            Reply::Int(number) => numbered(out, b':', *number),
            Reply::Bulk(bytes) => write_bulk(out, bytes),
            Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
            Reply::NilArray => out.extend_from_slice(b"*-1\r\n"),
            Reply::Error(text) => {
                let start = out.len();
                line(out, b'-', text);
                let end = out.len() - 2;
                let breaks = out[start..end]
                    .iter_mut()
                    .filter(|byte| matches!(byte, b'\r' | b'\n'));
                breaks.for_each(|byte| *byte = b' ');
            }
            Reply::Array(parts) => {
                numbered(out, b'*', count(parts.len()));
                for part in parts {
                    part.write(out);
                }
            }
            Reply::Later => {}
        }
    }
}

/// A message as a subscriber gets it. The payload is written already.
pub(super) fn write_message(out: &mut Vec<u8>, channel: &[u8], payload: &[u8]) {
    out.extend_from_slice(b"*3\r\n$7\r\nmessage\r\n");
    write_bulk(out, channel);
    out.extend_from_slice(payload);
}

pub(super) fn write_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    numbered(out, b'$', count(bytes.len()));
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn numbered(out: &mut Vec<u8>, kind: u8, number: i64) {
    line(out, kind, itoa::Buffer::new().format(number).as_bytes());
}

/// Reads the next command into `args`. Returns its length, unless it is not there yet.
pub(super) fn parse<'a>(input: &'a [u8], args: &mut Vec<&'a [u8]>) -> Option<usize> {
    args.clear();
    let (parts, mut at) = header(input, b'*')?;
    for _ in 0..parts {
        let (length, header) = header(input.get(at..)?, b'$')?;
        let start = at + header;
        args.push(input.get(start..start + length)?);
        at = start + length + 2;
    }
    (at <= input.len()).then_some(at)
}

/// The number in a line that begins with `kind`, and the length of the line.
fn header(input: &[u8], kind: u8) -> Option<(usize, usize)> {
    let end = input.iter().position(|byte| *byte == b'\n')?;
    let number = input
        .strip_prefix(&[kind])
        .and_then(|_| integer(&input[1..end - 1]));
    let number = number.and_then(|number| usize::try_from(number).ok());
    Some((
        number.unwrap_or_else(|| panic!("no command: {:?}", &input[..end])),
        end + 1,
    ))
}

/// An integer as Redis reads it: in the only way in which it is written.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    if !is_canonical {
        return None;
    }
    let number = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_sub(digit.into())
    })?;
    if digits.len() < text.len() {
        Some(number)
    } else {
        number.checked_neg()
    }
}
