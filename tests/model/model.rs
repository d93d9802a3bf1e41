//! What can happen next, and which properties must hold whatever happens.

use stateright::{Model, Property};

use crate::fence;
use crate::handing_over;
use crate::replicas::{self, Replica};
use crate::state::{
    Budget, Counter, How, Link, Redis, Release, Resource, State, Step, Token, Tracking,
};
use crate::waiting::{self, Event};

/// A part of the protocol that is left out or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    CountsFromTheAnswer,
    CountsHandOffsFromTheAnswer,
    NoMargin,
    NoNonce,
    DeletesWithoutComparing,
    TrustsAFlag,
    ReusesItsToken,
    UsesASpoiltToken,
    CleansUpElsewhere,
    RenewalCreates,
    /// A waiter that finds its own abandoned token at the key takes it for another holder's.
    OverlooksItsAbandonedToken,
    KeepsNoOrphans,
    TakesALateAnswerForALoss,
    /// The keeper takes a missing orphan for proof that its `SET` is not under way.
    TakesAMissForTheEnd,
    /// The attempt and the registration for invalidations are two commands.
    RegistersAfterTheAttempt,
    /// A waiter forgets a call that comes during its attempt.
    ForgetsWhenItFallsAsleep,
    /// A waiter's connection redirects to the first listener for ever.
    KeepsToItsFirstListener,
    /// The listener wakes no waiter when it loses its connection, nor when it has a new one.
    WakesNoWaiterWithoutListener,
    /// No waiter is woken when the connection of an attempt is lost.
    IgnoresACutLink,
    /// The release of a hold that a peer considers expired wakes no waiter in its own process.
    ReleasesQuietly,
    /// A hold that was valid when it was released counts as over before Redis has answered.
    PassesByARelease,
    /// A renewal counts although no replica has acknowledged it.
    CountsUnacknowledgedRenewals,
    /// The validity of a hold counts from when its replicas were asked.
    CountsFromTheWait,
    /// A key that too few replicas have is left where it is.
    KeepsAKeyTooFewHave,
    /// A holder that enters again gets a new fence.
    RaisesOnReentry,
    /// After a lost answer, the same token is sent again. If the key has it, the lock is taken,
    /// with the fence that is stored.
    TrustsARepeatedClaim,
    /// The counter is raised by a command of its own, in front of the attempt.
    RaisesInThePipeline,
    /// The fence is one more than the stored one, whatever the server's time is.
    CountsWithoutTheClock,
    /// The fence is the server's time, whatever is stored.
    TrustsTheClockAlone,
    /// A sender believes until it learns that its hold was adopted.
    BelievesBehindTheParcel,
    /// The adopter goes on with the token that was handed over.
    HandsItsTokenOn,
    /// An adoption sets the key, whatever token it has.
    AdoptsWhateverIsThere,
    /// A repeated adoption that finds its own token says yes, and does not extend the lease.
    LeavesTheLeaseOfARepeat,
    /// An adoption wakes no waiter in its own process.
    AdoptsQuietly,
    /// The release of an adopted hold wakes no waiter in its own process.
    ReleasesAnAdoptedHoldQuietly,
}

/// The protocol, within bounds.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    /// The process of each thread.
    pub(crate) threads: Vec<u8>,
    /// How many tokens a thread may use.
    pub(crate) nonces: u8,
    /// Whether waiters sleep until their listener calls. If not, they poll.
    pub(crate) sleeps: bool,
    /// How many replicas there are, and how many of them have to acknowledge a lock.
    pub(crate) replicas: usize,
    pub(crate) acknowledged: u8,
    /// Whether each hold has a fence.
    pub(crate) fenced: bool,
    pub(crate) budget: Budget,
    pub(crate) mutation: Option<Mutation>,
}

