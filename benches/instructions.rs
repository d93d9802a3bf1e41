//! What a lock costs in instructions of the program, side by side with a plain connection of the
//! `redis` crate: `bash benches/instructions.sh`.
//!
//! Times vary with the machine, but the count of executed instructions does not. The plain
//! connection sends the same two commands, `SET key token NX PX` and the compare-and-delete by
//! `EVALSHA`. So the ratio shows what a lock costs in the program itself.
//!
//! Callgrind counts `rep stosb`, by which glibc zeroes memory, once for each byte. The plain
//! connection zeroes 4 KiB for each reply, which takes 0.1 us: that counted as 8,200 of 18,600
//! instructions a cycle. So glibc is told to use vectors, as it does for less memory.
//!
//! Each subject runs under `valgrind --tool=callgrind` twice, for fewer and for more cycles. The
//! difference of the two counts leaves out the cost of starting and connecting.

mod support;

use std::env;
use std::fs;
use std::process::{Command, Stdio};

use relatch::LockManager;

use relatch_rig::{Cluster, Server};
use support::Floor;

/// Has glibc zero memory without `rep stosb`.
const VECTORS: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.x86_rep_stosb_threshold=1073741824",
);

/// The cycles of the two runs.
const FEWER: u64 = 200;
const MORE: u64 = 2200;

const SUBJECTS: [(&str, &str); 4] = [
    ("connection", "a plain connection: SET + EVALSHA"),
    ("lock", "lock + unlock"),
    ("fenced", "lock + unlock, with a fence"),
    ("cluster", "lock + unlock, in a cluster"),
];

fn main() {
    // Cargo adds `--bench`.
    let args: Vec<_> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.as_slice() {
        [] if has_valgrind() => compare(),
        [] => {
            println!(
                "instructions: left out, valgrind is not installed (apt-get install valgrind)"
            );
        }
        [subject, url, cycles] => run(subject, url, cycles.parse().expect("a number of cycles")),
        _ => println!("usage: cargo bench --bench instructions (it takes no arguments)"),
    }
}

fn has_valgrind() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|it| it.success())
}

fn compare() {
    let (server, cluster) = (Server::start(), Cluster::without_replicas());
    println!("{:<36}{:>20}{:>8}", "", "instructions/cycle", "ratio");
    let mut floor = None;
    for (subject, name) in SUBJECTS {
        let url = if subject == "cluster" {
            cluster.url()
        } else {
            server.url()
        };
        let [fewer, more] = [FEWER, MORE].map(|cycles| count(subject, &url, cycles));
        let cycle = (more - fewer) / (MORE - FEWER);
        let floor = *floor.get_or_insert(cycle);
        println!(
            "{name:<36}{cycle:>20}{:>8}",
            format!("{}.{:02}", cycle / floor, cycle * 100 / floor % 100)
        );
    }
}

/// Runs this program for one subject under callgrind, and returns the count of instructions.
fn count(subject: &str, url: &str, cycles: u64) -> u64 {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let counts = dir.path().join("counts");
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            &format!("--callgrind-out-file={}", counts.display()),
        ])
        .arg(env::current_exe().expect("this program has a path"))
        .args([subject, url, &cycles.to_string()])
        .env(VECTORS.0, VECTORS.1)
        .output()
        .expect("valgrind runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let counts = fs::read_to_string(counts).expect("callgrind writes its counts");
    let total = counts
        .lines()
        .find_map(|line| line.strip_prefix("totals: "))
        .expect("a total");
    total.trim().parse().expect("a number")
}

/// What a process under callgrind does: `cycles` cycles of one subject.
fn run(subject: &str, url: &str, cycles: u64) {
    match subject {
        "connection" => {
            let mut floor = Floor::open(url);
            (0..cycles).for_each(|_| floor.cycle("lock:floor"));
        }
        "lock" | "fenced" | "cluster" => {
            let builder = LockManager::builder(url).fenced(subject == "fenced");
            let locks = builder.build().expect("a Redis of our own");
            (0..cycles).for_each(|_| drop(locks.lock("one").expect("locks")));
        }
        other => panic!("no such subject: {other}"),
    }
}
