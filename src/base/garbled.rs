//! Valid input that was changed on the way, to test the code that reads bytes from outside.
//!
//! Random bytes fail a reader's first check; these get further. The variable `PROPTEST_CASES` says
//! how many inputs each property gets: 256 if it is not set. An input that has revealed a fault is
//! kept in a file, and tried first by every later run.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::FileFailurePersistence;

/// How many inputs a property gets, and where the inputs that broke it are kept.
pub(crate) fn cases() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/regressions.txt",
        ))),
        ..ProptestConfig::default()
    }
}

const ODD: [&str; 26] = [
    "\r\n",
    "\n",
    "\0",
    "\u{1b}[2J",
    "\u{202e}",
    "\u{e9}",
    " ",
    ":",
    "-",
    "+",
    "%",
    "%zz",
    "@",
    "/",
    "?",
    "#",
    "0",
    "-1",
    "65536",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999",
    "$200000\r\n",
    "$9223372036854775807\r\n",
    "*16000\r\n",
    "*2147483647\r\n",
];

/// The longest part that is repeated, and the most copies of it.
const LONGEST_PART: usize = 64;
const MOST_TIMES: usize = 8;

#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Cut(Index, Index),
    Insert(Index, Vec<u8>),
    Repeat(Index, Index, usize),
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>) {
        // A place may also be the end.
        let end = bytes.len() + 1;
        let part = |one: &Index, other: &Index| {
            let one = one.index(end);
            let other = other.index(end);
            one.min(other)..one.max(other)
        };
        match self {
            Change::Flip(at, bits) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
            }
            Change::Flip(..) => {}
            Change::Cut(from, to) => drop(bytes.drain(part(from, to))),
            Change::Insert(at, more) => {
                let at = at.index(end);
                bytes.splice(at..at, more.iter().copied());
            }
            Change::Repeat(from, to, times) => {
                let part = part(from, to);
                let part = part.start..part.end.min(part.start + LONGEST_PART);
                let more = bytes[part.clone()].repeat(*times);
                bytes.splice(part.end..part.end, more);
            }
        }
    }
}

/// Texts that readers stumble over.
pub(crate) fn odd() -> impl Strategy<Value = &'static str> {
    select(&ODD[..])
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let odd = odd().prop_map(|odd| odd.as_bytes().to_vec());
    prop_oneof![
        (at(), 1..=u8::MAX).prop_map(|(at, bits)| Change::Flip(at, bits)),
        (at(), at()).prop_map(|(from, to)| Change::Cut(from, to)),
        (at(), prop_oneof![odd, vec(any::<u8>(), 1..4)])
            .prop_map(|(at, more)| Change::Insert(at, more)),
        (at(), at(), 1..MOST_TIMES).prop_map(|(from, to, times)| Change::Repeat(from, to, times)),
    ]
}

/// Valid bytes with up to three changes, or with none.
pub(crate) fn bytes(valid: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (valid, vec(change(), 0..4)).prop_map(|(mut bytes, changes)| {
        for change in changes {
            change.make(&mut bytes);
        }
        bytes
    })
}

/// Like [`bytes`]. Whatever is no longer UTF-8 is replaced.
pub(crate) fn text<T: Into<String>>(
    valid: impl Strategy<Value = T>,
) -> impl Strategy<Value = String> {
    let valid = valid.prop_map(|text| text.into().into_bytes());
    bytes(valid).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// True for a text that is one line, and that is shown from left to right.
pub(crate) fn is_one_line(text: &str) -> bool {
    let turns = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !text.contains(|c: char| c.is_control() || turns(c))
}
