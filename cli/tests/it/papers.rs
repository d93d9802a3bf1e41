//! The manual page, the completions, and what the pages show.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use relatch_rig::{LONG, eventually};

use crate::support::{Place, RELATCH, json, page, stderr, stdout};

fn generated(what: &str) -> String {
    let mut relatch = Command::new(RELATCH);
    let output = relatch.args(["generate", what]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// If it fails: `cargo run -p relatch-cli -- generate man > cli/relatch.1`.
#[test]
fn the_manual_page_is_that_of_the_program() {
    let page = page("cli/relatch.1");
    assert!(page == generated("man"), "relatch.1 is out of date");
    for heading in ["EXIT STATUS", "ENVIRONMENT", "EXAMPLES"] {
        assert!(page.contains(heading), "{heading}");
    }
}

/// A shell that is not there accepts nothing.
#[test]
fn each_shell_has_completions_and_accepts_them() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = generated(shell);
        assert!(text.contains("force-unlock"), "{shell}: {text}");
        place.write(shell, &text);
        if let Ok(checked) = place.program(shell, &["-n", shell]).status() {
            assert!(checked.success(), "{shell}");
        }
    }
    let complete = "source ./bash; COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _relatch relatch \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo \"${COMPREPLY[@]}\"";
    for (words, completed) in [
        ("relatch force", "force-unlock\n"),
        ("relatch run --at-l", "--at-least\n"),
    ] {
        let mut bash = place.program("bash", &["-c", complete, "bash", words]);
        let output = bash.stderr(Stdio::inherit()).output().unwrap();
        assert_eq!(stdout(&output), completed);
    }
}

/// The block of a page that begins with this line.
fn block(page: &str, begin: &str) -> String {
    let begin = format!("```{begin}\n");
    let block = page.split(&begin).nth(1).unwrap();
    block.split("```").next().unwrap().to_owned()
}

/// The page for readers of the repository shows what the command says, but for names and numbers.
#[test]
fn what_the_readme_shows_is_what_is_seen() {
    let place = Place::new();
    let _nightly = place.holds(&["nightly"]);
    let mut deploy = place.holds(&["deploy:prod"]);
    let table = stdout(&place.as_operator(&["ls"]));
    let token: String = place.server.query(&["GET", "lock:deploy:prod"]);
    let deleted = ["force-unlock", "deploy:prod", "--if-token", &token];
    let deleted = stderr(&place.output(&deleted));
    assert_eq!(deploy.code(), 76);
    let seen = [table, deleted, deploy.said()].concat();
    let host = relatch::Owner::current().host;
    let plain = |line: &str| {
        let line = [&*host, "web-3", "ci-7"]
            .iter()
            .fold(line.to_owned(), |line, host| line.replace(host, "HOST"));
        let words: Vec<_> = line.split_whitespace().collect();
        let words = words.join(" ");
        words.replace(|c: char| c.is_ascii_digit() || c == '.', "")
    };
    let shown = block(&page("README.md"), "console");
    let shown = shown.lines().filter(|line| !line.starts_with('$'));
    let shown: Vec<_> = shown.map(plain).collect();
    assert_eq!(shown, seen.lines().map(plain).collect::<Vec<_>>());
}

/// Cron mails what the line prints.
#[test]
fn the_line_for_cron_tells_the_syslog_who_ran_it_and_the_mail_what_failed() {
    let place = Place::new();
    let page = page("docs/command.md");
    let line = page.lines().find(|line| line.contains("logger")).unwrap();
    let (_, line) = line.split_once("* * *").unwrap();
    let relatch = Path::new(RELATCH).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", place.file("").display(), relatch.display());
    let runs = |job: &str, mail: &str, outcome: &str, exit: i32| {
        for (name, text) in [("backup.sh", job), ("logger", "cat >> syslog")] {
            place.write(name, &format!("#!/bin/sh\n{text}\n"));
            let all = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(place.file(name), all).unwrap();
        }
        let output = place.bash(line).env("PATH", &path).output().unwrap();
        assert_eq!(stdout(&output) + &stderr(&output), mail);
        eventually(LONG, outcome, || {
            let log = place.text("syslog");
            let last = log.lines().last().map(json);
            last.is_some_and(|it| it["outcome"] == outcome && it["exit"] == exit)
        });
    };
    runs("exit 3", "nightly: 3\n", "ended", 3);
    runs("exit 0", "", "busy", 0);
    place.server.query::<()>(&["FLUSHALL"]);
    runs("exit 0", "", "ended", 0);
}

/// The objects that the page shows have the fields that are written.
#[test]
fn the_page_shows_the_fields_of_ls() {
    let place = Place::new();
    let _run = place.holds(&["deploy:prod"]);
    place.set("lock:report", "d4d2fb5ce95511f1af3e02fc00000001");
    let fields = |lines: &str| -> Vec<_> {
        let objects = lines
            .lines()
            .map(|it| json(it).as_object().unwrap().clone());
        objects
            .map(|it| (it.keys().cloned().collect::<Vec<_>>(), it["kind"].clone()))
            .collect()
    };
    let seen = stdout(&place.as_operator(&["ls", "--json"]));
    let shown = block(&page("docs/command.md"), "json");
    assert_eq!(fields(&shown), fields(&seen));
}

/// What `bash examples/run.sh command` shows.
#[test]
fn the_example_ends_with_a_lost_lock() {
    let place = Place::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/command.sh");
    let mut bash = place.program("bash", &[example.to_str().unwrap(), RELATCH]);
    let bash = bash.env("REDIS_URL", place.server.bare_url());
    let output = bash.output().unwrap();
    let said = stdout(&output);
    assert!(output.status.success(), "{said} {}", stderr(&output));
    assert_eq!(said.matches("makes the backup").count(), 1, "{said}");
    assert!(said.ends_with("the exit code of the run is 76\n"), "{said}");
}
