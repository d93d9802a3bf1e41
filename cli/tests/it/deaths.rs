//! Whatever dies, no process of a job lives while another holder runs. The jobs themselves write
//! into one file, each line with the clock, and so decide.
//!
//! `RELATCH_DEATHS=300` has each death three hundred times.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use relatch::LockManager;
use relatch_rig::{LONG, Sig, eventually, signal};

use crate::support::{Place, Running, is_stopped, is_there, send, spawn, stderr};

/// What a process of a job does: it writes a line as long as it lives, and starts no process.
const LIVE: &str =
    "live() { exec 3<> <(:); while :; do echo $1 $EPOCHREALTIME >> f; read -t 0.04 -u 3; done; }
";

/// Eight processes that ignore signals, below a shell that does, too.
const STUBBORN: &str = "trap '' TERM INT HUP
for i in 1 2 3 4 5 6 7 8; do live 1 & done; wait";

/// The first process goes at once when it is asked.
const LEADER_GOES: &str = "for i in 1 2 3 4; do (trap '' TERM INT HUP; live 1) & done; wait";

/// Each has a process group of its own, as below `timeout`.
const OWN_GROUPS: &str = "set -m; trap '' TERM INT HUP
for i in 1 2 3 4; do live 1 & done; wait";

/// One has left the session.
const DAEMON: &str = "export -f live; setsid bash -c 'trap \"\" TERM; live 1' & wait";

const SCRIPTS: [&str; 4] = [STUBBORN, OWN_GROUPS, LEADER_GOES, DAEMON];

const NEXT: &str = "for i in $(seq 20); do echo 2 $EPOCHREALTIME >> f; sleep 0.01; done";

const KILL_AFTER: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Wrapper,
    Guard,
    WrapperIsStopped,
    Both,
    /// In the milliseconds in which the guard starts the job.
    GuardAtTheStart,
    WrapperIsStoppedAtTheStart,
    Deleted,
    Taken,
    Silence,
}

impl Death {
    fn is_at_the_start(self) -> bool {
        [Death::GuardAtTheStart, Death::WrapperIsStoppedAtTheStart].contains(&self)
    }

    /// The wrapper goes on later.
    fn is_stop(self) -> bool {
        [Death::WrapperIsStopped, Death::WrapperIsStoppedAtTheStart].contains(&self)
    }

    /// Long, where the end of the lease shall not be what ends the job; and where the margin has to
    /// be wide on a busy machine.
    fn lease(self) -> Duration {
        Duration::from_millis(match self {
            Death::Deleted | Death::Taken | Death::Guard => 30_000,
            Death::Silence => 6000,
            _ => 3000,
        })
    }
}

/// The guard of a run.
pub(crate) fn guard_of(wrapper: u32) -> u32 {
    let children = format!("/proc/{wrapper}/task/{wrapper}/children");
    let mut guard = None;
    let end = Instant::now() + LONG;
    while guard.is_none() {
        assert!(Instant::now() < end, "no guard below {wrapper}");
        let text = fs::read_to_string(&children).unwrap();
        guard = text.split_whitespace().next().map(|id| id.parse().unwrap());
    }
    guard.unwrap()
}

/// Who has written, and when.
fn lines(place: &Place) -> Vec<(u8, f64)> {
    let text = place.text("f");
    let line = |line: &str| {
        let (who, when) = line.split_once(' ').unwrap();
        (who.parse().unwrap(), when.parse().unwrap())
    };
    text.lines().map(line).collect()
}

fn clock() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

/// The next holder's job has run, and after its first line nobody else wrote one: in the file, and
/// on the clock. Returns when the last of the others did.
fn judge(place: &Place, death: Death) -> Option<f64> {
    let lines = lines(place);
    let next = lines.iter().position(|(who, _)| *who == 2);
    let next = next.expect("the next holder's job has run");
    let late = lines[next..].iter().find(|(who, _)| *who == 1);
    assert_eq!(late, None, "{death:?}: {:?}", &lines[next..]);
    let (_, last) = lines[..next].last()?;
    assert!(*last <= lines[next].1, "{death:?}");
    Some(*last)
}

fn next_holder(place: &Place) -> Running {
    let mut run = place.relatch(&["run", "k", "--", "bash", "-c", NEXT]);
    spawn(run.stderr(Stdio::piped()))
}

fn has_run(mut next: Running) {
    let said = next.said();
    assert_eq!(next.code(), 0, "{said}");
}

