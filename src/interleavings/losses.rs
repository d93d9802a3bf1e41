//! The first loss comes as the manager ends.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::sync::scheduler::in_many_orders;
use crate::base::sync::thread;
use crate::hold::tests::sample;
use crate::keeping::losses::LossNotifier;

/// Nobody would tell the callback's thread that no more losses come. (Here, a wait for it would
/// never end.)
#[test]
fn a_first_loss_during_the_end_starts_no_thread_that_does_not_end() {
    in_many_orders(500, Duration::ZERO, || {
        let notifier = Arc::new(LossNotifier::new(Arc::new(|_| ())));
        let other = Arc::clone(&notifier);
        let loses = thread::spawn(move || {
            let now = Moment::now();
            let hold = sample("a", Duration::from_secs(1), now);
            other.notify(&hold, LostCause::Deleted, now);
        });
        notifier.stop(Duration::from_secs(10));
        loses.join().expect("the thread does not panic");
    });
}
