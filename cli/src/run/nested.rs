//! A run inside a run: what the outer run tells its job, and how the inner run uses that.
//!
//! If the outer run already has the lock, the inner run is like any other, except that it does not
//! take, renew, lose or release a lock.

use std::env;

use relatch::{Holder, LockManager};
use serde_json::{Value, json};

use crate::args::Common;
use crate::connect;
use crate::exit::{Failure, code};
use crate::run::mode::{Mode, Part};
use crate::run::process::own_session;
use crate::whose;

/// The variable that lists the locks of the outer runs.
const VARIABLE: &str = "RELATCH_KEYS";

/// The locks of the outer runs of this process, the outermost first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outer {
    /// The Redis of this process.
    place: String,
    locks: Vec<Has>,
}

/// A lock of an outer run.
#[derive(Clone, Debug)]
pub(crate) struct Has {
    /// The URL of its Redis, without the login.
    pub(crate) place: String,
    /// The prefix and the name from that run's command line.
    prefix: String,
    name: String,
    /// Which part of the lock the run has.
    pub(crate) part: Part,
    /// The key of that part, with the prefix: the name, or the key of a slot.
    pub(crate) redis_key: String,
    pub(crate) token: String,
    /// The fence, with `--fence`.
    pub(crate) fence: Option<u64>,
    /// The run keeps the lock for processes in this session.
    session: Option<i32>,
}

/// A lock that this process's own run has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner<'a> {
    /// What the command line calls it.
    pub(crate) name: &'a str,
    pub(crate) part: Part,
    /// The name, or the key of a slot or a gate.
    pub(crate) key: &'a str,
    pub(crate) token: &'a str,
    pub(crate) fence: Option<u64>,
}

impl Has {
    /// Its key, without this prefix if the key begins with it.
    pub(crate) fn key(&self, prefix: &str) -> &str {
        let key = self.redis_key.strip_prefix(prefix);
        key.unwrap_or(&self.redis_key)
    }

    /// (With a different prefix, the slots of the same name may have different keys.)
    fn is_named(&self, prefix: &str, name: &str) -> bool {
        (&*self.prefix, &*self.name) == (prefix, name)
    }

    fn read(value: &Value) -> Option<Has> {
        let session = value["session"].as_i64();
        Some(Has {
            place: value["redis"].as_str()?.to_owned(),
            prefix: value["prefix"].as_str()?.to_owned(),
            name: value["name"].as_str()?.to_owned(),
            part: Part::read(&value["part"]),
            redis_key: value["key"].as_str()?.to_owned(),
            token: value["token"].as_str()?.to_owned(),
            fence: value["fence"].as_u64(),
            session: session.and_then(|number| i32::try_from(number).ok()),
        })
    }

    fn object(&self) -> Value {
        json!({
            "redis": self.place,
            "prefix": self.prefix,
            "name": self.name,
            "part": self.part.value(),
            "key": self.redis_key,
            "token": self.token,
            "fence": self.fence,
            "session": self.session,
        })
    }
}

impl Outer {
    pub(crate) fn from_env(common: &Common) -> Outer {
        let text = match connect::set("RELATCH_HELD") {
            Some(_) => env::var(VARIABLE).unwrap_or_default(),
            None => String::new(),
        };
        // If the URL cannot be read, nothing connects.
        Outer::read(connect::place(common).unwrap_or_default(), &text)
    }

