//! Taking a lock that this thread does not hold: asking, waiting, giving up.

use std::mem;
use std::thread;
use std::time::Duration;

use crate::random::between;
use log::{debug, info};

use crate::backoff::{Backoff, safety_poll};
use crate::bid::{Answer, Bid, Claimed};
use crate::calls::{Asked, Expected, Woken};
use crate::clock::Moment;
use crate::error::Error;
use crate::hold::Since;
use crate::holder::Holder;
use crate::holds;
use crate::key::NOT_A_STRING;
use crate::machine;
use crate::queue::Turn;
use crate::rivals::Rivals;
use crate::store::{Compared, Refusal, Trouble};
use crate::wish::{Handed, Wish};

/// The shortest pause between two looks: Redis may be a moment late in letting an expired key go.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// How long a waiter lets others go first who were woken with it.
const GIVE_WAY: Duration = Duration::from_micros(200);

/// How long a process leaves the lock alone that has had it for many turns: longer than the gap, so that others come first.
const LET_IN: Duration = Duration::from_micros(400);

/// How long before the deadline a waiter looks for the last time.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// An attempt that has less time than this before the deadline proves nothing.
const FAIR_TRY: Duration = Duration::from_millis(100);

/// How often a waiter looks whether the holder is dead, where that matters.
const GLANCE: Duration = Duration::from_millis(50);

/// How long to try, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The instant that no wait passes, in the line, for a connection, on the wire or asleep.
    pub(crate) deadline: Moment,
    /// One answer is enough: busy is busy.
    pub(crate) once: bool,
    /// The caller will want to be told who has the lock.
    pub(crate) name_holder: bool,
    /// How long Redis may stay away where there is no deadline.
    pub(crate) tolerate_outage: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Redis holds this token for us.
    Taken { token: String, since: Since },
    /// Somebody else has it; who, where that is known.
    Busy(Option<Holder>),
}

/// Takes the lock for the thread that has the turn; it may have been handed on to it already.
pub(crate) fn acquire(
    claim: Claimed<'_>,
    patience: &Patience,
    turn: &Turn,
    wished: (Wish, Handed),
) -> Result<Outcome, Error> {
    if let (wish, Handed::Taken { sent, answered }) = &wished
        && Moment::now() < wish.lease.valid_until(*sent)
    {
        claim.keeper.counters().handed_on.add(1);
        let since = Since { sent: *sent, answered: *answered, stray: false };
        return Ok(Outcome::Taken { token: wish.token.clone(), since });
    }
    let bid = Bid::new(claim, wished);
    let mut claimant = Claimant {
        bid,
        patience,
        turn,
        expected: None,
        asked: None,
        rivals: Rivals::default(),
        looked_late: false,
        vanished: false,
        reclaimed: false,
        unheard: None,
        silent_since: None,
        troubles: 0,
        refusal: None,
    };
    let outcome = claimant.run();
    if !matches!(outcome, Ok(Outcome::Taken { .. })) {
        claimant.bid.abandon();
    }
    outcome
}

/// One acquisition, over as many attempts as it takes.
struct Claimant<'a> {
    bid: Bid<'a>,
    patience: &'a Patience,
    turn: &'a Turn,
    /// From the first busy answer on: what wakes it up.
    expected: Option<Expected<'a>>,
    /// What Redis said to the listener, which asked in the meantime.
    asked: Option<Asked>,
    /// What it has seen of other processes meanwhile.
    rivals: Rivals,
    /// There was a last look before the deadline, or will be.
    looked_late: bool,
    /// The last look found nobody there, though the lock was busy.
    vanished: bool,
    /// It took the lock away from the dead once.
    reclaimed: bool,
    /// The listener that was silent through the last, long pause.
    unheard: Option<u64>,
    /// When the first attempt began that Redis has not properly answered, since the last that it did.
    silent_since: Option<Moment>,
    /// Attempts that failed since.
    troubles: u32,
    /// The last thing that Redis refused since.
    refusal: Option<Refusal>,
}

