//! The locks that are compared.

use clap::ValueEnum;

/// A lock, or a plain connection, that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Peer {
    /// One round trip on one plain connection.
    Ping,
    /// The two commands that a lock sends, on one plain connection, without any lock library.
    Floor,
    Relatch,
    /// The same, but whether a hold is still held is asked of Redis.
    RelatchAsking,
    /// relatch's slots, three of them.
    RelatchSlots,
    Rlock,
    Redlock,
    ByHand,
    Redsync,
    Redislock,
    Rueidislock,
    /// The same with `NoLoopTracking`: Redis does not tell a process of its own changes.
    RueidislockNoLoop,
    Redisson,
    RedissonFair,
    /// Redisson's `RPermitExpirableSemaphore`, with three permits.
    RedissonPermits,
    RedisPy,
    PythonRedisLock,
}

/// The language of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Language {
    Rust,
    Go,
    Java,
    Python,
}

impl Peer {
    /// The name in tables and charts.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Peer::Ping => "PING",
            Peer::Floor => "floor: SET + EVALSHA",
            Peer::Relatch => "relatch",
            Peer::RelatchAsking => "relatch, asking Redis",
            Peer::RelatchSlots => "relatch, 3 slots",
            Peer::Rlock => "rlock",
            Peer::Redlock => "redlock",
            Peer::ByHand => "by hand: r2d2, 100 ms",
            Peer::Redsync => "redsync",
            Peer::Redislock => "bsm/redislock",
            Peer::Rueidislock => "rueidislock",
            Peer::RueidislockNoLoop => "rueidislock, no loop",
            Peer::Redisson => "Redisson",
            Peer::RedissonFair => "Redisson, fair lock",
            Peer::RedissonPermits => "Redisson, 3 permits",
            Peer::RedisPy => "redis-py Lock",
            Peer::PythonRedisLock => "python-redis-lock",
        }
    }

    /// The name on a command line.
    pub(crate) fn argument(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    pub(crate) fn language(self) -> Language {
        match self {
            Peer::Redsync | Peer::Redislock | Peer::Rueidislock | Peer::RueidislockNoLoop => {
                Language::Go
            }
            Peer::Redisson | Peer::RedissonFair | Peer::RedissonPermits => Language::Java,
            Peer::RedisPy | Peer::PythonRedisLock => Language::Python,
            _ => Language::Rust,
        }
    }

    /// Whether this peer takes part in the measurements of time.
    pub(crate) fn is_timed(self) -> bool {
        self != Peer::RelatchAsking
    }

    /// Whether this peer is a lock, for which threads can wait.
    pub(crate) fn is_lock(self) -> bool {
        !matches!(self, Peer::Ping | Peer::Floor)
    }

    /// How many can have it at a time.
    pub(crate) fn slots(self) -> u32 {
        match self {
            Peer::RelatchSlots | Peer::RedissonPermits => 3,
            _ => 1,
        }
    }

    /// Whether a thread that has the lock can take it again.
    pub(crate) fn is_reentrant(self) -> bool {
        matches!(self, Peer::Relatch | Peer::Redisson | Peer::RedissonFair)
    }
}
