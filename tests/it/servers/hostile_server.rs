//! A server that is malicious, or no Redis: callers get an error, in time, and nothing breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use proptest::prelude::*;
use relatch::{Error, LockManager};
use relatch_rig::{FakeServer, LONG, Reply, Worker, eventually, role, within};

use crate::many::sentinel::array;
use crate::support::chain;
use crate::support::garbage_replies::{ENDLESS, babble, messages, nonsense, streams};
use crate::support::lying_server::{ANSWER, LyingServer, PANICS};

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(12);

type Call = fn(&LyingServer, &LockManager, &mut dyn FnMut()) -> Result<String, Error>;

/// Every operation, and the command to which the server lies. Each operation calls its last
/// argument when the lies have to begin.
const CALLS: [(&str, &str, Call); 16] = [
    ("build", "PING", build),
    ("build", "AUTH", build),
    ("build", "SELECT", build),
    ("lock", "SET", |_, locks, begin| {
        begin();
        locks.lock("a").map(shown)
    }),
    ("lock", "AUTH", |_, locks, begin| {
        begin();
        locks.lock("a").map(shown)
    }),
    ("try_lock", "SET", |_, locks, begin| {
        begin();
        locks.try_lock("a").map(shown)
    }),
    ("try_lock_for", "SET", |rig, locks, begin| {
        begin();
        locks.named("a").try_lock_for(rig.answer).map(shown)
    }),
    ("with_lock", "SET", |_, locks, begin| {
        begin();
        locks.with_lock("a", || ()).map(shown)
    }),
    ("lock, busy", "EVALSHA", busy),
    ("unlock", "EVALSHA", |rig, locks, begin| {
        let guard = rig.hold(locks);
        begin();
        guard.unlock().map(shown)
    }),
    ("extend", "EVALSHA", |rig, locks, begin| {
        let guard = rig.hold(locks);
        begin();
        guard.set_lease(LONG).map(shown)
    }),
    ("verify", "EVALSHA", |rig, locks, begin| {
        let guard = rig.hold(locks);
        begin();
        guard.verify().map(shown)
    }),
    ("holder", "EVALSHA", |_, locks, begin| {
        begin();
        locks.named("a").holder().map(shown)
    }),
    ("holder, busy", "EVALSHA", |rig, locks, begin| {
        rig.busy.store(true, Ordering::SeqCst);
        begin();
        locks.named("a").holder().map(shown)
    }),
    ("force_unlock", "EVAL ", |_, locks, begin| {
        begin();
        locks.named("a").force_unlock().map(shown)
    }),
    ("any", "", |_, locks, begin| {
        begin();
        locks.named("a").holder().map(shown)
    }),
];

fn build(rig: &LyingServer, _: &LockManager, begin: &mut dyn FnMut()) -> Result<String, Error> {
    begin();
    rig.builder().build().map(shown)
}

fn busy(rig: &LyingServer, locks: &LockManager, begin: &mut dyn FnMut()) -> Result<String, Error> {
    rig.busy.store(true, Ordering::SeqCst);
    begin();
    locks.lock("a").map(shown)
}

fn shown<T: std::fmt::Debug>(value: T) -> String {
    format!("{value:?}")
}

/// Whether a lie may lead to this error: no proper answer, an error reply, or a release that is not
/// confirmed.
fn is_unanswered(error: &Error) -> bool {
    matches!(
        error,
        Error::Unavailable { .. }
            | Error::Refused { .. }
            | Error::Unconfirmed { .. }
            // So little time was left behind the lie that no answer proves nothing.
            | Error::Timeout {
                source: Some(_),
                ..
            }
    )
}

