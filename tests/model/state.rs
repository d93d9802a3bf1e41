//! What the model knows at one moment. A time is the number of ticks that have passed or are left,
//! so that states compare as equal whenever they were reached.

use crate::handing_over::{Adoption, Parcel};
use crate::replicas::Replica;

/// How long Redis keeps a key, in ticks.
pub(crate) const LEASE: u8 = 3;

/// How many ticks before the end of its lease a holder stops trusting its hold.
pub(crate) const MARGIN: u8 = 1;

/// A token: the thread that drew it, and its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) thread: u8,
    pub(crate) nonce: u8,
}

/// A command that Redis executes as one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Command {
    /// `SET key token NX PX lease`, as it is sent after a release.
    Set(Token),
    /// One script: the same `SET`. If another holder has the lock, the script also says which, and
    /// the listener with this number gets an invalidation for the next change.
    Attempt(Token, Option<u8>),
    /// Swaps the first token for the second.
    Adopt(Token, Token),
    /// Requests an invalidation for the next change. Only a mutant sends this command.
    Register(u8, Option<u8>),
    /// Compare and delete.
    Delete(Token),
    /// Compare and extend.
    Renew(Token),
    /// Answers how many replicas have all that the connection has written.
    Wait,
    /// Raises the counter. Only a mutant sends this command.
    Raise,
}

impl Command {
    /// Whether the key may have the token once this was executed.
    pub(crate) fn sets(self, token: Token) -> bool {
        matches!(self, Command::Set(new) | Command::Adopt(_, new) if new == token)
    }
}

/// What Redis has answered to the last batch of a connection so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "one per command of a batch")]
pub(crate) struct Said {
    pub(crate) set: bool,
    /// The token that an attempt found at the key.
    pub(crate) found: Option<Token>,
    pub(crate) removed: bool,
    pub(crate) extended: bool,
    /// Whether the key had the token that was to be removed. Redis does not answer this; the
    /// properties need it.
    pub(crate) stood: bool,
    /// How many replicas have acknowledged.
    pub(crate) acknowledged: u8,
    /// The fence of a claim that set the key, or that found its own token there. Zero: none.
    pub(crate) fence: u8,
}

/// A connection with commands under way. An idle connection is no part of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    /// The commands that Redis has not executed yet, in order.
    pub(crate) commands: Vec<Command>,
    /// How many of `commands` belong to batches whose answer nobody waits for any more.
    pub(crate) old: usize,
    pub(crate) said: Said,
    /// The term of the master at the other end; `None` until the thread's action is over.
    pub(crate) term: Option<u8>,
    /// For each replica, how many writes it did not have yet when the last command of this
    /// connection was executed, and does not have now.
    pub(crate) behind: Vec<u8>,
}

impl Link {
    pub(crate) fn post(&mut self, batch: &[Command]) {
        self.old = self.commands.len();
        self.commands.extend(batch);
        self.said = Said::default();
    }

    pub(crate) fn with(batch: &[Command]) -> Link {
        Link {
            commands: batch.to_vec(),
            ..Link::default()
        }
    }
}

/// What an attempt that was sent waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    #[default]
    Asked,
    /// Redis has set the key, and is asked for its replicas.
    Set,
    /// Too few replicas have the key, and Redis is asked to delete it.
    Removed,
}

/// A token on its way into Redis. Ages are in ticks since the send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) stage: Stage,
    pub(crate) token: Token,
    /// The last token that this claim has abandoned: Redis may hold it.
    pub(crate) abandoned: Option<Token>,
    /// The age of the attempt that has no answer yet.
    pub(crate) sent: Option<u8>,
    pub(crate) link: Option<Link>,
    /// The listener that this attempt registered.
    pub(crate) listener: Option<u8>,
    /// Whether the listener has called since this attempt began.
    pub(crate) called: bool,
    /// Whether the waiter sleeps until the listener calls. If not, it tries again at any time, or
    /// never: it may pause, or have to poll.
    pub(crate) asleep: bool,
}

/// The connection of a process's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Connected {
    Yes,
    /// The connection is gone, and the process has not noticed.
    Lost,
    No,
}

/// A process's listener, and what Redis tracks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tracking {
    pub(crate) connected: Connected,
    /// The number of its connection; if there is none, of the last one.
    pub(crate) number: u8,
    /// Whether the listener will get an invalidation for the next change of the key.
    pub(crate) registered: bool,
    /// Whether an invalidation is on its way to the listener.
    pub(crate) invalidation: bool,
    /// Whether the connection of the attempt is lost, and the process has not noticed. Redis has
    /// forgotten the key that this connection tracked.
    pub(crate) cut: bool,
}

