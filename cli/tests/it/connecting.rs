//! How the command finds Redis, and what it shows there.

use std::fs;
use std::process::{Command, Output, Stdio};

use relatch_rig::{Authority, LONG, Sentinels, Server, Setup, Sig, eventually, signal};

use crate::support::{Place, in_shell, spawn, stderr, stdout};

const RELATCH: &str = env!("CARGO_BIN_EXE_relatch");

/// A Redis whose user `u` has the password `one`, and the URL of that in the file `url`.
fn with_password() -> Place {
    let place = Place::new();
    let query = |words: &[&str]| place.server.query::<()>(words);
    query(&["ACL", "SETUSER", "u", "on", ">one", "~*", "&*", "+@all"]);
    write_url(&place, "one");
    place
}

fn write_url(place: &Place, password: &str) {
    let url = format!("redis://u:{password}@{}/\n", place.server.address());
    fs::write(place.file("url"), url).unwrap();
}

/// The old password is good no more, and nobody who has used it stays.
fn revoke(place: &Place, new: &str) {
    let new = format!(">{new}");
    let query = |words: &[&str]| place.server.query::<redis::Value>(words);
    query(&["ACL", "SETUSER", "u", "resetpass", &new]);
    query(&["CLIENT", "KILL", "USER", "u"]);
}

#[test]
fn a_password_that_changes_ends_no_run() {
    let place = with_password();
    let options = ["--redis-file", "url", "--lease", "3s", "k"];
    let script = "echo > $1; until test -e end; do sleep 0.01; done; exit 3";
    let mut run = place.start(&options, "ready", script);
    write_url(&place, "two");
    revoke(&place, "two");
    let mut lowest = u64::MAX;
    eventually(LONG, "it is renewed", || {
        let left = place.server.query::<u64>(&["PTTL", "lock:k"]);
        lowest = lowest.min(left);
        left > lowest + 100
    });
    fs::write(place.file("end"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(3));
    assert!(!place.server.exists("lock:k"), "it is given back");
}

/// Who is to mend it reads what Redis says.
#[test]
fn a_lock_that_is_lost_by_a_wrong_password_says_so() {
    let place = with_password();
    let run = [
        "run",
        "--redis-file",
        "url",
        "--lease",
        "2s",
        "--report",
        "r",
        "k",
        "-c",
    ];
    let mut run = place.relatch(&run);
    run.arg("echo > ready; sleep 60").stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    eventually(LONG, "the job runs", || place.file("ready").exists());
    revoke(&place, "two");
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(76));
    let report = fs::read_to_string(place.file("r")).unwrap();
    for said in [stderr(&output), report] {
        assert!(said.contains("WRONGPASS"), "{said}");
    }
}

/// The job asks the same Redis, though it cannot read the URL a second time.
#[test]
fn a_url_may_come_out_of_a_pipe() {
    let place = with_password();
    for line in [
        "$R run --redis-file <(cat url) k -c \"$R confirm\"",
        "cat url | $R run --redis-file /dev/stdin k -c \"$R confirm\"",
        "$R run --redis-file /dev/stdin k -c \"$R confirm </dev/null\" < url",
        "RELATCH_REDIS_FILE=/dev/stdin $R run k -c \"$R confirm </dev/null\" < url",
        // The inner one reads what the outer one does not.
        "$R run --redis-file url a $R run --redis-file <(cat url) k $R confirm",
    ] {
        let output = in_bash(&place, line);
        assert!(output.status.success(), "{line}: {}", stderr(&output));
    }
}

/// Where nothing but the command line says where Redis is.
fn in_bash(place: &Place, line: &str) -> Output {
    let mut bash = Command::new("bash");
    let bash = bash.args(["-c", line]).env("R", RELATCH);
    let bash = bash.env("REDIS_URL", "redis://127.0.0.1:1/");
    bash.current_dir(place.file("")).output().unwrap()
}

const EMPTY: [&str; 9] = [
    "RELATCH_URL",
    "RELATCH_REDIS_FILE",
    "RELATCH_PREFIX",
    "RELATCH_CACERT",
    "RELATCH_CERT",
    "RELATCH_CERT_KEY",
    "RELATCH_SNI",
    "RELATCH_SENTINEL_LOGIN",
    "RELATCH_HELD",
];

#[test]
fn an_empty_variable_counts_as_not_set() {
    let place = Place::new();
    let script = format!("set -e; redis-cli -u $REDIS_URL get lock:k; {RELATCH} confirm");
    let mut run = place.relatch(&["run", "k", "-c", &script]);
    let output = run.envs(EMPTY.map(|name| (name, ""))).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).len() > 32, "{}", stdout(&output));
}

