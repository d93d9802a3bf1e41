//! Who waits for which key in this process: first come, first served.
//!
//! One thread of a process talks to Redis about a key; the others stand in line behind it and send
//! nothing. The turn goes on when it is dropped, which is after the release; a hold that is over
//! without one is passed by. A release may take the next thread's wish along.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::hold::Hold;
use crate::holder::Holder;
use crate::line::{Line, Past, Start};
use crate::options::HandOn;
use crate::patience::{Patience, SLOW_ANSWER, Silence};
use crate::sync::{Mutex, MutexGuard};
use crate::waiter::{Cores, Handed, Waiter, Wish};

/// Of how many keys a manager remembers the past, when nobody in this process wants them any more.
const REMEMBERED: usize = 8;

/// The lines of one manager.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lines: Mutex<Lines>,
    cores: Cores,
}

#[derive(Debug, Default)]
struct Lines {
    by_name: HashMap<Arc<str>, Line>,
    /// Turns that were ever given.
    turns: u64,
    /// The last lines that came to their end, the latest last.
    ended: VecDeque<(Arc<str>, Past)>,
}

/// The right to talk to Redis about a key, and the place of the hold that comes of it. Goes on when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Arc<Queue>,
    name: Arc<str>,
    pub(crate) start: Start,
    /// It was not free at once.
    pub(crate) waited: bool,
    passed: bool,
}

/// Why there was no turn.
#[derive(Debug)]
pub(crate) enum NoTurn {
    /// The wait was over; who was in front, where that is known.
    Busy(Option<Holder>),
    /// The caller itself holds the lock, through another manager.
    Mine,
    /// The wait was over, and the thread in front gets no answer from Redis: in its words, where
    /// there are any.
    Outage(Option<Arc<str>>),
}

impl Queue {
    /// The turn, after those who came before; or, at the deadline, whoever kept the caller waiting.
    ///
    /// Where one answer is enough: the turn if it is free, without waiting. `is_mine` tells whether
    /// a holder that Redis named is the caller itself, through another manager; `answered_since`,
    /// whether Redis has answered anybody since; `wish` is what the caller wants, if it has to
    /// wait. `look_after` is called with a hold that has kept the first in line waiting for a
    /// while, and that nobody has looked at in Redis since it was taken: if its key was deleted by
    /// hand, no other in this process would learn of that.
    pub(crate) fn join(
        self: &Arc<Queue>,
        name: &Arc<str>,
        patience: &Patience,
        is_mine: impl Fn(&Holder) -> bool,
        answered_since: impl Fn(Moment) -> bool,
        look_after: impl Fn(&Hold),
        wish: impl FnOnce() -> Wish,
    ) -> Result<Turn, NoTurn> {
        let mut lines = self.lines.lock();
        if let Some(start) = lines.start_turn(name, None, patience.once, Moment::now()) {
            return Ok(self.turn(name, start, false));
        }
        if patience.once {
            let line = lines.line(name);
            let mine = line.seen().is_some_and(&is_mine);
            return Err(if mine { NoTurn::Mine } else { NoTurn::Busy(line.holder(Moment::now())) });
        }
        let me = Arc::new(Waiter::new(wish(), patience.deadline));
        lines.line(name).waiting.push_back(Arc::clone(&me));
        let (mut awaited, mut look_again) = (None, Moment::NEVER);
        loop {
            let now = Moment::now();
            if let Some(start) = lines.start_turn(name, Some(&me), false, now) {
                notify_first(lines, name); // It may stay awake.
                return Ok(self.turn(name, start, true));
            }
            let mine = lines.line(name).seen().is_some_and(&is_mine);
            // A thread that has no answer knows less than others that have theirs.
            let silence =
                lines.line(name).silence.as_ref().filter(|it| !it.is_refuted(&answered_since)).cloned();
            // Where the whole process was stopped, the answer may be there for the thread in front
            // to read.
            let overslept = now.since(look_again) > SLOW_ANSWER;
            let outage = silence.as_ref().filter(|silence| patience.is_outage(silence, now));
            let outage = outage.filter(|silence| silence.words.is_some() || !overslept);
            if mine || outage.is_some() || patience.deadline <= now {
                let (holder, was_first) = lines.line(name).step_out(&me, now);
                if was_first {
                    notify_first(lines, name); // It is the one that watches the front from now on.
                }
                return Err(match outage {
                    _ if mine => NoTurn::Mine,
                    Some(silence) => NoTurn::Outage(silence.words.clone()),
                    None => NoTurn::Busy(holder),
                });
            }
            let ending = lines.line(name).ending(&me);
            if ending.is_some() && ending != awaited && self.cores.are_free(now) {
                awaited = ending;
                MutexGuard::unlocked(&mut lines, || self.cores.await_call(&me));
                continue;
            }
            let unseen = lines.line(name).unseen_hold(&me).filter(|_| look_again <= now);
            look_again =
                lines.line(name).look_again(&me, now).min(patience.look_again(silence.as_ref(), now));
            if overslept {
                look_again = look_again.max(now.after(SLOW_ANSWER)).min(patience.deadline);
            }
            if let Some(hold) = unseen {
                MutexGuard::unlocked(&mut lines, || look_after(&hold));
                continue;
            }
            // A wake-up is only a hint: the loop looks again.
            me.called.wait_for(&mut lines, look_again.since(now));
        }
    }

