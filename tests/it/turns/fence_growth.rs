//! Fencing tokens as a resource sees them: they grow, over restarts, evictions, failovers and
//! whatever else happens to the counter.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager, Replicas};
use relatch_rig::{
    Cluster, ClusterSetup, LONG, Sentinels, Server, SetOnDrop, Worker, compile_preload, eventually,
    role, unique_key,
};

use crate::many::cluster;
use crate::many::sentinel::patient;
use crate::support::{ANSWER, connect, redis_connection};
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
fn take_turns(
    locks: &LockManager,
    name: &str,
    resource: &Resource,
    turns: u64,
    taken: &AtomicU64,
) -> u64 {
    let lock = locks.named(name).fenced(true);
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
            .map(|it| scope.spawn(move || take_turns(it, "a", resource, turns, taken)))
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

/// Other keys need the memory, and Redis evicts the counter.
#[test]
fn fences_grow_although_redis_evicts_the_counter() {
    let server = Server::start();
    let locks = connect(&server);
    let info: String = server.query(&["INFO", "memory"]);
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .expect("a number");
    let limit = used.parse::<u64>().expect("a number") + 2_000_000;
    server.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    server.query::<()>(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
    let value = "v".repeat(20_000);
    let mut last = 0;
    for is_held in [false, true, false] {
        let guard = locks.named("a").fenced(true).lock().expect("locks");
        assert!(fence_of(&guard) > last, "{} after {last}", fence_of(&guard));
        last = fence_of(&guard);
        // The hold may be evicted as well. Then the next one begins beside it.
        let _held = is_held.then_some(guard);
        eventually(LONG, "the counter is evicted", || {
            for _ in 0..100 {
                server.query::<()>(&["SET", &unique_key("other"), &value]);
            }
            !server.exists(COUNTER)
        });
    }
    let next = fence_of_a_turn(&locks);
    assert!(next > last, "{next} after {last}");
}

/// Processes append their fences to one list, each under the lock.
#[test]
fn fences_grow_over_processes() {
    let server = Server::start();
    let url = server.url();
    let mut workers: Vec<_> = (0..3)
        .map(|_| Worker::spawn("fencer", &[("url", &*url), ("bare", &*server.bare_url())]))
        .collect();
    for worker in &mut workers {
        worker.expect_line("ready", LONG);
        worker.send("200");
    }
    for worker in &workers {
        worker.expect_line("done", 3 * LONG);
    }
    let fences: Vec<u64> = server.query(&["LRANGE", "fences", "0", "-1"]);
    assert_eq!(fences.len(), 600);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

/// The role of a process that takes the lock `a` with a fence, as often as it is told.
pub(crate) fn take_as_told() {
    let locks = LockManager::builder(&role::arg("url"))
        .fenced(true)
        .build()
        .expect("connects");
    let mut list = redis_connection(&role::arg("bare"));
    role::report("ready");
    let turns: u64 = role::next_line()
        .expect("a number of turns")
        .parse()
        .expect("a number");
    for _ in 0..turns {
        let guard = locks.lock("a").expect("locks");
        let pushed: u64 = redis::cmd("RPUSH")
            .arg("fences")
            .arg(fence_of(&guard))
            .query(&mut list)
            .expect("pushes");
        assert!(pushed > 0);
    }
    role::report("done");
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

#[test]
fn fences_grow_over_failovers_and_replicas_that_acknowledge_have_the_counter() {
    let sentinels = Sentinels::start();
    let builder = patient(&sentinels.url()).replicas(Replicas::all(), ANSWER / 2);
    let locks = builder.build().expect("connects");
    let fenced = locks.named("a").fenced(true);
    let mut last = 0;
    for lossy in [false, true, true] {
        let guard = fenced.lock().expect("locks");
        assert!(fence_of(&guard) > last, "{} after {last}", fence_of(&guard));
        last = fence_of(&guard);
        for place in 0..sentinels.count() {
            let has = sentinels.server(place).get(COUNTER);
            assert_eq!(
                has,
                Some(last.to_string()),
                "server {place} acknowledged the lock"
            );
        }
        drop(guard);
        sentinels.fail_over();
        sentinels.until_in_sync();
        if lossy {
            // As if the replica had been behind.
            sentinels
                .server(sentinels.master())
                .query::<()>(&["SET", COUNTER, "5"]);
        }
    }
    let mut next = None;
    eventually(LONG, "the lock is taken", || {
        next = fenced.lock().ok();
        next.is_some()
    });
    assert!(fence_of(&next.expect("taken")) > last);
}

/// The lock's slot and its master change, and the counter with them.
#[test]
fn fences_grow_while_a_slot_moves_and_masters_are_failed_over() {
    let cluster = Cluster::with(ClusterSetup {
        args: vec!["--cluster-require-full-coverage", "no"],
        ..ClusterSetup::default()
    });
    let name = cluster.key_on(0);
    let managers = [(); 2].map(|()| cluster::patient(&cluster.url()).build().expect("connects"));
    let (resource, taken, ended) = (
        Resource::default(),
        AtomicU64::new(0),
        AtomicBool::new(false),
    );
    thread::scope(|scope| {
        let stop = SetOnDrop(&ended);
        let takers: Vec<_> = managers
            .iter()
            .flat_map(|it| [it; 2])
            .map(|it| {
                let (name, resource, taken, ended) = (&name, &resource, &taken, &ended);
                scope.spawn(move || {
                    while !ended.load(Ordering::SeqCst) {
                        take_turns(it, name, resource, taken.load(Ordering::SeqCst) + 1, taken);
                    }
                })
            })
            .collect();
        let goes_on = || {
            let enough = taken.load(Ordering::SeqCst) + 100;
            eventually(LONG, "locks are taken", || {
                taken.load(Ordering::SeqCst) > enough
            });
        };
        goes_on();
        cluster.fail_over(3);
        goes_on();
        cluster.move_slot(cluster.slot_of(&name), 1);
        goes_on();
        cluster.server(1).kill();
        cluster.until_replaced(1);
        goes_on();
        drop(stop);
        for it in takers {
            it.join().expect("no panic");
        }
    });
}
