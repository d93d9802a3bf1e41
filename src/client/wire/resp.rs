//! RESP2, the protocol of Redis: writes commands and reads replies.
//!
//! The reader keeps its buffer from one reply to the next. The length of a reply and the nesting of
//! its arrays are bounded. The reader allocates memory for the bytes that it received, not for the
//! length that a reply announces.

use std::io::{self, ErrorKind};
use std::mem;
use std::ops::Range;
use std::time::Duration;

use crate::client::wire::refusal::Refusal;

/// The longest reply. A token is a hundred bytes. The longest key that an invalidation names is the
/// counter of a fenced lock, which has the prefix twice and the name once: less than 192 KiB.
pub(crate) const LONGEST_REPLY: usize = 256 * 1024;

/// The longest reply to `CLUSTER SLOTS` or `SCAN`. The former has ten thousand ranges of slots,
/// each with three nodes; the latter has twenty of the longest keys, and Redis names few more than
/// it is asked for.
const LONGEST_LIST: usize = 4 * 1024 * 1024;

/// The least that an array element counts toward the longest reply. It has three bytes or more, and
/// takes about ten times as much memory; an error takes about forty times as much.
const LEAST_ELEMENT: usize = 16;

/// How deep arrays may nest. The deepest reply that is expected has two levels: an invalidation,
/// which is a message with a list of keys.
const DEEPEST: usize = 8;

/// The size of the buffer, unless a longer reply needs more. Most replies are shorter than a
/// hundred bytes.
const USUAL_ROOM: usize = 4096;

/// One or more commands, written and ready to be sent.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// How many commands there are, and so how many replies will come.
    pub(crate) count: usize,
    /// How long Redis may wait before it answers, on top of the time that any answer takes.
    pub(crate) blocks_for: Duration,
}

impl Batch {
    pub(crate) fn of<T: AsRef<[u8]>>(command: &[T]) -> Batch {
        Batch::default().and(command)
    }

    #[must_use]
    pub(crate) fn and<T: AsRef<[u8]>>(mut self, command: &[T]) -> Batch {
        // Each argument also needs a type byte, its length and two line ends.
        let parts = || command.iter().map(AsRef::as_ref);
        let length: usize = parts().map(|part| part.len() + 16).sum();
        self.bytes.reserve(length);
        self.header(b'*', command.len());
        for part in parts() {
            self.header(b'$', part.len());
            self.bytes.extend_from_slice(part);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.count += 1;
        self
    }

    fn header(&mut self, kind: u8, count: usize) {
        self.bytes.push(kind);
        self.bytes
            .extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ok,
    /// A line other than `OK`.
    Line(String),
    Error(Box<Refusal>),
    Int(i64),
    Bytes(Vec<u8>),
    Array(Vec<Reply>),
    Nil,
}

impl Reply {
    /// The kind of reply, for an error about it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Reply::Nil => "nil",
            Reply::Int(_) => "an integer",
            Reply::Bytes(_) | Reply::Line(_) | Reply::Ok => "a string",
            Reply::Array(_) => "an array",
            Reply::Error(_) => "an error",
        }
    }

    /// True if Redis does not know a script by its hash.
    pub(crate) fn is_noscript(&self) -> bool {
        matches!(self, Reply::Error(error) if error.code == "NOSCRIPT")
    }

    /// True if this server accepts no writes. Then the next command needs a new connection.
    pub(crate) fn comes_from_wrong_server(&self) -> bool {
        matches!(self, Reply::Error(error) if matches!(&*error.code, "READONLY" | "MASTERDOWN"))
    }

    /// A string, if this is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Reply::Line(line) => Some(line),
            Reply::Bytes(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value of a field, if this is a map. RESP2 writes a map as an array of alternating names
    /// and values.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let Reply::Array(parts) = self else {
            return None;
        };
        let at = parts
            .iter()
            .step_by(2)
            .position(|part| part.text() == Some(name))?;
        parts.get(2 * at + 1)?.text()
    }
}

