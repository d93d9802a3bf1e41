//! Links to Redis, up to a fixed number. Each is lent for one command or one attempt to take a
//! lock.
//!
//! r2d2 keeps the slots. A thread that borrows an empty slot opens a link in it. So a failure to
//! connect reaches the caller that it concerns, with its cause and by the caller's deadline. If
//! r2d2's own worker opened the links, it would reduce the cause to a string, block while a server
//! stays silent, and try an unreachable server forever.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::base::clock::Moment;
use crate::base::error::{Error, SystemCause};
use crate::base::sync::{process, thread};
use crate::client::wire::failure::Failure;
use crate::client::wire::link::{Condemned, FAIR_TRY, Link};
use crate::client::wire::system;

/// The longest wait for a slot. A thread uses a link only for a few commands, so a longer wait is
/// useless. (And r2d2 panics if the end of a wait overflows.)
const LONGEST_GET: Duration = Duration::from_secs(10);

/// How long a link may stay unused before it is closed. (r2d2 closes it. But in a pool that is
/// [swept](Pool::sweep), each sweep counts as a use for r2d2, so the sweep closes it.)
const LONGEST_IDLE: Duration = Duration::from_secs(600);

/// A link that has answered within this time is lent without checking its socket. A check could not
/// rule out a repeated reply anyway, since that may come after the check. And two checks take 3 %
/// of the time of a lock and its release, on one core with Redis.
const FRESH: Duration = Duration::from_micros(50);

/// A function that gets the number of a link that was closed. All pools of a store have the same.
pub(crate) type OnClose = OnceLock<Box<dyn Fn(u64) + Send + Sync>>;

/// The thread on which r2d2 makes slots. All pools of a store share it.
pub(crate) struct Worker {
    threads: Arc<ScheduledThreadPool>,
    /// The process that started the thread.
    pid: u32,
}

pub(crate) type BorrowedSlot = system::BorrowedSlot<Slots>;

pub(crate) struct Pool {
    slots: system::SlotPool<Slots>,
    condemned: Arc<Condemned>,
    /// When the last answer came over a link that has been given back. It tells a thread that waits
    /// for a link whether Redis answers at all.
    answered_at: AtomicU64,
    /// Called for each closed link, since Redis sends no invalidations of keys that were read over
    /// it.
    on_close: Arc<OnClose>,
    /// The process that made the pool.
    pid: u32,
}

