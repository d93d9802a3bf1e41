//! A fixed number of links, lent out one command (or one acquisition) at a time.
//!
//! r2d2 keeps the slots; the threads that use them open the links in them. So what fails, fails in
//! the caller's hands: with the real cause, by the caller's deadline, and no more often than callers
//! ask. r2d2's own worker would pass the cause on as a string, be kept busy by a server that stays
//! silent, and try an unreachable one for ever.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::store::resp::{Batch, Reply};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::store::address::Address;
use crate::store::failure::Failure;
use crate::store::link::{FAIR_TRY, Link};

/// Nobody uses a link for longer than a few commands take. (And r2d2 panics where an instant
/// overflows.)
const LONGEST_GET: Duration = Duration::from_secs(10);

/// A shorter silence condemns no other link: Redis may have been busy.
const LONG_SILENCE: Duration = Duration::from_millis(100);

/// A link that nobody has used for so long is closed. (As r2d2 does, which takes the sweeps for
/// use.)
const LONGEST_IDLE: Duration = Duration::from_secs(600);

pub(crate) struct Pool {
    slots: r2d2::Pool<Slots>,
    pub(super) address: Address,
    pub(super) connect_timeout: Duration,
    /// The links that have not answered since then are not used again. After a restart of Redis, or
    /// where a firewall has forgotten the links that were idle, one caller finds out instead of one
    /// caller per link.
    condemned: AtomicU64,
    /// The last answer over a link that has come back: whether Redis is there while somebody waits
    /// for a link.
    answered_at: AtomicU64,
    /// Wants to know when a link is closed: what Redis was to tell of over it is not told.
    on_close: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
    born: u32,
}

impl Pool {
    pub(super) fn new(address: Address, size: u32, connect_timeout: Duration) -> Result<Pool, Error> {
        // Its thread ends with the pool, and not with the next of r2d2's rounds, which are half a minute apart.
        let worker = ScheduledThreadPool::builder()
            .num_threads(1)
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .thread_name_pattern("relatch-pool-{}");
        let worker = start(|| worker.build())?;
        let slots = r2d2::Pool::builder()
            .max_size(size)
            .min_idle(Some(0))
            .max_lifetime(None)
            .test_on_check_out(false)
            .thread_pool(Arc::new(worker))
            .build_unchecked(Slots);
        let (condemned, answered_at) = (AtomicU64::new(0), AtomicU64::new(0));
        let (on_close, born) = (OnceLock::new(), process::id());
        Ok(Pool { slots, address, connect_timeout, condemned, answered_at, on_close, born })
    }

    /// Has `call` called when a link is closed, by its number.
    pub(crate) fn on_close(&self, call: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.on_close.set(Box::new(call)); // Set once.
    }

    /// Borrows a link, opening one where need be; within the deadline, and connecting within its own limit.
    pub(super) fn checkout(&self, deadline: Moment) -> Result<Lent<'_>, Failure> {
        let began = Moment::now();
        self.borrow(deadline).map_err(|failure| match failure {
            // Where Redis answers nobody for a fair time, the links are not busy: they are stuck.
            Failure::OutOfTime(_) if deadline.since(began) >= FAIR_TRY && !self.answered_since(began) => {
                Failure::not_sent("no connection was to be had, and Redis answered nobody meanwhile")
            }
            other => other,
        })
    }

    fn borrow(&self, deadline: Moment) -> Result<Lent<'_>, Failure> {
        let mut slot = match self.free_slot() {
            Some(slot) => slot,
            None => self.wait_for_slot(deadline)?,
        };
        if slot.link.is_none() {
            let left = deadline.since(Moment::now());
            let opened = self.connect(deadline).map_err(|failure| match failure {
                // Nobody knows whether it would have been opened within a fair time.
                Failure::NotSent(cause) if left < FAIR_TRY && deadline <= Moment::now() => {
                    Failure::OutOfTime(cause)
                }
                other => other,
            });
            slot.link = Some(Box::new(opened?));
        }
        Ok(Lent { slot, pool: self })
    }

    /// A slot that nobody uses: one with a link, if there is one. (r2d2 hands out the one that came back last, and that may have
    /// lost its link.)
    fn free_slot(&self) -> Option<r2d2::PooledConnection<Slots>> {
        let mut empty = Vec::new();
        while let Some(mut slot) = self.slots.try_get() {
            self.drop_stale(&mut slot);
            if slot.link.is_some() {
                return Some(slot);
            }
            empty.push(slot);
        }
        empty.pop()
    }

    fn drop_stale(&self, slot: &mut Slot) {
        if let Some(link) = slot.link.take_if(|link| self.is_condemned(link)) {
            self.closed(&link);
        }
    }

    fn is_condemned(&self, link: &Link) -> bool {
        link.answered <= Moment::from_nanos(self.condemned.load(Ordering::Relaxed))
    }

    fn condemn(&self, since: Moment) {
        self.condemned.fetch_max(since.as_nanos(), Ordering::Relaxed);
    }

    /// Drops the idle links that have ended, that may be dead, or that nobody has used for long,
    /// without waiting. A waiter may have looked over such a link: Redis tells it of nothing.
    pub(crate) fn sweep(&self) {
        // All at once: r2d2 would lend the same one again and again.
        let mut idle = Vec::new();
        let mut dropped = Vec::new();
        while let Some(mut slot) = self.slots.try_get() {
            let is_stale = |link: &mut Box<Link>| {
                let unused = Moment::now().since(link.answered);
                self.is_condemned(link) || unused > LONGEST_IDLE || link.has_ended()
            };
            dropped.extend(slot.link.take_if(is_stale));
            idle.push(slot);
        }
        // The one that came back last is lent first again.
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

    /// True where Redis has answered over a link that came back since then.
    pub(crate) fn answered_since(&self, moment: Moment) -> bool {
        self.answered_at.load(Ordering::Relaxed) >= moment.as_nanos()
    }

    /// Opens a link that is nobody else's, and does not count against the pool's size.
    pub(super) fn connect(&self, deadline: Moment) -> Result<Link, Failure> {
        Link::open(&self.address, deadline.min(Moment::now().after(self.connect_timeout)))
    }

    fn wait_for_slot(&self, deadline: Moment) -> Result<r2d2::PooledConnection<Slots>, Failure> {
        let limit = deadline.since(Moment::now()).min(LONGEST_GET);
        let busy = "all connections of the pool stayed in use: a larger `pool_size` would help";
        let mut slot = self.slots.get_timeout(limit).map_err(|_| Failure::OutOfTime(busy.into()))?;
        self.drop_stale(&mut slot);
        Ok(slot)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if process::id() != self.born {
            // In a forked child: r2d2's worker does not exist here, and its locks may be held for ever.
            mem::forget(self.slots.clone());
        }
    }
}

