//! What operators and probes ask: which locks there are, and whether all is well.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use relatch::{Error, Found, LockManager, SurveyedLock, Verdict};
use relatch_rig::{Cluster, LONG, Server, within};

use crate::support::{builder, server_for, unhurried, without};

fn survey(locks: &LockManager) -> Vec<SurveyedLock> {
    let mut found: Vec<_> = locks.survey(LONG).map(|it| it.expect("a lock")).collect();
    found.sort_by(|one, other| one.redis_key.cmp(&other.redis_key));
    found
}

/// A server, and a manager of a user who may list keys.
fn place() -> (Server, LockManager) {
    let server = Server::start();
    let locks = unhurried(&server.bare_url()).build().expect("a manager");
    (server, locks)
}

#[test]
fn a_survey_finds_each_lock_and_says_whose_it_is() {
    let (server, locks) = place();
    let _held = locks.named("held").fenced(true).lock().expect("a lock");
    let kept = locks.named("kept").keep_at_least(Duration::from_secs(60));
    drop(kept.lock().expect("a lock"));
    let set = |args: &[&str]| server.query::<()>(args);
    set(&["SET", "lock:foreign", "9f1c", "PX", "60000"]);
    set(&["SET", "lock:forever", "9f1c"]);
    server.query::<u64>(&["LPUSH", "lock:list", "a"]);
    set(&["SET", "other", "9f1c", "PX", "60000"]);
    let found = survey(&locks);
    let kinds: Vec<_> = found.iter().map(|it| (&*it.key, it.found)).collect();
    let expected = [
        ("foreign", Found::Foreign),
        ("forever", Found::NeverExpires),
        ("held", Found::Held),
        ("kept", Found::Kept),
        ("list", Found::NotALock),
    ];
    assert_eq!(kinds, expected);
    assert!(server.exists("lock:fence:{lock:held}"), "it is left out");
}

#[test]
fn a_survey_walks_through_more_keys_than_one_command_may() {
    let (server, locks) = place();
    let more = "for n = 1, 3000 do redis.call('SET', 'other:' .. n, 1) end
        for n = 1, 300 do redis.call('SET', 'lock:' .. string.rep('x', 8000) .. n, 'y', 'PX', 60000) end
        for n = 1, 90 do redis.call('SET', 'lock:' .. string.rep('x', 65000) .. n, 'y', 'PX', 60000) end";
    server.query::<()>(&["EVAL", more, "0"]);
    assert_eq!(
        survey(&locks).len(),
        390,
        "also though their names are long"
    );
}

#[test]
fn without_the_right_a_survey_is_refused_and_a_check_says_what_is_missing() {
    let (_server, url) = server_for(&without(&["+pexpire"]));
    let locks = unhurried(&url).build().expect("a manager");
    let refused = locks.survey(LONG).next().expect("an answer");
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let health = locks.check(LONG);
    assert_eq!(health.verdict, Verdict::Failed);
    assert!(health.to_string().contains("pexpire"), "{health}");
}

#[test]
fn a_check_looks_at_everything_and_leaves_nothing() {
    let (server, locks) = place();
    let health = locks.check(LONG);
    assert!(health.verdict < Verdict::Failed, "{health}");
    assert_eq!(health.findings.len(), 4, "{health}");
    assert_eq!(survey(&locks).len(), 0);
    server.pause();
    let locks = builder(&server.bare_url())
        .build_lazily()
        .expect("sends nothing");
    let limit = Duration::from_secs(1);
    let health = within(LONG, "a check of a server that is silent", || {
        locks.check(limit)
    });
    assert_eq!(health.verdict, Verdict::Failed, "{health}");
    server.resume();
}

#[test]
fn in_a_cluster_each_master_is_asked() {
    let cluster = Cluster::without_replicas();
    let keys: BTreeSet<_> = (0..3).map(|place| cluster.key_on(place)).collect();
    let bare = cluster.address(0);
    // As a cluster, and by one of its nodes, which turns out to be in one.
    for url in [format!("redis+cluster://{bare}"), format!("redis://{bare}")] {
        let locks = unhurried(&url).build().expect("a manager");
        let guards: Vec<_> = keys.iter().map(|key| locks.lock(key)).collect();
        assert!(guards.iter().all(Result::is_ok), "{guards:?}");
        let found: BTreeSet<_> = survey(&locks).into_iter().map(|it| it.key).collect();
        assert_eq!(found, keys, "{url}");
        let health = locks.check(LONG);
        assert!(health.verdict < Verdict::Failed, "{health}");
        assert_eq!(health.findings.len(), 10, "three of each master: {health}");
    }
}

/// The old master is a replica now. It lists its keys as before, and sends away who asks for one.
#[test]
fn a_survey_and_a_check_of_a_cluster_read_its_map_anew() {
    let cluster = Cluster::start();
    let url = format!("redis+cluster://{}", cluster.address(0));
    let manager = || unhurried(&url).build();
    let [operator, probe, holder] = [(); 3].map(|()| manager().expect("a manager"));
    let _guard = holder.lock("a").expect("a lock");
    let [replica, ..] = *cluster.replicas_of(cluster.node_of("a")) else {
        panic!("each master has a replica");
    };
    cluster.fail_over(replica);
    // A map that is younger than a second counts as new.
    thread::sleep(Duration::from_millis(1_100));
    let found = survey(&operator);
    assert!(matches!(&*found, [it] if it.key == "a"), "{found:?}");
    cluster.server(cluster.replicas_of(replica)[0]).kill();
    let health = probe.check(LONG);
    assert!(health.verdict < Verdict::Failed, "{health}");
}
