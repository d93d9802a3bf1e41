//! What is said, and to whom nobody listens: no lock, job or signal waits for a reader.

use std::fs;
use std::io::{PipeWriter, Read, Write, pipe, read_to_string};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use relatch_rig::{LONG, Sig, eventually, signal};

use crate::support::{Place, in_shell, json, spawn, stderr};

/// A pipe that is full, and that nobody reads.
fn full_pipe() -> (impl Sized, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(&vec![b'.'; 1 << 16]).unwrap();
    (reader, writer)
}

/// How a job begins that says so.
const SAYS_SO: &str = "echo > f; ";

fn wait_for_job(place: &Place) {
    eventually(LONG, "the job runs", || place.file("f").exists());
    fs::remove_file(place.file("f")).unwrap();
}

#[test]
fn a_run_whose_words_nobody_reads_goes_on_and_ends() {
    let place = Place::new();
    let (_reader, writer) = full_pipe();
    let lost = "redis-cli -u $REDIS_URL del lock:k; sleep 60";
    for (line, is_asked, code) in [
        ("exit 3", false, 3),
        ("exec sleep 60", true, 143),
        (lost, false, 76),
    ] {
        let mut run = place.relatch(&["run", "-v", "k", "-c", &format!("{SAYS_SO}{line}")]);
        let mut run = spawn(run.stderr(writer.try_clone().unwrap()));
        wait_for_job(&place);
        if is_asked {
            signal(run.id(), Sig::Term);
        }
        assert_eq!(in_shell(run.wait().unwrap()), code, "{line}");
    }
}

#[test]
fn a_wait_whose_words_nobody_reads_ends() {
    let place = Place::new();
    let mut holder = place.start(&["k"], "holds", "echo > $1; exec sleep 60");
    let (_reader, writer) = full_pipe();
    let mut run = place.relatch(&["run", "-v", "-w", "1s", "k", "true"]);
    let mut run = spawn(run.stderr(writer));
    assert_eq!(in_shell(run.wait().unwrap()), 75);
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
}

/// As a supervisor would, whose log stands still.
#[test]
fn a_wrong_command_line_ends_though_nobody_reads_why() {
    let place = Place::new();
    let (_reader, writer) = full_pipe();
    for line in [&["run", "--bogus"][..], &["run", "-w", "abc", "x", "true"]] {
        let mut run = place.relatch(line);
        let mut run = spawn(run.stderr(writer.try_clone().unwrap()));
        assert_eq!(in_shell(run.wait().unwrap()), 64, "{line:?}");
    }
}

/// The code is the job's, and what is wrong with the report is said.
#[test]
fn a_report_that_cannot_be_written_is_told_and_changes_nothing() {
    let place = Place::new();
    let made = Command::new("mkfifo").arg(place.file("fifo")).status();
    assert!(made.unwrap().success());
    let (_reader, writer) = full_pipe();
    for (to, why) in [
        ("fifo", "nobody has read it"),
        ("fd:1", "nobody has read it"),
        ("/dev/full", "No space left"),
        ("no/such/folder", "No such file"),
    ] {
        let mut run = place.relatch(&["run", "--report", to, "k", "-c", "exit 3"]);
        run.stdout(writer.try_clone().unwrap());
        let mut run = spawn(run.stderr(Stdio::piped()));
        assert_eq!(in_shell(run.wait().unwrap()), 3, "{to}");
        let said = read_to_string(run.stderr.as_mut().unwrap()).unwrap();
        let expected = format!("the report cannot be written to {to}: {why}");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn a_full_disk_for_what_is_said_changes_nothing() {
    let place = Place::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mut run = place.relatch(&["run", "-v", "k", "-c", "exit 3"]);
    assert_eq!(in_shell(run.stderr(full()).status().unwrap()), 3);
}

/// As below systemd, where it is a socket that cannot be opened anew.
#[test]
fn a_report_goes_to_a_descriptor_that_cannot_be_opened() {
    let place = Place::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut run = place.relatch(&["run", "--report", "fd:1", "k", "true"]);
    let mut run = spawn(run.stdout(OwnedFd::from(theirs)));
    assert_eq!(in_shell(run.wait().unwrap()), 0);
    ours.set_nonblocking(true).unwrap(); // It has been written.
    let mut text = [0; 4096];
    let length = ours.read(&mut text).unwrap();
    let report = json(str::from_utf8(&text[..length]).unwrap());
    assert_eq!(report["outcome"], "ended");
}

#[test]
fn a_descriptor_that_is_not_open_is_an_error_before_the_job() {
    let place = Place::new();
    for (to, why) in [
        ("fd:99", "this descriptor is not open"),
        ("fd:x", "no number of a descriptor"),
    ] {
        let output = place.output(&["run", "--report", to, "k", "-c", SAYS_SO]);
        assert_eq!(output.status.code(), Some(64));
        let said = stderr(&output);
        assert!(said.contains(&format!("--report {to}: {why}")), "{said}");
        assert!(!place.file("f").exists());
    }
}

/// Below `ulimit -f`, the report is told, and the job gets `SIGXFSZ` as it would without us.
#[test]
fn a_file_that_may_not_grow_ends_the_job_and_not_the_run() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let below_limit = |run: &str| {
        let line = format!("ulimit -f 0; exec {relatch} run {run}");
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", &line]).current_dir(place.file(""));
        let output = shell.env("REDIS_URL", place.server.url()).output().unwrap();
        (in_shell(output.status), stderr(&output))
    };
    for (job, code) in [("exit 3", 3), ("ulimit -c 0; echo > f", 153)] {
        let (seen, said) = below_limit(&format!("--report report k -c '{job}'"));
        assert_eq!(seen, code, "{said}");
        assert!(said.contains("report: File too large"), "{said}");
    }
    assert_eq!(below_limit("-v k -c 'exit 3' 2>said").0, 3);
}

/// With `-v` at once, else after 5 s, and with `-q` or `-x` not at all.
#[test]
fn a_wait_says_who_has_the_lock() {
    let place = Place::new();
    let mut holder = place.start(&["k"], "holds", "echo > $1; exec sleep 60");
    let start = |option: &[&str]| {
        let mut run = place.relatch(&[&["run"], option, &["k", "true"]].concat());
        spawn(run.stderr(Stdio::piped()))
    };
    // They would speak before the others do.
    let silent = [start(&["-q"]), start(&["-x"])];
    eventually(LONG, "both wait", || place.server.listeners().len() > 2);
    for (option, is_soon) in [(&["-v"][..], true), (&[], false)] {
        let began = Instant::now();
        let mut run = start(option);
        let mut text = [0; 22];
        run.stderr.as_mut().unwrap().read_exact(&mut text).unwrap();
        assert_eq!(&text, b"relatch: waiting for l");
        assert_eq!(began.elapsed() < Duration::from_secs(5), is_soon);
        signal(run.id(), Sig::Term);
        run.wait().unwrap();
    }
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
    for mut run in silent {
        assert_eq!(in_shell(run.wait().unwrap()), 0);
        let said = read_to_string(run.stderr.as_mut().unwrap()).unwrap();
        assert_eq!(said, "");
    }
}
