//! The manual page and the completions.

use std::fs;
use std::path::Path;
use std::process::Command;

fn generated(what: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_relatch"))
        .args(["generate", what])
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// If it fails: `cargo run -p relatch-cli -- generate man > cli/relatch.1`.
#[test]
fn the_manual_page_is_that_of_the_program() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("relatch.1");
    let page = fs::read_to_string(page).unwrap();
    assert!(page == generated("man"), "relatch.1 is out of date");
    for heading in ["EXIT STATUS", "ENVIRONMENT", "EXAMPLES"] {
        assert!(page.contains(heading), "{heading}");
    }
}

#[test]
fn each_shell_has_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let text = generated(shell);
        assert!(text.contains("force-unlock"), "{shell}: {text}");
    }
}
