//! A lock's key: its name in the program, and the key in Redis.

use std::sync::Arc;

use crate::base::error::Error;

/// The longest name, in bytes. People read the names of locks, so a longer name is a mistake of the
/// program.
pub(crate) const MAX_BYTES: usize = 64 * 1024;

/// The argument `found` of [`Key::not_a_lock`] if Redis answers `WRONGTYPE`.
pub(crate) const NOT_A_STRING: &str = "a value that is not a string";

/// A lock's name as the caller has it. A [`Lock`](crate::Lock) shares its name, so that taking the
/// lock does not copy the name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Name<'a> {
    Borrowed(&'a str),
    Shared(&'a Arc<str>),
}

impl Name<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Name::Borrowed(name) => name,
            Name::Shared(name) => name,
        }
    }

    fn share(self) -> Arc<str> {
        match self {
            Name::Borrowed(name) => name.into(),
            Name::Shared(name) => Arc::clone(name),
        }
    }
}

impl<'a> From<&'a str> for Name<'a> {
    fn from(name: &'a str) -> Name<'a> {
        Name::Borrowed(name)
    }
}

/// A lock's key whose name is neither empty nor too long.
#[derive(Debug)]
pub(crate) struct Key {
    name: Arc<str>,
    in_redis: String,
}

impl Key {
    pub(crate) fn new<'a>(prefix: &str, name: impl Into<Name<'a>>) -> Result<Key, Error> {
        let given = name.into();
        let name = given.as_str();
        if name.is_empty() {
            return Err(Error::InvalidKey { length: 0, reason: "it is empty" });
        }
        if name.len() > MAX_BYTES {
            return Err(Error::InvalidKey { length: name.len(), reason: "it is longer than 64 KiB" });
        }
        Ok(Key { in_redis: [prefix, name].concat(), name: given.share() })
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Prefix and name: the key in Redis.
    pub(crate) fn in_redis(&self) -> &str {
        &self.in_redis
    }

    pub(crate) fn not_a_lock(&self, found: &str) -> Error {
        Error::NotALock {
            key: self.name.to_string(),
            redis_key: self.in_redis.clone(),
            found: found.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_kept_exactly() {
        for name in ["a", "with\nnewline", "with\0nul", "\u{1f512}", &"k".repeat(MAX_BYTES)] {
            let key = Key::new("lock:", name).unwrap();
            assert_eq!(&**key.name(), name);
            assert_eq!(key.in_redis(), format!("lock:{name}"));
        }
    }

    #[test]
    fn empty_and_overlong_names_are_refused() {
        assert!(matches!(Key::new("lock:", ""), Err(Error::InvalidKey { length: 0, .. })));
        let long = "k".repeat(MAX_BYTES + 1);
        assert!(
            matches!(Key::new("", long.as_str()), Err(Error::InvalidKey { length, .. }) if length == MAX_BYTES + 1)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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