impl Worker {
    pub(crate) fn start() -> Result<Worker, Error> {
        // The worker that r2d2 makes by default would go on until its next round, up to half a
        // minute after the pool is dropped.
        let threads = ScheduledThreadPool::builder()
            .num_threads(1)
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .thread_name_pattern("relatch-pool-{}");
        Ok(Worker {
            threads: system::threads(|| start(|| threads.build()))?,
            pid: process::id(),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if process::id() != self.pid {
            // As when a pool is dropped: the thread may have held a mutex at the fork.
            mem::forget(Arc::clone(&self.threads));
        }
    }
}

impl Pool {
    /// `is_swept`: somebody calls [`Self::sweep`] now and then. If not, r2d2 closes links that
    /// nobody has used for long. (For that, it keeps a job for as long as its thread lives, even
    /// after the pool is gone.)
    pub(crate) fn new(size: u32, is_swept: bool, worker: &Worker, on_close: Arc<OnClose>) -> Pool {
        let slots = r2d2::Pool::builder()
            .max_size(size)
            .min_idle(Some(0))
            .max_lifetime(None)
            .idle_timeout((!is_swept).then_some(LONGEST_IDLE))
            .test_on_check_out(false)
            .thread_pool(Arc::clone(&worker.threads))
            .build_unchecked(Slots);
        Pool {
            slots: system::slots(slots),
            condemned: Arc::default(),
            answered_at: AtomicU64::new(0),
            on_close,
            pid: process::id(),
        }
    }

    /// Borrows a link. Waits for a slot until the deadline. An empty slot gets a link from `open`.
    pub(crate) fn checkout(
        &self,
        deadline: Moment,
        open: impl FnOnce() -> Result<Link, Failure>,
    ) -> Result<(Box<Link>, BorrowedSlot), Failure> {
        let began = Moment::now();
        // If Redis answered nobody in the whole time, the links are not busy but stuck.
        let judged = |failure| match failure {
            Failure::OutOfTime(cause)
                if deadline.since(began) >= FAIR_TRY && self.answered_at() < began =>
            {
                Failure::NotSent(cause)
            }
            other => other,
        };
        // Preferably one with a link: r2d2 lends the slot that was last returned.
        let free = {
            let mut empty = Vec::new();
            loop {
                match self.slots.try_get() {
                    Some(mut slot) => {
                        self.drop_stale(&mut slot, began);
                        if slot.is_some() {
                            break Some(slot);
                        }
                        empty.push(slot);
                    }
                    None => break empty.pop(),
                }
            }
        };
        let mut slot = match free {
            Some(slot) => slot,
            None => self.wait_for_slot(deadline).map_err(judged)?,
        };
        let link = if let Some(link) = slot.take() {
            link
        } else {
            let left = deadline.since(Moment::now());
            let mut link = open().map_err(|failure| match failure {
                // With more time, the link might have opened.
                Failure::NotSent(cause) if left < FAIR_TRY && deadline <= Moment::now() => {
                    judged(Failure::OutOfTime(cause))
                }
                other => judged(other),
            })?;
            link.condemned = Some(Arc::clone(&self.condemned));
            Box::new(link)
        };
        Ok((link, slot))
    }

    /// Takes a link back, or closes it if it must not be used again.
    pub(crate) fn give_back(&self, mut link: Box<Link>, mut slot: BorrowedSlot) {
        if let Some(answered) = link.answered_to_borrower() {
            self.answered_at
                .fetch_max(answered.as_nanos(), Ordering::Relaxed);
        }
        if link.is_over() || self.condemned.includes(&link) {
            if link.broken {
                self.condemn(Moment::now());
            }
            self.closed(&link);
            drop(link); // Before another thread opens one in the slot.
        } else {
            link.doubt();
            *slot = Some(link);
        }
    }

    /// Drops the slot's link if it may be dead. If it has not answered just now ([`FRESH`]), also
    /// drops it if it has ended, or has received something that nobody asked for: a proxy may
    /// repeat an answer, and the borrower would take it for the answer to its own command.
    fn drop_stale(&self, slot: &mut Slot, now: Moment) {
        let is_over = |link: &mut Box<Link>| now.since(link.answered) > FRESH && link.probe();
        if let Some(link) = slot.take_if(|link| self.condemned.includes(link) || is_over(link)) {
            self.closed(&link);
        }
    }

    /// Prevents the reuse of links that have not answered since this moment.
    pub(crate) fn condemn(&self, since: Moment) {
        self.condemned.condemn(since);
    }

    /// Drops the idle links that have ended, that may be dead, or that nobody has used for long.
    /// Does not wait.
    ///
    /// A waiter may have registered for an invalidation over such a link, and would not get it. The
    /// function in `on_close` wakes that waiter.
    pub(crate) fn sweep(&self) {
        // All slots are borrowed before one is given back: otherwise r2d2 would lend the same slot
        // again and again.
        let mut idle = Vec::new();
        let mut dropped = Vec::new();
        while let Some(mut slot) = self.slots.try_get() {
            let is_stale = |link: &mut Box<Link>| {
                let unused = Moment::now().since(link.answered);
                self.condemned.includes(link) || unused > LONGEST_IDLE || link.probe()
            };
            dropped.extend(slot.take_if(is_stale));
            idle.push(slot);
        }
        // Given back in reverse, because r2d2 lends the last one first.
        idle.into_iter().rev().for_each(drop);
        for link in &dropped {
            self.closed(link);
        }
    }

    fn closed(&self, link: &Link) {
        if let Some(call) = self.on_close.get() {
            call(link.id);
        }
    }

    /// When Redis last answered, over a link that has been given back.
    pub(crate) fn answered_at(&self) -> Moment {
        Moment::from_nanos(self.answered_at.load(Ordering::Relaxed))
    }

    fn wait_for_slot(&self, deadline: Moment) -> Result<BorrowedSlot, Failure> {
        let limit = deadline.since(Moment::now()).min(LONGEST_GET);
        let began = Moment::now();
        let mut slot = self.slots.get_timeout(limit).map_err(|_| {
            Failure::OutOfTime(if began <= self.answered_at() {
                "all connections of the pool stayed in use: a larger `pool_size` would help".into()
            } else {
                "no connection became free, and Redis answered nobody meanwhile".into()
            })
        })?;
        self.drop_stale(&mut slot, Moment::now());
        Ok(slot)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if process::id() != self.pid {
            // This is a forked child, without r2d2's worker. If the worker held one of r2d2's
            // mutexes at the fork, that mutex stays locked here forever, and the drop would block.
            // So the slots are never dropped.
            mem::forget(self.slots.clone());
        }
    }
}

/// Calls `build`, which panics if it cannot start a thread. A trial thread comes first: if that
/// fails, there is a reason from the system, and no panic message. If the system refuses the next
/// thread even so, the panic is caught.
fn start<T>(build: impl FnOnce() -> T) -> Result<T, Error> {
    let no_thread = |source| Error::System {
        cause: SystemCause::NoThread,
        source,
    };
    let probe = thread::Builder::new()
        .name("relatch-probe".to_owned())
        .spawn(|| ())
        .map_err(no_thread)?;
    let _ = probe.join();
    let refused = |_| no_thread(io::Error::other("the pool could not start its own"));
    panic::catch_unwind(AssertUnwindSafe(build)).map_err(refused)
}

/// What r2d2 lends. r2d2 never considers it broken, even when it has no link: if r2d2 dropped a
/// slot, it would not wake a thread that waits for one.
pub(crate) type Slot = Option<Box<Link>>;

/// What r2d2 needs to make slots.
#[derive(Default)]
pub(crate) struct Slots;

impl r2d2::ManageConnection for Slots {
    type Connection = Slot;
    type Error = Infallible;

    fn connect(&self) -> Result<Slot, Infallible> {
        Ok(None)
    }

    fn is_valid(&self, _: &mut Slot) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Slot) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With more time, the link might have opened.
    #[test]
    fn a_link_that_had_no_time_to_open_says_nothing_of_the_server() {
        let worker = Worker::start().unwrap();
        let pool = Pool::new(1, true, &worker, Arc::default());
        let fails = |deadline, until| {
            let open = || {
                while Moment::now() < until {}
                Err(Failure::not_sent("nobody is there"))
            };
            pool.checkout(deadline, open).map(drop).unwrap_err()
        };
        let soon = Moment::now().after(FAIR_TRY / 2);
        assert!(matches!(fails(soon, soon), Failure::OutOfTime(_)));
        let at_once = fails(Moment::NEVER, Moment::PAST);
        assert!(matches!(at_once, Failure::NotSent(_)));
    }
}
