//! A hold on its way from one process to another, as text.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::key::MAX_BYTES;
use crate::base::owner::Owner;

/// The start of every parcel: the name and the version of its format.
const VERSION: &str = "relatch1";

/// A lock that its holder has [handed over](crate::LockGuard::hand_over), and that nobody has
/// [adopted](crate::LockManager::adopt) yet.
///
/// A parcel is text: its `Display` form is one line of printable ASCII, whatever the lock's key is,
/// and `parse` reads it. Send it to the process that goes on with the work: over a pipe, in a
/// queued job, in a table column. The text is all that it takes to adopt the lock, so do not log
/// it. `Debug` leaves the token out.
///
/// ```
/// use relatch::LockParcel;
///
/// let text = "relatch1:29650:0:app-1-42-43-00112233445566778899aabbccddeeff:orders%3A42";
/// let parcel: LockParcel = text.parse()?;
/// assert_eq!(parcel.key(), "orders:42");
/// assert_eq!(parcel.to_string(), text);
/// # Ok::<(), relatch::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "the lock stays taken until somebody adopts the parcel, or the lease ends"]
pub struct LockParcel {
    key: String,
    pub(crate) token: String,
    /// The fencing token of the hold, if it has one. The text has a zero if it has none.
    pub(crate) fence: Option<u64>,
    /// How much of the lease was left, in milliseconds: for logs. Redis alone knows when it ends.
    pub(crate) left: u64,
}

impl LockParcel {
    /// A parcel of a lock whose lease lasts for the time `left`.
    pub(crate) fn new(key: &str, token: &str, fence: Option<u64>, left: Duration) -> LockParcel {
        let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        LockParcel {
            key: key.to_owned(),
            token: token.to_owned(),
            fence,
            left,
        }
    }

    /// The lock's key.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let parcel = locks.lock("orders:42")?.hand_over()?;
    /// assert_eq!(parcel.key(), "orders:42");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for LockParcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockParcel {
            key,
            token,
            fence,
            left,
        } = self;
        write!(f, "{VERSION}:{left}:{}:{token}:", fence.unwrap_or(0))?;
        for byte in key.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for LockParcel {
    type Err = Error;

    /// Reads the `Display` form. Surrounding white space is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`]: the text is no parcel. The error does not repeat the text.
    fn from_str(text: &str) -> Result<LockParcel, Error> {
        let invalid = |reason| Error::InvalidOption {
            option: "parcel",
            value: None,
            reason,
        };
        let mut parts = text.trim().splitn(5, ':');
        if parts.next() != Some(VERSION) {
            return Err(invalid("it does not begin with `relatch1:`"));
        }
        let mut number = || parts.next().and_then(|digits| digits.parse().ok());
        let (Some(left), Some(fence)) = (number(), number()) else {
            return Err(invalid("its lease or its fence is no number"));
        };
        let Some(token) = parts.next().filter(|token| Owner::parse(token).is_some()) else {
            return Err(invalid("its token is none of this crate"));
        };
        let Some(key) = parts
            .next()
            .and_then(unescaped)
            .filter(|key| (1..=MAX_BYTES).contains(&key.len()))
        else {
            return Err(invalid("its key cannot be read"));
        };
        Ok(LockParcel {
            key,
            token: token.to_owned(),
            fence: Some(fence).filter(|it| *it > 0),
            left,
        })
    }
}

/// The text that was escaped: each `%` with its two hex digits becomes one byte. `None` if the
/// digits are missing or wrong, or the result is not UTF-8.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let value = digit()? * 16 + digit()?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Leaves out the token, which is all that it takes to adopt the lock.
impl fmt::Debug for LockParcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockParcel")
            .field("key", &self.key)
            .field("fence", &self.fence)
            .field("remaining", &Duration::from_millis(self.left))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    const TOKEN: &str = "host-1-2-00112233445566778899aabbccddeeff";

    fn parcel(key: &str) -> LockParcel {
        LockParcel::new(key, TOKEN, Some(7), Duration::from_secs(30))
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_key_survives_the_way_as_one_line(key in ".{1,40}|[\\s%:\\x00-\\x1f]{1,20}") {
            let sent = parcel(&key);
            let text = sent.to_string();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            let got: LockParcel = format!(" {text}\r\n").parse().unwrap();
            prop_assert_eq!(&got, &sent);
            prop_assert_eq!(got.key(), key);
        }

        #[test]
        fn any_text_is_a_parcel_or_refused(
            text in prop_oneof![
                Just(".{0,80}|relatch1:[0-9:%a-f-]{0,80}").prop_flat_map(|it| it),
                garbled::text(".{1,20}".prop_map(|key| parcel(&key).to_string())),
            ],
        ) {
            if let Ok(parcel) = text.parse::<LockParcel>() {
                prop_assert!((1..=MAX_BYTES).contains(&parcel.key.len()));
                prop_assert!(parcel.to_string().bytes().all(|byte| byte.is_ascii_graphic()));
                prop_assert_eq!(parcel.to_string().parse::<LockParcel>().unwrap(), parcel);
            }
        }
    }

    #[test]
    fn what_is_no_parcel_is_refused_and_not_repeated() {
        let good = parcel("a").to_string();
        let version = good.replace("relatch1", "relatch2");
        for bad in [
            "",
            "a",
            &version,
            &good[..good.len() - 1],
            &format!("{good}%"),
            &format!("{good}%f"),
            &format!("{good}%zz"),
            &format!("{good}%FF"),
            &good.replace(":7:", ":x:"),
            &good.replace(TOKEN, "somebody"),
        ] {
            let error = bad.parse::<LockParcel>().expect_err(bad);
            assert!(
                matches!(
                    error,
                    Error::InvalidOption {
                        option: "parcel",
                        value: None,
                        ..
                    }
                ),
                "{error:?}"
            );
            assert!(
                !format!("{error} {error:?}").contains("00112233"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn the_token_is_in_the_text_and_not_in_debug() {
        let parcel = parcel("orders:42");
        assert!(parcel.to_string().contains(TOKEN));
        assert!(!format!("{parcel:?} {parcel:#?}").contains(TOKEN));
        assert_eq!(Duration::from_millis(parcel.left), Duration::from_secs(30));
    }
}
