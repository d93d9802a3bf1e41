//! `relatch doctor`, and the page for the person on call.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use relatch_rig::{LONG, Server, eventually};

use crate::support::{Place, RELATCH, json, page, stderr, stdout};

/// The words of the line that makes the operator's user, behind its password.
fn rights(page: &str) -> Vec<&str> {
    let begin = "ACL SETUSER oncall on >password ";
    let line = page.lines().find_map(|line| line.strip_prefix(begin));
    line.unwrap().split(' ').collect()
}

/// Runs `relatch` as a user with these rights.
fn as_user(place: &Place, rights: &[&str], arguments: &[&str]) -> Output {
    let user = ["ACL", "SETUSER", "oncall", "reset", "on", ">secret"];
    place.server.query::<()>(&[&user[..], rights].concat());
    let mut command = place.relatch(arguments);
    let url = format!("redis://oncall:secret@{}/", place.server.address());
    command.env("REDIS_URL", url).output().unwrap()
}

#[test]
fn the_rights_of_the_page_are_enough_for_the_person_on_call() {
    let place = Place::new();
    let page = page("docs/operations.md");
    let rights = rights(&page);
    let mut run = place.holds(&["k"]);
    for (code, lines, arguments) in [
        (0, 0, &["doctor", "-q"][..]),
        (0, 2, &["ls"]),
        (0, 2, &["holder", "k"]),
        (75, 0, &["wait", "-w", "0", "k"]),
        (0, 0, &["force-unlock", "--yes", "k"]),
    ] {
        let output = as_user(&place, &rights, arguments);
        let said = stdout(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), lines, "{arguments:?}: {said}");
    }
    assert_eq!(run.code(), 76);
}

/// The rights that the doctor finds missing.
fn named(said: &str) -> Vec<&str> {
    let line = said
        .lines()
        .find_map(|it| it.split("lacks these rights: ").nth(1));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    line.split("  ->").next().unwrap().split(' ').collect()
}

#[test]
fn each_missing_right_is_named() {
    let place = Place::new();
    let page = page("docs/operations.md");
    // (Since version 6.2, everybody may say HELLO.)
    let rights: Vec<_> = rights(&page);
    let needed = rights
        .iter()
        .filter(|it| !["resetchannels", "-@all", "+hello"].contains(it));
    place.set("lock:k", "x");
    for missing in needed.clone() {
        let left: Vec<_> = rights.iter().filter(|it| *it != missing).copied().collect();
        let output = as_user(&place, &left, &["doctor", "-q"]);
        assert_eq!(named(&stdout(&output)), [*missing]);
        let code = output.status.code();
        assert!(code == Some(1) || code == Some(2), "{missing}: {code:?}");
    }
    // All of them, as they can be given.
    let said = stdout(&as_user(&place, &["-@all"], &["doctor", "-q"]));
    let named = named(&said);
    let commands: BTreeSet<_> = needed.filter(|it| it.starts_with('+')).collect();
    let named_commands = named.iter().filter(|it| **it != "+hello");
    assert_eq!(named_commands.collect::<BTreeSet<_>>(), commands, "{said}");
    let enough = [&named[..], &["~lock:*", "&__redis__:invalidate"]].concat();
    let well = as_user(&place, &enough, &["doctor", "-q"]);
    assert_eq!((well.status.code(), &*stdout(&well)), (Some(0), ""));
}

#[test]
fn no_message_has_the_password() {
    let place = Place::new();
    let secret = "s3cr3t-w0rd";
    let at = place.server.address();
    let user = ["ACL", "SETUSER", "poor", "on", ">s3cr3t-w0rd", "+ping"];
    place.server.query::<()>(&user);
    for url in [
        format!("redis://nobody:{secret}@{at}/"),
        format!("redis://poor:{secret}@{at}/"),
        format!("redis://:{secret}@127.0.0.1:1/"),
        format!("redis://:{secret}@/nowhere:x"),
        format!("redis+sentinel://:{secret}@127.0.0.1:1/"),
        format!("unix:///nowhere?pass={secret}"),
    ] {
        for arguments in [&["doctor"][..], &["ls"], &["run", "-nv", "k", "true"]] {
            let mut command = place.relatch(arguments);
            let output = command.env("REDIS_URL", &url).output().unwrap();
            let code = output.status.code().unwrap();
            assert!(![0, 64].contains(&code), "{url} {arguments:?}: {code}");
            let said = stdout(&output) + &stderr(&output);
            assert!(!said.is_empty() && !said.contains(secret), "{said}");
        }
    }
    // On the command line, others can read it: that is said, once.
    let url = format!("redis://nobody:{secret}@{at}/");
    let said = stderr(&place.output(&["ls", "--redis", &url]));
    assert_eq!(said.matches("--redis-file").count(), 1, "{said}");
    assert!(!said.contains(secret), "{said}");
}

