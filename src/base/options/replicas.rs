//! How many replicas have to acknowledge a lock.

use std::fmt;

/// How many replicas have to acknowledge a lock before it counts as taken, for
/// [`Builder::replicas`](crate::Builder::replicas).
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use = "it has no effect until it is given to `Builder::replicas`"]
pub struct Replicas {
    /// `None` is all of them.
    pub(crate) count: Option<u32>,
    pub(crate) on_disk: bool,
}

impl Replicas {
    /// Every replica that the sentinels know, even one that is down or cut off: at a failover, the
    /// sentinels may make it the master. At least one.
    ///
    /// Without sentinels, nobody knows how many replicas there are, and
    /// [`build`](crate::Builder::build) fails: give the number instead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = relatch::LockManager::builder("redis+sentinel://s1.internal/mymaster")
    ///     .replicas(relatch::Replicas::all(), Duration::from_millis(200));
    /// # drop(builder);
    /// ```
    pub const fn all() -> Replicas {
        Replicas {
            count: None,
            on_disk: false,
        }
    }

    /// This many replicas, whichever answer first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .replicas(relatch::Replicas::at_least(1), Duration::from_millis(200));
    /// # drop(builder);
    /// ```
    pub const fn at_least(count: u32) -> Replicas {
        Replicas {
            count: Some(count),
            on_disk: false,
        }
    }

    /// The same, but the master and these replicas have to have written the lock to their
    /// append-only files (`WAITAOF`). So the lock also survives a power failure.
    ///
    /// Needs Redis 7.2 or Valkey, with `appendonly yes` on the master and on the replicas. A server
    /// without that refuses each lock. `at_least(0).on_disk()` asks the master alone.
    ///
    /// ```
    /// let survives = relatch::Replicas::at_least(1).on_disk();
    /// assert_eq!(format!("{survives:?}"), "at_least(1).on_disk()");
    /// ```
    pub const fn on_disk(self) -> Replicas {
        Replicas {
            on_disk: true,
            ..self
        }
    }
}

/// Written as in a program: `at_least(1).on_disk()`.
impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            Some(count) => write!(f, "at_least({count})")?,
            None => f.write_str("all()")?,
        }
        f.write_str(if self.on_disk { ".on_disk()" } else { "" })
    }
}
