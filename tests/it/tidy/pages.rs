//! The pages: what they name exists, and what they repeat of the code is true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::{env, fs};

use crate::tidy::map;
use crate::tidy::{all_sources, code, inside, root, rust_files, sources, text, without_tests};

/// The pages in `docs`, and those at the root.
fn pages() -> Vec<PathBuf> {
    let of = |folder: &str| {
        let entries = fs::read_dir(root().join(folder)).expect("a folder");
        let paths = entries.map(|it| it.expect("an entry").path());
        paths
            .filter(|path| path.extension().is_some_and(|it| it == "md") && !path.ends_with(LINKS))
            .collect::<Vec<_>>()
    };
    let found = [of("docs"), of("")].concat();
    assert!(found.len() > 10, "{found:?}");
    found
}

/// What the links of the pages lead to in rustdoc.
const LINKS: &str = "guide-links.md";

/// The pages that are also modules of `relatch::guide`, or a part of the crate's own page.
fn pages_of_the_guide() -> Vec<String> {
    let guide = text("src/lib.rs");
    let parts = guide.split("include_str!(\"../docs/").skip(1);
    let names = parts.map(|it| it.split('"').next().expect("a name").to_owned());
    let found: Vec<_> = names.filter(|name| name != LINKS).collect();
    assert!(found.len() > 8, "{found:?}");
    found
}

/// Where the links of a page lead that stand in the text itself.
fn links_in_the_text(page: &str) -> Vec<&str> {
    let parts = page.split("](").skip(1);
    parts.filter_map(|rest| rest.split(')').next()).collect()
}

/// The links that are defined in lines of their own: `[label]: target`.
fn links_below(page: &str) -> Vec<(&str, &str)> {
    page.lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
        .collect()
}

/// The anchors of a page: its headings, as GitHub and rustdoc name them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let kept = |it: char| it.is_alphanumeric() || "-_ ".contains(it);
            let name = line.trim_start_matches('#').trim().to_lowercase();
            name.chars()
                .filter(|it| kept(*it))
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
}

