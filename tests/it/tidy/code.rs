//! What the code may not do, and how long it may be.

use crate::tidy::{all_sources, code, inside, rust_files, sources, without_tests};

/// The macros of these crates would let a panic of the program's code out.
#[test]
fn only_emit_calls_the_logger_the_recorder_and_the_subscriber() {
    for (path, text) in sources() {
        let names = |line: &&str| {
            let crates = [
                "log::",
                " ::metrics::",
                "(::metrics::",
                "use metrics::",
                "tracing::",
            ];
            crates.iter().any(|it| line.contains(it))
        };
        let named: Vec<_> = code(without_tests(&text)).filter(names).collect();
        assert!(
            named.is_empty() || path.ends_with("base/emit.rs"),
            "{}: {named:?}",
            path.display()
        );
    }
}

/// A random generator with state in the process would be copied by a fork or a snapshot, and two
/// processes would draw the same tokens. A thread-local generator would be gone when other
/// thread-locals are dropped. (The unit tests use one, so the compiler does not refuse it.)
#[test]
fn random_numbers_come_from_the_system() {
    for (path, text) in sources() {
        for generator in [
            "rand::rng(",
            "rand::random",
            "ThreadRng",
            "StdRng",
            "SmallRng",
        ] {
            assert!(
                !without_tests(&text).contains(generator),
                "{} uses {generator}",
                path.display()
            );
        }
    }
}

#[test]
fn files_stay_small_and_do_not_unwrap() {
    let mut wrong = Vec::new();
    let command = rust_files("cli/src");
    for (path, text) in sources().into_iter().chain(command) {
        let own = without_tests(&text);
        let length = own.lines().count();
        if length > 400 {
            wrong.push(format!("{}: {length} lines", inside(&path)));
        }
        if code(own).any(|line| line.contains(".unwrap()")) {
            wrong.push(format!("{} unwraps", inside(&path)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A name that asks promises that nothing changes.
#[test]
fn questions_do_not_act() {
    let mut acting = Vec::new();
    for (path, text) in sources().into_iter().chain(rust_files("cli/src")) {
        for part in without_tests(&text).split("fn ").skip(1) {
            let signature = part.split(['{', ';']).next().expect("a first part");
            let asks = ["is_", "has_", "shows_"];
            if asks.iter().any(|it| signature.starts_with(it)) && signature.contains("&mut self") {
                acting.push(format!("{}: {signature}", inside(&path)));
            }
        }
    }
    assert!(acting.is_empty(), "{acting:#?}");
}

/// A function goes from the line with its `fn` to the closing brace with the same indentation.
#[test]
fn functions_can_be_seen_whole() {
    let mut long = Vec::new();
    let command = rust_files("cli/src");
    for (path, text) in all_sources().into_iter().chain(command) {
        let lines: Vec<_> = without_tests(&text).lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let is_function =
                code.split(' ').take(4).any(|word| word == "fn") && !code.starts_with("//");
            if !is_function || code.ends_with(';') || code.ends_with('}') {
                continue;
            }
            let end = format!("{}}}", &line[..line.len() - code.len()]);
            let end = lines[start..].iter().position(|line| **line == end);
            let length = end.expect("the function ends") + 1;
            if length > 60 {
                long.push(format!("{}:{}: {length} lines", inside(&path), start + 1));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}
