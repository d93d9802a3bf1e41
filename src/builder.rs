//! How a manager is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::options::Settings;
use crate::keeping::losses::{LostLock, OnLost};
use crate::manager::LockManager;
use crate::session::Session;
use crate::store::Address;

/// Makes a [`LockManager`]: by [`LockManager::builder`].
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::builder("redis://:secret@127.0.0.1/2")
///     .prefix("shop:lock:")
///     .lease(Duration::from_secs(10))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    address: Result<Address, Error>,
    settings: Settings,
    on_lost: Option<OnLost>,
}

impl LockManager {
    /// A manager with every option at its default, connected to the Redis at `url`:
    /// `redis://[user:password@]host[:port][/db]`, or `unix:///path/to/socket[?db=n]`.
    ///
    /// Speaks to Redis once, within the connect timeout of a second.
    ///
    /// # Errors
    ///
    /// As for [`Builder::build`].
    pub fn connect(url: &str) -> Result<LockManager, Error> {
        LockManager::builder(url).build()
    }

    /// A manager with options of your own.
    pub fn builder(url: &str) -> Builder {
        Builder { address: Address::parse(url), settings: Settings::default(), on_lost: None }
    }

    /// A manager that reaches Redis as the given client would: for TLS, and for whatever else a URL does not say.
    ///
    /// Of the client, its address, its login, its database and its TLS settings are used, and not
    /// its protocol: RESP2 is spoken. This is the one place where a type of the
    /// `redis` crate is part of the interface, so it follows that crate's versions (1.x).
    pub fn builder_with_client(client: &redis::Client) -> Builder {
        Builder { address: Address::of_client(client), settings: Settings::default(), on_lost: None }
    }
}

