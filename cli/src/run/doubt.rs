//! Whether the job has got a signal that has come to the wrapper.

use std::time::Duration;

use crate::run::family::Scope;

/// A service manager sends a signal to all of a service within this time.
pub(crate) const LONGEST_ROUND: Duration = Duration::from_millis(100);

/// Who has sent a signal to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// It sends its signals to the process group in its foreground.
    Terminal,
    /// It may send one to this process alone, or to each process of a service.
    Manager,
    /// It may send one to the group that the job shares. Nobody tells: the guard is elsewhere, so
    /// that a kill of the group leaves it.
    Other,
}

impl Sender {
    /// Who has not got it from there.
    pub(crate) fn misses(self) -> Scope {
        match self {
            Sender::Terminal => Scope::OtherGroups,
            Sender::Manager | Sender::Other => Scope::Job,
        }
    }
}

/// What a service manager has sent to the wrapper: alone, or to each process of the service. Then
/// the guard gets it, too. The times are ages of the hold.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// What has come to the wrapper, and until when the guard may say the same.
    sent: Vec<(i32, Duration)>,
    /// What has come to the guard, and until when it may come to the wrapper.
    got: Vec<(i32, Duration)>,
}

impl Doubt {
    /// A manager has sent this to the wrapper.
    pub(crate) fn sent(&mut self, number: i32, now: Duration) {
        self.got.retain(|(_, until)| *until > now);
        let has_come = take(&mut self.got, number);
        if !has_come && !self.sent.iter().any(|(sent, _)| *sent == number) {
            self.sent.push((number, now + LONGEST_ROUND));
        }
    }

    /// This has come to the guard.
    pub(crate) fn got(&mut self, number: i32, now: Duration) {
        let was_sent = take(&mut self.sent, number);
        if !was_sent {
            self.got.push((number, now + LONGEST_ROUND));
        }
    }

    /// What the job has not got.
    pub(crate) fn resolved(&mut self, now: Duration) -> Vec<i32> {
        let due = self.sent.extract_if(.., |(_, until)| *until <= now);
        due.map(|(number, _)| number).collect()
    }

    /// When there is something to resolve.
    pub(crate) fn until(&self) -> Option<Duration> {
        self.sent.iter().map(|(_, until)| *until).min()
    }
}

/// Takes a signal out of the list. False if it is not there.
fn take(list: &mut Vec<(i32, Duration)>, number: i32) -> bool {
    let place = list.iter().position(|(it, _)| *it == number);
    place.map(|place| list.remove(place)).is_some()
}
