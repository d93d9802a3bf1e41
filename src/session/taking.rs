//! A thread asks for a lock that it does not hold: it waits for its turn in this process, then asks
//! Redis, and waits there.

use std::sync::Arc;

use crate::acquire::{AcquireContext, Taken, acquire, busy};
use crate::base::error::Error;
use crate::base::key::Key;
use crate::base::options::Options;
use crate::base::owner::holder::Holder;
use crate::base::stop::Stop;
use crate::session::Session;
use crate::session::thread_map;
use crate::store::Failure;
use crate::waiting::deadlocks::{Vain, Wait};
use crate::waiting::handoff::Claim;
use crate::waiting::patience::Patience;
use crate::waiting::place::NoTurn;
use crate::waiting::queues::{Joined, Turn};
use crate::waiting::waits::ListedWait;

impl Session {
    /// Waits for the turn, then takes the lock in Redis.
    pub(super) fn wait_and_take(
        &self,
        listed: &ListedWait<'_>,
        claim: Claim,
        options: &Options,
        stop: Option<&Stop>,
    ) -> Result<(Turn, Taken), Error> {
        let ListedWait {
            key,
            thread: owner,
            patience,
            ..
        } = *listed;
        let wait = Wait::new(
            self.id,
            key.name(),
            owner,
            patience.deadline,
            thread_map::held,
        );
        let is_vain = |seen: Option<&Holder>, sleeps: bool| {
            if self.is_stopped(stop) {
                return Err(Vain::Stopped);
            }
            if sleeps {
                wait.begins(seen).map_err(Vain::Deadlock)?;
                listed.begins();
            }
            Ok(())
        };
        let name = self.queue(key, &claim.token);
        let announce = || listed.announce(|now| self.queues.awaited(&name, now));
        let joined = match self.turn(&name, listed, is_vain, || _ = announce(), &claim) {
            Ok(joined) => joined,
            Err(no_turn) => return Err(self.without_turn(no_turn, key, patience)),
        };
        let context = AcquireContext {
            store: &self.store,
            listeners: &self.listeners,
            counters: &self.counters,
            keeper: &self.keeper,
            key,
            owner,
            machine: &self.machine,
            lease: claim.lease,
            reclaim_dead: options.reclaim_dead,
            is_vain: &is_vain,
            sleeps: &announce,
            poll_every: self.settings.poll_every,
        };
        let taken = acquire(&context, patience, &joined, claim)?;
        Ok((joined.turn, taken))
    }

    /// Waits for the turn: one thread of the process at a time asks Redis for a key.
    fn turn(
        &self,
        name: &Arc<str>,
        listed: &ListedWait<'_>,
        is_vain: impl Fn(Option<&Holder>, bool) -> Result<(), Vain>,
        announce: impl Fn(),
        first: &Claim,
    ) -> Result<Joined, NoTurn> {
        let ListedWait { key, patience, .. } = *listed;
        let answered_since = |moment| self.store.answered_since(key.in_redis(), moment);
        let claim = || first.clone();
        let joined = self
            .queues
            .join(name, patience, is_vain, answered_since, announce, claim)?;
        if joined.waited {
            self.counters.waited.add(1);
        }
        Ok(joined)
    }

    /// The error of a caller that had no turn.
    fn without_turn(&self, no_turn: NoTurn, key: &Key, patience: &Patience) -> Error {
        match no_turn {
            NoTurn::Busy(holder) => {
                self.counters.waited.add(u64::from(!patience.once));
                let unknown = || "another thread of this process is about to take it".into();
                let cause = holder.is_none().then(unknown);
                busy(key, patience, holder, cause)
            }
            NoTurn::Outage(cause) => {
                self.counters.waited.add(1);
                self.failed("taking", key, behind_an_outage(cause.as_deref()))
            }
            NoTurn::Vain(vain) => vain.error(key),
        }
    }
}

fn behind_an_outage(words: Option<&str>) -> Failure {
    let front = "the thread in front of it in the queue has no answer";
    Failure::NotSent(words.map_or_else(|| front.into(), |words| format!("{front}: {words}").into()))
}
