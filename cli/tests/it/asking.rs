//! The commands that ask.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use relatch_rig::{LONG, eventually};

use crate::support::{Place, as_operator, json, spawn, stderr, stdout};

#[test]
fn a_lock_is_deleted_if_its_token_is_meant() {
    let place = Place::new();
    let mut run = place.start(&["k"], "f", "echo > $1; sleep 60");
    let shown = json(&stdout(&place.output(&["holder", "--json", "k"])));
    let token = shown["holder"]["token"].as_str().unwrap();
    assert_eq!(shown["holder"]["pid"], run.id());
    assert_eq!(
        place.code(&["force-unlock", "k"]),
        64,
        "nobody can be asked"
    );
    assert_eq!(place.code(&["force-unlock", "k", "--if-token", "other"]), 1);
    assert_eq!(place.code(&["force-unlock", "k", "--if-token", token]), 0);
    assert_eq!(run.wait().unwrap().code(), Some(76));
    assert_eq!(place.code(&["force-unlock", "k", "--yes"]), 1, "it is free");
    let free = json(&stdout(&place.output(&["holder", "--json", "k"])));
    assert!(free["holder"].is_null());
}

#[test]
fn a_wait_ends_when_the_lock_is_free() {
    let place = Place::new();
    let mut run = place.start(&["k"], "f", "echo > $1; sleep 0.5");
    assert_eq!(
        place.code(&["wait", "k"]),
        0,
        "long before the lease is over"
    );
    assert_eq!(place.code(&["holder", "k"]), 1);
    assert!(run.wait().unwrap().success());
}

#[test]
fn all_that_is_in_redis_is_listed_whatever_its_name() {
    let place = Place::new();
    let mut run = place.start(&["a:held"], "f", "echo > $1; sleep 60");
    place.code(&["run", "--at-least", "60s", "a:kept", "true"]);
    let set = |name: &[u8], value: &[u8]| {
        let mut connection = place.server.connect();
        let mut command = redis::cmd("SET");
        command.arg(name).arg(value).arg("PX").arg(60_000);
        command.query::<()>(&mut connection).unwrap();
    };
    set(b"lock:b\"\n\x1b[31m\xff", b"\xff\"\n");
    set(b"lock:", b"");
    set(b"lock:a:foreign", b"9f1c");
    place.server.query::<()>(&["SET", "lock:a:forever", "x"]);
    let output = as_operator(&place, &["ls", "--json", "--all"]);
    let text = stdout(&output);
    let objects: Vec<_> = text.lines().map(json).collect();
    assert_eq!(objects.len(), 6, "{text}");
    assert!(objects.iter().all(|object| object["v"] == 1));
    let kinds: Vec<_> = objects.iter().map(|object| &object["kind"]).collect();
    let expected = [
        "foreign",
        "foreign",
        "never_expires",
        "held",
        "kept",
        "not_a_lock",
    ];
    assert_eq!(kinds, expected);
    assert!(objects[2]["left_ms"].is_null());
    let shown = as_operator(&place, &["ls", "a:"]);
    let table = stdout(&shown);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.lines().skip(1).all(|line| line.starts_with("a:")));
    assert!(
        stderr(&shown).contains("1 key is not shown"),
        "{}",
        stderr(&shown)
    );
    for silent in [&["ls", "-q"][..], &["ls", "--json", "--all"]] {
        assert_eq!(stderr(&as_operator(&place, silent)), "", "{silent:?}");
    }
    assert!(
        table.contains("foreign token: 9f1c") && table.contains("kept (was"),
        "{table}"
    );
    let plain = stdout(&as_operator(&place, &["ls", "--all", "--sort", "left"]));
    assert!(
        !plain.contains('\x1b') && plain.lines().count() == 7,
        "{plain}"
    );
    assert!(plain.lines().nth(5).unwrap().contains("never"), "{plain}");
    place.code(&["force-unlock", "a:held", "--yes"]);
    assert_eq!(run.wait().unwrap().code(), Some(76));
}

/// What a library keeps as `report` is not there without the right prefix.
#[test]
fn where_it_was_looked_is_told() {
    let place = Place::new();
    let told = |arguments: &[&str]| stderr(&as_operator(&place, arguments));
    let all = "(--prefix '' looks at all keys)";
    let none = |prefix: &str| format!("relatch: no locks with prefix {prefix:?} {all}\n");
    for name in ["report", "lock:a", "lock:b"] {
        place.server.query::<()>(&["SET", name, "x", "PX", "60000"]);
    }
    assert_eq!(told(&["ls"]), "relatch: 2 locks with prefix \"lock:\"\n");
    assert_eq!(
        told(&["ls", "a"]),
        "relatch: 1 lock with prefix \"lock:a\"\n"
    );
    assert_eq!(told(&["ls", "c"]), none("lock:c"));
    assert_eq!(told(&["ls", "--prefix", "x"]), none("x"));
    let everything = ["ls", "--all", "--prefix", ""];
    assert_eq!(told(&everything), "relatch: 3 keys with prefix \"\"\n");
    let free = stdout(&place.output(&["holder", "report"]));
    assert_eq!(free, "\"report\" is free (key \"lock:report\")\n");
}

