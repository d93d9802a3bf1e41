//! Who waits for which key in this process: first come, first served.
//!
//! One thread of a process talks to Redis about a key; the others stand in line behind it and send nothing.
//! The turn goes on when the holder has released, or is dropped without that; and a holder whose
//! hold is over without a release (its thread never came back) is passed by.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::Moment;
use crate::hold::Hold;
use crate::holder::Holder;

/// How often the first in line looks whether the hold in front of it is over.
///
/// Only for holds that end without a release: a guard that was forgotten, a thread that hangs. Being told of
/// every hold would cost a switch of threads per turn.
const GLANCE: Duration = Duration::from_secs(1);

/// How long a thread that is about to be called stays awake for it.
///
/// A sleeping thread takes tens of microseconds to wake up, as long as Redis takes for a command. So the first in
/// line is told to get up while the turn in front of it is about to end: when its release starts or, where the turn
/// before was over within this time, from its beginning. A lock that is held for long costs no waiter more than this,
/// once.
const AWAKE: Duration = Duration::from_micros(200);

/// The lines of one manager.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    by_name: HashMap<Arc<str>, Line>,
    /// Turns that were ever given.
    turns: u64,
}

/// One key's line. It exists as long as somebody has the turn or waits for it.
#[derive(Debug, Default)]
struct Line {
    front: Option<Front>,
    waiting: VecDeque<Arc<Waiter>>,
    /// The last turn was short, so the next may be.
    brisk: bool,
}

/// Who has the turn: a thread that talks to Redis, or one that holds the lock.
#[derive(Debug)]
struct Front {
    /// Tells the turns apart, so that one that was passed by does not end its successor's.
    number: u64,
    started: Moment,
    hold: Option<Arc<Hold>>,
    seen: Option<Holder>,
    /// It will be over in a moment: whoever is next may stay awake for it.
    ending: bool,
}

/// A thread in line. Known by its address.
#[derive(Debug, Default)]
struct Waiter {
    called: Condvar,
    /// The turn in front of it is over.
    up: AtomicBool,
}

impl Waiter {
    fn call(&self) {
        self.up.store(true, Ordering::Release);
        self.called.notify_one();
    }

    /// Stays awake until it is called, for a moment.
    fn await_call(&self) {
        let end = Moment::now().after(AWAKE);
        while !self.up.load(Ordering::Acquire) && Moment::now() < end {
            thread::yield_now();
        }
    }
}

/// The right to talk to Redis about a key, and the place of the hold that comes of it. Goes on when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Arc<Queue>,
    name: Arc<str>,
    number: u64,
    waited: bool,
}

/// Why there was no turn.
#[derive(Debug)]
pub(crate) enum NoTurn {
    /// The wait was over; who was in front, where that is known.
    Busy(Option<Holder>),
    /// The caller itself holds the lock, through another manager.
    Mine,
}

impl Queue {
    /// The turn, after those who came before; or, at the deadline, whoever kept the caller waiting.
    ///
    /// With a deadline in the past: the turn if it is free, without waiting. `is_mine` tells whether a holder that
    /// Redis named is the caller itself, through another manager.
    pub(crate) fn join(
        self: &Arc<Queue>,
        name: &Arc<str>,
        deadline: Moment,
        is_mine: impl Fn(&Holder) -> bool,
    ) -> Result<Turn, NoTurn> {
        let mut lines = self.lines.lock();
        if let Some(number) = lines.start_turn(name, None, Moment::now()) {
            return Ok(self.turn(name, number, false));
        }
        let me = Arc::new(Waiter::default());
        lines.line(name).waiting.push_back(Arc::clone(&me));
        let mut awaited = None;
        loop {
            let now = Moment::now();
            if let Some(number) = lines.start_turn(name, Some(&me), now) {
                let next = lines.line(name).waiting.front().cloned();
                drop(lines);
                if let Some(next) = next {
                    next.called.notify_one(); // It is first in line now, and may stay awake.
                }
                return Ok(self.turn(name, number, true));
            }
            let mine = lines.line(name).seen().is_some_and(&is_mine);
            if mine || deadline <= now {
                let (holder, next) = lines.line(name).step_out(&me, now);
                drop(lines);
                if let Some(next) = next {
                    next.called.notify_one(); // It is the one who watches the front from now on.
                }
                return Err(if mine { NoTurn::Mine } else { NoTurn::Busy(holder) });
            }
            let ending = lines.line(name).ending(&me);
            if ending.is_some() && ending != awaited {
                awaited = ending;
                MutexGuard::unlocked(&mut lines, || me.await_call());
                continue;
            }
            let look_again = lines.line(name).look_again(&me, now).min(deadline);
            // A wake-up is only a hint: the loop looks again.
            me.called.wait_for(&mut lines, look_again.since(now));
        }
    }

