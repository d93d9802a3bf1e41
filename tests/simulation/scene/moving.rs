//! Holds that leave their thread, and come to another one.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use crate::LockGuard;
use crate::base::sync::scheduler::{fail, thread, thread_number};
use crate::simulation::judge::calls::Call;
use crate::simulation::judge::{Judge, Who};
use crate::simulation::plan::End;
use crate::simulation::scene::player::Player;
use crate::simulation::scene::{Left, News, millis};

impl Player {
    pub(super) fn hand_over(&self, call: &Call<'_>, guard: LockGuard, number: usize, key: usize) {
        match guard.try_hand_over() {
            Err((guard, error)) => {
                call.keeps(number, &error);
                self.give_back(guard, number, key, call.who, End::Unlock);
            }
            Ok(parcel) => {
                call.ends(Some(self.response()));
                let hold = self.judge().hold(number);
                if parcel.fence != hold.fence {
                    fail(format!(
                        "the parcel of hold {number} has the fence {:?}",
                        parcel.fence
                    ));
                }
                self.judge().ends(number);
                self.send(key, &parcel, hold.began);
            }
        }
    }

    /// Another thread of the process goes on with the hold.
    pub(super) fn leave(&self, left: Left, end: End) {
        self.judge()
            .change(left.number, |hold| hold.is_detached = true);
        if end == End::Leave {
            self.scene.left.with(|all| all.push(left));
            let _ = self.tells.send(News::Left);
            return;
        }
        let judge = Arc::clone(&self.scene.judge);
        let _ = thread::spawn(move || attach(&judge, left)).join();
    }

    pub(super) fn attach(&self, left: Left) {
        attach(self.judge(), left);
    }
}

fn attach(judge: &Judge, left: Left) {
    let Left {
        hold,
        number,
        key,
        who,
    } = left;
    let thread = thread_number().expect("inside");
    let who = Who { thread, ..who };
    let call = judge.begins(who, &[key], "attach");
    let response = Some(millis(judge.program(who.process).response));
    match ManuallyDrop::into_inner(hold).try_attach() {
        Ok(guard) => {
            call.ends(Some(Duration::ZERO));
            judge.passes_to(number, who);
            if guard.depth() != 1 {
                fail("an attached hold has a depth of one");
            }
            thread::sleep(millis(1));
            let call = judge.begins(who, &[key], "unlock");
            let unlocked = guard.unlock();
            call.ends(response);
            call.gave_back(number, &unlocked);
        }
        Err((hold, error)) => {
            call.keeps(number, &error);
            let call = judge.begins(who, &[key], "unlock detached");
            let unlocked = hold.unlock();
            call.ends(response);
            call.gave_back(number, &unlocked);
        }
    }
}
