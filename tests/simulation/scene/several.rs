//! What a thread does with several locks at a time.

use std::panic;
use std::time::Duration;

use crate::base::sync::scheduler::thread;
use crate::simulation::judge;
use crate::simulation::judge::verdict::Call;
use crate::simulation::scene::plan::{How, SeveralEnd, Terms, Under};
use crate::simulation::scene::player::{Player, catch_panic};
use crate::simulation::scene::{millis, name};
use crate::{LockManager, MultiLockGuard};

impl Player {
    pub(crate) fn several(
        &self,
        keys: &[usize],
        how: How,
        manager: usize,
        under: &[Under],
        end: SeveralEnd,
    ) {
        let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
        let (manager, who) = (self.manager(manager), self.who(manager));
        if end == SeveralEnd::With {
            return self.with_several(
                &Call::begins(who, keys, "with_lock of several"),
                manager,
                &names,
                under,
            );
        }
        let call = Call::begins(who, keys, how.name_of_several());
        let taken = match how {
            How::Lock => manager.several(&names).lock().map(Some),
            How::Try => manager.several(&names).try_lock(),
            How::For(limit) => manager.several(&names).try_lock_for(millis(limit)),
        };
        // Each single try may take an answer. What was taken in vain is given back in 100 ms: the
        // lock that finds the outer one lost, and then the others.
        let limit = match how {
            How::Try | How::For(0) => {
                Some(self.answer() * u32::try_from(keys.len()).expect("a few"))
            }
            how => self.limit(how),
        };
        call.ends(limit.map(|limit| limit + millis(200)));
        let Some(guard) = call.got(taken) else {
            return judge::undone(who);
        };
        let numbers = self.have_several(&call, manager, &guard, under);
        let call = Call::begins(who, keys, "give back several");
        let unlocked = match end {
            SeveralEnd::Unlock => Some(guard.unlock()),
            SeveralEnd::Drop => {
                drop(guard);
                None
            }
            SeveralEnd::With => unreachable!("it has been dealt with"),
            SeveralEnd::Panic => {
                let _ = catch_panic(|| {
                    let _guard = guard;
                    panic::resume_unwind(Box::new("a panic of the program"));
                });
                None
            }
        };
        call.ends(Some(self.limit_of_releases(&call, numbers.len())));
        call.gave_several_back(&numbers, unlocked);
    }

    /// Silence takes the response timeout in all. Answers that come use up nothing of it: each may
    /// take half of it over a slow link (seed 3037519 of b5be2d8).
    fn limit_of_releases(&self, call: &Call, count: usize) -> Duration {
        let slow = if call.has_trouble() {
            self.response() / 2
        } else {
            Duration::ZERO
        };
        self.response() + slow.max(millis(100)) * u32::try_from(count).expect("a few")
    }

    fn with_several(&self, call: &Call, manager: &LockManager, names: &[&str], under: &[Under]) {
        let mut numbers = None;
        let result = manager.several(names).with_lock_result(|guard| {
            call.ends(self.limit(How::Lock).map(|limit| limit + millis(200)));
            call.has_got();
            numbers = Some(self.have_several(call, manager, guard, under));
            Ok(())
        });
        call.ends(None);
        if let Some(numbers) = numbers {
            call.gave_several_back(&numbers, result.err().map(Err));
        } else {
            let _ = call.got(result.map(Some));
            judge::undone(call.who);
        }
    }

    /// The thread has the locks. Returns those that the judge has learnt of.
    fn have_several(
        &self,
        call: &Call,
        manager: &LockManager,
        guard: &MultiLockGuard,
        under: &[Under],
    ) -> Vec<usize> {
        let number = |key: &usize| {
            let number = self.one_of(call, manager, *key);
            if number.is_none() {
                // It is lost already. Any call may say so while the thread has the others.
                judge::undone(call.who);
                judge::removed(*key, u64::MAX);
            }
            number
        };
        let numbers: Vec<_> = call.keys.iter().filter_map(number).collect();
        judge::is_as_good(call.who, guard, &numbers);
        for under in under {
            self.under_several(call, guard, under);
        }
        numbers
    }

    /// Tells the judge of one of several locks.
    fn one_of(&self, call: &Call, manager: &LockManager, key: usize) -> Option<usize> {
        let guard = manager.named(name(key)).current()?;
        Some(judge::taken(
            call.who,
            key,
            call.began,
            self.deal(Terms::default()),
            &guard,
            1,
        ))
    }

    fn under_several(&self, taken: &Call, guard: &MultiLockGuard, under: &Under) {
        let what = if matches!(under, Under::Confirm(_)) {
            "confirm several"
        } else {
            "ensure several"
        };
        let call = Call::begins(taken.who, &taken.keys, what);
        match under {
            Under::Inner(op) => self.op(op),
            Under::Work(time) => thread::sleep(millis(*time)),
            Under::Confirm(span) => {
                let answer = guard.confirm(millis(*span));
                call.ends(Some(self.response()));
                call.answers(None, &answer);
            }
            _ => {
                let answer = guard.ensure(millis(self.program.lease / 3));
                call.ends(Some(self.response()));
                call.answers(None, &answer);
            }
        }
        call.ends(None);
    }
}
