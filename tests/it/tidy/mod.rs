//! Rules for the repository that a test can check: layers, sizes, versions, and the names and links
//! in the docs.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The path and the text of every Rust file in `src` that programs use, with its unit tests.
fn sources() -> Vec<(PathBuf, String)> {
    let is_only_for_tests = |path: &Path| {
        ["src/simulation", "src/base/sync/scheduler"]
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
    let starts = tests.iter().filter_map(|tests| text.find(tests));
    &text[..starts.min().unwrap_or(text.len())]
}

/// The modules that a file declares, in its order: from the top layer to the bottom layer.
fn declared(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("a text");
    let after_mod = |line: &str| Some(line.split_once("mod ")?.1.strip_suffix(';')?.to_owned());
    let is_declaration =
        |line: &&str| line.starts_with("mod ") || line.starts_with("pub(crate) mod ");
    text.lines()
        .filter(is_declaration)
        .filter_map(after_mod)
        .collect()
}

/// The rooms and files at the root of `src`, from the top layer to the bottom one.
fn layers() -> HashMap<String, usize> {
    let names = declared(&root().join("src/lib.rs"));
    names
        .into_iter()
        .enumerate()
        .map(|(depth, name)| (name, depth))
        .collect()
}

/// The room of a file, or the file's own name if it is at the root of `src`.
fn room_of(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("src")).expect("inside");
    let room = inside
        .iter()
        .next()
        .and_then(|part| part.to_str())
        .expect("a name");
    room.trim_end_matches(".rs").to_owned()
}

#[test]
fn the_root_of_src_has_few_entries_and_each_room_says_what_it_is_for() {
    let entries: Vec<_> = fs::read_dir(root().join("src"))
        .expect("a folder")
        .map(|it| it.expect("an entry").path())
        .collect();
    assert!(
        entries.len() <= 16,
        "{} entries: {entries:?}",
        entries.len()
    );
    for room in entries.iter().filter(|path| path.is_dir()) {
        let opening = fs::read_to_string(room.join("mod.rs")).expect("each room has a mod.rs");
        let purpose: Vec<_> = opening
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect();
        assert!(
            purpose.len() >= 3,
            "{} does not say what it is for",
            room.display()
        );
        assert!(
            purpose.concat().contains("ay use"),
            "{} does not say what it may use",
            room.display()
        );
    }
}

#[test]
fn a_room_uses_only_rooms_below_it() {
    let layers = layers();
    assert!(layers.len() > 10, "{layers:?}");
    for (path, text) in sources() {
        let room = room_of(&path);
        if room == "lib" {
            continue;
        }
        let depth = layers[&room];
        for line in without_tests(&text)
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            assert!(
                !line.contains("super::super"),
                "{room} does not name the room it uses: {line}"
            );
            for used in line.split("crate::").skip(1) {
                let used: String = used
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                // A re-exported name, or a group in braces, would hide which room is used.
                let Some(&below) = layers.get(&used) else {
                    panic!(
                        "{room} uses {used:?}, which is no room and no file at the root: {line}"
                    );
                };
                assert!(
                    used == room || below > depth,
                    "{room} uses {used}, which is above it: {line}"
                );
            }
        }
    }
}

#[test]
fn only_the_store_names_redis() {
    for (path, text) in sources() {
        let inside = path.strip_prefix(root().join("src")).expect("inside");
        if inside.starts_with("store") {
            continue;
        }
        let named: Vec<_> = without_tests(&text)
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .filter(|line| line.contains("redis::") || line.contains("r2d2::"))
            .map(str::to_owned)
            .collect();
        assert!(named.is_empty(), "{}: {named:?}", inside.display());
    }
}