/// The process of a thread whose commands are executed and answered at once. The thread stands for
/// another client.
pub(crate) const PROMPT: u8 = 9;

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Own(usize),
    Keeper(usize),
    Stray(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(usize),
    TakeTurn(usize),
    Attempt(usize),
    GiveUp(usize),
    Renew(usize),
    Release(usize, Option<Token>),
    ReleaseAgain(usize),
    ReleaseUnconfirmed(usize),
    Execute(At),
    Receive(At),
    Lose(At, bool),
    Tick(Option<usize>),
    /// A process loses the connection of its listener (`true`) or of an attempt (`false`).
    Cut(usize, bool),
    Listen(usize, Event),
    /// A replica gets the next write.
    Replicate(usize),
    /// A replica becomes the master; the old master goes on (`true`) or dies.
    Failover(usize, bool),
    EndOldMaster,
    /// A thread learns that there is a new master.
    Notice(usize),
    /// The counter is gone.
    LoseCounter,
    SetClockBack,
    /// A holder takes the lock once more.
    Reenter(usize),
    HandOver(usize),
    Adopt(usize),
    AdoptAgain(usize),
}

impl Protocol {
    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The other threads of the thread's process.
    pub(crate) fn peers(&self, thread: usize) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.threads.len())
            .filter(move |peer| *peer != thread && self.threads[*peer] == self.threads[thread])
    }

    /// Whether no other thread of its process keeps the thread waiting.
    fn is_open(&self, state: &State, thread: usize) -> bool {
        self.peers(thread).all(|peer| match &state.steps[peer] {
            Step::Idle | Step::Queued(_) | Step::Adopting(_) => true,
            Step::Called(..) | Step::Claiming(_) => false,
            Step::Holding(hold) => hold.valid == 0,
            // A hold that was valid when it was released is not over until Redis has answered.
            Step::Releasing(release) => {
                release.next_token.is_none()
                    && (release.valid.0 == 0 || self.is(Mutation::PassesByARelease))
            }
        })
    }

    fn actions_of(&self, state: &State, thread: usize, actions: &mut Vec<Action>) {
        match &state.steps[thread] {
            Step::Idle if state.nonces[thread] < self.nonces => {
                actions.push(Action::Start(thread));
                actions.extend(state.parcel.map(|_| Action::Adopt(thread)));
            }
            Step::Idle => {}
            Step::Queued(_) => {
                actions.push(Action::GiveUp(thread));
                if self.is_open(state, thread) {
                    actions.push(Action::TakeTurn(thread));
                }
            }
            Step::Called(..) => actions.push(Action::TakeTurn(thread)),
            Step::Claiming(claim) if claim.asleep => actions.push(Action::GiveUp(thread)),
            Step::Claiming(claim) if claim.sent.is_none() => {
                actions.extend([Action::Attempt(thread), Action::GiveUp(thread)]);
            }
            Step::Claiming(claim) => {
                self.wire(state, At::Own(thread), claim.link.as_ref(), actions);
            }
            Step::Holding(hold) => {
                let waiting = self.peers(thread).find_map(|peer| match state.steps[peer] {
                    Step::Queued(next_token) => Some(next_token),
                    _ => None,
                });
                actions.push(Action::Release(thread, None));
                actions.extend(waiting.map(|next_token| Action::Release(thread, Some(next_token))));
                if hold.valid > 0 && state.budget.hand_overs > 0 {
                    actions.push(Action::HandOver(thread));
                }
                if hold.renewal.is_none() && hold.valid > 0 && state.budget.renewals > 0 {
                    actions.push(Action::Renew(thread));
                }
                self.wire(
                    state,
                    At::Keeper(thread),
                    hold.renewal.as_ref().map(|(_, link)| link),
                    actions,
                );
            }
            Step::Releasing(Release { link: None, .. }) => {
                actions.extend([
                    Action::ReleaseAgain(thread),
                    Action::ReleaseUnconfirmed(thread),
                ]);
            }
            Step::Releasing(release) => {
                self.wire(state, At::Own(thread), release.link.as_ref(), actions);
            }
            Step::Adopting(adoption) => {
                handing_over::actions(adoption, thread, actions);
                self.wire(state, At::Own(thread), adoption.link.as_ref(), actions);
            }
        }
    }

    /// What can happen to a batch whose answer is awaited.
    fn wire(&self, state: &State, at: At, link: Option<&Link>, actions: &mut Vec<Action>) {
        let Some(link) = link else { return };
        if state.is_cut_off(link) {
            return actions.push(Action::Lose(at, false));
        }
        if link.commands.is_empty() {
            actions.push(Action::Receive(at));
        } else if state.budget.shortages > 0 || !self.is_short(&state.redis, link) {
            actions.push(Action::Execute(at));
        }
        if state.budget.losses > 0 {
            actions.push(Action::Lose(at, false));
            if matches!(at, At::Own(_)) {
                actions.push(Action::Lose(at, true));
            }
        }
    }

    fn execute_at(&self, state: &mut State, at: At) {
        let link = match at {
            At::Stray(number) => {
                let mut link = state.strays.remove(number);
                self.execute(&mut state.redis, &mut link, None);
                return state.leave(link);
            }
            At::Own(thread) | At::Keeper(thread) => state.steps[thread].link_mut(),
        };
        let by = match at {
            At::Own(thread) => Some(self.threads[thread].into()),
            At::Keeper(_) | At::Stray(_) => None,
        };
        if let Some(link) = link {
            state.budget.shortages -= u8::from(self.is_short(&state.redis, link));
            self.execute(&mut state.redis, link, by);
        }
    }

    fn receive(&self, state: &mut State, at: At) {
        let (At::Own(thread) | At::Keeper(thread) | At::Stray(thread)) = at;
        match &mut state.steps[thread] {
            Step::Holding(hold) => self.receive_renewal(hold),
            Step::Claiming(claim) => {
                let claim = claim.clone();
                self.receive_attempt(state, thread, claim);
            }
            Step::Releasing(release) => {
                let release = release.clone();
                self.receive_release(state, thread, release);
            }
            Step::Adopting(adoption) => {
                let adoption = adoption.clone();
                self.receive_adoption(state, thread, &adoption);
            }
            Step::Idle | Step::Queued(_) | Step::Called(..) => {}
        }
    }

    fn lose(&self, state: &mut State, at: At, link_stands: bool) {
        let (At::Own(thread) | At::Keeper(thread) | At::Stray(thread)) = at;
        if !state.steps[thread]
            .link()
            .is_some_and(|link| state.is_cut_off(link))
        {
            state.budget.losses -= 1;
        }
        match &mut state.steps[thread] {
            Step::Holding(hold) => {
                let link = hold
                    .renewal
                    .take()
                    .map(|(_, link)| link)
                    .unwrap_or_default();
                state.leave(link);
            }
            Step::Claiming(claim) => {
                let claim = claim.clone();
                self.lose_attempt(state, thread, claim, link_stands);
            }
            Step::Releasing(release) => {
                let link = Protocol::lose_release(release, link_stands);
                state.leave(link);
            }
            Step::Adopting(adoption) => {
                let link = adoption.link.take().unwrap_or_default();
                state.leave(link);
            }
            Step::Idle | Step::Queued(_) | Step::Called(..) => {}
        }
    }

    /// Executes what the thread has sent, and takes the answer. The replicas get at once what the
    /// thread waits for.
    fn be_prompt(&self, state: &mut State, thread: usize) {
        let mut next = Vec::new();
        loop {
            next.clear();
            if state.steps[thread]
                .link()
                .is_some_and(|link| self.is_short(&state.redis, link))
            {
                replicas::catch_up(state);
            }
            self.actions_of(state, thread, &mut next);
            match next.first() {
                Some(Action::Execute(at)) => self.execute_at(state, *at),
                Some(Action::Receive(at)) => self.receive(state, *at),
                _ => return,
            }
        }
    }

    fn act(&self, state: &mut State, thread: usize, action: Action) {
        match (action, &mut state.steps[thread]) {
            (Action::Start(_), _) => self.start(state, thread),
            (Action::TakeTurn(_), _) => self.take_turn(state, thread),
            (Action::GiveUp(_), Step::Adopting(adoption)) => {
                let new = adoption.new;
                self.drop_adoption(state, thread, new);
            }
            // Each token that the thread has abandoned is an orphan already.
            (Action::GiveUp(_), step) => *step = Step::Idle,
            (Action::Attempt(_), _) => self.attempt(state, thread),
            (Action::Renew(_), Step::Holding(hold)) => {
                state.budget.renewals -= 1;
                self.renew(hold);
            }
            (Action::Release(_, next_token), Step::Holding(hold)) => {
                let hold = hold.clone();
                Protocol::release(state, thread, hold, next_token);
            }
            (Action::HandOver(_), Step::Holding(hold)) => {
                let hold = hold.clone();
                self.hand_over(state, thread, hold);
            }
            (Action::Adopt(_), _) => self.adopt(state, thread),
            (Action::AdoptAgain(_), _) => Protocol::adopt_again(state, thread),
            (Action::ReleaseAgain(_), Step::Releasing(release)) => Protocol::release_again(release),
            (Action::ReleaseUnconfirmed(_), Step::Releasing(release)) => {
                let release = release.clone();
                self.finish_release(state, thread, &release, false);
            }
            _ => {}
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            redis: Redis {
                key: None,
                replicas: vec![Replica::default(); self.replicas],
                term: 0,
                replaced: None,
                counter: Counter::default(),
                tracking: vec![Tracking::NEW; self.listeners()],
            },
            steps: vec![Step::Idle; self.threads.len()],
            nonces: vec![0; self.threads.len()],
            strays: Vec::new(),
            orphans: Vec::new(),
            budget: self.budget.clone(),
            wrongly_released: false,
            wrongly_lost: false,
            parcel: None,
            adopted_twice: false,
            resource: Resource::default(),
            stale: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for thread in 0..self.threads.len() {
            self.actions_of(state, thread, actions);
        }
        actions.extend((0..state.strays.len()).map(|number| Action::Execute(At::Stray(number))));
        for (process, tracking) in state.redis.tracking.iter().copied().enumerate() {
            waiting::actions(process, tracking, state.budget.cuts > 0, actions);
        }
        replicas::actions(state, actions);
        fence::actions(state, actions);
        actions.push(Action::Tick(None));
        if state.budget.missed > 0 {
            let holding = |thread: &usize| state.steps[*thread] != Step::Idle;
            actions.extend(
                (0..self.threads.len())
                    .filter(holding)
                    .map(|thread| Action::Tick(Some(thread))),
            );
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Execute(at) => self.execute_at(&mut state, at),
            Action::Receive(at) => self.receive(&mut state, at),
            Action::Lose(at, link_stands) => self.lose(&mut state, at, link_stands),
            Action::Cut(process, of_listener) => Protocol::cut(&mut state, process, of_listener),
            Action::Listen(process, event) => self.listen(&mut state, process, event),
            Action::Tick(missed_by) => {
                state.budget.missed -= u8::from(missed_by.is_some());
                self.tick(&mut state, missed_by);
            }
            Action::Replicate(_)
            | Action::Failover(..)
            | Action::EndOldMaster
            | Action::Notice(_) => {
                replicas::act(&mut state, action);
            }
            Action::LoseCounter | Action::SetClockBack | Action::Reenter(_) => {
                self.happen_to_fences(&mut state, action);
            }
            Action::Start(thread)
            | Action::TakeTurn(thread)
            | Action::Attempt(thread)
            | Action::GiveUp(thread)
            | Action::Renew(thread)
            | Action::HandOver(thread)
            | Action::Adopt(thread)
            | Action::AdoptAgain(thread)
            | Action::Release(thread, _)
            | Action::ReleaseAgain(thread)
            | Action::ReleaseUnconfirmed(thread) => {
                self.act(&mut state, thread, action);
                if self.replicas > 0 {
                    state.connect(thread);
                }
                if self.threads[thread] == PROMPT {
                    self.be_prompt(&mut state, thread);
                }
            }
        }
        // A mutant may use a token again, or create a key without `SET`. So with a mutation, no
        // token is certainly useless.
        if self.mutation.is_none() {
            state.forget_what_is_void();
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state| believers(state) <= 1),
            Property::always(RELEASED, |_, state: &State| !state.wrongly_released),
            Property::always(NOT_ITSELF, |model: &Protocol, state: &State| {
                (0..state.steps.len()).all(|thread| !model.waits_for_itself(state, thread))
            }),
        ];
        if self.budget.failovers == 0 {
            properties.push(Property::always(LOST, |_, state: &State| {
                !state.wrongly_lost
            }));
            properties.push(Property::always(NO_KEY_LEFT, |_, state: &State| {
                state
                    .redis
                    .key
                    .is_none_or(|(token, _)| is_known(state, token))
            }));
        } else {
            properties.push(Property::sometimes(
                "a hold outlives a failover",
                |_, state: &State| {
                    holds(state, 0) && state.redis.term > 0 && state.budget.renewals == 0
                },
            ));
        }
        if self.budget.hand_overs > 0 {
            properties.push(Property::always(ADOPTED_ONCE, |_, state: &State| {
                !state.adopted_twice
            }));
            properties.push(Property::sometimes(
                "a lock is adopted",
                |_, state: &State| came_by_it(state, How::Adopted),
            ));
        }
        if self.fenced {
            properties.push(Property::always(FENCED, |_, state: &State| {
                fence::is_accepted(state)
            }));
        }
        if self.sleeps {
            properties.push(Property::always(
                WOKEN,
                |model: &Protocol, state: &State| {
                    (0..state.steps.len()).all(|thread| model.has_something_to_come(state, thread))
                },
            ));
            properties.push(Property::sometimes(
                "a waiter sleeps",
                |_, state: &State| {
                    state
                        .steps
                        .iter()
                        .any(|step| matches!(step, Step::Claiming(claim) if claim.asleep))
                },
            ));
        }
        if self
            .threads
            .iter()
            .enumerate()
            .any(|(thread, _)| self.peers(thread).next().is_some())
        {
            properties.push(Property::sometimes(
                "a lock is handed off",
                |_, state: &State| came_by_it(state, How::HandedOff),
            ));
        }
        let held = [
            ("the first holds", 0),
            ("the second holds", 1),
            ("the third holds", 2),
        ];
        let conditions: [fn(&Protocol, &State) -> bool; 3] = [
            |_, state| holds(state, 0),
            |_, state| holds(state, 1),
            |_, state| holds(state, 2),
        ];
        for (name, thread) in held.into_iter().take(self.threads.len()) {
            properties.push(Property::sometimes(name, conditions[thread]));
        }
        properties
    }
}

