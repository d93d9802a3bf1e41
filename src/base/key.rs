//! A lock's key: its name in the program, and the key in Redis.

use std::sync::Arc;

use crate::base::error::Error;

/// The longest name, in bytes. People read the names of locks, so a longer name is a mistake of the
/// program.
pub(crate) const MAX_BYTES: usize = 64 * 1024;

/// The argument `found` of [`Key::not_a_lock`] if Redis answers `WRONGTYPE`.
pub(crate) const NOT_A_STRING: &str = "a value that is not a string";

/// A lock's name as the caller has it. A [`Lock`](crate::Lock) has its key already, so that taking
/// the lock copies no text.
#[derive(Clone, Copy)]
pub(crate) enum Name<'a> {
    Given(&'a str),
    Of(&'a UncheckedKey),
}

impl Name<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Name::Given(name) => name,
            Name::Of(UncheckedKey(key)) => &key.name,
        }
    }
}

impl<'a> From<&'a str> for Name<'a> {
    fn from(name: &'a str) -> Name<'a> {
        Name::Given(name)
    }
}

/// A lock's key whose name is neither empty nor too long.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    name: Arc<str>,
    in_redis: Arc<str>,
}

/// The key of a [`Lock`](crate::Lock). The first use of the lock finds out whether its name is
/// allowed.
#[derive(Clone, Debug)]
pub(crate) struct UncheckedKey(Key);

impl UncheckedKey {
    pub(crate) fn new(prefix: &str, name: &str) -> UncheckedKey {
        UncheckedKey(Key {
            in_redis: [prefix, name].concat().into(),
            name: name.into(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }
}

impl Key {
    pub(crate) fn new<'a>(prefix: &str, name: impl Into<Name<'a>>) -> Result<Key, Error> {
        let given = name.into();
        match given.as_str().len() {
            0 => Err(Error::InvalidKey {
                length: 0,
                reason: "it is empty",
            }),
            1..=MAX_BYTES => Ok(match given {
                Name::Given(name) => UncheckedKey::new(prefix, name).0,
                Name::Of(UncheckedKey(key)) => key.clone(),
            }),
            length => Err(Error::InvalidKey {
                length,
                reason: "it is longer than 64 KiB",
            }),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Prefix and name: the key in Redis.
    pub(crate) fn in_redis(&self) -> &str {
        &self.in_redis
    }

    /// The key of the lock's counter, for fencing tokens: the prefix, `fence:`, and the lock's key
    /// in braces. It begins with the prefix, so that a right to the locks is one to the counters.
    ///
    /// Redis Cluster stores two keys in one place if they have the same [tag](hash_tag), and a
    /// script can use them together only there. So the lock's whole key is the counter's tag,
    /// unless the lock's key has a tag of its own.
    pub(crate) fn counter(&self) -> Result<String, Error> {
        let prefix = self.in_redis.strip_suffix(&*self.name).unwrap_or_default();
        let tag = hash_tag(self.in_redis.as_bytes());
        let key = &*self.in_redis;
        let counter = match tag {
            Some(_) => [prefix, "fence:", key].concat(),
            None => [prefix, "fence:{", key, "}"].concat(),
        };
        if hash_tag(counter.as_bytes()) == Some(tag.unwrap_or(key.as_bytes())) {
            return Ok(counter);
        }
        let reason = "Redis Cluster could not keep its counter in the place of its key, because of the \
                      braces in key or prefix";
        Err(Error::NoFence {
            key: self.name.to_string(),
            reason,
        })
    }

    pub(crate) fn not_a_lock(&self, found: &str) -> Error {
        Error::NotALock {
            key: self.name.to_string(),
            redis_key: self.in_redis.to_string(),
            found: found.to_owned(),
            held: Vec::new(),
        }
    }
}

/// The part of a key that decides where Redis Cluster stores it: what is between the first `{` and
/// the first `}` behind it. `None` if there is nothing between them, or no such pair. Then the
/// whole key decides.
pub(crate) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let behind = &key[key.iter().position(|byte| *byte == b'{')? + 1..];
    let tag = &behind[..behind.iter().position(|byte| *byte == b'}')?];
    Some(tag).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simulation::garbled;

    #[test]
    fn names_are_kept_exactly() {
        for name in [
            "a",
            "with\nnewline",
            "with\0nul",
            "\u{1f512}",
            &"k".repeat(MAX_BYTES),
        ] {
            let key = Key::new("lock:", name).unwrap();
            assert_eq!(&**key.name(), name);
            assert_eq!(key.in_redis(), format!("lock:{name}"));
        }
    }

    #[test]
    fn empty_and_overlong_names_are_refused() {
        assert!(matches!(
            Key::new("lock:", ""),
            Err(Error::InvalidKey { length: 0, .. })
        ));
        let long = "k".repeat(MAX_BYTES + 1);
        assert!(
            matches!(Key::new("", long.as_str()), Err(Error::InvalidKey { length, .. }) if length == MAX_BYTES + 1)
        );
    }

    fn counter(prefix: &str, name: &str) -> Option<String> {
        match Key::new(prefix, name).unwrap().counter() {
            Ok(counter) => Some(counter),
            Err(Error::NoFence { key, .. }) if key == name => None,
            Err(error) => panic!("{error:?}"),
        }
    }

    #[test]
    fn a_counter_is_where_its_lock_is() {
        for (prefix, name, expected) in [
            ("lock:", "orders:42", "lock:fence:{lock:orders:42}"),
            ("lock:", "{orders}:42", "lock:fence:lock:{orders}:42"),
            ("lock:", "a{b", "lock:fence:{lock:a{b}"),
            ("", "a", "fence:{a}"),
            ("{shop}:", "a", "{shop}:fence:{shop}:a"),
            ("{shop}:", "{a}{b}", "{shop}:fence:{shop}:{a}{b}"),
            ("", "{a}}", "fence:{a}}"),
        ] {
            assert_eq!(counter(prefix, name).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_key_whose_counter_would_be_elsewhere_has_none() {
        for (prefix, name) in [
            ("lock:", "a}b"),
            ("lock:", "{}x"),
            ("lock:", "{}{x}"),
            ("", "}"),
            ("a{b", "x"),
            ("a{b", "x}"),
        ] {
            assert_eq!(counter(prefix, name), None, "{prefix} and {name}");
        }
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_counter_has_the_prefix_and_is_where_its_lock_is(prefix in "[a{}]{0,4}", name in "[a{}]{1,6}") {
            let key = prefix.clone() + &name;
            if let Some(counter) = counter(&prefix, &name) {
                prop_assert!(counter.starts_with(&prefix) && counter != key);
                let place = |key: &str| hash_tag(key.as_bytes()).unwrap_or(key.as_bytes()).to_owned();
                prop_assert_eq!(place(&counter), place(&key));
            } else {
                let odd = key.contains('}') || prefix.contains('{');
                prop_assert!(odd, "{:?} and {:?}", prefix, name);
            }
        }
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_name_is_kept_exactly_or_refused(prefix in any::<String>(), name in any::<String>(), times in 0..2000_usize) {
            let name = name.repeat(times);
            match Key::new(&prefix, name.as_str()) {
                Ok(key) => {
                    prop_assert_eq!(&**key.name(), &name);
                    prop_assert_eq!(key.in_redis().strip_prefix(prefix.as_str()), Some(name.as_str()));
                }
                Err(error) => {
                    prop_assert!(name.is_empty() || name.len() > MAX_BYTES);
                    let fits = matches!(error, Error::InvalidKey { length, .. } if length == name.len());
                    prop_assert!(fits, "{:?}", error);
                }
            }
        }
    }
}
