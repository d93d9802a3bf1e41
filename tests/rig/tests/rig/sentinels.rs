//! A master with replicas and sentinels.

use std::time::Duration;

use redis::Value;
use relatch_rig::{LONG, MASTER, Sentinels, Server, Setup, eventually, server_version, time};

use crate::client::{connect, ping, set};

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
fn sentinels_name_the_master_and_replicas_have_its_keys() {
    let (took, sentinels) = time(Sentinels::start);
    println!("started in {took:?}");
    assert_eq!((sentinels.master(), sentinels.count()), (0, 3));
    for place in 0..3 {
        assert_eq!(
            named_by(sentinels.sentinel(place)),
            sentinels.server(0).port()
        );
        assert!(
            sentinels
                .url()
                .contains(&sentinels.sentinel(place).address())
        );
    }
    assert_eq!(
        [0, 1, 2].map(|place| role(sentinels.server(place))),
        ["master", "slave", "slave"]
    );
    sentinels.server(0).query::<()>(&["SET", "a", "1"]);
    (1..3).for_each(|place| arrives(sentinels.server(place), "a"));
}

#[test]
fn a_killed_master_is_replaced_and_comes_back_as_a_replica() {
    let sentinels = Sentinels::start();
    sentinels.server(0).query::<()>(&["SET", "a", "1"]);
    sentinels.until_in_sync();
    sentinels.server(0).kill();
    let (took, master) = time(|| sentinels.until_replaced(0));
    println!("replaced in {took:?}");
    assert!(sentinels.server(master).exists("a"));
    sentinels.restart(0);
    let (took, ()) = time(|| sentinels.until_in_sync());
    println!("back in {took:?}");
    assert_eq!(role(sentinels.server(0)), "slave");
    assert!(sentinels.server(0).exists("a"));
    assert_eq!(sentinels.master(), master);
}

#[test]
fn a_stopped_master_is_replaced_and_comes_back_as_a_replica() {
    let sentinels = Sentinels::start();
    sentinels.server(0).pause();
    let master = sentinels.until_replaced(0);
    sentinels.server(0).resume();
    sentinels.until_in_sync();
    assert_eq!(
        (role(sentinels.server(0)), sentinels.master()),
        ("slave".to_owned(), master)
    );
}

#[test]
fn after_a_planned_failover_the_old_master_goes_on_for_a_while() {
    let sentinels = Sentinels::with(Setup {
        demoted_after: Duration::from_secs(8),
        ..Setup::default()
    });
    let master = sentinels.fail_over();
    assert_ne!(master, 0);
    assert_eq!(role(sentinels.server(master)), "master");
    assert_eq!(role(sentinels.server(0)), "master");
    sentinels.server(0).query::<()>(&["SET", "a", "1"]);
    let (took, ()) = time(|| sentinels.until_in_sync());
    println!("demoted after {took:?}");
    assert_eq!(
        (role(sentinels.server(0)), sentinels.server(0).exists("a")),
        ("slave".to_owned(), false)
    );
}

#[test]
fn failovers_can_follow_each_other() {
    let sentinels = Sentinels::start();
    for _ in 0..3 {
        let (took, _) = time(|| sentinels.fail_over());
        let (synced, ()) = time(|| sentinels.until_in_sync());
        println!("failed over in {took:?}, in sync after {synced:?}");
    }
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
fn a_sentinel_can_be_paused_killed_and_restarted() {
    let sentinels = Sentinels::start();
    sentinels.sentinel(0).kill();
    let master = sentinels.fail_over();
    sentinels.restart_sentinel(0);
    assert_eq!(sentinels.master(), master);
    sentinels.until_in_sync();
    sentinels.sentinel(1).pause();
    assert_ne!(sentinels.fail_over(), master);
    sentinels.sentinel(1).resume();
    sentinels.master();
}

#[test]
fn sentinels_can_have_a_password() {
    let sentinels = Sentinels::with(Setup {
        password: Some("secret".into()),
        ..Setup::default()
    });
    let mut stranger = connect(&sentinels.sentinel(0).bare_url());
    assert_eq!(
        ping(&mut stranger)
            .expect_err("no password was given")
            .code(),
        Some("NOAUTH")
    );
    assert!(ping(&mut connect(&sentinels.server(0).bare_url())).is_ok());
    sentinels.server(0).kill();
    sentinels.until_replaced(0);
}

#[test]
fn servers_can_be_behind_proxies() {
    let sentinels = Sentinels::with(Setup {
        proxied: true,
        ..Setup::default()
    });
    assert_eq!(named_by(sentinels.sentinel(0)), sentinels.proxy(0).port());
    set(&mut connect(&sentinels.proxy(0).bare_url()), "a").expect("a reply");
    assert_eq!(sentinels.proxy(0).journal().len(), 1);
    (1..3).for_each(|place| arrives(sentinels.server(place), "a"));
    let master = sentinels.fail_over();
    sentinels.until_in_sync();
    assert_eq!(
        named_by(sentinels.sentinel(0)),
        sentinels.proxy(master).port()
    );
    sentinels.server(master).query::<()>(&["SET", "b", "1"]);
    arrives(sentinels.server(0), "b");
    sentinels.server(master).kill();
    let next = sentinels.until_replaced(master);
    sentinels.restart(master);
    sentinels.until_in_sync();
    assert!(sentinels.server(master).exists("b"));
    assert_eq!(sentinels.master(), next);
}

#[test]
fn sentinels_are_of_their_version() {
    // What the other tests here take seconds for is quick from this version on.
    let sentinels = Sentinels::with(Setup {
        replicas: 0,
        ..Setup::default()
    });
    let debug = sentinels.sentinel(0).command(&["SENTINEL", "DEBUG"]);
    assert_eq!(debug.is_ok(), server_version() >= (7, 0));
}
