//! Who is of a job: until when the lock is kept, who gets its signals, and who is left alone.

use std::fs;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use relatch_rig::{LONG, Sig, eventually, now, signal};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

use crate::deaths::{guard_of, is_stopped, is_there};
use crate::support::{Place, Running, in_shell, spawn, stderr, stdout};

fn text(place: &Place, file: &str) -> String {
    fs::read_to_string(place.file(file)).unwrap_or_default()
}

/// The first process of the job ends at once. Another writes "1" a moment later, and the lock is
/// kept until then: whatever process group it is in, and with `--foreground`, too.
#[test]
fn the_lock_is_kept_as_long_as_a_process_of_the_session_lives() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let later = "sh -c 'sleep 0.5; echo 1 >> f'";
    let own_group = format!("set -m; {later} & echo 1 >> f");
    let timeout = format!("timeout 60 {later} & echo 1 >> f");
    let inner = format!("{relatch} run inner {later} & echo 1 >> f");
    let plain = format!("{later} & echo 1 >> f");
    for (options, line) in [
        (&[][..], &plain),
        (&["--foreground"], &plain),
        (&[], &own_group),
        (&["--foreground"], &own_group),
        (&[], &timeout),
        (&[], &inner),
    ] {
        let _ = fs::remove_file(place.file("f"));
        let mut run = vec!["run"];
        run.extend(options);
        run.extend(["k", "--", "bash", "-c", line]);
        assert_eq!(place.code(&run), 0);
        assert_eq!(place.code(&["run", "-n", "k", "true"]), 0, "it is free");
        assert_eq!(text(&place, "f"), "1\n1\n", "{line}");
    }
}

/// A process whose first thread has ended looks like a zombie to others.
#[test]
fn a_process_without_its_first_thread_keeps_the_lock() {
    let place = Place::new();
    fs::write(
        place.file("threads.c"),
        "#include <pthread.h>\n#include <stdio.h>\n#include <unistd.h>\n\
         static void *later(void *file) { usleep(700000); fputs(\"1\\n\", file); fclose(file); _exit(0); }\n\
         int main(void) { pthread_t thread; FILE *file = fopen(\"f\", \"a\"); setpgid(0, 0);\n\
         pthread_create(&thread, 0, later, file); pthread_exit(0); }\n",
    )
    .unwrap();
    let compiled = Command::new("cc")
        .args(["-pthread", "-o"])
        .args([place.file("threads"), place.file("threads.c")])
        .status();
    assert!(compiled.unwrap().success());
    // A daemon makes sure that somebody has to look.
    let line = "setsid sleep 60 & echo $! > daemon; (./threads &) ; exit 0";
    assert_eq!(place.code(&["run", "k", "-c", line]), 0);
    assert_eq!(text(&place, "f"), "1\n");
    kill(&text(&place, "daemon"));
}

/// Ends a process that was to be left alone.
fn kill(id: &str) {
    assert!(is_there(id), "{id:?}");
    let killed = Command::new("kill").args(["-9", id.trim()]).status();
    assert!(killed.unwrap().success());
}

#[test]
fn a_daemon_does_not_keep_the_lock_and_outlives_the_job() {
    let place = Place::new();
    let line = "setsid sleep 60 & echo $! > daemon; sleep 0.1";
    for options in [&[][..], &["--foreground"]] {
        let mut run = vec!["run"];
        run.extend(options);
        run.extend(["k", "-c", line]);
        assert_eq!(place.code(&run), 0);
        assert_eq!(place.code(&["run", "-n", "k", "true"]), 0, "it is free");
        kill(&text(&place, "daemon"));
    }
    // It is not out of time with the job. (Its parent ends by itself.)
    let line = "(setsid sleep 60 & echo $! > daemon); sleep 60";
    let run = ["run", "--max-hold", "300ms", "k", "-c", line];
    assert_eq!(place.code(&run), 124);
    kill(&text(&place, "daemon"));
}

/// Nor is it of the job that the inner run is in, though that run's guard has adopted it.
#[test]
fn a_daemon_of_a_run_inside_does_not_keep_the_lock_of_the_outer_one() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let daemon = "setsid bash -c \"echo \\$\\$ > daemon; exec sleep 60\"";
    let wait = "until test -s daemon; do sleep 0.01; done";
    let job = format!("({daemon} &); {wait}; echo > ready; sleep 60");
    let script = format!("exec {relatch} run inner bash -c '{job}'");
    let mut run = place.start(&["k"], "ready", &script);
    signal(run.id(), Sig::Term);
    assert_eq!(in_shell(run.wait().unwrap()), 143);
    kill(&text(&place, "daemon"));
}