/// The block of a page that has this line.
fn block(page: &str, line: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split("```").next());
    let block = blocks.find(|block| block.contains(line));
    block.unwrap().to_owned()
}

/// By `redis-cli` alone, and by the command.
#[test]
fn the_lines_of_the_page_end_exactly_the_hold_that_was_seen() {
    let page = page("docs/trouble.md");
    let by_cli = block(&page, "--scan");
    let by_command = block(&page, "force-unlock");
    let by_command = by_command.lines().filter(|line| !line.contains("wait"));
    let by_command = by_command.collect::<Vec<_>>().join("\n");
    let folder = Path::new(RELATCH).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    for lines in [by_cli, by_command] {
        let place = Place::new();
        let shell = |lines: &str| {
            let mut shell = place.program("sh", &["-ec", lines]);
            let shell = shell.env("REDIS_URL", place.server.bare_url());
            shell.env("PATH", &path).output().unwrap()
        };
        let mut run = place.holds(&["deploy:prod"]);
        let token: String = place.server.query(&["GET", "lock:deploy:prod"]);
        let shown = "ci-7-4242-4243-d064397bcd0b946e88b75b59aa94e983";
        let output = shell(&lines.replace(shown, &token));
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains(&token), "{}", stdout(&output));
        assert_eq!(run.code(), 76);
        // The same token once more: it is another's by now.
        place.set("lock:deploy:prod", "another");
        let get = "$(redis-cli -u \"$REDIS_URL\" GET lock:deploy:prod)";
        shell(&lines.replace(get, &token).replace(shown, &token));
        assert!(place.server.exists("lock:deploy:prod"));
    }
}

#[test]
fn the_doctor_finds_what_is_wrong() {
    let place = Place::new();
    let well = place.as_operator(&["doctor"]);
    assert_eq!(well.status.code(), Some(0), "{}", stdout(&well));
    let for_days = &["SET", "lock:days", "x", "PX", "259200000"][..];
    let policy = &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    place
        .server
        .query::<()>(&["CONFIG", "SET", "maxmemory", "100mb"]);
    for (what, odd) in [
        ("", &["SET", "lock:forever", "x"][..]),
        ("", for_days),
        ("noeviction", policy),
    ] {
        place.server.query::<()>(&["FLUSHALL"]);
        place.server.query::<()>(odd);
        let warned = place.as_operator(&["doctor", "--json"]);
        let said = stdout(&warned);
        assert_eq!(warned.status.code(), Some(1), "{said}");
        let mut lines = said.lines();
        let is_told = lines.any(|it| json(it)["verdict"] == "warn" && it.contains(what));
        assert!(is_told, "{said}");
    }
    let failed = place.output(&["doctor", "--redis", "redis://127.0.0.1:1/"]);
    assert_eq!(failed.status.code(), Some(2), "{}", stdout(&failed));
}

/// It does not know what is free, nor whether it has all.
#[test]
fn a_replica_is_found_and_not_believed() {
    let place = Place::new();
    let master = Server::start();
    let port = master.port().to_string();
    master.query::<()>(&["SET", "lock:held", "x", "PX", "60000"]);
    place.server.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    eventually(LONG, "it follows", || place.server.exists("lock:held"));
    for (arguments, code) in [
        (&["doctor"][..], 2),
        (&["holder", "k"], 69),
        (&["wait", "k"], 69),
        (&["ls"], 69),
        (&["holder", "held"], 0),
    ] {
        let output = place.as_operator(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert_eq!(said.contains("is a replica"), code == 69, "{said}");
    }
}
