//! How the command finds Redis, and what it shows there.

use std::process::{Output, Stdio};

use relatch_rig::{Authority, LONG, Sentinels, Server, Setup, eventually};

use crate::support::{Place, spawn, stderr, stdout};

/// A Redis whose user `u` has the password `one`, and the URL of that in the file `url`.
fn with_password() -> Place {
    let place = Place::new();
    let user = ["ACL", "SETUSER", "u", "on", ">one", "~*", "&*", "+@all"];
    place.server.query::<()>(&user);
    write_url(&place, "one");
    place
}

fn write_url(place: &Place, password: &str) {
    let url = format!("redis://u:{password}@{}/\n", place.server.address());
    place.write("url", &url);
}

/// The old password is good no more, and nobody who has used it stays.
fn revoke(place: &Place) {
    let query = |words: &[&str]| place.server.query::<redis::Value>(words);
    query(&["ACL", "SETUSER", "u", "resetpass", ">two"]);
    query(&["CLIENT", "KILL", "USER", "u"]);
}

#[test]
fn a_password_that_changes_ends_no_run() {
    let place = with_password();
    let options = ["--redis-file", "url", "--lease", "9s", "k"];
    let script = "echo > $1; until test -e end; do sleep 0.01; done; exit 3";
    let mut run = place.start(&options, "ready", script);
    write_url(&place, "two");
    revoke(&place);
    let mut lowest = i64::MAX;
    eventually(LONG, "it is renewed", || {
        let left = place.server.pttl("lock:k");
        lowest = lowest.min(left);
        left > lowest + 100
    });
    place.write("end", "");
    assert_eq!(run.code(), 3);
    assert!(!place.server.exists("lock:k"), "it is given back");
}

/// Who is to mend it reads what Redis says.
#[test]
fn a_lock_that_is_lost_by_a_wrong_password_says_so() {
    let place = with_password();
    let options = ["--redis-file", "url", "--report", "r", "--lease", "2s", "k"];
    let mut run = place.holds(&options);
    revoke(&place);
    assert_eq!(run.code(), 76);
    for said in [run.said(), place.text("r")] {
        assert!(said.contains("WRONGPASS"), "{said}");
    }
}

/// A line where nothing but the command line says where Redis is.
fn nowhere(place: &Place, line: &str) -> Output {
    let mut bash = place.bash(line);
    let bash = bash.env("REDIS_URL", "redis://127.0.0.1:1/");
    bash.output().unwrap()
}

/// The job asks the same Redis, though it cannot read the URL a second time, or is elsewhere.
#[test]
fn a_url_may_be_in_a_file_or_come_out_of_a_pipe() {
    let place = with_password();
    for line in [
        "$R run --redis-file url k -c \"cd /; $R confirm\"",
        "$R run --redis-file <(cat url) k -c \"$R confirm\"",
        "RELATCH_REDIS_FILE=/dev/stdin $R run k -c \"$R confirm </dev/null\" < url",
        // The inner one reads what the outer one does not.
        "$R run --redis-file url a $R run --redis-file <(cat url) k $R confirm",
        // The command line counts more.
        "RELATCH_REDIS_FILE=missing $R run --redis $(cat url) k -c \"$R confirm\"",
    ] {
        let output = nowhere(&place, line);
        assert!(output.status.success(), "{line}: {}", stderr(&output));
    }
}

#[test]
fn an_empty_variable_counts_as_not_set_and_an_empty_prefix_does_not() {
    let place = Place::new();
    let empty = [
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
    for (options, key) in [(&[][..], "lock:k"), (&["--prefix", ""], "k")] {
        let get = format!("redis-cli -u $REDIS_URL get {key}");
        let script = format!("{get} && $R confirm && $R run -n k true");
        let mut run = place.relatch(&[&["run"], options, &["k", "-c", &script]].concat());
        let run = run.env("REDIS_URL", place.server.bare_url());
        let output = run.envs(empty.map(|name| (name, ""))).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).len() > 32, "{}", stdout(&output));
    }
}

/// And the job's own commands do as its run does, wherever it goes.
#[test]
fn a_server_and_its_clients_may_show_certificates_of_an_authority_of_their_own() {
    let place = Place::new();
    let authority = Authority::new();
    let identity = authority.issue(&["redis.example.org"]);
    let server = Server::with_tls(&identity, &authority, &["--tls-auth-clients", "yes"]);
    let client = authority.issue(&["client"]);
    place.write("ca", authority.pem());
    place.write("cert", &client.certificate);
    place.write("key", &client.key);
    place.write("both", &[client.key, client.certificate].concat());
    let system = format!("SSL_CERT_FILE={}", place.file("ca").display());
    let cert = "--cert cert --cert-key key";
    let variables = "RELATCH_CACERT=ca RELATCH_CERT=cert RELATCH_CERT_KEY=key \
                     RELATCH_SNI=redis.example.org";
    // Variables, options, the code, and what is said.
    for (variables, options, code, reason) in [
        (
            "",
            &*format!("--cacert ca --sni redis.example.org {cert}"),
            0,
            "",
        ),
        ("", "--cacert ca --sni redis.example.org --cert both", 0, ""),
        (variables, "", 0, ""),
        (&system, &format!("--sni redis.example.org {cert}"), 0, ""),
        // Each of them counts.
        (
            "",
            &format!("--sni redis.example.org {cert}"),
            77,
            "issuer of its certificate",
        ),
        ("", &format!("--cacert ca {cert}"), 77, "for another host"),
        (
            "",
            "--cacert ca --sni redis.example.org",
            77,
            "client's certificate",
        ),
        ("", "--cacert ca --cert key", 78, "--cert has"),
        ("", "--cacert ca --cert cert", 78, "--cert-key has"),
        ("", "--cacert key", 78, "--cacert has"),
        ("", "--cacert missing", 78, "missing"),
        ("", "--cert-key key", 64, "--cert"),
        ("REDIS_URL=redis://127.0.0.1/", "--cacert ca", 78, "rediss"),
    ] {
        let line = format!("env {variables} $R run {options} k -c 'cd /; $R confirm'");
        let mut bash = place.bash(&line);
        let output = bash.env("REDIS_URL", server.tls_url()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(reason), "{line}: {said}");
    }
}

#[test]
fn sentinels_have_a_login_of_their_own() {
    let place = Place::new();
    let sentinels = Sentinels::with(Setup {
        replicas: 0,
        password: Some("se:cret".to_owned()),
        ..Setup::default()
    });
    for (login, code) in [
        (":se:cret", 0),
        ("default:se:cret", 0),
        ("", 77),
        (":other", 77),
        ("se+cret", 78),
    ] {
        let mut run = place.relatch(&["run", "k", "-c", "$R confirm"]);
        let run = run.env("REDIS_URL", sentinels.url());
        let run = run.env("RELATCH_SENTINEL_LOGIN", login);
        let mut run = spawn(run.stderr(Stdio::piped()));
        let (seen, said) = (run.code(), run.said());
        assert_eq!(seen, code, "{login}: {said}");
        assert!(!said.contains("cret"), "{said}");
        assert!(code != 78 || said.contains("user:password"), "{said}");
    }
}
