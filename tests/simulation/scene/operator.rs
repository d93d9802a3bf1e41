//! What a thread does with locks that it does not hold: it looks at them, and ends them.

use std::time::Duration;

use crate::Error;
use crate::base::sync::scheduler::{fail, now, one_in, trace};
use crate::simulation::judge;
use crate::simulation::judge::verdict::{self, Call};
use crate::simulation::scene::player::Player;
use crate::simulation::scene::{millis, name};

impl Player {
    /// The command may arrive long after the call has returned.
    pub(crate) fn force_unlock(&self, key: usize, only: Option<&str>) {
        judge::removes(key);
        let manager = usize::from(one_in(2));
        let lock = self.manager(manager).named(name(key));
        let call = Call::begins(self.who(manager), &[key], "force_unlock");
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
            Ok(None) if !call.has_trouble() => None,
            Ok(_) => Some(now()),
            Err(_) => Some(now() + 5_000_000_000),
        };
        judge::has_removed(key, by);
        if let Ok(Some(token)) = &removed {
            judge::has_deleted(call.who, token);
        }
        call.answers(None, &removed.map(|_| ()));
    }

    pub(crate) fn force_unlock_if(&self, key: usize) {
        if let Some(holder) = self.holder(key) {
            self.force_unlock(key, Some(&holder.raw));
        }
    }

    pub(crate) fn holder(&self, key: usize) -> Option<crate::Holder> {
        let call = Call::begins(self.who(0), &[key], "holder");
        let holder = self.manager(0).named(name(key)).holder();
        call.ends(Some(self.answer()));
        match holder {
            Ok(holder) => holder,
            Err(error) => {
                call.answers(None, &Err(error));
                None
            }
        }
    }

    pub(crate) fn look(&self) {
        let manager = usize::from(one_in(2));
        let (who, manager) = (self.who(manager), self.manager(manager));
        let listed = manager.held();
        judge::are_listed(who, &listed);
        let _ = (manager.waiting(), manager.stats());
        for key in 0..self.plan.keys {
            let is_held = judge::has(who.process, Some(who.thread), key, now());
            let is_trusted = judge::trusts(who, key);
            match manager.named(name(key)).assert_held() {
                Err(Error::NotHeld { .. }) => {}
                Err(Error::Lost { .. }) if is_held => {}
                Ok(()) if is_trusted => {}
                other => fail(format!("assert_held of {key}: {other:?}")),
            }
        }
    }

    pub(crate) fn shutdown(&self, manager: usize, limit: u64, releases: bool) {
        let who = self.who(manager);
        verdict::stops(self.process, Some(who.manager));
        let call = Call::begins(who, &[], "shutdown");
        let (manager, answer) = (self.manager(manager), self.answer());
        let left = if releases {
            judge::gives_all_back(who.process, who.manager);
            manager.shutdown_and_release(millis(limit))
        } else {
            manager.shutdown(millis(limit))
        };
        let more = if releases {
            self.response()
        } else {
            Duration::ZERO
        };
        call.ends(Some(millis(limit) + answer + more));
        trace(|| format!("shutdown: {left:?}"));
        if left.is_empty() || releases {
            judge::none_of(who);
        }
    }
}
