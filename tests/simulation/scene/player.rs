//! A process that plays its part: what its threads do.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::scheduler::{fail, inside, mpsc, now, thread, thread_number, trace};
use crate::simulation::judge::calls::{Call, LATE};
use crate::simulation::judge::excuses::Excuse;
use crate::simulation::judge::{Failed, Judge, Ran, Terms, Who};
use crate::simulation::plan::{Body, Choice, End, How, Op, Program, Take, Under, With, name};
use crate::simulation::scene::{Left, News, Scene, millis};
use crate::{Error, Lock, LockGuard, LockManager, LockWatch, StopHandle};

pub(crate) struct Player {
    pub(super) process: usize,
    pub(super) program: Program,
    pub(super) managers: Vec<LockManager>,
    pub(super) stop: StopHandle,
    pub(super) scene: Arc<Scene>,
    pub(super) tells: mpsc::Sender<News>,
}

/// Catches a panic of the program. (The stack of a thread that is left at the end of a run unwinds,
/// too. It must not go on.)
pub(super) fn catch_panic<T>(body: impl FnOnce() -> T) -> std::thread::Result<T> {
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Err(payload) if !inside() => panic::resume_unwind(payload),
        result => result,
    }
}

/// The guard is dropped by a panic.
pub(super) fn panics_with<T>(guard: T) {
    let _ = catch_panic(|| {
        let _guard = guard;
        panic::resume_unwind(Box::new("a panic of the program"));
    });
}

/// How much longer than its limit a call may take: what it got and must not have is given back.
pub(super) fn undoing<T>(taken: &Result<T, Error>) -> Duration {
    match taken {
        Err(Error::OuterLost { .. } | Error::Lost { .. } | Error::Stopped { .. }) => millis(100),
        _ => Duration::ZERO,
    }
}

impl Player {
    pub(super) fn op(&self, op: &Op) {
        trace(|| format!("{op:?}"));
        match op {
            Op::Sleep(time) => thread::sleep(millis(*time)),
            Op::Lock(take, how, end) => self.lock(take, *how, *end),
            Op::With(take, with, body) => self.with(take, *with, *body),
            Op::Several(take, how, end) => self.several(take, *how, *end),
            Op::Adopt(take, end) => self.adopt(take, *end),
            Op::Attach => {
                if let Some(left) = self.scene.take_left(self.process) {
                    self.attach(left);
                }
            }
            Op::ForceUnlock(key) => self.force_unlock(*key, None),
            Op::ForceUnlockIf(key) => self.force_unlock_if(*key),
            Op::Holder(key) => drop(self.holder(*key)),
            Op::Look => self.look(),
            Op::Stop => {
                self.judge().stops(self.process, None);
                self.stop.stop();
            }
            Op::Shutdown {
                manager,
                limit,
                releases,
            } => self.shutdown(*manager, *limit, *releases),
        }
    }

    pub(super) fn judge(&self) -> &Judge {
        &self.scene.judge
    }

    pub(super) fn who(&self, manager: usize) -> Who {
        Who {
            process: self.process,
            manager: manager % self.managers.len(),
            thread: thread_number().expect("inside"),
        }
    }

    pub(super) fn manager(&self, manager: usize) -> &LockManager {
        &self.managers[manager % self.managers.len()]
    }

