//! A master with replicas and sentinels.

use std::time::Duration;

use redis::Value;
use relatch_rig::{LONG, MASTER, Sentinels, Server, Setup, eventually};

use crate::client::{connect, set};

/// What a server says it is.
fn role(server: &Server) -> String {
    let reply: Vec<Value> = server.query(&["ROLE"]);
    redis::from_redis_value(reply[0].clone()).expect("a string")
}

/// The port that a sentinel names.
fn named_by(sentinel: &Server) -> u16 {
    let (_host, port): (String, u16) =
        sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
    port
}

/// Waits until `key` is at a server.
#[track_caller]
fn arrives(server: &Server, key: &str) {
    eventually(LONG, "the key arrives", || server.exists(key));
}

#[test]
fn after_a_planned_failover_the_old_master_goes_on_for_a_while() {
    let sentinels = Sentinels::with(Setup {
        demoted_after: Duration::from_secs(8),
        ..Setup::default()
    });
    let master = sentinels.fail_over();
    let roles = || [master, 0].map(|place| role(sentinels.server(place)));
    assert_eq!(roles(), ["master", "master"]);
    sentinels.server(0).query::<()>(&["SET", "a", "1"]);
    sentinels.until_in_sync();
    assert_eq!(roles(), ["master", "slave"]);
    assert!(!sentinels.server(0).exists("a"));
}

#[test]
fn a_replica_that_is_cut_off_misses_what_is_written_meanwhile() {
    let sentinels = Sentinels::with(Setup {
        replicas: 1,
        ..Setup::default()
    });
    sentinels.cut_off(1);
    sentinels.server(0).query::<()>(&["SET", "a", "1"]);
    assert_eq!(sentinels.server(0).query::<u64>(&["WAIT", "1", "50"]), 0);
    assert!(!sentinels.server(1).exists("a"));
    sentinels.heal(1);
    arrives(sentinels.server(1), "a");
    sentinels.cut_off(1);
    sentinels.server(0).query::<()>(&["SET", "b", "1"]);
    sentinels.server(0).kill();
    assert_eq!(sentinels.until_replaced(0), 1);
    assert!(sentinels.server(1).exists("a") && !sentinels.server(1).exists("b"));
}

#[test]
fn servers_can_be_behind_proxies() {
    let sentinels = Sentinels::with(Setup {
        proxied: true,
        ..Setup::default()
    });
    let is_named = |place| named_by(sentinels.sentinel(0)) == sentinels.proxy(place).port();
    assert!(is_named(0));
    set(&mut connect(&sentinels.proxy(0).bare_url()), "a").expect("a reply");
    assert_eq!(sentinels.proxy(0).journal().len(), 1);
    (1..3).for_each(|place| arrives(sentinels.server(place), "a"));
    let master = sentinels.fail_over();
    sentinels.until_in_sync();
    assert!(is_named(master));
}
