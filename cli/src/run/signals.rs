//! The signals that this process gets.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, LazyLock};
use std::thread;

use relatch::StopHandle;
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::run::life::{ENDS, Event, Sender as From};
use crate::run::process;

/// The signals that are passed on to the job.
pub(crate) const FOR_THE_JOB: [i32; 7] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Turns signals into events from now on. Signals that end a run also stop a wait, through `stop`.
///
/// The signal that stops a run keeps its default action until there is a job: see
/// [`listen_for_stops`].
///
/// The program that started this one may have ignored `SIGCHLD`. Then the exit status of children
/// would be lost.
pub(crate) fn listen(stop: &StopHandle, events: &Sender<Event>) -> io::Result<Handle> {
    let mut numbers = FOR_THE_JOB.to_vec();
    // What `nohup` ignores stays ignored for the job too.
    numbers.retain(|number| !is_ignored(*number));
    numbers.push(SIGCONT); // Even if ignored: it continues this process, and must continue the job.
    signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)))?;
    let mut signals = SignalsInfo::<WithOrigin>::new(numbers)?;
    let handle = signals.handle();
    let stop = stop.clone();
    let events = events.clone();
    thread::spawn(move || {
        for origin in signals.forever() {
            let number = origin.signal;
            let event = match number {
                SIGTSTP => Event::Stop(sender_of(&origin)),
                SIGCONT => Event::Continue,
                other => Event::Signal(other, sender_of(&origin)),
            };
            if events.send(event).is_err() {
                return;
            }
            // Only after the event, so that whoever sees the wait end also sees the signal.
            if ENDS.contains(&number) {
                stop.stop();
            }
        }
    });
    Ok(handle)
}

/// Who sent a signal. A terminal's signals come from the kernel.
fn sender_of(origin: &Origin) -> From {
    match (origin.cause, origin.process) {
        (Cause::Sent(_), Some(sender)) if process::is_manager(sender.pid) => From::Manager,
        (Cause::Sent(_), _) => From::Other,
        // (macOS does not report the cause, but does report the sender's pid.)
        (_, Some(process)) if process.pid != 0 => From::Other,
        _ => From::Terminal,
    }
}

/// Turns the signal that stops a run into an event too.
pub(crate) fn listen_for_stops(handle: &Handle) -> io::Result<()> {
    if is_ignored(SIGTSTP) {
        return Ok(());
    }
    handle.add_signal(SIGTSTP)
}

/// The signals that were ignored when this process started, one bit for each. (Only Linux shows
/// them.)
static IGNORED: LazyLock<u64> = LazyLock::new(|| {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
});

// This runs before Rust's runtime, which ignores `SIGPIPE` before `main`.
ctor_lite::ctor! {
    unsafe fn look_at_ignored() {
        LazyLock::force(&IGNORED);
    }
}

/// Whether this signal was ignored when the process started.
pub(crate) fn is_ignored(number: i32) -> bool {
    *IGNORED >> (number - 1) & 1 == 1
}
