//! The builder of a manager: every setting, and its default.
//!
//! [`defaults`] has the options of the locks, [`connections`] the settings of the connections, and
//! [`memory`] the managers without a Redis.

mod connections;
mod defaults;
mod memory;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, SetupCause};
use crate::base::options::{Settings, WarnAfter};
use crate::keeping::losses::{LostLock, OnLost};
use crate::manager::LockManager;
use crate::session::Session;
use crate::store::{Address, AskCredentials, Login, Tls};

/// Makes a [`LockManager`] with settings of its own. [`LockManager::builder`] returns a builder.
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::builder("redis://:secret@127.0.0.1/2")
///     .prefix("shop:lock:")
///     .lease(Duration::from_secs(10))
///     .build_lazily()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    /// `None`: the locks are in memory.
    address: Result<Option<Address>, Error>,
    credentials: Option<AskCredentials>,
    sentinel_login: Option<Login>,
    tls: Option<Tls>,
    sentinel_tls: Option<Tls>,
    sentinel_plaintext: bool,
    settings: Settings,
    on_lost: Option<OnLost>,
}

impl LockManager {
    /// A manager with every option at its default, connected to the Redis at `url`:
    /// `redis://[user:password@]host[:port][/db]`, `unix:///path/to/socket[?db=n]`, for sentinels
    /// `redis+sentinel://[user:password@]host[:port][,host[:port]...]/name[/db]`, or for a cluster
    /// `redis+cluster://[user:password@]host[:port][,host[:port]...]`. For TLS, which needs the
    /// feature `tls`, write `rediss` instead of `redis`.
    ///
    /// Speaks to Redis once, within the connect timeout of one second (plus the time that the
    /// system needs to resolve the host's name).
    ///
    /// ```
    /// match relatch::LockManager::connect("redis://127.0.0.1:1/") {
    ///     Ok(locks) => drop(locks.lock("orders:42")?),
    ///     Err(error) => println!("{error}"), // redis at 127.0.0.1:1 is unavailable (...
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Builder::build`].
    pub fn connect(url: &str) -> Result<LockManager, Error> {
        LockManager::builder(url).build()
    }

    /// A builder for a manager with options of its own. Sends nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .lease(Duration::from_secs(10))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn builder(url: &str) -> Builder {
        Builder::at(Address::parse(url).map(Some))
    }
}

impl Builder {
    /// A builder with the URL that the environment variable `RELATCH_URL` or, if that is not set,
    /// `REDIS_URL` names. An empty variable counts as not set. Sends nothing. A problem with the
    /// variables is reported by [`build`](Builder::build): [`Error::Setup`] (`NoAddress`) if
    /// neither is set.
    ///
    /// ```
    /// match relatch::Builder::from_env().prefix("shop:lock:").build_lazily() {
    ///     Ok(locks) => println!("{locks:?}"),
    ///     Err(error) => println!("{error}"), // no address of Redis: set ...
    /// }
    /// ```
    pub fn from_env() -> Builder {
        let [first, second] = ["RELATCH_URL", "REDIS_URL"];
        let set = |name| {
            std::env::var_os(name)
                .filter(|url| !url.is_empty())
                .map(|url| (name, url))
        };
        let not_utf8 = |option| {
            // The value is not shown, because it may contain a password.
            Error::InvalidOption {
                option,
                value: None,
                reason: "this environment variable is not UTF-8",
            }
        };
        let found = set(first).or_else(|| set(second)).ok_or(Error::Setup {
            cause: SetupCause::NoAddress,
        });
        let url = found.and_then(|(name, url)| url.into_string().map_err(|_| not_utf8(name)));
        Builder::at(url.and_then(|url| Address::parse(&url)).map(Some))
    }

    fn at(address: Result<Option<Address>, Error>) -> Builder {
        let settings = Settings::default();
        Builder {
            address,
            credentials: None,
            tls: None,
            sentinel_login: None,
            sentinel_tls: None,
            sentinel_plaintext: false,
            settings,
            on_lost: None,
        }
    }

    /// The text with which each key in Redis begins, at most 64 KiB. Defaults to `lock:`.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .prefix("shop:lock:")
    ///     .build_lazily()?; // The lock `orders:42` is the key `shop:lock:orders:42`.
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Builder {
        self.settings.prefix = prefix.into();
        self
    }

