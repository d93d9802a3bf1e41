//! The state that the keeper's thread shares with the threads that take and release locks.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::emit::{error, warn};
use crate::base::error::LostCause;
use crate::base::options::WarnAfter;
use crate::base::sync::thread::JoinHandle;
use crate::base::sync::{Condvar, HashMap, HashSet, Mutex, MutexGuard};
use crate::hold::Hold;
use crate::keeping::due::WorkDue;
use crate::keeping::losses::LossNotifier;
use crate::keeping::orphans::LAST_RETRY;
use crate::keeping::tokens::Tokens;
use crate::store::{Failure, Node};
use crate::waiting::core::Core;
use crate::waiting::deadlocks::wake_holders;

/// The keeper of one manager. Any thread notes work for it here.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) core: Arc<Core>,
    pub(crate) notifier: Option<LossNotifier>,
    pub(crate) work: Mutex<Work>,
    /// Wakes the keeping threads when something is due sooner than one of them knew.
    pub(crate) due_sooner: Condvar,
    /// Wakes the calls that wait for a renewal, and a shutdown.
    pub(crate) changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) tokens: Tokens,
    /// The threads that renew, by the number of their node.
    pub(super) renewers: HashMap<u64, JoinHandle<()>>,
    /// The time until which each thread sleeps, by its part. Work that is due later need not wake
    /// it.
    pub(crate) sleeps_until: HashMap<Option<u64>, Moment>,
    /// The limits with which the thread starts.
    pub(crate) warn_after: Option<WarnAfter>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) stop: bool,
    /// The refusals that were reported, by action and token. Old ones are forgotten.
    told: HashSet<(&'static str, String)>,
}

impl Work {
    pub(crate) fn new(reports_losses: bool) -> Work {
        Work {
            tokens: Tokens::new(reports_losses),
            renewers: HashMap::default(),
            sleeps_until: HashMap::default(),
            warn_after: None,
            thread: None,
            stop: false,
            told: HashSet::default(),
        }
    }

    fn tell_once(&mut self, action: &'static str, token: &str) -> bool {
        if self.told.len() > 10_000 {
            self.told.clear();
        }
        self.told.insert((action, token.to_owned()))
    }
}

/// The part of the work that one of the threads does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// The keeper's own thread ends holds by the clock. It also wakes for work that no other thread
    /// does yet.
    Ends,
    /// A node's thread renews the leases there, and deletes orphans.
    Node(&'a Node),
    /// Without servers, the keeper's thread does everything.
    All,
}

impl Part<'_> {
    fn node(self) -> Option<u64> {
        match self {
            Part::Node(node) => Some(node.number),
            Part::Ends | Part::All => None,
        }
    }
}

impl Keeper {
    /// Wakes the threads if one of them sleeps for longer than until `due`.
    pub(crate) fn wake(&self, work: MutexGuard<'_, Work>, due: Moment) {
        if work.sleeps_until.values().any(|until| due < *until) {
            drop(work);
            self.due_sooner.notify_all();
        }
    }

    /// True once the last handle of the manager is gone. Work that is not done by then is dropped:
    /// the keys expire with their leases.
    pub(crate) fn is_stopping(&self) -> bool {
        self.work.lock().stop
    }

