//! All locks that are in Redis, one after another.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::owner::Owner;
use crate::base::owner::holder::{Holder, KEPT};
use crate::session::Session;
use crate::store::{Failure, Looks as _, Node, Seen, ServerConnection};
use crate::waiting::core::Core;

/// The most keys that Redis walks past in one command: this takes less than a millisecond.
const KEYS_A_STEP: u32 = 500;

/// How many keys are looked at in one round trip.
const LOOKS_AT_ONCE: usize = 100;

/// A key in Redis that is a lock or in the way of one, as found by [`Survey`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SurveyedLock {
    /// The lock's key, without the prefix. Bytes that are not UTF-8 are replaced by `U+FFFD`.
    pub key: String,
    /// The whole key in Redis, byte by byte.
    pub redis_key: Vec<u8>,
    /// What it is.
    pub found: Found,
    /// The value, and the time left. `None` if no lock of this crate can have this key or value.
    pub holder: Option<Holder>,
}

/// What a [`SurveyedLock`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Found {
    /// A thread holds the lock: [`Holder::owner`] says which.
    Held,
    /// Nobody holds the lock, but it [stays taken](crate::Lock::keep_at_least) for a while.
    Kept,
    /// Another program has written the value. If it also compares before it deletes, the two
    /// exclude each other.
    Foreign,
    /// The key never expires, so it cannot be a lock of this crate:
    /// [`Error::NotALock`](crate::Error::NotALock).
    NeverExpires,
    /// The value is not a string, or the key is not UTF-8: no lock of this crate can have it.
    NotALock,
}

impl Found {
    fn of(holder: &Holder) -> Found {
        if holder.remaining.is_none() {
            return Found::NeverExpires;
        }
        let kept_by = holder.raw.strip_prefix(KEPT);
        match (holder.owner(), kept_by.and_then(Owner::parse)) {
            (Some(_), _) => Found::Held,
            (None, Some(_)) => Found::Kept,
            (None, None) => Found::Foreign,
        }
    }
}

/// One line for a log.
impl fmt::Display for SurveyedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match (self.found, &self.holder) {
            (Found::Held | Found::Kept, Some(holder)) => write!(f, "lock {key:?}: {holder}"),
            (Found::Foreign, Some(holder)) => {
                write!(f, "lock {key:?} of another program: {holder}")
            }
            (_, Some(holder)) => write!(f, "{key:?}, which is not a lock: {holder}"),
            (_, None) => write!(f, "{key:?}, which is not a lock"),
        }
    }
}

/// Iterates over the locks that are in Redis: see
/// [`LockManager::survey`](crate::LockManager::survey).
#[must_use = "a survey sends nothing until it is iterated"]
pub struct Survey {
    session: Arc<Session>,
    deadline: Moment,
    /// The servers that have not been walked yet. `None` before the first step.
    nodes: Option<Vec<Arc<Node>>>,
    walk: Option<Walk>,
    /// What has been found but not yet returned.
    found: VecDeque<SurveyedLock>,
}

/// The walk through one server's keys.
struct Walk {
    node: Arc<Node>,
    connection: ServerConnection,
    cursor: String,
    count: u32,
}

impl Survey {
    pub(crate) fn new(session: &Arc<Session>, limit: Duration) -> Survey {
        Survey {
            session: Arc::clone(session),
            deadline: Moment::now().after(limit),
            nodes: None,
            walk: None,
            found: VecDeque::new(),
        }
    }

