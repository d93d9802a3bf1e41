//! What a thread does with locks that it does not hold: it looks at them, and ends them.

use crate::Error;
use crate::base::sync::scheduler::{fail, now, one_in, trace};
use crate::simulation::plan::name;
use crate::simulation::scene::millis;
use crate::simulation::scene::player::Player;

impl Player {
    /// The command may arrive long after the call has returned.
    pub(super) fn force_unlock(&self, key: usize, only: Option<&str>) {
        let judge = self.judge();
        judge.forces(key);
        let manager = usize::from(one_in(2));
        let lock = self.manager(manager).named(name(key));
        let call = judge.begins(self.who(manager), &[key], "force_unlock");
        let removed = match only {
            None => lock
                .force_unlock()
                .map(|holder| holder.map(|holder| holder.raw.clone())),
            Some(token) => lock
                .force_unlock_if(token)
                .map(|was_there| was_there.then(|| token.to_owned())),
        };
        call.ends(Some(self.answer()));
        // Without an answer, the command may be on its way for as long as servers are silent.
        let by = match &removed {
            Ok(None) if call.trouble().is_empty() => None,
            Ok(_) => Some(now()),
            Err(_) => Some(now() + 5_000_000_000),
        };
        judge.has_forced(key, by);
        if let Ok(Some(token)) = &removed {
            let why = "its key was deleted by its manager";
            judge.trusts_none(call.who, |hold| hold.token == *token, why);
        }
        call.answers(None, &removed.map(|_| ()));
    }

    pub(super) fn force_unlock_if(&self, key: usize) {
        if let Some(holder) = self.holder(key) {
            self.force_unlock(key, Some(&holder.raw));
        }
    }

    pub(super) fn holder(&self, key: usize) -> Option<crate::Holder> {
        let call = self.judge().begins(self.who(0), &[key], "holder");
        let holder = self.manager(0).named(name(key)).holder();
        call.ends(Some(self.answer()));
        holder.unwrap_or_else(|error| {
            call.answers(None, &Err(error));
            None
        })
    }

    pub(super) fn look(&self) {
        let manager = usize::from(one_in(2));
        let (who, manager, judge) = (self.who(manager), self.manager(manager), self.judge());
        judge.are_listed(who, &manager.held());
        let _ = (manager.waiting(), manager.stats());
        for key in 0..judge.keys() {
            let is_held = judge.has(who.process, Some(who.thread), key, now());
            let is_trusted = judge.trusts(who, key);
            match manager.named(name(key)).assert_held() {
                Err(Error::NotHeld { .. }) => {}
                Err(Error::Lost { .. }) if is_held => {}
                Ok(()) if is_trusted => {}
                other => fail(format!("assert_held of {key}: {other:?}")),
            }
        }
    }

    pub(super) fn shutdown(&self, manager: usize, limit: u64, releases: bool) {
        let (who, judge) = (self.who(manager), self.judge());
        judge.stops(self.process, Some(who.manager));
        let call = judge.begins(who, &[], "shutdown");
        let (manager, most) = (self.manager(manager), millis(limit) + self.answer());
        let left = if releases {
            judge.gives_all_back(who);
            manager.shutdown_and_release(millis(limit))
        } else {
            manager.shutdown(millis(limit))
        };
        call.ends(Some(if releases {
            most + self.response()
        } else {
            most
        }));
        trace(|| format!("shutdown: {left:?}"));
        if left.is_empty() {
            judge.has_released(who);
        }
        if left.is_empty() || releases {
            judge.trusts_none(who, |_| true, "its manager was shut down");
        }
    }
}
