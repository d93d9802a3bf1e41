//! A process that plays its part: what its threads do.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::scheduler::{fail, inside, mpsc, one_in, thread, thread_number, trace};
use crate::simulation::judge::verdict::{self, Call};
use crate::simulation::judge::{self, Deal, Who};
use crate::simulation::scene::plan::{Body, End, How, Op, Plan, Program, Terms, Under, With};
use crate::simulation::scene::{self, Left, News, millis, name};
use crate::{Error, Lock, LockGuard, LockManager, StopHandle};

pub(crate) struct Player {
    pub(crate) process: usize,
    pub(crate) program: Program,
    pub(crate) managers: Vec<LockManager>,
    pub(crate) stop: StopHandle,
    pub(crate) plan: Arc<Plan>,
    pub(crate) tells: mpsc::Sender<News>,
}

/// An error of a closure under a lock.
#[derive(Debug)]
pub(crate) enum Failed {
    Lock(Error),
    Own,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Lock(error)
    }
}

/// Catches a panic of the program. (The stack of a thread that is left at the end of a run unwinds,
/// too. It must not go on.)
pub(crate) fn catch_panic<T>(body: impl FnOnce() -> T) -> std::thread::Result<T> {
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Err(payload) if !inside() => panic::resume_unwind(payload),
        result => result,
    }
}

/// How much longer than its limit a call may take: what it got and must not have is given back.
fn undoing<T>(taken: &Result<T, Error>) -> Duration {
    match taken {
        Err(Error::OuterLost { .. } | Error::Lost { .. } | Error::Stopped { .. }) => millis(100),
        _ => Duration::ZERO,
    }
}

impl Player {
    pub(crate) fn op(&self, op: &Op) {
        trace(|| format!("{op:?}"));
        match op {
            Op::Sleep(time) => thread::sleep(millis(*time)),
            Op::Lock {
                key,
                how,
                terms,
                under,
                end,
            } => self.lock(*key, *how, *terms, under, *end),
            Op::With {
                key,
                with,
                terms,
                under,
                body,
            } => self.with(*key, *with, *terms, under, *body),
            Op::Several {
                keys,
                how,
                manager,
                under,
                end,
            } => self.several(keys, *how, *manager, under, *end),
            Op::Adopt {
                key,
                terms,
                under,
                end,
            } => self.adopt(*key, *terms, under, *end),
            Op::Attach => {
                if let Some(left) = scene::take_left(self.process) {
                    self.attach(left);
                }
            }
            Op::ForceUnlock(key) => self.force_unlock(*key, None),
            Op::ForceUnlockIf(key) => self.force_unlock_if(*key),
            Op::Holder(key) => drop(self.holder(*key)),
            Op::Look => self.look(),
            Op::Stop => {
                verdict::stops(self.process, None);
                self.stop.stop();
            }
            Op::Shutdown {
                manager,
                limit,
                releases,
            } => self.shutdown(*manager, *limit, *releases),
        }
    }

    pub(crate) fn who(&self, manager: usize) -> Who {
        let thread = thread_number().expect("inside");
        Who {
            process: self.process,
            manager: manager % self.managers.len(),
            thread,
        }
    }

    pub(crate) fn manager(&self, manager: usize) -> &LockManager {
        &self.managers[manager % self.managers.len()]
    }

    fn named(&self, key: usize, terms: Terms) -> Lock {
        let mut lock = self
            .manager(terms.manager)
            .named(name(key))
            .reentrant(!terms.once);
        if terms.keeps > 0 {
            lock = lock.keep_at_least(millis(terms.keeps)).reclaim_dead(false);
        }
        if terms.most_leases > 0 {
            lock = lock.max_hold(millis(self.program.lease * terms.most_leases));
        }
        if terms.unrenewed {
            lock = lock.renew(false);
        }
        let lease = self.lease(terms);
        if terms.doubled {
            lock = lock.lease(lease);
        }
        if terms.often {
            lock = lock.renew_every(lease / 5);
        }
        if terms.heeds {
            lock.stopped_by(&self.stop)
        } else {
            lock
        }
    }

    fn lease(&self, terms: Terms) -> Duration {
        millis(self.program.lease) * if terms.doubled { 2 } else { 1 }
    }

    pub(crate) fn deal(&self, terms: Terms) -> Deal {
        let capped = terms.most_leases > 0;
        Deal {
            may_expire: capped || terms.unrenewed || !self.program.renews,
            capped,
            shortened: false,
            period: self.lease(terms) / 3,
            keeps: millis(terms.keeps),
        }
    }

    /// The time of a release, and of a renewal.
    pub(crate) fn response(&self) -> Duration {
        millis(self.program.response)
    }

    /// The time of connecting and of an answer.
    pub(crate) fn answer(&self) -> Duration {
        self.response() * 3
    }

    pub(crate) fn limit(&self, how: How) -> Option<Duration> {
        match how {
            How::Lock => self.program.waits.map(millis),
            How::Try | How::For(0) => Some(self.answer()),
            How::For(limit) => Some(millis(limit)),
        }
    }

    fn lock(&self, key: usize, how: How, terms: Terms, under: &[Under], end: End) {
        let lock = self.named(key, terms);
        let call = Call::begins(self.who(terms.manager), &[key], how.name()).heeding(terms.heeds);
        let taken = match how {
            How::Lock => lock.lock().map(Some),
            How::Try => lock.try_lock(),
            How::For(limit) => lock.try_lock_for(millis(limit)),
        };
        call.ends(self.limit(how).map(|limit| limit + undoing(&taken)));
        if let Some(guard) = call.got(taken) {
            self.works(&call, terms, guard, under, end);
        }
    }

