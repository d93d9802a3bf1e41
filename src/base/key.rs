//! A lock's key: its name in the program, and the key in Redis.

use std::sync::Arc;

use crate::base::error::Error;

/// The longest name, in bytes. People read the names of locks, so a longer name is a mistake in the
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
    /// The names of the locks that the caller wants one of: its own, or those of the slots.
    pub(crate) fn each(self) -> impl Iterator<Item = &'a str> {
        let (own, slots) = match self {
            Name::Given(name) => (name, &[][..]),
            Name::Of(unchecked) => (unchecked.name(), unchecked.key.slots()),
        };
        let own = slots.is_empty().then_some(own);
        own.into_iter()
            .chain(slots.iter().map(|slot| &**slot.name()))
    }

    /// See [`Key::admits`].
    pub(crate) fn admits(self, held: &Key) -> bool {
        match self {
            Name::Given(_) => true,
            Name::Of(unchecked) => unchecked.key.admits(held),
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
    kind: KeyKind,
}

/// What a key is.
#[derive(Clone, Debug)]
enum KeyKind {
    /// A lock of its own.
    Lock,
    /// The slot with this number. The first has the number 1.
    Slot { number: u8, is_gated: bool },
    /// Stands for slots. Whoever takes it has one of them.
    AnyOf(Arc<Set>),
    /// The gate of the readers, who have the slots.
    GateOf(Arc<Set>),
    /// Stands for slots. Whoever has their gate waits until all are free.
    NoneOf(Arc<Set>),
}

/// The slots of one set.
#[derive(Debug)]
struct Set {
    slots: Vec<Key>,
    /// While somebody else has this lock, nobody takes a slot.
    gate: Option<Key>,
}

/// The most slots in one set.
const MOST_SLOTS: u8 = 64;

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
            kind: KeyKind::Lock,
        };
        let invalid = None;
        UncheckedKey { key, invalid }
    }

    /// The key of a set of slots. The slots of `mail` are `{mail}#1`, `{mail}#2` and so on, and
    /// three of them are the set `{mail}#1-3`. With the braces, Redis Cluster stores all of them in
    /// one place. A prefix or a name with a [tag](hash_tag) needs no more braces.
    pub(crate) fn of_slots(prefix: &str, name: &str, count: usize) -> UncheckedKey {
        let stem = Stem::new(prefix, name);
        let set = stem.set(count, false);
        Stem::unchecked(stem.key(KeyKind::AnyOf(set), &format!("1-{count}")), count)
    }

    /// The keys for readers and for writers: a set of slots, `{cfg}#0-32`, and their gate,
    /// `{cfg}#0`. A writer does not know how many readers there may be.
    pub(crate) fn of_read_write(prefix: &str, name: &str, readers: usize) -> [UncheckedKey; 2] {
        let stem = Stem::new(prefix, name);
        let any = KeyKind::AnyOf(stem.set(readers, true));
        let gate = KeyKind::GateOf(stem.set(MOST_SLOTS.into(), true));
        let keys = [stem.key(any, &format!("0-{readers}")), stem.key(gate, "0")];
        keys.map(|key| Stem::unchecked(key, readers))
    }

    pub(crate) fn name(&self) -> &str {
        &self.key.name
    }
}

/// What the names of one set's slots begin with, up to the `#`.
struct Stem<'a> {
    prefix: &'a str,
    name: String,
}

impl Stem<'_> {
    fn new<'a>(prefix: &'a str, name: &str) -> Stem<'a> {
        let name = match hash_tag([prefix, name].concat().as_bytes()) {
            None if !name.is_empty() => ["{", name, "}#"].concat(),
            _ => [name, "#"].concat(),
        };
        Stem { prefix, name }
    }

    /// A slot or a gate is a key in Redis. A key that stands for slots has their stem instead.
    fn key(&self, kind: KeyKind, end: &str) -> Key {
        let name = [&self.name, end].concat();
        let in_redis = match kind {
            KeyKind::AnyOf(_) => [self.prefix, &self.name].concat(),
            _ => [self.prefix, &name].concat(),
        };
        Key {
            name: name.into(),
            in_redis: in_redis.into(),
            kind,
        }
    }

    fn set(&self, count: usize, is_gated: bool) -> Arc<Set> {
        let most = u8::try_from(count).map_or(MOST_SLOTS, |count| count.min(MOST_SLOTS));
        let slot = |number: u8| self.key(KeyKind::Slot { number, is_gated }, &number.to_string());
        Arc::new(Set {
            slots: (1..=most).map(slot).collect(),
            gate: is_gated.then(|| self.key(KeyKind::Lock, "0")),
        })
    }

    fn unchecked(key: Key, count: usize) -> UncheckedKey {
        let has_tag = hash_tag(key.in_redis.as_bytes()).is_some();
        let reason = if (1..=MOST_SLOTS.into()).contains(&count) {
            "Redis Cluster could not keep them in one place, because of the braces in key or prefix"
        } else {
            "there are between 1 and 64 of them"
        };
        let is_valid = has_tag && (1..=MOST_SLOTS.into()).contains(&count);
        let invalid = (!is_valid).then_some((count, reason));
        UncheckedKey { key, invalid }
    }
}