/// Starts something that panics where the system will not start a thread: one that is started
/// before, and ends at once, finds that out. (It may be refused all the same, by the time that it
/// is that thread's turn.)
fn start<T>(start: impl FnOnce() -> T) -> Result<T, Error> {
    let no_thread = |source| Error::NoThread { source };
    let probe = thread::Builder::new().name("relatch-probe".to_owned()).spawn(|| ()).map_err(no_thread)?;
    let _ = probe.join();
    let refused = |_| no_thread(io::Error::other("the pool could not start its own"));
    panic::catch_unwind(AssertUnwindSafe(start)).map_err(refused)
}

/// A link to send commands over, whoever it belongs to.
pub(super) enum LinkRef<'a> {
    Lent(Lent<'a>),
    Own(Box<Link>),
}

impl LinkRef<'_> {
    /// As the link does. Where no answer comes over a lent one, those that have not answered since
    /// may be as dead.
    pub(super) fn exchange(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Reply>, Failure> {
        let sent = Moment::now();
        let result = self.deref_mut().exchange(batch, deadline);
        if let (LinkRef::Lent(lent), Err(Failure::Unanswered { link_stands: true, .. })) = (&*self, &result)
            && Moment::now().since(sent) >= LONG_SILENCE
        {
            lent.pool.condemn(sent);
        }
        result
    }
}

impl Deref for LinkRef<'_> {
    type Target = Link;

    fn deref(&self) -> &Link {
        match self {
            LinkRef::Lent(lent) => lent.slot.link.as_ref().expect("a lent slot has a link"),
            LinkRef::Own(link) => link,
        }
    }
}

impl DerefMut for LinkRef<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        match self {
            LinkRef::Lent(lent) => lent.slot.link.as_mut().expect("a lent slot has a link"),
            LinkRef::Own(link) => link,
        }
    }
}

/// A link on loan. Goes back to the pool when dropped, or is thrown away where it broke.
pub(super) struct Lent<'a> {
    slot: r2d2::PooledConnection<Slots>,
    pool: &'a Pool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(answered) = self.slot.link.as_ref().and_then(|link| link.answered_to_borrower()) {
            self.pool.answered_at.fetch_max(answered.as_nanos(), Ordering::Relaxed);
        }
        let Some(link) = self.slot.link.take_if(|link| link.is_over()) else {
            if let Some(link) = &mut self.slot.link {
                link.doubt();
            }
            return;
        };
        if link.broken {
            self.pool.condemn(Moment::now());
        }
        self.pool.closed(&link);
    }
}

/// r2d2's side: it makes slots. Those whose link is gone are kept: when r2d2 drops one, it wakes nobody who waits for one.
struct Slots;

struct Slot {
    link: Option<Box<Link>>,
}

impl r2d2::ManageConnection for Slots {
    type Connection = Slot;
    type Error = Infallible;

    fn connect(&self) -> Result<Slot, Infallible> {
        Ok(Slot { link: None })
    }

    fn is_valid(&self, _: &mut Slot) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Slot) -> bool {
        false
    }
}
