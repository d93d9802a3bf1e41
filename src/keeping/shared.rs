//! What the session and the keeper's thread share: what is held, owed and asked, and when that is due.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use log::warn;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::process::WorkerThread;
use crate::base::stats::Counters;
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::hold::Hold;
use crate::keeping::leases::{Due, Leases};
use crate::keeping::losses::LossNotifier;
use crate::store::{Failure, Store};
use crate::waiting::listener::Listener;
use crate::waiting::queues::WaitQueues;

/// The longest sleep while something is due: the bell's clock stands still while the machine is suspended, that of the leases
/// does not.
const DOZE: Duration = Duration::from_secs(1);

/// The keeper's: whoever has something for it notes that here.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) notifier: Option<LossNotifier>,
    /// Who waits in this process for what may be lost.
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) listener: Arc<Listener>,
    pub(crate) response_timeout: Duration,
    pub(crate) work: Mutex<Work>,
    /// There is something to do sooner than the thread thinks.
    pub(crate) bell: Condvar,
    pub(crate) keeper: WorkerThread,
}

#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) leases: Leases,
    pub(crate) asked: Vec<Ask>,
    /// Until when the thread sleeps; what is due later than that need not wake it.
    pub(crate) sleeps_until: Option<Moment>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) stop: bool,
}

/// Somebody waits for a lease to be pushed out now.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) hold: Arc<Hold>,
    pub(crate) deadline: Moment,
    pub(crate) answer: Sender<Result<(), Failure>>,
}

impl Ask {
    pub(crate) fn time_left(&self) -> Duration {
        self.deadline.since(Moment::now())
    }
}

impl Shared {
    /// Wakes the thread where something is due before it would wake up.
    pub(crate) fn wake(&self, mut work: MutexGuard<'_, Work>, due: Moment) {
        if work.sleeps_until.is_some_and(|until| due < until) {
            work.sleeps_until = Some(due);
            drop(work);
            self.bell.notify_one();
        }
    }

    /// The last handle is gone: what is not done is left to the leases.
    pub(crate) fn stopping(&self) -> bool {
        self.work.lock().stop
    }

    /// Waits until there is something to do; `None` when it is time to stop.
    ///
    /// Returns with nothing to do after each sleep, so that the connection is looked at.
    pub(crate) fn next(&self) -> Option<(Due, Vec<Ask>)> {
        let mut work = self.work.lock();
        let mut has_slept = false;
        loop {
            if work.stop {
                return None;
            }
            let now = Moment::now();
            let asked = std::mem::take(&mut work.asked);
            let due = work.leases.take_due(now);
            if has_slept || !due.is_empty() || !asked.is_empty() {
                work.sleeps_until = None;
                return Some((due, asked));
            }
            let until = work.leases.next();
            work.sleeps_until = Some(until);
            let sleep = until.since(now);
            self.bell.wait_for(&mut work, if until == Moment::NEVER { sleep } else { sleep.min(DOZE) });
            has_slept = true;
        }
    }

    /// Has a hold renewed for the first time, where somebody has waited for it for a while.
    pub(crate) fn look_after(&self, hold: &Hold) {
        let mut work = self.work.lock();
        let due = work.leases.look_after(hold, Moment::now());
        self.wake(work, due);
    }

    /// Has holds end that are over by the clock.
    pub(crate) fn end(&self, over: &[Arc<Hold>]) {
        for hold in over {
            hold.lose(LostCause::Expired);
            self.tell(hold);
        }
    }

    /// Hands word of a loss on, once per hold, and calls the first waiter in line.
    pub(crate) fn tell(&self, hold: &Hold) {
        let Some(cause) = hold.lost().filter(|_| hold.report_once()) else {
            return;
        };
        self.counters.lost.add(1);
        warn!(target: "relatch::lost", "lock {:?} was lost: {cause}", hold.key.name());
        if let Some(notifier) = &self.notifier {
            notifier.tell(hold, cause);
        }
        self.queues.wake_first(hold.key.name());
    }

    /// Somebody changed a lock's key, or deleted it, or that of any lock: the next renewal finds out
    /// what became of it.
    pub(crate) fn changed(&self, redis_key: Option<&[u8]>) {
        let (mut work, now) = (self.work.lock(), Moment::now());
        let due = match redis_key {
            Some(redis_key) => work.leases.changed(redis_key, now),
            None => work.leases.anything_changed(now),
        };
        self.wake(work, due);
    }
}
