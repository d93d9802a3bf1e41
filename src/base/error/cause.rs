//! What an error says about its cause: how a hold was lost, why there is no TLS, who waits for
//! whom.

use std::fmt;

use crate::base::owner::Owner;

/// A thread in a [deadlock](crate::Error::WouldDeadlock).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedThread {
    /// The thread.
    pub thread: Owner,
    /// The key of the lock that it waits for.
    pub key: String,
}

/// One line for a log.
impl fmt::Display for BlockedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for lock {:?}", self.thread, self.key)
    }
}

/// How a hold was lost, as far as this process knows.
///
/// The first cause that is found stays: it does not change if another one is found later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostCause {
    /// The lease ran out before the lock was released.
    #[error("its lease ran out")]
    Expired,
    /// The key disappeared from Redis before the lease ran out. It was deleted, flushed or evicted,
    /// Redis restarted or failed over, or the server's clock stepped.
    #[error("its key was deleted")]
    Deleted,
    /// The key has another value: another holder has taken the lock, or something overwrote the
    /// key.
    #[error("it was taken by another holder")]
    Taken,
    /// This process has given it back while its thread still held it:
    /// [`LockManager::shutdown_and_release`](crate::LockManager::shutdown_and_release).
    #[error("its manager was shut down")]
    ShutDown,
}

/// Why there is no TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsCause {
    /// No trusted authority has issued the server's certificate. (A certificate may also be its own
    /// issuer.)
    #[error("the issuer of its certificate is not trusted")]
    UnknownIssuer,
    /// The server's certificate is for other hosts.
    #[error("its certificate is for another host")]
    WrongName,
    /// The server's certificate has expired, or is not valid yet.
    #[error("its certificate has expired, or is not valid yet")]
    Expired,
    /// The server does not speak TLS.
    #[error("it does not speak TLS")]
    NotTls,
    /// The server is a Redis that does not use TLS at this port.
    #[error("it is a Redis that does not use TLS at this port")]
    PlainRedis,
    /// The server asked for a certificate, and got none, or none that it accepts.
    #[error("it refuses the client's certificate, or there is none")]
    ClientCertificate,
    /// Something else: the error's source says what.
    #[error("the handshake failed")]
    Other,
}

/// What the system did not provide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SystemCause {
    /// The system did not start a thread.
    ///
    /// Making a manager with a Redis starts a thread. The first hold that is renewed, or whose loss
    /// is to be reported, starts others. If the caller was taking a lock, the lock was released
    /// again. If the caller already held the lock, it still does.
    #[error("a thread that the lock manager needs cannot be started")]
    NoThread,
    /// The system gave no random bits for a token. Nothing was sent.
    #[error("the system returned no random bits, which the lock's token needs to be unique")]
    NoRandomness,
}

/// What is wrong with a program's setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupCause {
    /// [`relatch::with_lock`](crate::with_lock) was called before
    /// [`relatch::install`](crate::install).
    #[error("no process-wide manager: call relatch::install(manager) first")]
    NotInstalled,
    /// [`relatch::install`](crate::install) was called twice.
    #[error("a process-wide manager is already installed")]
    AlreadyInstalled,
    /// [`Builder::from_env`](crate::Builder::from_env) found no address.
    #[error("no address of Redis: set the environment variable RELATCH_URL or REDIS_URL")]
    NoAddress,
}