impl Tracking {
    pub(crate) const NEW: Tracking = Tracking {
        connected: Connected::Yes,
        number: 0,
        registered: false,
        invalidation: false,
        cut: false,
    };
}

/// The value of the key, and how many ticks of its lease are left.
pub(crate) type Key = Option<(Token, u8)>;

/// Where the fences come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Counter {
    /// What is stored at the counter's key; zero if the key is gone.
    pub(crate) stored: u8,
    /// The largest fence so far. The server's time is larger, unless the clock was set back.
    pub(crate) largest: u8,
    pub(crate) clock_was_set_back: bool,
}

/// What Redis knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Redis {
    pub(crate) key: Key,
    pub(crate) replicas: Vec<Replica>,
    /// How many failovers there were.
    pub(crate) term: u8,
    pub(crate) counter: Counter,
    /// The key at a master that was replaced, as long as that master still executes commands.
    pub(crate) replaced: Option<Key>,
    /// One entry for each process; empty if the waiters poll.
    pub(crate) tracking: Vec<Tracking>,
}

impl Redis {
    /// The key has changed. Redis sends a connection no invalidation for its own change. The
    /// process `by` may have attempted over that connection, so the process gets none.
    pub(crate) fn changed(&mut self, by: Option<usize>) {
        for (process, tracking) in self.tracking.iter_mut().enumerate() {
            if std::mem::take(&mut tracking.registered) && by != Some(process) {
                tracking.invalidation |= tracking.connected == Connected::Yes;
            }
        }
    }
}

/// How a thread came by its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum How {
    Asked,
    HandedOff,
    Adopted,
}

/// A hold, as its thread sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) token: Token,
    pub(crate) how: How,
    /// For how many ticks the hold is still valid, by the clock of its thread.
    pub(crate) valid: u8,
    /// Zero if the model has no fences.
    pub(crate) fence: u8,
    /// The age of a renewal under way, and its link.
    pub(crate) renewal: Option<(u8, Link)>,
}

/// What became of the `SET` of a hand-off. `Nothing`: it was not sent, has no answer yet, or found
/// the key taken. `Spoilt`: its answer was lost, so its token must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Nothing,
    Taken { age: u8, fence: u8 },
    Spoilt,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Release {
    pub(crate) token: Token,
    /// For how many ticks the hold was still valid when its release began, and for how many it
    /// would be now, by the clock of its thread.
    pub(crate) valid: (u8, u8),
    pub(crate) maybe_done: bool,
    /// Whether the hold was adopted, and so perhaps held without a turn.
    pub(crate) adopted: bool,
    /// The connection of the try that is under way.
    pub(crate) link: Option<Link>,
    /// The token of the `SET` that was sent with the first try, and the ticks since that send.
    pub(crate) next_token: Option<(Token, u8)>,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Idle,
    /// In the queue behind another thread of its process, with the token that it will claim.
    Queued(Token),
    /// A release handed the turn off to this thread.
    Called(Token, Outcome),
    Claiming(Claim),
    Holding(Hold),
    Releasing(Release),
    Adopting(Adoption),
}

impl Step {
    /// The connection with commands or answers under way.
    pub(crate) fn link(&self) -> Option<&Link> {
        match self {
            Step::Claiming(claim) => claim.link.as_ref(),
            Step::Holding(hold) => hold.renewal.as_ref().map(|(_, link)| link),
            Step::Releasing(release) => release.link.as_ref(),
            Step::Adopting(adoption) => adoption.link.as_ref(),
            Step::Idle | Step::Queued(_) | Step::Called(..) => None,
        }
    }

    pub(crate) fn link_mut(&mut self) -> Option<&mut Link> {
        match self {
            Step::Claiming(claim) => claim.link.as_mut(),
            Step::Holding(hold) => hold.renewal.as_mut().map(|(_, link)| link),
            Step::Releasing(release) => release.link.as_mut(),
            Step::Adopting(adoption) => adoption.link.as_mut(),
            Step::Idle | Step::Queued(_) | Step::Called(..) => None,
        }
    }

    pub(crate) fn uses(&self, token: Token) -> bool {
        match self {
            Step::Idle => false,
            Step::Queued(own) | Step::Called(own, _) => *own == token,
            Step::Claiming(claim) => claim.token == token,
            Step::Holding(hold) => hold.token == token,
            Step::Adopting(adoption) => adoption.old == token || adoption.new == token,
            Step::Releasing(release) => {
                release.token == token
                    || release
                        .next_token
                        .is_some_and(|(next_token, _)| next_token == token)
            }
        }
    }
}