#[test]
fn a_wait_for_what_is_never_free_ends_at_once() {
    let place = Place::new();
    place.server.query::<()>(&["SET", "lock:forever", "x"]);
    place.server.query::<()>(&["RPUSH", "lock:list", "x"]);
    for key in ["forever", "list"] {
        let begin = Instant::now();
        let output = place.output(&["wait", key, "-w", "60s"]);
        assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
        assert!(stderr(&output).contains(key), "{}", stderr(&output));
        assert!(begin.elapsed() < Duration::from_secs(50));
    }
    // Some programs set the expiry by a second command.
    place.server.query::<()>(&["SET", "lock:soon", "x"]);
    place.server.reset_stats();
    let mut wait = spawn(&mut place.relatch(&["wait", "soon"]));
    eventually(LONG, "it has looked", || place.server.calls("pttl") > 0);
    place.server.query::<()>(&["PEXPIRE", "lock:soon", "100"]);
    assert_eq!(wait.wait().unwrap().code(), Some(0));
}

#[test]
fn a_wait_goes_on_while_redis_is_away() {
    // Nobody knows whether it is held at the limit; a restart forgets it.
    for (limit, code) in [(&["-w", "6s"][..], 69), (&[], 0)] {
        let place = Place::new();
        let set = ["SET", "lock:k", "x", "PX", "60000"];
        place.server.query::<()>(&set);
        place.server.reset_stats();
        let mut wait = place.relatch(&[&["wait", "k"], limit].concat());
        let mut wait = spawn(wait.stderr(Stdio::piped()));
        let mut said = BufReader::new(wait.stderr.take().unwrap()).lines();
        // It asks again once it has an answer.
        eventually(LONG, "it has an answer", || place.server.calls("pttl") > 1);
        place.server.kill();
        let line = said.next().unwrap().unwrap();
        assert!(line.contains("the wait goes on"), "{line}");
        if limit.is_empty() {
            place.server.restart();
        }
        assert_eq!(wait.wait().unwrap().code(), Some(code));
        let more = said.map(Result::unwrap);
        assert!(
            more.filter(|it| it.contains("the wait goes on")).count() == 0,
            "it is told once"
        );
    }
    let place = Place::new();
    let away = place
        .relatch(&["wait", "k"])
        .env("REDIS_URL", "redis://127.0.0.1:1/")
        .status();
    assert_eq!(away.unwrap().code(), Some(69));
}

#[test]
fn only_a_text_is_deleted() {
    let place = Place::new();
    place
        .server
        .query::<()>(&["HSET", "lock:hash", "field", "x"]);
    place.server.query::<()>(&["RPUSH", "lock:list", "x"]);
    for key in ["hash", "list"] {
        let output = place.output(&["force-unlock", key, "--yes"]);
        assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
        assert_eq!(place.code(&["force-unlock", key, "--if-token=x"]), 1);
        assert!(place.server.exists(&format!("lock:{key}")));
    }
    place.server.query::<()>(&["SET", "lock:text", "x"]);
    assert_eq!(place.code(&["force-unlock", "text", "--yes"]), 0);
}

#[test]
fn each_command_that_answers_writes_json() {
    let place = Place::new();
    let set = |left: &str| {
        place
            .server
            .query::<()>(&["SET", "lock:k", "x", "PX", left]);
    };
    let answer = |arguments: &[&str]| json(&stdout(&place.output(arguments)));
    set("71999900");
    let held = answer(&["wait", "--json", "k", "-w", "0"]);
    assert_eq!(
        (&held["v"], &held["holder"]["token"]),
        (&1.into(), &"x".into())
    );
    let shown = stdout(&place.output(&["holder", "k"]));
    assert!(shown.starts_with("\"x\" (19h59m left)"), "{shown}");
    let other = answer(&["force-unlock", "--json", "k", "--if-token", "y"]);
    assert_eq!(
        (&other["key"], &other["deleted"]),
        (&"k".into(), &false.into())
    );
    let deleted = answer(&["force-unlock", "--json", "k", "--yes"]);
    assert_eq!(deleted["deleted"], true);
    let free = answer(&["wait", "--json", "k"]);
    assert!(
        free["holder"].is_null() && free["waited_ms"].is_u64(),
        "{free}"
    );
}

#[test]
fn the_doctor_says_how_it_is() {
    let place = Place::new();
    let well = as_operator(&place, &["doctor"]);
    assert_eq!(well.status.code(), Some(0), "{}", stdout(&well));
    let forever = ["SET", "lock:forever", "x"];
    let for_days = ["SET", "lock:days", "x", "PX", "259200000"];
    for odd in [&forever[..], &for_days] {
        place.server.query::<()>(&["FLUSHALL"]);
        place.server.query::<()>(odd);
        let warned = as_operator(&place, &["doctor", "--json"]);
        assert_eq!(warned.status.code(), Some(1), "{}", stdout(&warned));
        assert!(
            stdout(&warned)
                .lines()
                .map(json)
                .any(|line| line["verdict"] == "warn")
        );
    }
    let failed = place.output(&["doctor", "--redis", "redis://127.0.0.1:1/"]);
    assert_eq!(failed.status.code(), Some(2), "{}", stdout(&failed));
}
