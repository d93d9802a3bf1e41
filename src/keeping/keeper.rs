//! The thread that keeps what is held: renewals, late releases, and word of what was lost.
//!
//! One per manager, started by the first hold that needs it. No other thread pushes leases out.

use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use log::warn;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::process::WorkerThread;
use crate::base::stats::Counters;
use crate::base::sync::{Condvar, Mutex};
use crate::hold::Hold;
use crate::keeping::losses::LossNotifier;
use crate::keeping::orphans::OrphanKey;
use crate::keeping::renewal::KeeperConnection;
use crate::keeping::shared::{Ask, Shared, Work};
use crate::store::{Failure, Store};
use crate::waiting::listener::Listener;
use crate::waiting::queues::WaitQueues;

/// How many leases are pushed out in one round trip: what is answered late holds up no more than these.
const BATCH: usize = 1000;

/// The keeper, as the session sees it.
pub(crate) type Keeper = Arc<Shared>;

impl Shared {
    pub(crate) fn new(
        store: Arc<Store>,
        notifier: Option<LossNotifier>,
        response_timeout: Duration,
        probe: Option<String>,
    ) -> Keeper {
        let (queues, counters) = (Arc::<WaitQueues>::default(), Arc::<Counters>::default());
        Arc::new_cyclic(|shared: &Weak<Shared>| {
            let shared = shared.clone();
            let changed = move |redis_key: Option<&[u8]>| {
                if let Some(shared) = shared.upgrade() {
                    shared.changed(redis_key);
                }
            };
            let listener = Arc::new(Listener::new(Arc::clone(&store), response_timeout, probe, changed));
            let (work, bell, keeper) = (Mutex::default(), Condvar::new(), WorkerThread::default());
            Shared { store, counters, notifier, queues, listener, response_timeout, work, bell, keeper }
        })
    }

    pub(crate) fn enter(self: &Keeper, hold: &Arc<Hold>) -> Result<(), Error> {
        let told = self.notifier.is_some();
        self.rouse(|work| work.leases.enter(Arc::clone(hold), told, hold.acquired.sent))
    }

    /// Sees to it that a key whose release got no answer goes away.
    pub(crate) fn owe(self: &Keeper, orphan: OrphanKey) {
        let orphans = self.rouse(|work| work.leases.orphans.add(orphan, Moment::now()));
        if let Err(error) = orphans {
            warn!(target: "relatch::release", "a key is left to its lease: {error}");
        }
    }

    /// Pushes a hold's lease out now, and waits for the answer, at most until the deadline. The outer
    /// error is that the thread could not be started.
    pub(crate) fn push(
        self: &Keeper,
        hold: &Arc<Hold>,
        deadline: Moment,
    ) -> Result<Result<(), Failure>, Error> {
        let (answer, answered) = mpsc::channel();
        let ask = Ask { hold: Arc::clone(hold), deadline, answer };
        self.rouse(|work| {
            work.asked.push(ask);
            Moment::PAST
        })?;
        let silence = || Failure::Unanswered { link_stands: false, cause: "no answer in time".into() };
        let limit = deadline.since(Moment::now());
        Ok(answered.recv_timeout(limit).unwrap_or_else(|_| Err(silence())))
    }

    /// A hold has less time than was thought: looks after it sooner.
    pub(crate) fn hasten(self: &Keeper, hold: &Hold) -> Result<(), Error> {
        let told = self.notifier.is_some();
        self.rouse(|work| work.leases.hasten(hold, told, Moment::now()))
    }

    /// This process has had Redis delete what stood there by this token. A hold of its own is lost
    /// by that.
    pub(crate) fn deleted(&self, token: &str) {
        let mut work = self.work.lock();
        // A hold whose release has begun is not in the table any more: Redis tells that release
        // what it found.
        let Some(hold) = work.leases.by_token(token).cloned() else {
            return;
        };
        hold.lose(LostCause::Deleted);
        work.leases.lost(&hold);
        drop(work);
        self.tell(&hold);
    }

    /// Notes something to do, and wakes the thread, or starts it, if that is due before it would wake up.
    fn rouse(self: &Keeper, note: impl FnOnce(&mut Work) -> Moment) -> Result<(), Error> {
        let mut work = self.work.lock();
        let due = note(&mut work);
        if due == Moment::NEVER {
            return Ok(());
        }
        if work.thread.is_none() && !work.stop {
            let shared = Arc::clone(self);
            let thread = thread::Builder::new().name("relatch-keeper".to_owned());
            let started = thread.spawn(move || run(&shared));
            work.thread = Some(started.map_err(|error| Error::NoThread { source: error })?);
        } else {
            self.wake(work, due);
        }
        Ok(())
    }

    /// Ends the thread and the listener's. In a forked child there is none.
    pub(crate) fn stop(&self) {
        self.listener.stop();
        let mut work = self.work.lock();
        work.stop = true;
        let thread = work.thread.take();
        drop(work);
        self.bell.notify_one();
        if let Some(thread) = thread
            && !self.keeper.is_current()
            && thread.join().is_err()
        {
            warn!(target: "relatch::keeper", "the keeper had panicked");
        }
        if let Some(notifier) = &self.notifier {
            notifier.stop(self.response_timeout);
        }
    }
}

fn run(shared: &Shared) {
    shared.keeper.enter();
    let mut connection = KeeperConnection { shared, wire: None };
    while let Some((due, asked)) = shared.next() {
        connection.look_at_wire();
        shared.end(&due.over);
        connection.push_asked(asked);
        let mut silent = false;
        for holds in due.renew.chunks(BATCH) {
            if shared.stopping() {
                break;
            }
            let (count, failure) = match connection.push(holds) {
                Ok(refused) => (refused.len(), refused.into_values().next()),
                Err(failure) => {
                    silent = true;
                    (holds.len(), Some(failure))
                }
            };
            if let Some(failure) = failure {
                shared.counters.renewal_errors.add(u64::try_from(count).unwrap_or(0));
                warn!(target: "relatch::keeper",
                        "{count} leases were not renewed, trying again while they last: {failure:?}");
            }
        }
        if !due.remove.is_empty() {
            // Where there was no answer there will be none to these, and leases are more urgent: all come again.
            let answered = !silent && !shared.stopping() && connection.clean_up(&due.remove);
            shared.work.lock().leases.orphans.answered(answered, Moment::now());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::base::options::Settings;
    use crate::store::Address;

    /// A keeper without a Redis, whose thread is up to the test.
    pub(crate) fn unmanned() -> Keeper {
        static NOWHERE: LazyLock<Arc<Store>> = LazyLock::new(|| {
            let address = Address::parse("redis://127.0.0.1:1/").unwrap();
            Arc::new(Store::new(address, &Settings::default()).unwrap())
        });
        let keeper = Shared::new(Arc::clone(&NOWHERE), None, Duration::from_millis(50), None);
        keeper.work.lock().thread = Some(thread::spawn(|| ()));
        keeper
    }
}
