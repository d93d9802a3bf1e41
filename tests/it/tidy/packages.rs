//! The dependencies: which Rust they need, and which there are.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::tidy::{root, text};

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

/// A crate that comes along with a new version of another is found here, too: a maintainer who adds
/// its name has looked at it.
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
/// our `Cargo.toml` allows, after the line that `README.md` has for an older Rust. (Needs the
/// registry, or a cargo that already has its index.)
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
    let cargo = |args: &str| {
        let output = Command::new(env!("CARGO"))
            .args(args.split(' '))
            .current_dir(dir.path())
            // As for a program that does not say which Rust it needs.
            .env("CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS", "allow")
            .output()
            .expect("cargo runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "the dependencies cannot be resolved; is the registry out of reach? {told}"
        );
        String::from_utf8(output.stdout).expect("a text")
    };
    let page = text("README.md");
    let (_, line) = page.split_once("`cargo update ").expect("the line");
    cargo(&format!(
        "update {}",
        line.split('`').next().expect("its end")
    ));
    let metadata = cargo("metadata --format-version 1");
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

/// With an upper bound, a program in which another crate asks for more does not resolve.
#[test]
fn no_dependency_has_an_upper_bound() {
    for file in ["Cargo.toml", "cli/Cargo.toml"] {
        let manifest = text(file);
        let (_, rest) = manifest
            .split_once("\n[dependencies]\n")
            .expect("the dependencies");
        let part = rest.split("\n[dev-dependencies]").next().expect("a part");
        let versions = part.lines().filter(|line| !line.starts_with('#'));
        let bound: Vec<_> = versions
            .filter(|line| line.contains(['<', '~']) || line.contains("\"="))
            .collect();
        assert!(bound.is_empty(), "{file}: {bound:?}");
    }
}

fn minor(version: &str) -> u32 {
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .expect("a version")
}
