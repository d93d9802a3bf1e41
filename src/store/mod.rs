//! Redis, as this crate sees it: a handful of commands, and small enums for what comes back.
//!
//! The only module that names the `redis` and `r2d2` crates (but for the one constructor that takes a client).

mod address;
mod tracking;
mod link;
mod pool;
mod reply;
mod resp;
mod script;
mod failure;
mod tls;
mod wire;

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::holder::Holder;
use crate::base::options::Settings;
use crate::store::pool::{LinkRef, Pool};
use crate::store::reply::{accepted, alive, allowed, claimed, compared, deleted, seen, was_set, watch};
use crate::store::resp::{Batch, Reply};
use crate::store::script::{CLAIM, FORCE, RELEASE, RENEW, Script};

pub(crate) use crate::store::address::Address;
pub(crate) use crate::store::failure::{Cause, Failure, Refusal};
pub(crate) use crate::store::link::FAIR_TRY;
pub(crate) use crate::store::reply::{ClaimReply, Compared, Seen, Tracking};
pub(crate) use crate::store::tracking::{Heard, TrackingConnection};
pub(crate) use crate::store::wire::Ender;

/// The server and the connections to it.
pub(crate) struct Store {
    pub(crate) pool: Pool,
    response_timeout: Duration,
}

impl Store {
    pub(crate) fn new(address: Address, settings: &Settings) -> Result<Store, Error> {
        // Now, and not at their first use: a child of a fork in that moment would wait for ever.
        for script in [&CLAIM, &RELEASE, &RENEW, &FORCE] {
            LazyLock::force(script);
        }
        Ok(Store {
            pool: Pool::new(address, settings.pool_size, settings.connect_timeout)?,
            response_timeout: settings.response_timeout,
        })
    }

    /// Borrows a connection, waiting for one and connecting where need be, until the deadline.
    pub(crate) fn checkout(&self, deadline: Moment) -> Result<Connection<'_>, Failure> {
        let link = LinkRef::Lent(self.pool.checkout(deadline)?);
        Ok(Connection { link, response_timeout: self.response_timeout })
    }

    /// Opens a connection beside the pool, for a thread that must not wait for others.
    pub(crate) fn connect(&self, deadline: Moment) -> Result<Connection<'_>, Failure> {
        let link = LinkRef::Own(Box::new(self.pool.connect(deadline)?));
        Ok(Connection { link, response_timeout: self.response_timeout })
    }

    /// Opens a connection that only listens, and makes sure that it hears: over a second one, Redis
    /// is asked to tell it of changes of `probe`, a key that nobody else knows of, which is then
    /// changed. Refused where it is not told: a proxy may have accepted that, and not done it.
    pub(crate) fn listen(&self, probe: &str) -> Result<TrackingConnection, Failure> {
        let mut tracking =
            TrackingConnection::open(&self.pool.address, Moment::now().after(self.pool.connect_timeout))?;
        let mut other = self.connect(Moment::NEVER)?;
        other.change(probe, tracking.id, Moment::now().after(self.response_timeout))?;
        if tracking.hears(probe, Moment::now().after(self.response_timeout))? {
            Ok(tracking)
        } else {
            Err(Failure::Refused(Refusal::untold()))
        }
    }

    /// Says what went wrong in the words of the caller's error.
    pub(crate) fn error(&self, action: String, failure: Failure) -> Error {
        let server = self.pool.address.name().to_owned();
        match failure {
            Failure::Refused(refusal) if !refusal.can_pass() => {
                Error::Refused { server, action, code: refusal.code, message: refusal.message }
            }
            other => Error::Unavailable { server, action, source: other.into_cause() },
        }
    }
}

/// A borrowed connection, and the commands that go over it.
///
/// Each waits for its answer at most until the deadline, and at most the response timeout; the
/// first may wait for less (`Link::limit`).
pub(crate) struct Connection<'a> {
    link: LinkRef<'a>,
    response_timeout: Duration,
}

