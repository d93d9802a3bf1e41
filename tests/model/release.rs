//! A thread that releases the lock, and hands it off.

use crate::model::{Mutation, Protocol};
use crate::state::{Command, Hold, How, Link, Outcome, Release, State, Step, Token};

impl Protocol {
    /// Begins a release. If `next_token` is given, sends the `SET` of the next waiter with it.
    pub(crate) fn release(state: &mut State, thread: usize, hold: Hold, next_token: Option<Token>) {
        // The hold has left the table: the answer to a renewal is not read any more.
        state.leave(hold.renewal.map(|(_, link)| link).unwrap_or_default());
        let mut link = Link::with(&[Command::Delete(hold.token)]);
        link.commands.extend(next_token.map(Command::Set));
        state.steps[thread] = Step::Releasing(Release {
            token: hold.token,
            valid: (hold.valid, hold.valid),
            maybe_done: false,
            adopted: hold.how == How::Adopted,
            link: Some(link),
            next_token: next_token.map(|token| (token, 0)),
            outcome: Outcome::Nothing,
        });
    }

    /// Tries once more, over another connection.
    pub(crate) fn release_again(release: &mut Release) {
        release.link = Some(Link::with(&[Command::Delete(release.token)]));
    }

    /// The answer to a release has come.
    pub(crate) fn receive_release(&self, state: &mut State, thread: usize, mut release: Release) {
        let said = release.link.take().unwrap_or_default().said;
        if let Some((_, age)) = release.next_token
            && said.set
        {
            release.outcome = Outcome::Taken {
                age,
                fence: said.fence,
            };
        }
        state.wrongly_released |= said.removed && !said.stood && !release.maybe_done;
        let (when_released, now) = release.valid;
        // A missing token proves a loss only before the hold's own end. Later, the release is
        // merely not confirmed.
        let proves = now > 0 || self.is(Mutation::TakesALateAnswerForALoss);
        let reports_loss = !said.removed && !release.maybe_done && proves;
        state.wrongly_lost |= reports_loss && when_released > 0;
        self.finish_release(state, thread, &release, true);
    }

    /// The answer to a release does not come.
    pub(crate) fn lose_release(release: &mut Release, link_stands: bool) -> Link {
        let mut link = release.link.take().unwrap_or_default();
        if let Some((next_token, _)) = release.next_token
            && release.outcome == Outcome::Nothing
        {
            if link_stands {
                link.commands.push(Command::Delete(next_token));
            }
            release.outcome = Outcome::Spoilt;
        }
        release.maybe_done = true;
        link
    }

    /// The release is over, answered or not: the next waiter has the result of the hand-off.
    pub(crate) fn finish_release(
        &self,
        state: &mut State,
        thread: usize,
        release: &Release,
        answered: bool,
    ) {
        if !answered {
            state.add_orphan(release.token, false);
        }
        state.steps[thread] = Step::Idle;
        let was_over = release.valid.0 == 0 && !self.is(Mutation::ReleasesQuietly);
        let was_adopted = release.adopted && !self.is(Mutation::ReleasesAnAdoptedHoldQuietly);
        if was_over || was_adopted {
            // A peer that considers the hold expired, or that asked before the hold was adopted,
            // may have attempted over the same connection. Then Redis sends this process no
            // invalidation, and the peer would sleep on.
            self.call(state, self.threads[thread].into());
        }
        let Some((next_token, _)) = release.next_token else {
            return;
        };
        let mut peers = self.peers(thread);
        if let Some(peer) = peers.find(|peer| state.steps[*peer] == Step::Queued(next_token)) {
            state.steps[peer] = Step::Called(next_token, release.outcome);
            if release.outcome == Outcome::Spoilt && !self.is(Mutation::KeepsNoOrphans) {
                state.add_orphan(next_token, true);
            }
        } else if !self.is(Mutation::KeepsNoOrphans) {
            state.add_orphan(
                next_token,
                !matches!(release.outcome, Outcome::Taken { .. }),
            );
        }
    }
}