    /// Calls `callback` once for each lost hold, as soon as the manager finds the loss.
    ///
    /// Nothing interrupts the work under the lock: it has to look at
    /// [`is_valid`](crate::LockGuard::is_valid) between its steps.
    ///
    /// The calls come one after another, on a thread of their own (`relatch-on-lost`): a slow or
    /// panicking callback stops no renewal, and a callback may take locks of this manager. A
    /// callback that hangs delays the calls for later losses, and if it never returns, there are no
    /// more calls. Dropping the last handle waits for the calls that are due, for little more than
    /// the response timeout.
    ///
    /// ```
    /// use relatch::LostCause;
    ///
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let locks = relatch::LockManager::builder_in_memory()
    ///     .on_lost(move |lost| tell.send(lost.to_string()).expect("somebody listens"))
    ///     .build()?;
    /// let _guard = locks.lock("orders:42")?;
    /// locks.memory().expect("it is in memory").lose("orders:42", LostCause::Deleted);
    /// assert!(told.recv().is_ok_and(|lost| lost.ends_with("its key was deleted")));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn on_lost(mut self, callback: impl Fn(&LostLock) + Send + Sync + 'static) -> Builder {
        self.on_lost = Some(Arc::new(callback));
        self
    }

    /// Logs a warning (target `relatch::slow`) for each thread that waits for a lock for longer
    /// than `wait`, and for each lock that is held for longer than `held`. Off by default. Both are
    /// at least 1 ms; with `Duration::MAX`, one of the two is never logged.
    ///
    /// The warnings are repeated after twice the time, four times the time and so on, for as long
    /// as the wait or the hold lasts. They name the key and the thread; for a wait, also the
    /// holder, if it is known, and the time until the deadline; for a hold, the time that is left
    /// of its lease.
    ///
    /// The keeper's thread logs them, and is started with the manager for that. Taking and
    /// releasing a lock costs no more than without this option. A warning is late by up to the
    /// response timeout while a renewal has no answer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder_in_memory()
    ///     .warn_after(Duration::from_secs(5), Duration::from_secs(60))
    ///     .build()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn warn_after(mut self, wait: Duration, held: Duration) -> Builder {
        self.settings.warn_after = Some(WarnAfter { wait, held });
        self
    }

    /// Counts locks separately by these prefixes of their names: each prefix is a class. So
    /// [`Stats::classes`](crate::Stats::classes) and a monitoring system, by the label `class`,
    /// show that it is the invoices that are waiting, and not the reports. Without it (the
    /// default), there is no such label.
    ///
    /// A lock belongs to the class with the longest prefix that its name begins with, or else to
    /// the class `""`, which has no label. Everything that concerns a lock counts for its class,
    /// including the manager's work in the background. Each class is one more time series for each
    /// metric (and 42 for each histogram), however many locks there are. Each count compares the
    /// lock's name with the prefixes that have the same first byte, which takes a few nanoseconds
    /// for each of them.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder_in_memory()
    ///     .classes(["invoice:", "report:"])
    ///     .build()?;
    /// locks.with_lock("invoice:42", || ())?;
    /// let stats = locks.stats();
    /// assert_eq!((stats.acquired, stats.classes["invoice:"].acquired), (1, 1));
    /// assert!(stats.prometheus().contains("relatch_acquired_total{class=\"invoice:\"} 1\n"));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) returns [`Error::InvalidOption`] if a prefix is empty, occurs
    /// twice or has a control character, or if there are more than 100.
    pub fn classes(mut self, prefixes: impl IntoIterator<Item = impl Into<String>>) -> Builder {
        self.settings.classes = prefixes.into_iter().map(Into::into).collect();
        self
    }

    /// How long a wait goes on while Redis gives no proper answer. If the wait has a limit of its
    /// own, the shorter of the two counts. Defaults to 10 seconds, counted from the first attempt
    /// without an answer.
    ///
    /// A waiter that sleeps until it receives an invalidation asks every 10 to 15 seconds, and only
    /// then notices an outage, so its wait may end some 25 seconds after Redis fell silent. A
    /// thread that waits behind another thread of its process makes no attempts of its own. For
    /// such a thread, the outage begins with the other thread's first attempt without an answer or,
    /// if that is later, with its own wait.
    ///
    /// One failed attempt is not yet an outage: its connection may have been dead. So a wait whose
    /// limit has not been reached makes a second one, and each of the two may take the connect
    /// timeout and the response timeout. A single try ([`try_lock`](crate::Lock::try_lock)) gets
    /// that time only once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .tolerate_outage(Duration::from_secs(2))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn tolerate_outage(mut self, limit: Duration) -> Builder {
        self.settings.tolerate_outage = limit;
        self
    }

    /// Whether Redis sends invalidations to this manager (see
    /// [Waiting](crate::guide::running#waiting)). They wake waiters, and report the loss of a
    /// renewed lock at once. Defaults to yes.
    ///
    /// If this is off, the manager opens no connection for invalidations, waiters
    /// [poll](Builder::poll_every), and a loss is noticed only at the next renewal. Switch it off
    /// where invalidations are known not to work: this saves the attempts.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .client_tracking(false)
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn client_tracking(mut self, on: bool) -> Builder {
        self.settings.client_tracking = on;
        self
    }

    /// The longest pause between two tries of a waiter that receives no invalidations. Between 1 ms
    /// and 1 hour; defaults to 64 ms.
    ///
    /// The first pause is a millisecond, and each pause is twice as long as the one before. A
    /// random part, half of the pause at most, is then cut off.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .poll_every(Duration::from_millis(20))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn poll_every(mut self, longest: Duration) -> Builder {
        self.settings.poll_every = longest;
        self
    }

    /// How long threads of this process may hand a contended lock off among themselves before they
    /// leave it to other processes for a moment. Defaults to 5 ms. With zero, nothing is handed
    /// off, and the lock stays free for a moment after each turn.
    ///
    /// If a thread of this manager waits for a lock that another thread releases, the manager sends
    /// the release and the waiter's `SET` together: this takes one round trip instead of two, and
    /// other processes cannot come in between. A longer time gives this process more turns a
    /// second, and makes other processes wait longer. When the time is over, the lock stays free
    /// for 0.25 to 3.3 ms (longer if many other processes want it), so that a waiter in another
    /// process can take it. The same limit holds for a single thread that takes a lock again and
    /// again.
    ///
    /// With [`replicas`](Builder::replicas), nothing is handed off, and this option has no effect.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .local_handoff(Duration::from_millis(1))
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn local_handoff(mut self, longest: Duration) -> Builder {
        self.settings.local_handoff = longest;
        self
    }

    /// Makes the manager and speaks to Redis once: connects, logs in and sends a `PING`, or reads
    /// the map of the cluster. So a wrong address, password or database fails here. Blocks for the
    /// [connect timeout](Builder::connect_timeout) at most, and for the system's resolver. (After
    /// an error, the manager's threads end, which may take as long again in a cluster.)
    ///
    /// ```
    /// let locks = relatch::LockManager::builder_in_memory().prefix("shop:").build()?;
    /// assert!(locks.try_lock("orders:42")?.is_some());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`]: an option or the URL is invalid. Nothing was sent.
    /// - [`Error::System`]: the system could not start a thread, or gave no random bits. Nothing
    ///   was sent.
    /// - [`Error::Unavailable`]: nothing answers at the address, or whatever answers is not Redis.
    /// - [`Error::Refused`]: Redis refused the login, the database or the `PING`.
    /// - [`Error::Tls`]: the connection could not be encrypted, or the server is not trusted.
    /// - [`Error::Setup`]: [`from_env`](Builder::from_env) has found no address.
    pub fn build(self) -> Result<LockManager, Error> {
        let session = self.session()?;
        session.check()?;
        Ok(LockManager::new(session))
    }

    /// Makes the manager and sends nothing, for a program that may start before its Redis does.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1:1/").build_lazily()?;
    /// let error = locks.try_lock("orders:42").expect_err("nothing is there");
    /// assert!(error.is_redis_failure());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`]: an option or the URL is invalid.
    /// - [`Error::System`]: the system could not start a thread, or gave no random bits.
    /// - [`Error::Setup`]: [`from_env`](Builder::from_env) has found no address.
    pub fn build_lazily(self) -> Result<LockManager, Error> {
        Ok(LockManager::new(self.session()?))
    }

    fn session(self) -> Result<Arc<Session>, Error> {
        self.check_without_server()?;
        self.settings.check()?;
        let Some(address) = self.address? else {
            return Session::in_memory(self.settings, self.on_lost)
                .started()
                .map(Arc::new);
        };
        let mut target = address.with_tls(self.tls)?;
        target.set_credentials(self.credentials)?;
        target.set_sentinels(
            self.sentinel_login,
            self.sentinel_tls,
            self.sentinel_plaintext,
        )?;
        Session::new(target, self.settings, self.on_lost).map(Arc::new)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("address", &self.address)
            .field("credentials", &self.credentials.is_some())
            .field("sentinel_login", &self.sentinel_login.is_some())
            .field("tls", &self.tls)
            .field("sentinel_tls", &self.sentinel_tls)
            .field("sentinel_plaintext", &self.sentinel_plaintext)
            .field("settings", &self.settings)
            .field("on_lost", &self.on_lost.is_some())
            .finish()
    }
}