/// Runs an operation that gets a lie; returns its error, and how long it took. If the machine is so
/// slow that the operation ends before the lie, runs the operation again.
fn lied_to(
    rig: &LyingServer,
    (name, command, call): (&str, &'static str, Call),
    say: &Reply,
) -> (Error, Duration) {
    let what = format!("{name}, {command:?} answered {:.100}", format!("{say:?}"));
    let mut end = None;
    eventually(LONG, &what, || {
        let (locks, mut began, mut before) = (rig.locks(), Instant::now(), rig.lies());
        let result = call(rig, &locks, &mut || {
            before = rig.lies();
            rig.lie(command, say.clone());
            began = Instant::now();
        });
        let took = began.elapsed();
        let lied = rig.lies() > before;
        within(4 * ANSWER + SLACK, &what, || drop(locks));
        // If there was no lie, the operation ended too early, and its result does not count.
        end = lied.then(|| (result.map(drop).expect_err(&what), took));
        lied
    });
    end.expect("just lied to")
}

/// Answers every operation with each of `lies`, and checks that the operation fails within `limit`,
/// with an error that is fit for a log.
#[track_caller]
fn assert_all_fail(lies: &[Reply], limit: Duration) {
    thread::scope(|scope| {
        for (name, command, call) in CALLS {
            scope.spawn(move || {
                let rig = LyingServer::new();
                for say in lies {
                    let (error, took) = lied_to(&rig, (name, command, call), say);
                    let what = format!("{name}, {command:?} answered {:.100}", format!("{say:?}"));
                    assert!(is_unanswered(&error), "{what}: {error:?}");
                    let text = error.to_string();
                    assert!(
                        text.len() < 1000 && !text.contains(char::is_control),
                        "{what}: {text:?}"
                    );
                    assert!(took <= limit, "{what}: took {took:?}");
                }
            });
        }
    });
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

/// Without lies, every operation works. So the errors in the other tests come from the lies.
#[test]
fn row_37_honest_answers_are_no_errors() {
    for (name, _, call) in CALLS {
        // No timeout may be so short that a slow machine alone causes an error: a wait of 50 ms
        // sometimes ended before there was a connection. Only the wait for a busy lock has to end.
        let rig = LyingServer::waiting(LONG / 4);
        let wait = if name == "lock, busy" {
            40 * ANSWER
        } else {
            LONG
        };
        let result = call(
            &rig,
            &rig.builder().wait(wait).build_lazily().expect("valid"),
            &mut || (),
        );
        match result {
            Ok(_) => assert_ne!(name, "lock, busy"),
            Err(error) => assert!(
                name == "lock, busy" && error.is_timeout(),
                "{name}: {error:?}"
            ),
        }
    }
}

#[test]
fn row_37_garbage_instead_of_an_answer_is_an_error() {
    assert_all_fail(&nonsense(), 4 * ANSWER + SLACK);
}

#[test]
fn row_37_huge_lengths_and_endless_replies_take_no_time_and_no_memory() {
    let mut child = Worker::spawn("huge", &[]);
    assert_eq!(child.expect_line("grew", LONG), "grew little");
    assert!(child.wait(LONG).success());
}

/// The role of a process that gets huge replies. It is a process of its own, so that the test can
/// measure its memory.
pub(crate) fn huge_as_told() {
    let before = peak();
    let endless: Vec<_> = ENDLESS
        .iter()
        .map(|head| Reply::Bytes(head.as_bytes().to_vec()))
        .collect();
    assert_all_fail(&endless, 4 * ANSWER + SLACK);
    assert_all_fail(&streams(), 4 * ANSWER + SLACK);
    // A map of a cluster, as long as the longest, of as many elements as fit.
    let map = liar_with_map();
    let url = format!("redis+cluster://{}/", map.address());
    let locks = LockManager::builder(&url)
        .connect_timeout(LONG)
        .build_lazily()
        .expect("sends nothing");
    within(LONG, "reading the map", || locks.try_lock("a")).expect_err("no map");
    let grew = peak() - before;
    role::report(if grew < 50_000 {
        "grew little".to_owned()
    } else {
        format!("grew {grew} KB")
    });
}

fn liar_with_map() -> FakeServer {
    FakeServer::start(|command| match command.get(1).map(String::as_str) {
        Some("SLOTS") => Reply::Endless(b"*1048000\r\n".to_vec(), b"+x\r\n".to_vec(), LONG),
        _ if command.is_empty() => Reply::Bytes(Vec::new()),
        _ => Reply::Bytes(b"-ERR unknown\r\n".to_vec()),
    })
}

/// The most memory that this process has had, in KB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("the peak");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

#[test]
fn row_37_a_long_error_is_shortened() {
    let rig = LyingServer::new();
    let patient = rig.builder().connect_timeout(LONG).response_timeout(LONG);
    let locks = patient.build().expect("connects");
    for length in [200_000, 1_000_000] {
        let line = [b"-OOM ".to_vec(), b"x".repeat(length), b"\r\n".to_vec()].concat();
        rig.lie("SET", Reply::Bytes(line));
        let error = within(LONG / 4, "reading it", || locks.try_lock("a")).expect_err("an error");
        let too_long = length > 256 * 1024;
        assert_eq!(
            matches!(error, Error::Refused { .. }),
            !too_long,
            "{error:.2000}"
        );
        assert_eq!(
            matches!(error, Error::Unavailable { .. }),
            too_long,
            "{error:.2000}"
        );
        assert!(error.to_string().len() < 1000, "{error:.2000}");
    }
}

/// What a server says besides its answers: behind the login's, or later.
#[test]
fn row_37_an_ok_that_nobody_asked_for_is_taken_for_no_lock() {
    for behind_login in [true, false] {
        let server = FakeServer::start(move |command| {
            let command: Vec<_> = command.iter().map(String::as_str).collect();
            match command[..] {
                [] => Reply::Bytes(Vec::new()),
                // The last command of the login.
                ["SELECT", _] if behind_login => Reply::Bytes(b"+OK\r\n+OK\r\n".to_vec()),
                ["SET", "lock:free", ..] => Reply::Subscribed(b"+OK\r\n".to_vec()),
                ["SET", ..] => Reply::Bytes(b"$-1\r\n".to_vec()),
                ["EVALSHA", _, _, "lock:free", ..] => Reply::Bytes(b":1\r\n".to_vec()),
                ["EVAL" | "EVALSHA", ..] => Reply::Bytes(b"*2\r\n$3\r\na-b\r\n:60000\r\n".to_vec()),
                _ => Reply::Bytes(b"+OK\r\n".to_vec()),
            }
        });
        let builder = LockManager::builder(&format!("redis://{}/3", server.address()));
        let builder = builder
            .connect_timeout(LONG)
            .response_timeout(LONG)
            .tolerate_outage(ANSWER);
        let locks = builder.build_lazily().expect("sends nothing");
        let free = (!behind_login).then(|| {
            locks
                .try_lock("free")
                .expect("answers")
                .expect("it is free")
        });
        assert_eq!(server.push(b"+OK\r\n"), usize::from(free.is_some()));
        // A connection that has answered just now is lent without a look.
        thread::sleep(Duration::from_millis(1));
        match locks.try_lock("held by another") {
            Ok(None) if !behind_login => {}
            Err(Error::Unavailable { .. }) if behind_login => {}
            other => panic!("behind the login: {behind_login}: {other:?}"),
        }
    }
}

/// A login whose answers do not fit its commands: each is out of step by one.
#[test]
fn row_37_a_login_demands_the_answers_of_its_commands() {
    for (command, answer) in [
        ("AUTH", "+OK\r\n+OK\r\n"),
        ("HELLO", ":1\r\n"),
        ("HELLO", "+PONG\r\n"),
        ("CLIENT", ":1\r\n"),
        ("SELECT", "$-1\r\n"),
    ] {
        let rig = LyingServer::waiting(LONG);
        rig.lie(command, Reply::Bytes(answer.as_bytes().to_vec()));
        let locks = rig
            .builder()
            .tolerate_outage(ANSWER)
            .build_lazily()
            .expect("sends nothing");
        let error = locks.try_lock("a").expect_err(command);
        assert!(
            matches!(error, Error::Unavailable { .. }),
            "{command} {answer:?}: {error:?}"
        );
    }
}

/// A sentinel or a node of a cluster names other servers. What it says is a host and a port, or is
/// not believed: an error that names the server would forge a line of the log.
#[test]
fn row_37_an_announced_host_forges_no_line() {
    for host in [
        "a\nERROR forged",
        "a\rERROR",
        "a\x1b[2J",
        "a b",
        "a/b@c",
        &"a".repeat(300),
    ] {
        let master = array(&[host, "6379"]);
        let sentinel = move |command: &[String]| match command.get(1).map(String::as_str) {
            Some("get-master-addr-by-name") => master.clone(),
            _ => "-ERR unknown\r\n".to_owned(),
        };
        let node = format!("*2\r\n${}\r\n{host}\r\n:1\r\n", host.len());
        let map = format!("*1\r\n*4\r\n:0\r\n:16383\r\n{node}{node}");
        let seed = move |command: &[String]| match command.get(1).map(String::as_str) {
            Some("SLOTS") => map.clone(),
            _ => "-ERR unknown\r\n".to_owned(),
        };
        // As if there were no host at all. Otherwise its name would be looked up, and be in the
        // log.
        for (scheme, fake, said) in [
            (
                "redis+sentinel",
                liar(sentinel),
                "the sentinel's reply made no sense",
            ),
            ("redis+cluster", liar(seed), " knows no slots"),
        ] {
            let url = format!(
                "{scheme}://{}/{}",
                fake.address(),
                if scheme.ends_with('l') { "m" } else { "" }
            );
            let builder = LockManager::builder(&url)
                .tolerate_outage(ANSWER)
                .connect_timeout(LONG);
            let locks = builder.build_lazily().expect("sends nothing");
            // On a busy machine, the answer may come too late.
            let mut error = locks.try_lock("a").expect_err("no such server");
            eventually(LONG, said, || {
                error = locks.try_lock("a").expect_err("no such server");
                chain(&error).contains(said)
            });
            let first: &dyn std::error::Error = &error;
            for error in std::iter::successors(Some(first), |error| error.source()) {
                let text = error.to_string();
                assert!(
                    !text.contains("ERROR") && !text.contains(char::is_control),
                    "{text:?}"
                );
                assert!(text.len() < 250, "{text:?}");
            }
        }
    }
}

fn liar(script: impl Fn(&[String]) -> String + Send + Sync + 'static) -> FakeServer {
    FakeServer::start(move |command| {
        Reply::Bytes(if command.is_empty() {
            Vec::new()
        } else {
            script(command).into_bytes()
        })
    })
}

/// The lie says that the lock is busy and has no holder. No real Redis replies that.
#[test]
fn row_37_a_lock_that_is_busy_without_a_holder_is_tried_with_backoff() {
    let rig = LyingServer::new();
    rig.busy.store(true, Ordering::SeqCst);
    rig.lie("SET", Reply::Bytes(b"*2\r\n$-1\r\n:-2\r\n".to_vec()));
    let wait = Duration::from_secs(3);
    let taken = within(wait + SLACK, "a wait", || {
        rig.locks().named("a").try_lock_for(wait)
    });
    assert!(!matches!(taken, Ok(Some(_))));
    // After each such answer, the manager closes the connection, and pauses for up to half a
    // second.
    assert!(
        (2..150).contains(&rig.lies()),
        "{} looks in three seconds",
        rig.lies()
    );
}

#[test]
fn row_37_renewals_continue_after_garbage() {
    let rig = LyingServer::new();
    let reported = Arc::<AtomicUsize>::default();
    let losses = Arc::clone(&reported);
    let count = move |_: &relatch::LostLock| _ = losses.fetch_add(1, Ordering::SeqCst);
    let builder = rig
        .builder()
        .lease(LONG)
        .renew_every(ANSWER / 5)
        .on_lost(count);
    let locks = builder.build_lazily().expect("nothing is sent");
    let guard = rig.hold(&locks);
    for say in nonsense() {
        let what = format!("{:.100}", format!("{say:?}"));
        let before = locks.stats().renewal_errors;
        rig.lie("EVALSHA", say);
        eventually(LONG, &what, || locks.stats().renewal_errors > before);
        let before = locks.stats().renewed;
        rig.be_honest();
        eventually(LONG, &what, || locks.stats().renewed > before);
        assert!(guard.is_valid(), "{what}");
    }
    assert_eq!(reported.load(Ordering::SeqCst), 0);
    guard.set_lease(4 * ANSWER).expect("extends");
    rig.lie("EVALSHA", Reply::Bytes(b"*0\r\n".to_vec()));
    eventually(LONG, "the loss is reported", || {
        reported.load(Ordering::SeqCst) == 1
    });
    assert!(guard.unlock().expect_err("lost").is_lost());
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[test]
fn row_37_garbage_for_the_listener_disturbs_no_lock() {
    let to = |command, lies: Vec<Reply>| lies.into_iter().map(move |say| (command, say));
    let mut lies: Vec<_> = to("SUBSCRIBE", messages()).collect();
    for command in ["SUBSCRIBE", "CLIENT ID", "CLIENT TRACKING"] {
        lies.extend(to(command, nonsense()));
    }
    thread::scope(|scope| {
        for lies in lies.chunks(lies.len().div_ceil(20)) {
            scope.spawn(move || {
                let rig = LyingServer::new();
                rig.busy.store(true, Ordering::SeqCst);
                for (to, say) in lies {
                    let what = format!("{to} answered {:.100}", format!("{say:?}"));
                    let (locks, before) = (rig.locks(), rig.lies());
                    rig.lie(to, say.clone());
                    eventually(LONG, &what, || {
                        let taken = within(ANSWER + SLACK, &what, || {
                            locks.named("a").try_lock_for(ANSWER)
                        });
                        assert!(!matches!(taken, Ok(Some(_))), "{what}");
                        rig.lies() > before
                    });
                    within(4 * ANSWER + SLACK, &what, || drop(locks));
                }
            });
        }
    });
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, max_shrink_iters: 100, ..ProptestConfig::default() })]

    /// The answer comes in two parts. The second may come when no call waits for it any more.
    #[test]
    fn row_37_whatever_is_answered_ends_in_time(
        first in babble(),
        late: bool,
        rest in babble(),
        call in 0..CALLS.len(),
    ) {
        let (name, command, call) = CALLS[call];
        let (rig, pause) = (LyingServer::new(), if late { ANSWER + ANSWER / 5 } else { Duration::ZERO });
        // The wait has a limit, because a reply that says "busy" is a lie that nothing can notice.
        let locks = rig.builder().wait(4 * ANSWER).build_lazily().expect("nothing is sent");
        let mut began = Instant::now();
        let result = call(&rig, &locks, &mut || {
            rig.lie(command, Reply::Paused(first.clone(), pause, rest.clone()));
            began = Instant::now();
        });
        prop_assert!(began.elapsed() <= 4 * ANSWER + SLACK, "{}: took {:?}", name, began.elapsed());
        if let Err(error) = result {
            let text = error.to_string();
            prop_assert!(text.len() < 1000 && !text.contains(char::is_control), "{}: {:?}", name, text);
        }
        prop_assert_eq!(PANICS.load(Ordering::SeqCst), 0);
    }
}
