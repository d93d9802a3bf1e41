//! One connection. Opening it, logging in and waiting for replies have deadlines. Once it is
//! broken, it is not used again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::PerProcess;
use crate::client::wire::endpoint::Endpoint;
use crate::client::wire::failure::Failure;
use crate::client::wire::io_error;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::{Batch, Reply};
use crate::client::wire::socket::{SHORTEST, Way};
use crate::client::wire::stream::Stream;

/// The shortest timeout whose expiry says something about Redis. On a busy machine, an attempt with
/// less time may fail although Redis works.
pub(crate) const FAIR_TRY: Duration = Duration::from_millis(20);

/// The shortest silence on one link after which the other links may be dead, too. After a shorter
/// silence they stay in use: Redis may have been busy.
pub(crate) const LONG_SILENCE: Duration = Duration::from_millis(100);

/// How many links were opened.
static COUNT: PerProcess<AtomicU64> = PerProcess::new(AtomicU64::new(0), || AtomicU64::new(0));

/// The role of a server, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A master, or unknown.
    Other,
    /// Its master may have what it lacks.
    Replica,
}

/// Whether Redis is known to be at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// The link was opened just now.
    Opened,
    Answered,
    /// The link was idle, and Redis may be gone.
    Nothing,
}

/// A moment that the links of a pool share: a link that has not answered since then is not used
/// again. So after a restart of Redis, or if a firewall has dropped the idle connections, only one
/// caller loses time to a dead link, not one caller per link.
#[derive(Default)]
pub(crate) struct Condemned(AtomicU64);

