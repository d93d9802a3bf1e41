//! What the commands write as JSON: one object per line. While `v` is 1, fields may be added, but
//! are never renamed. Times are whole milliseconds, in fields whose names end with `_ms`.

use relatch::{Holder, Owner};
use serde_json::{Value, json};

use crate::output::plain;
use crate::span::millis;

/// The prefix of the value of a lock that is only kept.
pub(crate) const KEPT: &str = "kept:";

/// The process and thread that a value names, even if they only keep the lock.
pub(crate) fn owner(holder: &Holder) -> Option<Owner> {
    let kept_by = holder.raw.strip_prefix(KEPT);
    holder.owner().or_else(|| kept_by.and_then(Owner::parse))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// The prefix of a token that is written in hex.
const HEX: &str = "hex:";

/// A holder's token, as `--if-token` reads it: in hex, unless all of it is visible text.
pub(crate) fn token(holder: &Holder) -> String {
    let bytes = holder.bytes.as_deref().unwrap_or(holder.raw.as_bytes());
    let is_seen = holder.bytes.is_none() && plain(&holder.raw) == holder.raw;
    if is_seen && !holder.raw.starts_with(HEX) {
        return holder.raw.clone();
    }
    format!("{HEX}{}", hex(bytes))
}

/// The bytes of a token written by [`token`].
pub(crate) fn token_bytes(text: &str) -> Result<Vec<u8>, String> {
    let Some(digits) = text.strip_prefix(HEX) else {
        return Ok(text.as_bytes().to_vec());
    };
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes = digits.as_bytes().chunks(2).map(|pair| match pair {
        [b'0'..=b'9' | b'a'..=b'f', b'0'..=b'9' | b'a'..=b'f'] => byte(pair),
        _ => None,
    });
    let bytes: Option<Vec<_>> = bytes.collect();
    bytes.ok_or_else(|| {
        "after hex:, write two hexadecimal digits for each byte, such as 0f".to_owned()
    })
}

pub(crate) fn holder(holder: &Holder) -> Value {
    let owner = owner(holder);
    let kind = match (&owner, holder.owner()) {
        (Some(_), Some(_)) => "held",
        (Some(_), None) => "kept",
        (None, _) => "foreign",
    };
    json!({
        "kind": kind,
        "token": token(holder),
        "host": owner.as_ref().map(|owner| &*owner.host),
        "pid": owner.as_ref().map(|owner| owner.pid),
        "thread": owner.as_ref().map(|owner| owner.thread),
        "left_ms": holder.remaining.map(millis),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_cannot_be_seen_is_in_hex() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("9f1c ü", "9f1c ü".as_bytes()),
            ("hex:00ff0a", b"\0\xff\n"),
            ("hex:6865783a", b"hex:"),
        ] {
            assert_eq!(token_bytes(text).as_deref(), Ok(bytes), "{text}");
        }
        for text in ["hex:0", "hex:0g", "hex:+1", "hex:0F", "hex:\u{e9}"] {
            assert!(token_bytes(text).is_err(), "{text}");
        }
    }
}