    /// Takes one step, which may find something, or nothing, or be the last.
    fn advance(&mut self) -> Result<(), Failure> {
        let core = &self.session.core;
        let Some(nodes) = &mut self.nodes else {
            let prefix = &core.settings.prefix;
            let all = core.store.all_in_memory(prefix)?.into_iter();
            let found =
                all.filter_map(|(key, holder)| surveyed(prefix, key.into_bytes(), Some(holder)));
            self.found.extend(found);
            self.nodes = Some(core.store.masters(self.deadline)?);
            return Ok(());
        };
        if let Some(walk) = &mut self.walk {
            let is_over = walk.step(core, self.deadline, &mut self.found)?;
            if is_over {
                self.walk = None;
            }
        } else if let Some(node) = nodes.pop() {
            let mut connection = core.store.connect_to(&node, self.deadline)?;
            connection.expect_master()?;
            self.walk = Some(Walk {
                node,
                connection,
                cursor: "0".to_owned(),
                count: KEYS_A_STEP,
            });
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.walk.is_none() && self.nodes.as_ref().is_some_and(Vec::is_empty)
    }
}

impl Walk {
    /// Walks on, and looks at the keys that it finds. True after the last step.
    fn step(
        &mut self,
        core: &Core,
        deadline: Moment,
        found: &mut VecDeque<SurveyedLock>,
    ) -> Result<bool, Failure> {
        let prefix = &core.settings.prefix;
        let step = loop {
            let (cursor, count) = (&self.cursor, self.count);
            let step = self.connection.scan(cursor, prefix, count, deadline);
            let is_unanswered = matches!(step, Err(Failure::Unanswered { .. }));
            if !is_unanswered || count == 1 {
                break step?;
            }
            // Perhaps the reply was too long. The cursor is as good as before.
            self.count = (count / 50).max(1);
            self.connection = core.store.connect_to(&self.node, deadline)?;
        };
        self.count = KEYS_A_STEP.min(2 * self.count);
        let mut keys = step.keys;
        keys.retain(|key| !is_counter(prefix, key));
        for some in keys.chunks(LOOKS_AT_ONCE) {
            let looks = self.connection.look_at_all(some, deadline)?;
            for (key, seen) in some.iter().zip(looks) {
                let holder = match seen {
                    Seen::Somebody(holder) => str::from_utf8(key).is_ok().then_some(holder),
                    Seen::NotAString => None,
                    Seen::Nothing => continue, // It has gone in the meantime.
                };
                found.extend(surveyed(prefix, key.clone(), holder));
            }
        }
        match step.next {
            Some(cursor) => {
                self.cursor = cursor;
                Ok(false)
            }
            None => Ok(true),
        }
    }
}

/// True for the counter of a fenced lock: the prefix is followed by `fence:` and braces.
fn is_counter(prefix: &str, redis_key: &[u8]) -> bool {
    let rest = redis_key.strip_prefix(prefix.as_bytes());
    let counted = rest.and_then(|rest| rest.strip_prefix(b"fence:"));
    counted.is_some_and(|counted| counted.contains(&b'{') && counted.contains(&b'}'))
}

fn surveyed(prefix: &str, redis_key: Vec<u8>, holder: Option<Holder>) -> Option<SurveyedLock> {
    let key = redis_key.strip_prefix(prefix.as_bytes())?;
    let key = String::from_utf8_lossy(key).into_owned();
    let found = holder.as_ref().map_or(Found::NotALock, Found::of);
    Some(SurveyedLock {
        key,
        redis_key,
        found,
        holder,
    })
}

impl Iterator for Survey {
    type Item = Result<SurveyedLock, Error>;

    fn next(&mut self) -> Option<Result<SurveyedLock, Error>> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return Some(Ok(found));
            }
            if self.is_done() {
                return None;
            }
            let own = self.session.core.own_process(Moment::now());
            let advanced = own.and_then(|()| {
                self.advance().map_err(|failure| {
                    let store = &self.session.core.store;
                    store.error(None, "listing the locks", failure)
                })
            });
            if let Err(error) = advanced {
                (self.nodes, self.walk) = (Some(Vec::new()), None);
                return Some(Err(error));
            }
        }
    }
}