/// Reads replies one by one, however the bytes arrive.
///
/// After a time-out, the part of a reply that has arrived stays here. The next call continues with
/// the rest.
pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// The part of the buffer that was received and is not yet read.
    received: Range<usize>,
    /// How many bytes of that part were searched in vain for the end of a line.
    searched: usize,
    /// The arrays that are not complete yet, from the outermost to the innermost.
    arrays: Vec<Array>,
    /// How many bytes of the current reply have been read, counting [`LEAST_ELEMENT`] for a shorter
    /// element.
    length: usize,
    /// The most bytes that a reply may have.
    longest: usize,
    /// The password of the login, which no error may show. Empty: there is none.
    pub(super) password: String,
}

struct Array {
    elements: Vec<Reply>,
    missing: usize,
}

/// One line, with the bytes that it announces.
enum Piece {
    Whole(Reply),
    Array { elements: usize },
}

impl Reader {
    pub(crate) fn new() -> Reader {
        Reader {
            buffer: vec![0; USUAL_ROOM],
            received: 0..0,
            searched: 0,
            arrays: Vec::new(),
            length: 0,
            longest: LONGEST_REPLY,
            password: String::new(),
        }
    }

    /// From now on, a reply may be as long as the map of a large cluster, or a list of many keys.
    pub(crate) fn expect_list(&mut self) {
        self.longest = LONGEST_LIST;
    }

    /// The next reply. Calls `receive` for more bytes only if the buffer has no whole reply.
    ///
    /// After an error of the kind `InvalidData`, the connection must not be used again. Each
    /// further call fails in the same way.
    pub(crate) fn reply(
        &mut self,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Reply> {
        loop {
            if let Some(reply) = self.received_reply()? {
                return Ok(reply);
            }
            match receive(self.room())? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.received.end += count,
            }
        }
    }

    /// True if all received bytes have been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.received.is_empty() && self.arrays.is_empty()
    }

    fn received_reply(&mut self) -> io::Result<Option<Reply>> {
        loop {
            let bytes = &self.buffer[self.received.clone()];
            let room = self.longest.saturating_sub(self.length);
            let searched = &mut self.searched;
            let Some((piece, length)) = piece(bytes, searched, room, &self.password)? else {
                return Ok(None);
            };
            let whole = match piece {
                Piece::Whole(reply) => self.closed(reply),
                Piece::Array { .. } if self.arrays.len() == DEEPEST => {
                    return Err(garbage("deep nesting"));
                }
                Piece::Array { elements } => {
                    self.arrays.push(Array {
                        elements: Vec::with_capacity(elements.min(16)),
                        missing: elements,
                    });
                    None
                }
            };
            self.received.start += length;
            self.searched = 0;
            self.length += length.max(LEAST_ELEMENT);
            if whole.is_some() {
                self.length = 0;
                self.make_room();
                return Ok(whole);
            }
        }
    }

    /// Puts a reply into the innermost array. Puts each array that is then full into the array
    /// around it. Returns a reply that belongs to no array.
    fn closed(&mut self, mut reply: Reply) -> Option<Reply> {
        while let Some(array) = self.arrays.last_mut() {
            array.elements.push(reply);
            array.missing -= 1;
            if array.missing > 0 {
                return None;
            }
            reply = Reply::Array(mem::take(&mut array.elements));
            self.arrays.pop();
        }
        Some(reply)
    }

    /// Frees the memory of a long reply, once all received bytes have been read.
    fn make_room(&mut self) {
        if self.received.is_empty() {
            self.received = 0..0;
            self.buffer.truncate(USUAL_ROOM);
            self.buffer.shrink_to_fit();
        }
    }

    /// The free part of the buffer, at least one byte. The buffer does not grow without limit:
    /// `piece` returns a piece or an error before a reply exceeds the longest length.
    fn room(&mut self) -> &mut [u8] {
        if self.received.end == self.buffer.len() {
            if self.received.start == 0 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            } else {
                self.buffer.copy_within(self.received.clone(), 0);
                self.received = 0..self.received.len();
            }
        }
        &mut self.buffer[self.received.end..]
    }
}

