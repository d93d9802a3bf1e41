//! Whatever dies, no process of a job lives while another holder runs. The jobs themselves write
//! into one file, in the order in which it happens, and so decide.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use relatch_rig::{LONG, Sig, eventually, signal};

use crate::support::Place;

/// Eight processes that ignore signals, below a shell that does, too. Each writes a line as long as
/// it lives.
const STUBBORN: &str = "trap '' TERM INT HUP
for i in 1 2 3 4 5 6 7 8; do (trap '' TERM INT HUP; while :; do echo 1 >> $1; sleep 0.01; done) & done
wait";

/// The same, but the first process goes at once when it is asked.
const LEADER_GOES: &str = "
for i in 1 2 3 4; do (trap '' TERM INT HUP; while :; do echo 1 >> $1; sleep 0.01; done) & done
wait";

const NEXT: &str = "for i in $(seq 20); do echo 2 >> $1; sleep 0.01; done";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Wrapper,
    Guard,
    WrapperIsStopped,
    Both,
    Deleted,
    Taken,
    Silence,
}

/// The guard of a run.
fn guard_of(wrapper: u32) -> u32 {
    let wrapper = wrapper.to_string();
    let output = Command::new("pgrep")
        .args(["-P", &wrapper, "-f", "__guard"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("no guard below {wrapper}: {text:?}"))
}

fn lines(place: &Place) -> String {
    fs::read_to_string(place.file("f"))
        .unwrap()
        .replace('\n', "")
}

/// The next holder's job has run, and after its first line nobody else wrote one.
fn judge(place: &Place, death: Death) {
    let lines = lines(place);
    let (_, since) = lines
        .split_once('2')
        .expect("the next holder's job has run");
    assert!(!since.contains('1'), "{death:?}: {lines}");
}

fn next_holder(place: &Place) -> Child {
    place
        .relatch(&["run", "k", "--", "bash", "-c", NEXT, "next", "f"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn dies(place: &Place, death: Death, script: &str) {
    let _ = fs::remove_file(place.file("f"));
    place.server.query::<()>(&["DEL", "lock:k"]);
    let options = ["--lease", "1500ms", "--kill-after", "100ms", "k"];
    let mut wrapper = place.start(&options, "f", script);
    let guard = guard_of(wrapper.id());
    let mut next = None;
    if !matches!(death, Death::Deleted | Death::Taken | Death::Silence) {
        next = Some(next_holder(place));
    }
    thread::sleep(Duration::from_millis(100));
    match death {
        Death::Wrapper => signal(wrapper.id(), Sig::Kill),
        Death::Guard => signal(guard, Sig::Kill),
        Death::WrapperIsStopped => signal(wrapper.id(), Sig::Stop),
        Death::Both => {
            signal(wrapper.id(), Sig::Term);
            signal(guard, Sig::Term);
            // The job does not care, and so goes on. What follows ends it.
            thread::sleep(Duration::from_millis(50));
            signal(wrapper.id(), Sig::Kill);
        }
        Death::Deleted => _ = place.server.query::<u64>(&["DEL", "lock:k"]),
        Death::Taken => place
            .server
            .query::<()>(&["SET", "lock:k", "other", "PX", "500"]),
        Death::Silence => place.server.pause(),
    }
    if death == Death::WrapperIsStopped {
        next.as_mut().unwrap().wait().unwrap();
        judge(place, death);
        signal(wrapper.id(), Sig::Cont);
    }
    let code = wrapper.wait().unwrap().code();
    match death {
        Death::Wrapper | Death::Both => assert_eq!(code, None),
        Death::Guard => assert!(matches!(code, Some(137 | 143)), "{code:?}"),
        _ => assert_eq!(code, Some(76), "{death:?}"),
    }
    if death == Death::Silence {
        place.server.resume();
    }
    let mut next = next.unwrap_or_else(|| next_holder(place));
    assert!(next.wait().unwrap().success());
    judge(place, death);
}

/// One place for each, since a paused server serves no other test.
fn each_dies(times: usize, deaths: &[Death]) {
    thread::scope(|scope| {
        for death in deaths {
            scope.spawn(move || {
                let place = Place::new();
                for round in 0..times {
                    let script = if round % 2 == 0 {
                        STUBBORN
                    } else {
                        LEADER_GOES
                    };
                    dies(&place, *death, script);
                }
            });
        }
    });
}

#[test]
fn a_wrapper_or_a_guard_that_dies_leaves_nobody() {
    each_dies(
        2,
        &[
            Death::Wrapper,
            Death::Guard,
            Death::WrapperIsStopped,
            Death::Both,
        ],
    );
}

#[test]
fn a_lost_lock_leaves_nobody() {
    each_dies(2, &[Death::Deleted, Death::Taken, Death::Silence]);
}

/// `RELATCH_DEATHS` is another number.
#[test]
#[ignore = "takes half an hour; for the day before a release"]
fn three_hundred_times_each() {
    let times = std::env::var("RELATCH_DEATHS").map_or(300, |times| times.parse().unwrap());
    each_dies(
        times,
        &[
            Death::Wrapper,
            Death::Guard,
            Death::WrapperIsStopped,
            Death::Both,
        ],
    );
    each_dies(times, &[Death::Deleted, Death::Taken, Death::Silence]);
}

/// A process that leaves the group dies with it, if the lock is lost.
#[test]
#[cfg(target_os = "linux")]
fn who_leaves_the_group_dies_with_it() {
    let place = Place::new();
    let script =
        "setsid bash -c \"trap '' TERM; while :; do echo 1 >> $1; sleep 0.01; done\" & wait";
    dies(&place, Death::Deleted, script);
    dies(&place, Death::Wrapper, script);
}

/// What a job leaves behind in its group keeps the lock.
#[test]
fn the_lock_is_given_back_when_the_group_is_empty() {
    let place = Place::new();
    let mut run = place.start(&["k"], "f", "(sleep 0.3; echo 1 >> $1) & echo 1 >> $1");
    let mut next = next_holder(&place);
    assert!(run.wait().unwrap().success() && next.wait().unwrap().success());
    let lines = lines(&place);
    assert!(lines.starts_with("112"), "{lines}");
}

#[test]
fn a_job_is_stopped_and_continued_with_its_wrapper() {
    let place = Place::new();
    let script = "while :; do echo 1 >> $1; sleep 0.01; done";
    let mut wrapper = place.start(&["--lease", "1s", "k"], "f", script);
    let to_wrapper = |name: &str| {
        let id = wrapper.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    };
    to_wrapper("-TSTP");
    eventually(LONG, "the job is stopped", || {
        let before = lines(&place).len();
        thread::sleep(Duration::from_millis(50));
        lines(&place).len() == before
    });
    to_wrapper("-CONT");
    let before = lines(&place).len();
    // Either it goes on, or its lease is over on a machine this slow.
    eventually(LONG, "the job goes on", || {
        lines(&place).len() > before || !place.server.exists("lock:k")
    });
    to_wrapper("-TERM");
    let code = wrapper.wait().unwrap().code();
    assert!(matches!(code, Some(143 | 76)), "{code:?}");
}
