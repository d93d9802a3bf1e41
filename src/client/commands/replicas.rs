//! Acknowledged replicas: how long Redis waits for them (`WAIT`), and what its answer means.
//!
//! A master answers a write before its replicas have it. If the master dies then, a replica without
//! the write becomes the master, and another process takes a lock that is held. So a lock counts as
//! taken, and a lease as renewed, once enough replicas have acknowledged it.
//!
//! Redis counts per connection: `WAIT` answers how many replicas have every write that the master
//! had executed by the end of the connection's last command. `WAIT` itself writes nothing, so it
//! can be sent again. After its timeout it answers with the number so far, and not with an error.
//! Redis looks at timeouts ten times a second, so that answer may come a tenth of a second later.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::commands::connection::ServerConnection;
use crate::client::servers::node::Node;
use crate::client::wire::failure::{Failure, nonsense};
use crate::client::wire::link::FAIR_TRY;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::{Batch, Reply};

/// How much later than its timeout an answer to `WAIT` may come (with the default `hz 10`).
const TICK: Duration = Duration::from_millis(100);

/// One `WAIT`, or `WAITAOF`.
#[derive(Debug)]
pub(crate) struct ReplicaWait {
    /// How many replicas have to answer.
    wanted: u32,
    on_disk: bool,
    millis: u64,
    /// Whether a low count says anything about the replicas: whether they had enough time.
    is_fair: bool,
}

impl ReplicaWait {
    /// What to send after a write whose answer is due by the deadline. `None` if no replica has to
    /// acknowledge anything.
    pub(crate) fn new(node: &Node, deadline: Moment) -> Option<ReplicaWait> {
        let (replicas, timeout) = node.common.replicas?;
        // If the sentinels know of no replica, a lock without any copy is not what was asked for.
        let wanted = replicas
            .count
            .unwrap_or_else(|| node.common.known_replicas().unwrap_or(0).max(1));
        let millis = millis(timeout, deadline.since(Moment::now()));
        let is_fair = Duration::from_millis(millis + 1) > timeout.min(FAIR_TRY);
        Some(ReplicaWait {
            wanted,
            on_disk: replicas.on_disk,
            millis,
            is_fair,
        })
    }

    /// The batch, followed by this command.
    pub(crate) fn behind(&self, batch: Batch) -> Batch {
        let wanted = self.wanted.to_string();
        let millis = self.millis.to_string();
        let batch = if self.on_disk {
            batch.and(&["WAITAOF", "1", &wanted, &millis])
        } else {
            batch.and(&["WAIT", &wanted, &millis])
        };
        Batch {
            blocks_for: Duration::from_millis(self.millis) + TICK,
            ..batch
        }
    }

    /// Waits for the replicas, right after the command that took the lock on this connection. Any
    /// failure leaves the key: see [`Self::judge`].
    pub(crate) fn for_lock(
        &self,
        connection: &mut ServerConnection,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let reply = connection.ask(&self.behind(Batch::default()), deadline);
        let reply = reply.map_err(|failure| left_behind(failure, None))?;
        connection.judged(self.judge(reply, "lock"))
    }

    /// Reads the reply. `what` is what the replicas were to acknowledge.
    ///
    /// After `Unanswered`, the server may be a replica by now, or the reply makes no sense. After
    /// any other failure, the server is still the master, and what was written before can be taken
    /// back over this connection: too few replicas have answered (`OutOfTime` if the deadline was
    /// too near to say anything about them), or the server does not wait for replicas.
    pub(crate) fn judge(&self, reply: Reply, what: &str) -> Result<(), Failure> {
        let (on_master, got) = match (reply, self.on_disk) {
            (Reply::Int(got), false) => (true, got),
            (Reply::Array(parts), true) => match parts.as_slice() {
                [Reply::Int(local), Reply::Int(got)] => (*local > 0, *got),
                _ => return Err(nonsense(&Reply::Array(parts))),
            },
            (Reply::Error(error), _) => return Err(self.refused(*error, what)),
            (other, _) => return Err(nonsense(&other)),
        };
        let ReplicaWait { wanted, millis, .. } = self;
        if on_master && got >= i64::from(*wanted) {
            return Ok(());
        }
        let told = match (self.on_disk, on_master) {
            (false, _) => format!("{got} of {wanted} replicas acknowledged the {what}"),
            (true, true) => format!("{got} of {wanted} replicas had the {what} on disk"),
            (true, false) => format!("the master had not written the {what} to its disk"),
        };
        let refusal = too_few(&format!("{told} within {millis} ms"));
        Err(if self.is_fair {
            Failure::Refused(refusal)
        } else {
            Failure::OutOfTime(refusal.into())
        })
    }

