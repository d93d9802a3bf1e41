//! What a thread does with several locks at a time.

use std::time::Duration;

use crate::base::sync::scheduler::thread;
use crate::simulation::judge::calls::Call;
use crate::simulation::judge::excuses::Excuse;
use crate::simulation::plan::{How, SeveralEnd, Take, Under, name};
use crate::simulation::scene::millis;
use crate::simulation::scene::player::{Player, panics_with};
use crate::{MultiLock, MultiLockGuard};

impl Player {
    pub(super) fn several(&self, take: &Take, how: How, end: SeveralEnd) {
        let names: Vec<_> = take.keys.iter().map(|key| name(*key)).collect();
        let locks = self.manager(take.manager).several(&names);
        let locks = locks.options(|lock| self.chosen(lock, take.choice));
        if end == SeveralEnd::With {
            return self.with_several(take, &locks);
        }
        let is_try = matches!(how, How::Try | How::For(0));
        let what = if is_try {
            "try_lock of several"
        } else {
            "lock of several"
        };
        let call = self.takes(take, what);
        let taken = match how {
            How::Lock => locks.lock().map(Some),
            How::Try => locks.try_lock(),
            How::For(limit) => locks.try_lock_for(millis(limit)),
        };
        // Each single try may take an answer. What was taken in vain is given back in 100 ms: the
        // lock that finds the outer one lost, and then the others.
        let limit = if is_try {
            Some(self.answer() * u32::try_from(names.len()).expect("a few"))
        } else {
            self.limit(how)
        };
        call.ends(limit.map(|limit| limit + millis(200)));
        let Some(guard) = call.got(taken) else {
            return self.judge().undone(call.who);
        };
        let (numbers, was_lost) = self.have_several(&call, take, &guard);
        let call = self.takes(take, "give back several");
        let unlocked = match end {
            SeveralEnd::Unlock => Some(guard.unlock()),
            SeveralEnd::Drop => {
                drop(guard);
                None
            }
            SeveralEnd::Panic | SeveralEnd::With => {
                panics_with(guard);
                None
            }
        };
        call.ends(Some(self.limit_of_releases(&call, numbers.len())));
        call.gave_several_back(&numbers, was_lost, unlocked);
    }

    /// Silence takes the response timeout in all. Answers that come use up nothing of it: each may
    /// take half of it over a slow link.
    fn limit_of_releases(&self, call: &Call<'_>, count: usize) -> Duration {
        let is_slow = !call.trouble().is_empty();
        let slow = if is_slow {
            self.response() / 2
        } else {
            Duration::ZERO
        };
        self.response() + slow.max(millis(100)) * u32::try_from(count).expect("a few")
    }

    fn with_several(&self, take: &Take, locks: &MultiLock) {
        let call = self.takes(take, "with_lock of several");
        let mut numbers = None;
        let result = locks.with_lock_result(|guard| {
            call.ends(self.limit(How::Lock).map(|limit| limit + millis(200)));
            call.has_got();
            numbers = Some(self.have_several(&call, take, guard));
            Ok(())
        });
        call.ends(None);
        if let Some((numbers, was_lost)) = numbers {
            let result = result.err().map(Err);
            call.gave_several_back(&numbers, was_lost, result);
        } else {
            let _ = call.got(result.map(Some));
            self.judge().undone(call.who);
        }
    }

    /// The thread has the locks. Returns those that the judge has learnt of, and whether one is
    /// gone at the end.
    fn have_several(
        &self,
        call: &Call<'_>,
        take: &Take,
        guard: &MultiLockGuard,
    ) -> (Vec<usize>, bool) {
        let (judge, who) = (self.judge(), call.who);
        let number = |key: &usize| {
            let Some(current) = self.manager(take.manager).named(name(*key)).current() else {
                // It is lost already. Any call may say so while the thread has the others.
                judge.undone(who);
                judge.removed(Excuse::LostInASet, *key, u64::MAX);
                return None;
            };
            let terms = self.terms(take.choice);
            Some(judge.taken(who, *key, call.began, terms, &current, 1))
        };
        let numbers: Vec<_> = call.keys.iter().filter_map(number).collect();
        judge.is_as_good(who, guard, &numbers);
        for under in &take.under {
            self.under_several(take, guard, under);
        }
        let was_lost = numbers.iter().any(|number| judge.is_gone(*number));
        (numbers, was_lost)
    }

    fn under_several(&self, take: &Take, guard: &MultiLockGuard, under: &Under) {
        let span = match under {
            Under::Inner(op) => return self.op(op),
            Under::Work(time) => return thread::sleep(millis(*time)),
            Under::Confirm(span) => Some(millis(*span)),
            _ => None,
        };
        let what = if span.is_some() {
            "confirm several"
        } else {
            "ensure several"
        };
        let call = self.takes(take, what);
        let answer = match span {
            Some(span) => guard.confirm(span),
            None => guard.ensure(millis(self.program.lease / 3)),
        };
        call.ends(Some(self.response()));
        call.answers(None, &answer);
    }
}