    /// A call that takes something.
    pub(super) fn takes(&self, take: &Take, what: &'static str) -> Call<'_> {
        let call = self
            .judge()
            .begins(self.who(take.manager), &take.keys, what);
        call.taking(take.choice == Choice::Heeds, self.terms(take.choice).ends)
    }

    /// The lock with the options that were chosen.
    pub(super) fn chosen(&self, lock: Lock, choice: Choice) -> Lock {
        let lease = self.lease(choice);
        match choice {
            Choice::None => lock,
            Choice::Keeps(span) => lock.keep_at_least(millis(span)).reclaim_dead(false),
            Choice::Once => lock.reentrant(false),
            Choice::Capped(leases) => lock.max_hold(millis(self.program.lease * leases)),
            Choice::Unrenewed => lock.renew(false),
            Choice::Heeds => lock.stopped_by(&self.stop),
            Choice::Doubled => lock.lease(lease),
            Choice::Often => lock.renew_every(lease * 2 / 5),
        }
    }

    pub(super) fn named(&self, take: &Take) -> Lock {
        let lock = self.manager(take.manager).named(name(take.keys[0]));
        self.chosen(lock, take.choice)
    }

    fn lease(&self, choice: Choice) -> Duration {
        let times = if choice == Choice::Doubled { 2 } else { 1 };
        millis(self.program.lease) * times
    }

    pub(super) fn terms(&self, choice: Choice) -> Terms {
        let is_unrenewed = choice == Choice::Unrenewed || !self.program.renews;
        let keeps = if let Choice::Keeps(span) = choice {
            span
        } else {
            0
        };
        Terms {
            ends: Excuse::Capped.when(matches!(choice, Choice::Capped(_)))
                | Excuse::Unrenewed.when(is_unrenewed),
            period: self.lease(choice) * if choice == Choice::Often { 6 } else { 5 } / 15,
            keeps: millis(keeps),
            longest: match choice {
                Choice::Capped(leases) => Some(millis(self.program.lease * (leases + 1))),
                _ => None,
            },
        }
    }

    /// The time of a release, and of a renewal.
    pub(super) fn response(&self) -> Duration {
        millis(self.program.response)
    }

    /// The time of connecting and of an answer.
    pub(super) fn answer(&self) -> Duration {
        self.response() * 3
    }

    pub(super) fn limit(&self, how: How) -> Option<Duration> {
        match how {
            How::Lock => self.program.waits.map(millis),
            How::Try | How::For(0) => Some(self.answer()),
            How::For(limit) => Some(millis(limit)),
        }
    }

    fn lock(&self, take: &Take, how: How, end: End) {
        let lock = self.named(take);
        let call = self.takes(take, how.name());
        let taken = match how {
            How::Lock => lock.lock().map(Some),
            How::Try => lock.try_lock(),
            How::For(limit) => lock.try_lock_for(millis(limit)),
        };
        call.ends(self.limit(how).map(|limit| limit + undoing(&taken)));
        if let Some(guard) = call.got(taken) {
            self.works(&call, take, guard, end);
        }
    }

    pub(super) fn works(&self, call: &Call<'_>, take: &Take, guard: LockGuard, end: End) {
        let (key, terms) = (call.keys[0], self.terms(take.choice));
        let number = self
            .judge()
            .taken(call.who, key, call.began, terms, &guard, 0);
        for under in &take.under {
            self.under(number, key, call.who, &guard, under);
        }
        self.give_back(guard, number, key, call.who, end);
    }

    fn under(&self, number: usize, key: usize, who: Who, guard: &LockGuard, under: &Under) {
        let judge = self.judge();
        let ask = |what, limit, ask: &dyn Fn() -> Result<(), Error>| {
            let call = judge.begins(who, &[key], what);
            let answer = ask();
            call.ends(Some(limit));
            call.answers(Some(number), &answer);
        };
        let response = self.response();
        match under {
            Under::Work(time) => thread::sleep(millis(*time)),
            Under::SetLease(lease) => {
                judge.change(number, |hold| hold.is_changed = true);
                ask("set_lease", response, &|| guard.set_lease(millis(*lease)));
            }
            Under::Ensure(span) => ask("ensure", response, &|| guard.ensure(millis(*span))),
            Under::Confirm(span) => ask("confirm", response, &|| guard.confirm(millis(*span))),
            Under::Verify => ask("verify", self.answer(), &|| guard.verify()),
            Under::WatchLoss(limit) => self.watch_loss(number, guard.watch(), millis(*limit)),
            Under::Inner(op) => self.op(op),
        }
        if guard.is_valid() {
            judge.nobody_else(key);
        }
    }

    /// The thread's last act with this guard.
    pub(super) fn give_back(
        &self,
        guard: LockGuard,
        number: usize,
        key: usize,
        who: Who,
        end: End,
    ) {
        let judge = self.judge();
        let is_sent = end == End::HandOver;
        let what = if is_sent { "hand over" } else { "give back" };
        let call = judge.begins(who, &[key], what);
        let response = Some(self.response());
        match end {
            End::Unlock | End::UnlockNow => {
                let unlocked = if end == End::Unlock {
                    guard.unlock()
                } else {
                    judge.change(number, |hold| hold.kept = [0; 2]);
                    guard.unlock_now()
                };
                call.ends(response);
                call.gave_back(number, &unlocked);
            }
            End::Drop | End::Panic => {
                if end == End::Drop {
                    drop(guard);
                } else {
                    panics_with(guard);
                }
                call.ends(response);
                call.dropped(number);
            }
            End::Detach | End::Leave => match guard.detach_or_keep() {
                Err((guard, error)) => {
                    call.keeps(number, &error);
                    self.give_back(guard, number, key, who, End::Unlock);
                }
                Ok(hold) => {
                    call.ends(Some(Duration::ZERO));
                    let left = Left {
                        hold: ManuallyDrop::new(hold),
                        number,
                        key,
                        who,
                    };
                    self.leave(left, end);
                }
            },
            End::HandOver => self.hand_over(&call, guard, number, key),
            End::Forget => {
                std::mem::forget(guard);
                self.scene.forgot.with(|all| all.push(self.process));
                call.ends(None);
                let forgotten = Excuse::Forgotten.when(true);
                judge.change(number, |hold| hold.terms.ends |= forgotten);
            }
        }
    }

    fn with(&self, take: &Take, with: With, body: Body) {
        let (lock, judge) = (self.named(take), self.judge());
        let (ran, hold) = (Cell::new(false), Cell::new(None));
        let is_try = matches!(with, With::Try);
        let call = self.takes(take, if is_try { "try_with_lock" } else { "with_lock" });
        let (who, key) = (call.who, call.keys[0]);
        let runs = |guard: Option<&LockGuard>| {
            call.ends(None);
            call.has_got();
            ran.set(true);
            let current = if guard.is_none() {
                lock.current()
            } else {
                None
            };
            let extra = u32::from(current.is_some());
            let Some(guard) = guard.or(current.as_ref()) else {
                return judge.undone(who); // It is lost already, and the judge does not know it.
            };
            let terms = self.terms(take.choice);
            let number = judge.taken(who, key, call.began, terms, guard, extra);
            hold.set(Some(number));
            judge.change(number, |hold| hold.depth += extra);
            for under in &take.under {
                self.under(number, key, who, guard, under);
            }
            if let Some(current) = current {
                drop(current);
                judge.ends(number);
            }
            if body == Body::Panics {
                panic::resume_unwind(Box::new("a panic of the program"));
            }
        };
        let own = || {
            if body == Body::Fails {
                Err(Failed::Own)
            } else {
                Ok(())
            }
        };
        let result = catch_panic(|| match with {
            With::Lock => lock
                .with_lock(|| runs(None))
                .map(Some)
                .map_err(Failed::Lock),
            With::Try => lock.try_with_lock(|| runs(None)).map_err(Failed::Lock),
            With::Result => {
                let runs = |guard: &LockGuard| {
                    runs(Some(guard));
                    own()
                };
                lock.with_lock_result(runs).map(Some)
            }
        });
        trace(|| format!("with_lock: {:?}", result.as_ref().ok()));
        call.ends(None);
        let ran = Ran {
            has_begun: ran.get(),
            number: hold.get(),
            body,
            result: result.ok(),
        };
        let is_mine = |held: &crate::HeldLock| held.owner.thread == who.thread;
        let holds = || self.managers.iter().any(|it| it.held().iter().any(is_mine));
        call.ran(ran, holds);
    }

    /// A thread waits for the loss of a hold.
    fn watch_loss(&self, number: usize, watch: LockWatch, limit: Duration) {
        let (judge, process) = (Arc::clone(&self.scene.judge), self.process);
        let run = move || {
            let began = now();
            let cause = watch.wait_lost(limit);
            trace(|| format!("wait_lost: {cause:?}"));
            let took = Duration::from_nanos(now() - began);
            let late = judge.slow() | judge.pause_of(process, began);
            if took > limit + limit / 100 + LATE && !judge.forgives(late) {
                fail(format!(
                    "wait_lost took {took:?}, with a limit of {limit:?}"
                ));
            }
            if let Some(cause) = cause {
                judge.explains(number, cause);
            }
        };
        let _ = thread::Builder::new().name("loss".to_owned()).spawn(run);
    }
}

impl How {
    fn name(self) -> &'static str {
        if matches!(self, How::Try | How::For(0)) {
            "try_lock"
        } else {
            "lock"
        }
    }
}
