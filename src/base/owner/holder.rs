//! Who holds a lock, read from its value in Redis.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::base::owner::Owner;

/// How `keep.lua` begins the value of a lock that stays taken and that nobody holds. The token of
/// the last hold follows. The colon makes sure that the value is not a token: no host's name has
/// one.
pub(crate) const KEPT: &str = "kept:";

/// How many bytes of a value the scripts return.
const MOST_RAW: usize = 256;

/// True if this is a whole value as [`Holder`] shows it: nothing was cut off or replaced.
pub(crate) fn is_whole(value: &[u8]) -> bool {
    let is_replaced = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
    value.len() < MOST_RAW && !str::from_utf8(value).is_ok_and(is_replaced)
}

/// Who held a lock when Redis was asked, and for how much longer.
///
/// This is a snapshot for people and log messages, not for decisions: the lock may have changed
/// hands since. In particular, the [token](Holder::raw) is not a fencing token. Tokens have no
/// order, so a resource cannot tell from two tokens which hold is the newer one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The key's value in Redis: the holder's token, a value of another program, or, for a lock
    /// that is [kept](crate::Lock::keep_at_least), `kept:` and the token of who kept it. Of a
    /// longer value, these are the first 256 bytes. Bytes that are not UTF-8 are replaced by
    /// `U+FFFD`. [`force_unlock_if`](crate::Lock::force_unlock_if) refuses values that may have
    /// been changed in this way.
    pub raw: String,
    /// The value as it is in Redis, if it is not UTF-8: then [`raw`](Holder::raw) does not have all
    /// of it. Some programs use random bytes as a token.
    pub bytes: Option<Box<[u8]>>,
    /// The key's TTL: how long the key exists unless its lease is renewed. `None` if it never
    /// expires.
    pub remaining: Option<Duration>,
    /// The [fencing token](crate::LockGuard::fence) of the hold, if it was asked for and is known.
    ///
    /// Only [`Lock::holder`](crate::Lock::holder) asks for it, on a lock that is
    /// [`fenced`](crate::Lock::fenced). If the holder took the lock without a fence, this is the
    /// fence of an earlier hold. `None` if the counter is gone or, in a cluster, on its way to
    /// another node.
    pub fence: Option<u64>,
}

impl Holder {
    pub(crate) fn new(raw: &[u8], remaining: Option<Duration>) -> Holder {
        let text = String::from_utf8_lossy(raw);
        let bytes = matches!(text, Cow::Owned(_)).then(|| raw.into());
        Holder {
            raw: text.into_owned(),
            bytes,
            remaining,
            fence: None,
        }
    }

    /// The same holder, with the number in its lock's counter.
    pub(crate) fn with_fence(self, fence: Option<u64>) -> Holder {
        Holder { fence, ..self }
    }

    /// The same holder, after some time in which its lease was not renewed. (Redis reports a
    /// renewal to the threads that wait, like any change of the key.)
    pub(crate) fn after(&self, time: Duration) -> Holder {
        let remaining = self.remaining.map(|left| left.saturating_sub(time));
        Holder {
            remaining,
            ..self.clone()
        }
    }

    /// The host, process and thread that held the lock. `None` if this crate did not write the
    /// value, or if nobody holds the lock and it is only [kept](crate::Lock::keep_at_least).
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// # let guard = locks.lock("orders:42")?;
    /// let holder = locks.named("orders:42").holder()?.expect("this thread");
    /// assert_eq!(holder.owner(), Some(relatch::Owner::current()));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        Owner::parse(&self.raw)
    }
}

impl fmt::Display for Holder {
    /// Writes `worker-7-4242-4243 (12.3s left)`, or `worker-7-4242-4243, which is done (12.3s
    /// left)` if `keep_at_least` keeps the lock. A value of another program is quoted, and cut if
    /// it is long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        let kept_by = self.raw.strip_prefix(KEPT).and_then(Owner::parse);
        match (self.owner(), kept_by) {
            (Some(owner), _) => write!(f, "{owner}")?,
            (None, Some(owner)) => write!(f, "{owner}, which is done")?,
            (None, None) => match self.raw.char_indices().nth(SHOWN) {
                Some((end, _)) => write!(f, "{:?}...", &self.raw[..end])?,
                None => write!(f, "{:?}", self.raw)?,
            },
        }
        match self.remaining {
            Some(left) => write!(f, " ({left:.1?} left)"),
            None => f.write_str(" (never expires)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    proptest! {
        #![proptest_config(garbled::cases())]

        /// Even the value of another program.
        #[test]
        fn any_value_is_shown_in_one_short_line_and_kept_as_it_is(
            value in garbled::bytes("(kept:)?[a-z.-]{1,20}-[0-9]{1,10}-[0-9]{1,20}-[0-9a-f]{32}".prop_map(String::into_bytes)),
            left in any::<Option<u64>>(),
        ) {
            let holder = Holder::new(&value, left.map(Duration::from_millis));
            let shown = holder.to_string();
            prop_assert!(garbled::is_one_line(&shown) && shown.len() < 1000, "{}", shown);
            prop_assert_eq!(holder.bytes.as_deref().unwrap_or(holder.raw.as_bytes()), &value);
        }
    }

    #[test]
    fn a_value_of_another_program_is_quoted_and_cut() {
        let holder = Holder::new("\u{e9}".repeat(300).as_bytes(), None);
        assert_eq!(holder.owner(), None);
        assert_eq!(holder.raw.chars().count(), 300);
        assert_eq!(
            holder.to_string(),
            format!("\"{}\"... (never expires)", "\u{e9}".repeat(60))
        );
    }

    #[test]
    fn a_token_is_displayed_as_its_owner() {
        let token = format!("host-1-2-{}", "a".repeat(32));
        let holder = Holder::new(token.as_bytes(), Some(Duration::from_millis(1500)));
        assert_eq!(holder.to_string(), "host-1-2 (1.5s left)");
        let kept = Holder::new(
            format!("kept:{token}").as_bytes(),
            Some(Duration::from_millis(1500)),
        );
        assert_eq!(
            (kept.owner(), kept.to_string().as_str()),
            (None, "host-1-2, which is done (1.5s left)")
        );
        assert_eq!(
            Holder::new(b"kept:food", None).to_string(),
            "\"kept:food\" (never expires)"
        );
    }
}
