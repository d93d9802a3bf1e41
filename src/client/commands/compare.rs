//! The commands for a lock that is held: each compares the token, and does nothing if the key holds
//! a different one.

use std::slice;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::seeded_bugs;
use crate::client::commands::connection::{ServerConnection, next};
use crate::client::commands::replicas::ReplicaWait;
use crate::client::commands::reply::{
    ClaimReply, Compared, Tracking, read_compared, read_extended,
};
use crate::client::commands::runs::Runs;
use crate::client::commands::script::{DELETE, KEEP, RELEASE, RENEW};
use crate::client::commands::wanted::Wanted;
use crate::client::wire::failure::{Failure, accept_change, nonsense};
use crate::client::wire::resp::{Batch, Reply};

/// A lease that is to be extended, if the key still holds the token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a str,
    pub(crate) lease: u64,
}

/// What the holder of a lock does.
pub(crate) trait Holds {
    /// Compare and delete, for the keys of one lock. Takes one more round trip if Redis has
    /// forgotten the script.
    fn remove(&mut self, keys: &[&str], token: &str, deadline: Moment)
    -> Result<Compared, Failure>;

    /// Compare and keep: the key holds no token any more, and expires after `rest`, in
    /// milliseconds. Takes one more round trip if Redis has forgotten the script.
    fn keep(
        &mut self,
        key: &str,
        token: &str,
        rest: u64,
        deadline: Moment,
    ) -> Result<Compared, Failure>;

    /// Compare and delete, for many locks in one round trip, and one more if Redis has forgotten
    /// the script. The answers come in the order of the removals.
    fn remove_all(
        &mut self,
        removals: &[(&[&str], &str)],
        deadline: Moment,
    ) -> Result<Vec<Result<Compared, Failure>>, Failure> {
        let all = removals.iter();
        Ok(all
            .map(|(key, token)| self.remove(key, token, deadline))
            .collect())
    }

    /// Compare and delete the `token` and, right after it in the same round trip, take the lock for
    /// another thread. A claim that Redis refused found the lock busy.
    fn remove_and_claim(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, ClaimReply), Failure>;

    /// Compare and extend, for one lock.
    fn extend(&mut self, extension: &Extension<'_>, deadline: Moment) -> Result<Compared, Failure>;

    /// Gives up a claim whose answer was lost. Sends the compare-and-delete over the connection
    /// that carried the claim, so that Redis executes the claim first.
    ///
    /// Nobody reads the answers, and the connection is not used again. So the script is sent whole:
    /// a NOSCRIPT answer to its hash would go unnoticed.
    fn abandon(mut self: Box<Self>, keys: &[&str], token: &str) {
        let _ = self.remove(keys, token, Moment::NEVER);
    }
}

impl Holds for ServerConnection {
    fn remove(
        &mut self,
        keys: &[&str],
        token: &str,
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        let script = if seeded_bugs::is_in("deletes without comparing") {
            &DELETE
        } else {
            &RELEASE
        };
        script.invoke(self, keys, &[token], deadline, read_compared)
    }

    fn keep(
        &mut self,
        key: &str,
        token: &str,
        rest: u64,
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        let args = [token, &rest.to_string()];
        KEEP.invoke(self, &[key], &args, deadline, read_compared)
    }

    fn remove_all(
        &mut self,
        removals: &[(&[&str], &str)],
        deadline: Moment,
    ) -> Result<Vec<Result<Compared, Failure>>, Failure> {
        let tokens: Vec<_> = removals.iter().map(|(_, token)| [*token]).collect();
        let calls = removals.iter().zip(&tokens);
        let calls: Vec<_> = calls.map(|((keys, _), args)| (*keys, &args[..])).collect();
        let (replies, _) = Runs::of(&RELEASE, &calls).send(self, deadline)?;
        let compared = |reply| RELEASE.explained(read_compared(accept_change(reply)));
        let answers = replies.into_iter();
        Ok(answers.map(|it| self.judged(compared(it))).collect())
    }

    fn remove_and_claim(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, ClaimReply), Failure> {
        let mut done = self.remove_then(token, wanted, false, deadline)?;
        let is_taken = |claim: &ClaimReply| matches!(claim, ClaimReply::Taken { .. });
        if !is_taken(&done.1) && done.0.is_noscript() {
            done = self.remove_then(token, wanted, true, deadline)?;
            if done.0.is_noscript() {
                return self.judged(Err(nonsense(&done.0)));
            }
        }
        let (removed, claim) = done;
        let mut removed = self.judged(read_compared(accept_change(removed)));
        if is_taken(&claim) && matches!(removed, Err(Failure::Refused(_))) {
            // The script did not run, but the claim found no key, so the key was gone already.
            removed = Ok(Compared::Absent);
        }
        Ok((RELEASE.explained(removed), claim))
    }