/// Starts a run whose job lives until it is killed. Has its job begun, unless it shall die before.
fn first_holder(place: &Place, death: Death, script: &str) -> Running {
    let [lease, kill_after] = [death.lease(), KILL_AFTER].map(|it| format!("{}ms", it.as_millis()));
    let script = format!("{LIVE}{script}");
    let run = ["run", "--lease", &lease, "--kill-after", &kill_after];
    let job = ["k", "--", "bash", "-c", &script];
    let mut command = place.relatch(&[&run[..], &job].concat());
    let child = spawn(command.stderr(Stdio::null()));
    if !death.is_at_the_start() {
        eventually(LONG, "the job runs", || !lines(place).is_empty());
        thread::sleep(Duration::from_millis(50)); // So that all of them do, mostly.
    }
    child
}

fn happens(place: &Place, death: Death, wrapper: u32, round: usize) {
    let early = Duration::from_micros(2300 * (round as u64 % 11));
    let guard = guard_of(wrapper);
    match death {
        Death::Wrapper => signal(wrapper, Sig::Kill),
        Death::Guard => signal(guard, Sig::Kill),
        Death::WrapperIsStopped => signal(wrapper, Sig::Stop),
        Death::Both => {
            signal(wrapper, Sig::Term);
            signal(guard, Sig::Term);
            // The job does not care, and so goes on. What follows ends it.
            thread::sleep(Duration::from_millis(50));
            signal(wrapper, Sig::Kill);
        }
        Death::GuardAtTheStart => {
            thread::sleep(early);
            signal(guard, Sig::Kill);
        }
        Death::WrapperIsStoppedAtTheStart => {
            thread::sleep(early);
            signal(wrapper, Sig::Stop);
        }
        Death::Deleted => _ = place.server.query::<u64>(&["DEL", "lock:k"]),
        Death::Taken => place
            .server
            .query::<()>(&["SET", "lock:k", "3f9e0c", "PX", "500"]),
        Death::Silence => place.server.pause(),
    }
}

/// Returns for how long the job lived afterwards, in seconds.
fn dies(place: &Place, death: Death, round: usize) -> f64 {
    place.forget(&["f"]);
    place.server.query::<()>(&["DEL", "lock:k"]);
    // After `TERM`, only these two go on.
    let scripts = if death == Death::Both {
        &SCRIPTS[..2]
    } else {
        &SCRIPTS
    };
    let mut wrapper = first_holder(place, death, scripts[round % scripts.len()]);
    let is_free = matches!(death, Death::Deleted | Death::Taken | Death::Silence);
    let mut next = (!is_free && !death.is_at_the_start()).then(|| next_holder(place));
    happens(place, death, wrapper.id(), round);
    let then = clock();
    if death.is_stop() {
        has_run(next.take().unwrap_or_else(|| next_holder(place)));
        judge(place, death);
        signal(wrapper.id(), Sig::Cont);
    }
    let code = wrapper.code();
    let is_right = match death {
        Death::Wrapper | Death::Both => code == 137,
        Death::Guard | Death::GuardAtTheStart => matches!(code, 137 | 143),
        _ => code == 76,
    };
    assert!(is_right, "{death:?}: {code}");
    if death == Death::Silence {
        place.server.resume();
    }
    if !death.is_stop() {
        has_run(next.unwrap_or_else(|| next_holder(place)));
    }
    judge(place, death).map_or(0.0, |last| last - then)
}

/// The longest that a job may live afterwards. Of `Silence` it is the end of the lease, and of the
/// others far more than what it should be (a second and `KILL_AFTER`), and far less than a lease.
fn limit(death: Death) -> f64 {
    match death {
        Death::Silence => death.lease().as_secs_f64(),
        _ => 10.0,
    }
}

#[test]
fn no_process_of_the_job_lives_beside_the_next_holder_whichever_process_dies() {
    let times = std::env::var("RELATCH_DEATHS").map_or(4, |times| times.parse().unwrap());
    let deaths = [
        Death::Wrapper,
        Death::Guard,
        Death::WrapperIsStopped,
        Death::Both,
        Death::GuardAtTheStart,
        Death::WrapperIsStoppedAtTheStart,
        Death::Deleted,
        Death::Taken,
        Death::Silence,
    ];
    // One place for each, since a paused server serves no other.
    thread::scope(|scope| {
        for death in deaths {
            scope.spawn(move || {
                let place = Place::new();
                let mut longest = 0.0_f64;
                // Each silence takes most of a lease.
                let step = if death == Death::Silence { 3 } else { 1 };
                for round in (0..times).step_by(step) {
                    longest = longest.max(dies(&place, death, round));
                    assert!(longest <= limit(death), "{death:?}: {longest} s");
                }
                println!("{death:?}: the job lived {longest:.3} s at most");
            });
        }
    });
}