impl Key {
    pub(crate) fn new<'a>(prefix: &str, name: impl Into<Name<'a>>) -> Result<Key, Error> {
        let given = name.into();
        let length = match given {
            Name::Of(unchecked) if unchecked.key.is_unnamed() => 0,
            given => given.as_str().len(),
        };
        match length {
            0 => Err(Error::InvalidKey {
                length: 0,
                reason: "it is empty",
            }),
            1..=MAX_BYTES => match given {
                Name::Given(name) => Ok(UncheckedKey::new(prefix, name).key),
                Name::Of(UncheckedKey {
                    invalid: Some((count, reason)),
                    ..
                }) => Err(Error::InvalidOption {
                    option: "slots",
                    value: Some(count.to_string()),
                    reason,
                }),
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

    /// True if the program gave no name to these slots.
    fn is_unnamed(&self) -> bool {
        !matches!(self.kind, KeyKind::Lock) && self.name.rfind('#') == Some(0)
    }

    /// The slots, if this stands for slots.
    pub(crate) fn slots(&self) -> &[Key] {
        match &self.kind {
            KeyKind::AnyOf(set) | KeyKind::NoneOf(set) => &set.slots,
            KeyKind::Lock | KeyKind::Slot { .. } | KeyKind::GateOf(_) => &[],
        }
    }

    /// The gate of the slots, if this stands for slots with a gate.
    pub(crate) fn gate(&self) -> Option<&Key> {
        match &self.kind {
            KeyKind::AnyOf(set) | KeyKind::NoneOf(set) => set.gate.as_ref(),
            KeyKind::Lock | KeyKind::Slot { .. } | KeyKind::GateOf(_) => None,
        }
    }

    /// The key for a wait until all slots behind this gate are free.
    pub(crate) fn readers(&self) -> Option<Key> {
        let KeyKind::GateOf(set) = &self.kind else {
            return None;
        };
        Some(Key {
            name: [&*self.name, " readers"].concat().into(),
            in_redis: self.in_redis.trim_end_matches('0').into(),
            kind: KeyKind::NoneOf(Arc::clone(set)),
        })
    }

    /// True if a wait for slots cannot end before this hold, which the waiting thread itself has.
    pub(crate) fn waits_for(&self, held: &Key) -> bool {
        match &self.kind {
            KeyKind::AnyOf(set) => set.gate.as_ref().is_some_and(|gate| gate.name == held.name),
            KeyKind::NoneOf(_) => true,
            KeyKind::Lock | KeyKind::Slot { .. } | KeyKind::GateOf(_) => false,
        }
    }

    /// The number of the slot, if this is one.
    pub(crate) fn slot(&self) -> Option<u8> {
        match self.kind {
            KeyKind::Slot { number, .. } => Some(number),
            _ => None,
        }
    }

    /// True if a hold of `held`, which has the same name, is a hold of what is wanted here. (A key
    /// of the same name that was taken as a plain lock has passed no gate, and has waited for no
    /// reader.)
    pub(crate) fn admits(&self, held: &Key) -> bool {
        match (&self.kind, &held.kind) {
            (KeyKind::GateOf(_), held) => matches!(held, KeyKind::GateOf(_)),
            (KeyKind::AnyOf(set), held) if set.gate.is_some() => {
                matches!(held, KeyKind::Slot { is_gated: true, .. })
            }
            _ => true,
        }
    }

    /// The names under which a thread may hold the other side of this read-write lock.
    pub(crate) fn other_side(&self) -> Vec<String> {
        match &self.kind {
            KeyKind::GateOf(set) => set.slots.iter().map(|it| it.name.to_string()).collect(),
            KeyKind::Slot { is_gated: true, .. } => {
                let stem = self.name.trim_end_matches(|it: char| it.is_ascii_digit());
                vec![[stem, "0"].concat()]
            }
            _ => Vec::new(),
        }
    }

    /// The keys in Redis that may hold a token of this lock: its own, or those of the slots.
    pub(crate) fn places(&self) -> Vec<&str> {
        match self.slots() {
            [] => vec![&self.in_redis],
            slots => slots.iter().map(Key::in_redis).collect(),
        }
    }

    /// The key of the lock's counter, for fencing tokens: the prefix, `fence:`, and the lock's key
    /// in braces. It begins with the prefix, so a right to the locks covers the counters, too.
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

/// What the keys of a set begin with, if this may be the key of a slot or of a gate.
pub(crate) fn stem_of(key: &[u8]) -> Option<&[u8]> {
    let at = key.iter().rposition(|byte| *byte == b'#')?;
    let (stem, number) = key.split_at(at + 1);
    let is_slot = matches!(str::from_utf8(number).ok()?.parse(), Ok(0..=MOST_SLOTS));
    is_slot.then_some(stem)
}

/// The part of a key that decides where Redis Cluster stores it: what is between the first `{` and
/// the first `}` after it. `None` if there is nothing between them, or no such pair. Then the whole
/// key decides.
pub(crate) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let behind = &key[key.iter().position(|byte| *byte == b'{')? + 1..];
    let tag = &behind[..behind.iter().position(|byte| *byte == b'}')?];
    Some(tag).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    #[test]
    fn the_slots_of_a_set_have_one_place_and_the_set_is_no_key() {
        for (prefix, name, set, first) in [
            ("lock:", "mail", "{mail}#1-3", "lock:{mail}#1"),
            ("lock:", "{shop}mail", "{shop}mail#1-3", "lock:{shop}mail#1"),
            ("{shop}:", "mail", "mail#1-3", "{shop}:mail#1"),
            ("lock:", "#{x}", "#{x}#1-3", "lock:#{x}#1"),
        ] {
            let slots = UncheckedKey::of_slots(prefix, name, 3);
            let key = Key::new(prefix, Name::Of(&slots)).unwrap();
            assert_eq!((&**key.name(), key.places()[0]), (set, first));
            let tags: Vec<_> = key
                .places()
                .iter()
                .map(|it| hash_tag(it.as_bytes()))
                .collect();
            assert!(
                tags[0].is_some() && tags.iter().all(|it| *it == tags[0]),
                "{tags:?}"
            );
            assert!(!key.places().contains(&key.in_redis()) && key.counter().is_err());
            for (number, place) in (1..).zip(key.places()) {
                assert_eq!(stem_of(place.as_bytes()), Some(key.in_redis().as_bytes()));
                assert_eq!(key.slots()[usize::from(number) - 1].slot(), Some(number));
            }
        }
        for (key, stem) in [
            ("a#65", None),
            ("a", None),
            ("a#", None),
            ("a#x", None),
            ("a#0", Some("a#")),
        ] {
            assert_eq!(stem_of(key.as_bytes()), stem.map(str::as_bytes), "{key}");
        }
    }

    #[test]
    fn slots_that_cannot_be_are_refused_by_their_number_or_name() {
        let refused = |name: &str, count| {
            let slots = UncheckedKey::of_slots("lock:", name, count);
            Key::new("lock:", Name::Of(&slots)).map(|_| ())
        };
        for (name, count) in [("mail", 0), ("mail", 65), ("}x", 3)] {
            let is_it = matches!(
                refused(name, count),
                Err(Error::InvalidOption {
                    option: "slots",
                    ..
                })
            );
            assert!(is_it, "{name} and {count}");
        }
        assert!(matches!(
            refused("", 3),
            Err(Error::InvalidKey { length: 0, .. })
        ));
        assert!(refused("mail", 64).is_ok() && refused("mail", 1).is_ok());
    }

    /// A writer waits for all readers, and tells its gate from a lock of the same name.
    #[test]
    fn a_gate_is_that_of_all_readers() {
        let [read, write] = UncheckedKey::of_read_write("lock:", "cfg", 2).map(|it| it.key);
        assert_eq!((read.places().len(), &**read.name()), (2, "{cfg}#0-2"));
        let readers = write.readers().unwrap();
        assert_eq!(readers.places().len(), usize::from(MOST_SLOTS));
        assert_eq!(read.gate().map(Key::in_redis), Some(write.in_redis()));
        assert_eq!(readers.gate().map(Key::in_redis), Some("lock:{cfg}#0"));
        let plain = |name| UncheckedKey::new("lock:", name).key;
        assert!(write.admits(&write) && !write.admits(&plain("{cfg}#0")));
        assert!(read.admits(&read.slots()[0]) && !read.admits(&plain("{cfg}#1")));
        let of_slots = UncheckedKey::of_slots("lock:", "cfg", 2).key;
        assert!(!read.admits(&of_slots.slots()[0]) && of_slots.admits(&read.slots()[0]));
        assert_eq!(read.slots()[1].other_side(), ["{cfg}#0"]);
        assert_eq!(write.other_side().len(), usize::from(MOST_SLOTS));
    }

    #[test]
    fn a_counter_is_where_its_lock_is_or_there_is_none() {
        for (prefix, name, expected) in [
            ("lock:", "orders:42", Some("lock:fence:{lock:orders:42}")),
            ("lock:", "{orders}:42", Some("lock:fence:lock:{orders}:42")),
            ("lock:", "a{b", Some("lock:fence:{lock:a{b}")),
            ("", "a", Some("fence:{a}")),
            ("{shop}:", "{a}{b}", Some("{shop}:fence:{shop}:{a}{b}")),
            ("", "{a}}", Some("fence:{a}}")),
            ("lock:", "a}b", None),
            ("lock:", "{}{x}", None),
            ("", "}", None),
            ("a{b", "x", None),
        ] {
            assert_eq!(
                counter(prefix, name).as_deref(),
                expected,
                "{prefix} and {name}"
            );
        }
    }

    fn counter(prefix: &str, name: &str) -> Option<String> {
        match Key::new(prefix, name).unwrap().counter() {
            Ok(counter) => Some(counter),
            Err(Error::NoFence { key, .. }) if key == name => None,
            Err(error) => panic!("{error:?}"),
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

        #[test]
        fn any_name_is_kept_exactly_or_refused(prefix in any::<String>(), name in any::<String>(), times in prop_oneof![0..5_usize, 0..2000_usize]) {
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