    fn refused(&self, mut refusal: Refusal, what: &str) -> Failure {
        if refusal.says("UNBLOCKED ") || refusal.says("replica instances") {
            // The master was demoted meanwhile. The new master may or may not have the write.
            return Failure::unknown(refusal);
        }
        if !refusal.did_nothing() {
            // Redis never returns such an error, so the next try may succeed.
            let told = format!("whether replicas acknowledged the {what} is unknown: {refusal}");
            return Failure::Refused(too_few(&told));
        }
        if self.on_disk && refusal.says("unknown command") {
            refusal
                .message
                .push_str(" (`on_disk` needs Redis 7.2 or Valkey)");
        }
        Failure::Refused(refusal)
    }
}

/// How long Redis is to wait if its answer is due after `left`: for a third of that time at most,
/// so that the answer, and a removal or another try after it, come in time. (If so little time is
/// left that they do not, the keeper deletes the key.) Never zero, which would mean forever.
fn millis(timeout: Duration, left: Duration) -> u64 {
    u64::try_from(timeout.min(left / 3).as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The refusal of a lock that too few replicas have. It has the code that Redis uses to refuse a
/// write that it could not replicate (`min-replicas-to-write`), so it can pass.
fn too_few(told: &str) -> Refusal {
    Refusal::found("NOREPLICAS", format!("NOREPLICAS {told}"))
}

/// The failure of a command that follows a `SET` which took the lock: the key may still hold the
/// token. If such a failure said that nothing was executed, nobody would look for the key, and
/// nobody could take the lock until its lease ends. `why` says why the lock does not count.
pub(crate) fn left_behind(failure: Failure, why: Option<&Failure>) -> Failure {
    let link_stands = match &failure {
        Failure::Unanswered { link_stands, .. } => *link_stands,
        Failure::Refused(_) => true,
        Failure::NotSent(_) | Failure::OutOfTime(_) | Failure::Tls { .. } => false,
    };
    let cause = match why {
        Some(why) => format!(
            "{}; deleting the key failed: {}",
            why.text(),
            failure.text()
        )
        .into(),
        None => failure.into_cause(),
    };
    Failure::Unanswered { link_stands, cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::wire::resp::tests::said as error;

    const WAIT: ReplicaWait = ReplicaWait {
        wanted: 2,
        on_disk: false,
        millis: 100,
        is_fair: true,
    };
    const WAITAOF: ReplicaWait = ReplicaWait {
        on_disk: true,
        ..WAIT
    };

    fn on_disk(local: i64, replicas: i64) -> Reply {
        Reply::Array(vec![Reply::Int(local), Reply::Int(replicas)])
    }

    #[test]
    fn redis_never_waits_for_ever_and_answers_before_the_deadline() {
        let ms = Duration::from_millis;
        for (timeout, left, expected) in [
            (ms(100), Duration::MAX, 100),
            (ms(100), ms(300), 100),
            (ms(100), ms(299), 99),
            (ms(100), ms(3), 1),
            (ms(100), ms(1), 1),
            (ms(100), Duration::ZERO, 1),
            (Duration::from_micros(1900), ms(1000), 1),
        ] {
            assert_eq!(millis(timeout, left), expected, "{timeout:?} of {left:?}");
        }
    }

    #[test]
    fn the_command_says_how_many_and_for_how_long() {
        let sent = |wait: &ReplicaWait| {
            let batch = wait.behind(Batch::of(&["PING"]));
            assert_eq!(
                (batch.count, batch.blocks_for),
                (2, Duration::from_millis(100) + TICK)
            );
            String::from_utf8(batch.bytes).unwrap()
        };
        assert!(sent(&WAIT).ends_with("$4\r\nWAIT\r\n$1\r\n2\r\n$3\r\n100\r\n"));
        assert!(sent(&WAITAOF).ends_with("$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n2\r\n$3\r\n100\r\n"));
    }

    #[test]
    fn enough_replicas_are_enough() {
        for got in [2, 3] {
            WAIT.judge(Reply::Int(got), "lock").unwrap();
            WAITAOF.judge(on_disk(1, got), "lock").unwrap();
        }
    }

    #[test]
    fn too_few_replicas_are_a_refusal_that_can_pass_and_has_the_counts() {
        for (wait, reply, told) in [
            (
                WAIT,
                Reply::Int(1),
                "1 of 2 replicas acknowledged the lock within 100 ms",
            ),
            (
                WAITAOF,
                on_disk(1, 0),
                "0 of 2 replicas had the lock on disk within 100 ms",
            ),
            (
                WAITAOF,
                on_disk(0, 2),
                "the master had not written the lock to its disk within 100 ms",
            ),
            (
                WAIT,
                error("upstream failure"),
                "whether replicas acknowledged the lock is unknown: upstream failure",
            ),
        ] {
            let failure = wait.judge(reply, "lock").unwrap_err();
            assert!(failure.can_pass() && !matches!(failure, Failure::Unanswered { .. }));
            assert_eq!(failure.text(), format!("NOREPLICAS {told}"));
        }
    }

    #[test]
    fn too_few_replicas_in_too_short_a_time_prove_nothing() {
        let cut_short = ReplicaWait {
            is_fair: false,
            millis: 1,
            ..WAIT
        };
        let failure = cut_short.judge(Reply::Int(1), "lock").unwrap_err();
        assert!(matches!(failure, Failure::OutOfTime(_)), "{failure:?}");
        assert_eq!(
            failure.text(),
            "NOREPLICAS 1 of 2 replicas acknowledged the lock within 1 ms"
        );
    }

    #[test]
    fn a_wait_that_redis_does_not_allow_or_know_is_a_final_refusal() {
        for (wait, said, told) in [
            (
                WAIT,
                "NOPERM this user has no permissions to run the 'wait' command",
                "'wait'",
            ),
            (
                WAIT,
                "ERR unknown command 'WAIT', with args beginning with: '1' '100' ",
                "unknown command",
            ),
            (
                WAITAOF,
                "ERR unknown command 'WAITAOF', with args beginning with: '1' ",
                "needs Redis 7.2",
            ),
            (
                WAITAOF,
                "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
                "appendonly",
            ),
        ] {
            let failure = wait.judge(error(said), "lock").unwrap_err();
            assert!(
                matches!(&failure, Failure::Refused(refusal) if !refusal.can_pass()),
                "{failure:?}"
            );
            assert!(failure.text().contains(told), "{failure:?}");
        }
    }

    #[test]
    fn a_demoted_master_and_a_reply_without_sense_prove_nothing() {
        for (wait, reply) in [
            (
                WAIT,
                error("UNBLOCKED force unblock from blocking operation, instance state changed"),
            ),
            (
                WAIT,
                error(
                    "ERR WAIT cannot be used with replica instances. Please also note that since",
                ),
            ),
            (
                WAITAOF,
                error("ERR WAITAOF cannot be used with replica instances. Please also note that"),
            ),
            (WAIT, Reply::Ok),
            (WAIT, on_disk(1, 2)),
            (WAITAOF, Reply::Int(2)),
            (WAITAOF, Reply::Array(vec![Reply::Int(2)])),
        ] {
            let failure = wait.judge(reply, "lock").unwrap_err();
            assert!(
                matches!(
                    failure,
                    Failure::Unanswered {
                        link_stands: false,
                        ..
                    }
                ),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn a_key_that_may_be_left_never_looks_like_a_command_that_was_not_executed() {
        let refusal = || Refusal::new("READONLY You can't write against a read only replica.", "");
        let lost = |link_stands| Failure::Unanswered {
            link_stands,
            cause: "lost".into(),
        };
        for (failure, stands) in [
            (Failure::not_sent("cut"), false),
            (Failure::OutOfTime("late".into()), false),
            (Failure::Refused(refusal()), true),
            (lost(true), true),
            (lost(false), false),
        ] {
            let why = Failure::Refused(too_few("1 of 2 replicas"));
            let left = left_behind(failure, Some(&why));
            assert!(
                matches!(left, Failure::Unanswered { link_stands, .. } if link_stands == stands)
            );
            assert!(
                left.text()
                    .starts_with("NOREPLICAS 1 of 2 replicas; deleting the key failed: ")
            );
        }
    }
}
