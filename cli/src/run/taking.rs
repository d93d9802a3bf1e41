//! The thread that takes the locks and releases them: a hold belongs to the thread that took it.
//!
//! This thread may wait for a name server, for Redis or for another holder. Meanwhile, the first
//! thread waits only for events, such as signals: see [`held`](crate::run::held).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use relatch::{
    Error, Holder, Lock, LockGuard, LockManager, LockWatch, MultiLockGuard, StopHandle, Unlocked,
};

use crate::args::{Common, OnLost, Run};
use crate::connect;
use crate::exit::{Failure, code};
use crate::output::tell;
use crate::run::life::Event;
use crate::run::line::now;
use crate::run::mode::{Mode, Part};
use crate::run::nested::{Inner, Outer};
use crate::run::outcome::Failed;
use crate::run::wanted::Wanted;
use crate::whose;

/// The pause between attempts with `--connect-within`.
const PAUSE: Duration = Duration::from_secs(1);

/// The warning about other locks of the same name comes once, even if `--connect-within` retries.
static WARNED: Once = Once::new();

/// What the thread reports.
pub(crate) enum Word {
    /// Redis is there. From now on, the thread waits for the locks. (Dropping a manager waits for
    /// its threads. So that is left to this thread.)
    Waits(Weak<LockManager>),
    Taken(Result<Vec<Taken>, Failed>),
    GivenBack(Result<(), Error>),
}

/// A lock that this run took.
pub(crate) struct Taken {
    /// What the command line calls it.
    pub(crate) name: String,
    pub(crate) part: Part,
    /// The name, or the key of a slot or a gate.
    pub(crate) key: String,
    pub(crate) token: String,
    pub(crate) fence: Option<u64>,
    pub(crate) watch: LockWatch,
}

impl Taken {
    pub(crate) fn inner(&self) -> Inner<'_> {
        Inner {
            name: &self.name,
            part: self.part,
            key: &self.key,
            token: &self.token,
            fence: self.fence,
        }
    }
}

/// How the locks are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// Keep them for as long as `--at-least` says.
    Kept,
    /// No job has used them, so another machine can take them at once.
    Unused,
}

/// What the thread knows from the beginning.
pub(crate) struct Taking {
    pub(crate) common: Common,
    pub(crate) options: Run,
    pub(crate) wanted: Wanted,
    pub(crate) outer: Outer,
    pub(crate) stop: StopHandle,
    /// A lost lock becomes an event, and each word wakes the first thread with one.
    pub(crate) events: Sender<Event>,
    /// How a lock was lost, once one has been.
    pub(crate) cause: Arc<OnceLock<String>>,
    /// During this wait, Redis has said that somebody else holds a lock.
    pub(crate) answered: Arc<AtomicBool>,
}

impl Taking {
    /// The whole life of the thread.
    pub(crate) fn run(&self, words: &Sender<Word>, orders: &Receiver<Back>) {
        let guards = match self.take(words) {
            Ok(guards) => guards,
            Err(failed) => return self.say(words, Word::Taken(Err(failed))),
        };
        self.say(words, Word::Taken(Ok(guards.taken(&self.wanted))));
        // If the first thread no longer waits, no job has used the locks.
        let back = orders.recv().unwrap_or(Back::Unused);
        self.say(words, Word::GivenBack(guards.give(back)));
    }

    fn say(&self, words: &Sender<Word>, word: Word) {
        let _ = words.send(word);
        let _ = self.events.send(Event::Time);
    }

