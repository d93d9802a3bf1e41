//! A store in the memory of this process: the same commands with the same answers, and no server.
//!
//! It sends nothing, starts no thread and does not wait. A key has a lease, and expires by the
//! clock. The controls for tests delete keys, and make commands fail for a while.

mod keys;

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::owner::holder::{Holder, KEPT};
use crate::base::sync::Mutex;
use crate::client::{
    AdoptReply, ClaimReply, Claims, Commands, Compared, Extension, Failure, Holds, Looks, Seen,
    Tracking, Wanted,
};
use crate::store::memory::keys::{Keys, StoredKey};

/// Called with a key that has changed: a waiter may have asked about it.
type OnChange = OnceLock<Box<dyn Fn(&str) + Send + Sync>>;

#[derive(Default)]
pub(crate) struct MemoryStore {
    keys: Mutex<Keys>,
    on_change: OnChange,
}

impl MemoryStore {
    /// Registers `call`, which gets each key that is removed.
    pub(crate) fn on_change(&self, call: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(call)); // `Listeners::new` sets it once.
    }

    /// Runs a command, unless the store is away.
    fn run<T>(&self, command: impl FnOnce(&mut Keys) -> T) -> Result<T, Failure> {
        let mut keys = self.keys.lock();
        if keys.is_away() {
            return Err(Failure::not_sent(
                "the store in memory is away: `MemoryControls::go_away` was called",
            ));
        }
        Ok(command(&mut keys))
    }

    fn changed(&self, key: &str) {
        if let Some(call) = self.on_change.get() {
            call(key);
        }
    }

    fn compare(
        &self,
        key: &str,
        token: &str,
        change: impl FnOnce(&mut StoredKey),
    ) -> Result<Compared, Failure> {
        self.run(|keys| match keys.of_token(key, token) {
            Ok(entry) => {
                change(entry);
                Compared::Done
            }
            Err(compared) => compared,
        })
    }

    /// What the keys with this prefix hold, in the order of the keys.
    pub(super) fn all(&self, prefix: &str) -> Result<Vec<(String, Holder)>, Failure> {
        self.run(|keys| {
            let live = keys.by_name.iter().filter(|(_, entry)| entry.is_live());
            let ours = live.filter(|(key, _)| key.starts_with(prefix));
            let mut all: Vec<_> = ours
                .map(|(key, entry)| (key.clone(), entry.holder()))
                .collect();
            all.sort_by(|(one, _), (other, _)| one.cmp(other));
            all
        })
    }
}

impl Claims for &MemoryStore {
    fn claim(&mut self, wanted: Wanted<'_>, _: Moment) -> Result<ClaimReply, Failure> {
        self.run(|keys| keys.claim(wanted))?
    }

    fn claim_or_look(
        &mut self,
        wanted: Wanted<'_>,
        _: Option<u64>,
        deadline: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        Ok((self.claim(wanted, deadline)?, Tracking::Direct))
    }

    fn adopt(
        &mut self,
        old: &str,
        _: u64,
        wanted: Wanted<'_>,
        _: Moment,
    ) -> Result<AdoptReply, Failure> {
        self.run(|keys| match keys.of_token(wanted.key, old).map(|_| ()) {
            Ok(()) => AdoptReply::Adopted {
                fence: keys.take(wanted),
            },
            Err(Compared::Absent) => AdoptReply::Absent,
            Err(_) => AdoptReply::NotOurs,
        })
    }
}

impl Holds for &MemoryStore {
    fn remove(&mut self, keys: &[&str], token: &str, _: Moment) -> Result<Compared, Failure> {
        let mut answer = Compared::Absent;
        for key in keys {
            match self.compare(key, token, |entry| entry.expires = Moment::PAST)? {
                Compared::Absent => {}
                compared => answer = compared,
            }
            self.changed(key);
            if answer == Compared::Done {
                break;
            }
        }
        Ok(answer)
    }

