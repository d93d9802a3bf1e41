//! The settings of the connections: login, TLS, sentinels, timeouts, replicas.

use std::sync::Arc;
use std::time::Duration;

use crate::base::options::Replicas;
use crate::manager::builder::Builder;
use crate::store::Login;
#[cfg(feature = "tls-no-provider")]
use crate::store::Tls;

impl Builder {
    /// Asks `provider` for a user and a password each time a connection is opened, instead of
    /// taking a login from the URL. This is for passwords that expire. (An empty user means no
    /// user: a Redis with `requirepass` and without ACLs.)
    ///
    /// Each call is on a thread of its own. Nobody waits longer for it than for the connection, so
    /// `provider` has to return soon, and must not take a lock of this manager. If it panics,
    /// opening the connection fails.
    ///
    /// ```
    /// # fn token() -> String { String::new() }
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .credentials(|| ("worker".to_owned(), token()))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn credentials(
        mut self,
        provider: impl Fn() -> (String, String) + Send + Sync + 'static,
    ) -> Builder {
        self.credentials = Some(Arc::new(provider));
        self
    }

    /// How to log in to the sentinels. They have users and passwords of their own, so by default
    /// the manager does not log in there, even if the URL has a login. Without a `username`: for a
    /// sentinel with `requirepass` and without ACLs.
    ///
    /// ```
    /// let url = "redis+sentinel://s1.internal,s2.internal/mymaster";
    /// let locks = relatch::LockManager::builder(url)
    ///     .sentinel_login(Some("watcher"), "secret")
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn sentinel_login(mut self, username: Option<&str>, password: &str) -> Builder {
        let username = username.map(str::to_owned);
        self.sentinel_login = Some(Login {
            username,
            password: password.to_owned(),
        });
        self
    }

    /// How connections to the sentinels use TLS, if their certificates need other settings than
    /// those of the master; `None`: they use no TLS, although those to the master do. By default,
    /// connections to the sentinels use TLS if those to the master do, with the same settings.
    ///
    /// `None` is only for sentinels that nobody else can impersonate: the manager believes a
    /// sentinel about which server is the master, and trusts that server if its certificate is
    /// valid for the name. An impostor names a server of its own, with a certificate of its own,
    /// and gets the URL's password. It then decides who has the locks. (If
    /// [`Tls::roots`](crate::Tls::roots) trusts an authority that issues certificates to your
    /// servers only, or with [`Tls::server_name`](crate::Tls::server_name), there is no such
    /// certificate.)
    ///
    /// ```
    /// # let own = "-----BEGIN CERTIFICATE-----";
    /// let url = "rediss+sentinel://s1.internal,s2.internal/mymaster";
    /// let others = relatch::Tls::new().roots(own);
    /// let builder = relatch::LockManager::builder(url).sentinel_tls(others);
    /// let plain = relatch::LockManager::builder(url).sentinel_tls(None);
    /// # let _ = (builder, plain);
    /// ```
    #[cfg(feature = "tls-no-provider")]
    pub fn sentinel_tls(mut self, tls: impl Into<Option<Tls>>) -> Builder {
        self.sentinel_tls = tls.into();
        self.sentinel_plaintext = self.sentinel_tls.is_none();
        self
    }

    /// How connections use TLS, for a URL whose scheme is `rediss`, `rediss+sentinel` or
    /// `rediss+cluster`. Defaults to [`Tls::new`].
    ///
    /// ```
    /// let url = "rediss://redis.internal/";
    /// let tls = relatch::Tls::new().server_name("redis.example.org");
    /// let locks = relatch::LockManager::builder(url).tls(tls).build_lazily();
    /// # let _ = locks;
    /// ```
    #[cfg(feature = "tls-no-provider")]
    pub fn tls(mut self, tls: Tls) -> Builder {
        self.tls = Some(tls);
        self
    }

    /// The most connections that the pool has open at a time, up to 10,000 (Redis's default limit).
    /// Defaults to 64. In a cluster, each node has a pool of this size.
    ///
    /// The keeper, the listener and each `force_unlock` open connections of their own.
    ///
    /// A connection is in use only while a command is in progress, so a few connections serve many
    /// threads. The pool opens a connection when a thread needs one, and closes it after ten
    /// minutes without use.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .pool_size(16)
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn pool_size(mut self, connections: u32) -> Builder {
        self.settings.pool_size = connections;
        self
    }