/// Without a group of its own, it can do so without a child.
#[test]
fn the_first_process_is_the_job_also_in_a_session_of_its_own() {
    let place = Place::new();
    let job = ["setsid", "bash", "-c", "echo $$ > leader; exec sleep 60"];
    let mut options = vec!["run", "--foreground", "--max-hold", "3s"];
    options.extend(["--kill-after", "500ms", "k"]);
    options.extend(job);
    assert_eq!(place.code(&options), 124);
    let leader = text(&place, "leader");
    assert!(!leader.is_empty(), "it did not begin within 3 s");
    assert!(!is_there(&leader), "it lives, and the lock is free");
    fs::remove_file(place.file("leader")).unwrap();
    let mut run = vec!["run", "--foreground", "k"];
    run.extend(job);
    let mut run = spawn(&mut place.relatch(&run));
    eventually(LONG, "the job runs", || !text(&place, "leader").is_empty());
    signal(run.id(), Sig::Term);
    assert_eq!(run.wait().unwrap().signal(), Some(15));
}

/// Each of them writes what it gets: the first process, one in its group, and one that has a group
/// of its own.
const RECIPIENTS: &str = "
each() { trap \"echo $1 >> got; exit\" TERM INT; echo >> ready; while :; do sleep 0.01; done; }
(each member) & set -m; (each other) & set +m; each leader";

#[test]
fn a_signal_reaches_all_of_the_job() {
    let place = Place::new();
    for (options, name) in [
        (&["k"][..], "-TERM"),
        (&["--foreground", "k"], "-TERM"),
        (&["k"], "-INT"),
        // Without a terminal, nobody else sends it to the job.
        (&["--foreground", "k"], "-INT"),
    ] {
        for file in ["got", "ready"] {
            let _ = fs::remove_file(place.file(file));
        }
        let mut run = place.start(options, "ready", RECIPIENTS);
        eventually(LONG, "all are ready", || text(&place, "ready").len() == 3);
        let id = run.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(sent.unwrap().success());
        run.wait().unwrap();
        for who in ["member", "other", "leader"] {
            assert!(text(&place, "got").contains(who), "{who}");
        }
    }
}

/// The first process has ended, and was waited for. So its number may be another's, and what is
/// left of the job gets the signal.
#[test]
fn a_signal_reaches_what_is_left_of_the_job() {
    let place = Place::new();
    let script =
        "(trap 'echo got >> got; exit' TERM; echo >> ready; while :; do sleep 0.01; done) &";
    for options in [&["k"][..], &["--foreground", "k"]] {
        for file in ["got", "ready"] {
            let _ = fs::remove_file(place.file(file));
        }
        let mut run = place.start(options, "ready", script);
        signal(run.id(), Sig::Term);
        assert_eq!(run.wait().unwrap().code(), Some(0), "the first process's");
        assert_eq!(text(&place, "got"), "got\n");
    }
}

/// A job that is stopped would not see that it is to end.
#[test]
fn a_job_that_is_stopped_can_be_ended() {
    let place = Place::new();
    let script = "trap 'echo got > got; exit 3' TERM; echo $$ > $1; kill -STOP $$; sleep 60";
    let mut run = place.start(&["k"], "ready", script);
    let job = text(&place, "ready");
    eventually(LONG, "the job is stopped", || is_stopped(&job));
    signal(run.id(), Sig::Term);
    assert_eq!(run.wait().unwrap().code(), Some(3));
    assert_eq!(text(&place, "got"), "got\n");
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
        signal(run.id(), Sig::Term);
        if round % 2 == 1 {
            signal(guard, Sig::Term);
        }
        assert_eq!(run.wait().unwrap().signal(), Some(15), "{round}");
    }
}

/// A line of bash, in whose place `relatch` comes.
pub(crate) fn instead_of_bash(place: &Place, line: &str) -> Command {
    let relatch = place.relatch(&[]);
    let named = relatch.get_envs();
    let mut bash = Command::new("bash");
    bash.args(["-c", line])
        .envs(named.filter_map(|(name, value)| Some((name, value?))))
        .current_dir(place.file(""))
        .stderr(Stdio::null());
    bash
}

/// A shell had a child when `relatch run` was executed in its place.
#[test]
fn who_was_there_before_is_left_alone() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let line = format!(
        "sleep 60 & echo $! > before; exec {relatch} run k -- bash -c 'echo >> ready; sleep 60'"
    );
    let mut bash = spawn(&mut instead_of_bash(&place, &line));
    eventually(LONG, "the job runs", || !text(&place, "ready").is_empty());
    let before = text(&place, "before").trim().to_owned();
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", bash.id())).unwrap();
    let guard = children.split_whitespace().find(|id| **id != before);
    signal(guard.unwrap().parse().unwrap(), Sig::Kill);
    // (137 if the guard was killed before it could say which process is the job's first.)
    let code = in_shell(bash.wait().unwrap());
    assert!(matches!(code, 137 | 143), "{code}");
    kill(&before);
}

