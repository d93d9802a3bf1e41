//! What a user may do, and what an error says to a user who may do less: row 23.

use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager, Unlocked};
use relatch_rig::rights::{in_cluster, invalidation_rights, least_rights, user, working_rights};
use relatch_rig::{LONG, Server, Worker, eventually, within};

use crate::support::{chain, grant, name_of_command, names_right, server_for, without};
use crate::turns::invalidations::assert_polls_without;

/// The limit of a wait that ends without the lock.
const WAIT: Duration = Duration::from_secs(1);

/// How much later a call may fail on a busy machine. A call that Redis refuses fails at once, or
/// when its wait ends.
const SLACK: Duration = Duration::from_secs(5);

/// For each right, the calls that fail without it. (A login does without its last two.) The rights
/// that are not in this table are for invalidations: no call fails without them.
const NEEDED_BY: [(&str, &[&str]); 11] = [
    (
        "~lock:*",
        &[
            "lock",
            "wait",
            "holder",
            "verify",
            "extend",
            "unlock",
            "unlock, taught",
            "keep",
            "force_unlock",
        ],
    ),
    ("+set", &["lock", "wait", "keep"]),
    (
        "+get",
        &[
            "wait",
            "holder",
            "verify",
            "extend",
            "unlock",
            "unlock, taught",
            "keep",
            "force_unlock",
        ],
    ),
    ("+del", &["unlock", "unlock, taught", "force_unlock"]),
    ("+pexpire", &["extend", "keep"]),
    (
        "+pttl",
        &["wait", "holder", "verify", "extend", "force_unlock"],
    ),
    (
        "+eval",
        &[
            "wait",
            "holder",
            "verify",
            "unlock, taught",
            "keep",
            "force_unlock",
        ],
    ),
    (
        "+evalsha",
        &[
            "wait",
            "holder",
            "verify",
            "extend",
            "unlock",
            "unlock, taught",
            "keep",
        ],
    ),
    ("+ping", &["connect"]),
    ("+hello", &[]),
    ("+client|setname", &[]),
];

/// Does everything that can be done with a lock, as a user with these rights; returns what Redis
/// refused meanwhile.
fn refused_to_a_user_with(rights: &[&str]) -> Vec<String> {
    let (server, url) = server_for(rights);
    let locks = LockManager::connect(&url).expect("connects");
    let outer = locks.lock("a").expect("locks");
    let inner = locks.lock("a").expect("locks again");
    outer.set_lease(Duration::from_secs(30)).expect("extends");
    thread::scope(|scope| {
        let others = LockManager::connect(&url).expect("connects");
        scope.spawn(move || {
            assert!(others.try_lock("a").expect("answers").is_none());
            assert!(
                others
                    .named("a")
                    .try_lock_for(WAIT)
                    .expect("answers")
                    .is_none()
            );
            assert!(
                others
                    .named("a")
                    .wait(WAIT)
                    .lock()
                    .expect_err("busy")
                    .is_timeout()
            );
            assert!(others.named("a").holder().expect("answers").is_some());
            others.with_lock("b", || ()).expect("runs");
        });
    });
    drop(inner);
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(outer.unlock().expect("unlocks"), Unlocked::Released);
    let kept = locks
        .named("a")
        .keep_at_least(2 * WAIT)
        .lock()
        .expect("locks")
        .unlock();
    assert!(matches!(kept, Ok(Unlocked::Kept { .. })), "{kept:?}");
    let taken_away = locks.lock("a").expect("locks");
    assert!(locks.named("a").force_unlock().expect("answers").is_some());
    assert!(taken_away.unlock().expect_err("lost").is_lost());
    drop(locks);
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
    server.refused().into_iter().map(|(_, what)| what).collect()
}

#[test]
fn row_23_the_least_rights_are_enough_for_everything() {
    assert_eq!(refused_to_a_user_with(&least_rights()), [""; 0]);
}

#[test]
fn row_23_everything_works_without_the_rights_to_invalidations() {
    let refused = refused_to_a_user_with(&working_rights());
    assert!(
        !refused.is_empty() && refused.iter().all(|it| it == name_of_command("client|id")),
        "{refused:?}"
    );
}

