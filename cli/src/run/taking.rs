//! The thread that takes the locks, and gives them back: a hold belongs to the thread that took it.
//!
//! It may wait for a name server, for Redis or for another holder. The first thread waits for
//! nothing but events, and hears signals meanwhile: [`held`](crate::run::held).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use relatch::{Error, LockGuard, LockManager, LockWatch, MultiLockGuard, StopHandle};

use crate::args::{Common, OnLost, Run};
use crate::connect;
use crate::exit::{Failure, code};
use crate::output::tell;
use crate::run::life::Event;
use crate::run::line::now;
use crate::run::nested::Outer;
use crate::run::outcome::Failed;
use crate::run::wanted::Wanted;

/// From one attempt of `--connect-within` to the next.
const PAUSE: Duration = Duration::from_secs(1);

/// What the thread says.
pub(crate) enum Word {
    /// Redis is there. From now on, the thread waits for the locks. (The end of a manager waits for
    /// its threads. So it is left to this one.)
    Waits(Weak<LockManager>),
    Taken(Result<Vec<Taken>, Failed>),
    GivenBack(Result<(), Error>),
}

/// A lock that this run took.
pub(crate) struct Taken {
    pub(crate) key: String,
    pub(crate) token: String,
    pub(crate) fence: Option<u64>,
    pub(crate) watch: LockWatch,
}

/// How the locks are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// They stay taken for as long as `--at-least` says.
    Kept,
    /// No job has used them: another machine may have them at once.
    Unused,
}

/// What the thread knows from the beginning.
pub(crate) struct Taking {
    pub(crate) common: Common,
    pub(crate) options: Run,
    pub(crate) wanted: Wanted,
    pub(crate) outer: Outer,
    pub(crate) stop: StopHandle,
    /// A loss of a lock becomes one, and each word makes the first thread look.
    pub(crate) events: Sender<Event>,
    /// How a lock was lost, once one was.
    pub(crate) cause: Arc<OnceLock<String>>,
    /// Redis has said in this wait that another has a lock.
    pub(crate) answered: Arc<AtomicBool>,
}

impl Taking {
    /// The whole life of the thread.
    pub(crate) fn run(&self, words: &Sender<Word>, orders: &Receiver<Back>) {
        let guards = match self.take(words) {
            Ok(guards) => guards,
            Err(failed) => return self.say(words, Word::Taken(Err(failed))),
        };
        self.say(words, Word::Taken(Ok(guards.taken())));
        // If the first thread waits no longer, no job has used the locks.
        let back = orders.recv().unwrap_or(Back::Unused);
        self.say(words, Word::GivenBack(guards.give(back)));
    }

    fn say(&self, words: &Sender<Word>, word: Word) {
        let _ = words.send(word);
        let _ = self.events.send(Event::Time);
    }

    /// Takes the locks, as soon as Redis is there.
    fn take(&self, words: &Sender<Word>) -> Result<Guards, Failed> {
        let until = now() + self.options.connect_within;
        let mut is_told = !self.options.verbose;
        loop {
            let failed = match self.attempt(words) {
                Err(failed) if !self.is_answered() => failed,
                done => return done,
            };
            let left = until.saturating_sub(now());
            let Some(outage) = failed.outage().filter(|_| !left.is_zero()) else {
                return Err(failed);
            };
            if !is_told {
                is_told = true;
                tell(&format!("{outage}: it is tried again"));
            }
            thread::sleep(left.min(PAUSE));
        }
    }

    /// Takes the locks: all, or none. Those that a run around this process has are there already.
    fn attempt(&self, words: &Sender<Word>) -> Result<Guards, Failed> {
        let Taking {
            common,
            options,
            wanted,
            outer,
            ..
        } = self;
        let locks = Arc::new(self.manager()?);
        let mut missing = Vec::new();
        for key in &wanted.keys {
            if !outer.has(&locks, &common.prefix, key)? {
                missing.push(&**key);
            } else if options.no_reentry {
                let message = format!("lock {key:?} is held by a run around this one");
                return Err(Failed::Busy(message));
            } else if options.fence && outer.fence(&common.prefix, key).is_none() {
                let message =
                    format!("lock {key:?} is held by a run around this one, without --fence");
                return Err(Failure::new(code::USAGE, message).into());
            }
        }
        let has_wishes = options.lease.is_some()
            || options.at_least.is_some()
            || options.on_lost != OnLost::Kill;
        if missing.is_empty() && has_wishes && !common.quiet {
            tell("--lease, --at-least and --on-lost are those of the run around this one");
        }
        let mut all = None;
        if !missing.is_empty() {
            self.say(words, Word::Waits(Arc::downgrade(&locks)));
            all = Some(self.lock(&locks, &missing)?);
        }
        let each = missing.iter().map(|key| {
            let lost = || format!("lock {key:?} was lost before the job was started");
            let held = locks.named(key).current();
            held.ok_or_else(|| Failure::new(code::LOST, lost()))
        });
        let each = each.collect::<Result<_, _>>()?;
        Ok(Guards { all, each })
    }

    /// Makes the manager, and asks Redis whether it is there: a wrong address in a
    /// crontab is found at once. A loss becomes an event.
    fn manager(&self) -> Result<LockManager, Failure> {
        let told = Arc::clone(&self.cause);
        let events = self.events.clone();
        let builder = connect::builder(&self.common)?.on_lost(move |lost| {
            let _ = told.set(lost.cause.to_string()); // The first one counts.
            let _ = events.send(Event::Lost);
        });
        Ok(builder.build()?)
    }

    /// Waits for the locks. The library gives up after an outage of 10 s. Here `--wait` decides,
    /// once Redis has said that somebody has a lock: until then, the address may be wrong.
    fn lock(&self, locks: &LockManager, keys: &[&str]) -> Result<MultiLockGuard, Error> {
        let Wanted {
            plan,
            wait,
            at_least,
            fenced,
            ..
        } = &self.wanted;
        let began = now();
        let mut is_told = self.common.quiet;
        loop {
            let left = wait.map(|wait| wait.saturating_sub(now().saturating_sub(began)));
            let several = locks.several(keys).options(|lock| {
                lock.lease(plan.lease)
                    .fenced(*fenced)
                    .keep_at_least(*at_least)
                    .stopped_by(&self.stop)
                    .wait(left)
            });
            match several.lock() {
                Err(error @ Error::Unavailable { .. })
                    if self.is_answered() && left != Some(Duration::ZERO) =>
                {
                    if !is_told {
                        is_told = true;
                        tell(&format!("{error}: the wait goes on"));
                    }
                }
                done => return done,
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }
}

struct Guards {
    /// `None` if the runs around this one have all of them.
    all: Option<MultiLockGuard>,
    /// One more guard of each, for its token.
    each: Vec<LockGuard>,
}

impl Guards {
    fn taken(&self) -> Vec<Taken> {
        let each = self.each.iter();
        each.map(|guard| Taken {
            key: guard.key().to_owned(),
            token: guard.token().to_owned(),
            fence: guard.fence(),
            watch: guard.watch(),
        })
        .collect()
    }

    fn give(self, back: Back) -> Result<(), Error> {
        match back {
            Back::Kept => {
                drop(self.each);
                self.all.map_or(Ok(()), MultiLockGuard::unlock)
            }
            Back::Unused => {
                drop(self.all);
                let each = self.each.into_iter();
                each.map(|guard| guard.unlock_now().map(drop))
                    .fold(Ok(()), Result::and)
            }
        }
    }
}
