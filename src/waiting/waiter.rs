//! A thread that waits for a lock: its owner, its holds, how it is reported to the program, and
//! how long it stays awake for its turn.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::{BlockedThread, Error};
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::base::stop::Wake;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{Condvar, thread};
use crate::hold::Hold;
use crate::waiting::handoff::Claim;
use crate::waiting::patience::{Patience, Silence};

/// How long a thread stays awake when the turn in front of it is about to end.
///
/// A sleeping thread takes tens of microseconds to wake up, as long as Redis takes for a command.
/// So the first waiter stays awake when the release in front of it begins. If the last turn was
/// over within this time, the first waiter stays awake when the next turn begins, since that turn
/// may be as short. If it is not, the waiter was awake for no more than this time.
pub(crate) const AWAKE: Duration = Duration::from_micros(200);

/// A yield that takes this long gave the core to other work.
const GIVEN_AWAY: Duration = Duration::from_millis(1);

/// How long after such a yield no thread stays awake.
const ASLEEP: Duration = Duration::from_millis(20);

/// A thread that waits for a lock. Its queue lists it from its first sleep until it has the lock or
/// gives up, and distinguishes waiters by their addresses.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) woken: Condvar,
    /// The turn in front is over, so it is this thread's turn.
    has_turn: AtomicBool,
    /// The claim that the thread in front may send for this thread. `None` if this thread had the
    /// turn before it had to wait, and for slots: a release frees one of them, which need not be
    /// the lowest.
    pub(crate) claim: Option<Claim>,
    pub(super) thread: Owner,
    pub(super) patience: Patience,
    /// When the thread began to sleep.
    pub(super) since: Moment,
    /// `None` if the thread holds nothing: then nobody waits for it.
    pub(super) blocked: Option<Arc<Blocked>>,
}

impl Waiter {
    /// The waiter for a thread that is about to sleep.
    pub(super) fn new(
        thread: &Owner,
        patience: &Patience,
        claim: Option<Claim>,
        blocked: Option<Arc<Blocked>>,
    ) -> Waiter {
        Waiter {
            woken: Condvar::new(),
            has_turn: AtomicBool::new(false),
            claim,
            thread: thread.clone(),
            patience: *patience,
            since: Moment::now(),
            blocked,
        }
    }

    /// Wakes the thread, since it is its turn now.
    pub(crate) fn wake_for_turn(&self) {
        self.has_turn.store(true, Ordering::Release);
        self.woken.notify_one();
    }
}

/// The locks that a waiting thread holds, and the one that it waits for.
pub(crate) struct Blocked {
    /// The lock that the thread waits for: its manager and its name.
    pub(super) wants: (u64, Arc<str>),
    /// The thread waits for slots, which have several holders, so nobody knows for whom it waits.
    pub(super) wants_slots: bool,
    /// The thread's holds. They do not change while it sleeps.
    pub(super) holds: Vec<HeldBy>,
    /// The cycle of threads because of which this wait ends.
    pub(super) cycle: OnceLock<Vec<BlockedThread>>,
    /// Wakes the thread, along with the other waiters of its manager.
    pub(super) wake: Arc<Wake>,
}

impl fmt::Debug for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Blocked");
        shown.field("holds", &self.holds).finish_non_exhaustive()
    }
}

impl Blocked {
    pub(super) fn new(
        wants: (u64, Arc<str>),
        wants_slots: bool,
        holds: Vec<HeldBy>,
        wake: &Arc<Wake>,
    ) -> Blocked {
        Blocked {
            wants,
            wants_slots,
            holds,
            cycle: OnceLock::new(),
            wake: Arc::clone(wake),
        }
    }

    /// Returns an error if the thread must not go on waiting: its wait ends a cycle, or it has lost
    /// a lock that it holds.
    pub(super) fn may_go_on(&self) -> Result<(), Error> {
        let key = || self.wants.1.to_string();
        if let Some(cycle) = self.cycle.get() {
            let cycle = cycle.clone();
            return Err(Error::WouldDeadlock { key: key(), cycle });
        }
        let now = Moment::now();
        let lost = self.holds.iter().find_map(|(_, hold)| hold.loss(now));
        lost.map_or(Ok(()), |(outer, cause)| {
            let key = key();
            Err(Error::OuterLost { key, outer, cause })
        })
    }

    /// When the thread's first hold runs out, unless it is renewed. No other thread wakes this one
    /// then.
    pub(super) fn first_end(&self) -> Moment {
        let ends = self.holds.iter().map(|(_, hold)| hold.valid_until());
        let ends = ends.filter(|end| *end > Moment::PAST); // Its release is in progress.
        ends.min().unwrap_or(Moment::NEVER)
    }
}

