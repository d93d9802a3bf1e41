//! Libraries that are preloaded into a process to change what the C library does there.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/rig/preload/<name>.c` to a library in `dir`, for `LD_PRELOAD`.
#[track_caller]
pub fn compile_preload(name: &str, dir: &Path) -> PathBuf {
    let source = format!("{}/preload/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let library = dir.join(name).with_extension("so");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(
        compiled
            .expect("a C compiler, called cc, is in PATH")
            .success(),
        "{source} compiles"
    );
    library
}
