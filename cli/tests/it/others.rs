//! Locks of other libraries: as they were seen in Redis. (`tests/peers` has the libraries
//! themselves.)

use crate::support::{Place, json, stderr, stdout};

/// Key and value, and whose they are.
const SEEN: [(&str, &str, &str); 6] = [
    ("report", "d4d2fb5ce95511f1af3e02fc00000001", "redis-py"),
    (
        "lock:report",
        "6+YSg/cvHmSOMSAQKRZrfn1M",
        "python-redis-lock or similar",
    ),
    ("report", "Skuh8MexeY8U/Dp3MYDxdQ==", "redsync or similar"),
    (
        "report",
        "dZtcTpAwSNCjs-LSF8f_SQ",
        "bsm/redislock or similar",
    ),
    (
        "job-lock:env:report",
        "ADDED:2026-11-26T05:00:12.105Z@web-3",
        "ShedLock",
    ),
    (
        "registry:report",
        "7b6c1a54-13f6-4d0c-9a40-6c5b6f0c2f7e",
        "Spring's RedisLockRegistry or similar",
    ),
];

#[test]
fn locks_of_other_libraries_exclude_ours_and_can_be_asked_about() {
    let place = Place::new();
    for (key, value, library) in SEEN {
        place.set(key, value);
        let ask = |words: &[&str]| place.as_operator(&[&["--prefix", ""], words].concat());
        let code = |words: &[&str]| ask(words).status.code().unwrap();
        let busy = ask(&["run", "-n", key, "true"]);
        assert_eq!(busy.status.code(), Some(75), "{}", stderr(&busy));
        let holder = json(&stdout(&ask(&["holder", key, "--json"])));
        assert_eq!(holder["holder"]["library"], library);
        assert_eq!(holder["holder"]["token"], value);
        let line = stdout(&ask(&["ls"]));
        assert!(line.contains(library), "{line}");
        let has_host = line.contains("  web-3  ");
        assert_eq!(has_host, library == "ShedLock", "{line}");
        assert_eq!(code(&["wait", key, "-w", "0"]), 75);
        assert_eq!(code(&["force-unlock", key, "--if-token", "another"]), 1);
        assert_eq!(code(&["force-unlock", key, "--if-token", value]), 0);
        assert_eq!(code(&["wait", key]), 0);
    }
}

/// As rueidislock has them.
#[test]
fn a_token_of_random_bytes_can_be_named() {
    let place = Place::new();
    for value in [&b"\xff\0\n 9f"[..], b"\x1b[31m", b"hex:ff"] {
        place.set("lock:k", value);
        let shown = stdout(&place.output(&["holder", "k"]));
        let token = shown.lines().find_map(|line| line.strip_prefix("token "));
        let token = token.unwrap_or_else(|| panic!("{shown}"));
        let object = json(&stdout(&place.output(&["holder", "k", "--json"])));
        assert_eq!(object["holder"]["token"], token);
        for (token, code) in [("hex:00", 1), ("hex:0", 64), (token, 0)] {
            let unlock = ["force-unlock", "k", "--if-token", token];
            assert_eq!(place.code(&unlock), code, "{token}");
        }
    }
}

/// All of them take a lock by `SET key token NX`: what they find while we have it.
#[test]
fn other_libraries_find_our_locks_busy() {
    let place = Place::new();
    let _run = place.holds(&["report"]);
    let theirs = ["SET", "lock:report", "theirs", "NX", "PX", "60000"];
    let reply: Option<String> = place.server.query(&theirs);
    assert_eq!(reply, None);
}
