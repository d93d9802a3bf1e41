//! The table of `docs/command.md`: what a job gets, bare and below `flock`, `timeout` and
//! `relatch run`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Place, in_shell, stdout};

/// Each line is what the job of this kind gets. The first is the group, the last the descriptors.
/// (A pipeline would have its pipe among them for a moment.)
const PROBE: &str = "cut -d' ' -f5 /proc/$$/stat; cut -d' ' -f6 /proc/$$/stat
sed -n 's/SigIgn:.*\\(....\\)$/\\1/p; s/SigBlk:\t//p' /proc/self/status
ulimit -n; cd /proc/$$/fd; echo *";

/// How a program is started whose job is to get all that.
const AROUND: &str = "trap '' HUP; ulimit -n 321; exec 7</dev/null
exec env --ignore-signal=PIPE --block-signal=USR2 \"$@\"";

struct Way {
    wrapper: Vec<String>,
    lines: Vec<String>,
}

fn ways(place: &Place) -> Vec<Way> {
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let wrappers: [&[&str]; 4] = [
        &["env"],
        &["flock", "lockfile"],
        &["timeout", "60"],
        &[relatch, "run", "k", "--"],
    ];
    let probed = |wrapper: &[&str]| {
        let output = around(place, wrapper, PROBE).output().unwrap();
        let wrapper = wrapper.iter().map(ToString::to_string).collect();
        let lines = stdout(&output).lines().map(str::to_owned).collect();
        Way { wrapper, lines }
    };
    wrappers.map(probed).into()
}

/// A job below a wrapper.
fn around(place: &Place, wrapper: &[&str], job: &str) -> Command {
    // (Its environment, folder and group are those of a run.)
    let like = place.relatch(&[]);
    let mut command = Command::new("bash");
    command.args(["-c", AROUND, "around"]).args(wrapper);
    command.args(["bash", "-c", job]);
    command.current_dir(place.file(""));
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn found(place: &Place, bare: &Way, way: &Way) -> [String; 8] {
    let same = |line: usize| {
        let is_same = way.lines[line] == bare.lines[line];
        if is_same { "kept" } else { "another" }.to_owned()
    };
    let group = if way.lines[0] == bare.lines[0] {
        "kept"
    } else {
        "own"
    };
    let descriptors = if way.lines[5] == bare.lines[5] {
        "kept"
    } else {
        "the lock's, too"
    };
    let wrapper: Vec<_> = way.wrapper.iter().map(String::as_str).collect();
    let code = |job| in_shell(around(place, &wrapper, job).status().unwrap()).to_string();
    [
        same(3),
        same(2),
        same(4),
        descriptors.to_owned(),
        same(1),
        group.to_owned(),
        code("exit 3"),
        code("kill -TERM $$"),
    ]
}

#[test]
fn the_table_of_what_a_job_gets_is_so() {
    let place = Place::new();
    let ways = ways(&place);
    let bare = &ways[0];
    // The first ignored signals are HUP (1) and PIPE (13); blocked is USR2 (12).
    assert_eq!(&bare.lines[3], "1001", "{:?}", bare.lines);
    assert!(bare.lines[2].ends_with("0800"), "{:?}", bare.lines);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command.md");
    let page = fs::read_to_string(page).unwrap();
    let table = page.split("| | bare |").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cell = |row: &str, column: usize| {
        let cell = row.split('|').nth(column + 2).unwrap();
        cell.split(", if").next().unwrap().trim().to_owned()
    };
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 8);
    for (column, way) in ways.iter().enumerate() {
        let said = [0, 1, 2, 3, 4, 5, 6, 7].map(|row| cell(rows[row], column));
        assert_eq!(said, found(&place, bare, way), "{:?}", way.wrapper);
    }
}
