//! A server that is malicious, or no Redis: callers get an error, in time, and nothing breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use relatch::{Error, LockManager};
use relatch_rig::{FakeServer, LONG, Reply, Worker, eventually, role, within};

use crate::support::garbage_replies::{ENDLESS, messages, nonsense, streams};
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
    eventually(LONG, "a shorter lease", || {
        guard.set_lease(LONG / 8).is_ok()
    });
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