/// A thread of this process that waits for a lock, as listed by
/// [`LockManager::waiting`](crate::LockManager::waiting).
///
/// This is a snapshot: the thread may have the lock by now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitingThread {
    /// The lock's key.
    pub key: String,
    /// The thread that waits.
    pub thread: Owner,
    /// How long it has waited.
    pub waited: Duration,
    /// Who has the lock, as far as this process knows without asking: a thread of this manager, or
    /// the holder that Redis last named. `None` if Redis has not named one yet, or gives no answer.
    pub holder: Option<Holder>,
    /// How much time is left until the thread gives up. `None` if its wait has no limit.
    pub remaining: Option<Duration>,
}

impl WaitingThread {
    pub(super) fn new(
        key: &str,
        waiter: &Waiter,
        holder: Option<Holder>,
        now: Moment,
    ) -> WaitingThread {
        let patience = &waiter.patience;
        let has_limit = patience.deadline < Moment::NEVER;
        WaitingThread {
            key: key.to_owned(),
            thread: waiter.thread.clone(),
            waited: now.since(patience.began),
            holder,
            remaining: has_limit.then(|| patience.deadline.since(now)),
        }
    }
}

/// One line for a log.
impl fmt::Display for WaitingThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WaitingThread {
            key,
            thread,
            waited,
            holder,
            remaining,
        } = self;
        write!(
            f,
            "{thread} has waited for lock {key:?} for {waited:.1?}, {}, ",
            held_by(holder.as_ref())
        )?;
        match remaining {
            Some(left) => write!(f, "gives up in {left:.1?}"),
            None => f.write_str("without a limit"),
        }
    }
}

/// The holder that a thread waits for, as far as is known.
pub(crate) struct Awaited {
    pub(crate) holder: Option<Holder>,
    /// The thread in front is waiting for an answer from Redis, or got none.
    pub(crate) silence: Option<Silence>,
}

/// A hold, and the number of its manager.
pub(crate) type HeldBy = (u64, Arc<Hold>);

/// The names of the locks that a thread holds.
pub(crate) fn names(held: Vec<HeldBy>) -> Vec<String> {
    held.into_iter()
        .map(|(_, hold)| hold.key.name().to_string())
        .collect()
}

/// A holder, if it is known.
pub(super) fn held_by(holder: Option<&Holder>) -> String {
    holder.map_or_else(
        || "whose holder is not known".to_owned(),
        |holder| format!("held by {holder}"),
    )
}

/// Whether the cores have other work. If they have, staying awake costs a thread time.
///
/// A thread that yields to other work gets its core back after a whole scheduler time slice, some
/// milliseconds. A thread that sleeps and is woken gets it back at once. So after a yield that took
/// a millisecond, all waiters sleep for the next twenty.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    busy_until: AtomicU64,
}

impl Cores {
    pub(crate) fn are_free(&self, now: Moment) -> bool {
        Moment::from_nanos(self.busy_until.load(Ordering::Relaxed)) <= now
    }

    /// Stays awake until it is the waiter's turn, but for [`AWAKE`] at most, and only until a yield
    /// gives the core to other work.
    pub(crate) fn stay_awake(&self, waiter: &Waiter) {
        let mut now = Moment::now();
        let end = now.after(AWAKE);
        while !waiter.has_turn.load(Ordering::Acquire) && now < end {
            thread::yield_now();
            let back = Moment::now();
            if back.since(now) >= GIVEN_AWAY {
                self.busy_until
                    .fetch_max(back.after(ASLEEP).as_nanos(), Ordering::Relaxed);
                return;
            }
            now = back;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::patience::tests::until;

    #[test]
    fn no_thread_stays_awake_for_a_while_after_a_core_was_given_away() {
        let at = |nanos| Moment::from_nanos(nanos);
        let cores = Cores::default();
        assert!(cores.are_free(at(1)));
        cores.busy_until.store(5, Ordering::Relaxed);
        assert!(!cores.are_free(at(4)));
        assert!(cores.are_free(at(5)));
    }

    #[test]
    fn a_wait_is_one_line_for_a_log() {
        let thread = Owner::new("host".into(), 7, 2);
        let holder = Holder::new(format!("host-7-3-{}", "0".repeat(32)).as_bytes(), None);
        let line = |deadline: Moment, holder: Option<&Holder>| {
            let began = Moment::from_nanos(0);
            let now = began.after(Duration::from_millis(1_500));
            let patience = Patience {
                began,
                ..until(deadline)
            };
            let waiter = Waiter::new(&thread, &patience, None, None);
            WaitingThread::new("a", &waiter, holder.cloned(), now).to_string()
        };
        let deadline = Moment::from_nanos(0).after(Duration::from_secs(4));
        assert_eq!(
            line(deadline, Some(&holder)),
            format!(
                "{thread} has waited for lock \"a\" for 1.5s, held by {holder}, gives up in 2.5s"
            )
        );
        let unknown = format!(
            "{thread} has waited for lock \"a\" for 1.5s, whose holder is not known, without a limit"
        );
        assert_eq!(line(Moment::NEVER, None), unknown);
    }
}
