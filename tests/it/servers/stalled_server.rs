//! Redis stalls: row 22.

use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager, Unlocked};
use relatch_rig::{LONG, Server, eventually, within};

use crate::support::chain;

/// The limit of a wait that ends without the lock, and the timeout for a connection or an answer.
const WAIT: Duration = Duration::from_secs(1);

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(10);

/// A manager that waits [`WAIT`] for each answer, also for the answer to its login.
fn hasty(server: &Server) -> LockManager {
    let builder = LockManager::builder(&server.url())
        .connect_timeout(WAIT)
        .response_timeout(WAIT);
    builder.build().expect("connects")
}

/// Checks that every operation on a stalled server ends by its deadline, and leaves no key behind.
///
/// `stall` begins a stall, and `end` ends it or waits for its end.
fn survives(server: &Server, stall: impl FnOnce(), end: impl FnOnce()) {
    let locks = hasty(server);
    // The lease is so long that only a release deletes the key in time.
    let held = locks
        .named("released")
        .lease(3 * LONG)
        .renew(false)
        .lock()
        .expect("locks");
    stall();
    let error =
        within(WAIT + SLACK, "lock", || locks.named("a").wait(WAIT).lock()).expect_err("stalled");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = within(2 * WAIT + SLACK, "try_lock", || locks.try_lock("b")).expect_err("stalled");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = within(WAIT + SLACK, "unlock", || held.unlock()).expect_err("stalled");
    assert!(matches!(error, Error::Unconfirmed { .. }), "{error:?}");
    end();
    for key in ["a", "b", "released"] {
        eventually(LONG, "nothing stays behind", || {
            !server.exists(&format!("lock:{key}"))
        });
        let guard = locks.named(key).wait(LONG).lock().expect("locks");
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
}

#[test]
fn row_22_calls_during_a_pause_of_writes_end_by_their_deadline() {
    let server = Server::start();
    let stall = || server.query::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    survives(&server, stall, || server.query(&["CLIENT", "UNPAUSE"]));
}

#[test]
fn row_22_calls_during_an_endless_script_end_by_their_deadline() {
    let server = Server::with(&["--lua-time-limit", "20"]);
    thread::scope(|scope| {
        let stall = || {
            let mut hog = server.connect();
            let endless = "while true do end";
            scope.spawn(move || {
                redis::cmd("EVAL")
                    .arg(endless)
                    .arg(0)
                    .query::<()>(&mut hog)
                    .expect_err("killed")
            });
            let is_busy = || {
                server
                    .command(&["PING"])
                    .is_err_and(|error| error.code() == Some("BUSY"))
            };
            eventually(LONG, "the script runs", is_busy);
            let error = LockManager::connect(&server.url()).expect_err("busy");
            assert!(chain(&error).contains("BUSY"), "{}", chain(&error));
        };
        survives(&server, stall, || {
            server.query::<()>(&["SCRIPT", "KILL"]);
            eventually(LONG, "the script is killed", || {
                server.command(&["PING"]).is_ok()
            });
        });
    });
}
