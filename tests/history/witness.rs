//! A thread that wants nothing but to wake up now and then. If it cannot, no thread of the workers
//! may have run meanwhile: the machine is too busy, or stood still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use relatch_rig::now;

/// How long the thread sleeps.
const NAP: Duration = Duration::from_millis(10);

/// By how much it may be late.
const LATE: Duration = Duration::from_millis(100);

pub(crate) struct Witness {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    done: AtomicBool,
    stalls: Mutex<Vec<(Duration, Duration)>>,
}

impl Witness {
    pub(crate) fn start() -> Witness {
        let shared = Arc::<Shared>::default();
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("witness".to_owned())
            .spawn(move || its.watch());
        Witness {
            shared,
            thread: Some(thread.expect("a thread can be started")),
        }
    }

    /// When the thread could not wake up.
    pub(crate) fn stalls(&self) -> Vec<(Duration, Duration)> {
        self.shared.stalls.lock().clone()
    }
}

impl Shared {
    fn watch(&self) {
        while !self.done.load(Ordering::Relaxed) {
            let due = now() + NAP;
            thread::sleep(NAP);
            let woken = now();
            if woken > due + LATE {
                self.stalls.lock().push((due, woken));
            }
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join); // It does not panic.
    }
}
