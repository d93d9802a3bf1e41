//! Fencing tokens as a resource sees them: they grow, over restarts and whatever else happens to the
//! counter.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager};
use relatch_rig::{Server, SetOnDrop, compile_preload};

use crate::support::{ANSWER, connect};
use crate::turns::fence::{COUNTER, fence_of, fence_of_a_turn};

/// A resource that refuses a holder whose fence is older than one that it has seen.
#[derive(Debug, Default)]
struct Resource {
    newest: AtomicU64,
    fences: Mutex<HashSet<u64>>,
}

impl Resource {
    /// A lock was taken. `before` is what [`newest`](Resource::newest) was before the lock was
    /// asked for, so every fence up to it was handed out earlier.
    #[track_caller]
    fn enter(&self, fence: u64, before: u64) {
        assert!(fence > before, "{fence} was handed out after {before}");
        assert!(
            self.fences.lock().expect("no panic").insert(fence),
            "{fence} was handed out twice"
        );
        self.newest.fetch_max(fence, Ordering::SeqCst);
    }

    /// True if the resource takes the write.
    fn write(&self, fence: u64) -> bool {
        fence >= self.newest.load(Ordering::SeqCst)
    }

    fn newest(&self) -> u64 {
        self.newest.load(Ordering::SeqCst)
    }
}

/// Takes a lock until the resource has seen `turns` fences; returns how many writes it refused.
/// While Redis is away, a lock is not taken, and its release is not confirmed. No other error may
/// come.
fn take_turns(locks: &LockManager, resource: &Resource, turns: u64, taken: &AtomicU64) -> u64 {
    let lock = locks.named("a").fenced(true);
    let mut refused = 0;
    while taken.load(Ordering::SeqCst) < turns {
        let before = resource.newest();
        let guard = match lock.lock() {
            Ok(guard) => guard,
            Err(Error::Unavailable { .. }) => continue,
            Err(other) => panic!("{other:?}"),
        };
        // A larger fence was there already. That holder came later, if Redis has forgotten this
        // one.
        let is_late = !resource.write(fence_of(&guard));
        assert!(
            !(is_late && guard.verify().is_ok()),
            "a fence of an earlier hold is larger"
        );
        resource.enter(fence_of(&guard), before);
        refused += u64::from(is_late);
        taken.fetch_add(1, Ordering::SeqCst);
        match guard.unlock() {
            Ok(_) | Err(Error::Unconfirmed { .. } | Error::Lost { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    refused
}

/// What happens to the counter, one after the other.
const BLOWS: [fn(&Server); 5] = [
    |server| server.query(&["DEL", COUNTER]),
    |server| server.query(&["PEXPIRE", COUNTER, "1"]),
    |server| server.query(&["FLUSHALL"]),
    // A replica that becomes the master may have an older number.
    |server| server.query(&["SET", COUNTER, "1000000"]),
    |server| server.restart(),
];

/// Threads of three managers take turns, some handed off and some not, while the counter is struck.
fn fences_grow(turns: u64) {
    let server = Server::start();
    let (resource, taken, ended) = (
        Resource::default(),
        AtomicU64::new(0),
        AtomicBool::new(false),
    );
    let managers = [(); 3].map(|()| {
        let builder = LockManager::builder(&server.url())
            .lease(5 * ANSWER)
            .response_timeout(ANSWER);
        builder.connect_timeout(ANSWER).build().expect("connects")
    });
    let refused: u64 = thread::scope(|scope| {
        let (resource, taken, ended) = (&resource, &taken, &ended);
        let threads = managers.iter().flat_map(|it| [it; 2]);
        let takers: Vec<_> = threads
            .map(|it| scope.spawn(move || take_turns(it, resource, turns, taken)))
            .collect();
        let server = &server;
        let striking = scope.spawn(move || {
            let mut blows = BLOWS.iter().cycle();
            let mut struck = 0;
            while !ended.load(Ordering::SeqCst) {
                let before = taken.load(Ordering::SeqCst);
                blows.next().expect("endless")(server);
                struck += 1;
                // The next blow comes when locks were taken after this one.
                let next = before + 100.max(turns / 1000);
                while !ended.load(Ordering::SeqCst) && taken.load(Ordering::SeqCst) < next {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            struck
        });
        let stop = SetOnDrop(ended);
        let refused = takers
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .sum();
        drop(stop);
        let struck: u64 = striking.join().expect("no panic");
        assert!(struck >= 5, "{struck} blows");
        refused
    });
    let (taken, stats) = (taken.load(Ordering::SeqCst), managers.map(|it| it.stats()));
    let handed: u64 = stats.iter().map(|it| it.handed_off).sum();
    assert!(handed > 0, "nothing was handed off: {stats:?}");
    println!("fences | {taken} locks, {handed} handed off, {refused} late writes refused");
}

#[test]
fn fences_grow_whatever_becomes_of_the_counter() {
    fences_grow(4000);
}

/// As many turns as the variable says; a million takes minutes.
#[test]
#[ignore = "slow: tests/chaos.sh runs it"]
fn a_million_fences_grow() {
    fences_grow(env::var("RELATCH_FENCES").map_or(100_000, |it| it.parse().expect("a number")));
}

/// With the counter, fences grow even while the server's clock shows an earlier time. Without it,
/// the clock alone decides: that is the limit of what is promised.
#[test]
fn fences_grow_while_the_servers_clock_is_set_back_unless_the_counter_is_lost_as_well() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (shim, offset) = (
        compile_preload("wall_clock", dir.path()),
        dir.path().join("offset"),
    );
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let env = [
        ("LD_PRELOAD", &*path(&shim)),
        ("WALL_CLOCK_OFFSET", &*path(&offset)),
    ];
    let server = Server::in_env(&[], &env);
    let locks = connect(&server);
    let first = fence_of_a_turn(&locks);
    for seconds in ["-3600", "-7200"] {
        let (before, new) = (fence_of_a_turn(&locks), dir.path().join("new"));
        fs::write(&new, seconds).expect("a file can be written");
        fs::rename(new, &offset).expect("a file can be renamed");
        assert_eq!(
            fence_of_a_turn(&locks),
            before + 1,
            "one more than the counter"
        );
        assert_eq!(fence_of_a_turn(&locks), before + 2);
    }
    server.query::<()>(&["DEL", COUNTER]);
    assert!(
        fence_of_a_turn(&locks) < first,
        "the clock was not set back"
    );
}
