//! `run --slots`: at most so many jobs at a time.

use std::fs;
use std::io::{BufRead, BufReader, read_to_string};
use std::process::Stdio;

use relatch_rig::{Sig, signal};

use crate::support::{Place, Running, as_operator, in_shell, json, spawn, stderr, stdout};

const RELATCH: &str = env!("CARGO_BIN_EXE_relatch");

/// A job that says which slot it has, and goes on.
const SAYS_SLOT: &str = "echo $RELATCH_SLOT $RELATCH_KEY > $1; exec sleep 60";

fn start(place: &Place, slots: &str, name: &str) -> Running {
    place.start(&["--slots", slots, "mail"], name, SAYS_SLOT)
}

fn text(place: &Place, name: &str) -> String {
    fs::read_to_string(place.file(name)).unwrap()
}

/// Starts a run that says that it waits.
pub(crate) fn start_waiting(place: &Place, arguments: &[&str]) -> (Running, String) {
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
    let mut first = start(&place, "2", "a");
    let mut second = start(&place, "2", "b");
    assert_eq!(text(&place, "a"), "1 {mail}#1\n");
    assert_eq!(text(&place, "b"), "2 {mail}#2\n");
    let busy = place.output(&["run", "-n", "--slots", "2", "mail", "true"]);
    assert_eq!(busy.status.code(), Some(75));
    let said = stderr(&busy);
    assert!(said.contains("lock \"mail\" (--slots 2) is busy"), "{said}");
    assert!(said.contains("has a slot"), "{said}");
    let job = ["--slots", "2", "mail", "-c", "echo $RELATCH_SLOT > c"];
    let (mut third, said) = start_waiting(&place, &job);
    assert!(said.contains("for lock \"mail\" (--slots 2): "), "{said}");
    assert!(!place.file("c").exists());
    signal(second.id(), Sig::Term);
    second.wait().unwrap();
    assert_eq!(in_shell(third.wait().unwrap()), 0);
    assert_eq!(text(&place, "c"), "2\n");
    // The number is each run's own, and the plain lock is another one.
    let more = ["run", "-n", "--slots", "3", "mail", "true"];
    assert_eq!(place.code(&more), 0);
    assert_eq!(place.code(&["run", "-n", "mail", "true"]), 0);
    signal(first.id(), Sig::Term);
    first.wait().unwrap();
    assert_eq!(place.server.query::<u64>(&["DBSIZE"]), 0);
}

#[test]
fn a_job_confirms_its_slot_and_a_run_inside_enters_it() {
    let place = Place::new();
    let mut first = start(&place, "2", "a");
    let del = "redis-cli -u $REDIS_URL del 'lock:{mail}#2' >/dev/null";
    let script = format!(
        "{RELATCH} confirm && {RELATCH} confirm mail && {RELATCH} confirm $RELATCH_KEY; echo $?
        {RELATCH} run -n --slots 2 mail -c 'echo in $RELATCH_SLOT $RELATCH_KEY'
        {RELATCH} run -n $RELATCH_KEY -c 'echo by key'
        {RELATCH} run -n --slots 1 mail true; echo another $?
        {RELATCH} run -n --no-reentry --slots 2 mail true; echo no reentry $?
        {RELATCH} run -n --exclusive mail true; echo writer $?
        {RELATCH} run other -c 'echo \"of other: $RELATCH_SLOT\"'
        {del}; {RELATCH} confirm mail; echo lost $?
        {RELATCH} run -n --slots 2 mail true; echo not anew $?"
    );
    let run = ["run", "--on-lost", "warn", "--slots", "2", "mail", "-c"];
    let output = place.output(&[&run[..], &[&script]].concat());
    let expected = "0\nin 2 {mail}#2\nby key\nanother 75\nno reentry 75\nwriter 64\nof other: \n\
                    lost 76\nnot anew 76\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(76));
    let said = stderr(&output);
    assert!(
        said.contains("lock \"{mail}#2\" is not ours any more"),
        "{said}"
    );
    signal(first.id(), Sig::Term);
    first.wait().unwrap();
}

