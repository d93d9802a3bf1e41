//! Rules for the repository that a test can check: rooms, sizes, versions, and the names and links
//! in the docs.

// What the code may not do, and how long it may be.
mod code;
// What a program can call, and its examples.
mod face;
// The rooms of `src`: how large they are, and what they use.
mod rooms;
// Which file of `src` uses which.
mod graph;
// The map of the code, from the first lines of its files.
mod map;
// The pages: what they name exists, and what they repeat is true.
mod pages;
// The examples: each can be copied.
mod examples;
// The alerts and the dashboard: the metrics that they name exist.
mod alerts;
// The dependencies: which Rust they need, and which there are.
mod packages;

use std::fs;
use std::path::{Path, PathBuf};

/// The path and the text of every Rust file in `src` that programs use, with its unit tests.
fn sources() -> Vec<(PathBuf, String)> {
    let is_only_for_tests = |path: &Path| {
        [
            "src/interleavings",
            "src/base/garbled.rs",
            "src/base/sync/scheduler",
            "src/client/wire/system/simulated.rs",
        ]
        .iter()
        .any(|folder| path.starts_with(root().join(folder)))
    };
    all_sources()
        .into_iter()
        .filter(|(path, _)| !is_only_for_tests(path))
        .collect()
}

/// The path and the text of every Rust file in `src`.
fn all_sources() -> Vec<(PathBuf, String)> {
    rust_files("src")
}

/// The path and the text of every Rust file in a folder of the repository, and in its folders.
fn rust_files(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a text");
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "looked in the wrong place: {folder}");
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file up to its unit tests, which come last. (A helper for tests may come before.)
fn without_tests(text: &str) -> &str {
    let tests = [
        "#[cfg(test)]\nmod ",
        "#[cfg(test)]\npub(crate) mod ",
        "#[cfg(test)]\npub(super) mod ",
    ];
    // A module in a file of its own is declared with a semicolon, and the file goes on.
    let has_a_body = |at: &usize| {
        let declaration = text[*at..].lines().nth(1).unwrap_or_default();
        declaration.ends_with('{')
    };
    let starts = tests.iter().flat_map(|tests| text.match_indices(tests));
    let starts = starts.map(|(at, _)| at).filter(has_a_body);
    &text[..starts.min().unwrap_or(text.len())]
}

/// The lines of a text that are no comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

/// The text of a file of the repository.
fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A path in the repository, as a text.
fn inside(path: &Path) -> &str {
    let inside = path.strip_prefix(root()).expect("in the repository");
    inside.to_str().expect("UTF-8")
}