/// Reads the piece at the beginning of `bytes`. Returns the piece and its length, or `None` if it
/// has not arrived whole. A piece of more than `longest` bytes is an error: that is how much its
/// reply may still take. An error does not show the password.
///
/// The first `searched` bytes are not searched for the end of the line again: a line may come byte
/// by byte.
fn piece(
    bytes: &[u8],
    searched: &mut usize,
    longest: usize,
    password: &str,
) -> io::Result<Option<(Piece, usize)>> {
    let Some(kind) = bytes.first() else {
        return Ok(None);
    };
    if !b"+-:$*".contains(kind) {
        // These bytes begin a TLS record: most servers send one before they close.
        let is_tls = matches!(bytes, [0x15 | 0x16, 3, ..]);
        return Err(if is_tls {
            unread("the server seems to speak TLS, for which a URL begins with `rediss`")
        } else {
            garbage("a reply of an unknown kind")
        });
    }
    let mut from_there = bytes[*searched..].windows(2);
    let Some(end) = from_there.position(|two| two == b"\r\n") else {
        *searched = bytes.len() - 1; // The last one may be the first half of a line end.
        return if bytes.len() < longest {
            Ok(None)
        } else {
            Err(too_long())
        };
    };
    let length = *searched + end + 2;
    let line = &bytes[1..length - 2];
    let room = longest.checked_sub(length).ok_or_else(too_long)?;
    let reply = match kind {
        b'+' if line == b"OK" => Reply::Ok,
        b'+' => Reply::Line(text(line)?),
        // Redis cuts the arguments that an error repeats, perhaps in the middle of a character.
        b'-' => Reply::Error(Refusal::new(&String::from_utf8_lossy(line), password).into()),
        b':' => Reply::Int(number(line)?),
        _ if line == b"-1" => Reply::Nil,
        _ => {
            let count =
                usize::try_from(number(line)?).map_err(|_| garbage("a length below zero"))?;
            return if *kind == b'*' {
                array(count, length, room)
            } else {
                blob(bytes, count, length, room)
            };
        }
    };
    Ok(Some((Piece::Whole(reply), length)))
}

/// An array of `elements`. One that cannot fit is an error.
fn array(elements: usize, length: usize, room: usize) -> io::Result<Option<(Piece, usize)>> {
    match elements {
        0 => Ok(Some((Piece::Whole(Reply::Array(Vec::new())), length))),
        _ if elements > room / LEAST_ELEMENT => Err(too_long()),
        _ => Ok(Some((Piece::Array { elements }, length))),
    }
}

/// The `count` bytes from `start` on, after the line that announces them. A line end follows them.
fn blob(
    bytes: &[u8],
    count: usize,
    start: usize,
    room: usize,
) -> io::Result<Option<(Piece, usize)>> {
    if count.saturating_add(2) > room {
        return Err(too_long());
    }
    let end = start + count;
    match bytes.get(end..end + 2) {
        Some(b"\r\n") => Ok(Some((
            Piece::Whole(Reply::Bytes(bytes[start..end].to_vec())),
            end + 2,
        ))),
        Some(_) => Err(garbage("bytes beyond their announced length")),
        None => Ok(None),
    }
}

fn text(line: &[u8]) -> io::Result<String> {
    str::from_utf8(line)
        .map(str::to_owned)
        .map_err(|_| garbage("a line that is not UTF-8"))
}

fn number(line: &[u8]) -> io::Result<i64> {
    str::from_utf8(line)
        .ok()
        .and_then(|line| line.parse().ok())
        .ok_or_else(|| garbage("no number"))
}

fn garbage(what: &str) -> io::Error {
    unread(&format!("the server does not speak RESP2: {what}"))
}

fn too_long() -> io::Error {
    unread("a reply that is too long")
}

