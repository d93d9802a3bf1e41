//! `relatch doctor`, and the page for the person on call.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};

use relatch_rig::{LONG, Server, eventually};

use crate::support::{Place, as_operator, stderr, stdout};

fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join("docs").join(name)).unwrap()
}

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
    let page = page("operations.md");
    let rights = rights(&page);
    let mut run = place.start(&["k"], "f", "echo > $1; sleep 60");
    let ask = |arguments: &[&str]| as_user(&place, &rights, arguments);
    let well = ask(&["doctor", "-q"]);
    let said = stdout(&well);
    assert_eq!((well.status.code(), &*said), (Some(0), ""));
    assert_eq!(stdout(&ask(&["ls"])).lines().count(), 2);
    assert_eq!(ask(&["holder", "k"]).status.code(), Some(0));
    assert_eq!(ask(&["wait", "-w", "0", "k"]).status.code(), Some(75));
    assert_eq!(ask(&["force-unlock", "--yes", "k"]).status.code(), Some(0));
    assert_eq!(run.wait().unwrap().code(), Some(76));
}

#[test]
fn each_missing_right_is_named() {
    let place = Place::new();
    let page = page("operations.md");
    let rights = rights(&page);
    place
        .server
        .query::<()>(&["SET", "lock:k", "x", "PX", "60000"]);
    for missing in &rights {
        let left: Vec<_> = rights.iter().filter(|it| *it != missing).copied().collect();
        // (Since version 6.2, everybody may say HELLO.)
        if ["resetchannels", "-@all", "+hello"].contains(missing) {
            continue;
        }
        let output = as_user(&place, &left, &["doctor", "-q"]);
        let said = stdout(&output);
        let line = said.lines().find(|line| line.contains("not all rights: "));
        let line = line.unwrap_or_else(|| panic!("{missing}: {said}"));
        let named = line.split("rights: ").nth(1).unwrap().split("  ->").next();
        assert_eq!(named, Some(*missing), "{line}");
        let code = output.status.code();
        assert!(code == Some(1) || code == Some(2), "{missing}: {code:?}");
    }
    // All of them, as they can be given.
    let said = stdout(&as_user(&place, &["-@all"], &["doctor", "-q"]));
    let line = said.lines().find(|line| line.contains("not all rights: "));
    let named = line
        .unwrap()
        .split("rights: ")
        .nth(1)
        .unwrap()
        .split("  ->")
        .next();
    let named: Vec<_> = named.unwrap().split(' ').collect();
    let commands = rights.iter().filter(|it| it.starts_with('+'));
    let commands: BTreeSet<_> = commands.filter(|it| **it != "+hello").collect();
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
        for arguments in [
            &["doctor"][..],
            &["ls"],
            &["holder", "k"],
            &["run", "-nv", "k", "true"],
        ] {
            let output = place
                .relatch(arguments)
                .env("REDIS_URL", &url)
                .output()
                .unwrap();
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

/// A new user has not read about addresses.
#[test]
fn a_default_address_is_told() {
    let place = Place::new();
    for arguments in [&["ls"][..], &["run", "-n", "k", "true"], &["doctor"]] {
        let mut command = place.relatch(arguments);
        let output = command.env_remove("REDIS_URL").output().unwrap();
        let said = stdout(&output) + &stderr(&output);
        // (There may be a server at the default address.)
        let is_told = said.contains("neither RELATCH_URL nor REDIS_URL is set");
        let is_there = TcpStream::connect("127.0.0.1:6379").is_ok();
        assert!(is_told || is_there, "{arguments:?}: {said}");
    }
}

/// The block of a page that has this line.
fn block(page: &str, line: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split("```").next());
    blocks
        .find(|block| block.contains(line))
        .unwrap()
        .to_owned()
}

#[test]
fn the_lines_for_redis_cli_end_exactly_the_hold_that_was_seen() {
    let page = page("trouble.md");
    let lines = block(&page, "--scan");
    for cli in ["redis-cli", "redis-cli -c"] {
        let place = Place::new();
        let mut run = place.start(&["deploy:prod"], "f", "echo > $1; sleep 60");
        let mut shell = Command::new("sh");
        shell.args(["-ec", &lines.replace("redis-cli", cli)]);
        let output = shell
            .env("REDIS_URL", place.server.bare_url())
            .output()
            .unwrap();
        let said = stdout(&output);
        let said: Vec<_> = said.lines().collect();
        assert_eq!(said.len(), 4, "{said:?} {}", stderr(&output));
        assert_eq!(said[0], "lock:deploy:prod");
        assert!(said[1].parse::<u32>().unwrap() <= 30_000);
        assert!(said[2].contains(&format!("-{}-", run.id())), "{said:?}");
        assert_eq!(said[3], "1");
        assert_eq!(run.wait().unwrap().code(), Some(76));
        // The same token once more: it is another's by now, or nobody's.
        place
            .server
            .query::<()>(&["SET", "lock:deploy:prod", "another", "PX", "60000"]);
        let again = lines.replace(
            "$(redis-cli -u \"$REDIS_URL\" GET lock:deploy:prod)",
            said[2],
        );
        let mut shell = Command::new("sh");
        let output = shell
            .args(["-ec", &again])
            .env("REDIS_URL", place.server.bare_url())
            .output()
            .unwrap();
        assert!(stdout(&output).ends_with("\n0\n"), "{}", stdout(&output));
    }
}

#[test]
fn the_lines_with_the_command_end_exactly_the_hold_that_was_seen() {
    let page = page("trouble.md");
    let block = block(&page, "force-unlock");
    let lines = block.lines().filter(|line| !line.contains("wait"));
    let line = lines.collect::<Vec<_>>().join("\n");
    let place = Place::new();
    let mut run = place.start(&["deploy:prod"], "f", "echo > $1; sleep 60");
    let token: String = place.server.query(&["GET", "lock:deploy:prod"]);
    let line = line.replace("ci-7-4242-4242-d064397bcd0b946e88b75b59aa94e983", &token);
    let folder = Path::new(env!("CARGO_BIN_EXE_relatch")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-ec", &line]).env("PATH", path);
    let output = shell
        .env("REDIS_URL", place.server.bare_url())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains(&token), "the one that was seen");
    assert_eq!(run.wait().unwrap().code(), Some(76));
}

#[test]
fn a_replica_and_a_full_redis_are_found() {
    let place = Place::new();
    let master = Server::start();
    let port = master.port().to_string();
    master.query::<()>(&["SET", "lock:held", "x", "PX", "60000"]);
    place.server.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    eventually(LONG, "it follows", || place.server.exists("lock:held"));
    assert_eq!(as_operator(&place, &["doctor"]).status.code(), Some(2));
    // It does not know what is free, nor whether it has all.
    for (arguments, code) in [
        (&["holder", "k"][..], 69),
        (&["wait", "k"], 69),
        (&["ls"], 69),
        (&["holder", "held"], 0),
    ] {
        let output = as_operator(&place, arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert_eq!(said.contains("is a replica"), code == 69, "{said}");
    }
    place.server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    place
        .server
        .query::<()>(&["CONFIG", "SET", "maxmemory", "100mb"]);
    place
        .server
        .query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let warned = as_operator(&place, &["doctor", "-q"]);
    assert_eq!(warned.status.code(), Some(1));
    assert!(
        stdout(&warned).contains("noeviction"),
        "{}",
        stdout(&warned)
    );
}
