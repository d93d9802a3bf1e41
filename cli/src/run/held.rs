//! The locks of a run, as its first thread sees them. The thread in [`taking`](crate::run::taking)
//! owns them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager};

use crate::args::{Common, Run};
use crate::exit::{Failure, code};
use crate::output::tell;
use crate::run::life::{At, ENDS, Event, Plan};
use crate::run::line::{Until, now};
use crate::run::nested::Inner;
use crate::run::outcome::Failed;
use crate::run::report::Report;
use crate::run::taking::{Back, Taken, Taking, Word};
use crate::run::wanted::Wanted;
use crate::span;
use crate::whose;

/// The validity of a lock that this run does not look after: longer than anything.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// How often a wait checks who holds the lock, until it knows.
const TICK: Duration = Duration::from_millis(250);

/// After this long, a waiting run prints who holds the lock. With `--verbose`, it does so at the
/// first look.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// How long to wait for the thread after a signal: it may have just taken a lock.
const GRACE: Duration = Duration::from_millis(1500);

/// The library releases within 2 s, unless a name server does not answer.
const LONGEST_RETURN: Duration = Duration::from_secs(3);

pub(crate) struct Held {
    taken: Vec<Taken>,
    since: Duration,
    cause: Arc<OnceLock<String>>,
    words: Receiver<Word>,
    orders: Sender<Back>,
}

impl Held {
    /// Takes the locks: all, or none. (There is nothing to take if the outer runs hold them all.) A
    /// signal ends the attempt.
    pub(crate) fn take(
        taking: Taking,
        events: &Receiver<Event>,
        report: &mut Report,
    ) -> Result<Held, Failed> {
        let mut wait = Wait::new(&taking);
        let verbose = taking.options.verbose;
        let cause = Arc::clone(&taking.cause);
        let (speaker, words) = channel();
        let (orders, ordered) = channel();
        thread::Builder::new()
            .name("locks".to_owned())
            .spawn(move || taking.run(&speaker, &ordered))
            .map_err(|error| {
                Failure::new(code::SOFTWARE, format!("cannot start a thread: {error}"))
            })?;
        let taken = wait.outlast(&words, events);
        report.waited = wait.waited();
        let held = Held {
            taken: taken?,
            since: now(),
            cause,
            words,
            orders,
        };
        if let Some(number) = wait.ended_by(events) {
            held.unlock_unused();
            return Err(Failed::Interrupted(number));
        }
        if verbose && !held.taken.is_empty() {
            let waited = span::show(report.waited);
            tell(&format!("getting lock took {waited}"));
        }
        Ok(held)
    }

    /// How long the locks have been held, and how long they are still valid. The clock is read
    /// first: if this process is stopped in between, the validity seems to end earlier than it
    /// does, never later.
    pub(crate) fn at(&self) -> At {
        let held_for = now().saturating_sub(self.since);
        let left = self.taken.iter().map(|taken| taken.watch.remaining());
        At {
            held_for,
            left: left.min().unwrap_or(FOR_EVER),
        }
    }

    /// Until when the job may run if no renewal succeeds.
    pub(crate) fn good_until(&self, plan: &Plan) -> Until {
        let At { held_for, left } = self.at();
        let left = if plan.only_warn { FOR_EVER } else { left };
        Until(self.since + held_for + left.saturating_sub(plan.margin()))
    }

    /// The locks that this run took.
    pub(crate) fn taken(&self) -> impl Iterator<Item = Inner<'_>> {
        self.taken.iter().map(Taken::inner)
    }

    /// How a lock was lost, if the manager has found out.
    pub(crate) fn lost_cause(&self) -> Option<String> {
        self.cause.get().cloned()
    }

    /// Releases locks that no job has used, so that another machine can take them at once. (If that
    /// fails, they end with their lease.)
    pub(crate) fn unlock_unused(self) {
        let _ = self.give_back(Back::Unused);
    }

    /// Releases all locks. `None` if that takes too long.
    pub(crate) fn give_back(self, back: Back) -> Option<Result<(), Error>> {
        self.orders.send(back).ok()?;
        match self.words.recv_timeout(LONGEST_RETURN) {
            Ok(Word::GivenBack(given_back)) => Some(given_back),
            _ => None,
        }
    }
}

