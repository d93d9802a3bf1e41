//! What calls may return, and when.

use std::cell::RefCell;
use std::time::Duration;

use crate::Error;
use crate::base::sync::scheduler::{fail, now, thread_number, trace};
use crate::session::thread_map;
use crate::simulation::judge::ledger;
use crate::simulation::judge::turns;
use crate::simulation::judge::{self, Who};
use crate::simulation::scene::Sent;
use crate::simulation::scene::plan::Body;
use crate::simulation::scene::player::Failed;

thread_local! {
    static CALLS: RefCell<Vec<Call>> = RefCell::default();
    /// Which processes have stopped their waits, and which of their managers. When it began.
    static STOPS: RefCell<Vec<(usize, Option<usize>, u64)>> = RefCell::default();
}

/// How late a call may be that keeps its deadline: what its thread does behind the last timer.
pub(super) const LATE: Duration = Duration::from_millis(2);

/// How old the map of a cluster is at most.
const OLD_MAP: Duration = Duration::from_secs(11);

/// A call of the crate.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(super) number: usize,
    pub(crate) who: Who,
    pub(crate) keys: Vec<usize>,
    pub(super) what: &'static str,
    pub(crate) began: u64,
    pub(super) ended: Option<u64>,
    /// It begins after a shutdown of its manager, and is no reentry.
    pub(super) has_to_be_refused: bool,
    /// The process can stop it.
    pub(super) heeds: bool,
    /// The parcel that it adopts: when its hold began, and until when it can be adopted by the
    /// only process that has it.
    pub(crate) parcel: Option<(u64, u64)>,
}

/// A new scene begins.
pub(crate) fn begin() {
    CALLS.take();
    STOPS.take();
}

/// The waits of a process end, or those of one manager, which takes no locks any more.
pub(crate) fn stops(process: usize, manager: Option<usize>) {
    STOPS.with_borrow_mut(|stops| stops.push((process, manager, now())));
}

/// The calls of a process that wait for this lock, and have waited since then.
pub(crate) fn waiting(key: usize, since: u64) -> Vec<Call> {
    let waits = |call: &Call| {
        call.keys == [key]
            && call.ended.is_none()
            && call.began < since
            && matches!(call.what, "lock" | "with_lock")
    };
    CALLS.with_borrow(|calls| calls.iter().filter(|it| waits(it)).cloned().collect())
}

/// Whether a thread of the process is in a call for several locks. The judge does not know which of
/// them it has already.
pub(crate) fn takes_several(process: usize, thread: Option<u64>, key: usize, since: u64) -> bool {
    let is_it = |call: &Call| {
        call.who.process == process
            && thread.is_none_or(|it| it == call.who.thread)
            && call.keys.len() > 1
            && call.keys.contains(&key)
            && call.ended.is_none_or(|at| at >= since)
    };
    CALLS.with_borrow(|calls| calls.iter().any(is_it))
}

impl Call {
    pub(crate) fn begins(who: Who, keys: &[usize], what: &'static str) -> Call {
        CALLS.with_borrow_mut(|calls| {
            let (number, began) = (calls.len(), now());
            let is_shut =
                |it: &(usize, Option<usize>, u64)| it.0 == who.process && it.1 == Some(who.manager);
            let is_new = |key: &usize| !judge::has(who.process, Some(who.thread), *key, began);
            let has_to_be_refused =
                STOPS.with_borrow(|stops| stops.iter().any(is_shut)) && keys.iter().any(is_new);
            let (keys, ended, heeds, parcel) = (keys.to_vec(), None, false, None);
            calls.push(Call {
                number,
                who,
                keys,
                what,
                began,
                ended,
                has_to_be_refused,
                heeds,
                parcel,
            });
            calls[number].clone()
        })
    }

    pub(crate) fn heeding(self, heeds: bool) -> Call {
        Call { heeds, ..self }
    }

    pub(crate) fn adopts(self, it: &Sent) -> Call {
        let left = if it.is_copied {
            Duration::ZERO
        } else {
            Duration::from_millis(it.parcel.left)
        };
        let left = left.saturating_sub(left / 100 + LATE);
        Call {
            parcel: Some((
                it.began,
                it.at + u64::try_from(left.as_nanos()).expect("a lease"),
            )),
            ..self
        }
    }

    /// What was handed over can be adopted until its lease ends, unless another process has adopted
    /// it.
    pub(super) fn may_lack_parcel(&self) -> bool {
        self.parcel.is_some_and(|(began, until)| {
            until < now()
                || judge::was_removed(self.keys[0], began)
                || ledger::trouble(began, now())
                || judge::was_paused(self.who.process, began)
        })
    }

    pub(crate) fn blame(&self, why: impl std::fmt::Display) {
        fail(format!(
            "{} of {:?} by {:?}: {why}",
            self.what, self.keys, self.who
        ));
    }