/// Does everything that can be done with a lock, as a user from whom a right was taken; returns
/// what failed, and with which error.
fn complaints_without(right: &str) -> Vec<(&'static str, Error)> {
    let (server, url) = server_for(&least_rights());
    let locks = LockManager::connect(&url).expect("connects");
    let others = LockManager::connect(&server.bare_url()).expect("connects");
    thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(others.named("taken").lock().expect("locks")));
    });
    let [first, second] = ["first", "second"].map(|key| locks.lock(key).expect("locks"));
    let third = locks
        .named("third")
        .keep_at_least(Duration::from_secs(30))
        .lock()
        .expect("locks");
    first.set_lease(Duration::from_secs(30)).expect("extends");
    drop(locks.lock("script").expect("locks"));
    grant(&server, &without(&[right]));

    let mut complaints = Vec::new();
    let mut note = |what: &'static str, done: &dyn Fn() -> Option<Error>| {
        complaints.extend(within(WAIT + SLACK, what, done).map(|error| (what, error)));
    };
    note("connect", &|| LockManager::connect(&url).err());
    note("lock", &|| locks.named("free").wait(WAIT).lock().err());
    note("lock", &|| locks.try_lock("tried").err());
    note("wait", &|| locks.named("taken").wait(WAIT).lock().err());
    note("holder", &|| locks.named("taken").holder().err());
    note("verify", &|| first.verify().err());
    note("extend", &|| first.set_lease(Duration::from_secs(60)).err());
    let [first, second, third] =
        [first, second, third].map(|guard| std::cell::Cell::new(Some(guard)));
    note("unlock", &|| first.take()?.unlock().err());
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    note("unlock, taught", &|| second.take()?.unlock().err());
    note("keep", &|| third.take()?.unlock().err());
    note("force_unlock", &|| {
        locks.named("taken").force_unlock().err()
    });
    within(2 * SLACK, "the end of the manager", || drop(locks));
    complaints.retain(|(_, error)| !error.is_timeout());
    complaints
}

/// The rights come from `docs/operations.md`. If a right is added there, this test fails until
/// [`NEEDED_BY`] has it, too.
#[test]
fn row_23_an_error_names_the_missing_right() {
    for right in working_rights() {
        let needed = NEEDED_BY.iter().find(|(it, _)| *it == right);
        let (_, needed_by) = needed.unwrap_or_else(|| panic!("nothing needs {right}"));
        // A node that has sent the map has answered: it is not asked for a `PONG`, too.
        let needed_by = if right == "+ping" && !in_cluster().is_empty() {
            &[]
        } else {
            *needed_by
        };
        let complaints = complaints_without(right);
        for (what, error) in &complaints {
            assert!(
                matches!(error, Error::Refused { .. } | Error::Unconfirmed { .. }),
                "{error:?}"
            );
            let text = chain(error);
            assert!(
                names_right(&text, right),
                "{what} does not name {right}: {text}"
            );
        }
        let mut complained: Vec<_> = complaints.into_iter().map(|(what, _)| what).collect();
        complained.dedup();
        assert_eq!(
            complained, needed_by,
            "the calls that failed without {right}"
        );
    }
    for right in invalidation_rights() {
        assert_eq!(complaints_without(right).len(), 0, "without {right}");
        assert_polls_without(&[right]);
    }
}

#[test]
fn row_23_a_renewal_without_a_right_is_logged_with_the_right() {
    for right in ["~lock:*", "+pexpire"] {
        let (server, url) = server_for(&least_rights());
        let mut holder = Worker::spawn("holder", &[("url", &*url)]);
        holder.expect_line("renewed", LONG);
        grant(&server, &without(&[right]));
        let logged = holder.expect_line("ERROR relatch::refused", LONG);
        assert!(
            names_right(&logged, right) && logged.contains("\"lock:a\""),
            "does not name {right}: {logged}"
        );
        // The lock cannot be renewed, so it is lost when its lease ends, and the loss is logged.
        holder.expect_line("WARN relatch::lost", LONG);
        assert!(holder.wait(LONG).success());
        let told = holder.printed().matches("refused").count();
        assert_eq!(told, 2, "one line, which has the word twice");
    }
}

/// The work was protected. But nobody gets the lock until the lease ends.
#[test]
fn row_23_a_refused_release_is_told_whatever_the_closure_returned() {
    let (_server, url) = server_for(&without(&["+del"]));
    let mut child = Worker::spawn("refused", &[("url", &*url)]);
    let logged = child.expect_line("ERROR relatch::refused", LONG);
    assert!(
        names_right(&logged, "+del") && logged.contains("\"lock:a\""),
        "{logged}"
    );
    assert!(child.wait(LONG).success());
    assert_eq!(
        child.printed().matches("ERROR").count(),
        1,
        "{}",
        child.printed()
    );
}

/// Checks the connections of the pool, the keeper and the listener. If managers did not log in,
/// `tests/rights.sh` would prove nothing.
#[test]
fn managers_log_in_as_the_user_that_the_environment_says() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let guard = locks.lock("a").expect("locks");
    guard.set_lease(Duration::from_secs(60)).expect("extends");
    eventually(LONG, "the listener is connected", || {
        !server.listeners().is_empty()
    });
    // There is one more connection while the listener checks that invalidations arrive.
    eventually(LONG, "each of the three has one connection", || {
        server.users() == [user(); 3]
    });
    let expected = std::env::var("RELATCH_TEST_LEAST_RIGHTS").map_or("default", |_| "locks");
    assert_eq!(user(), expected);
}
