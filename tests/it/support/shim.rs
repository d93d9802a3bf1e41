//! Libraries that are preloaded into a process of our own, to change what the C library does there.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/it/support/<name>.c` to a library in `dir`, for `LD_PRELOAD`.
#[track_caller]
pub(crate) fn compile_shim(name: &str, dir: &Path) -> PathBuf {
    let source = format!("{}/tests/it/support/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let shim = dir.join(name).with_extension("so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source).status();
    assert!(compiled.expect("a C compiler, called cc, is in PATH").success(), "{source} compiles");
    shim
}
