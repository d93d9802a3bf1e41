//! Sets the cfg with which `src/base/seeded_bugs.rs` compiles the mistakes in.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(relatch_flawed)");
    println!("cargo:rustc-cfg=relatch_flawed");
    // The features of the crate's own Cargo.toml, which are off here.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"tls\", \"tls-no-provider\", \"metrics\"))");
}