    /// A hold of this process is lost: the first in line looks now, and not at its next glance.
    pub(crate) fn call_first(&self, name: &str) {
        notify_first(self.lines.lock(), name);
    }

    fn turn(self: &Arc<Queue>, name: &Arc<str>, start: Start, waited: bool) -> Turn {
        Turn { queue: Arc::clone(self), name: Arc::clone(name), start, waited, passed: false }
    }
}

impl Lines {
    fn line(&mut self, name: &Arc<str>) -> &mut Line {
        let ended = &mut self.ended;
        self.by_name.entry(Arc::clone(name)).or_insert_with(|| {
            let before = ended.iter().position(|(ended, _)| ended == name);
            let past = before.and_then(|place| ended.remove(place)).map(|(_, past)| past);
            Line::after(past.unwrap_or_default())
        })
    }

    /// Ends a line. What is left of it is remembered for a while.
    fn end(&mut self, name: &Arc<str>) {
        if let Some(line) = self.by_name.remove(name) {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back((Arc::clone(name), line.past));
        }
    }

    fn start_turn(
        &mut self,
        name: &Arc<str>,
        waiter: Option<&Arc<Waiter>>,
        once: bool,
        now: Moment,
    ) -> Option<Start> {
        let number = self.turns + 1;
        let start = self.line(name).start_turn(number, waiter, once, now)?;
        self.turns = self.turns.max(start.number);
        Some(start)
    }
}

/// Has the first in line look again.
fn notify_first(lines: MutexGuard<'_, Lines>, name: &str) {
    let first = lines.by_name.get(name).and_then(|line| line.waiting.front().cloned());
    drop(lines);
    if let Some(first) = first {
        first.called.notify_one();
    }
}

impl Turn {
    pub(crate) fn nap(&self) -> Duration {
        let mut lines = self.queue.lines.lock();
        lines.by_name.get_mut(&self.name).map_or(Duration::ZERO, |line| line.nap(self.start.number))
    }

    /// The turn is used for a hold now: it lasts as long as that.
    pub(crate) fn holds(&self, hold: &Arc<Hold>) {
        self.note(|line| line.holds(self.start.number, hold, Moment::now()));
    }

    pub(crate) fn asks(&self) {
        self.note(|line| line.asks(self.start.number, Moment::now()));
    }

    pub(crate) fn answered(&self) {
        self.note(|line| line.answered(self.start.number));
    }

    /// An attempt failed, and Redis has been silent for so long; nothing is said of Redis by a
    /// thread that gives up and had too little time.
    pub(crate) fn failed(&self, silence: Option<&Silence>) {
        self.note(|line| line.failed(self.start.number, silence));
    }

    fn note(&self, note: impl FnOnce(&mut Line)) {
        if let Some(line) = self.queue.lines.lock().by_name.get_mut(&self.name) {
            note(line);
        }
    }

    /// A look, which took so long, found that another process has the lock: the threads in line may
    /// say so when their wait is over.
    ///
    /// Where that is a thread of this process, through another manager, it may be one of them.
    pub(crate) fn saw(&self, holder: &Holder, took: Duration, of_this_process: bool) {
        self.note(|line| {
            line.saw(self.start.number, holder, took, Moment::now());
            if of_this_process {
                line.waiting.iter().for_each(|waiter| _ = waiter.called.notify_one());
            }
        });
    }