pub(crate) const EXCLUSION: &str = "at most one thread believes that it holds the lock";
pub(crate) const FENCED: &str =
    "each hold has a larger fence than all before it, and a resource accepts it from the holder";
pub(crate) const ADOPTED_ONCE: &str = "a parcel is adopted once at most";
pub(crate) const RELEASED: &str = "a release that the first answer confirms has deleted its token";
pub(crate) const LOST: &str =
    "a hold that was valid when it was released is not reported as lost, if Redis forgets nothing";
pub(crate) const NOT_ITSELF: &str = "no thread waits for its own abandoned token";
pub(crate) const WOKEN: &str = "a waiter that sleeps will be called";
pub(crate) const NO_KEY_LEFT: &str = "every key in Redis is known to a thread or a keeper";

fn holds(state: &State, thread: usize) -> bool {
    matches!(&state.steps[thread], Step::Holding(hold) if hold.valid > 0)
}

fn came_by_it(state: &State, how: How) -> bool {
    state
        .steps
        .iter()
        .any(|step| matches!(step, Step::Holding(hold) if hold.how == how))
}

fn believers(state: &State) -> usize {
    (0..state.steps.len())
        .filter(|thread| holds(state, *thread))
        .count()
}

/// Whether a thread uses the token, a keeper has it as an orphan, or it was handed over: then the
/// lease ends it, if nobody adopts it.
fn is_known(state: &State, token: Token) -> bool {
    state.steps.iter().any(|step| step.uses(token))
        || state.orphans.iter().any(|orphan| orphan.token == token)
        || state.parcel.is_some_and(|parcel| parcel.token == token)
}