    fn read(place: String, text: &str) -> Outer {
        let locks = match serde_json::from_str(text) {
            Ok(Value::Array(locks)) => locks.iter().filter_map(Has::read).collect(),
            _ => Vec::new(), // No run wrote this.
        };
        Outer { place, locks }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Has> {
        self.locks.iter()
    }

    /// Whether that lock is known to be in this process's Redis. (A Redis may have several
    /// addresses.)
    pub(crate) fn is_here(&self, has: &Has) -> bool {
        has.place == self.place
    }

    /// What an outer run holds for a key, preferably in this process's Redis.
    pub(crate) fn get(&self, prefix: &str, key: &str, mode: Mode) -> Option<&Has> {
        let redis_key = format!("{prefix}{key}");
        self.find(|has| match mode {
            Mode::Alone => has.redis_key == redis_key,
            mode => has.is_named(prefix, key) && has.part.is_enough(mode),
        })
    }

    /// Everything that the outer runs hold under this name: the plain lock, slots, and the locks of
    /// readers and writers.
    pub(crate) fn called(&self, prefix: &str, name: &str) -> Vec<&Has> {
        let whole = self.get(prefix, name, Mode::Alone);
        let parts = self.all().filter(|has| has.part != Part::Whole);
        let parts = parts.filter(|has| has.is_named(prefix, name));
        whole.into_iter().chain(parts).collect()
    }

    fn find(&self, fits: impl Fn(&Has) -> bool) -> Option<&Has> {
        let locks = self.all().filter(|has| fits(has));
        locks.max_by_key(|has| self.is_here(has))
    }

    /// Whether an outer run has the lock, and keeps it as long as this process lives. It would not
    /// keep it for a process that has left the session: it could release the lock at any time, and
    /// the command would continue alongside the next holder.
    ///
    /// Fails if the outer run has lost the lock: its job is about to end, and should not take the
    /// lock again. Also fails if this process would wait for the outer run itself.
    pub(crate) fn has(
        &self,
        locks: &LockManager,
        prefix: &str,
        key: &str,
        mode: Mode,
    ) -> Result<bool, Failure> {
        let has = self.get(prefix, key, mode);
        let Some(has) = has.filter(|has| has.session == own_session()) else {
            return self.lets_in(prefix, key, mode).map(|()| false);
        };
        let key = has.key(prefix);
        let holder = locks.named(key).holder()?;
        let is_ours = |holder: &Holder| holder.raw == has.token;
        if holder.as_ref().is_some_and(is_ours) {
            return Ok(true);
        }
        if !self.is_here(has) {
            return Ok(false);
        }
        let by = holder.map_or_else(|| "nobody".to_owned(), |holder| whose::shown(&holder));
        let message = format!("the outer run has lost lock {key:?}: {by} holds it");
        Err(Failure::new(code::LOST, message))
    }

    /// Fails if an outer run is a reader or has a slot, and this run is to be a writer: it would
    /// wait forever. (In a different session, this run may outlive the outer one.)
    fn lets_in(&self, prefix: &str, key: &str, mode: Mode) -> Result<(), Failure> {
        let keeps_out = |has: &Has| {
            let is_of_lock = has.is_named(prefix, key) && has.part.keeps_writers_out();
            is_of_lock && self.is_here(has) && has.session == own_session()
        };
        if mode != Mode::Exclusive || self.find(keeps_out).is_none() {
            return Ok(());
        }
        let message = format!(
            "an outer run holds lock {key:?} with --shared or --slots: {mode} would wait \
             for it forever"
        );
        Err(Failure::new(code::USAGE, message))
    }

    /// The variable for a job that also has these locks.
    pub(crate) fn with<'a>(
        &self,
        prefix: &str,
        inner: impl Iterator<Item = Inner<'a>>,
    ) -> (&'static str, String) {
        let taken: Vec<_> = inner
            .map(|inner| Has {
                place: self.place.clone(),
                prefix: prefix.to_owned(),
                name: inner.name.to_owned(),
                part: inner.part,
                redis_key: format!("{prefix}{}", inner.key),
                token: inner.token.to_owned(),
                fence: inner.fence,
                session: own_session(),
            })
            .collect();
        // In a different session, a run takes a lock itself, even if an outer run had it.
        let is_old = |has: &&Has| {
            let mut taken = taken.iter();
            !taken.any(|new| (&new.place, &new.redis_key) == (&has.place, &has.redis_key))
        };
        let all = self.locks.iter().filter(is_old).chain(&taken);
        let all: Vec<_> = all.map(Has::object).collect();
        (VARIABLE, Value::from(all).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(place: &str, text: &str) -> Outer {
        Outer::read(place.to_owned(), text)
    }

    fn inner<'a>(key: &'a str, token: &'a str, fence: Option<u64>) -> Inner<'a> {
        let (name, part) = (key, Part::Whole);
        Inner {
            name,
            part,
            key,
            token,
            fence,
        }
    }

    fn with(outer: &Outer, inner: Inner<'_>) -> String {
        outer.with("p:", [inner].into_iter()).1
    }

    fn token<'a>(outer: &'a Outer, prefix: &str, key: &str, mode: Mode) -> Option<&'a str> {
        Some(&outer.get(prefix, key, mode)?.token)
    }

    #[test]
    fn an_inner_run_reads_what_the_outer_one_wrote() {
        let odd = "a b\n\"";
        let text = with(&read("here", ""), inner(odd, "one", Some(7)));
        let outer = read("here", &text);
        assert_eq!(token(&outer, "p:", odd, Mode::Alone), Some("one"));
        assert_eq!(token(&outer, "", odd, Mode::Alone), None);
        assert_eq!(outer.get("p:", odd, Mode::Alone).unwrap().fence, Some(7));
        assert!(outer.locks.iter().all(|has| has.session == own_session()));
        let both = with(&outer, inner("c", "two", None));
        assert_eq!(read("here", &both).locks.len(), 2);
        let anew = with(&outer, inner(odd, "two", None));
        let anew = read("here", &anew);
        assert_eq!(anew.locks.len(), 1);
        assert_eq!(token(&anew, "p:", odd, Mode::Alone), Some("two"));
        for nonsense in ["nightly", "{}", "[{}, 1]"] {
            assert!(read("here", nonsense).locks.is_empty(), "{nonsense}");
        }
    }

    #[test]
    fn the_same_key_in_another_redis_is_another_lock() {
        let there = read("there", &with(&read("here", ""), inner("a", "one", None)));
        let both = with(&there, inner("a", "two", None));
        for (place, expected) in [("here", "one"), ("there", "two")] {
            let outer = read(place, &both);
            assert_eq!(token(&outer, "p:", "a", Mode::Alone), Some(expected));
        }
    }

    #[test]
    fn a_slot_has_the_name_of_its_set_and_a_key_of_its_own() {
        let slot = Inner {
            name: "a",
            part: Part::Slot(2),
            ..inner("{a}#2", "one", None)
        };
        let outer = read("here", &with(&read("here", ""), slot));
        assert_eq!(token(&outer, "p:", "a", Mode::Slots(2)), Some("one"));
        assert_eq!(token(&outer, "p:", "{a}#2", Mode::Alone), Some("one"));
        assert_eq!(token(&outer, "p:", "a", Mode::Alone), None);
        assert_eq!(token(&outer, "p:", "a", Mode::Slots(1)), None);
        assert_eq!(token(&outer, "", "p:a", Mode::Slots(2)), None);
        let called = |name| outer.called("p:", name).len();
        assert_eq!(["a", "{a}#2", "b"].map(called), [1, 1, 0]);
        let lets_in = |mode| outer.lets_in("p:", "a", mode).is_ok();
        let modes = [Mode::Alone, Mode::Slots(1), Mode::Shared, Mode::Exclusive];
        assert_eq!(modes.map(lets_in), [true, true, true, false]);
    }
}