    /// The hold is being released: the next in line may get ready. Where it is returned, its wish
    /// goes out with the release.
    ///
    /// Not that of a thread whose wait may end before the answer comes, at `answer_by` at the latest.
    pub(crate) fn hand_on(&self, limits: &HandOn, answer_by: Moment) -> Option<Arc<Waiter>> {
        let mut lines = self.queue.lines.lock();
        let line = lines.by_name.get_mut(&self.name)?;
        let to = line.hand_on(self.start.number, limits, Moment::now(), answer_by);
        notify_first(lines, &self.name);
        to
    }

    /// Ends the turn, and tells the next thread what became of its wish. Returns the wish whose
    /// token has to be cleaned up, if there is one: it may stand in Redis, and nobody will use it.
    /// True with it where a `SET` of the token may yet be executed.
    #[must_use = "the token may stand in Redis until its lease is over"]
    pub(crate) fn settle(mut self, to: &Arc<Waiter>, handed: Handed) -> Option<(Wish, bool)> {
        if handed == Handed::Nothing {
            return None; // The next thread asks for itself.
        }
        let mut lines = self.queue.lines.lock();
        let (now, next) = (Moment::now(), lines.turns + 1);
        let line = lines.by_name.get_mut(&self.name);
        self.passed = line.is_some_and(|line| line.pass_on(self.start.number, to, next, handed, now));
        if self.passed {
            lines.turns = next;
            drop(lines);
            to.call();
        }
        let spoilt = matches!(handed, Handed::Spoilt { .. });
        (spoilt || !self.passed).then(|| (to.wish.clone(), spoilt))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.passed {
            return;
        }
        let mut lines = self.queue.lines.lock();
        let Some(line) = lines.by_name.get_mut(&self.name) else {
            return;
        };
        if !line.end_turn(self.start.number, Moment::now()) {
            return; // Passed by: the turn is another thread's.
        }
        let next = line.waiting.front().cloned();
        if next.is_none() {
            lines.end(&self.name);
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
    use std::thread;

    use super::*;
    use crate::hold::tests::sample;
    use crate::options::Lease;
    use crate::patience::tests::until;

    fn name() -> Arc<str> {
        "key".into()
    }

    fn at_once(queue: &Arc<Queue>, name: &Arc<str>) -> Option<Turn> {
        queue.join(name, &until(Moment::PAST), |_| false, |_| true, |_| (), wish).ok()
    }

    fn wish() -> Wish {
        Wish { token: "host-1-2-00".into(), lease: Lease::new(Duration::from_secs(30)) }
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
                    let turn = line.join(&name(), &until(soon()), |_| false, |_| true, |_| (), wish).unwrap();
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
        let turn = queue.join(&name(), &until(soon()), |_| false, |_| true, |_| (), wish).unwrap();
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
        let Err(NoTurn::Busy(Some(holder))) =
            queue.join(&name(), &until(Moment::now()), |_| false, |_| true, |_| (), wish)
        else {
            panic!("it is busy, and it is known with whom");
        };
        assert_eq!(holder.raw(), hold.token);
        assert!(queue.lines.lock().line(&name()).waiting.is_empty());
    }

    #[test]
    fn whoever_waits_for_himself_through_another_manager_is_told() {
        let queue = Arc::new(Queue::default());
        let turn = at_once(&queue, &name()).unwrap();
        let line = Arc::clone(&queue);
        let waiter = thread::spawn(move || {
            line.join(&name(), &until(soon()), |holder| holder.raw() == "mine", |_| true, |_| (), wish)
                .map(drop)
        });
        while queue.lines.lock().line(&name()).waiting.is_empty() {
            thread::yield_now();
        }
        turn.saw(&Holder::new(b"mine", None), Duration::ZERO, true);
        assert!(matches!(waiter.join().unwrap(), Err(NoTurn::Mine)));
        assert!(queue.lines.lock().line(&name()).waiting.is_empty());
    }

    #[test]
    fn a_key_goes_on_with_its_own_run_and_not_with_that_of_another() {
        let over = HandOn { turns: 64, time: Duration::ZERO };
        let queue = Arc::new(Queue::default());
        let turn = at_once(&queue, &name()).unwrap();
        turn.saw(&Holder::new(b"theirs", None), Duration::from_micros(50), false);
        assert!(turn.hand_on(&over, Moment::PAST).is_none(), "nobody waits");
        drop(turn);
        let other = at_once(&queue, &"other".into()).unwrap();
        assert_eq!(other.start.nap, Duration::ZERO);
        drop(other);
        assert!(at_once(&queue, &name()).unwrap().start.nap > Duration::ZERO);
    }

    #[test]
    fn the_past_of_a_few_keys_is_remembered_and_of_no_more() {
        let queue = Arc::new(Queue::default());
        for n in 0..3 * REMEMBERED {
            drop(at_once(&queue, &n.to_string().into()).unwrap());
            drop(at_once(&queue, &"0".into()).unwrap());
        }
        assert_eq!(queue.lines.lock().ended.len(), REMEMBERED);
    }

    #[test]
    fn a_thread_behind_a_silent_one_is_told_of_the_outage_unless_redis_answers_others() {
        let queue = Arc::new(Queue::default());
        let front = at_once(&queue, &name()).unwrap();
        let told = |answered: bool| {
            let now = Moment::now();
            let patience = Patience { began: now, ..until(now.after(Duration::from_millis(30))) };
            queue.join(&name(), &patience, |_| false, |_| answered, |_| (), wish).unwrap_err()
        };
        assert!(matches!(told(false), NoTurn::Busy(None)), "it has not asked yet");
        front.asks();
        assert!(matches!(told(false), NoTurn::Outage(None)));
        assert!(matches!(told(true), NoTurn::Busy(None)), "the front waits for something else");
        front.failed(Some(&Silence { words: Some("no answer".into()), ..Silence::new(Moment::PAST, false) }));
        assert!(matches!(told(false), NoTurn::Outage(Some(words)) if &*words == "no answer"));
        assert!(matches!(told(true), NoTurn::Busy(None)), "others have answers");
        let refused = Silence {
            words: Some("refused".into()),
            fair: Duration::ZERO,
            ..Silence::new(Moment::PAST, true)
        };
        front.failed(Some(&refused));
        assert!(matches!(told(true), NoTurn::Outage(Some(words)) if &*words == "refused"));
        front.answered();
        assert!(matches!(told(false), NoTurn::Busy(None)));
        assert!(queue.lines.lock().line(&name()).waiting.is_empty());
    }

    #[test]
    fn a_thread_without_limit_gives_up_in_line_when_the_outage_has_lasted_too_long() {
        let queue = Arc::new(Queue::default());
        let front = at_once(&queue, &name()).unwrap();
        let tolerate_outage = Duration::from_millis(50);
        let began = Moment::now();
        let patience = Patience { began, tolerate_outage, ..until(Moment::NEVER) };
        let told = || queue.join(&name(), &patience, |_| false, |_| false, |_| (), wish).unwrap_err();
        front.failed(Some(&Silence { words: Some("no answer".into()), ..Silence::new(began, true) }));
        assert!(matches!(told(), NoTurn::Outage(Some(words)) if &*words == "no answer"));
        assert!(Moment::now().since(began) >= tolerate_outage);
        drop(front);
        assert!(queue.lines.lock().by_name.is_empty());
    }

    #[test]
    fn what_was_handed_on_and_nobody_uses_is_to_be_cleaned_up() {
        let sent = Moment::PAST;
        let limits = HandOn { turns: 64, time: Duration::from_secs(10) };
        let taken = Handed::Taken { sent, answered: sent };
        // What became of the wish, and what is to be cleaned up where the next in line has gone,
        // and where it is there.
        let table = [
            (Handed::Nothing, None, None),
            (taken, Some(false), None),
            (Handed::Spoilt { sent }, Some(true), Some(true)),
        ];
        for (handed, where_gone, where_there) in table {
            for (wait, cleaned_up) in [(10, where_gone), (10_000, where_there)] {
                let queue = Arc::new(Queue::default());
                let turn = at_once(&queue, &name()).unwrap();
                let line = Arc::clone(&queue);
                let deadline = Moment::now().after(Duration::from_millis(wait));
                let next = thread::spawn(move || {
                    line.join(&name(), &until(deadline), |_| false, |_| true, |_| (), wish).is_ok()
                });
                while queue.lines.lock().line(&name()).waiting.is_empty() && !next.is_finished() {
                    thread::yield_now();
                }
                let Some(to) = turn.hand_on(&limits, Moment::PAST) else {
                    continue; // It was gone before that.
                };
                while wait == 10 && !next.is_finished() {
                    thread::yield_now();
                }
                let left = turn.settle(&to, handed);
                assert_eq!(left.map(|(_, stray)| stray), cleaned_up, "{handed:?}, {wait} ms");
                assert_eq!(next.join().unwrap(), wait > 10);
            }
        }
    }
}