impl Builder {
    /// What stands in front of every key in Redis. Defaults to `lock:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Builder {
        self.settings.prefix = prefix.into();
        self
    }

    /// The lease of every lock that does not set its own: see [`Lock::lease`](crate::Lock::lease). Defaults to 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Builder {
        self.settings.options.lease = lease;
        self
    }

    /// The longest lease that is let through: a typing error in a lease would lock everybody out for as
    /// long. Defaults to 24 hours.
    pub fn max_lease(mut self, cap: Duration) -> Builder {
        self.settings.max_lease = cap;
        self
    }

    /// The wait of every lock that does not set its own: see [`Lock::wait`](crate::Lock::wait). Defaults to no limit.
    pub fn wait(mut self, wait: Duration) -> Builder {
        self.settings.options.wait = Some(wait);
        self
    }

    /// Whether leases are pushed out while locks are held: see [`Lock::renew`](crate::Lock::renew). Defaults to yes.
    pub fn renew(mut self, on: bool) -> Builder {
        self.settings.options.renewal.on = on;
        self
    }

    /// The time from one renewal to the next: see [`Lock::renew_every`](crate::Lock::renew_every). Defaults to a third of
    /// the lease.
    pub fn renew_every(mut self, period: Duration) -> Builder {
        self.settings.options.renewal.every = Some(period);
        self
    }

    /// For how long a lock is renewed at most: see [`Lock::max_hold`](crate::Lock::max_hold). Defaults to no limit.
    pub fn max_hold(mut self, limit: Duration) -> Builder {
        self.settings.options.renewal.max_hold = Some(limit);
        self
    }

    /// Whether waiters take locks away from processes of this machine that are dead. Defaults to no.
    ///
    /// A process that was killed leaves its locks until their leases end. A waiter on the same machine can know better: where
    /// the token names this host, this boot and this pid namespace (the nonce's first eight digits), and a process id
    /// that no longer exists, the waiter deletes exactly that token and goes on. In any doubt it waits as ever. Linux
    /// only; elsewhere nothing is ever certain.
    ///
    /// What the dead process had begun is as it left it, and a child of it may still be at work.
    ///
    /// Leave it off where processes or machines are copied while they run (snapshots of virtual
    /// machines, CRIU). A copy has the same host name, boot and pid namespace as its original, but
    /// not the same processes: one that lives in the one, and has ended in the other or never began
    /// there, looks dead to that.
    pub fn reclaim_dead(mut self, on: bool) -> Builder {
        self.settings.options.reclaim_dead = on;
        self
    }

    /// Calls back once for each hold that is lost, as soon as that is known.
    ///
    /// On a thread of its own (`relatch-on-lost`), one loss after the other: neither slowness nor a panic stops renewals.
    /// When the last handle of the manager goes, what is still to be told is waited for, at most for the response timeout.
    pub fn on_lost(mut self, callback: impl Fn(&LostLock) + Send + Sync + 'static) -> Builder {
        self.on_lost = Some(Arc::new(callback));
        self
    }

    /// The most connections that are open at a time, up to 10,000 (as many as Redis takes by
    /// default). Defaults to 8.
    ///
    /// One is used for as long as a command takes, so a few serve many threads; none is opened before it is needed.
    pub fn pool_size(mut self, connections: u32) -> Builder {
        self.settings.pool_size = connections;
        self
    }

    /// How long opening a connection may take, login included. Between 1 ms and 1 hour; defaults to 1 second.
    ///
    /// Resolving a host name is up to the system, and not covered. Where it stands for several
    /// addresses, each has a share of this time.
    pub fn connect_timeout(mut self, limit: Duration) -> Builder {
        self.settings.connect_timeout = limit;
        self
    }

    /// How long an answer may take. Between 1 ms and 1 hour; defaults to 1 second.
    ///
    /// The first command over a connection that was used before waits for half of the caller's
    /// limit at most (for twice the last answer's time, if that is more, up to three quarters):
    /// where that connection is dead, the rest is for a fresh one.
    ///
    /// The limit of a release, too: no guard takes longer to drop, unless it is the manager's last handle, which also
    /// waits for its threads (see [`LockManager`]).
    pub fn response_timeout(mut self, limit: Duration) -> Builder {
        self.settings.response_timeout = limit;
        self
    }

    /// How long a wait without limit goes on while Redis gives no proper answer. Defaults to 10 seconds, counted from the first
    /// attempt that was not answered. (A waiter that sleeps until Redis tells it something asks every 10 to 15 seconds.)
    ///
    /// Threads in line behind another count the same outage, each from its own beginning at the
    /// earliest, and give up without an attempt of their own. An attempt that is under way has its
    /// time, however short this is: the connect timeout and the response timeout. Waits with a
    /// limit go on until their end.
    pub fn tolerate_outage(mut self, limit: Duration) -> Builder {
        self.settings.tolerate_outage = limit;
        self
    }

    /// Whether waiters sleep until Redis says that a lock's key has changed, and renewed locks are told of their loss at once
    /// (see [Waiting](crate#waiting)). Defaults to yes.
    ///
    /// Switched off, no connection for that is opened, waiters [ask again and again](Builder::poll_every), and a loss
    /// is found out by the next renewal. That saves its attempts where it is known not to work.
    pub fn client_tracking(mut self, on: bool) -> Builder {
        self.settings.client_tracking = on;
        self
    }

    /// The longest pause of a waiter between two looks, while Redis does not tell it of changes. Between 1 ms and 1 hour; defaults
    /// to 64 ms.
    ///
    /// The first pause is a millisecond, each is twice the one before, and each is shortened by chance, to half at most.
    pub fn poll_every(mut self, longest: Duration) -> Builder {
        self.settings.poll_every = longest;
        self
    }

    /// For how long threads of this process may pass a contended lock among themselves before they
    /// leave it to other processes for a moment. Defaults to 5 ms; zero switches passing on off.
    ///
    /// While a thread of this manager waits for a lock that another one releases, both commands go
    /// out together, in one round trip instead of two, and other processes cannot come in between.
    /// A longer time gives this process more turns a second, and other processes longer waits. At
    /// its end the lock stays free for about a twentieth of it, so that a waiter of another process
    /// can take it. The same limit holds for a single thread that takes a lock again and again.
    pub fn local_handoff(mut self, longest: Duration) -> Builder {
        self.settings.local_handoff = longest;
        self
    }

    /// Makes the manager and speaks to Redis once (a `PING`, after connecting and logging in), so that a wrong
    /// address, password or database shows here. Blocks for the connect timeout at most.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`]: an option or the URL cannot work; nothing was sent.
    /// - [`Error::NoThread`], [`Error::NoRandomness`]: the system would not start a thread, or gave no random bits; nothing was sent.
    /// - [`Error::Unavailable`]: nothing, or something that is not Redis, answers there.
    /// - [`Error::Refused`]: Redis refused the login, the database or the `PING`.
    pub fn build(self) -> Result<LockManager, Error> {
        let session = self.session()?;
        session.check()?;
        Ok(LockManager::new(session))
    }

    /// Makes the manager without speaking to Redis: for programs that may start before it does.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`]: an option or the URL cannot work.
    /// - [`Error::NoThread`], [`Error::NoRandomness`]: the system would not start a thread, or gave no random bits.
    pub fn build_unchecked(self) -> Result<LockManager, Error> {
        Ok(LockManager::new(self.session()?))
    }

    fn session(self) -> Result<Arc<Session>, Error> {
        let address = self.address?;
        self.settings.check()?;
        Session::new(address, self.settings, self.on_lost).map(Arc::new)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("address", &self.address)
            .field("settings", &self.settings)
            .field("on_lost", &self.on_lost.is_some())
            .finish()
    }
}
