//! The examples: each can be copied, and some page leads to each.

use std::collections::BTreeSet;

use crate::tidy::{code, inside, rust_files, text};

/// The crates that a program depends on, by the paths and imports of its file.
fn crates(file: &str) -> BTreeSet<String> {
    let is_part = |it: char| it.is_alphanumeric() || it == '_';
    let own = ["std", "super", "crate", "self"];
    let mut found = BTreeSet::new();
    for line in code(file).filter_map(|line| line.strip_prefix("use ")) {
        let name = line.split(|it| !is_part(it)).next().expect("a name");
        found.insert(name.to_owned());
    }
    // A crate of the manifest may also be named without an import.
    let manifest = text("examples/Cargo.toml");
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").expect("the part");
    for line in dependencies.lines().take_while(|line| !line.is_empty()) {
        let name = line.split(' ').next().expect("a name").replace('-', "_");
        if code(file).any(|line| line.contains(&format!("{name}::"))) {
            found.insert(name);
        }
    }
    found.retain(|name| !own.contains(&name.as_str()));
    found
}

/// So a reader who copies a file knows from its first lines what else to do.
#[test]
fn each_example_says_what_it_needs() {
    let manifest = text("examples/Cargo.toml");
    for (path, file) in rust_files("examples") {
        let path = inside(&path);
        let name = path
            .strip_prefix("examples/")
            .and_then(|it| it.strip_suffix(".rs"));
        let name = name.expect("a file in the folder itself");
        let head: Vec<_> = file
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect();
        let run = format!("`bash examples/run.sh {name}");
        assert!(
            head.iter().any(|line| line.contains(&run)),
            "{path}: {head:?}"
        );
        let copy = head
            .iter()
            .find_map(|line| line.strip_prefix("//! Copy it: `"));
        let copy = copy
            .unwrap_or_else(|| panic!("{path}: {head:?}"))
            .trim_end_matches('`');

        let mut needed = crates(&file);
        assert!(needed.remove("relatch"), "{path} takes no lock");
        assert!(needed.len() <= 1, "{path} is about one thing: {needed:?}");
        let mut steps = copy.split(" && ");
        let tls = if file.contains("Tls") {
            " --features tls"
        } else {
            ""
        };
        assert_eq!(
            steps.next(),
            Some(&*format!("cargo add relatch --path ../relatch{tls}"))
        );
        let added: Vec<_> = steps
            .filter_map(|step| step.strip_prefix("cargo add "))
            .collect();
        let added: BTreeSet<_> = added
            .iter()
            .map(|step| step.split(' ').next().expect("a name").replace('-', "_"))
            .collect();
        assert_eq!(added, needed, "{path}");
        let target = format!("name = \"{name}\"\npath = \"{name}.rs\"\n");
        assert!(manifest.contains(&target), "{path} is not built");
        assert!(file.lines().count() <= 100, "{path} is long");
    }
}

/// The other direction, that what a page links exists, is a test of all links.
#[test]
fn a_page_of_the_guide_leads_to_each_example() {
    let links = text("docs/guide-links.md");
    for (path, _) in rust_files("examples") {
        let path = inside(&path);
        assert!(links.contains(&format!("[../{path}]: ")), "{path}");
    }
}
