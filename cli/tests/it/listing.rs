//! `relatch ls`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Instant;

use crate::support::{Place, Running, json, spawn, stderr, stdout};

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let pairs = digits.map(|pair| str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

/// Some are bytes of any kind, some are texts of characters that terminals and JSON dislike. The
/// same in each run.
fn random_keys() -> BTreeSet<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let odd: Vec<char> = "a:\"\\/\n\r\t\0\x1b\x7f\u{9b}\u{202e}\u{2066}\u{200b}\u{2028}é日😀{}"
        .chars()
        .collect();
    let mut keys = BTreeSet::new();
    while keys.len() < 1000 {
        let (length, is_text) = (next() % 30, next().is_multiple_of(2));
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
        let mut set = redis::cmd("SET");
        let set = set.arg(key).arg(key).arg("PX").arg(60_000);
        set.exec(&mut connection).unwrap();
    }
    let text = stdout(&place.as_operator(&["ls", "--json", "--all"]));
    let found = text.lines().map(|line| {
        let object = json(line);
        assert_eq!(object["v"], 1);
        match object["redis_key_hex"].as_str() {
            Some(hex) => unhex(hex),
            None => format!("lock:{}", object["key"].as_str().unwrap()).into_bytes(),
        }
    });
    let found: BTreeSet<_> = found.collect();
    assert!(found == keys, "{} of {}", found.len(), keys.len());
    let table = stdout(&place.as_operator(&["ls", "--all"]));
    assert_eq!(table.lines().count(), keys.len() + 1);
    for text in [table, text] {
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
    place.set(format!("lock:{odd}"), odd);
    for arguments in [
        &["holder", odd][..],
        &["holder", odd, "--json"],
        &["wait", odd, "-w", "0"],
        &["run", "-n", odd, "true"],
        &["force-unlock", odd],
        &["force-unlock", odd, "--if-token", odd],
        &["holder", odd],
        &["confirm", odd],
    ] {
        let output = place.output(arguments);
        let text = stdout(&output) + &stderr(&output);
        let raw = text.contains(['\x1b', '\u{202e}', '\u{9b}']);
        assert!(!raw, "{arguments:?}: {text:?}");
    }
}

#[test]
fn locks_come_in_the_order_that_was_asked_for() {
    let place = Place::new();
    for (name, left, pid) in [("b", "90000", 9), ("a", "80000", 11), ("c", "70000", 10)] {
        let (key, token) = (format!("lock:{name}"), format!("host-{pid}-1-{pid:032x}"));
        place.server.query::<()>(&["SET", &key, &token, "PX", left]);
    }
    for (by, expected) in [("key", "abc"), ("left", "cab"), ("holder", "bca")] {
        let text = stdout(&place.as_operator(&["ls", "--json", "--sort", by]));
        let keys = text.lines().map(|line| json(line)["key"].to_string());
        assert_eq!(keys.collect::<String>().replace('"', ""), expected);
    }
    assert_eq!(place.code(&["ls", "--sort", "age"]), 64, "nobody knows it");
}

/// Starts `ls` in the background.
fn background(place: &Place, arguments: &[&str]) -> Running {
    let mut command = place.relatch(arguments);
    command.env("REDIS_URL", place.server.bare_url());
    spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
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
    place.set("lock:new", "x");
    wait_for("new");
    // A Redis that is away does not end it.
    place.server.restart();
    place.set("lock:newer", "x");
    wait_for("newer");
    drop(lines);
    assert_eq!(watch.code(), 0, "as `ls | head`");
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let place = Place::new();
    let fill = "for n = 1, 3000 do redis.call('SET', 'lock:' .. string.rep('0', 40) .. n, 'x') end";
    place.server.query::<()>(&["EVAL", fill, "0"]);
    let mut ls = background(&place, &["ls", "--json", "--all"]);
    let mut first = [0; 10];
    ls.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!((ls.code(), &*ls.said()), (0, ""));
}

#[test]
fn counters_of_fences_are_no_locks_however_the_prefix_is_cut() {
    let place = Place::new();
    let _run = place.holds(&["--fence", "f"]);
    for (arguments, lines) in [
        (&["ls"][..], 2),
        (&["ls", "fence:"], 1),
        (&["ls", "--prefix", ""], 2),
        (&["ls", "--prefix", "", "--all"], 3),
    ] {
        let table = stdout(&place.as_operator(arguments));
        assert_eq!(table.lines().count(), lines, "{arguments:?}: {table}");
    }
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
    let output = place.as_operator(&["ls"]);
    println!("{:?}", begin.elapsed());
    assert_eq!(stdout(&output).lines().count(), 100_001);
    let slow: Vec<redis::Value> = place.server.query(&["SLOWLOG", "GET"]);
    assert!(slow.is_empty(), "{slow:?}");
}
