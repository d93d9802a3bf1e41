//! Who is of a job: until when the lock is kept, who gets its signals, and who is left alone.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use relatch_rig::{LONG, eventually};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::deaths::guard_of;
use crate::support::{Place, RELATCH, is_stopped, is_there, send, spawn};

/// The first process of the job ends at once. Another writes "1" a moment later, and the lock is
/// kept until then: whatever process group it is in, and with `--foreground`, too.
#[test]
fn the_lock_is_kept_as_long_as_a_process_of_the_session_lives() {
    let place = Place::new();
    let later = "sh -c 'sleep 0.5; echo 1 >> f'";
    for around in ["", "set -m; ", "timeout 60 ", "$R run inner "] {
        for options in [&["k"][..], &["--foreground", "k"]] {
            place.forget(&["f"]);
            let line = format!("{around}{later} & echo 1 >> f");
            let run = [&["run"], options, &["--", "bash", "-c", &line]].concat();
            assert_eq!(place.code(&run), 0);
            assert_eq!(place.text("f"), "1\n1\n", "{around} {options:?}");
            assert_eq!(place.keys(), 0, "it is free");
        }
    }
}

/// A process whose first thread has ended looks like a zombie to others.
#[test]
fn a_process_without_its_first_thread_keeps_the_lock() {
    let place = Place::new();
    place.write(
        "threads.c",
        "#include <pthread.h>\n#include <stdio.h>\n#include <unistd.h>\n\
         static void *later(void *file) { usleep(700000); fputs(\"1\\n\", file); fclose(file); _exit(0); }\n\
         int main(void) { pthread_t thread; FILE *file = fopen(\"f\", \"a\"); setpgid(0, 0);\n\
         pthread_create(&thread, 0, later, file); pthread_exit(0); }\n",
    );
    let compile = ["-pthread", "-o", "threads", "threads.c"];
    assert!(place.program("cc", &compile).status().unwrap().success());
    // A daemon makes sure that somebody has to look.
    let line = "setsid sleep 60 & echo $! > daemon; (./threads &) ; exit 0";
    assert_eq!(place.code(&["run", "k", "-c", line]), 0);
    assert_eq!(place.text("f"), "1\n");
    was_left_alone(&place, "daemon");
}

/// Ends the process that a file names.
fn was_left_alone(place: &Place, file: &str) {
    let id = place.text(file);
    assert!(is_there(&id), "{file}: {id:?}");
    send("KILL", id);
}

/// A daemon, which says that it is one.
pub(crate) const DAEMON: &str = "setsid bash -c 'echo $$ > daemon; exec sleep 60'";

/// Waits for it.
pub(crate) const UNTIL: &str = "until test -s daemon; do sleep 0.01; done";

#[test]
fn a_daemon_does_not_keep_the_lock_and_outlives_the_job() {
    let place = Place::new();
    for (code, options, then) in [
        (0, &["k"][..], "true"),
        (0, &["--foreground", "k"], "true"),
        // It is not out of time with the job. (Its parent ends by itself.)
        (124, &["--max-hold", "5s", "k"], "exec sleep 60"),
    ] {
        place.forget(&["daemon"]);
        let line = format!("({DAEMON} &); {UNTIL}; {then}");
        let run = [&["run"], options, &["--", "bash", "-c", &line]].concat();
        assert_eq!(place.code(&run), code);
        assert_eq!(place.keys(), 0, "it is free");
        was_left_alone(&place, "daemon");
    }
    // Nor is it of the job that the inner run is in, though that run's guard has adopted it.
    place.forget(&["daemon"]);
    let job = format!("({DAEMON} &); {UNTIL}; echo > ready; sleep 60");
    place.write("job", &job);
    let mut run = place.start(&["k"], "ready", "exec $R run inner bash job");
    assert_eq!(run.end("TERM"), 143);
    was_left_alone(&place, "daemon");
}

/// A window is resized, and the job stopped and continued, while the script that started it lives.
#[test]
fn a_daemon_stays_one_whatever_signals_came_before_its_parent_ended() {
    let place = Place::new();
    let end = "until test -e end; do sleep 0.05; done";
    let script = format!("{DAEMON} & {UNTIL}; echo > ready; {end}");
    let mut run = place.start(&["k"], "ready", &script);
    for name in ["WINCH", "CONT"] {
        send(name, run.id());
    }
    std::thread::sleep(Duration::from_millis(300)); // Too short a time can only make this green.
    place.write("end", "");
    run.code();
    was_left_alone(&place, "daemon");
}

