//! `relatch ls`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Instant;

use redis::Connection;

use crate::support::{Place, as_operator, json, stderr, stdout};

/// A lock of somebody, for a minute.
fn set(connection: &mut Connection, name: &[u8], value: &[u8]) {
    let mut command = redis::cmd("SET");
    command.arg(name).arg(value).arg("PX").arg(60_000);
    command.query::<()>(connection).unwrap();
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let pairs = digits.map(|pair| str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

/// Numbers without an order, the same in each run.
fn numbers() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Some are bytes of any kind, some are texts of characters that terminals and JSON dislike.
fn random_keys() -> BTreeSet<Vec<u8>> {
    let mut next = numbers();
    let odd: Vec<char> = "a:\"\\/\n\r\t\0\x1b\x7f\u{9b}\u{202e}\u{2066}\u{200b}\u{2028}é日😀{}"
        .chars()
        .collect();
    let mut keys = BTreeSet::new();
    while keys.len() < 1000 {
        let length = next() % 30;
        let is_text = next().is_multiple_of(2);
        let mut key = b"lock:".to_vec();
        for _ in 0..length {
            let number = next();
            if is_text {
                let at = usize::try_from(number % odd.len() as u64).unwrap();
                key.extend(odd[at].to_string().bytes());
            } else {
                key.push(number.to_le_bytes()[3]);
            }
        }
        keys.insert(key);
    }
    keys
}

#[test]
fn whatever_a_key_is_its_line_can_be_read() {
    let place = Place::new();
    let keys = random_keys();
    let mut connection = place.server.connect();
    for key in &keys {
        set(&mut connection, key, key);
    }
    let output = as_operator(&place, &["ls", "--json", "--all"]);
    let found = stdout(&output)
        .lines()
        .map(|line| {
            let object = json(line);
            assert_eq!(object["v"], 1);
            match object["redis_key_hex"].as_str() {
                Some(hex) => unhex(hex),
                None => format!("lock:{}", object["key"].as_str().unwrap()).into_bytes(),
            }
        })
        .collect::<BTreeSet<_>>();
    assert!(found == keys, "{} of {}", found.len(), keys.len());
    let table = stdout(&as_operator(&place, &["ls", "--all"]));
    assert_eq!(table.lines().count(), keys.len() + 1);
    for text in [table, stdout(&output)] {
        let hidden = |c: char| {
            c != '\n' && (c.is_control() || "\u{202e}\u{2066}\u{200b}\u{2028}".contains(c))
        };
        assert!(!text.contains(hidden));
    }
}

#[test]
fn what_a_person_asks_about_cannot_write_to_the_terminal() {
    let place = Place::new();
    let odd = "\x1b[31m\u{202e}\u{9b}";
    set(
        &mut place.server.connect(),
        format!("lock:{odd}").as_bytes(),
        odd.as_bytes(),
    );
    for arguments in [
        &["holder", odd][..],
        &["holder", odd, "--json"],
        &["wait", odd, "-w", "0"],
        &["force-unlock", odd],
        &["run", "-n", odd, "true"],
        &["force-unlock", odd, "--if-token", odd],
        &["force-unlock", odd, "--if-token", odd],
        &["holder", odd, "--json"],
        &["confirm", odd],
    ] {
        let output = place.output(arguments);
        for text in [stdout(&output), stderr(&output)] {
            let raw = text.contains(['\x1b', '\u{202e}', '\u{9b}']);
            assert!(!raw, "{arguments:?}: {text:?}");
        }
    }
}

#[test]
fn locks_come_in_the_order_that_was_asked_for() {
    let place = Place::new();
    for (name, left, pid) in [("b", "90000", 9), ("a", "80000", 11), ("c", "70000", 10)] {
        let (key, token) = (format!("lock:{name}"), format!("host-{pid}-1-{pid:032x}"));
        place.server.query::<()>(&["SET", &key, &token, "PX", left]);
    }
    let order = |by: &str| {
        let output = as_operator(&place, &["ls", "--json", "--sort", by]);
        let keys = stdout(&output);
        let keys = keys.lines().map(|line| json(line)["key"].to_string());
        keys.collect::<String>().replace('"', "")
    };
    assert_eq!(order("key"), "abc");
    assert_eq!(order("left"), "cab");
    assert_eq!(order("holder"), "bca");
    assert_eq!(place.code(&["ls", "--sort", "age"]), 64, "nobody knows it");
}

/// Starts `ls` in the background.
fn background(place: &Place, arguments: &[&str]) -> Child {
    let mut command = place.relatch(arguments);
    command.env("REDIS_URL", place.server.bare_url());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_watch_goes_on_until_nobody_reads() {
    let place = Place::new();
    let mut watch = background(&place, &["ls", "--watch=100ms"]);
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut wait_for = |text: &str| {
        let mut lines = lines.by_ref().map(Result::unwrap);
        assert!(lines.any(|line| line.contains(text)), "{text}");
    };
    wait_for("KEY");
    set(&mut place.server.connect(), b"lock:new", b"x");
    wait_for("new");
    // A Redis that is away does not end it.
    place.server.restart();
    set(&mut place.server.connect(), b"lock:newer", b"x");
    wait_for("newer");
    drop(lines);
    let status = watch.wait().unwrap();
    assert_eq!(status.code(), Some(0), "as `ls | head`");
}

/// As `watch` and others have it, and we cannot: it would be a key's beginning.
#[test]
fn a_time_without_an_equals_sign_is_told() {
    let place = Place::new();
    let mut watch = background(&place, &["ls", "--watch", "2s"]);
    let mut said = String::new();
    let mut lines = BufReader::new(watch.stderr.take().unwrap());
    lines.read_line(&mut said).unwrap();
    assert!(said.contains("--watch=2s"), "{said}");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let place = Place::new();
    let mut connection = place.server.connect();
    for number in 0..3000 {
        let key = format!("lock:{number:0>40}");
        set(&mut connection, key.as_bytes(), b"x");
    }
    for arguments in [&["ls"][..], &["ls", "--json"]] {
        let mut ls = background(&place, arguments);
        let mut first = [0; 10];
        ls.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = ls.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn counters_of_fences_are_no_locks_however_the_prefix_is_cut() {
    let place = Place::new();
    let mut run = place.start(&["--fence", "f"], "f", "echo > $1; sleep 60");
    for (arguments, lines) in [
        (&["ls"][..], 2),
        (&["ls", "f"], 2),
        (&["ls", "fence:"], 1),
        (&["ls", "--prefix", ""], 2),
        (&["ls", "--prefix", "", "--all"], 3),
    ] {
        let table = stdout(&as_operator(&place, arguments));
        assert_eq!(table.lines().count(), lines, "{arguments:?}: {table}");
    }
    place.code(&["force-unlock", "f", "--yes"]);
    assert_eq!(run.wait().unwrap().code(), Some(76));
}

/// Ten locks in a hundred keys, of a million. (On a busy machine, a command can take long because
/// the server waits for a core.)
#[test]
#[ignore = "makes a million keys, and measures"]
fn no_command_is_long_among_a_million_keys() {
    const FILL: &str = "for n = ARGV[1], ARGV[1] + 9999 do
            redis.call('SET', 'lock:host-' .. n, 'host-1-1-' .. string.format('%032x', n), 'PX', 3600000)
            for m = 1, 9 do redis.call('SET', 'other:' .. n .. ':' .. m, 'x') end
        end";
    let place = Place::new();
    for first in (0..100_000).step_by(10_000) {
        let first = first.to_string();
        place.server.query::<()>(&["EVAL", FILL, "0", &first]);
    }
    let limit = ["CONFIG", "SET", "slowlog-log-slower-than", "5000"];
    place.server.query::<()>(&limit);
    place.server.query::<()>(&["SLOWLOG", "RESET"]);
    let begin = Instant::now();
    let output = as_operator(&place, &["ls"]);
    println!("{:?}", begin.elapsed());
    assert_eq!(stdout(&output).lines().count(), 100_001);
    let slow: Vec<redis::Value> = place.server.query(&["SLOWLOG", "GET"]);
    assert!(slow.is_empty(), "{slow:?}");
}
