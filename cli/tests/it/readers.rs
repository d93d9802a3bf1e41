//! `run --shared` and `run --exclusive`: readers beside each other, or a writer alone.

use std::fs;

use relatch_rig::{LONG, Sig, eventually, signal};

use crate::slots::start_waiting;
use crate::support::{Place, in_shell, stderr, stdout};

const RELATCH: &str = env!("CARGO_BIN_EXE_relatch");

/// A job that goes on.
const RUNS: &str = "echo $RELATCH_KEY > $1; exec sleep 60";

#[test]
fn a_writer_waits_for_readers_and_keeps_new_ones_out() {
    let place = Place::new();
    let reads = ["run", "-n", "--shared", "cache", "true"];
    let writes = ["run", "-n", "--exclusive", "cache", "true"];
    let mut reader = place.start(&["--shared", "cache"], "a", RUNS);
    assert_eq!(place.code(&reads), 0, "beside the other");
    let busy = place.output(&writes);
    assert_eq!(busy.status.code(), Some(75));
    let said = stderr(&busy);
    assert!(
        said.contains("lock \"cache\" (--exclusive) is busy"),
        "{said}"
    );
    assert_eq!(place.code(&reads), 0, "who does not wait keeps nobody out");
    let job = ["-e", "cache", "-c", "echo > b; exec sleep 60"];
    let (mut writer, said) = start_waiting(&place, &job);
    let reader_has_it = format!("-{}-", reader.id());
    assert!(said.contains("lock \"cache\" (--exclusive): "), "{said}");
    assert!(said.contains(&reader_has_it), "{said}");
    assert_eq!(place.code(&reads), 75, "the writer is next");
    assert!(!place.file("b").exists());
    signal(reader.id(), Sig::Term);
    reader.wait().unwrap();
    eventually(LONG, "the writer runs", || place.file("b").exists());
    assert_eq!(place.code(&reads), 75, "the writer is alone");
    assert_eq!(place.code(&writes), 75);
    let (mut reader, said) = start_waiting(&place, &["--shared", "cache", "-c", "echo > c"]);
    assert!(said.contains("lock \"cache\" (--shared): "), "{said}");
    signal(writer.id(), Sig::Term);
    writer.wait().unwrap();
    assert_eq!(in_shell(reader.wait().unwrap()), 0);
    assert!(place.file("c").exists());
    assert_eq!(place.server.query::<u64>(&["DBSIZE"]), 0);
}

#[test]
fn a_writer_may_read_and_a_reader_must_not_write() {
    let place = Place::new();
    let script = format!(
        "{RELATCH} run -n --shared cache -- {RELATCH} run -n --exclusive cache echo deep
        {RELATCH} run -n cache echo another lock
        echo $RELATCH_KEY $RELATCH_FENCE; {RELATCH} confirm cache; echo $?"
    );
    let run = ["run", "--exclusive", "--fence", "cache", "-c"];
    let output = place.output(&[&run[..], &[&script]].concat());
    let said = stdout(&output);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said} {}", stderr(&output));
    assert_eq!(lines[..2], ["deep", "another lock"]);
    assert!(lines[2].starts_with("{cache}#0 1"), "{said}");
    assert_eq!(lines[3], "0");
    let script = format!(
        "{RELATCH} run -n --shared cache echo again
        {RELATCH} run -w 5 --exclusive cache touch wrote; echo $?
        setsid -w {RELATCH} run -n --exclusive cache touch wrote; echo $?"
    );
    let output = place.output(&["run", "--shared", "cache", "-c", &script]);
    // (In another session, a run may wait until this job is over.)
    assert_eq!(stdout(&output), "again\n64\n75\n");
    let said = stderr(&output);
    let why = "a run around this one has lock \"cache\" with --shared or --slots: --exclusive \
               would wait for it for ever";
    assert!(said.contains(why), "{said}");
    assert!(fs::metadata(place.file("wrote")).is_err());
}