/// The macros of the crate `log` would let a panic of the program's logger out.
#[test]
fn only_emit_calls_the_logger_and_the_recorder() {
    for (path, text) in sources() {
        let names = |line: &&str| {
            ["log::", " ::metrics::", "(::metrics::", "use metrics::"]
                .iter()
                .any(|it| line.contains(it))
        };
        let text = without_tests(&text);
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let named: Vec<_> = code.filter(names).collect();
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
    for (path, text) in sources() {
        let code = without_tests(&text);
        assert!(
            code.lines().count() <= 400,
            "{} is over 400 lines without its tests",
            path.display()
        );
        let unwraps = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//") && line.contains(".unwrap()"));
        assert_eq!(unwraps.count(), 0, "{} unwraps", path.display());
    }
}

/// A function goes from the line with its `fn` to the closing brace with the same indentation.
#[test]
fn functions_can_be_seen_whole() {
    for (path, text) in all_sources() {
        let lines: Vec<_> = without_tests(&text).lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let is_function =
                code.split(' ').take(4).any(|word| word == "fn") && !code.starts_with("//");
            if !is_function || code.ends_with(';') || code.ends_with('}') {
                continue;
            }
            let end = format!("{}}}", &line[..line.len() - code.len()]);
            let length = lines[start..]
                .iter()
                .position(|line| **line == end)
                .expect("the function ends")
                + 1;
            assert!(
                length <= 60,
                "{}, line {}: {length} lines",
                path.display(),
                start + 1
            );
        }
    }
}

