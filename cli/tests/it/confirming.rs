//! A job that asks for its locks: `confirm`, and runs inside of a run.

use std::process::Output;

use relatch_rig::Server;

use crate::support::{Place, json, stderr, stdout};

/// Deletes a key of Redis, as an accident does.
fn del(key: &str) -> String {
    format!("redis-cli -u $REDIS_URL del {key} >/dev/null")
}

/// Runs a line under a lock, whose loss does not end it.
fn under(place: &Place, key: &str, line: &str) -> Output {
    place.job(&["--on-lost", "warn", key], line)
}

#[test]
fn a_job_confirms_each_lock_of_its_run_and_of_the_runs_around_it() {
    for lost in ["lock:a", "lock:b", "lock:outer", "other:far"] {
        let place = Place::new();
        let del = del(lost);
        let line = format!("$R confirm; echo $?; {del}; $R confirm; echo $?");
        let line = format!(
            "$R run --prefix other: --on-lost warn far \
             $R run --prefix lock: --on-lost warn -k b a -c '{line}'"
        );
        let output = under(&place, "outer", &line);
        let said = stderr(&output);
        assert_eq!(stdout(&output), "0\n76\n", "{lost}: {said}");
        let name = lost.trim_start_matches("lock:");
        let is_told = said.contains(&format!("lock {name:?} is no longer held by this job"));
        assert!(is_told, "{lost}: {said}");
    }
}

#[test]
fn a_job_that_was_not_started_with_a_lock_cannot_confirm_it() {
    let place = Place::new();
    let line = "$R confirm other; echo $?; $R confirm --prefix '' k; echo $?";
    let output = under(&place, "k", line);
    assert_eq!(stdout(&output), "76\n76\n");
    let said = stderr(&output);
    let reason = "no outer run of this process holds lock \"other\"";
    assert!(said.contains(reason), "{said}");
    assert_eq!(place.code(&["confirm", "other"]), 64, "there is no job");
}

#[test]
fn what_is_confirmed_is_written_as_json() {
    let place = Place::new();
    let line = format!("{}; $R confirm --json", del("lock:b"));
    let output = place.job(&["--on-lost", "warn", "-k", "b", "a"], &line);
    let text = stdout(&output);
    let objects: Vec<_> = text.lines().map(json).collect();
    let seen = objects
        .iter()
        .map(|it| (it["key"].as_str(), it["confirmed"].as_bool()));
    let expected = [(Some("a"), Some(true)), (Some("b"), Some(false))];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    assert_eq!(objects[0]["holder"]["kind"], "held");
    assert!(objects[1]["holder"].is_null());
}

#[test]
fn a_run_inside_of_a_run_that_has_lost_the_lock_does_not_take_it_anew() {
    let place = Place::new();
    let theirs = "redis-cli -u $REDIS_URL set lock:k theirs px 60000 >/dev/null";
    for lose in [&*del("lock:k"), theirs] {
        let line = format!("{lose}; $R run --report report k touch ran; echo $?");
        let output = under(&place, "k", &line);
        assert_eq!(stdout(&output), "76\n", "{}", stderr(&output));
        let said = stderr(&output);
        let why = "the outer run has lost lock \"k\"";
        assert!(said.contains(why), "{said}");
        assert!(!place.file("ran").exists());
        let report = place.text("report");
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
    for (line, code) in [
        (format!("$R run --redis {same} k $R confirm"), 0),
        ("$R run -n --prefix other: k $R confirm k".to_owned(), 0),
        (format!("$R run -n --redis {url} k $R confirm k"), 0),
        // Nobody asks the outer one's.
        (format!("$R run -n --redis {url} k $R confirm"), 78),
    ] {
        let output = under(&place, "k", &format!("{line}; echo $?"));
        let said = stderr(&output);
        assert_eq!(stdout(&output), format!("{code}\n"), "{line}: {said}");
        let is_told = said.contains("is in another Redis");
        assert_eq!(is_told, code == 78, "{said}");
    }
}

/// As `|| exit 1` before a step that cannot be undone.
#[test]
fn a_lock_that_ends_too_soon_is_not_confirmed() {
    let place = Place::new();
    let del = del("lock:k");
    // In another session, the lock that the outer run has lost may be taken anew.
    let anew = "setsid -w $R run -n k $R confirm; echo $?";
    let line = format!("$R confirm --for 1h; echo $?; {del}; $R confirm; echo $?; {anew}");
    let output = under(&place, "k", &line);
    let said = stderr(&output);
    assert_eq!(stdout(&output), "76\n76\n0\n", "{said}");
    assert!(said.contains("not for 1h00m: ask again"), "{said}");
    assert!(said.contains("nobody holds it: do not continue"), "{said}");
}

/// A job whose output nobody reads any more must not take a lost lock for its own.
#[test]
fn a_lost_lock_is_not_confirmed_though_nobody_reads_the_answer() {
    let place = Place::new();
    let script = "echo > $1; until test -e deleted; do sleep 0.05; done
        { sleep 0.5; $R confirm --json; echo $? > code; } | true";
    let mut run = place.start(&["--on-lost", "warn", "k"], "ready", script);
    place.server.query::<()>(&["DEL", "lock:k"]);
    place.write("deleted", "");
    assert_eq!(run.code(), 76);
    assert_eq!(place.text("code"), "76\n");
}
