//! What the commands write as JSON: one object a line. Fields are added, and never renamed, while
//! `v` is 1. Times are whole milliseconds, in fields that end with `_ms`.

use std::fmt::Write;

use relatch::{Holder, Owner};
use serde_json::{Value, json};

use crate::span::millis;

/// How the value of a lock that is only kept begins.
pub(crate) const KEPT: &str = "kept:";

/// The process and thread that a value names, also if they only keep the lock.
pub(crate) fn owner(holder: &Holder) -> Option<Owner> {
    let kept_by = holder.raw.strip_prefix(KEPT);
    holder.owner().or_else(|| kept_by.and_then(Owner::parse))
}

/// Bytes that are no text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // A string takes everything.
        text
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
        "token": holder.raw,
        "host": owner.as_ref().map(|owner| &*owner.host),
        "pid": owner.as_ref().map(|owner| owner.pid),
        "thread": owner.as_ref().map(|owner| owner.thread),
        "left_ms": holder.remaining.map(millis),
        "fence": holder.fence,
    })
}
