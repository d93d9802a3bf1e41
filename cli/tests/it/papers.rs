//! The manual page and the completions.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use relatch_rig::{LONG, eventually};

use crate::support::{Place, as_operator, json, stderr, stdout};

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

/// A shell that is not there accepts nothing.
#[test]
fn each_shell_has_completions_and_accepts_them() {
    for shell in ["bash", "zsh", "fish"] {
        let text = generated(shell);
        assert!(text.contains("force-unlock"), "{shell}: {text}");
        let mut check = Command::new(shell);
        check.args(["-n", "/dev/stdin"]).stdin(Stdio::piped());
        if let Ok(mut child) = check.spawn() {
            let mut input = child.stdin.take().unwrap();
            input.write_all(text.as_bytes()).unwrap();
            drop(input);
            assert!(child.wait().unwrap().success(), "{shell}");
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let completed = |words: &str| {
        let script = "source /dev/stdin
            COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _relatch relatch \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo \"${COMPREPLY[@]}\"";
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash", words]);
        let mut bash = bash
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = bash.stdin.take().unwrap();
        input.write_all(generated("bash").as_bytes()).unwrap();
        drop(input);
        String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(completed("relatch force"), "force-unlock\n");
    assert_eq!(completed("relatch run --at-l"), "--at-least\n");
}

/// The page for readers of the repository shows what the command says, but for names and numbers.
#[test]
fn what_the_readme_shows_is_what_is_seen() {
    let place = Place::new();
    let mut nightly = place.start(&["nightly"], "a", "echo > $1; sleep 60");
    let mut deploy = place.start(&["deploy:prod"], "b", "echo > $1; sleep 60");
    let table = stdout(&as_operator(&place, &["ls"]));
    let token: String = place.server.query(&["GET", "lock:deploy:prod"]);
    let deleted = ["force-unlock", "deploy:prod", "--if-token", &token];
    let deleted = stderr(&place.output(&deleted));
    let mut lost = String::new();
    deploy
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut lost)
        .unwrap();
    assert_eq!(deploy.wait().unwrap().code(), Some(76));
    place.code(&["force-unlock", "nightly", "--yes"]);
    assert_eq!(nightly.wait().unwrap().code(), Some(76));

    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let shown = readme.split("```console\n").nth(1).unwrap();
    let shown = shown.split("```").next().unwrap();
    let shown = shown.lines().filter(|line| !line.starts_with('$'));
    let seen = [table, deleted, lost].concat();
    let host = relatch::Owner::current().host;
    let plain = |line: &str| {
        let line = line
            .replace(&*host, "HOST")
            .replace("web-3", "HOST")
            .replace("ci-7", "HOST");
        let words: Vec<_> = line.split_whitespace().collect();
        words
            .join(" ")
            .replace(|c: char| c.is_ascii_digit(), "")
            .replace('.', "")
    };
    let shown: Vec<_> = shown.map(plain).collect();
    let seen: Vec<_> = seen.lines().map(plain).collect();
    assert_eq!(shown, seen);
}

/// Cron mails what the line prints.
#[test]
fn the_line_for_cron_tells_the_syslog_who_ran_it_and_the_mail_what_failed() {
    let place = Place::new();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command.md");
    let page = fs::read_to_string(page).unwrap();
    let line = page.lines().find(|line| line.contains("logger")).unwrap();
    let (_, line) = line.split_once("* * *").unwrap();
    let relatch = Path::new(env!("CARGO_BIN_EXE_relatch")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", place.file("").display(), relatch.display());
    let mailed = |job: &str| {
        for (name, text) in [("backup.sh", job), ("logger", "cat >> syslog")] {
            fs::write(place.file(name), format!("#!/bin/sh\n{text}\n")).unwrap();
            let all = fs::Permissions::from_mode(0o755);
            fs::set_permissions(place.file(name), all).unwrap();
        }
        let shell = place.relatch(&[]);
        let named = shell.get_envs();
        let mut bash = Command::new("bash");
        bash.args(["-c", line])
            .envs(named.filter_map(|(name, value)| Some((name, value?))))
            .env("PATH", &path)
            .current_dir(place.file(""));
        let output = bash.output().unwrap();
        stdout(&output) + &stderr(&output)
    };
    let logged = |outcome: &str, exit: i32| {
        eventually(LONG, outcome, || {
            let log = fs::read_to_string(place.file("syslog")).unwrap_or_default();
            let last = log.lines().last().map(json);
            last.is_some_and(|it| it["outcome"] == outcome && it["exit"] == exit)
        });
    };
    assert_eq!(mailed("exit 3"), "nightly: 3\n");
    logged("ended", 3);
    assert_eq!(mailed("exit 0"), "", "it is kept");
    logged("busy", 0);
    place.server.query::<()>(&["FLUSHALL"]);
    assert_eq!(mailed("exit 0"), "");
    logged("ended", 0);
}

/// The objects that the page shows have the fields that are written.
#[test]
fn the_page_shows_the_fields_of_ls() {
    let place = Place::new();
    let mut run = place.start(&["deploy:prod"], "f", "echo > $1; sleep 60");
    let token = "d4d2fb5ce95511f1af3e02fc00000001";
    let theirs = ["SET", "lock:report", token, "PX", "60000"];
    place.server.query::<()>(&theirs);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command.md");
    let page = fs::read_to_string(page).unwrap();
    let shown = page.split("```json\n").nth(1).unwrap();
    let shown = shown.split("```").next().unwrap();
    let fields = |lines: &str| -> Vec<_> {
        let objects = lines.lines().map(json);
        let objects = objects.map(|it| it.as_object().unwrap().clone());
        objects
            .map(|it| (it.keys().cloned().collect::<Vec<_>>(), it["kind"].clone()))
            .collect()
    };
    let seen = stdout(&as_operator(&place, &["ls", "--json"]));
    assert_eq!(fields(shown), fields(&seen));
    place.code(&["force-unlock", "deploy:prod", "--yes"]);
    assert_eq!(run.wait().unwrap().code(), Some(76));
}

/// What `bash examples/run.sh command` shows.
#[test]
fn the_example_ends_with_a_lost_lock() {
    let place = Place::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/command.sh");
    let mut bash = Command::new("bash");
    bash.arg(example).arg(env!("CARGO_BIN_EXE_relatch"));
    let output = bash
        .env("REDIS_URL", place.server.bare_url())
        .output()
        .unwrap();
    let said = stdout(&output);
    assert!(output.status.success(), "{said} {}", stderr(&output));
    assert_eq!(said.matches("makes the backup").count(), 1, "{said}");
    assert!(
        said.contains("is gone") && said.contains("    | "),
        "{said}"
    );
    assert!(said.ends_with("the exit code of the run is 76\n"), "{said}");
}
