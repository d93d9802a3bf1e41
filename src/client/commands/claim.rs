//! The commands that take a lock, with a fencing token or without.

use crate::base::clock::Moment;
use crate::base::seeded_bugs;
use crate::client::commands::connection::{ServerConnection, next, redirection};
use crate::client::commands::replicas::{Wait, left_behind};
use crate::client::commands::reply::{
    AdoptReply, ClaimReply, Tracking, read_adoption, read_claim, read_set,
};
use crate::client::commands::script::{ADOPT, ADOPT_FENCED, CLAIM, CLAIM_FENCED, Script};
use crate::client::wire::failure::{Failure, check_change};
use crate::client::wire::resp::{Batch, Reply};

/// How long a counter stays after the last acquisition, unless the lease is longer than half of it.
///
/// By then, the server's time has long been larger than the number in the counter. The counter is
/// only needed if the server's clock is set back, by less than this time.
const COUNTER_STAYS: u64 = 24 * 3600 * 1000;

/// A lock that is to be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a str,
    pub(crate) lease: u64,
    /// The key of the lock's counter, if the hold is to have a fencing token.
    pub(crate) counter: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    /// The times that the script needs: of the lease and, for a counter, how long that stays.
    pub(crate) fn times(&self) -> [String; 2] {
        let stays = self
            .counter
            .map(|_| COUNTER_STAYS.max(2 * self.lease).to_string());
        [self.lease.to_string(), stays.unwrap_or_default()]
    }

    /// The script that takes the lock, and its arguments.
    pub(crate) fn script(
        &self,
        [lease, stays]: &'a [String; 2],
    ) -> (&'static Script, Vec<&'a str>) {
        match self.counter {
            None => (&CLAIM, vec![self.token, lease]),
            Some(counter) => (&CLAIM_FENCED, vec![counter, self.token, lease, stays]),
        }
    }

    /// The script that takes the lock over from the holder of the token `old`, and its arguments.
    /// The new fencing token is larger than `least`.
    pub(crate) fn adoption(
        &self,
        old: &'a str,
        least: &'a str,
        [lease, stays]: &'a [String; 2],
    ) -> (&'static Script, Vec<&'a str>) {
        match self.counter {
            None => (&ADOPT, vec![self.token, lease, stays, old, least]),
            Some(counter) => (
                &ADOPT_FENCED,
                vec![counter, self.token, lease, stays, old, least],
            ),
        }
    }

    /// The shortest command that takes the lock. It need not say who has the lock. Behind `ASKING`
    /// it is the script: a proxy may send the `OK` to `ASKING` twice, and `SET` says `OK` as well.
    pub(crate) fn claim(&self, asking: bool, teach: bool, times: &'a [String; 2]) -> Vec<&'a str> {
        if self.counter.is_none() && !asking {
            return set(self.key, self.token, &times[0]).to_vec();
        }
        let (script, args) = self.script(times);
        script.command(teach, self.key, &args)
    }

    /// Reads the reply of that command.
    pub(crate) fn read_claim(&self, asking: bool, reply: Reply) -> Result<ClaimReply, Failure> {
        let reply = check_change(reply);
        if self.counter.is_none() && !asking {
            read_set(&reply?)
        } else {
            self.told(reply)
        }
    }

    /// Reads the reply of the script that takes the lock.
    pub(crate) fn told(&self, reply: Result<Reply, Failure>) -> Result<ClaimReply, Failure> {
        read_claim(reply, self.token, self.counter.is_some())
    }
}

pub(crate) fn set<'a>(key: &'a str, token: &'a str, lease: &'a str) -> [&'a str; 6] {
    ["SET", key, token, "NX", "PX", lease]
}