    fn keep(&mut self, key: &str, token: &str, rest: u64, _: Moment) -> Result<Compared, Failure> {
        let kept = format!("{KEPT}{token}");
        if self.run(|keys| keys.of_token(key, &kept).is_ok())? {
            return Ok(Compared::Done); // It was executed before.
        }
        self.compare(key, token, |entry| {
            entry.value = kept;
            entry.expires = Moment::now().after(Duration::from_millis(rest));
        })
    }

    fn remove_and_claim(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        _: Moment,
    ) -> Result<(Result<Compared, Failure>, ClaimReply), Failure> {
        self.run(|keys| {
            let compared = keys.of_token(wanted.key, token).map(|_| Compared::Done);
            let compared = compared.unwrap_or_else(|compared| compared);
            let claim = match compared {
                Compared::NotOurs => ClaimReply::Busy(None),
                Compared::Done | Compared::Absent => ClaimReply::Taken {
                    number: keys.take(wanted),
                },
            };
            (Ok(compared), claim)
        })
    }

    fn extend(&mut self, extension: &Extension<'_>, _: Moment) -> Result<Compared, Failure> {
        self.compare(extension.key, extension.token, |entry| {
            // It never shortens the time that a key has.
            let end = Moment::now().after(Duration::from_millis(extension.lease));
            entry.expires = entry.expires.max(end);
        })
    }
}

impl Looks for &MemoryStore {
    fn look(&mut self, key: &str, counter: Option<&str>, _: Moment) -> Result<Seen, Failure> {
        self.run(|keys| match keys.live(key) {
            Some(entry) => {
                let fence = entry.fence.filter(|_| counter.is_some());
                Seen::Somebody(entry.holder().with_fence(fence))
            }
            None => Seen::Nothing,
        })
    }

    fn force(&mut self, key: &str, _: Moment) -> Result<Option<Holder>, Failure> {
        self.run(|_| ())?;
        Ok(self.delete(key))
    }

    fn force_if(&mut self, key: &str, value: &[u8], deadline: Moment) -> Result<Compared, Failure> {
        self.remove(&[key], &String::from_utf8_lossy(value), deadline)
    }
}

impl Commands for &MemoryStore {}

/// The controls for tests.
impl MemoryStore {
    /// Deletes a key, and returns who had it.
    pub(crate) fn delete(&self, key: &str) -> Option<Holder> {
        let entry = self
            .keys
            .lock()
            .by_name
            .remove(key)
            .filter(StoredKey::is_live)?;
        self.changed(key);
        Some(entry.holder())
    }

