//! Whether the job also received a signal that reached the wrapper.

use std::time::Duration;

use crate::run::family::Scope;

/// A service manager sends a signal to every process of a service within this time.
pub(crate) const LONGEST_ROUND: Duration = Duration::from_millis(100);

/// Who sent a signal to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A terminal sends its signals to its foreground process group.
    Terminal,
    /// A service manager may signal this process alone, or each process of a service.
    Manager,
    /// Any other sender may signal this process, or the process group that the job shares. Which
    /// one it was cannot be known: the guard is in a different group, so that it survives a kill of
    /// this one.
    Other,
}

impl Sender {
    /// Which processes the sender has not signaled itself.
    pub(crate) fn misses(self) -> Scope {
        match self {
            Sender::Terminal => Scope::OtherGroups,
            Sender::Manager | Sender::Other => Scope::Job,
        }
    }
}

/// Signals from a service manager to the wrapper. It sends each to the wrapper alone, or to every
/// process of the service, and then the guard gets it too. The times are ages of the hold.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// Signals that reached the wrapper, and until when the guard may report the same one.
    sent: Vec<(i32, Duration)>,
    /// Signals that reached the guard, and until when the same one may reach the wrapper.
    got: Vec<(i32, Duration)>,
}

impl Doubt {
    /// A service manager has sent this signal to the wrapper.
    pub(crate) fn sent(&mut self, number: i32, now: Duration) {
        self.got.retain(|(_, until)| *until > now);
        let has_come = take(&mut self.got, number);
        if !has_come && !self.sent.iter().any(|(sent, _)| *sent == number) {
            self.sent.push((number, now + LONGEST_ROUND));
        }
    }

    /// This signal has reached the guard.
    pub(crate) fn got(&mut self, number: i32, now: Duration) {
        let was_sent = take(&mut self.sent, number);
        if !was_sent {
            self.got.push((number, now + LONGEST_ROUND));
        }
    }

    /// The signals that the job has not received.
    pub(crate) fn resolved(&mut self, now: Duration) -> Vec<i32> {
        let due = self.sent.extract_if(.., |(_, until)| *until <= now);
        due.map(|(number, _)| number).collect()
    }

    /// When the next signal is to be resolved.
    pub(crate) fn until(&self) -> Option<Duration> {
        self.sent.iter().map(|(_, until)| *until).min()
    }
}

/// Takes a signal out of the list. False if it is not there.
fn take(list: &mut Vec<(i32, Duration)>, number: i32) -> bool {
    let place = list.iter().position(|(it, _)| *it == number);
    place.map(|place| list.remove(place)).is_some()
}