/// As `setsid -w` and Python's `start_new_session` do.
#[test]
fn what_the_job_waits_for_in_another_session_is_of_the_job() {
    let place = Place::new();
    let child = "trap 'echo asked >> got' TERM; echo $$ > ready
        until test -e end || test ! -e ready; do sleep 0.01; done";
    let mut run = place.relatch(&["run", "k", "sh", "-c", "setsid -w bash -c \"$0\"; :", child]);
    let mut run = spawn(&mut run);
    place.wait_for("ready");
    send("TERM", run.id());
    eventually(LONG, "it comes", || place.text("got") == "asked\n");
    let wait = ["run", "-w", "1s", "k", "true"];
    assert_eq!(place.code(&wait), 75, "it goes on");
    place.write("end", "");
    assert_eq!(run.wait().unwrap().signal(), Some(15));
    assert_eq!(place.keys(), 0);
}

/// Without a group of its own, it can do so without a child.
#[test]
fn the_first_process_is_the_job_also_in_a_session_of_its_own() {
    let place = Place::new();
    let job = [
        "k",
        "setsid",
        "bash",
        "-c",
        "echo $$ > leader; exec sleep 60",
    ];
    let limits = ["--max-hold", "5s", "--kill-after", "500ms"];
    let limited = [&["run", "--foreground"], &limits[..], &job].concat();
    assert_eq!(place.code(&limited), 124);
    let leader = place.text("leader");
    assert!(!leader.is_empty(), "it did not begin within 5 s");
    assert!(!is_there(leader), "it lives, and the lock is free");
    place.forget(&["leader"]);
    let mut run = spawn(&mut place.relatch(&[&["run", "--foreground"], &job[..]].concat()));
    place.wait_for("leader");
    assert_eq!(run.end("TERM"), 143);
}