    fn turn(self: &Arc<Queue>, name: &Arc<str>, number: u64, waited: bool) -> Turn {
        Turn { queue: Arc::clone(self), name: Arc::clone(name), number, waited }
    }
}

impl Lines {
    fn line(&mut self, name: &Arc<str>) -> &mut Line {
        self.by_name.entry(Arc::clone(name)).or_default()
    }

    /// Gives the turn to `waiter`, or to one who comes from outside, if it is theirs; returns its number.
    fn start_turn(&mut self, name: &Arc<str>, waiter: Option<&Arc<Waiter>>, now: Moment) -> Option<u64> {
        let number = self.turns + 1;
        let line = self.line(name);
        if !line.is_open(now) || !line.is_next(waiter) {
            return None;
        }
        line.waiting.pop_front();
        line.front = Some(Front { number, started: now, hold: None, seen: None, ending: line.brisk });
        self.turns = number;
        Some(number)
    }
}

impl Line {
    /// True where the turn may be taken: nobody has it, or the one who has it lost what he held.
    fn is_open(&self, now: Moment) -> bool {
        self.front.as_ref().is_none_or(|front| front.hold.as_ref().is_some_and(|hold| hold.is_over(now)))
    }

    /// True for the first in line; with nobody in line, for anybody.
    fn is_next(&self, waiter: Option<&Arc<Waiter>>) -> bool {
        match (self.waiting.front(), waiter) {
            (Some(first), Some(waiter)) => Arc::ptr_eq(first, waiter),
            (None, _) => true,
            (Some(_), None) => false,
        }
    }

    /// The number of the turn whose end the waiter is about to see.
    fn ending(&self, waiter: &Arc<Waiter>) -> Option<u64> {
        let front = self.front.as_ref().filter(|front| front.ending && self.is_next(Some(waiter)));
        front.map(|front| front.number)
    }

    /// When a waiter that nobody calls has to look again by himself.
    fn look_again(&self, waiter: &Arc<Waiter>, now: Moment) -> Moment {
        if !self.is_next(Some(waiter)) {
            return Moment::NEVER;
        }
        let hold = self.front.as_ref().and_then(|front| front.hold.as_ref());
        hold.map(|hold| hold.valid_until())
            .filter(|end| *end > now)
            .unwrap_or(Moment::NEVER)
            .min(now.after(GLANCE))
    }

    /// Leaves the line; returns whom it was waiting for, and who is first in line instead.
    fn step_out(&mut self, waiter: &Arc<Waiter>, now: Moment) -> (Option<Holder>, Option<Arc<Waiter>>) {
        let was_first = self.is_next(Some(waiter));
        self.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
        let next = self.waiting.front().filter(|_| was_first).cloned();
        (self.holder(now), next)
    }

    /// Who has the lock in another process, or through another manager.
    fn seen(&self) -> Option<&Holder> {
        self.front.as_ref()?.seen.as_ref()
    }

    /// Who keeps the line waiting, as far as this process knows.
    fn holder(&self, now: Moment) -> Option<Holder> {
        let front = self.front.as_ref()?;
        front.hold.as_ref().map(|hold| hold.as_holder(now)).or_else(|| front.seen.clone())
    }
}

impl Turn {
    /// It was not free at once.
    pub(crate) fn waited(&self) -> bool {
        self.waited
    }

    /// The turn is used for a hold now: it lasts as long as that.
    pub(crate) fn holds(&self, hold: &Arc<Hold>) {
        self.with_front(|front| front.hold = Some(Arc::clone(hold)));
    }

    /// Somebody else has the lock: those in line may say so when their wait is over.
    ///
    /// Where that is a thread of this process, through another manager, it may be one of them.
    pub(crate) fn saw(&self, holder: &Holder, of_this_process: bool) {
        self.with_front(|front| front.seen = Some(holder.clone()));
        if of_this_process {
            let lines = self.queue.lines.lock();
            for waiter in lines.by_name.get(&self.name).into_iter().flat_map(|line| &line.waiting) {
                waiter.called.notify_one();
            }
        }
    }