    /// Waits until there is something to do for a thread, or until `latest`. `None` if it is time
    /// to stop.
    ///
    /// Also returns after each sleep, even if there is nothing to do: a warning may be due, or a
    /// connection may have ended.
    pub(crate) fn next_round(&self, part: Part<'_>, latest: Moment) -> Option<WorkDue> {
        let store = &self.core.store;
        let mut work = self.work.lock();
        let mut has_slept = false;
        while !work.stop {
            let now = Moment::now();
            let Work {
                tokens, renewers, ..
            } = &mut *work;
            let mine = |key: &str| match (part, store.node_of(key)) {
                (Part::All, _) => true,
                (Part::Ends, node) => node.is_some_and(|it| {
                    let thread = renewers.get(&it.number);
                    thread.is_none_or(JoinHandle::is_finished)
                }),
                (Part::Node(node), it) => it.is_some_and(|it| it.number == node.number),
            };
            let next = tokens.next(now, mine);
            let (mut due, mut until) = (WorkDue::default(), next.min(latest));
            if !matches!(part, Part::Ends) {
                due = tokens.take_due(now, mine);
            }
            if !matches!(part, Part::Node(_)) {
                due.over = tokens.take_over(now);
                until = until.min(tokens.next_end());
            }
            if matches!(part, Part::Ends) && tokens.due(now).next().is_some() {
                // Its node may leave, or may not be known yet. Perhaps no other thread reports
                // that.
                until = until.min(now.after(LAST_RETRY));
            }
            if has_slept || next <= now || !due.is_empty() {
                work.sleeps_until.remove(&part.node());
                return Some(due);
            }
            work.sleeps_until.insert(part.node(), until);
            self.due_sooner
                .wait_for(&mut work, until.one_wait_from(now));
            has_slept = true;
        }
        None
    }

    /// Ends holds that have run out by the clock.
    pub(crate) fn expire(&self, holds: &[Arc<Hold>]) {
        for hold in holds {
            hold.lose(LostCause::Expired);
            self.report_loss(hold);
        }
    }

    /// Reports a loss, once per hold: to `on_lost`; to the first waiter for the key; to a thread
    /// that has the hold and waits for another lock; to the statistics; and to the log. The last
    /// two may hold up the thread.
    pub(crate) fn report_loss(&self, hold: &Hold) {
        let Some(cause) = hold.lost().filter(|_| hold.report_once()) else {
            return;
        };
        if let Some(notifier) = &self.notifier {
            notifier.notify(hold, cause, Moment::now());
        }
        self.changed.notify_all();
        self.core.queues.wake_first(hold.key.name());
        // Threads that wait for slots are not in this key's queue, and have heard of no change of
        // the key.
        self.core
            .listeners
            .wakeups
            .wake(hold.key.in_redis().as_bytes());
        wake_holders(hold);
        // (This calls the program's recorder, which may be slow.)
        self.core.counters.of(hold.key.name()).lost.add(1);
        warn!(target: "relatch::lost", "lock {:?} was lost: {cause}", hold.key.name());
    }

    /// Reports a permanent refusal concerning this token's key to the log and the statistics: the
    /// lock will be lost, or stays taken, and perhaps no call says so. Reports it once, however
    /// often the action is tried.
    pub(crate) fn report_refusal(&self, action: &'static str, it: [&str; 2], failure: &Failure) {
        let [redis_key, token] = it;
        if failure.can_pass() || !self.work.lock().tell_once(action, token) {
            return;
        }
        let error = self.core.store.error(None, action, failure.copy());
        self.core.counters_of(redis_key).failed(&error);
        error!(target: "relatch::refused",
            "key {redis_key:?} ends with its lease: {error}; `LockManager::check` says what is missing");
    }

    /// Handles the invalidation of a key. `None`: any key of the node may have changed. If the key
    /// belongs to a hold, the keeper renews the hold, and so finds out what became of it. True if
    /// it does so for this key.
    pub(crate) fn invalidated(&self, redis_key: Option<&[u8]>, node: &Node) -> bool {
        let mut work = self.work.lock();
        let now = Moment::now();
        let (due, shows) = if let Some(redis_key) = redis_key {
            work.tokens.invalidated(redis_key, now)
        } else {
            let may_be_here = |key: &[u8]| self.core.store.may_be_at(node, key);
            (work.tokens.invalidated_those(may_be_here, now), true)
        };
        self.wake(work, due);
        shows
    }

    /// Another server has these keys now. The waiters ask it at once, and the keeper renews each
    /// hold that it renews at all, so that a loss is found at once.
    pub(crate) fn moved(&self, has_moved: &dyn Fn(&[u8]) -> bool) {
        self.core.listeners.wakeups.wake_those(has_moved);
        let mut work = self.work.lock();
        work.tokens.moved(has_moved, Moment::now());
        // Work that is overdue at a node that has left needs another thread, even if it concerns no
        // hold.
        self.wake(work, Moment::PAST);
    }
}