    /// The call has returned, and had to by `limit`, if it has one.
    pub(crate) fn ends(&self, limit: Option<Duration>) {
        CALLS.with_borrow_mut(|calls| calls[self.number].ended = Some(now()));
        let took = Duration::from_nanos(now() - self.began);
        let Some(limit) = limit else { return };
        let is_excused = ledger::stalls() || judge::was_paused(self.who.process, self.began);
        // The clock of the process may be slow.
        if took > limit + limit / 100 + LATE && !is_excused {
            self.blame(format!("it took {took:?}, and has a limit of {limit:?}"));
        }
    }

    /// An error that is due to what is between the process and the server, or to its pause.
    pub(crate) fn has_trouble(&self) -> bool {
        let limits = judge::program(self.who.process).response * 3;
        self.had_trouble(Duration::from_millis(limits))
    }

    /// The same, up to `span` before.
    fn had_trouble(&self, span: Duration) -> bool {
        let span = u64::try_from(span.as_nanos()).expect("a short time");
        let since = self.began.saturating_sub(span);
        ledger::trouble(since, now()) || judge::was_paused(self.who.process, since)
    }

    /// The lock was busy.
    pub(crate) fn was_busy(&self) {
        let program = judge::program(self.who.process);
        let others = CALLS.with_borrow(|calls| {
            let is_other = |other: &&Call| {
                other.number != self.number
                    && other.who.process == self.who.process
                    && other.ended.is_none_or(|at| at >= self.began)
                    && (program.pool < 3 || other.keys.iter().any(|key| self.keys.contains(key)))
            };
            calls.iter().any(|other| is_other(&other))
        });
        // A thread that has not learned of its loss yet counts as a holder.
        let others = others
            || self
                .keys
                .iter()
                .any(|key| judge::has(self.who.process, None, *key, self.began));
        // A process leaves a lock to others for some milliseconds.
        let since = self.began.saturating_sub(10_000_000);
        let was_there = self.keys.iter().any(|key| ledger::was_there(*key, since));
        // A wait of less than 20 ms may end before the server could be asked.
        let is_short = (900_000..22_000_000).contains(&(now() - self.began));
        if !was_there && !others && !is_short && !self.has_trouble() {
            self.blame("the lock was free");
        }
    }

    /// The call has given no lock.
    pub(crate) fn has_failed(&self, error: &Error) {
        match error {
            // A lock of a set was lost before the others were taken.
            Error::Timeout {
                source: Some(why), ..
            } if why.to_string().contains("lost before") => self.has_lost(error),
            Error::Timeout { .. } => self.was_busy(),
            Error::Unavailable { .. } | Error::Refused { .. } if self.has_trouble() => {}
            // A single try does not wait for a new map of a cluster.
            Error::Unavailable { .. }
                if self.what.starts_with("try_") && self.had_trouble(OLD_MAP) => {}
            // An answer that a proxy repeats may be that for another key.
            Error::WouldDeadlock { .. }
                if self
                    .keys
                    .iter()
                    .any(|it| judge::was_removed(*it, self.began)) => {}
            Error::WouldDeadlock { cycle, .. } => {
                let is_mine = |it: &crate::BlockedThread| Some(it.thread.thread) == thread_number();
                if !cycle.first().is_some_and(is_mine) {
                    self.blame("the cycle does not begin with this thread");
                }
                for (number, one) in cycle.iter().enumerate() {
                    let next = &cycle[(number + 1) % cycle.len()];
                    let key = one.key[1..].parse().expect("a key");
                    self.is_edge(one.thread.thread, key, next.thread.thread);
                }
            }
            Error::Stopped { .. } if self.was_stopped() => {
                // Somebody may have removed what it had got by then, and `on_lost` is told.
                let is_removed = |key: &usize| judge::was_removed(*key, self.began);
                if self.keys.iter().any(is_removed) {
                    judge::undone(self.who);
                }
            }
            Error::AlreadyHeld { .. } if self.has_one() => {}
            Error::Lost { .. } | Error::OuterLost { .. } | Error::NothingToAdopt { .. } => {
                self.has_lost(error);
            }
            _ => self.blame(format!("{error:?}")),
        }
    }

    pub(super) fn has_one(&self) -> bool {
        let Who {
            process, thread, ..
        } = self.who;
        self.keys
            .iter()
            .any(|key| judge::has(process, Some(thread), *key, self.began))
    }

    /// One thread waited for a lock that the next one held.
    pub(super) fn is_edge(&self, thread: u64, key: usize, next: u64) {
        let process = self.who.process;
        let waits = CALLS.with_borrow(|calls| {
            let is_it = |call: &Call| {
                (call.who.process, call.who.thread) == (process, thread)
                    && call.keys.contains(&key)
                    && call.ended.is_none_or(|at| at >= self.began)
            };
            calls.iter().any(is_it)
        });
        let is_taking = takes_several(process, Some(next), key, self.began);
        if !waits || !is_taking && !judge::has(process, Some(next), key, self.began) {
            self.blame(format!(
                "no deadlock: {thread} waits for {key}: {waits}, and {next} has it not"
            ));
        }
    }