    /// Takes the locks as soon as Redis is available.
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
                tell(&format!("{outage}: trying again"));
            }
            thread::sleep(left.min(PAUSE));
        }
    }

    /// Takes the locks: all, or none. Locks that an outer run has are not taken again.
    fn attempt(&self, words: &Sender<Word>) -> Result<Guards, Failed> {
        let locks = Arc::new(self.manager()?);
        let missing = self.missing(&locks)?;
        let Some(name) = missing.first() else {
            return Ok(Guards::default());
        };
        let lock = self.wanted.mode.lock(&locks, name);
        if lock.is_some() && !self.common.quiet {
            WARNED.call_once(|| self.warn(&locks, name));
        }
        self.say(words, Word::Waits(Arc::downgrade(&locks)));
        if let Some(lock) = lock {
            let guard = self.patiently(|left| self.set(lock.clone(), left).lock())?;
            let (all, each) = (None, vec![guard]);
            return Ok(Guards { all, each });
        }
        let several = locks.several(&missing);
        let options = |left| several.clone().options(|lock| self.set(lock, left));
        let all = Some(self.patiently(|left| options(left).lock())?);
        let each = missing.iter().map(|key| {
            let lost = || format!("lock {key:?} was lost before the job was started");
            let held = locks.named(key).current();
            held.ok_or_else(|| Failure::new(code::LOST, lost()))
        });
        let each = each.collect::<Result<_, _>>()?;
        Ok(Guards { all, each })
    }

    /// The locks that no outer run has.
    fn missing(&self, locks: &LockManager) -> Result<Vec<&str>, Failed> {
        let Taking {
            common,
            options,
            wanted,
            outer,
            ..
        } = self;
        let mut missing = Vec::new();
        for key in &wanted.keys {
            let outer_fence = || outer.get(&common.prefix, key, wanted.mode)?.fence;
            if !outer.has(locks, &common.prefix, key, wanted.mode)? {
                missing.push(&**key);
            } else if options.no_reentry {
                let message = format!("lock {key:?} is held by an outer run");
                return Err(Failed::Busy(message));
            } else if options.fence && outer_fence().is_none() {
                let message = format!("lock {key:?} is held by an outer run, without --fence");
                return Err(Failure::new(code::USAGE, message).into());
            }
        }
        let has_wishes = options.lease.is_some()
            || options.at_least.is_some()
            || options.on_lost != OnLost::Kill;
        if missing.is_empty() && has_wishes && !common.quiet {
            tell("the outer run's --lease, --at-least and --on-lost apply");
        }
        Ok(missing)
    }

    /// Warns if somebody now holds a different lock of the same name, which does not keep this run
    /// out: the plain lock or, if this run wants a slot, the writer's lock. Costs one request for
    /// each. Errors are ignored: the user may lack the right to that key.
    fn warn(&self, locks: &LockManager, name: &str) {
        let mode = self.wanted.mode;
        let mut others = vec![(locks.named(name), format!("without {}", mode.option()))];
        if let Mode::Slots(_) = mode {
            let gate = Mode::Exclusive.lock(locks, name);
            others.extend(gate.map(|gate| (gate, "with --exclusive".to_owned())));
        }
        for (lock, how) in others {
            // (A lock of an outer run is intended.)
            let is_meant = |holder: &Holder| self.outer.all().any(|has| has.token == holder.raw);
            let holder = lock.holder().ok().flatten();
            if let Some(holder) = holder.filter(|holder| !is_meant(holder)) {
                let by = whose::shown(&holder);
                tell(&format!(
                    "warning: {by} has lock {name:?} {how}: that is a different lock, and does \
                     not keep this run out"
                ));
            }
        }
    }

    /// Creates the manager, and connects to Redis, so that a wrong address in a crontab is found at
    /// once. A lost lock becomes an event.
    fn manager(&self) -> Result<LockManager, Failure> {
        let told = Arc::clone(&self.cause);
        let events = self.events.clone();
        let builder = connect::builder(&self.common)?.on_lost(move |lost| {
            let _ = told.set(lost.cause.to_string()); // The first one counts.
            let _ = events.send(Event::Lost);
        });
        Ok(builder.build()?)
    }

    /// A lock with the options of this run, which waits for at most `left`.
    fn set(&self, lock: Lock, left: Option<Duration>) -> Lock {
        let wanted = &self.wanted;
        lock.lease(wanted.plan.lease)
            .fenced(wanted.fenced)
            .keep_at_least(wanted.at_least)
            .stopped_by(&self.stop)
            .wait(left)
    }

    /// Waits for the locks. The library gives up after an outage of 10 s. Here `--wait` decides,
    /// once Redis has said that somebody holds a lock. Until then, the address may be wrong.
    fn patiently<T>(
        &self,
        lock: impl Fn(Option<Duration>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let wait = self.wanted.wait;
        let began = now();
        let mut is_told = self.common.quiet;
        loop {
            let left = wait.map(|wait| wait.saturating_sub(now().saturating_sub(began)));
            match lock(left) {
                Err(error @ Error::Unavailable { .. })
                    if self.is_answered() && left != Some(Duration::ZERO) =>
                {
                    if !is_told {
                        is_told = true;
                        tell(&format!("{error}: the wait continues"));
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

/// There are none if the outer runs have all locks.
#[derive(Default)]
struct Guards {
    /// `None` for a slot, a reader or a writer.
    all: Option<MultiLockGuard>,
    /// A guard for each lock, for its token.
    each: Vec<LockGuard>,
}

impl Guards {
    fn taken(&self, wanted: &Wanted) -> Vec<Taken> {
        let each = self.each.iter();
        let name = |guard: &LockGuard| match wanted.mode {
            Mode::Alone => guard.key().to_owned(),
            _ => wanted.keys[0].clone(),
        };
        each.map(|guard| Taken {
            name: name(guard),
            part: wanted.mode.part(guard.slot()),
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
                let each = give_each(self.each, LockGuard::unlock);
                self.all.map_or(each, MultiLockGuard::unlock)
            }
            Back::Unused => {
                drop(self.all);
                give_each(self.each, LockGuard::unlock_now)
            }
        }
    }
}

fn give_each(
    guards: Vec<LockGuard>,
    give: impl Fn(LockGuard) -> Result<Unlocked, Error>,
) -> Result<(), Error> {
    let given = guards.into_iter().map(|guard| give(guard).map(drop));
    given.fold(Ok(()), Result::and)
}
