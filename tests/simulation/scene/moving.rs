//! Holds that leave their thread, and come to another one.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::scheduler::{fail, now, one_in, thread, thread_number};
use crate::simulation::judge::calls::{Call, LATE, Sent};
use crate::simulation::judge::{Judge, Who};
use crate::simulation::plan::{End, Take};
use crate::simulation::scene::player::{Player, undoing};
use crate::simulation::scene::{Left, News, millis};
use crate::{LockGuard, LockParcel};

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
                self.judge().change(number, |hold| hold.is_sent = true);
                self.judge().ends(number);
                self.send(key, &parcel, hold.began);
            }
        }
    }

    pub(super) fn adopt(&self, take: &Take, end: End) {
        // Now and then somebody else gets the parcel as well.
        let (key, stays) = (take.keys[0], one_in(4));
        let received = self.scene.parcels.with(|all| {
            let at = all.iter().position(|it| it.0 == key)?;
            all[at].2.is_copied |= stays;
            Some(if stays {
                all[at].clone()
            } else {
                all.remove(at)
            })
        });
        let Some((_, parcel, sent)) = received else {
            return;
        };
        let lock = self.named(take);
        let call = self.takes(take, "adopt").adopts(sent);
        let adopted = lock.adopt(&parcel);
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
        self.works(&call, take, guard, end);
    }

    /// The parcel can be adopted until its lease ends.
    fn send(&self, key: usize, parcel: &LockParcel, began: u64) {
        let left = millis(parcel.left);
        let left = left.saturating_sub(left / 100 + LATE);
        let sent = Sent {
            began,
            until: now() + u64::try_from(left.as_nanos()).expect("a lease"),
            is_copied: false,
        };
        let parcel = parcel.to_string().parse().expect("a parcel");
        self.scene.parcels.with(|all| all.push((key, parcel, sent)));
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
