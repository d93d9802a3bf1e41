//! The commands that ask.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use relatch_rig::{LONG, eventually};

use crate::support::{Place, json, spawn, stderr, stdout};

#[test]
fn a_lock_is_deleted_if_its_token_is_meant() {
    let place = Place::new();
    let mut run = place.holds(&["k"]);
    let shown = json(&stdout(&place.output(&["holder", "--json", "k"])));
    let token = shown["holder"]["token"].as_str().unwrap();
    assert_eq!(shown["holder"]["pid"], run.id());
    let unlock = |options: &[&str]| place.code(&[&["force-unlock", "k"], options].concat());
    assert_eq!(unlock(&[]), 64, "nobody can be asked");
    assert_eq!(unlock(&["--if-token", "other", "--yes"]), 1);
    assert_eq!(unlock(&["--if-token", token]), 0);
    assert_eq!(run.code(), 76);
    assert_eq!(unlock(&["--yes"]), 1, "it is free");
    for key in ["hash", "list"] {
        let name = format!("lock:{key}");
        let query = |words: &[&str]| place.server.query::<()>(words);
        match key {
            "hash" => query(&["HSET", &name, "field", "x"]),
            _ => query(&["RPUSH", &name, "x"]),
        }
        assert_eq!(place.code(&["force-unlock", key, "--yes"]), 78);
        assert_eq!(place.code(&["force-unlock", key, "--if-token=x"]), 1);
        assert!(place.server.exists(&name), "only a text is deleted");
    }
}

#[test]
fn a_wait_ends_when_the_lock_is_free() {
    let place = Place::new();
    let mut run = place.start(&["k"], "f", "echo > $1; sleep 0.5");
    assert_eq!(place.code(&["wait", "k"]), 0, "long before the lease ends");
    assert_eq!(place.code(&["holder", "k"]), 1);
    assert_eq!(run.code(), 0);
    // Some programs set the expiry by a second command.
    place.server.query::<()>(&["SET", "lock:soon", "x"]);
    place.server.reset_stats();
    let mut wait = spawn(&mut place.relatch(&["wait", "soon"]));
    eventually(LONG, "it has looked", || place.server.calls("pttl") > 0);
    place.server.query::<()>(&["PEXPIRE", "lock:soon", "100"]);
    assert_eq!(wait.code(), 0);
    place.server.query::<()>(&["SET", "lock:forever", "x"]);
    place.server.query::<()>(&["RPUSH", "lock:list", "x"]);
    for key in ["forever", "list"] {
        let output = place.output(&["wait", key, "-w", "5m"]);
        assert_eq!(output.status.code(), Some(78), "it is never free");
        assert!(stderr(&output).contains(key), "{}", stderr(&output));
    }
}

#[test]
fn all_that_is_in_redis_is_listed_whatever_its_name() {
    let place = Place::new();
    let _run = place.holds(&["a:held"]);
    place.code(&["run", "--at-least", "60s", "a:kept", "true"]);
    place.set(b"lock:b\"\n\x1b[31m\xff", b"\xff\"\n");
    place.set("lock:", "");
    place.set("lock:a:foreign", "9f1c");
    place.server.query::<()>(&["SET", "lock:a:forever", "x"]);
    let text = stdout(&place.as_operator(&["ls", "--json", "--all"]));
    let objects: Vec<_> = text.lines().map(json).collect();
    let kinds: Vec<_> = objects.iter().map(|object| &object["kind"]).collect();
    let foreign = ["foreign", "foreign", "never_expires"];
    let ours = ["held", "kept", "not_a_lock"];
    assert_eq!(kinds, [foreign, ours].concat(), "{text}");
    assert!(objects[2]["left_ms"].is_null());
    let shown = place.as_operator(&["ls", "a:"]);
    let table = stdout(&shown);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.lines().skip(1).all(|line| line.starts_with("a:")));
    assert!(table.contains("foreign token: 9f1c"), "{table}");
    assert!(table.contains("kept (was"), "{table}");
    let said = stderr(&shown);
    assert!(said.contains("1 key is hidden"), "{said}");
    for silent in [&["ls", "-q"][..], &["ls", "--json", "--all"]] {
        assert_eq!(stderr(&place.as_operator(silent)), "", "{silent:?}");
    }
}

/// What a library keeps as `report` is not there without the right prefix.
#[test]
fn where_it_was_looked_is_told() {
    let place = Place::new();
    for name in ["report", "lock:a", "lock:b"] {
        place.set(name, "x");
    }
    let none = "no locks with prefix \"lock:c\" (--prefix '' lists all keys)";
    for (arguments, said) in [
        (&["ls"][..], "2 locks with prefix \"lock:\""),
        (&["ls", "a"], "1 lock with prefix \"lock:a\""),
        (&["ls", "c"], none),
        (&["ls", "--all", "--prefix", ""], "3 keys with prefix \"\""),
    ] {
        let expected = format!("relatch: {said}\n");
        assert_eq!(stderr(&place.as_operator(arguments)), expected);
    }
    let free = stdout(&place.output(&["holder", "report"]));
    assert_eq!(free, "\"report\" is free (key \"lock:report\")\n");
}

#[test]
fn a_wait_goes_on_while_redis_is_away() {
    // Nobody knows whether it is held at the limit; a restart forgets it.
    for (limit, code) in [(&["-w", "9s"][..], 69), (&[], 0)] {
        let place = Place::new();
        place.set("lock:k", "x");
        place.server.reset_stats();
        let mut wait = place.relatch(&[&["wait", "k"], limit].concat());
        let mut wait = spawn(wait.stderr(Stdio::piped()));
        let mut said = BufReader::new(wait.stderr.take().unwrap()).lines();
        // It asks again once it has an answer.
        eventually(LONG, "it has an answer", || place.server.calls("pttl") > 1);
        place.server.kill();
        let line = said.next().unwrap().unwrap();
        assert!(line.contains("the wait continues"), "{line}");
        if limit.is_empty() {
            place.server.restart();
        }
        assert_eq!(wait.code(), code);
        let mut more = said.map(Result::unwrap);
        assert!(!more.any(|it| it.contains("the wait continues")), "once");
    }
}

#[test]
fn each_command_that_answers_writes_json() {
    let place = Place::new();
    let set = ["SET", "lock:k", "x", "PX", "71999900"];
    place.server.query::<()>(&set);
    let answer = |arguments: &[&str]| json(&stdout(&place.output(arguments)));
    let held = answer(&["wait", "--json", "k", "-w", "0"]);
    assert_eq!((&held["v"], &held["key"]), (&1.into(), &"k".into()));
    assert_eq!(held["holder"]["token"], "x");
    let shown = stdout(&place.output(&["holder", "k"]));
    assert!(shown.starts_with("\"x\" (19h59m left)"), "{shown}");
    let unlock = ["force-unlock", "--json", "k"];
    let other = answer(&[&unlock[..], &["--if-token", "y"]].concat());
    assert_eq!(
        (&other["key"], &other["deleted"]),
        (&"k".into(), &false.into())
    );
    let deleted = answer(&[&unlock[..], &["--yes"]].concat());
    assert_eq!(deleted["deleted"], true);
    let free = answer(&["wait", "--json", "k"]);
    assert!(
        free["holder"].is_null() && free["waited_ms"].is_u64(),
        "{free}"
    );
}
