//! `flock` command lines, of its manual and of common cron tables, with `relatch run` in its place.

use std::thread;

use crate::support::{Place, in_shell, stdout};

/// `L` is the command, and `F` a file or a key. What is printed and what is written to `out` has to
/// be the same.
const LINES: [&str; 31] = [
    "L F false",
    "L F echo one two",
    "L F -c 'echo $((1 + 2))'",
    "L F -c 'exit 42'",
    "L F --command 'echo long'",
    "L F sh -c 'kill -9 $$'",
    "L --nonblock F echo free",
    "L --nb F echo free",
    "L -w 5 F echo free",
    "L --wait 5 F echo free",
    "L --timeout 5 F echo free",
    "L -w 0.5 F echo free",
    "L -e F echo exclusive",
    "L -o F echo closed",
    "L -E 9 F echo free",
    "L --conflict-exit-code 9 -n F echo free",
    "echo piped | L F cat",
    "echo piped | L F sh -c 'read line; echo $line'",
    "L F sh -c 'echo err >&2; echo out' 2>/dev/null",
    "L F echo written > out; cat out",
    "L F printf '%s|' 'two words' '' '*'",
    "L F echo -n x",
    "L F echo -- y",
    // Scripts that do not name their shell, and a shell of one's own.
    "echo 'echo $0 $*' > job; chmod +x job; L F ./job a 'b c'",
    "echo 'echo $0 $*' > job; chmod +x job; PATH=$PATH:. L F job a",
    "printf '#!/bin/sh\\necho own $*' > own; chmod +x own; SHELL=./own L F -c 'a b'",
    // While another one has it.
    "hold; L -n F echo two || echo busy",
    "hold; L -n -E 9 F echo two; echo $?",
    "hold; L -w 1 -E 9 F echo two; echo $?",
    "hold; L -w 1 F echo two || echo busy",
    "hold; L F sh -c 'echo second >> out'; cat out",
];

fn outcome(place: &Place, line: &str, flock: &str, lock: &str) -> (i32, String) {
    let script = format!(
        "mkdir {lock}.d; cd {lock}.d
         hold() {{ {flock} {lock} sh -c 'echo first >> out; sleep 5' & while ! test -s out; do sleep 0.01; done; }}
         {}",
        line.replace("L ", &format!("{flock} ")).replace(" F ", &format!(" {lock} ")),
    );
    let output = place.bash(&script).output().unwrap();
    let out = place.text(&format!("{lock}.d/out"));
    (
        in_shell(output.status),
        format!("{}, {out}", stdout(&output)),
    )
}

#[test]
fn relatch_run_does_what_flock_does() {
    let place = &Place::new();
    let lines: Vec<_> = LINES.iter().enumerate().collect();
    thread::scope(|scope| {
        let (quick, slow) = lines.split_at(LINES.len() - 5);
        for part in quick.chunks(9).chain(slow.chunks(1)) {
            scope.spawn(move || {
                for (number, line) in part {
                    let expected = outcome(place, line, "flock", &format!("file{number}"));
                    let ours = outcome(place, line, "$R run", &format!("key{number}"));
                    assert_eq!(ours, expected, "{line}");
                }
            });
        }
    });
}
