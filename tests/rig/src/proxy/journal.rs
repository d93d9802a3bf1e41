//! The commands about locks that a proxy forwarded, and what the server answered, with times on a
//! clock that all processes of the machine share.

use std::time::Duration;

use parking_lot::Mutex;

use crate::now;

/// The commands that can change a lock, in the order in which the proxy forwarded them.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    exchanges: Mutex<Vec<Exchange>>,
}

/// A command that a proxy forwarded, and its reply.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The command, its name first.
    pub args: Vec<String>,
    /// The time just before it was written. The server executed it after that, if at all.
    pub sent: Duration,
    /// When its reply came, and the first bytes of the reply. The server executed the command
    /// before that. `None` if no reply came.
    pub answered: Option<(Duration, Vec<u8>)>,
}

/// A place in the journal that waits for a reply.
pub(crate) type Open = Option<usize>;

impl Journal {
    /// Notes a command that is about to be written.
    pub(crate) fn note(&self, args: &[String]) -> Open {
        let matters = ["SET", "EVALSHA", "EVAL"]
            .iter()
            .any(|name| args[0].eq_ignore_ascii_case(name));
        if !matters {
            return None;
        }
        let mut exchanges = self.exchanges.lock();
        exchanges.push(Exchange {
            args: args.to_vec(),
            sent: now(),
            answered: None,
        });
        Some(exchanges.len() - 1)
    }

    /// Notes the reply to a command.
    pub(crate) fn answer(&self, open: Open, reply: &[u8]) {
        if let Some(place) = open {
            let start = reply[..reply.len().min(32)].to_vec();
            self.exchanges.lock()[place].answered = Some((now(), start));
        }
    }

    /// All exchanges so far.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.exchanges.lock().clone()
    }
}
