//! What a token says, and how it is read: the owner, which is host, process and thread.

pub(crate) mod holder;
pub(crate) mod identity;
mod machine;
pub(crate) mod process;

use std::fmt;
use std::sync::Arc;

use crate::base::sync;

const MAX_HOST: usize = 64;

/// Hex digits in a token's nonce: 128 bits.
const NONCE_DIGITS: usize = 32;

/// The host, process and thread that hold a lock: the readable part of a token.
///
/// The token is the key's value in Redis: `host-pid-thread-nonce`. The nonce is fresh for each
/// outermost acquisition, so that no two holds have the same token. Tokens have no order, so a
/// token is not a fencing token: a resource cannot use it to reject a writer whose lock was lost.
///
/// ```
/// use relatch::Owner;
///
/// let token = "worker-7-4242-4243-00112233445566778899aabbccddeeff";
/// let owner = Owner::parse(token).expect("one of ours");
/// assert_eq!(&*owner.host, "worker-7");
/// assert_eq!(owner.pid, 4242);
/// assert_eq!(owner.thread, 4243);
/// assert_eq!(owner.to_string(), "worker-7-4242-4243");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Owner {
    /// The host's name as the token has it: the first 64 characters, with `_` for each character
    /// that is not in `[A-Za-z0-9._-]`.
    pub host: Arc<str>,
    /// The process id, in the pid namespace of the process. In a container it is often 1.
    pub pid: u32,
    /// The thread's number. On Linux, the number that `ps -L`, `top -H` and gdb show. On other
    /// systems, a counter.
    pub thread: u64,
}

impl Owner {
    /// Reads the owner from a token. `None` if the text is not a token of this crate.
    ///
    /// ```
    /// let owner = relatch::Owner::parse("worker-7-4242-4243-00112233445566778899aabbccddeeff");
    /// assert_eq!(owner.map(|owner| owner.pid), Some(4242));
    /// ```
    #[must_use]
    pub fn parse(token: &str) -> Option<Owner> {
        // From the right, because the host may contain hyphens.
        let mut parts = token.rsplitn(4, '-');
        let nonce = parts.next()?;
        let thread = number(parts.next()?)?;
        let pid = u32::try_from(number(parts.next()?)?).ok()?;
        let host = parts.next()?;
        let nonce_fits = nonce.len() == NONCE_DIGITS
            && nonce
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let host_fits =
            !host.is_empty() && host.len() <= MAX_HOST && host.chars().all(is_host_char);
        (nonce_fits && host_fits).then(|| Owner {
            host: host.into(),
            pid,
            thread,
        })
    }

    /// This host, process and thread: what the tokens of this thread's locks begin with.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// assert!(guard.token().starts_with(&relatch::Owner::current().to_string()));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn current() -> Owner {
        let pid = sync::process::id();
        Owner::new(host_name(), pid, process::thread_id(pid))
    }

    /// The host has to be clean already: see [`host_name`].
    pub(crate) fn new(host: Arc<str>, pid: u32, thread: u64) -> Owner {
        Owner { host, pid, thread }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.host, self.pid, self.thread)
    }
}

/// This machine's name, cleaned for a token.
pub(crate) fn host_name() -> Arc<str> {
    #[cfg(test)]
    if let Some((_, host)) = crate::base::sync::scheduler::id() {
        return host.into();
    }
    clean_host(&hostname::get().unwrap_or_default().to_string_lossy()).into()
}

fn clean_host(raw: &str) -> String {
    if raw.is_empty() {
        return "_".to_owned();
    }
    raw.chars()
        .take(MAX_HOST)
        .map(|c| if is_host_char(c) { c } else { '_' })
        .collect()
}

fn is_host_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Parses a number as a token writes it. `str::parse` would also accept a sign and leading zeros.
fn number(digits: &str) -> Option<u64> {
    let plain =
        digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::base::owner::identity::fresh_token;

    #[test]
    fn other_text_is_not_parsed_as_a_token() {
        let nonce = "0".repeat(NONCE_DIGITS);
        for text in [
            "",
            "-",
            "---",
            "host-1-2",
            "some-uuid-like-value",
            &format!("-1-2-{nonce}"),
            &format!("host-1-2-{}", &nonce[1..]),
            &format!("host-1-2-{}", nonce.replace('0', "F")),
            &format!("host-+1-2-{nonce}"),
            &format!("host-01-2-{nonce}"),
            &format!("host-4294967296-2-{nonce}"),
            &format!("ho st-1-2-{nonce}"),
        ] {
            assert_eq!(Owner::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_owner_is_read_back_from_its_token(host in any::<String>(), pid: u32, thread: u64, shown: u32) {
            let owner = Owner::new(clean_host(&host).into(), pid, thread);
            prop_assert_eq!(Owner::parse(&fresh_token(&owner, shown).unwrap()), Some(owner));
        }

        /// There is only one way to write an owner and a nonce as a token.
        #[test]
        fn any_text_that_parses_is_what_its_owner_would_write(
            text in prop_oneof![
                any::<String>(),
                "[a-c.\u{e9} -]{0,70}-[-+0-9]{0,12}-[-+0-9]{0,22}-[0-9a-fA-F]{31,33}",
                garbled::text("[a-z.-]{1,20}-[0-9]{1,10}-[0-9]{1,20}-[0-9a-f]{32}"),
            ],
        ) {
            if let Some(owner) = Owner::parse(&text) {
                let nonce = &text[text.len() - NONCE_DIGITS..];
                prop_assert_eq!(format!("{owner}-{nonce}"), text);
            }
        }
    }

    #[test]
    fn the_host_of_a_token_has_no_odd_character() {
        let long = "x".repeat(255);
        for (host, clean) in [
            ("a-b--c.example", "a-b--c.example"),
            ("", "_"),
            ("two words\n", "two_words_"),
            ("h\u{f6}st\u{1f980}", "h_st_"),
            (&long, &long[..MAX_HOST]),
        ] {
            assert_eq!(clean_host(host), clean);
        }
    }
}
