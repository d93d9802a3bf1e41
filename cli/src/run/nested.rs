//! A run inside of a run: what the outer one tells its job, and how the inner one uses that.

use std::collections::BTreeMap;
use std::env;

use relatch::LockManager;
use serde_json::{Map, Value};

/// The locks of the runs around this process: keys in Redis (so with the prefix) and tokens.
const VARIABLE: &str = "RELATCH_KEYS";

/// The tokens of the runs around this process, by key in Redis.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outer(BTreeMap<String, String>);

impl Outer {
    pub(crate) fn from_env() -> Outer {
        Outer::read(&env::var(VARIABLE).unwrap_or_default())
    }

    fn read(text: &str) -> Outer {
        let Ok(Value::Object(tokens)) = serde_json::from_str(text) else {
            return Outer::default(); // Nothing that a run has written.
        };
        let token = |(key, token): (String, Value)| Some((key, token.as_str()?.to_owned()));
        Outer(tokens.into_iter().filter_map(token).collect())
    }

    /// The token that a run around this process has got for a key.
    pub(crate) fn token(&self, prefix: &str, key: &str) -> Option<&str> {
        self.0.get(&format!("{prefix}{key}")).map(String::as_str)
    }

    /// Whether a run around this process still has the lock.
    pub(crate) fn still_has(
        &self,
        locks: &LockManager,
        prefix: &str,
        key: &str,
    ) -> Result<bool, relatch::Error> {
        let Some(token) = self.token(prefix, key) else {
            return Ok(false);
        };
        let holder = locks.named(key).holder()?;
        Ok(holder.is_some_and(|holder| holder.raw == token))
    }

    /// The variable for a job that has these locks, too.
    pub(crate) fn with<'a>(
        &self,
        prefix: &str,
        tokens: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> (&'static str, String) {
        let outer = self
            .0
            .iter()
            .map(|(key, token)| (key.clone(), token.clone()));
        let inner = tokens.map(|(key, token)| (format!("{prefix}{key}"), token.to_owned()));
        let all: Map<_, _> = outer
            .chain(inner)
            .map(|(key, token)| (key, Value::from(token)))
            .collect();
        (VARIABLE, Value::from(all).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_run_reads_what_the_outer_one_wrote() {
        let (_, text) = Outer::default().with("p:", [("a b\n\"", "one")].into_iter());
        let outer = Outer::read(&text);
        assert_eq!(outer.token("p:", "a b\n\""), Some("one"));
        assert_eq!(outer.token("", "a b\n\""), None);
        let (_, both) = outer.with("p:", [("c", "two")].into_iter());
        assert_eq!(Outer::read(&both).0.len(), 2);
        assert!(Outer::read("nightly").0.is_empty());
    }
}
