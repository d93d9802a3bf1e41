//! The wait of a writer, who has the gate, until no reader is left.

use crate::acquire::claim::{AcquireContext, Answer, AskRedis, Taken};
use crate::acquire::step::Ask;
use crate::base::clock::Moment;
use crate::hold::{AcquiredAt, Hold};
use crate::store::{ClaimReply, Failure, Goal, Wanted};

/// Asks whether all slots are free. Changes nothing, so an answer may be lost.
pub(crate) struct NoReader<'a> {
    pub(crate) context: AcquireContext<'a>,
    /// The hold of the gate. The keeper renews it meanwhile.
    pub(crate) gate: &'a Hold,
}

impl AskRedis for NoReader<'_> {
    fn attempt(&mut self, _: Ask) -> Result<Answer, Failure> {
        let AcquireContext { core, wait, .. } = self.context;
        let (key, deadline) = (wait.key.in_redis(), wait.patience.deadline);
        let mut connection = core.store.checkout(key, deadline)?;
        let listener = self.context.listener(&connection);
        let number = listener.as_ref().and_then(|it| it.client_id());
        let wanted = Wanted {
            key,
            goal: Goal::NoSlot {
                slots: wait.key.slots(),
                gate: self.gate.key.in_redis(),
            },
            token: &self.gate.token,
            lease: 0,
            counter: None,
        };
        let sent = Moment::now();
        let (reply, tracking) = connection.claim_or_look(wanted, number, deadline)?;
        Ok(match reply {
            ClaimReply::Taken { .. } => Answer::Taken(Taken {
                token: self.gate.token.clone(),
                number: None,
                at: AcquiredAt {
                    sent,
                    answered: Moment::now(),
                },
            }),
            ClaimReply::Busy(holder) => Answer::Busy {
                holder,
                tracked: self.context.is_tracked(listener.zip(number), tracking),
                sent,
            },
            ClaimReply::NotAString => Answer::NotAString,
        })
    }
}
