//! `run --slots`: at most so many jobs at a time. `run --shared` and `run --exclusive`: readers
//! beside each other, or a writer alone.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use relatch_rig::{LONG, eventually};

use crate::support::{Place, Running, json, spawn, stderr, stdout};

/// A job that says which slot it has, and goes on.
const SAYS_SLOT: &str = "echo $RELATCH_SLOT $RELATCH_KEY > $1; exec sleep 60";

fn start(place: &Place, name: &str) -> Running {
    place.start(&["--slots", "2", "mail"], name, SAYS_SLOT)
}

/// Starts a run, and returns what it says when it waits.
fn waits(place: &Place, arguments: &[&str]) -> (Running, String) {
    let mut run = place.relatch(&[&["run", "-v"], arguments].concat());
    let mut run = spawn(run.stderr(Stdio::piped()));
    let mut said = BufReader::new(run.stderr.as_mut().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for"), "{line}");
    (run, line)
}

#[test]
fn a_third_job_waits_for_one_of_two_slots() {
    let place = Place::new();
    let mut first = start(&place, "a");
    let mut second = start(&place, "b");
    assert_eq!(place.text("a"), "1 {mail}#1\n");
    assert_eq!(place.text("b"), "2 {mail}#2\n");
    let busy = place.output(&["run", "-n", "--slots", "2", "mail", "true"]);
    assert_eq!(busy.status.code(), Some(75));
    let said = stderr(&busy);
    assert!(said.contains("lock \"mail\" (--slots 2) is busy"), "{said}");
    assert!(said.contains("has a slot"), "{said}");
    let job = ["--slots", "2", "mail", "-c", "echo $RELATCH_SLOT > c"];
    let (mut third, said) = waits(&place, &job);
    assert!(said.contains("for lock \"mail\" (--slots 2): "), "{said}");
    assert!(!place.file("c").exists());
    second.end("TERM");
    assert_eq!(third.code(), 0);
    assert_eq!(place.text("c"), "2\n");
    // The number is each run's own, and the plain lock is another one.
    let more = ["run", "-n", "--slots", "3", "mail", "true"];
    assert_eq!(place.code(&more), 0);
    assert_eq!(place.code(&["run", "-n", "mail", "true"]), 0);
    first.end("TERM");
    assert_eq!(place.keys(), 0);
}

#[test]
fn a_job_confirms_its_slot_and_a_run_inside_enters_it() {
    let place = Place::new();
    let _first = start(&place, "a");
    let script = "$R confirm && $R confirm mail && $R confirm $RELATCH_KEY; echo $?
        $R run -n --slots 2 mail -c 'echo in $RELATCH_SLOT $RELATCH_KEY'
        $R run -n $RELATCH_KEY -c 'echo by key'
        $R run -n --slots 1 mail true; echo another $?
        $R run -n --no-reentry --slots 2 mail true; echo no reentry $?
        $R run -n --exclusive mail true; echo writer $?
        $R run other -c 'echo \"of other: $RELATCH_SLOT\"'
        redis-cli -u $REDIS_URL del 'lock:{mail}#2' >/dev/null; $R confirm mail; echo lost $?
        $R run -n --slots 2 mail true; echo not anew $?";
    let output = place.job(&["--on-lost", "warn", "--slots", "2", "mail"], script);
    let expected = "0\nin 2 {mail}#2\nby key\nanother 75\nno reentry 75\nwriter 64\nof other: \n\
                    lost 76\nnot anew 76\n";
    let said = stderr(&output);
    assert_eq!(stdout(&output), expected, "{said}");
    assert_eq!(output.status.code(), Some(76));
    let lost = "lock \"{mail}#2\" is no longer held by this job";
    assert!(said.contains(lost), "{said}");
}

#[test]
fn a_slot_is_listed_shown_and_deleted_by_its_name() {
    let place = Place::new();
    let _first = start(&place, "a");
    let mut second = start(&place, "b");
    let listed = stdout(&place.as_operator(&["ls", "--json", "{mail}"]));
    let listed = listed.lines().map(|it| json(it)["key"].clone());
    assert_eq!(listed.collect::<Vec<_>>(), ["{mail}#1", "{mail}#2"]);
    let shown = json(&stdout(&place.output(&["holder", "--json", "{mail}#2"])));
    assert_eq!(shown["holder"]["pid"], second.id());
    assert_eq!(place.code(&["force-unlock", "{mail}#2", "--yes"]), 0);
    assert_eq!(second.code(), 76);
    let said = second.said();
    let lost = "lock \"mail\" (--slots 2) was lost while the job ran: ";
    assert!(said.contains(lost), "{said}");
    assert_eq!(place.code(&["holder", "{mail}#1"]), 0, "it is another's");
}

#[test]
fn a_slot_is_kept_as_a_lock_is_and_reported() {
    let place = Place::new();
    let report = ["run", "-n", "--report", "report", "--slots", "1"];
    let kept = [&report[..], &["--at-least", "60s", "mail", "false"]].concat();
    assert_eq!(place.code(&kept), 1);
    assert_eq!(place.code(&[&report[..], &["mail", "true"]].concat()), 75);
    let reports = place.text("report");
    let reports: Vec<_> = reports.lines().map(json).collect();
    assert_eq!(reports[0]["slot"], 1);
    assert_eq!(reports[0]["keys"], json("[\"mail\"]"));
    assert!(reports[1]["slot"].is_null(), "it was busy");
    assert_eq!(reports[1]["holder"]["kind"], "kept");
}

#[test]
fn options_that_do_not_go_together_are_named() {
    let place = Place::new();
    for (options, named) in [
        (&["--slots", "2", "--shared"][..], ["--slots", "--shared"]),
        (&["--slots", "2", "-e"], ["--slots", "--exclusive"]),
        (&["--shared", "--exclusive"], ["--shared", "--exclusive"]),
        (&["--slots", "2", "-k", "b"], ["--slots", "--key"]),
        (&["--exclusive", "-k", "b"], ["--exclusive", "--key"]),
        (&["--slots", "2", "--fence"], ["--slots", "--fence"]),
        (&["--shared", "--fence"], ["--shared", "--fence"]),
        (&["--slots", "0"], ["--slots", "1..=64"]),
        (&["--slots", "65"], ["--slots", "1..=64"]),
        (&["-s"], ["--signal", "--shared"]),
    ] {
        let output = place.job(&[options, &["mail"]].concat(), "echo > ran");
        assert_eq!(output.status.code(), Some(64), "{options:?}");
        let said = stderr(&output);
        assert!(named.iter().all(|name| said.contains(name)), "{said}");
    }
    assert!(!place.file("ran").exists());
}

/// One name for two locks is a mistake, and nobody else would notice.
#[test]
fn a_run_beside_the_plain_lock_of_its_name_says_so() {
    let place = Place::new();
    let said = |options: &[&str]| {
        let output = place.output(&[&["run"], options, &["mail", "true"]].concat());
        assert!(output.status.success(), "it is another lock");
        stderr(&output)
    };
    let modes = [&["--slots", "2"][..], &["--shared"], &["--exclusive"]];
    for mode in modes {
        assert_eq!(said(mode), "", "nobody has it");
    }
    let inside = modes.map(|mode| format!("$R run {} mail true", mode.join(" ")));
    let output = place.job(&["mail"], &inside.join(" && "));
    assert_eq!(stderr(&output), "", "it has both, as it is meant");
    let mut plain = place.holds(&["mail"]);
    for mode in modes {
        let way = format!(
            "has lock \"mail\" without {}: that is a different lock",
            mode[0]
        );
        let warning = said(mode);
        assert!(warning.contains(&way), "{warning}");
        assert_eq!(said(&[&["-q"], mode].concat()), "");
    }
    plain.end("TERM");
    let _writer = place.holds(&["-e", "mail"]);
    let said = said(&["--slots", "2"]);
    let warning = "has lock \"mail\" with --exclusive: that is a different lock";
    assert!(said.contains(warning), "{said}");
}

#[test]
fn a_writer_waits_for_readers_and_keeps_new_ones_out() {
    let place = Place::new();
    let reads = ["run", "-n", "--shared", "cache", "true"];
    let writes = ["run", "-n", "--exclusive", "cache", "true"];
    let mut reader = place.holds(&["--shared", "cache"]);
    assert_eq!(place.code(&reads), 0, "beside the other");
    let said = stderr(&place.output(&writes));
    let busy = "lock \"cache\" (--exclusive) is busy";
    assert!(said.contains(busy), "{said}");
    assert_eq!(place.code(&reads), 0, "who does not wait keeps nobody out");
    let job = ["-e", "cache", "-c", "echo > b; exec sleep 60"];
    let (mut writer, said) = waits(&place, &job);
    let reader_has_it = format!("-{}-", reader.id());
    assert!(said.contains("lock \"cache\" (--exclusive): "), "{said}");
    assert!(said.contains(&reader_has_it), "{said}");
    assert_eq!(place.code(&reads), 75, "the writer is next");
    assert!(!place.file("b").exists());
    reader.end("TERM");
    eventually(LONG, "the writer runs", || place.file("b").exists());
    assert_eq!(place.code(&reads), 75, "the writer is alone");
    assert_eq!(place.code(&writes), 75);
    let (mut reader, said) = waits(&place, &["--shared", "cache", "-c", "echo > c"]);
    assert!(said.contains("lock \"cache\" (--shared): "), "{said}");
    writer.end("TERM");
    assert_eq!(reader.code(), 0);
    assert!(place.file("c").exists());
    assert_eq!(place.keys(), 0);
}

#[test]
fn a_writer_may_read_and_a_reader_must_not_write() {
    let place = Place::new();
    let script = "$R run -n --shared cache -- $R run -n --exclusive cache echo deep
        $R run -n cache echo another lock
        test $RELATCH_FENCE -gt 0 && echo $RELATCH_KEY; $R confirm cache; echo $?";
    let output = place.job(&["--exclusive", "--fence", "cache"], script);
    let expected = "deep\nanother lock\n{cache}#0\n0\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    let script = "$R run -n --shared cache echo again
        $R run -w 5 --exclusive cache touch wrote; echo $?
        setsid -w $R run -n --exclusive cache touch wrote; echo $?";
    let output = place.job(&["--shared", "cache"], script);
    // (In another session, a run may wait until this job is over.)
    assert_eq!(stdout(&output), "again\n64\n75\n");
    let said = stderr(&output);
    let why = "an outer run holds lock \"cache\" with --shared or --slots: --exclusive \
               would wait for it forever";
    assert!(said.contains(why), "{said}");
    assert!(!place.file("wrote").exists());
}