/// The process that has taken the lock is dead, and its guard still gives the job its time.
#[test]
fn a_waiter_that_reclaims_from_the_dead_does_not_get_the_lock_of_a_job_that_lives() {
    let place = Place::new();
    let options = ["--lease", "3s", "--kill-after", "1s", "k"];
    let mut run = place.start(&options, "job", "trap '' TERM; echo $$ > $1; sleep 60");
    let waiter = LockManager::connect(&place.server.url()).unwrap();
    let lock = waiter.named("k").reclaim_dead(true).wait(LONG);
    assert!(lock.try_lock().unwrap().is_none(), "the run has it");
    run.end("KILL");
    let guard = lock.lock().unwrap();
    assert!(!is_there(place.text("job")), "two at a time");
    assert!(guard.is_valid());
}

/// A guard that is stopped cannot say that the job is over, and is not left so.
#[test]
fn nobody_waits_for_a_guard_that_is_stopped() {
    let place = Place::new();
    let script = "echo >> ready; while test ! -e go; do sleep 0.01; done; exit 3";
    let mut wrapper = place.start(&["k"], "ready", script);
    for _ in 0..3 {
        signal(guard_of(wrapper.id()), Sig::Stop);
    }
    place.write("go", "");
    assert_eq!(wrapper.code(), 3);
}

/// The guard of an inner run is stopped with its job, and is not missing because of that.
#[test]
fn a_job_is_stopped_and_continued_with_its_wrapper() {
    for around in ["", "$R run inner "] {
        let place = Place::new();
        let ticks = "until test -e go; do echo >> ticks; sleep 0.01; done; exit 3";
        let mut wrapper = place.start(&["k"], "ticks", &format!("{around}bash -c '{ticks}'"));
        let length = || place.text("ticks").len();
        let id = wrapper.id();
        send("TSTP", id);
        // It stops itself last. What continued it before that would be lost.
        eventually(LONG, "the wrapper is stopped", || is_stopped(id));
        eventually(LONG, "the job is stopped", || {
            let before = length();
            thread::sleep(Duration::from_millis(50));
            length() == before
        });
        send("CONT", id);
        let before = length();
        // (Its lease is over later than that.)
        eventually(LONG, "the job goes on", || length() > before);
        place.write("go", "");
        assert_eq!(wrapper.code(), 3);
    }
}

/// The guard has a process group of its own, and so is not stopped with the others.
#[test]
fn a_job_that_stays_stopped_is_dead_before_the_next_holder() {
    let place = Place::new();
    let options = [
        "--foreground",
        "--lease",
        "3s",
        "--kill-after",
        "100ms",
        "k",
    ];
    let mut run = place.start(&options, "ready", "echo $$ > $1; sleep 60");
    let group = format!("-{}", run.id());
    send("STOP", &group);
    assert_eq!(place.code(&["run", "k", "true"]), 0);
    assert!(!is_there(place.text("ready")));
    send("CONT", &group);
    assert_eq!(run.code(), 76);
}

/// As in a container with a small `pids.max`. (The limit does not count for root, so this becomes
/// somebody else, which only root can.)
#[test]
fn a_run_that_can_start_few_threads_runs_its_job_or_says_why_not() {
    let place = Place::new();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.file(""), open).unwrap();
    place.copy();
    let user = ["--reuid=54321", "--regid=54321", "--clear-groups"];
    let mut outcomes = BTreeSet::new();
    for most in 1..24 {
        place.forget(&["ran"]);
        let limit = format!("--nproc={most}");
        let run = ["./relatch", "run", "k", "--", "sh", "-c", "echo > ran"];
        let run = [&user[..], &["prlimit", &limit], &run].concat();
        let output = place.program("setpriv", &run).output().unwrap();
        let said = stderr(&output);
        if said.contains("setresuid failed") || said.contains("setgroups failed") {
            return; // This is not root.
        }
        let has_run = place.file("ran").exists();
        let code = output.status.code();
        assert_eq!(code, Some(if has_run { 0 } else { 70 }), "{most}: {said}");
        assert!(has_run || !said.is_empty(), "{most}");
        assert_eq!(place.keys(), 0, "{most}: {said}");
        outcomes.insert(has_run);
    }
    assert_eq!(outcomes.len(), 2, "both happen");
}