    fn works(&self, call: &Call, terms: Terms, guard: LockGuard, under: &[Under], end: End) {
        let key = call.keys[0];
        let number = judge::taken(call.who, key, call.began, self.deal(terms), &guard, 0);
        for under in under {
            self.under(number, key, call.who, &guard, under);
        }
        self.give_back(guard, number, key, call.who, end);
    }

    fn under(&self, number: usize, key: usize, who: Who, guard: &LockGuard, under: &Under) {
        let ask = |what, limit, ask: &dyn Fn() -> Result<(), Error>| {
            let call = Call::begins(who, &[key], what);
            let answer = ask();
            call.ends(Some(limit));
            call.answers(Some(number), &answer);
        };
        match under {
            Under::Work(time) => thread::sleep(millis(*time)),
            Under::Extend => ask("extend", self.response(), &|| {
                guard.set_lease(guard.first_lease())
            }),
            Under::ExtendTo(lease) => {
                judge::change(number, |hold| hold.deal.shortened = true);
                ask("set_lease", self.response(), &|| {
                    guard.set_lease(millis(*lease))
                });
            }
            Under::Ensure(span) => ask("ensure", self.response(), &|| guard.ensure(millis(*span))),
            Under::Confirm(span) => {
                ask("confirm", self.response(), &|| guard.confirm(millis(*span)));
            }
            Under::Verify => ask("verify", self.answer(), &|| guard.verify()),
            Under::WatchRisk(left) => {
                scene::watch_risk(self.process, number, guard.watch(), millis(*left));
            }
            Under::WatchLoss(limit) => {
                scene::watch_loss(self.process, number, guard.watch(), millis(*limit));
            }
            Under::Inner(op) => self.op(op),
        }
        if guard.is_valid() {
            judge::nobody_else(key);
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
        let call = Call::begins(who, &[key], "give back");
        let response = Some(self.response());
        match end {
            End::Unlock | End::UnlockNow => {
                let unlocked = if end == End::Unlock {
                    guard.unlock()
                } else {
                    judge::change(number, |hold| hold.kept = [0; 2]);
                    guard.unlock_now()
                };
                call.ends(response);
                call.gave_back(number, &unlocked);
            }
            End::Drop => {
                drop(guard);
                call.ends(response);
                call.dropped(number);
            }
            End::Panic => {
                let _ = catch_panic(|| {
                    let _guard = guard;
                    panic::resume_unwind(Box::new("a panic of the program"));
                });
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
                    let hold = ManuallyDrop::new(hold);
                    let left = Left {
                        hold,
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
                scene::forgets(self.process);
                call.ends(None);
                judge::change(number, |hold| hold.deal.may_expire = true);
            }
        }
    }

    fn with(&self, key: usize, with: With, terms: Terms, under: &[Under], body: Body) {
        let (lock, who) = (self.named(key, terms), self.who(terms.manager));
        let (ran, hold) = (Cell::new(false), Cell::new(None));
        let name = if matches!(with, With::Try) {
            "try_with_lock"
        } else {
            "with_lock"
        };
        let call = Call::begins(who, &[key], name).heeding(terms.heeds);
        let runs = |guard: Option<&LockGuard>| {
            call.ends(None);
            call.has_got();
            let current = if guard.is_none() {
                lock.current()
            } else {
                None
            };
            let extra = u32::from(current.is_some());
            let Some(guard) = guard.or(current.as_ref()) else {
                ran.set(true);
                return judge::undone(who); // It is lost already, and the judge does not know it.
            };
            let number = judge::taken(who, key, call.began, self.deal(terms), guard, extra);
            ran.set(true);
            hold.set(Some(number));
            judge::change(number, |hold| hold.depth += extra);
            for under in under {
                self.under(number, key, who, guard, under);
            }
            if let Some(current) = current {
                drop(current);
                judge::ends(number);
            }
            if body == Body::Panics {
                panic::resume_unwind(Box::new("a panic of the program"));
            }
        };
        let result = catch_panic(|| match with {
            With::Lock => lock
                .with_lock(|| runs(None))
                .map(Some)
                .map_err(Failed::Lock),
            With::Try => lock.try_with_lock(|| runs(None)).map_err(Failed::Lock),
            With::Result => lock
                .with_lock_result(|guard| {
                    runs(Some(guard));
                    if body == Body::Fails {
                        Err(Failed::Own)
                    } else {
                        Ok(())
                    }
                })
                .map(Some),
        });
        trace(|| format!("with_lock: {:?}", result.as_ref().ok()));
        call.ends(None);
        call.ran(ran.get(), hold.get(), body, result.ok());
    }

    fn adopt(&self, key: usize, terms: Terms, under: &[Under], end: End) {
        // Now and then somebody else has the parcel as well.
        let Some(sent) = scene::received(key, one_in(4)) else {
            return;
        };
        let parcel = &sent.parcel;
        let lock = self.named(key, terms);
        let call = Call::begins(self.who(terms.manager), &[key], "adopt")
            .heeding(terms.heeds)
            .adopts(&sent);
        let adopted = lock.adopt(parcel);
        call.ends(Some(self.answer() + undoing(&adopted)));
        let Some(guard) = call.got(adopted.map(Some)) else {
            return;
        };
        if guard.fence() <= parcel.fence && parcel.fence.is_some() {
            fail(format!(
                "{:?} was handed over, and {:?} adopted",
                parcel.fence,
                guard.fence()
            ));
        }
        self.works(&call, terms, guard, under, end);
    }
}