impl ServerConnection {
    /// One attempt to take a lock: `SET key token NX PX lease`, or a script if the hold is to have
    /// a fencing token. If replicas have to acknowledge the lock, it is taken only once they have.
    pub(crate) fn claim(
        &mut self,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<ClaimReply, Failure> {
        if wanted.counter.is_none() && !self.asking {
            let set = Batch::of(&set(wanted.key, wanted.token, &wanted.times()[0]));
            let mut reply = next(&mut self.exchange(&set, deadline)?.into_iter());
            if seeded_bugs::is_in("takes a redirect for success") && redirection(&reply).is_some() {
                reply = Reply::Ok;
            }
            if !self.follow(&reply, deadline)? {
                let claim = check_change(reply).and_then(|reply| read_set(&reply));
                return self.settled(wanted, claim, deadline);
            }
        }
        self.claim_or_look(wanted, None, deadline)
            .map(|(reply, _)| reply)
    }

    /// An attempt that also learns who has the lock, if it is busy. If `listener` is given, Redis
    /// sends that listener an invalidation when the key changes.
    pub(crate) fn claim_or_look(
        &mut self,
        wanted: Wanted<'_>,
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        let times = wanted.times();
        let (script, args) = wanted.script(&times);
        let add = |batch: Batch, _, teach| batch.and(&script.command(teach, wanted.key, &args));
        let (replies, tracking) = self.run_for_all(listener, 1, add, None, deadline)?;
        let claim = wanted.told(check_change(next(&mut replies.into_iter())));
        let claim = claim.map_err(|failure| script.explain(failure));
        Ok((self.settled(wanted, claim, deadline)?, tracking))
    }

    /// The result of an attempt, if the replicas agree.
    fn settled(
        &mut self,
        wanted: Wanted<'_>,
        claim: Result<ClaimReply, Failure>,
        deadline: Moment,
    ) -> Result<ClaimReply, Failure> {
        let claim = self.retire_if_nonsense(claim)?;
        if matches!(claim, ClaimReply::Taken { .. }) {
            self.acknowledged(wanted.key, wanted.token, deadline)?;
        }
        Ok(claim)
    }

    /// Waits until enough replicas have the key that this connection has just set. If they are too
    /// few, deletes the key again.
    ///
    /// The second round trip is sent only for a lock that was free. If `WAIT` went out behind each
    /// `SET`, a try that finds the lock busy would wait until the replicas have the writes of other
    /// clients.
    fn acknowledged(&mut self, key: &str, token: &str, deadline: Moment) -> Result<(), Failure> {
        let wait = Wait::new(&self.node, deadline);
        let Some(wait) = wait.filter(|_| !seeded_bugs::is_in("waits for no replica")) else {
            return Ok(());
        };
        let replies = self.exchange(&wait.behind(Batch::default()), deadline);
        let reply = next(
            &mut replies
                .map_err(|failure| left_behind(failure, None))?
                .into_iter(),
        );
        let Err(failure) = self.retire_if_nonsense(wait.judge(reply, "lock")) else {
            return Ok(());
        };
        if matches!(failure, Failure::Unanswered { .. }) {
            return Err(failure);
        }
        match self.remove(key, token, deadline) {
            Ok(_) => Err(failure),
            Err(removal) => Err(left_behind(removal, Some(&failure))),
        }
    }

    /// One attempt to take a lock over from the holder of the token `old`: compare and swap. If
    /// replicas have to acknowledge the lock, it counts only once they have. If they are too few,
    /// the key keeps the new token. The attempt may be repeated. The fencing token, if one is
    /// wanted, is larger than `least`.
    pub(crate) fn adopt(
        &mut self,
        old: &str,
        least: u64,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<AdoptReply, Failure> {
        let times = wanted.times();
        let least = least.to_string();
        let (script, args) = wanted.adoption(old, &least, &times);
        let reply = self.run_script(script, wanted.key, &args, deadline);
        let reply = read_adoption(reply, wanted.token, wanted.counter.is_some());
        let reply = self.retire_if_nonsense(reply.map_err(|failure| script.explain(failure)))?;
        if matches!(reply, AdoptReply::Adopted { .. })
            && let Some(wait) = Wait::new(&self.node, deadline)
        {
            let replies = self.exchange(&wait.behind(Batch::default()), deadline);
            let reply = next(
                &mut replies
                    .map_err(|failure| left_behind(failure, None))?
                    .into_iter(),
            );
            let judged = self.retire_if_nonsense(wait.judge(reply, "lock"));
            judged.map_err(|failure| left_behind(failure, None))?;
        }
        Ok(reply)
    }
}