#[test]
fn the_changelog_knows_this_version() {
    assert!(text("CHANGELOG.md").contains(&format!("\n## {}", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_readme_is_short() {
    let words = text("README.md").split_whitespace().count();
    assert!(words <= 900, "{words} words");
}

/// The crate's own comment, and the pages that it includes.
#[test]
fn the_first_page_of_rustdoc_is_short() {
    let file = text("src/lib.rs");
    let (page, _) = file.split_once("\npub mod guide {").expect("the guide");
    let own = page.lines().filter_map(|line| line.strip_prefix("//!"));
    let included = page.split("include_str!(\"../").skip(1);
    let included = included.map(|it| text(it.split('"').next().expect("a path")));
    let included = included.collect::<Vec<_>>().join("\n");
    let seen = own.chain(included.lines());
    let seen = seen.filter(|line| links_below(line).is_empty());
    let words = seen.flat_map(str::split_whitespace);
    let words = words.filter(|word| word.contains(char::is_alphanumeric));
    let count = words.count();
    assert!(count <= 1_500, "{count} words");
}

/// One reading of ten minutes.
#[test]
fn the_guarantees_can_be_read_at_once() {
    let page = text("docs/guarantees.md");
    let words = page.split_whitespace();
    let words = words.filter(|word| word.contains(char::is_alphanumeric));
    assert!(words.clone().count() < 3_650, "{} words", words.count());
}

#[test]
fn links_lead_somewhere() {
    for path in pages() {
        let page = text(inside(&path));
        let below = links_below(&page).into_iter().map(|(_, target)| target);
        for target in links_in_the_text(&page).into_iter().chain(below) {
            if target.starts_with("http") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            assert!(file.exists(), "{} links to {target}", inside(&path));
            if !anchor.is_empty() && file.extension().is_some_and(|it| it == "md") {
                let there = anchors(&fs::read_to_string(&file).expect("a text"));
                assert!(
                    there.iter().any(|it| it == anchor),
                    "{} links to {target}, where there is only {there:?}",
                    inside(&path)
                );
            }
        }
    }
}

/// On GitHub, these pages are files beside each other; in rustdoc they are modules. So each link to
/// a page is named after its target, and `docs/guide-links.md` says what that target is in rustdoc.
#[test]
fn the_links_of_the_guide_work_in_rustdoc_too() {
    let guide = text("docs/guide-links.md");
    let known = links_below(&guide);
    let pages = pages_of_the_guide();
    let mut used = BTreeSet::new();
    for name in &pages {
        let page = text(&format!("docs/{name}"));
        for target in links_in_the_text(&page) {
            assert!(
                target.starts_with("http") || target.starts_with('#'),
                "docs/{name}: write [text][{target}], and [{target}]: {target} at the end"
            );
        }
        for (label, target) in links_below(&page) {
            assert_eq!(label, target, "docs/{name}");
            assert!(
                page.contains(&format!("][{label}]")),
                "docs/{name} does not use {label}"
            );
            used.insert(label.to_owned());
        }
    }
    for (label, target) in &known {
        let (page, anchor) = label
            .split_once('#')
            .map_or((*label, ""), |(page, it)| (page, it));
        let module = page.trim_end_matches(".md").replace('-', "_");
        let expected = match page {
            "calls.md" => "crate#which-call".to_owned(),
            "not-promised.md" => "crate#what-is-not-promised".to_owned(),
            page if pages.iter().any(|it| it == page) => format!("crate::guide::{module}"),
            page if page.starts_with("../") => {
                format!(
                    "https://github.com/relatch/relatch/blob/main/{}",
                    &page[3..]
                )
            }
            page => format!("https://github.com/relatch/relatch/blob/main/docs/{page}"),
        };
        let expected = match anchor {
            "" => expected,
            anchor => format!("{expected}#{anchor}"),
        };
        assert_eq!(*target, expected, "docs/guide-links.md, {label}");
    }
    let known: BTreeSet<_> = known
        .into_iter()
        .map(|(label, _)| label.to_owned())
        .collect();
    assert_eq!(
        known, used,
        "what docs/guide-links.md defines, and what the pages use"
    );
}

/// The text of the tests in `tests/it`, `tests/history` and `cli/tests`, and of the scenes of the
/// simulation.
fn tests() -> String {
    [
        "tests/it",
        "tests/history",
        "cli/tests",
        "tests/simulation",
        "src/interleavings",
    ]
    .into_iter()
    .flat_map(rust_files)
    .map(|(_, text)| text)
    .collect()
}

#[test]
fn every_fault_of_the_guarantees_has_a_test() {
    let (guarantees, evidence, tests) = (
        text("docs/guarantees.md"),
        text("docs/evidence.md"),
        tests(),
    );
    for number in 1..=37 {
        let row = format!("\n| {number} | ");
        assert_eq!(
            guarantees.matches(&row).count(),
            1,
            "row {number} of the guarantees"
        );
        assert_eq!(
            evidence.matches(&row).count(),
            1,
            "row {number} of the evidence"
        );
        let (_, rest) = evidence.split_once(&row).expect("the row");
        let line = rest.lines().next().expect("a line");
        let name = format!("row_{number:02}_");
        assert!(
            line.contains(&name),
            "the evidence names no test of row {number}"
        );
        let found = named_so(&tests, &name);
        assert!(!found.is_empty(), "row {number} is not tested");
        for test in found {
            // (The same test over TLS goes without saying.)
            let test = test.trim_end_matches("_over_tls");
            assert!(
                line.contains(&format!("`{name}*`")) || evidence.contains(&format!("`{test}`")),
                "row {number} of the evidence lacks {test}"
            );
        }
    }
}

/// The tests whose names begin so. (A function that takes something is no test.)
fn named_so(tests: &str, begin: &str) -> Vec<String> {
    let begin_of_one = format!("fn {begin}");
    let after = tests.split(&begin_of_one).skip(1);
    let names = after.filter_map(|rest| Some(rest.split_once("()")?.0));
    let names = names.filter(|rest| words_of(rest).eq([*rest]));
    names.map(|rest| format!("{begin}{rest}")).collect()
}

/// A list of tests, and no second page of guarantees.
#[test]
fn the_evidence_is_a_list() {
    let words = text("docs/evidence.md").split_whitespace().count();
    assert!(words < 3_000, "{words} words");
}

#[test]
fn the_tests_that_the_evidence_names_exist() {
    let tests = tests();
    let evidence = text("docs/evidence.md");
    let words = evidence.split('`').skip(1).step_by(2);
    let named: Vec<_> = words
        .filter(|word| word.matches('_').count() > 2 || word.starts_with("row_"))
        .collect();
    assert!(named.len() > 300, "{}", named.len());
    for name in named.iter().filter(|name| **name != "row_NN_...") {
        let start = name
            .strip_suffix('*')
            .map_or_else(|| format!("fn {name}()"), |some| format!("fn {some}"));
        assert!(tests.contains(&start), "no test is called {name}");
    }
}

#[test]
fn every_invariant_of_the_architecture_names_its_tests() {
    let unit_tests: String = all_sources().into_iter().map(|(_, text)| text).collect();
    let tests = [tests(), unit_tests].concat();
    let page = text("docs/architecture.md");
    let (_, part) = page.split_once("\n## Invariants\n").expect("the part");
    let part = part.split("\n## ").next().expect("a first part");
    let invariants: Vec<_> = part.split("\n- ").skip(1).collect();
    assert!(invariants.len() > 10, "{invariants:?}");
    for invariant in invariants {
        let (_, names) = invariant
            .split_once("Tests: ")
            .unwrap_or_else(|| panic!("no test holds: {invariant}"));
        let names: Vec<_> = names.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test holds: {invariant}");
        for name in names {
            assert!(
                tests.contains(&format!("fn {name}()")),
                "no test is called {name}: {invariant}"
            );
        }
    }
}

/// In the tables for users, each word with an underscore or parentheses is one of the code.
#[test]
fn the_calls_that_the_tables_for_users_name_exist() {
    let sources: String = sources().into_iter().map(|(_, text)| text).collect();
    let mut looked_at = 0;
    for page in ["calls", "defaults", "errors", "trouble"] {
        let page = text(&format!("docs/{page}.md"));
        let rows = page.lines().filter(|line| line.starts_with("| "));
        for code in rows.flat_map(|row| row.split('`').skip(1).step_by(2)) {
            let calls = code.split_inclusive(|it: char| !it.is_alphanumeric() && it != '_');
            for call in calls {
                let name = call.trim_end_matches(|it: char| !it.is_alphanumeric());
                let is_name = name.starts_with(char::is_lowercase);
                if is_name && (call.ends_with('(') || name.contains('_')) {
                    looked_at += 1;
                    let is_named = |what: String| sources.contains(&what);
                    let exists =
                        is_named(format!("pub fn {name}")) || is_named(format!(" {name}: "));
                    assert!(exists, "{name}: {code}");
                }
            }
        }
    }
    assert!(looked_at > 40, "{looked_at}");
}

/// In the tables of the architecture, a row names files, and functions that are in one of them.
#[test]
fn what_the_architecture_names_is_in_the_files_that_it_names() {
    let page = text("docs/architecture.md");
    let mut looked_at = 0;
    let mut missing = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let words = row.split('`').skip(1).step_by(2);
        let paths = words.filter_map(|word| word.strip_suffix(".rs").filter(|it| it.contains('/')));
        let files: String = paths.map(|path| text(&format!("src/{path}.rs"))).collect();
        if files.is_empty() {
            continue;
        }
        looked_at += 1;
        let cell = row.split(" | ").nth(1).expect("a second cell");
        for word in cell.split('`').skip(1).step_by(2) {
            let name = word.rsplit("::").next().expect("a name");
            let is_part = |it: char| it.is_lowercase() || it == '_';
            let is_function = name.chars().all(is_part) && word != "build";
            if is_function && !files.contains(&format!("fn {name}")) {
                missing.push(format!("{word}: {row}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(looked_at > 38, "{looked_at}");
}

/// What the words of users and those of the code mean: the second cells of their tables.
fn glossary() -> Vec<String> {
    let page = text("docs/architecture.md");
    let (_, part) = page
        .split_once("\n## Words\n")
        .expect("the words of the code");
    let part = part.split("\n## ").next().expect("a first part");
    let tables = [&text("docs/words.md"), part].concat();
    let rows = tables.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| row.split(" | ").nth(1).expect("a second cell").to_owned())
        .collect()
}

#[test]
fn the_types_that_the_glossary_names_exist() {
    let sources: String = sources().into_iter().map(|(_, text)| text).collect();
    let mut missing = Vec::new();
    for meaning in glossary() {
        for word in meaning.split('`').skip(1).step_by(2) {
            let is_type = word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase);
            let kinds = ["struct", "enum", "trait"];
            if is_type
                && !kinds
                    .iter()
                    .any(|kind| sources.contains(&format!("{kind} {word}")))
            {
                missing.push(word.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

/// A public type has its documentation.
#[test]
fn a_type_with_fifty_uses_is_in_the_glossary() {
    let sources: Vec<_> = sources()
        .into_iter()
        .map(|(_, text)| code(without_tests(&text)).collect::<Vec<_>>().join("\n"))
        .collect();
    let mut uses = BTreeMap::new();
    for word in sources.iter().flat_map(|text| words_of(text)) {
        *uses.entry(word).or_insert(0) += 1;
    }
    let types = |seen: &'static str| {
        let lines = sources.iter().flat_map(|text| text.lines());
        let seen = lines.filter_map(move |line| line.strip_prefix(seen));
        seen.filter_map(|line| {
            let mut words = words_of(line);
            let is_type = ["struct", "enum", "trait"].contains(&words.next()?);
            is_type.then(|| words.next())?
        })
    };
    let public: BTreeSet<_> = types("pub ").collect();
    let inside = ["", "pub(crate) ", "pub(super) "].map(types);
    let inside = inside.into_iter().flatten();
    let known = glossary().concat();
    let used: BTreeSet<_> = inside
        .filter(|name| uses[name] >= 50 && !public.contains(name))
        .collect();
    assert!(used.len() > 5, "{used:?}");
    let unknown: Vec<_> = used
        .iter()
        .filter(|name| !known.contains(&format!("`{name}`")))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|it: char| !it.is_alphanumeric() && it != '_');
    words.filter(|word| !word.is_empty())
}

/// `RELATCH_WRITE_MAP=1` writes the map anew.
#[test]
fn the_code_map_is_that_of_the_code() {
    const PAGE: &str = "docs/architecture.md";
    let page = text(PAGE);
    let start = page.find("\n| room | what").expect("the map");
    let end = page.find("\n## The path of a key").expect("the next part");
    let map = map::written();
    if env::var("RELATCH_WRITE_MAP").is_ok() {
        let page = [&page[..start], &map, &page[end..]].concat();
        fs::write(root().join(PAGE), page).expect("the page can be written");
    } else if page[start..end] != map {
        panic!("{PAGE}: RELATCH_WRITE_MAP=1 cargo test --test it code_map");
    }
}

/// The words in backticks that begin a line of a table, and with one of these.
fn rows<'a>(page: &'a str, begin: &str) -> BTreeSet<&'a str> {
    let lines = page.lines().filter_map(|line| {
        line.trim_start()
            .trim_start_matches("//! ")
            .strip_prefix("| `")
    });
    let words = lines.filter_map(|line| line.split('`').next());
    words.filter(|word| word.starts_with(begin)).collect()
}

/// What the code names: what follows after one of these, up to a quote.
fn in_the_code(begins: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, text) in sources() {
        let text = code(without_tests(&text)).collect::<Vec<_>>().join("\n");
        for begin in begins {
            let names = text
                .split(begin)
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            found.extend(names.map(str::to_owned));
        }
    }
    found
}

#[test]
fn the_tables_of_threads_are_those_of_the_code() {
    let names = in_the_code(&["\"relatch-"]);
    let of_pool = |name: &str| name.replace("{}", "0");
    let names: BTreeSet<_> = names
        .iter()
        .map(|it| format!("relatch-{}", of_pool(it)))
        .collect();
    let names: BTreeSet<_> = names.iter().map(String::as_str).collect();
    assert!(names.len() > 5, "{names:?}");
    assert_eq!(rows(&text("src/lib.rs"), "relatch-"), names, "src/lib.rs");
    assert_eq!(
        rows(&text("docs/architecture.md"), "relatch-"),
        names,
        "docs/architecture.md"
    );
}

#[test]
fn the_table_of_log_targets_is_that_of_the_code() {
    let targets = in_the_code(&["target: \"", "TARGET: &str = \""]);
    let targets: BTreeSet<_> = targets.iter().map(String::as_str).collect();
    assert!(targets.len() > 5, "{targets:?}");
    assert_eq!(
        rows(&text("src/lib.rs"), "relatch::"),
        targets,
        "src/lib.rs"
    );
}

/// A page says where a file is by a link.
#[test]
fn no_page_speaks_of_the_repository_without_a_link() {
    let in_code = sources()
        .into_iter()
        .map(|(path, text)| (path, without_tests(&text).to_owned()));
    let in_pages = pages()
        .into_iter()
        .map(|path| (path.clone(), text(inside(&path))));
    for (path, text) in in_code.chain(in_pages) {
        assert!(!text.contains("of the repository"), "{}", inside(&path));
    }
}

#[test]
fn the_servers_that_are_claimed_are_those_that_the_tests_run_with() {
    assert!(text("README.md").contains("Redis 6.2, 7.0, 8.2 and 8.10, and Valkey 8.1 and 9.1:"));
    assert!(
        text("docs/guarantees.md")
            .contains("Redis 6.2.14, 7.0.15, 8.2.3 and 8.10.2 and with Valkey 8.1.8 and\n9.1.2")
    );
    let script = text("tests/servers.sh");
    for server in [
        "redis-6.2",
        "system",
        "redis-8.2",
        "redis-8.10",
        "valkey-8.1",
        "valkey-9.1",
    ] {
        assert!(script.contains(server), "{server}");
    }
}
