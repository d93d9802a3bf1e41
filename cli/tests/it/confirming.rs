//! A job that asks for its locks: `confirm`, and runs inside of a run.

use std::process::Output;

use relatch_rig::Server;

use crate::support::{Place, json, stderr, stdout};

const RELATCH: &str = env!("CARGO_BIN_EXE_relatch");

/// Deletes a lock, as an accident does.
fn del(key: &str) -> String {
    format!("redis-cli -u $REDIS_URL del lock:{key} >/dev/null")
}

/// Runs a line under these keys. The loss of a lock does not end it.
fn under(place: &Place, keys: &[&str], line: &str) -> Output {
    let mut run = vec!["run", "--on-lost", "warn"];
    for key in &keys[1..] {
        run.extend(["-k", key]);
    }
    run.extend([keys[0], "-c", line]);
    place.output(&run)
}

#[test]
fn a_job_confirms_each_lock_of_its_run_and_of_the_runs_around_it() {
    for lost in ["a", "b", "outer", "other:far"] {
        let place = Place::new();
        let del = if lost == "other:far" {
            "redis-cli -u $REDIS_URL del other:far >/dev/null".to_owned()
        } else {
            del(lost)
        };
        let line = format!("{RELATCH} confirm; echo $?; {del}; {RELATCH} confirm; echo $?");
        let line = format!(
            "{RELATCH} run --prefix other: --on-lost warn far \
             {RELATCH} run --prefix lock: --on-lost warn -k b a -c '{line}'"
        );
        let output = under(&place, &["outer"], &line);
        assert_eq!(stdout(&output), "0\n76\n", "{lost}: {}", stderr(&output));
        let said = stderr(&output);
        let is_told = said.contains(&format!("lock {lost:?} is not ours any more"));
        assert!(is_told, "{lost}: {said}");
    }
}

#[test]
fn a_job_that_was_not_started_with_a_lock_cannot_confirm_it() {
    let place = Place::new();
    let line =
        format!("{RELATCH} confirm other; echo $?; {RELATCH} confirm --prefix '' k; echo $?");
    let output = under(&place, &["k"], &line);
    assert_eq!(stdout(&output), "76\n76\n");
    let said = stderr(&output);
    let reason = "no run around this process has taken lock \"other\"";
    assert!(said.contains(reason), "{said}");
    assert_eq!(place.code(&["confirm", "other"]), 64, "there is no job");
}

#[test]
fn what_is_confirmed_is_written_as_json() {
    let place = Place::new();
    let line = format!("{}; {RELATCH} confirm --json", del("b"));
    let output = under(&place, &["a", "b"], &line);
    let written = stdout(&output);
    let objects: Vec<_> = written.lines().map(json).collect();
    assert_eq!(objects.len(), 2, "{written}");
    assert_eq!(
        (&objects[0]["key"], &objects[0]["confirmed"]),
        (&"a".into(), &true.into())
    );
    assert_eq!(
        (&objects[1]["key"], &objects[1]["confirmed"]),
        (&"b".into(), &false.into())
    );
    assert_eq!(objects[0]["holder"]["kind"], "held");
    assert!(objects[1]["holder"].is_null());
}

#[test]
fn a_run_inside_of_a_run_that_has_lost_the_lock_does_not_take_it_anew() {
    let place = Place::new();
    let theirs = "redis-cli -u $REDIS_URL set lock:k theirs px 60000 >/dev/null";
    for lose in [&*del("k"), theirs] {
        let line = format!("{lose}; {RELATCH} run --report report k touch ran; echo $?");
        let output = under(&place, &["k"], &line);
        assert_eq!(stdout(&output), "76\n", "{}", stderr(&output));
        let said = stderr(&output);
        assert!(
            said.contains("the run around this one has lost lock \"k\""),
            "{said}"
        );
        assert!(!place.file("ran").exists());
        let report = std::fs::read_to_string(place.file("report")).unwrap();
        assert_eq!(json(report.lines().last().unwrap())["outcome"], "lost");
        place.server.query::<u64>(&["DEL", "lock:k"]);
    }
}

#[test]
fn a_run_inside_with_another_prefix_or_redis_takes_another_lock() {
    let place = Place::new();
    let other = Server::start();
    let url = other.url();
    // By another name, it is the same.
    let same = place.server.url().replace("127.0.0.1", "localhost");
    assert_ne!(same, place.server.url());
    let line = format!("{RELATCH} run --redis {same} k {RELATCH} confirm; echo $?");
    let output = under(&place, &["k"], &line);
    assert_eq!(stdout(&output), "0\n", "{}", stderr(&output));
    for options in [String::from("--prefix other:"), format!("--redis {url}")] {
        let line = format!("{RELATCH} run -n {options} k {RELATCH} confirm k; echo $?");
        let output = under(&place, &["k"], &line);
        assert_eq!(stdout(&output), "0\n", "{options}: {}", stderr(&output));
    }
    // Nobody asks the outer one's.
    let line = format!("{RELATCH} run -n --redis {url} k {RELATCH} confirm; echo $?");
    let output = under(&place, &["k"], &line);
    assert_eq!(stdout(&output), "78\n");
    assert!(
        stderr(&output).contains("is in another Redis"),
        "{}",
        stderr(&output)
    );
}

/// As `|| exit 1` before a step that cannot be undone.
#[test]
fn a_lock_that_ends_too_soon_is_not_confirmed() {
    let place = Place::new();
    let line = format!("{RELATCH} confirm --for 1h; echo $?; {RELATCH} confirm --for 1s; echo $?");
    let output = under(&place, &["k"], &line);
    assert_eq!(stdout(&output), "76\n0\n", "{}", stderr(&output));
}

/// In another session, the lock that the outer run has lost may be taken anew.
#[test]
fn a_job_confirms_the_hold_that_came_last() {
    let place = Place::new();
    let line = format!(
        "{}; setsid -w {RELATCH} run -n k {RELATCH} confirm; echo $?",
        del("k")
    );
    let output = under(&place, &["k"], &line);
    assert_eq!(stdout(&output), "0\n", "{}", stderr(&output));
}

/// A job whose output nobody reads any more must not take a lost lock for its own.
#[test]
fn a_lost_lock_is_not_confirmed_though_nobody_reads_the_answer() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let script = format!(
        "echo > $1; until test -e deleted; do sleep 0.05; done
        {{ sleep 0.5; {relatch} confirm --json; echo $? > code; }} | true"
    );
    let mut run = place.start(&["--on-lost", "warn", "k"], "ready", &script);
    place.server.query::<()>(&["DEL", "lock:k"]);
    std::fs::write(place.file("deleted"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(76));
    let code = std::fs::read_to_string(place.file("code")).unwrap();
    assert_eq!(code, "76\n");
}
