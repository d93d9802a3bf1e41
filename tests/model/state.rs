//! What the model knows at one moment. Time is kept as what has passed or is left, so that a state has no date.

/// How long Redis keeps a key, in ticks.
pub(crate) const LEASE: u8 = 3;

/// How much sooner a holder stops trusting it.
pub(crate) const MARGIN: u8 = 1;

/// Whose it is, and its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) thread: u8,
    pub(crate) nonce: u8,
}

/// A command that Redis executes as one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Command {
    /// `SET key token NX PX lease`.
    Set(Token),
    /// `GET key`, by whoever wants to know whether this token stands there.
    Get(Token),
    /// Compare and delete.
    Delete(Token),
    /// Compare and extend.
    Renew(Token),
}

/// What Redis has said to the last batch of a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "one per command of a batch")]
pub(crate) struct Said {
    pub(crate) set: bool,
    pub(crate) found_own: bool,
    pub(crate) removed: bool,
    pub(crate) extended: bool,
    /// Not said, but so: the token that was removed stood there.
    pub(crate) stood: bool,
}

/// A connection with something under way. One without is no part of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    /// Not executed yet, in order.
    pub(crate) commands: Vec<Command>,
    /// How many of those belong to batches whose answer nobody waits for any more.
    pub(crate) old: usize,
    pub(crate) said: Said,
}

impl Link {
    pub(crate) fn post(&mut self, batch: &[Command]) {
        self.old = self.commands.len();
        self.commands.extend(batch);
        self.said = Said::default();
    }

    pub(crate) fn with(batch: &[Command]) -> Link {
        Link { commands: batch.to_vec(), ..Link::default() }
    }
}

/// A token on its way into Redis. Ages are in ticks since the send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bid {
    pub(crate) token: Token,
    /// The attempt whose answer is awaited.
    pub(crate) sent: Option<u8>,
    pub(crate) link: Option<Link>,
    pub(crate) astray: Option<u8>,
}

/// How a thread came by its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum How {
    Asked,
    /// It had lost an answer, and found its token there.
    Found,
    HandedOn,
}

/// A hold, as its thread sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) token: Token,
    pub(crate) how: How,
    /// Ticks left by its own clock.
    pub(crate) valid: u8,
    /// A `SET` of this token may yet be executed.
    pub(crate) stray: bool,
    /// The age of a renewal under way, and its link.
    pub(crate) renewal: Option<(u8, Link)>,
}

/// What became of a wish that went out behind a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Handed {
    Nothing,
    Taken { age: u8 },
    Astray { age: u8 },
    Spoilt,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Release {
    pub(crate) token: Token,
    /// Ticks left by its own clock when it was given back, and now.
    pub(crate) valid: (u8, u8),
    pub(crate) stray: bool,
    pub(crate) maybe_done: bool,
    /// A try under way.
    pub(crate) link: Option<Link>,
    /// The wish that went out with the first try, and how long ago.
    pub(crate) wish: Option<(Token, u8)>,
    pub(crate) handed: Handed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Idle,
    /// Behind another thread of its process, with a wish.
    InLine(Token),
    /// The turn was handed on to it.
    Called(Token, Handed),
    Bidding(Bid),
    Holding(Hold),
    Releasing(Release),
}

impl Step {
    pub(crate) fn uses(&self, token: Token) -> bool {
        match self {
            Step::Idle => false,
            Step::InLine(own) | Step::Called(own, _) => *own == token,
            Step::Bidding(bid) => bid.token == token,
            Step::Holding(hold) => hold.token == token,
            Step::Releasing(release) => {
                release.token == token || release.wish.is_some_and(|(wish, _)| wish == token)
            }
        }
    }
}

/// A key that the keeper of a process deletes, once a tick.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Leftover {
    pub(crate) token: Token,
    /// Zero: what stands there, or may still come, is left to its lease.
    pub(crate) left: u8,
    pub(crate) stray: bool,
}

/// How much may yet happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Answers that get lost.
    pub(crate) losses: u8,
    pub(crate) renewals: u8,
    /// Ticks that a clock misses.
    pub(crate) missed: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// What stands in Redis, and for how many ticks.
    pub(crate) key: Option<(Token, u8)>,
    pub(crate) steps: Vec<Step>,
    /// The next nonce of each thread.
    pub(crate) nonces: Vec<u8>,
    /// Connections that nobody reads any more. What was sent may be executed at any time, or never.
    pub(crate) strays: Vec<Link>,
    pub(crate) owed: Vec<Leftover>,
    pub(crate) budget: Budget,
    /// A release was reported as such after a first answer, and its token had not stood there.
    pub(crate) wrongly_released: bool,
    pub(crate) wrongly_lost: bool,
}

impl State {
    /// Leaves a link to Redis, with nobody who reads it.
    ///
    /// Nobody hears what is read: it is left out.
    pub(crate) fn leave(&mut self, mut link: Link) {
        link.commands.retain(|command| !matches!(command, Command::Get(_)));
        if !link.commands.is_empty() {
            (link.old, link.said) = (link.commands.len(), Said::default());
            self.strays.push(link);
            self.strays.sort_by(|one, other| one.commands.cmp(&other.commands));
        }
    }

    /// Leaves out what can change nothing any more: what is for a token that nobody will use and that no `SET` brings back.
    pub(crate) fn forget_what_is_void(&mut self) {
        for link in std::mem::take(&mut self.strays) {
            let alive = link.commands.iter().any(|command| match command {
                Command::Set(_) => true,
                Command::Get(token) | Command::Delete(token) | Command::Renew(token) => {
                    self.may_matter(*token)
                }
            });
            if alive {
                self.strays.push(link);
            }
        }
    }

    fn may_matter(&self, token: Token) -> bool {
        self.key.is_some_and(|(found, _)| found == token)
            || self.steps.iter().any(|step| step.uses(token))
            || self.strays.iter().any(|link| link.commands.contains(&Command::Set(token)))
    }

    pub(crate) fn owe(&mut self, token: Token, stray: bool) {
        self.owed.retain(|leftover| leftover.token != token);
        self.owed.push(Leftover { token, left: LEASE, stray });
        self.owed.sort();
    }
}
