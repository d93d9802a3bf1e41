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

/// Those that are passed on to the job.
pub(crate) const FOR_THE_JOB: [i32; 7] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Has signals become events from now on. Those that end a wait also end that of `stop`.
///
/// The signal that stops a run does what it does to any other process, until there is a job:
/// [`listen_for_stops`].
///
/// The program that started this one may have ignored `SIGCHLD`. Then children would vanish without
/// a word on how they have ended.
pub(crate) fn listen(stop: &StopHandle, events: &Sender<Event>) -> io::Result<Handle> {
    let mut numbers = FOR_THE_JOB.to_vec();
    // `nohup` ignores a signal for the job, too.
    numbers.retain(|number| !is_ignored(*number));
    numbers.push(SIGCONT); // It continues this process, and has to continue the job, all the same.
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
            // Afterwards, so that who finds the wait ended finds the signal, too.
            if ENDS.contains(&number) {
                stop.stop();
            }
        }
    });
    Ok(handle)
}

/// Who has sent a signal. What a terminal sends comes from the kernel.
fn sender_of(origin: &Origin) -> From {
    match (origin.cause, origin.process) {
        (Cause::Sent(_), Some(sender)) if process::is_manager(sender.pid) => From::Manager,
        (Cause::Sent(_), _) => From::Other,
        // (macOS does not say who it was, but has a number for a process.)
        (_, Some(process)) if process.pid != 0 => From::Other,
        _ => From::Terminal,
    }
}

/// Has the signal that stops a run become an event, too.
pub(crate) fn listen_for_stops(handle: &Handle) -> io::Result<()> {
    if is_ignored(SIGTSTP) {
        return Ok(());
    }
    handle.add_signal(SIGTSTP)
}

/// The signals that this process was started with ignored, a bit for each. (Only Linux tells.)
static IGNORED: LazyLock<u64> = LazyLock::new(|| {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
});

// Before `main`, ahead of which Rust's runtime ignores `SIGPIPE`.
ctor_lite::ctor! {
    unsafe fn look_at_ignored() {
        LazyLock::force(&IGNORED);
    }
}

/// Whether the process was started with this signal ignored.
pub(crate) fn is_ignored(number: i32) -> bool {
    *IGNORED >> (number - 1) & 1 == 1
}