fn unread(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::base::garbled;

    /// An error, over a connection without a password.
    pub(in crate::client) fn said(error: &str) -> Reply {
        Reply::Error(Refusal::new(error, "").into())
    }

    pub(in crate::client) fn encode(reply: &Reply) -> Vec<u8> {
        match reply {
            Reply::Ok => b"+OK\r\n".to_vec(),
            Reply::Line(line) => format!("+{line}\r\n").into_bytes(),
            Reply::Error(error) => format!("-{}\r\n", error.said).into_bytes(),
            Reply::Int(number) => format!(":{number}\r\n").into_bytes(),
            Reply::Bytes(bytes) => {
                [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
            }
            Reply::Array(elements) => {
                let encoded: Vec<_> = elements.iter().map(encode).collect();
                [
                    format!("*{}\r\n", elements.len()).into_bytes(),
                    encoded.concat(),
                ]
                .concat()
            }
            Reply::Nil => b"$-1\r\n".to_vec(),
        }
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let plain = prop_oneof![
            Just(Reply::Ok),
            "[^\r\n]{0,20}"
                .prop_filter("is `Ok`", |line| line != "OK")
                .prop_map(Reply::Line),
            "[A-Z]{1,8}( [^\r\n]{0,30})?".prop_map(|error| said(&error)),
            any::<i64>().prop_map(Reply::Int),
            vec(any::<u8>(), 0..60).prop_map(Reply::Bytes),
            (USUAL_ROOM - 20..USUAL_ROOM * 3).prop_map(|length| Reply::Bytes(vec![b'\r'; length])),
            Just(Reply::Nil),
        ];
        plain.prop_recursive(4, 24, 4, |inner| vec(inner, 0..4).prop_map(Reply::Array))
    }

    /// Changes the part of a reply that `at` counts down to: removes a part of it, adds one,
    /// inserts a text into its text, or replaces it.
    fn garble(reply: &mut Reply, at: &mut usize, place: Index, other: &Reply) {
        if *at > 0 {
            *at -= 1;
            if let Reply::Array(parts) = reply {
                for part in parts {
                    garble(part, at, place, other);
                }
            }
            return;
        }
        *at = usize::MAX; // The others stay as they are.
        match reply {
            Reply::Array(parts) if !parts.is_empty() => {
                let place = place.index(parts.len());
                match other {
                    Reply::Nil => drop(parts.remove(place)),
                    Reply::Ok => parts.push(parts[place].clone()),
                    other => parts.insert(place, other.clone()),
                }
            }
            Reply::Bytes(bytes) if matches!(other, Reply::Line(_)) => {
                let at = place.index(bytes.len() + 1);
                bytes.splice(at..at, other.text().unwrap_or_default().bytes());
            }
            _ => *reply = other.clone(),
        }
    }

    fn parts(reply: &Reply) -> usize {
        match reply {
            Reply::Array(parts) => 1 + parts.iter().map(self::parts).sum::<usize>(),
            _ => 1,
        }
    }

    /// A valid reply with up to two changes in its parts, or in its bytes.
    pub(in crate::client) fn garbled_reply(
        valid: impl Strategy<Value = Reply>,
    ) -> impl Strategy<Value = Reply> {
        let numbers = prop_oneof![
            -2..3_i64,
            16_383..16_385_i64,
            65_535..65_537_i64,
            any::<i64>()
        ];
        let odd = garbled::odd().prop_map(|odd| Reply::Line(odd.to_owned()));
        let other = prop_oneof![any_reply(), numbers.prop_map(Reply::Int), odd];
        let changes = vec((any::<Index>(), (any::<Index>(), other)), 0..3);
        let of_parts = (valid, changes).prop_map(|(mut reply, changes)| {
            for (at, (place, other)) in changes {
                let mut at = at.index(parts(&reply));
                garble(&mut reply, &mut at, place, &other);
            }
            reply
        });
        // Even where the bytes are no longer a reply, its parts have changed.
        (of_parts, any::<bool>()).prop_flat_map(|(reply, in_bytes)| {
            let bytes = if in_bytes { encode(&reply) } else { Vec::new() };
            garbled::bytes(Just(bytes))
                .prop_map(move |bytes| whole(&bytes).unwrap_or_else(|_| reply.clone()))
        })
    }

    /// A reply of these texts and numbers.
    pub(in crate::client) fn list<const N: usize>(parts: [&str; N]) -> Reply {
        Reply::Array(
            parts
                .map(|part| Reply::Bytes(part.as_bytes().to_vec()))
                .into(),
        )
    }

    /// A source whose bytes come in pieces of these lengths, with a time-out before each piece.
    fn dripping<'a>(
        mut bytes: &'a [u8],
        pieces: &'a [usize],
    ) -> impl FnMut(&mut [u8]) -> io::Result<usize> + 'a {
        let mut pieces = pieces.iter().cycle();
        let mut is_late = false;
        move |buffer| {
            is_late = !is_late;
            if is_late {
                return Err(ErrorKind::TimedOut.into());
            }
            let longest = buffer.len().min(*pieces.next().unwrap());
            bytes.read(&mut buffer[..longest])
        }
    }

    /// Reads on after each time-out.
    fn patiently(
        reader: &mut Reader,
        receive: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Reply> {
        loop {
            match reader.reply(&mut *receive) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                other => return other,
            }
        }
    }

    /// The least memory that a reply takes.
    fn size(reply: &Reply) -> usize {
        size_of::<Reply>()
            + match reply {
                Reply::Line(text) => text.capacity(),
                Reply::Error(error) => size_of::<Refusal>() + 3 * error.said.len(),
                Reply::Bytes(bytes) => bytes.capacity(),
                Reply::Array(elements) => elements.iter().map(size).sum(),
                Reply::Ok | Reply::Int(_) | Reply::Nil => 0,
            }
    }

    /// All replies in these bytes, and what then ends the reading. The reader never has much more
    /// memory than the bytes that it has received.
    fn all(bytes: &[u8], pieces: &[usize]) -> Result<(Vec<Reply>, ErrorKind), TestCaseError> {
        let mut reader = Reader::new();
        let mut receive = dripping(bytes, pieces);
        let mut replies = Vec::new();
        let end = loop {
            match reader.reply(&mut receive) {
                Ok(reply) => {
                    prop_assert!(size(&reply) <= 2 * size_of::<Reply>() * (bytes.len() + 1));
                    replies.push(reply);
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                Err(error) => break error.kind(),
            }
            prop_assert!(reader.buffer.len() <= USUAL_ROOM.max(2 * bytes.len()));
            for array in &reader.arrays {
                prop_assert!(array.elements.capacity() <= 16.max(2 * array.elements.len()));
            }
        };
        Ok((replies, end))
    }

    pub(in crate::client) fn whole(bytes: &[u8]) -> io::Result<Reply> {
        patiently(&mut Reader::new(), &mut dripping(bytes, &[usize::MAX]))
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn replies_are_read_as_they_were_written(replies in vec(any_reply(), 1..5)) {
            let bytes = replies.iter().map(encode).collect::<Vec<_>>().concat();
            prop_assert_eq!(all(&bytes, &[usize::MAX])?, (replies, ErrorKind::UnexpectedEof));
        }

        /// Wherever the bytes are split, the same replies come, and then the same end. The reader
        /// neither panics, nor allocates more than the received bytes justify.
        #[test]
        fn what_is_read_does_not_depend_on_how_it_arrives(
            bytes in garbled::bytes(vec(prop_oneof![
                4 => any_reply().prop_map(|reply| encode(&reply)),
                2 => "[-+:$*%0-9]|[$*][0-9]{1,19}\r\n|\r\n".prop_map(String::into_bytes),
            ], 1..5).prop_map(|pieces| pieces.concat())),
            pieces in vec(prop_oneof![1..4_usize, 1..10_000_usize], 1..6),
        ) {
            let at_once = all(&bytes, &[usize::MAX])?;
            prop_assert_eq!(&all(&bytes, &pieces)?, &at_once);
            if bytes.len() < 100 {
                for split in 1..bytes.len() {
                    prop_assert_eq!(&all(&bytes, &[split, usize::MAX])?, &at_once, "split at {}", split);
                }
            }
        }
    }

    #[test]
    fn a_command_is_an_array_of_its_parts() {
        let batch = Batch::of(&["SET", "schl\u{fc}ssel", ""]).and(&["PING"]);
        let written = "*3\r\n$3\r\nSET\r\n$10\r\nschl\u{fc}ssel\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(
            (str::from_utf8(&batch.bytes).unwrap(), batch.count),
            (written, 2)
        );
    }

    /// A reply with many short elements takes more memory than a long one with few.
    #[test]
    fn a_large_map_is_read_and_one_of_tiny_elements_is_refused() {
        let node = format!(
            "*4\r\n$15\r\n192.168.100.100\r\n:30001\r\n$40\r\n{}\r\n*0\r\n",
            "a".repeat(40)
        );
        let range = format!("*5\r\n:10000\r\n:10001\r\n{node}{node}{node}");
        let read = |map: String| {
            let mut reader = Reader::new();
            reader.expect_list();
            patiently(&mut reader, &mut dripping(map.as_bytes(), &[usize::MAX]))
        };
        assert!(read(format!("*10000\r\n{}", range.repeat(10_000))).is_ok());
        for tiny in ["+\r\n", ":1\r\n", "*0\r\n", "$1\r\nx\r\n"] {
            let error = read(format!("*1\r\n*300000\r\n{}", tiny.repeat(300_000))).unwrap_err();
            assert!(error.to_string().contains("too long"), "{error}");
        }
    }

    /// Otherwise, a line that comes byte by byte would take minutes of processor time.
    #[test]
    fn no_byte_is_searched_twice_for_the_end_of_a_line() {
        let mut reader = Reader::new();
        let mut receive = dripping(b"+looked at once\r\n", &[10, 6, 1]);
        for _ in 0..2 {
            reader.reply(&mut receive).unwrap_err();
        }
        // It would be found if anybody looked there again.
        reader.buffer[1..3].copy_from_slice(b"\r\n");
        let reply = patiently(&mut reader, &mut receive).unwrap();
        assert_eq!(reply, Reply::Line("\r\noked at once".to_owned()));
    }

    #[test]
    fn a_reply_is_of_bounded_length_and_depth() {
        let bytes = |length| encode(&Reply::Bytes(vec![b'x'; length]));
        let nested = |depth| ("*1\r\n".repeat(depth) + ":1\r\n").into_bytes();
        let longest = LONGEST_REPLY - "$262133\r\n\r\n".len();
        for good in [bytes(longest), nested(DEEPEST)] {
            assert_eq!(encode(&whole(&good).unwrap()), good);
        }
        // The first element leaves room for the length of an empty second one, but not for the
        // line end that follows the second.
        let first = bytes(LONGEST_REPLY - "*3\r\n$262125\r\n\r\n$0\r\n".len());
        let many = format!("*60000\r\n{}", "$1\r\nx\r\n".repeat(60_000));
        for bad in [
            bytes(longest + 1),
            nested(DEEPEST + 1),
            "+".repeat(LONGEST_REPLY).into_bytes(),
            b"$1000000000000000000\r\n".to_vec(),
            b"*1000000000000000000\r\n".to_vec(),
            many.into_bytes(),
            [&b"*3\r\n"[..], &first, b"$0\r\n\r\n", &first].concat(),
        ] {
            assert_eq!(whole(&bad).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn what_is_not_resp2_is_garbage() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"%1\r\n+a\r\n:1\r\n",
            b":abc\r\n",
            b":\r\n",
            b"$-2\r\n",
            b"*-2\r\n",
            b"$5\r\nhelloworld",
            b"$99999999999999999999\r\n",
            b"+\xff\r\n",
        ] {
            assert_eq!(
                whole(bytes).unwrap_err().kind(),
                ErrorKind::InvalidData,
                "{bytes:?}"
            );
        }
        for (bytes, reply) in [
            (
                &b"-ERR unknown 'x\xd0\r\n"[..],
                said("ERR unknown 'x\u{fffd}"),
            ),
            (b"*-1\r\n", Reply::Nil),
            (b"-\r\n", said("")),
        ] {
            assert_eq!(whole(bytes).unwrap(), reply);
        }
    }
}