/// What such a child leaves behind comes to this program, and is none of the job's.
#[test]
fn what_others_leave_behind_is_left_alone() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let wait_for = |file: &str| format!("until test -s {file}; do sleep 0.01; done");
    let job = format!("trap 'exit 3' TERM; echo >> ready; {}", wait_for("end"));
    let before = format!("({}; sleep 60 & echo $! > agent)", wait_for("ready"));
    let line = format!("{before} & exec {relatch} run k -- bash -c \"{job}\"");
    for is_asked in [false, true] {
        for file in ["ready", "agent", "end"] {
            let _ = fs::remove_file(place.file(file));
        }
        let mut bash = spawn(&mut instead_of_bash(&place, &line));
        eventually(LONG, "the agent runs", || !text(&place, "agent").is_empty());
        if is_asked {
            signal(bash.id(), Sig::Term);
        } else {
            fs::write(place.file("end"), "1").unwrap();
        }
        let code = bash.wait().unwrap().code();
        assert_eq!(code, Some(if is_asked { 3 } else { 0 }));
        kill(&text(&place, "agent"));
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
        for file in ["ready", "end", "go", "f"] {
            let _ = fs::remove_file(place.file(file));
        }
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
        fs::write(place.file("end"), "").unwrap();
        assert_eq!(place.code(&["run", "-w", "1s", "k", "true"]), 75);
        fs::write(place.file("go"), "").unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(0));
        assert_eq!(text(&place, "f"), "1\n");
    }
}

/// The guard as the wrapper starts it, with these words and this job.
struct Guard {
    child: Running,
    socket: UnixStream,
    folder: TempDir,
}

fn guard(until: Duration, script: &str) -> Guard {
    let (socket, theirs) = UnixStream::pair().unwrap();
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_relatch"));
    command
        .args(["__guard", "15", "100", &until.as_millis().to_string(), "0"])
        .args(["bash", "-c", script])
        .stdin(OwnedFd::from(theirs))
        .current_dir(folder.path());
    let child = spawn(&mut command);
    drop(command); // It has the guard's end of the socket.
    let input = fs::File::open("/dev/null").unwrap();
    let descriptors = [input.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let one = [IoSlice::new(b"i")];
    sendmsg(&socket, &one, &mut control, SendFlags::empty()).unwrap();
    Guard {
        child,
        socket,
        folder,
    }
}

/// The wrapper may be stopped before it has said a word.
#[test]
fn a_guard_knows_from_the_beginning_until_when_the_lock_is_good() {
    let mut late = guard(Duration::from_millis(1), "echo > f");
    late.child.wait().unwrap();
    assert!(!late.folder.path().join("f").exists(), "it was not started");
    let mut said = Vec::new();
    late.socket.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"l\0\0\0\0");
    let script = "trap '' TERM; (setsid sleep 60 & echo $! > daemon); sleep 60";
    let mut stuck = guard(now() + Duration::from_secs(1), script);
    stuck.child.wait().unwrap(); // It ends, so nobody is left.
    let daemon = fs::read_to_string(stuck.folder.path().join("daemon")).unwrap();
    assert!(!is_there(daemon.trim()));
}

/// With a wrapper that ends, all ends: no process is left.
#[test]
fn a_guard_without_a_wrapper_ends_the_job() {
    let script = "trap '' TERM; set -m; (setsid sleep 60 & echo $! > daemon); sleep 60 & wait";
    let mut alone = guard(now() + Duration::from_secs(3600), script);
    eventually(LONG, "the job runs", || {
        fs::read(alone.folder.path().join("daemon")).is_ok_and(|text| !text.is_empty())
    });
    drop(alone.socket);
    alone.child.wait().unwrap();
    let daemon = fs::read_to_string(alone.folder.path().join("daemon")).unwrap();
    assert!(!is_there(daemon.trim()));
}

/// As process 1 of a container: it waits for orphans that are none of its job, and passes signals
/// on. With the `/proc` of outside, the numbers there are not its own.
#[test]
fn a_run_may_be_the_first_process_of_a_container() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "true"]);
    if !unshare.status().unwrap().success() {
        return; // Some systems let only root make one.
    }
    let contained = |options: &[&str], line: &str| {
        let run = place.relatch(&[]);
        let mut command = Command::new("unshare");
        let named = run
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        command
            .args(["--user", "--map-root-user", "--pid", "--fork"])
            .args(options);
        command
            .args([relatch, "run", "-n", "k", "-c", line])
            .envs(named);
        let command = command.current_dir(place.file("")).stdin(Stdio::null());
        command.status().unwrap().code()
    };
    let line = "(setsid sleep 60 &); (sleep 0.3; echo 1 >> f) & exit 3";
    for options in [&["--mount-proc"][..], &[]] {
        let _ = fs::remove_file(place.file("f"));
        assert_eq!(contained(options, line), Some(3), "{options:?}");
        assert_eq!(text(&place, "f"), "1\n", "{options:?}");
        assert_eq!(contained(options, "kill -9 $$"), Some(128 + 9));
    }
}

/// `SIGCHLD` that is ignored by inheritance makes children vanish without a word.
#[test]
fn the_exit_code_passes_where_nobody_hears_of_children() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let inner = format!("exec env --ignore-signal=CHLD {relatch} run k -c 'exit 3'");
    let output = place.output(&["run", "outer", "-c", &inner]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}
