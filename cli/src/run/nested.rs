//! A run inside of a run: what the outer one tells its job, and how the inner one uses that.
//!
//! The inner run of a lock that the outer one has is a run as any other, but for the lock: it takes
//! none, renews none, loses none and gives none back.

use std::collections::BTreeMap;
use std::env;

use relatch::LockManager;
use serde_json::{Map, Value, json};

use crate::run::process::own_session;

/// The locks of the runs around this process: keys in Redis (so with the prefix), tokens, fences,
/// sessions.
const VARIABLE: &str = "RELATCH_KEYS";

/// The locks of the runs around this process, by key in Redis.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outer(BTreeMap<String, Has>);

#[derive(Clone, Debug)]
struct Has {
    token: String,
    /// With `--fence`.
    fence: Option<u64>,
    /// The run keeps the lock for those in this session.
    session: Option<i32>,
}

impl Outer {
    pub(crate) fn from_env() -> Outer {
        Outer::read(&env::var(VARIABLE).unwrap_or_default())
    }

    fn read(text: &str) -> Outer {
        let Ok(Value::Object(tokens)) = serde_json::from_str(text) else {
            return Outer::default(); // Nothing that a run has written.
        };
        let has = |(key, value): (String, Value)| {
            let token = value["token"].as_str()?.to_owned();
            let fence = value["fence"].as_u64();
            let session = value["session"].as_i64();
            let session = session.and_then(|number| i32::try_from(number).ok());
            let has = Has {
                token,
                fence,
                session,
            };
            Some((key, has))
        };
        Outer(tokens.into_iter().filter_map(has).collect())
    }

    /// The token that a run around this process has got for a key.
    pub(crate) fn token(&self, prefix: &str, key: &str) -> Option<&str> {
        self.0.get(&format!("{prefix}{key}")).map(|has| &*has.token)
    }

    /// The fence of that lock.
    pub(crate) fn fence(&self, prefix: &str, key: &str) -> Option<u64> {
        self.0.get(&format!("{prefix}{key}"))?.fence
    }

    /// Whether a run around this process still has the lock, and keeps it as long as this process
    /// lives. It would not do so for a process that has left its session: it could give the lock
    /// back at any time, and the command would run on beside the next holder.
    pub(crate) fn still_has(
        &self,
        locks: &LockManager,
        prefix: &str,
        key: &str,
    ) -> Result<bool, relatch::Error> {
        let has = self.0.get(&format!("{prefix}{key}"));
        let Some(has) = has.filter(|has| has.session == own_session()) else {
            return Ok(false);
        };
        let holder = locks.named(key).holder()?;
        Ok(holder.is_some_and(|holder| holder.raw == has.token))
    }

    /// The variable for a job that has these locks, too: key, token, and fence.
    pub(crate) fn with<'a>(
        &self,
        prefix: &str,
        inner: impl Iterator<Item = (&'a str, &'a str, Option<u64>)>,
    ) -> (&'static str, String) {
        let mut all = self.0.clone();
        all.extend(inner.map(|(key, token, fence)| {
            let has = Has {
                token: token.to_owned(),
                fence,
                session: own_session(),
            };
            (format!("{prefix}{key}"), has)
        }));
        let all: Map<_, _> = all
            .into_iter()
            .map(|(key, has)| {
                let Has {
                    token,
                    fence,
                    session,
                } = has;
                let value = json!({ "token": token, "fence": fence, "session": session });
                (key, value)
            })
            .collect();
        (VARIABLE, Value::from(all).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_run_reads_what_the_outer_one_wrote() {
        let (_, text) = Outer::default().with("p:", [("a b\n\"", "one", Some(7))].into_iter());
        let outer = Outer::read(&text);
        assert_eq!(outer.token("p:", "a b\n\""), Some("one"));
        assert_eq!(outer.token("", "a b\n\""), None);
        assert_eq!(outer.fence("p:", "a b\n\""), Some(7));
        assert!(outer.0.values().all(|has| has.session == own_session()));
        let (_, both) = outer.with("p:", [("c", "two", None)].into_iter());
        assert_eq!(Outer::read(&both).0.len(), 2);
        assert!(Outer::read("nightly").0.is_empty());
    }
}
