//! A run inside of a run: what the outer one tells its job, and how the inner one uses that.
//!
//! The inner run of a lock that the outer one has is a run as any other, but for the lock: it takes
//! none, renews none, loses none and gives none back.

use std::env;

use relatch::{Holder, LockManager};
use serde_json::{Value, json};

use crate::args::Common;
use crate::connect;
use crate::exit::{Failure, code};
use crate::run::process::own_session;
use crate::whose;

/// The locks of the runs around this process.
const VARIABLE: &str = "RELATCH_KEYS";

/// The locks of the runs around this process, the outermost first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outer {
    /// The Redis of this process.
    place: String,
    locks: Vec<Has>,
}

/// A lock of a run around this process.
#[derive(Clone, Debug)]
pub(crate) struct Has {
    /// Its Redis, without the login.
    pub(crate) place: String,
    /// With the prefix.
    pub(crate) redis_key: String,
    pub(crate) token: String,
    /// With `--fence`.
    fence: Option<u64>,
    /// The run keeps the lock for those in this session.
    session: Option<i32>,
}

impl Has {
    fn read(value: &Value) -> Option<Has> {
        let session = value["session"].as_i64();
        Some(Has {
            place: value["redis"].as_str()?.to_owned(),
            redis_key: value["key"].as_str()?.to_owned(),
            token: value["token"].as_str()?.to_owned(),
            fence: value["fence"].as_u64(),
            session: session.and_then(|number| i32::try_from(number).ok()),
        })
    }

    fn object(&self) -> Value {
        json!({
            "redis": self.place,
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
        // If the place cannot be read, nothing connects.
        Outer::read(connect::place(common).unwrap_or_default(), &text)
    }

    fn read(place: String, text: &str) -> Outer {
        let locks = match serde_json::from_str(text) {
            Ok(Value::Array(locks)) => locks.iter().filter_map(Has::read).collect(),
            _ => Vec::new(), // Nothing that a run has written.
        };
        Outer { place, locks }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Has> {
        self.locks.iter()
    }

    /// Whether that lock is known to be in this process's Redis. (One Redis may have several
    /// names.)
    pub(crate) fn is_here(&self, has: &Has) -> bool {
        has.place == self.place
    }

    /// What a run around this process has got for a key, preferably in this process's Redis.
    pub(crate) fn get(&self, prefix: &str, key: &str) -> Option<&Has> {
        let redis_key = format!("{prefix}{key}");
        let locks = self.all().filter(|has| has.redis_key == redis_key);
        locks.max_by_key(|has| self.is_here(has))
    }

    pub(crate) fn token(&self, prefix: &str, key: &str) -> Option<&str> {
        self.get(prefix, key).map(|has| &*has.token)
    }

    pub(crate) fn fence(&self, prefix: &str, key: &str) -> Option<u64> {
        self.get(prefix, key)?.fence
    }

    /// Whether a run around this process has the lock, and keeps it as long as this process lives.
    /// It would not do so for a process that has left its session: it could give the lock back at
    /// any time, and the command would run on beside the next holder.
    ///
    /// An error if that run has lost the lock: the job around this process is about to end, and
    /// takes nothing anew.
    pub(crate) fn has(
        &self,
        locks: &LockManager,
        prefix: &str,
        key: &str,
    ) -> Result<bool, Failure> {
        let has = self.get(prefix, key);
        let Some(has) = has.filter(|has| has.session == own_session()) else {
            return Ok(false);
        };
        let holder = locks.named(key).holder()?;
        let is_ours = |holder: &Holder| holder.raw == has.token;
        if holder.as_ref().is_some_and(is_ours) {
            return Ok(true);
        }
        if !self.is_here(has) {
            return Ok(false);
        }
        let by = holder.map_or_else(|| "nobody".to_owned(), |holder| whose::shown(&holder));
        let message = format!("the run around this one has lost lock {key:?}: {by} has it");
        Err(Failure::new(code::LOST, message))
    }

    /// The variable for a job that has these locks, too: key, token, and fence.
    pub(crate) fn with<'a>(
        &self,
        prefix: &str,
        inner: impl Iterator<Item = (&'a str, &'a str, Option<u64>)>,
    ) -> (&'static str, String) {
        let taken: Vec<_> = inner
            .map(|(key, token, fence)| Has {
                place: self.place.clone(),
                redis_key: format!("{prefix}{key}"),
                token: token.to_owned(),
                fence,
                session: own_session(),
            })
            .collect();
        // In another session, a run takes a lock anew that one around it had.
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

    #[test]
    fn an_inner_run_reads_what_the_outer_one_wrote() {
        let odd = "a b\n\"";
        let (_, text) = read("here", "").with("p:", [(odd, "one", Some(7))].into_iter());
        let outer = read("here", &text);
        assert_eq!(outer.token("p:", odd), Some("one"));
        assert_eq!(outer.token("", odd), None);
        assert_eq!(outer.fence("p:", odd), Some(7));
        assert!(outer.locks.iter().all(|has| has.session == own_session()));
        let (_, both) = outer.with("p:", [("c", "two", None)].into_iter());
        assert_eq!(read("here", &both).locks.len(), 2);
        let (_, anew) = outer.with("p:", [(odd, "two", None)].into_iter());
        let anew = read("here", &anew);
        assert_eq!((anew.locks.len(), anew.token("p:", odd)), (1, Some("two")));
        for nonsense in ["nightly", "{}", "[{}, 1]"] {
            assert!(read("here", nonsense).locks.is_empty(), "{nonsense}");
        }
    }

    #[test]
    fn the_same_key_in_another_redis_is_another_lock() {
        let (_, text) = read("here", "").with("p:", [("a", "one", None)].into_iter());
        let there = read("there", &text);
        let (_, both) = there.with("p:", [("a", "two", None)].into_iter());
        assert_eq!(read("here", &both).token("p:", "a"), Some("one"));
        assert_eq!(read("there", &both).token("p:", "a"), Some("two"));
    }
}
