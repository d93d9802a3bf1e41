//! The thread that keeps what is held: renewals, late releases, and word of what was lost.
//!
//! One per manager, started by the first hold that needs it. It is the only one that pushes leases out, over a
//! connection of its own, so that answers are taken in in the order of their sends; whoever wants a lease pushed out
//! now asks the keeper, and waits. Where a connection broke, a command of an earlier one may still be executed behind
//! a later one's: `renew.lua` never cuts a lease short, so that ends no hold that everybody believes in.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::{debug, warn};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::Hold;
use crate::leases::{Due, Leases};
use crate::listener::{Audience, Listener};
use crate::options::Lease;
use crate::owed::Leftover;
use crate::stats::Counters;
use crate::store::{Compared, Connection, Extension, Store, Trouble};
use crate::teller::Teller;
use crate::verdict;

/// How many leases are pushed out in one round trip: what is answered late holds up no more than these.
const BATCH: usize = 1000;

/// With less than this left, one try gets all of it.
const LAST_TRY: Duration = Duration::from_millis(20);

/// A try is given this long, even where a hold that it is not about ends meanwhile.
const FAIR_TRY: Duration = Duration::from_millis(250);

/// The keeper, as the session sees it.
#[derive(Debug)]
pub(crate) struct Keeper {
    desk: Arc<Desk>,
}

/// What the session and the keeper's thread share.
#[derive(Debug)]
struct Desk {
    store: Arc<Store>,
    counters: Arc<Counters>,
    teller: Option<Teller>,
    listener: Listener,
    response_timeout: Duration,
    work: Mutex<Work>,
    /// There is something to do sooner than the thread thinks.
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    leases: Leases,
    asked: Vec<Ask>,
    /// Until when the thread sleeps; what is due later than that need not wake it.
    sleeps_until: Option<Moment>,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

/// Somebody waits for a lease to be pushed out now.
#[derive(Debug)]
struct Ask {
    hold: Arc<Hold>,
    answer: Sender<Result<(), Trouble>>,
}

impl Keeper {
    pub(crate) fn new(
        store: Arc<Store>,
        counters: Arc<Counters>,
        teller: Option<Teller>,
        response_timeout: Duration,
    ) -> Keeper {
        let desk = Arc::new_cyclic(|desk: &Weak<Desk>| {
            let listener = Listener::new(Arc::clone(&store), response_timeout, desk.clone());
            let (work, bell) = (Mutex::default(), Condvar::new());
            Desk { store, counters, teller, listener, response_timeout, work, bell }
        });
        Keeper { desk }
    }

    /// Who hears when keys change: for those who wait, and for the keeper itself.
    pub(crate) fn listener(&self) -> &Listener {
        &self.desk.listener
    }

    /// Keeps a hold from now on.
    pub(crate) fn enter(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        let told = self.desk.teller.is_some();
        self.rouse(|work| work.leases.enter(Arc::clone(hold), told, hold.since().sent))
    }

    /// Lets go of a hold that is about to be released.
    pub(crate) fn remove(&self, hold: &Hold) {
        self.desk.work.lock().leases.remove(hold);
    }

    /// Sees to it that a key whose release got no answer goes away.
    pub(crate) fn owe(&self, leftover: Leftover) {
        let owed = self.rouse(|work| work.leases.owed().add(leftover, Moment::now()));
        if let Err(error) = owed {
            warn!(target: "relatch::release", "a key is left to its lease: {error}");
        }
    }

    /// Pushes a hold's lease out now, and waits for the answer, at most until the deadline.
    ///
    /// The outer error is the thread's that could not be started.
    pub(crate) fn push(&self, hold: &Arc<Hold>, deadline: Moment) -> Result<Result<(), Trouble>, Error> {
        let (answer, answered) = mpsc::channel();
        let ask = Ask { hold: Arc::clone(hold), answer };
        self.rouse(|work| {
            work.asked.push(ask);
            Moment::PAST
        })?;
        let silence = || Trouble::Unanswered { link_stands: false, cause: "no answer in time".into() };
        let limit = deadline.since(Moment::now());
        Ok(answered.recv_timeout(limit).unwrap_or_else(|_| Err(silence())))
    }

    /// A hold has less time than was thought: looks after it sooner.
    pub(crate) fn hasten(&self, hold: &Hold) -> Result<(), Error> {
        let told = self.desk.teller.is_some();
        self.rouse(|work| work.leases.hasten(hold, told, Moment::now()))
    }

    /// Hands word of a loss on, that was found out by somebody else.
    pub(crate) fn lost(&self, hold: &Hold) {
        self.desk.tell(hold);
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.desk.counters
    }