#[test]
fn the_changelog_knows_this_version() {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).expect("a changelog");
    assert!(changelog.contains(&format!("\n## {}", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_readme_is_short_and_its_links_lead_somewhere() {
    let readme = root().join("README.md");
    let lines = fs::read_to_string(&readme).expect("a text").lines().count();
    assert!(lines < 120, "{lines} lines");
    let docs = fs::read_dir(root().join("docs"))
        .expect("a folder")
        .map(|it| it.expect("an entry").path());
    let docs: Vec<_> = docs
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    assert!(docs.len() > 4, "{docs:?}");
    for file in docs.into_iter().chain([readme]) {
        let text = fs::read_to_string(&file).expect("a text");
        let folder = file.parent().expect("a folder");
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if target.starts_with("http") || target.starts_with('#') {
                continue;
            }
            let target = target.split('#').next().unwrap_or(target);
            assert!(
                folder.join(target).exists(),
                "{} links to {target}",
                file.display()
            );
        }
    }
}

/// The text of the tests in `tests/it` and `tests/history`, and of the scenes of the simulation.
fn tests() -> String {
    ["tests/it", "tests/history", "src/simulation"]
        .into_iter()
        .flat_map(rust_files)
        .map(|(_, text)| text)
        .collect()
}

#[test]
fn a_folder_of_tests_has_few_entries() {
    let folders = [
        "calls", "turns", "leases", "wire", "servers", "many", "support", "tidy", ".",
    ];
    for folder in folders {
        let path = root().join("tests/it").join(folder);
        let entries = fs::read_dir(path).expect("a folder").count();
        assert!(entries <= 14, "tests/it/{folder} has {entries} entries");
    }
}

#[test]
fn every_fault_of_the_guarantees_has_a_test() {
    let (tests, guarantees) = (
        tests(),
        fs::read_to_string(root().join("docs/guarantees.md")).expect("a text"),
    );
    for number in 1..=37 {
        assert!(
            guarantees.contains(&format!("\n| {number} | ")),
            "row {number} is not told"
        );
        assert!(
            tests.contains(&format!("fn row_{number:02}_")),
            "row {number} is not tested"
        );
    }
}

#[test]
fn the_tests_that_the_guarantees_name_exist() {
    let tests = tests();
    let guarantees = fs::read_to_string(root().join("docs/guarantees.md")).expect("a text");
    let words = guarantees.split('`').skip(1).step_by(2);
    let named: Vec<_> = words
        .filter(|word| word.matches('_').count() > 3 || word.starts_with("row_"))
        .collect();
    assert!(named.len() > 40, "{named:?}");
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
    let model = fs::read_to_string(root().join("tests/model/lib.rs")).expect("a text");
    let tests = [tests(), unit_tests, model].concat();
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("a text");
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

#[test]
fn no_dependency_asks_for_a_newer_rust() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata = String::from_utf8(output.stdout).expect("JSON");
    let ours = minor(env!("CARGO_PKG_RUST_VERSION"));
    let asked: Vec<_> = metadata
        .split("\"rust_version\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .map(minor)
        .collect();
    assert!(
        asked.len() > 20,
        "the metadata is read wrongly: {}",
        asked.len()
    );
    assert_eq!(
        asked.into_iter().max(),
        Some(ours),
        "the version in Cargo.toml is the lowest that will do"
    );
}

/// The crates that a program gets with this one, on whatever system, if it uses no feature.
const CRATES: &str = "arcstr bitflags bytes cfg-if combine displaydoc errno form_urlencoded getrandom hostname \
    icu_collections icu_locale_core icu_normalizer icu_normalizer_data icu_properties icu_properties_data \
    icu_provider idna idna_adapter itoa libc linux-raw-sys litemap lock_api log memchr parking_lot \
    parking_lot_core percent-encoding potential_utf proc-macro2 quote r-efi r2d2 rand rand_core redis \
    redox_syscall relatch rustix ryu scheduled-thread-pool scopeguard sha1_smol smallvec socket2 \
    stable_deref_trait syn synstructure thiserror thiserror-impl tinystr unicode-ident url utf8_iter \
    utf_types windows-link windows-sys writeable xxhash-rust yoke yoke-derive zerofrom zerofrom-derive \
    zerotrie zerovec zerovec-derive";

/// A crate that comes along with a new version of another is found here, too: whoever adds its name
/// has looked at it.
#[test]
fn without_the_feature_nothing_of_tls_is_built() {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree", "--locked", "--edges", "normal", "--target", "all", "--prefix", "none",
        ])
        .args(["--package", "relatch"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(output.stdout).expect("a text");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let built: BTreeSet<_> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let expected: BTreeSet<_> = CRATES.split_whitespace().collect();
    let more: Vec<_> = built.difference(&expected).collect();
    assert!(
        more.is_empty() && built.len() == expected.len(),
        "more: {more:?}; all: {built:?}"
    );
}

/// A program that depends on the crate does not see our lock file: it gets the newest versions that
/// our `Cargo.toml` allows. (Needs the registry, or a cargo that already has its index.)
#[test]
fn no_dependency_asks_for_a_newer_rust_of_a_program_that_depends_on_this() {
    let dir = TempDir::new().expect("a temporary directory");
    let manifest = format!(
        "[package]\nname = \"dependant\"\nedition = \"2024\"\n\n[dependencies]\nrelatch = {{ path = {:?} }}\n\n[workspace]\n",
        root()
    );
    fs::write(dir.path().join("Cargo.toml"), manifest).expect("a file can be written");
    fs::create_dir(dir.path().join("src")).expect("a folder can be made");
    fs::write(dir.path().join("src/main.rs"), "fn main() {}").expect("a file can be written");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1"])
        .current_dir(dir.path())
        .env("CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS", "allow") // As for a program that does not say which Rust it needs.
        .output()
        .expect("cargo runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the dependencies cannot be resolved; is the registry out of reach? {told}"
    );
    let metadata = String::from_utf8(output.stdout).expect("JSON");
    let ours = minor(env!("CARGO_PKG_RUST_VERSION"));
    let packages: Vec<_> = metadata.split("\"manifest_path\":\"").skip(1).collect();
    assert!(
        packages.len() > 20,
        "the metadata is read wrongly: {}",
        packages.len()
    );
    let newer: Vec<_> = packages
        .iter()
        .filter_map(|package| {
            let asked = package
                .split("\"rust_version\":\"")
                .nth(1)?
                .split('"')
                .next()?;
            let name = package.split("/Cargo.toml").next()?.rsplit('/').next()?;
            (minor(asked) > ours).then(|| format!("{name} asks for {asked}"))
        })
        .collect();
    assert!(
        newer.is_empty(),
        "with Rust 1.{ours}, a new program does not build: {newer:?}"
    );
}

fn minor(version: &str) -> u32 {
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .expect("a version")
}

#[test]
fn the_servers_that_are_claimed_are_those_that_the_tests_run_with() {
    let text = |path: &str| fs::read_to_string(root().join(path)).expect("a text");
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