    fn extend(&mut self, extension: &Extension<'_>, deadline: Moment) -> Result<Compared, Failure> {
        let (answers, _) = self.extend_all(slice::from_ref(extension), None, false, deadline)?;
        let answer = answers.into_iter().next();
        answer.unwrap_or_else(|| Err(Failure::not_sent("no answer")))
    }

    fn abandon(mut self: Box<Self>, keys: &[&str], token: &str) {
        let batch = self
            .begin(Batch::default())
            .and(&RELEASE.command(true, keys, &[token]));
        if let Some(link) = &mut self.lent.link {
            // Wait only a moment: the caller's time may be over, and a healthy socket takes the
            // bytes at once. If this fails, a renewer deletes the key: it searches for each token
            // that is given up.
            let _ = link.send(&batch, Moment::now().after(Duration::from_millis(1)));
            link.retire();
        }
    }
}

impl ServerConnection {
    fn remove_then(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        teach: bool,
        deadline: Moment,
    ) -> Result<(Reply, ClaimReply), Failure> {
        let times = wanted.times();
        let removal = RELEASE.command(teach, &[wanted.key], &[token]);
        let [removed, claimed] = loop {
            let claim = wanted.claim(self.asking, teach, &times);
            let removes = self.begin(Batch::default()).and(&removal);
            let both = self.begin(removes).and(&claim);
            let mut replies = self.exchange(&both, deadline)?.into_iter();
            let replies = [(); 2].map(|()| {
                if self.asking {
                    next(&mut replies);
                }
                next(&mut replies)
            });
            // The reply to the removal, which has one key, says where the slot is. A claim with a
            // fencing token has two: while the slot moves, it is refused (`TRYAGAIN`), without word
            // of where the slot is. If the claim was executed, or may have been, neither is sent
            // again.
            let claim_did_nothing =
                matches!(accept_change(replies[1].clone()), Err(Failure::Refused(_)));
            if !(claim_did_nothing && self.follow(&replies[0], deadline)?) {
                break replies;
            }
        };
        let claim = wanted.read_claim(self.asking, claimed);
        let claim = match self.judged(claim) {
            Err(Failure::Refused(_)) => ClaimReply::Busy(None),
            other => other?,
        };
        Ok((removed, claim))
    }

    /// Compare and extend, for many locks in one round trip. If replicas have to acknowledge the
    /// leases and too few do, no answer says that a lease was extended: at a failover, the replica
    /// that becomes the master may have the old end. If `listener` is given, Redis sends that
    /// listener an invalidation when one of these keys changes. `teach`: Redis may not know the
    /// script, and gets its text at once. The answers come in the order of the extensions.
    pub(crate) fn extend_all(
        &mut self,
        extensions: &[Extension<'_>],
        listener: Option<u64>,
        teach: bool,
        deadline: Moment,
    ) -> Result<(Vec<Result<Compared, Failure>>, Tracking), Failure> {
        let wait = ReplicaWait::new(&self.lent.node, deadline);
        let leases: Vec<_> = extensions.iter().map(|it| it.lease.to_string()).collect();
        let args: Vec<_> = extensions
            .iter()
            .zip(&leases)
            .map(|(it, lease)| [it.token, lease])
            .collect();
        let keys: Vec<_> = extensions.iter().map(|it| [it.key]).collect();
        let calls = keys.iter().zip(&args);
        let calls: Vec<_> = calls.map(|(key, args)| (&key[..], &args[..])).collect();
        let runs = Runs {
            begins_whole: teach,
            listener,
            wait: wait.as_ref(),
            ..Runs::of(&RENEW, &calls)
        };
        let (mut replies, tracking) = runs.send(self, deadline)?;
        let acknowledged = wait.as_ref().map_or(Ok(()), |wait| {
            let reply = replies.pop().unwrap_or(Reply::Nil);
            self.judged(wait.judge(reply, "renewal"))
        });
        let answers = replies.into_iter().zip(extensions).map(|(reply, it)| {
            self.judged(RENEW.explained(read_extended(accept_change(reply), it.token)))
        });
        let mut answers: Vec<_> = answers.collect();
        if let Err(failure) = acknowledged {
            let extended = answers
                .iter_mut()
                .filter(|answer| matches!(answer, Ok(Compared::Done)));
            extended.for_each(|answer| *answer = Err(failure.copy()));
        }
        Ok((answers, tracking))
    }
}