impl Claimant<'_> {
    fn run(&mut self) -> Result<Outcome, Error> {
        let mut while_busy = Backoff::for_busy();
        let mut in_trouble = Backoff::for_trouble();
        // Asked once only, it has to be learnt at once who has the lock, where that matters.
        let mut look = self.patience.once && (self.patience.name_holder || self.bid.claim.reclaim_dead);
        let yields = self.turn.yields() && !self.patience.once;
        if yields {
            self.let_others_in();
        }
        if (yields && self.turn.waited()) || self.bid.is_astray() {
            self.begin_waiting();
            look = true;
        }
        let mut seen = None;
        loop {
            let began = Moment::now();
            match self.ask(look) {
                Ok(Answer::Taken { token, since }) => {
                    self.check_hearing(None, seen.as_ref());
                    return Ok(Outcome::Taken { token, since });
                }
                Ok(Answer::Busy { holder, heard }) => {
                    (self.silent_since, self.troubles, self.refusal) = (None, 0, None);
                    in_trouble.reset();
                    let holder = self.examine(holder)?;
                    if self.reclaims(holder.as_ref()) {
                        seen = None;
                        continue;
                    }
                    self.check_hearing(holder.as_ref(), seen.as_ref());
                    if self.patience.once {
                        return Ok(Outcome::Busy(holder));
                    }
                    if self.expected.is_none() {
                        // The first answer does not say who has it, nor will there be word of the release: asked once more, at once.
                        self.begin_waiting();
                    } else if !self.pause(while_busy.pause(), heard, holder.as_ref(), seen.as_ref()) {
                        return Ok(Outcome::Busy(holder.or(seen)));
                    }
                    seen = holder.or(seen);
                }
                Ok(Answer::NotAString) => return Err(self.bid.claim.key.not_a_lock(NOT_A_STRING)),
                Err(trouble) => {
                    self.silent_since.get_or_insert(began);
                    self.troubles += 1;
                    if self.gives_up(&trouble) {
                        let cut_short = seen.is_some() && self.is_cut_short(&trouble);
                        return if cut_short { Ok(Outcome::Busy(seen)) } else { Err(self.give_up(trouble)) };
                    }
                    if let Trouble::Refused(refusal) = &trouble {
                        self.refusal = Some(refusal.clone());
                    }
                    debug!(target: "relatch::acquire", "taking lock {:?}: {trouble:?}, trying again", self.bid.claim.key.name());
                    // The first failure may be a connection that had gone stale: the next one is not.
                    let at_once = self.troubles == 1;
                    if !at_once && !self.sleep(in_trouble.pause()) {
                        return Err(self.give_up(trouble));
                    }
                }
            }
            // From the second attempt on, the holder and its lease say how long to pause.
            look = true;
        }
    }

    /// Asks Redis, unless the listener has done so.
    fn ask(&mut self, look: bool) -> Result<Answer, Trouble> {
        if let Some(asked) = self.asked.take() {
            return self.bid.asked(asked);
        }
        if let Some(expected) = &self.expected {
            expected.forget();
        }
        self.bid.attempt(look, self.patience.deadline)
    }

    /// Others have the lock: from now on, word of its end is heard. (Before it is asked for: it may come at once.)
    fn begin_waiting(&mut self) {
        let claim = self.bid.claim;
        if !self.turn.waited() {
            claim.keeper.counters().waited.add(1);
        }
        claim.keeper.listener().start();
        self.expected = Some(claim.keeper.listener().expect(claim.key.in_redis()));
    }

    /// Looks at who has the lock: waiting for some of them would never end.
    fn examine(&self, holder: Option<Holder>) -> Result<Option<Holder>, Error> {
        let Some(holder) = holder else {
            return Ok(None);
        };
        if holds::is_mine(holder.raw(), self.bid.claim.owner.pid()) {
            return Err(Error::WouldDeadlock { key: self.bid.claim.key.name().to_string() });
        }
        if holder.time_left().is_none() {
            return Err(self.bid.claim.key.not_a_lock(&holder.to_string()));
        }
        let of_this_process = holder.owner().is_some_and(|owner| owner.pid() == self.bid.claim.owner.pid());
        self.turn.saw(&holder, of_this_process);
        Ok(Some(holder))
    }

    /// True where the holder is certainly dead, and that matters.
    fn is_dead(&self, holder: &Holder) -> bool {
        let Claimed { owner, machine, reclaim_dead, .. } = self.bid.claim;
        reclaim_dead && machine::is_dead(holder.raw(), owner.host(), machine)
    }

    /// Takes a lock away from a process of this machine that is certainly dead: true where it is free now. (Once:
    /// if there is always another, they are waited for like anybody.)
    fn reclaims(&mut self, holder: Option<&Holder>) -> bool {
        let Claimed { store, key, .. } = self.bid.claim;
        let Some(holder) = holder.filter(|holder| self.is_dead(holder)) else {
            return false;
        };
        // Exactly the dead one's token; an answer that is lost is found out by the next look.
        let removed = store.checkout(self.patience.deadline).and_then(|mut connection| {
            connection.remove(key.in_redis(), holder.raw(), self.patience.deadline)
        });
        let reclaimed = matches!(removed, Ok(Compared::Done));
        if reclaimed {
            self.bid.claim.keeper.counters().reclaimed.add(1);
            info!(target: "relatch::acquire", "lock {:?} was taken over from {holder}, a process that is gone", key.name());
        }
        reclaimed && !mem::replace(&mut self.reclaimed, true)
    }

    /// Sleeps until word comes, but not past the end of the holder's lease, nor past the deadline: false where that has
    /// come. No connection is held meanwhile.
    ///
    /// Without a listener, for so long as `poll` says.
    fn pause(
        &mut self,
        poll: Duration,
        heard: bool,
        holder: Option<&Holder>,
        before: Option<&Holder>,
    ) -> bool {
        let in_a_run = heard && self.rivals.hand_on(holder, before);
        let pause = if heard { safety_poll().min(self.until_last_look()) } else { poll };
        let Some(expected) = &self.expected else {
            return self.sleep(poll);
        };
        if in_a_run {
            // Word of it comes each time.
            thread::sleep(self.rivals.gap().min(self.patience.deadline.since(Moment::now())));
        }
        let again = mem::replace(&mut self.vanished, holder.is_none());
        let lease_left = match holder {
            Some(holder) => holder.time_left().unwrap_or(Duration::MAX),
            None if heard && again => poll, // Hardly by chance: a server that says so is not asked as often as it answers.
            None if heard => Duration::ZERO, // It was free a moment ago.
            None => Duration::MAX,
        };
        let until =
            Moment::now().after(pause.min(lease_left).max(SHORTEST_PAUSE)).min(self.patience.deadline);
        let gives_way = heard && self.rivals.come_first();
        let wish = if heard && !in_a_run && !gives_way { self.bid.wish() } else { None };
        match self.doze(expected, until, wish.as_ref(), holder) {
            Woken::InTime if heard && pause < lease_left && until <= Moment::now() => {
                self.unheard = self.bid.claim.keeper.listener().number();
            }
            Woken::Called if gives_way => _ = self.sleep(GIVE_WAY),
            Woken::InTime | Woken::Called => {}
            Woken::Answered(asked) => self.asked = Some(asked),
            Woken::Left => self.bid.give_up_token(),
        }
        self.asked.is_some() || Moment::now() < self.patience.deadline
    }

    /// Sleeps until it is called, or so long, or until a holder has died that may be taken for dead: Redis does not tell of
    /// that.
    fn doze(
        &self,
        expected: &Expected<'_>,
        until: Moment,
        wish: Option<&Wish>,
        holder: Option<&Holder>,
    ) -> Woken {
        loop {
            let glance =
                if self.bid.claim.reclaim_dead { Moment::now().after(GLANCE) } else { Moment::NEVER };
            let woken = expected.wait(until.min(glance), self.patience.deadline, wish.cloned());
            let goes_on = matches!(woken, Woken::InTime) && Moment::now() < until;
            if !goes_on || holder.is_some_and(|holder| self.is_dead(holder)) {
                return woken;
            }
        }
    }

    /// How long to sleep at most, so as to look once more before the deadline: it is not enough that nobody has said that the
    /// lock is free, Redis has to be there to say so.
    fn until_last_look(&mut self) -> Duration {
        let left = self.patience.deadline.since(Moment::now());
        let looked = mem::replace(&mut self.looked_late, true);
        if left > LAST_LOOK {
            left.saturating_sub(LAST_LOOK)
        } else if looked {
            left
        } else {
            left / 2
        }
    }

    /// Sleeps, but not past the deadline: false where that has come.
    fn sleep(&self, pause: Duration) -> bool {
        thread::sleep(pause.min(self.patience.deadline.since(Moment::now())));
        Moment::now() < self.patience.deadline
    }

    /// After a pause without word: somebody else has the lock by now, or nobody. Then the listener is deaf, and does not know.
    fn check_hearing(&mut self, holder: Option<&Holder>, before: Option<&Holder>) {
        if let Some(number) = self.unheard.take()
            && holder.map(Holder::raw) != before.map(Holder::raw)
        {
            self.bid.claim.keeper.listener().missed(number);
        }
    }

    /// This process has had the lock for many turns: whoever waits in another has time to take it.
    fn let_others_in(&self) {
        let pause = between(LET_IN, LET_IN + LET_IN / 2);
        thread::sleep(pause.min(self.patience.deadline.since(Moment::now())));
    }

    fn gives_up(&self, trouble: &Trouble) -> bool {
        let now = Moment::now();
        let outage = self.patience.deadline == Moment::NEVER
            && self.silent_since.is_some_and(|since| now.since(since) >= self.patience.tolerate_outage);
        !trouble.can_pass()
            || now >= self.patience.deadline
            || outage
            || (self.patience.once && self.troubles > 1)
    }

    /// True where only the last attempts got no answer, and the deadline left them too little time for it to say anything of
    /// Redis.
    fn is_cut_short(&self, trouble: &Trouble) -> bool {
        let now = Moment::now();
        let silence = self.silent_since.map_or(Duration::ZERO, |since| now.since(since));
        !matches!(trouble, Trouble::Refused(_)) && self.patience.deadline <= now && silence < FAIR_TRY
    }

    fn give_up(&mut self, trouble: Trouble) -> Error {
        let action = format!("taking lock {:?}", self.bid.claim.key.name());
        // A last attempt that was cut short by the deadline says less than the refusal before it.
        let cause = match trouble {
            Trouble::Refused(_) => trouble,
            other => self.refusal.take().map_or(other, Trouble::Refused),
        };
        self.bid.claim.store.error(action, cause)
    }
}