impl Connection<'_> {
    fn exchange(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Reply>, Failure> {
        let limit = self.link.limit(deadline, self.response_timeout);
        self.link.exchange(batch, limit)
    }

    pub(crate) fn doubt(&mut self) {
        self.link.doubt();
    }

    /// Closes the connection where what came over it made no sense.
    fn sensible<T>(&mut self, read: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(Failure::Unanswered { link_stands: false, .. }) = &read {
            self.link.retire();
        }
        read
    }

    pub(crate) fn is_over(&self) -> bool {
        self.link.is_over()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.link.has_ended()
    }

    pub(crate) fn ping(&mut self, deadline: Moment) -> Result<(), Failure> {
        let mut replies = self.exchange(&Batch::of(&["PING"]), deadline)?.into_iter();
        self.sensible(alive(next(&mut replies)))
    }

    /// One attempt to take a lock: `SET key token NX PX lease`.
    pub(crate) fn claim(
        &mut self,
        key: &str,
        token: &str,
        lease: u64,
        deadline: Moment,
    ) -> Result<ClaimReply, Failure> {
        let reply = self.run(&set(key, token, &lease.to_string()), deadline)?;
        let was_set = self.sensible(was_set(&reply))?;
        Ok(if was_set { ClaimReply::Taken } else { ClaimReply::Busy(None) })
    }

    /// An attempt that also learns who has the lock where we do not get it. With a listener's
    /// number, Redis tells it when the key changes that is read here.
    pub(crate) fn claim_or_look(
        &mut self,
        key: &str,
        token: &str,
        lease: u64,
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        let lease = lease.to_string();
        let fill = |batch: Batch, teach| batch.and(&CLAIM.command(teach, key, &[token, &lease]));
        let (replies, watch) = self.run_all(listener, fill, deadline)?;
        let reply = accepted(next(&mut replies.into_iter()));
        let claim = self.sensible(claimed(reply).map_err(|failure| CLAIM.explain(failure)))?;
        Ok((claim, watch))
    }

    /// Compare and delete, with one more round trip where Redis has forgotten the script.
    pub(crate) fn remove(&mut self, key: &str, token: &str, deadline: Moment) -> Result<Compared, Failure> {
        let mut reply = self.run(&RELEASE.by_hash(key, &[token]), deadline);
        if matches!(&reply, Err(Failure::Refused(refusal)) if refusal.code == "NOSCRIPT") {
            reply = self.run(&RELEASE.whole(key, &[token]), deadline);
        }
        self.sensible(compared(reply).map_err(|failure| RELEASE.explain(failure)))
    }

    /// The same for many locks in one round trip. Answers come in the order of the removals.
    pub(crate) fn remove_all(
        &mut self,
        removals: &[(&str, &str)],
        deadline: Moment,
    ) -> Result<Vec<Result<Compared, Failure>>, Failure> {
        let fill = |mut batch: Batch, teach: bool| {
            for (n, (key, token)) in removals.iter().enumerate() {
                batch = batch.and(&RELEASE.command(teach && n == 0, key, &[token]));
            }
            batch
        };
        let (replies, _) = self.run_all(None, fill, deadline)?;
        Ok(self.comparisons(&RELEASE, replies))
    }

    /// Compare and delete and, behind it in the same round trip, `SET key token NX PX lease` for somebody else: whether that
    /// was taken.
    pub(crate) fn remove_and_claim(
        &mut self,
        key: &str,
        token: &str,
        (next_token, lease): (&str, u64),
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, bool), Failure> {
        let lease = lease.to_string();
        let claim = set(key, next_token, &lease);
        let (mut removed, mut set) = self.remove_then(&RELEASE.by_hash(key, &[token]), &claim, deadline)?;
        if !set && matches!(&removed, Err(Failure::Refused(refusal)) if refusal.code == "NOSCRIPT") {
            (removed, set) = self.remove_then(&RELEASE.whole(key, &[token]), &claim, deadline)?;
        }
        if set && matches!(removed, Err(Failure::Refused(_))) {
            // The script did not run, and the key was free all the same.
            removed = Ok(Compared::Absent);
        }
        Ok((removed.map_err(|failure| RELEASE.explain(failure)), set))
    }

    fn remove_then(
        &mut self,
        removal: &[&str],
        claim: &[&str],
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, bool), Failure> {
        let mut replies = self.exchange(&Batch::of(removal).and(claim), deadline)?.into_iter();
        let removed = compared(accepted(next(&mut replies)));
        let set = accepted(next(&mut replies)).and_then(|reply| was_set(&reply));
        let set = match self.sensible(set) {
            Err(Failure::Refused(_)) => false,
            other => other?,
        };
        Ok((self.sensible(removed), set))
    }

    /// Compare and extend, for many locks in one round trip. With a listener's number, Redis tells it
    /// when one of these keys changes. Answers come in the order of the extensions.
    pub(crate) fn extend_all(
        &mut self,
        extensions: &[Extension<'_>],
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(Vec<Result<Compared, Failure>>, Tracking), Failure> {
        let fill = |mut batch: Batch, teach: bool| {
            for (n, extension) in extensions.iter().enumerate() {
                let lease = extension.lease.to_string();
                let args = [extension.token, lease.as_str()];
                batch = batch.and(&RENEW.command(teach && n == 0, extension.key, &args));
            }
            batch
        };
        let (replies, watch) = self.run_all(listener, fill, deadline)?;
        Ok((self.comparisons(&RENEW, replies), watch))
    }

    /// Runs a script for as many keys as `fill` puts into a batch; and once more where Redis does not
    /// know it: then the first command carries it whole, and teaches it for the others.
    ///
    /// With a listener's number, Redis is asked first, once, to tell it when a key changes that is
    /// read over this connection, but not by a command over this connection.
    fn run_all(
        &mut self,
        listener: Option<u64>,
        fill: impl Fn(Batch, bool) -> Batch,
        deadline: Moment,
    ) -> Result<(Vec<Reply>, Tracking), Failure> {
        let link = self.link.id;
        let mut watched = if listener.is_some() { Tracking::On { link } } else { Tracking::Off };
        let mut to_ask = listener.filter(|listener| !self.link.tells(*listener));
        let mut teach = false;
        loop {
            let batch = fill(begin(to_ask), teach);
            let mut replies = self.exchange(&batch, deadline)?.into_iter();
            if let Some(listener) = to_ask.take() {
                watched = watch(next(&mut replies), link);
                if matches!(watched, Tracking::On { .. }) {
                    self.link.will_tell(listener);
                }
            }
            let replies: Vec<_> = replies.collect();
            let unknown = matches!(replies.first(), Some(Reply::Error(said)) if said.split(' ').next() == Some("NOSCRIPT"));
            if teach || !unknown {
                return Ok((replies, watched));
            }
            teach = true;
        }
    }

    fn comparisons(&mut self, script: &Script, replies: Vec<Reply>) -> Vec<Result<Compared, Failure>> {
        let answer =
            |reply| self.sensible(compared(accepted(reply)).map_err(|failure| script.explain(failure)));
        replies.into_iter().map(answer).collect()
    }

    /// Has a listener told of a change of this key. A refusal is that of `CLIENT TRACKING`,
    /// or of the key: where anything else is refused, nothing is known of that.
    fn change(&mut self, key: &str, listener: u64, deadline: Moment) -> Result<(), Failure> {
        let batch = Batch::of(&["CLIENT", "TRACKING", "ON", "REDIRECT", &listener.to_string()])
            .and(&["GET", key])
            .and(&set(key, "-", "1000"))
            .and(&["DEL", key]);
        let mut replies = self.exchange(&batch, deadline)?.into_iter();
        if let Tracking::Refused(refusal) = watch(next(&mut replies), self.link.id) {
            return Err(Failure::Refused(refusal));
        }
        replies.try_for_each(|reply| allowed(reply).map(drop)).map_err(Failure::of_a_trial)
    }

    fn run(&mut self, command: &[&str], deadline: Moment) -> Result<Reply, Failure> {
        let mut replies = self.exchange(&Batch::of(command), deadline)?.into_iter();
        self.sensible(accepted(next(&mut replies)))
    }

    /// Gives a claim up whose answer was lost: writes the compare-and-delete behind it, on the
    /// connection that carried it and is not used again, and leaves both to Redis. Whole, not by
    /// hash: nobody will read an answer that says NOSCRIPT.
    pub(crate) fn abandon(mut self, key: &str, token: &str) {
        let batch = Batch::of(&RELEASE.whole(key, &[token]));
        // Where this fails, Redis ends the key with its lease; nothing more can be done from here.
        let _ = self.link.post(&batch, Moment::now().after(Duration::from_millis(1)));
        self.link.retire();
    }

    /// Who holds a key: `GET key`, `PTTL key`.
    pub(crate) fn look(&mut self, key: &str, deadline: Moment) -> Result<Seen, Failure> {
        let mut replies = self.exchange(&Batch::of(&["GET", key]).and(&["PTTL", key]), deadline)?.into_iter();
        self.sensible(seen(next(&mut replies), next(&mut replies)))
    }

    /// Deletes whatever stands at the key, and tells what it was. Whole, not by hash: an attempt that
    /// is not repeated cannot delete twice.
    pub(crate) fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure> {
        let reply = self.run(&FORCE.whole(key, &[]), deadline).map_err(|failure| FORCE.explain(failure))?;
        self.sensible(deleted(reply))
    }
}

/// A lease that is to be pushed out, if the token still stands there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a str,
    pub(crate) lease: u64,
}

/// The first command of a batch where Redis is to tell a listener when something changes that is
/// read over this connection, from now on. (Not what is changed over it: so an uncontended release
/// costs nothing more.)
fn begin(listener: Option<u64>) -> Batch {
    let Some(listener) = listener else {
        return Batch::default();
    };
    Batch::of(&["CLIENT", "TRACKING", "ON", "REDIRECT", &listener.to_string(), "NOLOOP"])
}

fn set<'a>(key: &'a str, token: &'a str, lease: &'a str) -> [&'a str; 6] {
    ["SET", key, token, "NX", "PX", lease]
}

/// (A link gives as many replies as it was asked for, or an error.)
fn next(replies: &mut impl Iterator<Item = Reply>) -> Reply {
    replies.next().unwrap_or(Reply::Nil)
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("address", &self.pool.address).finish_non_exhaustive()
    }
}
