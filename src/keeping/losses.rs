//! Calls the program's `on_lost` callback, on a thread of its own. (`Keeper::report_loss` decides
//! whether a loss is reported.)

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::background::{Errands, go_on_duty};
use crate::base::clock::Moment;
use crate::base::emit::error;
use crate::base::error::LostCause;
use crate::base::owner::Owner;
use crate::hold::Hold;

/// A lost hold, as passed to the callback of [`on_lost`](crate::Builder::on_lost).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LostLock {
    /// The lock's key.
    pub key: String,
    /// The thread that held it.
    pub owner: Owner,
    /// What happened.
    pub cause: LostCause,
    /// How long the thread had held the lock when the loss was found.
    pub held_for: Duration,
}

/// One line for a log.
impl fmt::Display for LostLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostLock {
            key,
            owner,
            cause,
            held_for,
        } = self;
        write!(
            f,
            "lock {key:?}, held by {owner} for {held_for:.1?}, was lost: {cause}"
        )
    }
}

pub(crate) type OnLost = Arc<dyn Fn(&LostLock) + Send + Sync>;

/// Calls `on_lost`, for one loss after another.
///
/// The threads that renew leases do not call the callback: while a slow one ran, no lease would be
/// renewed.
pub(crate) struct LossNotifier {
    on_lost: OnLost,
    calls: Arc<Errands>,
}

impl LossNotifier {
    pub(crate) fn new(on_lost: OnLost) -> LossNotifier {
        LossNotifier {
            on_lost,
            calls: Errands::new("relatch-on-lost"),
        }
    }

    /// Schedules the callback for a loss that was found at `now`. Does not wait for it.
    pub(crate) fn notify(&self, hold: &Hold, cause: LostCause, now: Moment) {
        let lost = LostLock {
            key: hold.key.name().to_string(),
            owner: hold.owner.clone(),
            cause,
            held_for: now.since(hold.acquired.answered),
        };
        let on_lost = Arc::clone(&self.on_lost);
        let call = move || {
            go_on_duty(); // A logger that hangs holds up no call.
            if panic::catch_unwind(AssertUnwindSafe(|| on_lost(&lost))).is_err() {
                error!(target: "relatch::lost",
                    "the on_lost callback panicked when called for lock {:?}", lost.key);
            }
        };
        if let Err(error) = self.calls.run(call) {
            error!(target: "relatch::lost", "cannot yet start a thread to call on_lost: {error}");
        }
    }

    /// Waits until the callback has been called for all losses so far, for `limit` at most. A
    /// callback that takes longer is left behind with its thread. If the callback itself drops the
    /// last handle, this does not wait.
    pub(crate) fn stop(&self, limit: Duration) {
        self.calls.close();
        if !self.calls.settle(limit) {
            error!(target: "relatch::lost", "the on_lost callback did not return in time; its thread was left behind");
        }
    }
}

impl fmt::Debug for LossNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LossNotifier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::mpsc::{self, Receiver};
    use crate::base::sync::{Mutex, thread};
    use crate::hold::tests::sample;

    const LONG: Duration = Duration::from_secs(10);

    /// A notifier whose callback sends the key, and then waits until it may return.
    fn slow() -> (Arc<LossNotifier>, mpsc::Sender<()>, Receiver<String>) {
        let (go, may_go) = mpsc::channel();
        let (called, calls) = mpsc::channel();
        let may_go = Mutex::new(may_go);
        let notifier = LossNotifier::new(Arc::new(move |lost| {
            called.send(lost.key.clone()).unwrap();
            let _ = may_go.lock().recv();
        }));
        (Arc::new(notifier), go, calls)
    }

    fn notify(notifier: &LossNotifier, name: &str) {
        let now = Moment::now();
        notifier.notify(
            &sample(name, Duration::from_secs(1), now),
            LostCause::Deleted,
            now,
        );
    }

    /// Stops the notifier on another thread. Then notifies it of one more loss, which is too late.
    fn stop(notifier: Arc<LossNotifier>, limit: Duration) -> Receiver<()> {
        let (stopped, stops) = mpsc::channel();
        thread::spawn(move || {
            notifier.stop(limit);
            notify(&notifier, "late");
            drop(notifier);
            let _ = stopped.send(());
        });
        stops
    }

    #[test]
    fn a_loss_is_one_line_for_a_log() {
        let owner = sample("a", LONG, Moment::now()).owner;
        let lost = LostLock {
            key: "a".to_owned(),
            owner: owner.clone(),
            cause: LostCause::Deleted,
            held_for: Duration::from_millis(1_500),
        };
        let cause = LostCause::Deleted;
        assert_eq!(
            lost.to_string(),
            format!("lock \"a\", held by {owner} for 1.5s, was lost: {cause}")
        );
    }

    #[test]
    fn a_callback_that_returns_is_waited_for() {
        let (notifier, go, calls) = slow();
        for name in ["a", "b"] {
            notify(&notifier, name);
        }
        let stops = stop(notifier, LONG);
        assert!(
            stops.recv_timeout(Duration::from_millis(50)).is_err(),
            "it did not wait for both calls"
        );
        drop(go);
        stops.recv_timeout(LONG).expect("the notifier stops");
        assert_eq!(calls.iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_callback_that_drops_the_last_handle_does_not_wait_for_itself() {
        let last = Arc::new(Mutex::new(None::<Arc<LossNotifier>>));
        let (stopped, stops) = mpsc::channel();
        let handle = Arc::clone(&last);
        let notifier = Arc::new(LossNotifier::new(Arc::new(move |_| {
            handle.lock().take().unwrap().stop(LONG);
            stopped.send(()).unwrap();
        })));
        *last.lock() = Some(Arc::clone(&notifier));
        notify(&notifier, "a");
        stops
            .recv_timeout(LONG / 2)
            .expect("the stop does not wait for its own thread");
    }

    #[test]
    fn a_callback_that_does_not_return_is_left_behind() {
        let (notifier, go, calls) = slow();
        notify(&notifier, "a");
        assert_eq!(calls.recv_timeout(LONG).unwrap(), "a");
        let stops = stop(notifier, Duration::from_millis(10));
        stops
            .recv_timeout(LONG)
            .expect("the stop does not wait for the callback");
        drop(go);
        assert!(calls.recv().is_err(), "called after the end");
    }
}
