//! Holds that leave their thread, and come to another one.

use crate::base::sync::scheduler::{fail, thread, thread_number};
use crate::simulation::judge::verdict::Call;
use crate::simulation::judge::{self, Who};
use crate::simulation::scene::plan::End;
use crate::simulation::scene::player::Player;
use crate::simulation::scene::{self, Left, News, millis};
use crate::{DetachedHold, LockGuard};
use std::mem::ManuallyDrop;
use std::time::Duration;

impl Player {
    pub(super) fn hand_over(&self, call: &Call, guard: LockGuard, number: usize, key: usize) {
        match guard.try_hand_over() {
            Err((guard, error)) => {
                call.keeps(number, &error);
                self.give_back(guard, number, key, call.who, End::Unlock);
            }
            Ok(parcel) => {
                call.ends(Some(self.response()));
                if parcel.fence != judge::hold(number).fence {
                    fail(format!(
                        "the parcel of hold {number} has the fence {:?}",
                        parcel.fence
                    ));
                }
                judge::ends(number);
                scene::send(key, &parcel, judge::hold(number).began);
            }
        }
    }

    /// Another thread of the process goes on with the hold.
    pub(super) fn leave(&self, left: Left, end: End) {
        judge::change(left.number, |hold| hold.is_detached = true);
        if end == End::Leave {
            scene::leave(self.process, left);
            let _ = self.tells.send(News::Left);
            return;
        }
        let Left {
            hold,
            number,
            key,
            who,
        } = left;
        let attaches = move || {
            let thread = thread_number().expect("inside");
            attach(
                ManuallyDrop::into_inner(hold),
                number,
                key,
                Who { thread, ..who },
            );
        };
        let _ = thread::spawn(attaches).join();
    }

    pub(crate) fn attach(&self, left: Left) {
        let Left {
            hold,
            number,
            key,
            who,
        } = left;
        attach(
            ManuallyDrop::into_inner(hold),
            number,
            key,
            self.who(who.manager),
        );
    }
}

fn attach(hold: DetachedHold, number: usize, key: usize, who: Who) {
    let call = Call::begins(who, &[key], "attach");
    let response = Some(millis(judge::program(who.process).response));
    match hold.try_attach() {
        Ok(guard) => {
            call.ends(Some(Duration::ZERO));
            judge::passes_to(number, who);
            if guard.depth() != 1 {
                fail("an attached hold has a depth of one");
            }
            thread::sleep(millis(1));
            let call = Call::begins(who, &[key], "unlock");
            let unlocked = guard.unlock();
            call.ends(response);
            call.gave_back(number, &unlocked);
        }
        Err((hold, error)) => {
            call.keeps(number, &error);
            let call = Call::begins(who, &[key], "unlock detached");
            let unlocked = hold.unlock();
            call.ends(response);
            call.gave_back(number, &unlocked);
        }
    }
}