    /// Everything that is held.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.desk.work.lock().leases.holds(Moment::now()).cloned().collect()
    }

    /// Notes something to do, and wakes the thread, or starts it, if that is due before it would wake up.
    fn rouse(&self, note: impl FnOnce(&mut Work) -> Moment) -> Result<(), Error> {
        let mut work = self.desk.work.lock();
        let due = note(&mut work);
        if due == Moment::NEVER {
            return Ok(());
        }
        if work.thread.is_none() && !work.stop {
            let desk = Arc::clone(&self.desk);
            let thread = thread::Builder::new().name("relatch-keeper".to_owned());
            let started = thread.spawn(move || desk.run());
            work.thread = Some(started.map_err(|error| Error::NoThread { source: error })?);
        } else {
            self.desk.wake(work, due);
        }
        Ok(())
    }

    /// Ends the thread and the listener's. In a forked child there is none. The key and token are for a lock of no other use.
    pub(crate) fn stop(&self, redis_key: &str, token: &str) {
        self.desk.listener.stop(redis_key, token);
        let mut work = self.desk.work.lock();
        work.stop = true;
        let thread = work.thread.take();
        drop(work);
        self.desk.bell.notify_one();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            warn!(target: "relatch::keeper", "the keeper had panicked");
        }
        if let Some(teller) = &self.desk.teller {
            teller.stop(self.desk.response_timeout);
        }
    }
}

impl Desk {
    fn run(&self) {
        let mut wire = None;
        while let Some((due, asked)) = self.next() {
            for hold in due.over {
                hold.lose(LostCause::Expired);
                self.tell(&hold);
            }
            for ask in asked {
                let answer = self.push_asked(&mut wire, &ask.hold);
                // Nobody is left to hear it where the deadline came first.
                let _ = ask.answer.send(answer);
            }
            for holds in due.renew.chunks(BATCH) {
                if self.stopping() {
                    break;
                }
                if let Err(trouble) = self.push(&mut wire, holds) {
                    let count = holds.len();
                    self.counters.renewal_errors.add(u64::try_from(count).unwrap_or(0));
                    warn!(target: "relatch::keeper",
                        "{count} leases were not renewed, trying again while they last: {trouble:?}");
                }
            }
            for leftover in due.remove {
                if self.stopping() {
                    break;
                }
                self.clean_up(&mut wire, &leftover);
            }
        }
    }

    /// Wakes the thread where something is due before it would wake up.
    fn wake(&self, mut work: MutexGuard<'_, Work>, due: Moment) {
        if work.sleeps_until.is_some_and(|until| due < until) {
            work.sleeps_until = Some(due);
            drop(work);
            self.bell.notify_one();
        }
    }

    /// The last handle is gone: what is not done is left to the leases.
    fn stopping(&self) -> bool {
        self.work.lock().stop
    }

    /// Waits until there is something to do; `None` when it is time to stop.
    fn next(&self) -> Option<(Due, Vec<Ask>)> {
        let mut work = self.work.lock();
        loop {
            if work.stop {
                return None;
            }
            let now = Moment::now();
            let asked = std::mem::take(&mut work.asked);
            let due = work.leases.take_due(now);
            if !due.is_empty() || !asked.is_empty() {
                work.sleeps_until = None;
                return Some((due, asked));
            }
            let until = work.leases.next();
            work.sleeps_until = Some(until);
            self.bell.wait_for(&mut work, until.since(now));
        }
    }

