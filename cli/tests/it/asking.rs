//! The commands that ask.

use crate::support::{Place, as_operator, json, stderr, stdout};

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
    let shown = as_operator(&place, &["ls", "a:"]);
    let table = stdout(&shown);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(
        stderr(&shown).contains("1 key is not shown"),
        "{}",
        stderr(&shown)
    );
    for silent in [&["ls", "-q"][..], &["ls", "--all"], &["ls", "a:held"]] {
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

#[test]
fn the_doctor_says_how_it_is() {
    let place = Place::new();
    let well = as_operator(&place, &["doctor"]);
    assert_eq!(well.status.code(), Some(0), "{}", stdout(&well));
    place.server.query::<()>(&["SET", "lock:forever", "x"]);
    let warned = as_operator(&place, &["doctor", "--json"]);
    assert_eq!(warned.status.code(), Some(1), "{}", stdout(&warned));
    assert!(
        stdout(&warned)
            .lines()
            .map(json)
            .any(|line| line["verdict"] == "warn")
    );
    let failed = place.output(&["doctor", "--redis", "redis://127.0.0.1:1/"]);
    assert_eq!(failed.status.code(), Some(2), "{}", stdout(&failed));
}