impl fmt::Debug for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Survey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use relatch_rig::{FakeServer, Reply as Say};

    use super::*;
    use crate::base::options::Settings;
    use crate::store::Address;

    fn found(raw: &str, remaining: Option<u64>) -> Found {
        let remaining = remaining.map(Duration::from_secs);
        Found::of(&Holder::new(raw.as_bytes(), remaining))
    }

    #[test]
    fn a_value_says_whose_it_is() {
        let token = format!("host-1-2-{}", "a".repeat(32));
        assert_eq!(found(&token, Some(1)), Found::Held);
        assert_eq!(found(&format!("kept:{token}"), Some(1)), Found::Kept);
        assert_eq!(found("kept:x", Some(1)), Found::Foreign);
        assert_eq!(found("", Some(1)), Found::Foreign);
        assert_eq!(found(&token, None), Found::NeverExpires);
    }

    /// The survey of a server with these keys, each of which holds its own beginning.
    fn survey(keys: Vec<Vec<u8>>) -> Vec<SurveyedLock> {
        let bulk =
            |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let server = FakeServer::start(move |command| {
            let number = |at: usize| command[at].parse::<usize>().unwrap();
            Say::Bytes(match command.first().map(String::as_str) {
                None => Vec::new(),
                Some("SCAN") => {
                    let (from, count) = (number(1), number(5));
                    let some: Vec<_> = keys.iter().skip(from).take(count).collect();
                    let next = if from + count < keys.len() {
                        from + count
                    } else {
                        0
                    };
                    let mut step = b"*2\r\n".to_vec();
                    step.extend(bulk(next.to_string().as_bytes()));
                    step.extend(format!("*{}\r\n", some.len()).into_bytes());
                    step.extend(some.into_iter().flat_map(|key| bulk(key)));
                    step
                }
                Some("GETRANGE") => bulk(&command[1].as_bytes()[..6]),
                Some("PTTL") => b":1000\r\n".to_vec(),
                Some(_) => b"+OK\r\n".to_vec(),
            })
        });
        let url = format!("redis://{}", server.address());
        let target = Address::parse(&url).unwrap().with_tls(None).unwrap();
        let settings = Settings {
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(10),
            ..Settings::default()
        };
        let session = Arc::new(Session::new(target, settings, None).unwrap());
        let found: Result<Vec<_>, _> = Survey::new(&session, Duration::from_secs(60)).collect();
        found.unwrap()
    }

    /// A step has fewer such keys, so that its reply is not too long: one, if nothing else helps.
    #[test]
    fn keys_are_found_whatever_their_length() {
        let keys = |count: usize, length: usize| {
            let key = |n: usize| format!("lock:{n}:{}", "x".repeat(length)).into_bytes();
            (0..count).map(key).collect::<Vec<_>>()
        };
        let all = [keys(600, 10), keys(2, (2 << 20) + 1000), keys(600, 10)].concat();
        let found = survey(all.clone()).into_iter().map(|it| it.redis_key);
        assert!(found.eq(all), "some are missing");
    }

    /// Such a key is not a lock of this crate, and does not shift another key's holder.
    #[test]
    fn a_key_that_is_not_utf_8_is_found_between_others() {
        let keys = [&b"lock:1"[..], b"lock:\xff", b"lock:2"].map(<[u8]>::to_vec);
        let found = survey(keys.to_vec());
        let found = found.iter().map(|it| {
            let holder = it.holder.as_ref().map(|it| &*it.raw);
            (&*it.key, it.found, holder)
        });
        assert!(found.eq([
            ("1", Found::Foreign, Some("lock:1")),
            ("\u{fffd}", Found::NotALock, None),
            ("2", Found::Foreign, Some("lock:2")),
        ]));
    }

    #[test]
    fn counters_are_no_locks() {
        for (key, counter) in [
            ("lock:fence:{lock:a}", true),
            ("lock:fence:lock:{a}b", true),
            ("lock:fence:a", false),
            ("lock:a{b}", false),
        ] {
            assert_eq!(is_counter("lock:", key.as_bytes()), counter, "{key}");
        }
    }
}