#[test]
fn a_slot_is_listed_shown_and_deleted_by_its_name() {
    let place = Place::new();
    let mut first = start(&place, "2", "a");
    let mut second = start(&place, "2", "b");
    let listed = stdout(&as_operator(&place, &["ls", "--json", "{mail}"]));
    let listed: Vec<_> = listed.lines().map(json).collect();
    let seen = listed.iter().map(|it| (it["key"].as_str(), &it["kind"]));
    let held = "held".into();
    let expected = ["{mail}#1", "{mail}#2"].map(|key| (Some(key), &held));
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    let shown = json(&stdout(&place.output(&["holder", "--json", "{mail}#2"])));
    assert_eq!(shown["holder"]["pid"], second.id());
    assert_eq!(place.code(&["force-unlock", "{mail}#2", "--yes"]), 0);
    assert_eq!(second.wait().unwrap().code(), Some(76));
    let said = read_to_string(second.stderr.as_mut().unwrap()).unwrap();
    let lost = "lock \"mail\" (--slots 2) was lost while the job ran: ";
    assert!(said.contains(lost), "{said}");
    assert_eq!(place.code(&["holder", "{mail}#1"]), 0, "it is another's");
    signal(first.id(), Sig::Term);
    first.wait().unwrap();
}

#[test]
fn a_slot_is_kept_as_a_lock_is_and_reported() {
    let place = Place::new();
    let report = ["run", "-n", "--report", "report", "--slots", "1"];
    let kept = [&report[..], &["--at-least", "60s", "mail"]].concat();
    assert_eq!(
        place.code(&[&kept[..], &["/no/such/command"]].concat()),
        127
    );
    assert_eq!(place.code(&[&kept[..], &["false"]].concat()), 1);
    assert_eq!(place.code(&[&report[..], &["mail", "true"]].concat()), 75);
    let reports = text(&place, "report");
    let reports: Vec<_> = reports.lines().map(json).collect();
    assert_eq!(reports[1]["slot"], 1);
    assert_eq!(reports[1]["keys"], json("[\"mail\"]"));
    assert!(reports[2]["slot"].is_null(), "it was busy");
    assert_eq!(reports[2]["holder"]["kind"], "kept");
}

#[test]
fn options_that_do_not_go_together_are_named() {
    let place = Place::new();
    for (options, named) in [
        (&["--slots", "2", "--shared"][..], ["--slots", "--shared"]),
        (&["--slots", "2", "-e"], ["--slots", "--exclusive"]),
        (&["--shared", "--exclusive"], ["--shared", "--exclusive"]),
        (&["--slots", "2", "-k", "b"], ["--slots", "--key"]),
        (&["--shared", "-k", "b"], ["--shared", "--key"]),
        (&["--exclusive", "-k", "b"], ["--exclusive", "--key"]),
        (&["--slots", "2", "--fence"], ["--slots", "--fence"]),
        (&["--shared", "--fence"], ["--shared", "--fence"]),
        (&["--slots", "0"], ["--slots", "1..=64"]),
        (&["--slots", "65"], ["--slots", "1..=64"]),
        (&["-s"], ["--signal", "--shared"]),
    ] {
        let run = [&["run"], options, &["mail", "-c", "echo > ran"]].concat();
        let output = place.output(&run);
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
        let run = [&["run"], options, &["mail", "true"]].concat();
        let output = place.output(&run);
        assert!(output.status.success(), "it is another lock");
        stderr(&output)
    };
    let modes = [&["--slots", "2"][..], &["--shared"], &["--exclusive"]];
    for mode in modes {
        assert_eq!(said(mode), "", "nobody has it");
    }
    let inside = modes.map(|mode| format!("{RELATCH} run {} mail true", mode.join(" ")));
    let output = place.output(&["run", "mail", "-c", &inside.join(" && ")]);
    assert_eq!(stderr(&output), "", "it has both, as it is meant");
    let mut plain = place.start(&["mail"], "a", "echo > $1; exec sleep 60");
    for mode in modes {
        let warning = format!(
            "has lock \"mail\" without {}: that is another lock",
            mode[0]
        );
        let said_so = said(mode);
        assert!(said_so.contains(&warning), "{said_so}");
        assert_eq!(said(&[&["-q"], mode].concat()), "");
    }
    signal(plain.id(), Sig::Term);
    plain.wait().unwrap();
    let mut writer = place.start(&["-e", "mail"], "b", "echo > $1; exec sleep 60");
    let said = said(&["--slots", "2"]);
    let warning = "has lock \"mail\" with --exclusive: that is another lock";
    assert!(said.contains(warning), "{said}");
    signal(writer.id(), Sig::Term);
    writer.wait().unwrap();
}