impl Condemned {
    pub(crate) fn condemn(&self, since: Moment) {
        self.0.fetch_max(since.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn includes(&self, link: &Link) -> bool {
        link.answered <= Moment::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// A connection to Redis.
///
/// After a lost answer, the connection can still be used: Redis answers in order, so the link
/// counts the late reply and skips it. Redis also executes the commands of a connection in order.
/// So a clean-up that is sent over the same connection is executed after the command that it
/// undoes.
pub(crate) struct Link {
    pub(crate) stream: Stream,
    /// No other link of this process has the same number.
    pub(crate) id: u64,
    /// When the last answer came. Before the first answer: when the link began to open.
    pub(crate) answered: Moment,
    /// How many replies are still to come. The replies of earlier batches come first, and are
    /// skipped.
    unread: usize,
    /// How many of these replies answer the last batch sent.
    wanted: usize,
    /// When that batch was sent.
    sent: Moment,
    /// Whether the connection is of no more use: it has ended, the server accepts no writes, or
    /// bytes came that nobody asked for.
    pub(crate) broken: bool,
    /// Whether `retire` was called: the link must not be lent again, although it has not ended.
    retired: bool,
    /// What is known about the other end since the link was lent.
    proof: Proof,
    /// How long the last answer took.
    took: Duration,
    /// Whether a reply is late. The current borrower may wait for the reply. If the reply is still
    /// late when the link goes back to the pool, the link is closed.
    behind: bool,
    /// The listener to which Redis sends the invalidations of what is read over this link.
    pub(crate) listener: Option<u64>,
    /// The role that the server stated at the login.
    pub(crate) role: Role,
    /// Which links of the pool are not used again. `None` if this one belongs to no pool.
    pub(crate) condemned: Option<Arc<Condemned>>,
}

impl Link {
    /// Connects, and sends nothing.
    pub(crate) fn connect(
        endpoint: &Endpoint,
        way: &Way,
        deadline: Moment,
    ) -> Result<Link, Failure> {
        let began = Moment::now();
        let stream = Stream::open(way, endpoint.tls(), deadline.since(began).max(SHORTEST));
        Ok(Link::new(stream.map_err(Failure::not_sent)?, began))
    }

    fn new(stream: Stream, began: Moment) -> Link {
        Link {
            stream,
            id: COUNT.with(|it| it.fetch_add(1, Ordering::Relaxed)),
            answered: began,
            unread: 0,
            wanted: 0,
            sent: began,
            broken: false,
            retired: false,
            proof: Proof::Opened,
            took: Duration::ZERO,
            behind: false,
            listener: None,
            role: Role::Other,
            condemned: None,
        }
    }

    /// True if the idle connection is known to have ended. Does not wait.
    pub(crate) fn probe(&mut self) -> bool {
        self.broken |= self.stream.probe();
        self.broken
    }

    /// True if the connection must not be used again.
    pub(crate) fn is_over(&self) -> bool {
        self.broken || self.retired || self.behind
    }

    /// When the link last answered its current borrower. `None` if it has not answered yet.
    pub(crate) fn answered_to_borrower(&self) -> Option<Moment> {
        (self.proof == Proof::Answered).then_some(self.answered)
    }

    /// The time until which the next exchange may wait for its answer.
    ///
    /// The first exchange after the pool has lent the link again gets half of the time that is
    /// left. The link may be dead, and the other half is for a fresh link. But if Redis is slow or
    /// far away, half may be too short. So the exchange gets at least twice the time of the last
    /// answer, up to three quarters of what is left. The time for which Redis blocks the batch
    /// (`blocks_for`) is added to both.
    pub(crate) fn limit(
        &self,
        deadline: Moment,
        response_timeout: Duration,
        blocks_for: Duration,
    ) -> Moment {
        let now = Moment::now();
        let left = deadline.since(now);
        let slow = (2 * self.took).saturating_add(blocks_for).min(left / 4 * 3);
        let half = (left / 2).max(FAIR_TRY).max(slow);
        let share = if self.proof == Proof::Nothing {
            half
        } else {
            left
        };
        now.after(
            share
                .min(left)
                .min(response_timeout.saturating_add(blocks_for)),
        )
    }

    /// Notes that Redis may have ended the connection before its next use.
    pub(crate) fn doubt(&mut self) {
        self.proof = Proof::Nothing;
    }

    /// Marks the link: when it goes back to the pool, it is closed and not lent again.
    pub(crate) fn retire(&mut self) {
        self.retired = true;
    }

    /// Sends a batch and collects its replies. Errors are replies, too: one command of a batch may
    /// fail while others succeed.
    ///
    /// A proxy may send a reply twice. Then each later reply comes in place of the one before it: a
    /// busy lock could seem taken, and a lost hold renewed. So if more has come by the end of the
    /// batch than was asked for, no reply counts. And nothing is sent over a connection that has
    /// received more since the borrower's last batch. Anything that comes even later is not seen
    /// here, so a script that takes or renews a lock answers with the token.
    pub(crate) fn exchange(
        &mut self,
        batch: &Batch,
        deadline: Moment,
    ) -> Result<Vec<Reply>, Failure> {
        if self.broken {
            // An earlier batch of this borrower broke the link, and was answered: for example, that
            // the server takes no writes. This batch was not sent.
            return Err(Failure::not_sent("the connection is no longer used"));
        }
        if self.proof == Proof::Answered && self.unread == 0 && self.probe() {
            return Err(Failure::out_of_step());
        }
        self.send(batch, deadline)?;
        let replies = self.collect(deadline)?;
        if self.stream.unasked() {
            self.broken = true;
            return Err(Failure::out_of_step());
        }
        Ok(replies)
    }

    /// Writes a batch. If its replies are not collected, `collect` for a later batch skips them.
    pub(crate) fn send(&mut self, batch: &Batch, deadline: Moment) -> Result<(), Failure> {
        self.sent = Moment::now();
        self.stream.send(&batch.bytes, deadline).map_err(|error| {
            self.broken = true;
            match Failure::not_sent(error) {
                // Redis may have received the first commands of the batch in full.
                Failure::NotSent(cause) if batch.count > 1 => Failure::unknown(cause),
                other => other,
            }
        })?;
        self.unread += batch.count;
        self.wanted = batch.count;
        Ok(())
    }

    /// Reads the replies to the last batch sent, and skips those to earlier ones.
    pub(crate) fn collect(&mut self, deadline: Moment) -> Result<Vec<Reply>, Failure> {
        let mut replies = Vec::with_capacity(self.wanted);
        while self.unread > 0 {
            let reply = self
                .stream
                .receive(deadline)
                .map_err(|error| self.lost(error, &replies))?;
            self.unread -= 1;
            self.broken |= reply.comes_from_wrong_server();
            if self.unread < self.wanted {
                replies.push(reply);
            }
        }
        self.behind = false;
        self.answered = Moment::now();
        self.proof = Proof::Answered;
        self.took = self.answered.since(self.sent);
        Ok(replies)
    }

    /// The failure of a batch that has had only these replies. A server that accepts no client
    /// sends an error in place of the first reply, and ends the connection: then that error says
    /// why.
    ///
    /// After a long silence, all links of the pool that have not answered since the send may be
    /// dead, too.
    fn lost(&mut self, error: io::Error, replies: &[Reply]) -> Failure {
        self.broken |= io_error::ends_link(&error);
        self.behind = true;
        if let Some(condemned) = &self.condemned
            && io_error::leaves_link_standing(&error)
            && Moment::now().since(self.sent) >= LONG_SILENCE
        {
            condemned.condemn(self.sent);
        }
        if let (true, [Reply::Error(reason)]) = (io_error::ends_link(&error), replies) {
            return Failure::unknown(Refusal::clone(reason));
        }
        Failure::unanswered(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::client::wire::stream::tests::streams;

    /// If the link is dead, the other half is for a fresh one.
    #[test]
    fn a_link_that_was_idle_has_half_of_the_time() {
        let (stream, _redis) = streams().remove(0);
        let mut link = Link::new(stream, Moment::now());
        let deadline = Moment::now().after(Duration::from_secs(100));
        let limit = |link: &Link| link.limit(deadline, Duration::MAX, Duration::ZERO);
        assert!(limit(&link) >= deadline);
        link.proof = Proof::Nothing;
        assert!(limit(&link) < deadline);
    }

    /// First, only half of a reply comes in time. Then, only one of three replies.
    #[test]
    fn late_replies_are_skipped_when_they_come() {
        let soon = || Moment::now().after(Duration::from_millis(20));
        let long = || Moment::now().after(Duration::from_secs(10));
        let ping = || Batch::of(&["PING"]);
        let line = |text: &str| Reply::Line(text.to_owned());
        for (stream, mut redis) in streams() {
            let mut link = Link::new(stream, Moment::now());
            redis.write_all(b"+the first").unwrap();
            let failure = link.exchange(&ping(), soon()).unwrap_err();
            assert!(
                matches!(
                    failure,
                    Failure::Unanswered {
                        link_stands: true,
                        ..
                    }
                ),
                "{failure:?}"
            );
            redis.write_all(b" reply\r\n+the second\r\n").unwrap();
            assert_eq!(
                link.exchange(&ping(), long()).unwrap(),
                [line("the second")]
            );
            link.send(&ping().and(&["PING"]).and(&["PING"]), long())
                .unwrap();
            redis.write_all(b"+in time\r\n").unwrap();
            link.collect(soon()).unwrap_err();
            link.send(&ping(), long()).unwrap();
            redis
                .write_all(b"+late\r\n+late\r\n+not read\r\n+a\r\n+b\r\n")
                .unwrap();
            let both = link.exchange(&ping().and(&["PING"]), long()).unwrap();
            assert_eq!(both, [line("a"), line("b")]);
            drop(redis);
            let failure = link.exchange(&ping(), long()).unwrap_err();
            assert!(
                !matches!(
                    failure,
                    Failure::Unanswered {
                        link_stands: true,
                        ..
                    }
                ),
                "the connection has ended"
            );
        }
    }

    #[test]
    fn no_reply_counts_if_one_came_twice() {
        let long = || Moment::now().after(Duration::from_secs(10));
        let is_out_of_step = |failure| {
            matches!(
                failure,
                Err(Failure::Unanswered {
                    link_stands: false,
                    ..
                })
            )
        };
        for (stream, mut redis) in streams() {
            let mut link = Link::new(stream, Moment::now());
            redis.write_all(b"+OK\r\n+OK\r\n").unwrap();
            assert!(is_out_of_step(link.exchange(&Batch::of(&["PING"]), long())));
            assert!(link.is_over());
        }
        for (stream, mut redis) in streams() {
            let mut link = Link::new(stream, Moment::now());
            redis.write_all(b"+OK\r\n").unwrap();
            assert_eq!(
                link.exchange(&Batch::of(&["PING"]), long()).unwrap(),
                [Reply::Ok]
            );
            redis.write_all(b"+OK\r\n").unwrap();
            let deadline = long();
            // The link itself has not looked yet.
            while !link.stream.probe() {
                assert!(Moment::now() < deadline, "the second copy does not arrive");
            }
            assert!(
                is_out_of_step(link.exchange(&Batch::of(&["PING"]), long())),
                "it is sent"
            );
            assert_eq!(link.unread, 0, "it is sent");
        }
        for (stream, _redis) in streams() {
            let mut link = Link::new(stream, Moment::now());
            link.broken = true;
            let failure = link.exchange(&Batch::of(&["PING"]), long()).unwrap_err();
            assert!(
                matches!(failure, Failure::NotSent(_)),
                "what was answered before was judged: {failure:?}"
            );
            assert_eq!(link.unread, 0, "it is sent");
        }
    }
}