    /// Pushes out what somebody waits for. The connection may have gone stale: a second try has a new one.
    fn push_asked<'a>(&'a self, wire: &mut Option<Connection<'a>>, hold: &Arc<Hold>) -> Result<(), Trouble> {
        let hold = std::slice::from_ref(hold);
        match self.push(wire, hold) {
            Err(Trouble::NotSent(_) | Trouble::Unanswered { link_stands: false, .. }) => {
                self.push(wire, hold)
            }
            other => other,
        }
    }

    /// Pushes leases out in one round trip. An error says what happened to the first that got no proper answer.
    fn push<'a>(&'a self, wire: &mut Option<Connection<'a>>, holds: &[Arc<Hold>]) -> Result<(), Trouble> {
        let holds: Vec<_> = {
            let work = self.work.lock();
            // Not what was released since it fell due.
            holds.iter().filter(|hold| work.leases.has(hold)).collect()
        };
        if holds.is_empty() {
            return Ok(());
        }
        let deadline = self.deadline(&holds);
        let leases: Vec<Lease> = holds.iter().map(|hold| hold.lease()).collect();
        // What lives to be renewed is worth being told of at once when it is lost.
        self.listener.start();
        let mut work = self.work.lock();
        // Not sooner: whoever begins to listen after this says so after it was noted that these are sent.
        let number = self.listener.number();
        for (hold, lease) in holds.iter().zip(&leases) {
            hold.renewing(*lease, Moment::now(), deadline);
            work.leases.sending(hold, number.is_some(), Moment::now());
        }
        drop(work);
        let extensions: Vec<_> =
            holds.iter().zip(&leases).map(|(hold, lease)| extension(hold, *lease)).collect();
        let (sent, (answers, watch)) = self.over_wire(wire, deadline, |connection| {
            let sent = Moment::now();
            connection.extend_all(&extensions, number, deadline).map(|answers| (sent, answers))
        })?;
        if let Some(number) = number {
            self.listener.will_hear(number, watch);
        }
        let mut trouble = Ok(());
        let mut lost = Vec::new();
        let mut work = self.work.lock();
        for ((hold, lease), answer) in holds.iter().zip(leases).zip(answers) {
            match answer {
                // Released since, or about to be: what Redis says is about the release.
                _ if !work.leases.has(hold) => {}
                Ok(compared) => {
                    if verdict::on_renewal(hold, lease, sent, compared) {
                        self.counters.renewed.add(1);
                        work.leases.renewed(hold, self.teller.is_some(), sent);
                    } else {
                        work.leases.lost(hold);
                        lost.push(hold);
                    }
                }
                Err(refused) => trouble = Err(refused),
            }
        }
        drop(work);
        for hold in lost {
            self.tell(hold);
        }
        trouble
    }

    /// Deletes what an unanswered release may have left.
    fn clean_up<'a>(&'a self, wire: &mut Option<Connection<'a>>, leftover: &Leftover) {
        let deadline = self.deadline(&[]);
        let (key, token) = (&leftover.redis_key, &leftover.token);
        match self.over_wire(wire, deadline, |connection| connection.remove(key, token, deadline)) {
            Ok(compared) => {
                self.work.lock().leases.owed().settle(leftover);
                let done = compared == Compared::Done || !leftover.stray;
                self.counters.late_releases.add(u64::from(done));
            }
            Err(trouble) => {
                debug!(target: "relatch::release", "a late release of {key:?}: {trouble:?}, trying again while its lease lasts");
            }
        }
    }

    /// Until when to wait for an answer about these holds: for four fifths of what is left of the first to end, so that
    /// there is time for another try, and never past its end, where whoever holds it has to be told. Others that end
    /// are told in time too, but not at the cost of these.
    fn deadline(&self, holds: &[&Arc<Hold>]) -> Moment {
        let now = Moment::now();
        let ends = holds.iter().map(|hold| hold.valid_until()).filter(|end| *end > Moment::PAST);
        let left = ends.min().unwrap_or(Moment::NEVER).since(now);
        let share = if left > LAST_TRY { left / 5 * 4 } else { left };
        let others = self.work.lock().leases.first_end().since(now).max(FAIR_TRY);
        now.after(self.response_timeout.min(share).min(others))
    }

    /// Uses the keeper's own connection, opening it where need be; one that failed is not used again.
    fn over_wire<'a, T>(
        &'a self,
        wire: &mut Option<Connection<'a>>,
        deadline: Moment,
        exchange: impl FnOnce(&mut Connection<'a>) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut connection = match wire.take() {
            Some(connection) => connection,
            None => self.store.connect(deadline)?,
        };
        let result = exchange(&mut connection);
        if !connection.is_over() {
            *wire = Some(connection);
        }
        result
    }

    /// Hands word of a loss on, once per hold.
    fn tell(&self, hold: &Hold) {
        let Some(cause) = hold.lost().filter(|_| hold.to_be_told()) else {
            return;
        };
        self.counters.lost.add(1);
        warn!(target: "relatch::lost", "lock {:?} was lost: {cause}", hold.key().name());
        if let Some(teller) = &self.teller {
            teller.tell(hold, cause);
        }
    }
}

impl Audience for Desk {
    /// Whoever changed a lock's key, or deleted it: the next renewal finds out what became of it.
    fn changed(&self, redis_key: &[u8]) {
        let mut work = self.work.lock();
        let due = work.leases.changed(redis_key, Moment::now());
        self.wake(work, due);
    }

    fn anything_changed(&self) {
        let mut work = self.work.lock();
        let due = work.leases.anything_changed(Moment::now());
        self.wake(work, due);
    }
}

fn extension(hold: &Hold, lease: Lease) -> Extension<'_> {
    Extension { key: hold.key().in_redis(), token: hold.token(), lease: lease.millis() }
}
