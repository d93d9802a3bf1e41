//! Which other library wrote a value, judged by the form of the key and the value.
//!
//! The form is only a hint for people. Where several libraries write the same form, the hint names
//! all of them, or says "or similar".

use relatch::Holder;

use crate::span;

/// The seconds from the beginning of the Gregorian calendar, where the time of a version 1 UUID
/// starts, to 1970.
const GREGORIAN: u64 = 12_219_292_800;

/// There was no Redis before 2009, and a UUID from after 2100 is just a random number.
const REDIS_BEGINS: u64 = 1_230_768_000;
const FAR_FUTURE: u64 = 4_102_444_800;

/// The library, if it writes a known form.
pub(crate) fn library(redis_key: &[u8], value: &str) -> Option<&'static str> {
    let begins = |text: &str| redis_key.starts_with(text.as_bytes());
    let is_all = |fits: fn(u8) -> bool| value.bytes().all(fits);
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    let is_for_urls = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    if begins("rueidislock:") {
        return Some("rueidislock");
    }
    if value.starts_with("ADDED:") && shedlock_host(value).is_some() {
        return Some("ShedLock");
    }
    match value.len() {
        16 if is_all(|b| b.is_ascii_alphanumeric()) => Some("Laravel or similar"),
        22 if is_all(|b| b.is_ascii_alphanumeric()) => Some("bsm/redislock or redlock-py"),
        22 if is_all(is_for_urls) => Some("bsm/redislock or similar"),
        24 if is_all(is_base64) && value.ends_with("==") => Some("redsync or similar"),
        24 if is_all(is_base64) && !value.contains('=') => Some("python-redis-lock or similar"),
        32 if is_all(is_hex) && is_uuid_of_a_time(value) => Some("redis-py"),
        32 if is_all(is_hex) => Some("node-redlock or similar"),
        36 if is_uuid(value) && begins("redlock:") => Some("pottery"),
        36 if is_uuid(value) => Some("Spring's RedisLockRegistry or similar"),
        44 if is_all(is_base64) && value.ends_with('=') => Some("Symfony before 5.2 or similar"),
        _ => None,
    }
}

/// A holder, for people: who it is, and how long the lock has left.
pub(crate) fn shown(holder: &Holder) -> String {
    let text = holder.to_string();
    match (holder.remaining, text.rsplit_once(" (")) {
        (Some(left), Some((who, _))) => format!("{who} ({} left)", span::show(left)),
        _ => text,
    }
}

/// The host at the end of a `ShedLock` value.
pub(crate) fn shedlock_host(value: &str) -> Option<&str> {
    let (time, host) = value.strip_prefix("ADDED:")?.split_once('@')?;
    (time.ends_with('Z') && !host.is_empty()).then_some(host)
}

fn is_uuid(value: &str) -> bool {
    let parts: Vec<_> = value.split('-').collect();
    let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
    let is_hex = |part: &&str| part.bytes().all(|b| b.is_ascii_hexdigit());
    lengths == [8, 4, 4, 4, 12] && parts.iter().all(is_hex)
}

/// True for the 32 digits of a version 1 UUID, which contains the time of its creation. One in 2500
/// random numbers looks the same.
fn is_uuid_of_a_time(digits: &str) -> bool {
    let time = format!("{}{}{}", &digits[13..16], &digits[8..12], &digits[..8]);
    let time = u64::from_str_radix(&time, 16).unwrap_or_default();
    let seconds = (time / 10_000_000).saturating_sub(GREGORIAN);
    let is_of_variant = matches!(digits.as_bytes()[16], b'8' | b'9' | b'a' | b'b');
    digits.as_bytes()[12] == b'1' && is_of_variant && (REDIS_BEGINS..FAR_FUTURE).contains(&seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_libraries_write_is_known() {
        // As seen in Redis with these versions; for Laravel and old Symfony, according to their
        // source code.
        for (version, key, value, expected) in [
            (
                "redis 8.1.0",
                "k",
                "d4d2fb5ce95511f1af3e02fc00000001",
                "redis-py",
            ),
            (
                "python-redis-lock 4.0.1",
                "lock:k",
                "6+YSg/cvHmSOMSAQKRZrfn1M",
                "python-redis-lock or similar",
            ),
            (
                "redlock-py 1.0.8",
                "k",
                "3I3AISXMztQulMOAJcTeYO",
                "bsm/redislock or redlock-py",
            ),
            (
                "pottery 3.0.1",
                "redlock:k",
                "e211c0c0-0d39-4dd7-af93-f7a322218c8a",
                "pottery",
            ),
            (
                "node-redlock 5.0.0-beta.2",
                "k",
                "c27a28fbe874c4d90031a91c8db131c3",
                "node-redlock or similar",
            ),
            (
                "redsync 4.13.0",
                "k",
                "Skuh8MexeY8U/Dp3MYDxdQ==",
                "redsync or similar",
            ),
            (
                "bsm/redislock 0.9.4",
                "k",
                "dZtcTpAwSNCjs-LSF8f_SQ",
                "bsm/redislock or similar",
            ),
            (
                "rueidislock 1.0.79",
                "rueidislock:0:k",
                "\u{fffd}\u{fffd}sIE",
                "rueidislock",
            ),
            (
                "Laravel",
                "laravel_cache_:k",
                "Zm3tYqP0aB9xKd2L",
                "Laravel or similar",
            ),
            (
                "Symfony 4",
                "k",
                "3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs=",
                "Symfony before 5.2 or similar",
            ),
        ] {
            assert_eq!(library(key.as_bytes(), value), Some(expected), "{version}");
        }
        for value in [
            "",
            "1",
            "x y",
            "9f1c",
            "ADDED:",
            "ADDED:x@",
            "3q2+7wABAgMEBQ",
        ] {
            assert_eq!(library(b"k", value), None, "{value}");
        }
    }

    #[test]
    fn a_random_number_is_no_time() {
        for digits in [
            "d4d2fb5ce955f1f1af3e02fc00000001", // A different version.
            "d4d2fb5ce95511f1cf3e02fc00000001", // A different variant.
            "d4d2fb5ce9551000af3e02fc00000001", // From 1585.
        ] {
            assert_eq!(
                library(b"k", digits),
                Some("node-redlock or similar"),
                "{digits}"
            );
        }
    }
}
