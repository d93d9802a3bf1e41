//! The table of `docs/command.md`: what a job gets, bare and below `flock`, `timeout` and
//! `relatch run`.

use std::os::unix::process::CommandExt;

use crate::support::{Place, RELATCH, our_group, page, spawn, stdout};

/// Each line is what the job of this kind gets. The first is the group, the last the descriptors.
/// (A pipeline would have its pipe among them for a moment.)
const PROBE: &str = "cut -d' ' -f5 /proc/$$/stat; cut -d' ' -f6 /proc/$$/stat
sed -n 's/SigIgn:.*\\(....\\)$/\\1/p; s/SigBlk:\t//p' /proc/self/status
ulimit -n; cd /proc/$$/fd; echo *";

/// How a program is started whose job is to get all that.
const AROUND: &str = "trap '' HUP; ulimit -n 321; exec 7</dev/null
exec env --ignore-signal=PIPE --block-signal=USR2 \"$@\"";

/// The things that a job inherits below a wrapper.
struct Way<'a> {
    place: &'a Place,
    wrapper: &'a [&'a str],
    lines: Vec<String>,
}

impl<'a> Way<'a> {
    fn new(place: &'a Place, wrapper: &'a [&'a str]) -> Way<'a> {
        let job = ["bash", "-c", PROBE];
        let around = [&["-c", AROUND, "around"], wrapper, &job].concat();
        let mut bash = place.program("bash", &around);
        let output = bash.process_group(our_group()).output().unwrap();
        let lines = stdout(&output).lines().map(str::to_owned).collect();
        Way {
            place,
            wrapper,
            lines,
        }
    }

    fn code(&self, job: &str) -> String {
        let run = [self.wrapper, &["bash", "-c", job]].concat();
        spawn(&mut self.place.program(run[0], &run[1..]))
            .code()
            .to_string()
    }

    /// A column of the table.
    fn found(&self, bare: &Way<'_>) -> [String; 8] {
        let same = |line: usize, other: &str| {
            let is_same = self.lines[line] == bare.lines[line];
            if is_same { "kept" } else { other }.to_owned()
        };
        [
            same(3, "changed"),
            same(2, "changed"),
            same(4, "changed"),
            same(5, "plus the lock's"),
            same(1, "changed"),
            same(0, "own"),
            self.code("exit 3"),
            self.code("kill -TERM $$"),
        ]
    }
}

#[test]
fn the_table_of_what_a_job_gets_is_so() {
    let place = Place::new();
    let wrappers: [&[&str]; 4] = [
        &["env"],
        &["flock", "lockfile"],
        &["timeout", "60"],
        &[RELATCH, "run", "k", "--"],
    ];
    let ways = wrappers.map(|wrapper| Way::new(&place, wrapper));
    let bare = &ways[0];
    // The first ignored signals are HUP (1) and PIPE (13); blocked is USR2 (12).
    assert_eq!(&bare.lines[3], "1001", "{:?}", bare.lines);
    assert!(bare.lines[2].ends_with("0800"), "{:?}", bare.lines);
    let page = page("docs/command.md");
    let table = page.split("| | bare |").nth(1).unwrap();
    let rows = table.lines().skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 8);
    for (column, way) in ways.iter().enumerate() {
        let said = [0, 1, 2, 3, 4, 5, 6, 7].map(|row| {
            let cell = rows[row].split('|').nth(column + 2).unwrap();
            cell.split(", if").next().unwrap().trim().to_owned()
        });
        assert_eq!(said, way.found(bare), "{:?}", way.wrapper);
    }
}
