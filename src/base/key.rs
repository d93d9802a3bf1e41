//! A lock's key: its name in the program, and the key in Redis.

use std::sync::Arc;

use crate::base::error::Error;
use crate::base::options::invalid_option;

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
            Name::Of(unchecked) => unchecked.name(),
        }
    }
}

impl<'a> Name<'a> {
    /// The names of the locks of which the caller wants one: its own, or those of the slots.
    pub(crate) fn each(self) -> impl Iterator<Item = &'a str> {
        let (own, slots) = match self {
            Name::Given(name) => (name, &[][..]),
            Name::Of(unchecked) => (unchecked.name(), unchecked.key.slots()),
        };
        let own = slots.is_empty().then_some(own);
        own.into_iter()
            .chain(slots.iter().map(|slot| &**slot.name()))
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
    part: Part,
}

/// What the lock is a part of.
#[derive(Clone, Debug)]
enum Part {
    /// Nothing: it is a lock of its own.
    Lock,
    /// It stands for a set of slots. Whoever takes it has one of them.
    Set(Arc<[Key]>),
    /// It is the slot with this number. The first has the number 1.
    Slot(u8),
}

/// The most slots of one set.
pub(crate) const MOST_SLOTS: u8 = 64;

/// The key of a [`Lock`](crate::Lock). The first use of the lock finds out whether its name is
/// allowed.
#[derive(Clone, Debug)]
pub(crate) struct UncheckedKey {
    key: Key,
    /// The number of slots, and why there cannot be such slots.
    invalid: Option<(usize, &'static str)>,
}

impl UncheckedKey {
    pub(crate) fn new(prefix: &str, name: &str) -> UncheckedKey {
        let key = Key {
            in_redis: [prefix, name].concat().into(),
            name: name.into(),
            part: Part::Lock,
        };
        let invalid = None;
        UncheckedKey { key, invalid }
    }

    /// The key of a set of slots. The slots of `mail` are `{mail}#1`, `{mail}#2` and so on, and the
    /// set is `{mail}#*`, which is no key in Redis. The braces have Redis Cluster store all of them
    /// in one place. A prefix or a name with a [tag](hash_tag) does so without more braces.
    pub(crate) fn of_slots(prefix: &str, name: &str, count: usize) -> UncheckedKey {
        if name.is_empty() {
            return UncheckedKey::new(prefix, name);
        }
        let stem = match hash_tag([prefix, name].concat().as_bytes()) {
            Some(_) => name.to_owned(),
            None => ["{", name, "}"].concat(),
        };
        let key = |part, last: &str| Key {
            part,
            ..UncheckedKey::new(prefix, &[&stem, "#", last].concat()).key
        };
        let most = u8::try_from(count).unwrap_or(u8::MAX).min(MOST_SLOTS);
        let slots = (1..=most).map(|n| key(Part::Slot(n), &n.to_string()));
        let key = key(Part::Set(slots.collect()), "*");
        let reason = if usize::from(most) != count || count == 0 {
            Some("a lock has between 1 and 64 slots")
        } else {
            let reason = "Redis Cluster could not keep them in one place, because of the braces in key or prefix";
            hash_tag(key.in_redis.as_bytes())
                .is_none()
                .then_some(reason)
        };
        let invalid = reason.map(|reason| (count, reason));
        UncheckedKey { key, invalid }
    }

    pub(crate) fn name(&self) -> &str {
        &self.key.name
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
            1..=MAX_BYTES => match given {
                Name::Given(name) => Ok(UncheckedKey::new(prefix, name).key),
                Name::Of(UncheckedKey {
                    invalid: Some((count, reason)),
                    ..
                }) => Err(invalid_option("slots", count, reason)),
                Name::Of(unchecked) => Ok(unchecked.key.clone()),
            },
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

    /// The slots, if this is a set of slots.
    pub(crate) fn slots(&self) -> &[Key] {
        match &self.part {
            Part::Set(slots) => slots,
            Part::Lock | Part::Slot(_) => &[],
        }
    }

    /// The number of the slot, if this is one.
    pub(crate) fn slot(&self) -> Option<u8> {
        match self.part {
            Part::Slot(number) => Some(number),
            Part::Lock | Part::Set(_) => None,
        }
    }

    /// The keys in Redis that may hold a token of this lock: its own, or those of the slots.
    pub(crate) fn places(&self) -> Vec<&str> {
        match &self.part {
            Part::Set(slots) => slots.iter().map(Key::in_redis).collect(),
            Part::Lock | Part::Slot(_) => vec![&self.in_redis],
        }
    }

    /// The key of the lock's counter, for fencing tokens: the prefix, `fence:`, and the lock's key
    /// in braces. It begins with the prefix, so that a right to the locks is one to the counters.
    ///
    /// Redis Cluster stores two keys in one place if they have the same [tag](hash_tag), and a
    /// script can use them together only there. So the lock's whole key is the counter's tag,
    /// unless the lock's key has a tag of its own.
    pub(crate) fn counter(&self) -> Result<String, Error> {
        if !self.slots().is_empty() {
            return Err(Error::NoFence {
                key: self.name.to_string(),
                reason: "slots have none: several threads hold one at a time",
            });
        }
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

/// The set of a slot, if this may be the key of one, in Redis or without its prefix.
pub(crate) fn set_of(key: &str) -> Option<String> {
    let (stem, number) = key.rsplit_once('#')?;
    let is_slot = matches!(number.parse(), Ok(1..=MOST_SLOTS));
    is_slot.then(|| [stem, "#*"].concat())
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