/// A key that the keeper of a process deletes, once a tick.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Orphan {
    pub(crate) token: Token,
    /// For how many ticks the keeper still looks for the key. At zero, it leaves the key to its
    /// lease.
    pub(crate) left: u8,
    /// Whether a `SET` of this token may still be executed. If so, a missing key does not end the
    /// orphan.
    pub(crate) stray: bool,
}

/// How many faults and renewals can still happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Answers that can get lost.
    pub(crate) losses: u8,
    pub(crate) renewals: u8,
    /// Ticks that a clock can miss.
    pub(crate) missed: u8,
    /// Connections of a listener or of an attempt that can get lost.
    pub(crate) cuts: u8,
    /// How often a replica can become the master.
    pub(crate) failovers: u8,
    /// How often Redis gives up waiting for its replicas. (An old master may always give up.)
    pub(crate) shortages: u8,
    /// How often the counter can get lost, the clock be set back, and a holder enter again.
    pub(crate) lost_counters: u8,
    pub(crate) steps_back: u8,
    pub(crate) reentries: u8,
    /// How often a holder can hand its hold over.
    pub(crate) hand_overs: u8,
}

/// A resource that each holder writes to with its fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    pub(crate) newest: u8,
    /// A hold began whose fence was not larger than each one before.
    pub(crate) saw_an_old_one: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) redis: Redis,
    pub(crate) steps: Vec<Step>,
    /// The next nonce of each thread.
    pub(crate) nonces: Vec<u8>,
    /// Connections from which nobody reads any more. Redis may execute what was sent at any time,
    /// or never.
    pub(crate) strays: Vec<Link>,
    pub(crate) orphans: Vec<Orphan>,
    pub(crate) budget: Budget,
    /// Whether the first answer to a release confirmed it although its token was not at the key.
    pub(crate) wrongly_released: bool,
    pub(crate) wrongly_lost: bool,
    /// What was handed over last.
    pub(crate) parcel: Option<Parcel>,
    pub(crate) adopted_twice: bool,
    pub(crate) resource: Resource,
    /// The threads that still connect to the master that was replaced.
    pub(crate) stale: Vec<usize>,
}

impl State {
    /// Leaves a connection from which nobody reads any more.
    ///
    /// Keeps only what changes the key: an attempt becomes a `SET`. (A registration for
    /// invalidations is left out, too: it could only lead to one call too many.)
    pub(crate) fn leave(&mut self, mut link: Link) {
        link.commands.retain(|command| {
            !matches!(
                command,
                Command::Register(..) | Command::Wait | Command::Raise
            )
        });
        for command in &mut link.commands {
            if let Command::Attempt(token, _) = *command {
                *command = Command::Set(token);
            }
        }
        if !link.commands.is_empty() {
            (link.old, link.said, link.behind) = (link.commands.len(), Said::default(), Vec::new());
            self.strays.push(link);
            self.strays
                .sort_by(|one, other| one.commands.cmp(&other.commands));
        }
    }

    /// Drops connections that cannot change anything any more: their commands are for tokens that
    /// are not at the key, that no thread uses, and that no `SET` brings back.
    pub(crate) fn forget_what_is_void(&mut self) {
        for link in std::mem::take(&mut self.strays) {
            let alive = link.commands.iter().any(|command| match command {
                Command::Set(_) | Command::Attempt(..) => true,
                Command::Adopt(old, new) => self.may_matter(*old) || self.may_matter(*new),
                Command::Register(..) | Command::Wait | Command::Raise => false,
                Command::Delete(token) | Command::Renew(token) => self.may_matter(*token),
            });
            if alive {
                self.strays.push(link);
            }
        }
    }

    fn may_matter(&self, token: Token) -> bool {
        self.redis
            .copies()
            .any(|key| key.is_some_and(|(found, _)| found == token))
            || self.steps.iter().any(|step| step.uses(token))
            || self
                .strays
                .iter()
                .any(|link| link.commands.iter().any(|command| command.sets(token)))
    }

    pub(crate) fn add_orphan(&mut self, token: Token, stray: bool) {
        self.orphans.retain(|orphan| orphan.token != token);
        self.orphans.push(Orphan {
            token,
            left: LEASE,
            stray,
        });
        self.orphans.sort();
    }
}
