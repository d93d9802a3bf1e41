//! Who holds a key, as Redis told it.

use std::fmt;
use std::time::Duration;

use crate::base::owner::Owner;

/// Who holds a key at the moment Redis was asked, and for how long yet.
///
/// A snapshot: by the time it is read, the lock may have changed hands. Good for messages and for people,
/// not for decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    raw: String,
    time_left: Option<Duration>,
}

impl Holder {
    pub(crate) fn new(raw: &[u8], time_left: Option<Duration>) -> Holder {
        Holder { raw: String::from_utf8_lossy(raw).into_owned(), time_left }
    }

    /// The host, process and thread that hold the key, or `None` where the value was not written by
    /// this crate.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        Owner::parse(&self.raw)
    }

    /// The value as it stands in Redis (bytes that are not UTF-8 replaced).
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// How long until Redis lets the key go unless it is renewed, or `None` where it never expires.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.time_left
    }
}

impl fmt::Display for Holder {
    /// `worker-7-4242-4243 (12.3 s left)`; a foreign value is quoted and cut short.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        match self.owner() {
            Some(owner) => write!(f, "{owner}")?,
            None => match self.raw.char_indices().nth(SHOWN) {
                Some((end, _)) => write!(f, "{:?}...", &self.raw[..end])?,
                None => write!(f, "{:?}", self.raw)?,
            },
        }
        match self.time_left {
            Some(left) => write!(f, " ({left:.1?} left)"),
            None => f.write_str(" (never expires)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_value_is_shown_as_it_is_but_short() {
        let holder = Holder::new("\u{e9}".repeat(300).as_bytes(), None);
        assert_eq!(holder.owner(), None);
        assert_eq!(holder.raw().chars().count(), 300);
        assert_eq!(holder.to_string(), format!("\"{}\"... (never expires)", "\u{e9}".repeat(60)));
    }

    #[test]
    fn one_of_ours_is_shown_by_its_owner() {
        let token = format!("host-1-2-{}", "a".repeat(32));
        let holder = Holder::new(token.as_bytes(), Some(Duration::from_millis(1500)));
        assert_eq!(holder.to_string(), "host-1-2 (1.5s left)");
    }
}