    /// How long opening a connection may take, login included. Between 1 ms and 1 hour; defaults to
    /// 1 second.
    ///
    /// Resolving a host name comes before this limit. It counts toward the limit of
    /// [`build`](Builder::build) or of a wait, but nothing can cut it short. (With sentinels, this
    /// limit includes it, and the time to ask them.) If the name has several addresses, each gets
    /// half of the time that is left, and the last one gets all of it, for the connection and the
    /// login. The address of the last login that succeeded is tried first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .connect_timeout(Duration::from_millis(300))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn connect_timeout(mut self, limit: Duration) -> Builder {
        self.settings.connect_timeout = limit;
        self
    }

    /// How long an answer may take. Between 1 ms and 1 hour; defaults to 1 second.
    ///
    /// A release takes no longer than this limit, and neither does dropping a guard. Dropping the
    /// manager's last handle, which may be a guard, can take longer, because it also waits for
    /// threads (see [`LockManager`](crate::LockManager)).
    ///
    /// A connection that comes from the pool may be dead. So its first command usually waits only
    /// for half of the caller's time, and the other half is left for a new connection. If the last
    /// answer over that connection was slow, the first command waits longer, up to three quarters.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .response_timeout(Duration::from_millis(300))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn response_timeout(mut self, limit: Duration) -> Builder {
        self.settings.response_timeout = limit;
        self
    }

    /// Counts a lock as taken only once replicas have acknowledged it. Redis waits for them for
    /// `timeout`, which is between 1 ms and the [`response_timeout`](Builder::response_timeout),
    /// and up to 100 ms longer, since it looks at the clock ten times a second. Off by default.
    ///
    /// A master answers before its replicas have the lock. If it dies then, a replica without the
    /// lock becomes the master, and another process takes the lock as well. This option sends
    /// `WAIT` (or `WAITAOF`) after a `SET` that took the lock, and after each renewal. A hold is
    /// valid for one lease from the moment when its `SET` or its last acknowledged renewal was
    /// sent.
    ///
    /// *Too few replicas.* The lock is not taken: its key is deleted again, and a waiter keeps
    /// trying until its wait ends or, without a limit, for
    /// [`tolerate_outage`](Builder::tolerate_outage). The error then says how many replicas
    /// answered. A hold whose renewals are not acknowledged ends with its last acknowledged lease.
    ///
    /// *What it prevents.* With [`Replicas::all`], whichever replica the sentinels promote has the
    /// lock. The price: a replica that is down stops every lock, until it returns or an operator
    /// makes the sentinels forget it (`SENTINEL RESET`). With [`Replicas::at_least`], a failover
    /// that loses a lock becomes less likely, not impossible: of two replicas, the one that
    /// acknowledged may be cut off, and the sentinels promote the other.
    ///
    /// *What it does not prevent.* A master that restarts empty before the sentinels notice has no
    /// lock, and its replicas delete theirs. `WAIT` counts replicas and does not name them: a new
    /// replica that the sentinels have not found yet (they look every ten seconds) can stand in for
    /// one that is cut off. After a failover, the replica's clock counts: the lease ends at the
    /// same time of day there, so if that clock is ahead, the lease ends earlier by as much. A
    /// release never waits for replicas: if the failover loses it, the lock comes back without a
    /// holder, and nobody can take it until its lease ends.
    ///
    /// *What it costs.* Taking a lock takes one more round trip to Redis, and one from Redis to its
    /// replicas. A try that finds the lock busy, reentry and a release cost nothing extra. Threads
    /// of one process do not hand the lock off, as with
    /// [`local_handoff(0)`](Builder::local_handoff).
    ///
    /// The Redis user needs the right `+wait` (with [`on_disk`](Replicas::on_disk), `+waitaof`). If
    /// the server refuses the command, no lock is taken, and the error says so.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use relatch::Replicas;
    ///
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .replicas(Replicas::at_least(1), Duration::from_millis(200))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn replicas(mut self, replicas: Replicas, timeout: Duration) -> Builder {
        self.settings.replicas = Some((replicas, timeout));
        self
    }
}
