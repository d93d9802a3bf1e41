//! A lock that is to be taken, and the commands that take it.

use std::borrow::Cow;

use crate::base::key::Key;
use crate::client::commands::reply::{ClaimReply, read_claim, read_set};
use crate::client::commands::script::{
    ADOPT, ADOPT_FENCED, CLAIM, CLAIM_FENCED, CLAIM_SLOT, Script,
};
use crate::client::wire::failure::{Failure, accept_change, nonsense};
use crate::client::wire::resp::Reply;

/// How long a counter stays after the last acquisition, unless the lease is longer than half of it.
///
/// By then, the server's time has long been larger than the number in the counter. The counter is
/// only needed if the server's clock is set back, by less than this time.
const COUNTER_STAYS: u64 = 24 * 3600 * 1000;

/// A lock that is to be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a str,
    /// One of these slots is to be taken, in place of the key. Empty for a lock.
    pub(crate) slots: &'a [Key],
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
            None if self.slots.is_empty() => (&CLAIM, vec![self.token, lease]),
            None => (&CLAIM_SLOT, vec![self.token, lease]),
            Some(_) => (&CLAIM_FENCED, vec![self.token, lease, stays]),
        }
    }

    /// The keys of that script: the lock's and its counter's, or those of the slots.
    pub(crate) fn keys(&self) -> Vec<&'a str> {
        if self.slots.is_empty() {
            [Some(self.key), self.counter]
                .into_iter()
                .flatten()
                .collect()
        } else {
            self.places()
        }
    }

    /// The keys that may hold the token.
    pub(crate) fn places(&self) -> Vec<&'a str> {
        if self.slots.is_empty() {
            vec![self.key]
        } else {
            self.slots.iter().map(Key::in_redis).collect()
        }
    }

    /// True if the answer of the script has a number behind the token: of the fence or of the slot.
    pub(crate) fn is_numbered(&self) -> bool {
        self.counter.is_some() || !self.slots.is_empty()
    }

    /// The script that takes the lock over from the holder of the token `old`, and its arguments.
    /// The new fencing token is larger than `least_fence`.
    pub(crate) fn adoption(
        &self,
        old: &'a str,
        least_fence: &'a str,
        [lease, stays]: &'a [String; 2],
    ) -> (&'static Script, Vec<&'a str>) {
        match self.counter {
            None => (&ADOPT, vec![self.token, lease, stays, old, least_fence]),
            Some(_) => (
                &ADOPT_FENCED,
                vec![self.token, lease, stays, old, least_fence],
            ),
        }
    }

    /// The shortest command that takes the lock. It need not say who has the lock. Behind `ASKING`
    /// it is the script: a proxy may send the `OK` to `ASKING` twice, and `SET` says `OK` as well.
    pub(crate) fn claim(
        &self,
        asking: bool,
        teach: bool,
        times: &'a [String; 2],
    ) -> Vec<Cow<'a, [u8]>> {
        if !self.is_numbered() && !asking {
            let set = set(self.key, self.token, &times[0]);
            return set.map(|word| word.as_bytes().into()).to_vec();
        }
        let (script, args) = self.script(times);
        script.command(teach, &self.keys(), &args)
    }

    /// Reads the reply of that command.
    pub(crate) fn read_claim(&self, asking: bool, reply: Reply) -> Result<ClaimReply, Failure> {
        let reply = accept_change(reply);
        if !self.is_numbered() && !asking {
            read_set(&reply?)
        } else {
            self.read_script(reply)
        }
    }

    /// Reads the reply of the script that takes the lock.
    pub(crate) fn read_script(&self, reply: Result<Reply, Failure>) -> Result<ClaimReply, Failure> {
        let reply = read_claim(reply, self.token, self.is_numbered())?;
        match reply {
            ClaimReply::Taken { number: Some(n) }
                if !self.slots.is_empty() && n > self.slots.len() as u64 =>
            {
                Err(nonsense(&Reply::Int(i64::try_from(n).unwrap_or(-1))))
            }
            reply => Ok(reply),
        }
    }
}

pub(crate) fn set<'a>(key: &'a str, token: &'a str, lease: &'a str) -> [&'a str; 6] {
    ["SET", key, token, "NX", "PX", lease]
}