    pub(super) fn was_stopped(&self) -> bool {
        let Who {
            process, manager, ..
        } = self.who;
        let counts = |it: Option<usize>| it.map_or(self.heeds, |it| it == manager);
        let is_it = |it: &(usize, Option<usize>, u64)| it.0 == process && counts(it.1);
        let stopped =
            STOPS.with_borrow(|stops| stops.iter().filter(|it| is_it(it)).map(|it| it.2).min());
        let Some(stopped) = stopped else { return false };
        let program = judge::program(process);
        // An answer that is due is waited for. So is a connection: if the pool has none left, until
        // those in front are done with theirs.
        let since = stopped.max(self.began);
        let is_beside = |other: &&Call| {
            (other.who.process, other.who.manager) == (process, manager)
                && other.ended.is_none_or(|at| at >= since)
        };
        let beside = CALLS.with_borrow(|calls| calls.iter().filter(is_beside).count());
        let rounds = beside.div_ceil(program.pool as usize) as u64;
        let limit = Duration::from_millis(program.response * 3 * rounds) + LATE * 5;
        let took = Duration::from_nanos(now() - since);
        if took > limit && !ledger::stalls() && !judge::was_paused(process, self.began) {
            self.blame(format!("it went on for {took:?} after a stop"));
        }
        true
    }

    /// The call says that a hold was lost, or one around it.
    pub(super) fn has_lost(&self, error: &Error) {
        // The judge may not know the outer one: it was lost before it was told of it.
        let outer = match error {
            Error::OuterLost { outer, .. } => outer[1..].parse().ok(),
            _ => None,
        };
        let is_explained = judge::held_by(self.who).into_iter().any(judge::may_be_lost)
            || self.keys.iter().chain(&outer).any(|key| judge::was_removed(*key, self.began))
            || self.has_trouble()
            || self.may_lack_parcel()
            // A set takes its locks one after the other, and may lose the first meanwhile.
            || judge::was_released(self.who)
            // The judge does not know the locks that are taken first.
            || self.keys.len() > 1 && !judge::program(self.who.process).renews;
        if !is_explained {
            self.blame(format!("no reason for {error:?}"));
        }
        judge::undone(self.who);
    }

    /// The call has given a lock, just now.
    pub(crate) fn has_got(&self) {
        if self.has_to_be_refused {
            self.blame("it was stopped before");
        }
        self.was_stopped();
        turns::came_in_turn(self);
    }

    /// What the call has given.
    pub(crate) fn got<T>(&self, taken: Result<Option<T>, Error>) -> Option<T> {
        trace(|| match &taken {
            Ok(Some(_)) => format!("{}: taken", self.what),
            Ok(None) => format!("{}: busy", self.what),
            Err(error) => format!("{}: {error:?}", self.what),
        });
        match taken {
            Ok(Some(taken)) => {
                self.has_got();
                return Some(taken);
            }
            Ok(None) => self.was_busy(),
            Err(Error::InvalidOption { .. }) if self.keys.is_empty() => {}
            Err(error) => self.has_failed(&error),
        }
        None
    }

    /// A closure under the lock has run, under this hold if the judge knows it.
    pub(crate) fn ran(
        &self,
        ran: bool,
        number: Option<usize>,
        body: Body,
        result: Option<Result<Option<()>, Failed>>,
    ) {
        let left = number.map(judge::ends);
        let is_lost = number.is_none_or(judge::may_be_lost);
        let Some(result) = result else {
            if !ran || body != Body::Panics {
                self.blame("it panicked");
            }
            return;
        };
        let mut held = judge::held_by(self.who).into_iter();
        let begun = ran || held.any(|it| !judge::hold(it).is_detached);
        if let Err(Failed::Lock(error)) = &result
            && (begun && !error.body_ran() && !matches!(error, Error::InvalidOption { .. })
                || !begun && error.body_ran() && thread_map::names().is_empty() && !error.is_lost())
        {
            self.blame(format!("body_ran is {} for {error:?}", error.body_ran()));
        }
        match (result, ran) {
            (Ok(Some(())), true) if left == Some(0) && !is_lost => {
                self.is_gone(number.expect("it is known"), false);
            }
            (Ok(Some(())), true) => {}
            (Err(Failed::Own), true) if body == Body::Fails => {}
            (Err(Failed::Lock(Error::Lost { .. })), true) if is_lost => {}
            (Err(Failed::Lock(error @ Error::OuterLost { .. })), true) => self.has_lost(&error),
            (Ok(None), false) => self.was_busy(),
            (Err(Failed::Lock(error)), false) => self.has_failed(&error),
            (other, _) => self.blame(format!("it ran: {ran}, and returned {other:?}")),
        }
    }
}