/// Each of them writes what it gets: the first process, one in its group, and one that has a group
/// of its own.
const RECIPIENTS: &str = "
each() { trap \"echo $1 >> got; exit\" TERM INT; echo >> ready; while :; do sleep 0.01; done; }
(each member) & set -m; (each other) & set +m; each leader";

/// The first process has ended, and was waited for. So its number may be another's.
const LEFT: &str =
    "(trap 'echo left >> got; exit' TERM; echo >> ready; while :; do sleep 0.01; done) &";

#[test]
fn a_signal_reaches_all_of_the_job_and_what_is_left_of_it() {
    let place = Place::new();
    let all = &["member", "other", "leader"][..];
    for run in [&["run"][..], &["run", "--foreground"]] {
        for (script, name, recipients) in [
            (RECIPIENTS, "TERM", all),
            // Without a terminal, nobody else sends it to the job.
            (RECIPIENTS, "INT", all),
            (LEFT, "TERM", &["left"]),
        ] {
            place.forget(&["got", "ready"]);
            let job = ["k", "bash", "-c", script];
            let mut run = spawn(&mut place.relatch(&[run, &job].concat()));
            let count = recipients.len();
            eventually(LONG, "all are ready", || place.text("ready").len() == count);
            run.end(name);
            let got = place.text("got");
            assert!(recipients.iter().all(|it| got.contains(it)), "{got}");
        }
    }
}

/// A job that is stopped has to go on, or it would not see that it is to end.
#[test]
fn a_job_that_is_stopped_hears_of_its_end() {
    let place = Place::new();
    let script = "trap 'echo got > got; exit 3' TERM; echo $$ > $1; kill -STOP $$; sleep 60";
    for (name, guard_dies) in [("TERM", false), ("KILL", true), ("KILL", false)] {
        place.forget(&["got"]);
        let mut run = place.start(&["--kill-after", "10s", "k"], "ready", script);
        let guard = guard_of(run.id());
        let job = place.text("ready");
        eventually(LONG, "the job is stopped", || is_stopped(&job));
        send(name, if guard_dies { guard } else { run.id() });
        let code = run.code();
        assert!(code == 3 || name == "KILL", "{code}");
        eventually(LONG, "the job is over", || !is_there(guard));
        assert_eq!(place.text("got"), "got\n", "{name} {guard_dies}");
    }
}

/// A signal that comes while the job is being started waits for it. Sent to all of a service, it
/// may end the guard before that.
#[test]
fn no_signal_is_lost_at_the_start() {
    let place = Place::new();
    for round in 0..40 {
        let mut run = spawn(&mut place.relatch(&["run", "k", "sleep", "60"]));
        let guard = guard_of(run.id());
        std::thread::sleep(Duration::from_micros(round / 2 * 300));
        relatch_rig::signal(run.id(), relatch_rig::Sig::Term);
        if round % 2 == 1 {
            relatch_rig::signal(guard, relatch_rig::Sig::Term);
        }
        assert_eq!(run.wait().unwrap().signal(), Some(15), "{round}");
    }
}

/// A shell had a child when `relatch run` was executed in its place.
#[test]
fn who_was_there_before_is_left_alone() {
    let place = Place::new();
    let line = "sleep 60 & echo $! > before; exec $R run k -- bash -c 'echo >> ready; sleep 60'";
    let mut bash = spawn(&mut place.bash(line));
    place.wait_for("ready");
    let before = place.text("before").trim().to_owned();
    let children = format!("/proc/{0}/task/{0}/children", bash.id());
    let children = std::fs::read_to_string(children).unwrap();
    let guard = children.split_whitespace().find(|id| **id != before);
    send("KILL", guard.unwrap());
    // (137 if the guard was killed before it could say which process is the job's first.)
    let code = bash.code();
    assert!(matches!(code, 137 | 143), "{code}");
    was_left_alone(&place, "before");
}

/// What such a child leaves behind comes to this program, and is none of the job's.
#[test]
fn what_others_leave_behind_is_left_alone() {
    let place = Place::new();
    let wait_for = |file: &str| format!("until test -s {file}; do sleep 0.01; done");
    let job = format!("trap 'exit 3' TERM; echo >> ready; {}", wait_for("end"));
    let before = format!("({}; sleep 60 & echo $! > agent)", wait_for("ready"));
    let line = format!("{before} & exec $R run k -- bash -c \"{job}\"");
    for is_asked in [false, true] {
        place.forget(&["ready", "agent", "end"]);
        let mut bash = spawn(&mut place.bash(&line));
        place.wait_for("agent");
        if is_asked {
            assert_eq!(bash.end("TERM"), 3);
        } else {
            place.write("end", "1");
            assert_eq!(bash.code(), 0);
        }
        was_left_alone(&place, "agent");
    }
}

/// A look at `/proc` that fails, as a whole or for each process, has not seen that nobody is left.
#[test]
fn a_guard_that_cannot_look_keeps_the_lock() {
    let place = Place::new();
    let script = "set -m; echo >> ready
        sh -c 'until test -e go || test ! -e ready; do sleep 0.01; done; echo 1 >> f' &
        until test -e end; do sleep 0.01; done";
    for free in [0, 1] {
        place.forget(&["end", "go", "f"]);
        let mut run = place.start(&["k"], "ready", script);
        let guard = guard_of(run.id());
        let is_free = |number: &u64| !Path::new(&format!("/proc/{guard}/fd/{number}")).exists();
        let most = Some((0..100).find(is_free).unwrap() + free);
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        let guard = Pid::from_raw(guard.try_into().unwrap());
        prlimit(guard, Resource::Nofile, limit).unwrap();
        place.write("end", "");
        assert_eq!(place.code(&["run", "-w", "1s", "k", "true"]), 75);
        place.write("go", "");
        assert_eq!(run.code(), 0);
        assert_eq!(place.text("f"), "1\n");
    }
}

/// As process 1 of a container: it waits for orphans that are none of its job, and passes signals
/// on. With the `/proc` of outside, the numbers there are not its own.
#[test]
fn a_run_may_be_the_first_process_of_a_container() {
    let place = Place::new();
    let contain = ["--user", "--map-root-user", "--pid", "--fork"];
    let mut unshare = Command::new("unshare");
    if !unshare
        .args(contain)
        .arg("true")
        .status()
        .unwrap()
        .success()
    {
        return; // Some systems let only root make one.
    }
    let line = "(setsid sleep 60 &); (sleep 0.3; echo 1 >> f) & exit 3";
    for option in ["--mount-proc", "--"] {
        let contained = |line: &str| {
            let run = [option, RELATCH, "run", "-n", "k", "-c", line];
            let mut run = place.program("unshare", &[&contain[..], &run].concat());
            spawn(&mut run).code()
        };
        place.forget(&["f"]);
        assert_eq!(contained(line), 3, "{option}");
        assert_eq!(place.text("f"), "1\n", "{option}");
        assert_eq!(contained("kill -9 $$"), 128 + 9);
    }
}