/// It is not empty by mistake.
#[test]
fn a_job_has_the_empty_prefix_of_its_run() {
    let place = Place::new();
    let script = format!(
        "set -e; redis-cli -u $REDIS_URL get k; {RELATCH} confirm; {RELATCH} run -n k true"
    );
    let mut run = place.relatch(&["run", "--prefix", "", "k", "-c", &script]);
    let run = run.env("REDIS_URL", place.server.bare_url());
    let output = run.env("RELATCH_PREFIX", "other:").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).len() > 32, "{}", stdout(&output));
}

/// And the job's own commands do as its run does, wherever it goes.
#[test]
fn a_server_and_its_clients_may_show_certificates_of_an_authority_of_their_own() {
    let place = Place::new();
    let authority = Authority::new();
    let identity = authority.issue(&["redis.example.org"]);
    let server = Server::with_tls(&identity, &authority, &["--tls-auth-clients", "yes"]);
    let write = |name: &str, text: &str| fs::write(place.file(name), text).unwrap();
    let client = authority.issue(&["client"]);
    write("ca", authority.pem());
    write("cert", &client.certificate);
    write("key", &client.key);
    write("both", &[client.key, client.certificate].concat());
    let confirm = format!("cd /; {RELATCH} confirm");
    let run = |options: &[&str]| {
        let mut run = place.relatch(&[&["run"], options, &["k", "-c", &confirm]].concat());
        run.env("REDIS_URL", server.tls_url());
        run
    };
    let cacert = ["--cacert", "ca", "--sni", "redis.example.org"];
    let cert = ["--cert", "cert", "--cert-key", "key"];
    let by_variables = [
        ("RELATCH_CACERT", "ca"),
        ("RELATCH_CERT", "cert"),
        ("RELATCH_CERT_KEY", "key"),
        ("RELATCH_SNI", "redis.example.org"),
    ];
    let system = ("SSL_CERT_FILE", place.file("ca"));
    for mut run in [
        run(&[cacert, cert].concat()),
        run(&[&cacert[..], &["--cert", "both"]].concat()),
    ] {
        let output = run.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let output = run(&[]).envs(by_variables).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut by_system = run(&[&cacert[2..], &cert].concat());
    let output = by_system.env(system.0, system.1).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    // Each of them counts.
    for (code, options, reason) in [
        (
            77,
            [&cacert[2..], &cert].concat(),
            "issuer of its certificate",
        ),
        (77, [&cacert[..2], &cert].concat(), "for another host"),
        (77, cacert.to_vec(), "client's certificate"),
        (78, [&cacert[..], &["--cert", "key"]].concat(), "--cert has"),
        (
            78,
            [&cacert[..], &["--cert", "cert"]].concat(),
            "--cert-key has",
        ),
        (78, vec!["--cacert", "key"], "--cacert has"),
        (78, vec!["--sni", "a b"], "--sni has"),
        (78, vec!["--cacert", "missing"], "missing"),
        (64, vec!["--cert-key", "key"], "--cert"),
    ] {
        let output = run(&options).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
        assert!(said.contains(reason), "{options:?}: {said}");
    }
    let mut plain = place.relatch(&["run", "--cacert", "ca", "k", "true"]);
    let output = plain.output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("rediss"), "{}", stderr(&output));
}

#[test]
fn sentinels_have_a_login_of_their_own() {
    let place = Place::new();
    let sentinels = Sentinels::with(Setup {
        replicas: 0,
        password: Some("se:cret".to_owned()),
        ..Setup::default()
    });
    let confirm = format!("{RELATCH} confirm");
    let run = |login: &str| {
        let mut run = place.relatch(&["run", "k", "-c", &confirm]);
        let run = run.env("REDIS_URL", sentinels.url());
        run.env("RELATCH_SENTINEL_LOGIN", login).output().unwrap()
    };
    for login in [":se:cret", "default:se:cret"] {
        let output = run(login);
        assert!(output.status.success(), "{login}: {}", stderr(&output));
    }
    for (login, code) in [("", 77), (":other", 77), ("se+cret", 78)] {
        let output = run(login);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{login}: {said}");
        assert!(!said.contains("cret"), "{said}");
        assert!(code == 77 || said.contains("user:password"), "{said}");
    }
}

/// As when the program that is to write it hangs.
#[test]
fn a_signal_ends_a_run_whose_url_does_not_come() {
    let place = Place::new();
    let pipe = place.file("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let path = pipe.to_str().unwrap();
    let mut run = spawn(&mut place.relatch(&["run", "--redis-file", path, "k", "true"]));
    std::thread::sleep(std::time::Duration::from_millis(300)); // So that it reads by then.
    signal(run.id(), Sig::Term);
    assert_eq!(in_shell(run.wait().unwrap()), 143);
}
