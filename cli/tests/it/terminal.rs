//! At a terminal, which `script` provides.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::support::Place;

/// Runs a line at a terminal, types something when it says "ready", and returns what the terminal
/// shows.
fn at_terminal(place: &Place, line: &str, typed: &[u8]) -> String {
    let mut child = Command::new("script")
        .args(["-qec", line, "/dev/null"])
        .env("REDIS_URL", place.server.url())
        .env_remove("RELATCH_URL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("ready") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        shown.push(byte[0]);
    }
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(typed).unwrap();
    stdout.read_to_end(&mut shown).unwrap();
    drop(stdin);
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn ctrl_c_and_the_input_reach_the_job_once() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let job =
        "trap 'echo caught' INT; echo ready; read line; echo got $line; read line; echo got $line";
    let line = format!("{relatch} run k bash -c \"{job}\"; echo code $?");
    let shown = at_terminal(
        &place,
        &line.replace("$line", "\\$line"),
        b"\x03word\nother\n",
    );
    assert_eq!(shown.matches("caught").count(), 1, "{shown}");
    assert!(shown.contains("got word"), "{shown}");
    let line = format!("{relatch} run k sh -c 'echo ready; exec sleep 60'; echo code $?");
    let shown = at_terminal(&place, &line, b"\x03");
    assert!(shown.contains("code 130"), "{shown}");
}
