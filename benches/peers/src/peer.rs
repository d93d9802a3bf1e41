//! Who is measured.

use clap::ValueEnum;

/// One of those that do the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Peer {
    /// One round trip on one plain connection.
    Ping,
    /// Both commands of a lock on one plain connection, with no lock around them.
    Floor,
    Relatch,
    Rlock,
    Redlock,
    ByHand,
    RedisPy,
    PythonRedisLock,
}

/// Those that can be waited for.
pub(crate) const LOCKS: [Peer; 6] =
    [Peer::Relatch, Peer::Rlock, Peer::Redlock, Peer::ByHand, Peer::RedisPy, Peer::PythonRedisLock];

impl Peer {
    /// As in tables and charts.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Peer::Ping => "PING",
            Peer::Floor => "floor: SET + EVALSHA",
            Peer::Relatch => "relatch",
            Peer::Rlock => "rlock",
            Peer::Redlock => "redlock",
            Peer::ByHand => "by hand: r2d2, 100 ms",
            Peer::RedisPy => "redis-py Lock",
            Peer::PythonRedisLock => "python-redis-lock",
        }
    }

    /// As on a worker's command line.
    pub(crate) fn argument(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(crate) fn is_python(self) -> bool {
        matches!(self, Peer::RedisPy | Peer::PythonRedisLock)
    }

    /// What happens to a thread that takes the lock a second time, where that is not relatch's.
    pub(crate) fn reentry(self) -> &'static str {
        match self {
            Peer::PythonRedisLock => {
                "not reentrant: the same lock object raises, another one waits for itself"
            }
            _ => "not reentrant: the thread waits for itself",
        }
    }
}