    /// The hold is being released: whoever is next may get ready.
    pub(crate) fn ends_soon(&self) {
        let next = self.with_front(|front| front.ending = true);
        if let Some(next) = next {
            next.called.notify_one();
        }
    }

    /// Changes the entry of this turn, unless it was passed by; returns who is next in line.
    fn with_front(&self, change: impl FnOnce(&mut Front)) -> Option<Arc<Waiter>> {
        let mut lines = self.queue.lines.lock();
        let line = lines.by_name.get_mut(&self.name)?;
        change(line.front.as_mut().filter(|front| front.number == self.number)?);
        line.waiting.front().cloned()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = self.queue.lines.lock();
        let Some(line) = lines.by_name.get_mut(&self.name) else {
            return;
        };
        let Some(front) = line.front.take_if(|front| front.number == self.number) else {
            return; // Passed by: the turn is somebody else's.
        };
        line.brisk = Moment::now().since(front.started) < AWAKE;
        let next = line.waiting.front().cloned();
        if next.is_none() {
            lines.by_name.remove(&self.name);
        }
        drop(lines);
        if let Some(next) = next {
            next.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::hold::tests::sample;

    fn name() -> Arc<str> {
        "key".into()
    }

    fn at_once(queue: &Arc<Queue>, name: &Arc<str>) -> Option<Turn> {
        queue.join(name, Moment::PAST, |_| false).ok()
    }

    fn soon() -> Moment {
        Moment::now().after(Duration::from_secs(10))
    }

    #[test]
    fn one_turn_at_a_time() {
        let queue = Arc::new(Queue::default());
        let turn = at_once(&queue, &name()).unwrap();
        assert!(at_once(&queue, &name()).is_none());
        assert!(at_once(&queue, &"other".into()).is_some());
        assert!(at_once(&queue, &name()).is_none());
        drop(turn);
        drop(at_once(&queue, &name()).unwrap());
        assert!(queue.lines.lock().by_name.is_empty(), "nothing is kept of a key that nobody uses");
    }

    #[test]
    fn turns_go_in_the_order_of_arrival() {
        let queue = Arc::new(Queue::default());
        let turn = at_once(&queue, &name()).unwrap();
        let (told, order) = mpsc::channel();
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let (line, told) = (Arc::clone(&queue), told.clone());
                let thread = thread::spawn(move || {
                    let turn = line.join(&name(), soon(), |_| false).unwrap();
                    told.send(n).unwrap();
                    drop(turn);
                });
                while queue.lines.lock().line(&name()).waiting.len() <= n {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        drop(turn);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(queue.lines.lock().by_name.is_empty());
    }

    #[test]
    fn a_hold_that_ran_out_is_passed_by_and_its_turn_ends_nobody_elses() {
        let queue = Arc::new(Queue::default());
        let zombie = at_once(&queue, &name()).unwrap();
        let hold = Arc::new(sample("key", Duration::from_millis(20), Moment::now()));
        zombie.holds(&hold);
        let turn = queue.join(&name(), soon(), |_| false).unwrap();
        assert!(!hold.is_valid(Moment::now()));
        drop(zombie);
        assert!(at_once(&queue, &name()).is_none(), "the turn is still taken");
        drop(turn);
        assert!(at_once(&queue, &name()).is_some());
    }

    #[test]
    fn whoever_gives_up_says_who_was_in_front() {
        let queue = Arc::new(Queue::default());
        let turn = at_once(&queue, &name()).unwrap();
        let hold = Arc::new(sample("key", Duration::from_secs(5), Moment::now()));
        turn.holds(&hold);
        let Err(NoTurn::Busy(Some(holder))) = queue.join(&name(), Moment::now(), |_| false) else {
            panic!("it is busy, and it is known with whom");
        };
        assert_eq!(holder.raw(), hold.token());
        assert!(queue.lines.lock().line(&name()).waiting.is_empty());
    }

    #[test]
    fn whoever_waits_for_himself_through_another_manager_is_told() {
        let queue = Arc::new(Queue::default());
        let turn = at_once(&queue, &name()).unwrap();
        let line = Arc::clone(&queue);
        let waiter = thread::spawn(move || line.join(&name(), soon(), |holder| holder.raw() == "mine"));
        while queue.lines.lock().line(&name()).waiting.is_empty() {
            thread::yield_now();
        }
        turn.saw(&Holder::new(b"mine", None), true);
        assert!(matches!(waiter.join().unwrap(), Err(NoTurn::Mine)));
        assert!(queue.lines.lock().line(&name()).waiting.is_empty());
    }
}