    /// Commands fail for `span` from now on, whatever was set before.
    pub(crate) fn go_away(&self, span: Duration) {
        self.keys.lock().away_until = Moment::now().after(span);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Goal;

    fn wanted<'a>(key: &'a str, token: &'a str) -> Wanted<'a> {
        Wanted {
            key,
            goal: Goal::Key,
            token,
            lease: 60_000,
            counter: None,
        }
    }

    /// The end of a key. [`Moment::PAST`] if it does not hold the token.
    fn end_of(store: &MemoryStore, key: &str, token: &str) -> Moment {
        store
            .keys
            .lock()
            .of_token(key, token)
            .map_or(Moment::PAST, |entry| entry.expires)
    }

    fn is_taken(store: &MemoryStore, key: &str, token: &str) -> bool {
        matches!(
            (&*store).claim(wanted(key, token), Moment::NEVER),
            Ok(ClaimReply::Taken { .. })
        )
    }

    const NEVER: Moment = Moment::NEVER;

    #[test]
    fn each_command_compares_the_token() {
        type Command = fn(&mut &MemoryStore, &str, &str) -> Result<Compared, Failure>;
        let commands: [Command; 5] = [
            |store, key, token| {
                store.extend(
                    &Extension {
                        key,
                        token,
                        lease: 600_000,
                    },
                    NEVER,
                )
            },
            |store, key, token| match store.adopt(token, 0, wanted(key, token), NEVER)? {
                AdoptReply::Adopted { .. } => Ok(Compared::Done),
                AdoptReply::Absent => Ok(Compared::Absent),
                AdoptReply::NotOurs => Ok(Compared::NotOurs),
            },
            |store, key, token| {
                let (removed, claim) = store.remove_and_claim(token, wanted(key, token), NEVER)?;
                let is_taken = matches!(claim, ClaimReply::Taken { .. });
                assert_eq!(
                    is_taken,
                    !matches!(removed, Ok(Compared::NotOurs)),
                    "{claim:?}"
                );
                if let Ok(Compared::Absent) = removed {
                    assert!(store.delete(key).is_some() && store.delete(key).is_none());
                }
                removed
            },
            |store, key, token| store.remove(&[key], token, NEVER),
            |store, key, token| store.keep(key, token, 1000, NEVER),
        ];
        for command in commands {
            let store = &MemoryStore::default();
            assert!(is_taken(store, "a", "one") && !is_taken(store, "a", "two"));
            for (key, token, compared) in [
                ("a", "two", Compared::NotOurs),
                ("b", "one", Compared::Absent),
                ("a", "one", Compared::Done),
            ] {
                assert_eq!(command(&mut &*store, key, token).unwrap(), compared);
            }
        }
    }

    #[test]
    fn an_expired_key_is_absent_and_leaves_nothing_behind() {
        let store = MemoryStore::default();
        let all = |store: &MemoryStore| store.all("").unwrap().len();
        let living: Vec<String> = (0..100).map(|n| format!("living {n}")).collect();
        assert!(living.iter().all(|key| is_taken(&store, key, "one")));
        for key in 0..1000 {
            let key = key.to_string();
            assert!(is_taken(&store, &key, "one") && all(&store) == 101);
            store.keys.lock().live(&key).unwrap().expires = Moment::PAST;
            assert_eq!(
                (&store).remove(&[&*key], "one", NEVER).unwrap(),
                Compared::Absent
            );
        }
        assert!(living.iter().all(|key| !is_taken(&store, key, "two")));
        assert_eq!(all(&store), 100, "a survey lists those that live");
        assert!(
            store.keys.lock().by_name.len() < 300,
            "expired keys pile up"
        );
    }

    #[test]
    fn a_key_is_renewed_and_never_shortened_and_its_removal_wakes_waiters() {
        let store = MemoryStore::default();
        let changes = std::sync::Arc::new(Mutex::new(Vec::new()));
        let changed = std::sync::Arc::clone(&changes);
        store.on_change(move |key| changed.lock().push(key.to_owned()));
        let fence = |key, token| {
            let counter = Some("counter");
            match (&store).claim(
                Wanted {
                    counter,
                    ..wanted(key, token)
                },
                NEVER,
            ) {
                Ok(ClaimReply::Taken { number }) => number,
                other => panic!("{other:?}"),
            }
        };
        let first = fence("a", "one");
        assert!(
            first > Some(0) && fence("b", "one") > first,
            "a fence never repeats"
        );
        let taken = end_of(&store, "a", "one");
        for (lease, is_later) in [(1000, false), (600_000, true)] {
            let extension = Extension {
                key: "a",
                token: "one",
                lease,
            };
            assert_eq!((&store).extend(&extension, NEVER).unwrap(), Compared::Done);
            assert_eq!(end_of(&store, "a", "one") > taken, is_later);
        }
        assert_eq!(
            (&store).remove(&["a"], "one", NEVER).unwrap(),
            Compared::Done
        );
        assert!(is_taken(&store, "a", "two"), "it has a lease of its own");
        assert!(end_of(&store, "a", "two") < Moment::now().after(Duration::from_secs(61)));
        assert!(store.delete("a").is_some());
        assert_eq!(*changes.lock(), ["a", "a"]);
        for (seconds, is_away) in [(0, false), (60, true), (0, false)] {
            store.go_away(Duration::from_secs(seconds));
            assert_eq!((&store).look("a", None, NEVER).is_err(), is_away);
        }
    }
}
