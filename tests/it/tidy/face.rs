//! The public face: how many functions a program can call, and that each has an example that runs.

use std::collections::BTreeSet;

use crate::tidy::{sources, text, without_tests};

/// The most functions. A new one takes the place of another, or says why the face has to grow:
/// `survey` and `check` are what an operator and a probe ask of a Redis, which nothing else
/// answers; without `classes`, no metric says which locks it is about; a lock that N may hold, or
/// readers together, is none of the others: `slots`, `holders`, `slot`, `read_write` and its eight.
const MOST: usize = 154;

/// A function that a program can call.
struct Function {
    name: String,
    /// The words behind the opening fences of its documentation.
    examples: Vec<String>,
}

impl Function {
    /// An example that runs has no word, or one that says nothing about how to run it.
    fn has_example(&self) -> bool {
        let is_run = |words: &String| words.is_empty() || words == "rust";
        self.examples.iter().any(is_run)
    }
}

/// The names at the root of the crate.
fn public_names() -> BTreeSet<String> {
    let root = text("src/lib.rs");
    let uses = root.split("\npub use ").skip(1);
    let lists = uses.filter_map(|rest| rest.split(';').next());
    let names = lists.flat_map(|list| list.split([',', '{', '}', ':']));
    names.map(|name| name.trim().to_owned()).collect()
}

/// The public functions of a file: methods in an `impl` of a public type, and free functions.
fn functions(text: &str, public: &BTreeSet<String>) -> Vec<Function> {
    let mut found = Vec::new();
    let mut owner = "";
    let mut docs: Vec<&str> = Vec::new();
    for line in without_tests(text).lines() {
        let code = line.trim_start();
        if let Some(named) = line.strip_prefix("impl") {
            let named = named.split_once("> ").map_or(named, |(_, named)| named);
            owner = named
                .trim_start()
                .split([' ', '<'])
                .next()
                .unwrap_or_default();
        } else if line == "}" {
            owner = "";
        }
        let declared = code
            .strip_prefix("pub fn ")
            .or_else(|| code.strip_prefix("pub const fn "));
        if let Some(doc) = code.strip_prefix("///") {
            docs.push(doc.trim());
        } else if let Some(rest) = declared {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if public.contains(if owner.is_empty() { name } else { owner }) {
                let fences = docs.iter().filter_map(|doc| doc.strip_prefix("```"));
                found.push(Function {
                    name: format!("{owner}::{name}"),
                    examples: fences.step_by(2).map(str::to_owned).collect(),
                });
            }
            docs.clear();
        } else if code.is_empty() || code.ends_with('}') {
            docs.clear();
        }
    }
    found
}

fn public_functions() -> Vec<Function> {
    let public = public_names();
    assert!(public.contains("LockManager"), "{public:?}");
    let files = sources().into_iter();
    files
        .flat_map(|(_, text)| functions(&text, &public))
        .collect()
}

#[test]
fn the_face_stays_small() {
    let functions = public_functions();
    let count = functions.len();
    assert!(count > 100, "looked in the wrong place: {count}");
    assert!(count <= MOST, "{count} public functions");
}

#[test]
fn each_public_function_has_an_example_that_runs() {
    let without: Vec<_> = public_functions()
        .into_iter()
        .filter(|function| !function.has_example())
        .map(|function| function.name)
        .collect();
    assert!(without.is_empty(), "{without:#?}");
}
