//! A lock that is to be taken, and the commands that take it.

use std::borrow::Cow;

use crate::base::key::Key;
use crate::client::commands::reply::{ClaimReply, read_claim, read_set};
use crate::client::commands::script::{
    ADOPT, ADOPT_FENCED, CLAIM, CLAIM_FENCED, CLAIM_SLOT, NO_READER, Script,
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
    pub(crate) goal: Goal<'a>,
    pub(crate) token: &'a str,
    pub(crate) lease: u64,
    /// The key of the lock's counter, if the hold is to have a fencing token.
    pub(crate) counter: Option<&'a str>,
}

/// What is to be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal<'a> {
    /// The key.
    Key,
    /// One of these slots. If they have a gate, it must be free, or hold the token `mine`.
    Slot {
        slots: &'a [Key],
        gate: Option<&'a str>,
        mine: &'a str,
    },
    /// Nothing more: the gate holds the token. But all slots have to be free.
    NoSlot { slots: &'a [Key], gate: &'a str },
}

impl<'a> Wanted<'a> {
    /// The times that the script needs: the lease and, for a counter, how long that stays.
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
        match self.goal {
            Goal::Key if self.counter.is_none() => (&CLAIM, vec![self.token, lease]),
            Goal::Key => (&CLAIM_FENCED, vec![self.token, lease, stays]),
            Goal::Slot { gate: None, .. } => (&CLAIM_SLOT, vec![self.token, lease]),
            Goal::Slot { mine, .. } => (&CLAIM_SLOT, vec![self.token, lease, mine]),
            Goal::NoSlot { .. } => (&NO_READER, vec![self.token]),
        }
    }

    /// The keys of that script: the lock's and its counter's, or those of the slots and the gate.
    pub(crate) fn keys(&self) -> Vec<&'a str> {
        match self.goal {
            Goal::Key => [Some(self.key), self.counter]
                .into_iter()
                .flatten()
                .collect(),
            Goal::Slot { slots, gate, .. } => of_slots(slots).chain(gate).collect(),
            Goal::NoSlot { slots, gate } => of_slots(slots).chain([gate]).collect(),
        }
    }

    /// The keys that may hold the token since the script was sent.
    pub(crate) fn places(&self) -> Vec<&'a str> {
        match self.goal {
            Goal::Key => vec![self.key],
            Goal::Slot { slots, .. } => of_slots(slots).collect(),
            Goal::NoSlot { .. } => Vec::new(),
        }
    }

    /// True if the script's answer has a number after the token: that of the fence or of the slot.
    fn is_numbered(&self) -> bool {
        self.counter.is_some() || matches!(self.goal, Goal::Slot { .. })
    }

    /// True if a `SET` is enough.
    pub(crate) fn is_plain(&self) -> bool {
        self.counter.is_none() && matches!(self.goal, Goal::Key)
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

    /// The shortest command that takes the lock. It need not say who has the lock. After `ASKING`,
    /// it is the script: a proxy may send the `OK` to `ASKING` twice, and `SET` says `OK` as well.
    pub(crate) fn claim(
        &self,
        asking: bool,
        teach: bool,
        times: &'a [String; 2],
    ) -> Vec<Cow<'a, [u8]>> {
        if self.is_plain() && !asking {
            let set = set(self.key, self.token, &times[0]);
            return set.map(|word| word.as_bytes().into()).to_vec();
        }
        let (script, args) = self.script(times);
        script.command(teach, &self.keys(), &args)
    }

    /// Reads the reply to that command.
    pub(crate) fn read_claim(&self, asking: bool, reply: Reply) -> Result<ClaimReply, Failure> {
        let reply = accept_change(reply);
        if self.is_plain() && !asking {
            read_set(&reply?)
        } else {
            self.read_script(reply)
        }
    }

    /// Reads the reply to the script that takes the lock.
    pub(crate) fn read_script(&self, reply: Result<Reply, Failure>) -> Result<ClaimReply, Failure> {
        if let (Goal::NoSlot { .. }, Ok(Reply::Bytes(said))) = (self.goal, &reply) {
            let is_alone = said.strip_prefix(self.token.as_bytes()) == Some(b" alone");
            let number = None;
            return is_alone
                .then_some(ClaimReply::Taken { number })
                .ok_or_else(|| nonsense(&Reply::Bytes(said.clone())));
        }
        let reply = read_claim(reply, self.token, self.is_numbered())?;
        match (&reply, self.goal) {
            (ClaimReply::Taken { number: Some(n) }, Goal::Slot { slots, .. })
                if slots.len() < usize::try_from(*n).unwrap_or(usize::MAX) =>
            {
                Err(nonsense(&Reply::Line(format!("slot {n}"))))
            }
            _ => Ok(reply),
        }
    }
}

fn of_slots(slots: &[Key]) -> impl Iterator<Item = &str> {
    slots.iter().map(Key::in_redis)
}

pub(crate) fn set<'a>(key: &'a str, token: &'a str, lease: &'a str) -> [&'a str; 6] {
    ["SET", key, token, "NX", "PX", lease]
}