/// The wait for the locks.
struct Wait {
    wanted: Wanted,
    /// Set once Redis has answered: the manager, and the time.
    began: Option<(Weak<LockManager>, Duration)>,
    /// When to print who holds the lock. `None` once that is done.
    say_after: Option<Duration>,
    answered: Arc<AtomicBool>,
    /// The signal that ended the wait, and until when to wait for the thread.
    ends: Option<(i32, Duration)>,
}

impl Wait {
    fn new(taking: &Taking) -> Wait {
        Wait {
            wanted: taking.wanted.clone(),
            began: None,
            say_after: say_after(&taking.common, &taking.options),
            answered: Arc::clone(&taking.answered),
            ends: None,
        }
    }

    fn waited(&self) -> Duration {
        let began = self.began.as_ref();
        began.map_or(Duration::ZERO, |(_, began)| now().saturating_sub(*began))
    }

    /// Waits for the thread, or for a signal.
    fn outlast(
        &mut self,
        words: &Receiver<Word>,
        events: &Receiver<Event>,
    ) -> Result<Vec<Taken>, Failed> {
        loop {
            match words.try_recv() {
                Ok(Word::Waits(locks)) => self.began = Some((locks, now())),
                Ok(Word::Taken(taken)) => {
                    return match (taken, self.ended_by(events)) {
                        (Err(_), Some(number)) => Err(Failed::Interrupted(number)),
                        (taken, _) => taken,
                    };
                }
                Ok(Word::GivenBack(_)) | Err(TryRecvError::Empty) => self.next(events),
                Err(TryRecvError::Disconnected) => {
                    let message = "the locks cannot be taken";
                    return Err(Failure::new(code::SOFTWARE, message).into());
                }
            }
            // A thread that has not begun to wait has no lock.
            if let Some((number, until)) = self.ends
                && (self.began.is_none() || until <= now())
            {
                return Err(Failed::Interrupted(number));
            }
        }
    }

    /// Waits for the next event, or briefly if there is something to check.
    fn next(&mut self, events: &Receiver<Event>) {
        let is_known = self.say_after.is_none() && self.answered.load(Ordering::Relaxed);
        let event = if is_known && self.ends.is_none() {
            events.recv().ok()
        } else {
            events.recv_timeout(TICK).ok()
        };
        match event {
            Some(event) => self.on(event),
            None => self.look(),
        }
    }

    fn on(&mut self, event: Event) {
        if let Event::Signal(number, _) = event
            && ENDS.contains(&number)
            && self.ends.is_none()
        {
            self.ends = Some((number, now() + GRACE));
        }
    }

    /// The signal that ended the wait. No job has been started by then.
    fn ended_by(&mut self, events: &Receiver<Event>) -> Option<i32> {
        while let Ok(event) = events.try_recv() {
            self.on(event);
        }
        Some(self.ends?.0)
    }

    /// Checks what Redis has said about the lock, without a request of its own, which could not
    /// wait as patiently.
    fn look(&mut self) {
        let locks = self.began.as_ref().and_then(|(locks, _)| locks.upgrade());
        let waiting = locks.map_or_else(Vec::new, |locks| locks.waiting());
        let mut waiting = waiting.into_iter();
        let holder = waiting.find_map(|it| Some((it.key, it.holder?)));
        let Some((key, holder)) = holder else {
            return;
        };
        self.answered.store(true, Ordering::Relaxed);
        let waited = self.waited();
        if self.say_after.is_some_and(|after| after <= waited) {
            self.say_after = None;
            let (what, has_it) = (self.wanted.shown(&key), self.wanted.has_it());
            let holder = whose::shown(&holder);
            tell(&format!("waiting for {what}: {holder} {has_it}"));
        }
    }
}

fn say_after(common: &Common, options: &Run) -> Option<Duration> {
    if common.quiet || (options.busy_ok && !options.verbose) {
        return None;
    }
    Some(if options.verbose {
        Duration::ZERO
    } else {
        LONG_WAIT
    })
}
