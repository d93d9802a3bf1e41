//! A cluster.

use redis::Connection;
use relatch_rig::{Cluster, ClusterSetup, Server, server_version};

use crate::client::connect;

fn key(name: &str) -> String {
    format!("lock:{name}")
}

/// The error that a command leads to, with its detail: `MOVED 1 127.0.0.1:1`.
#[track_caller]
fn error(server: &Server, args: &[&str]) -> String {
    let error = server.command(args).expect_err("an error");
    let [code, detail] = [error.code(), error.detail()].map(Option::unwrap_or_default);
    format!("{code} {detail}")
}

/// A lock on a node, whose key is there.
fn stored(cluster: &Cluster, place: usize) -> String {
    let name = cluster.key_on(place);
    let set = ["SET", &key(&name), "1"];
    cluster.server(place).query::<()>(&set);
    name
}

#[test]
fn a_key_is_on_the_node_that_was_meant_and_on_no_other() {
    let cluster = Cluster::without_replicas();
    for place in 0..3 {
        let name = stored(&cluster, place);
        let slot = cluster.slot_of(&name);
        assert!(cluster.slots_of(place).contains(&slot));
        let owners = (cluster.node_of(&name), cluster.owner(slot));
        assert_eq!(owners, (place, place));
        let wrong = error(cluster.server((place + 1) % 3), &["GET", &key(&name)]);
        assert_eq!(wrong, format!("MOVED {slot} {}", cluster.address(place)));
    }
}

#[test]
fn while_a_slot_moves_the_old_owner_sends_clients_to_the_new_one() {
    let cluster = Cluster::without_replicas();
    let name = stored(&cluster, 0);
    let (slot, here) = (cluster.slot_of(&name), key(&name));
    let missing = format!("other{{{here}}}");
    let asks = format!("ASK {slot} {}", cluster.address(1));
    let moving = cluster.begin_move(slot, 1);
    assert!(cluster.server(0).exists(&here));
    assert_eq!(error(cluster.server(0), &["GET", &missing]), asks);
    if server_version() >= (7, 0) {
        let both = error(cluster.server(0), &["MGET", &here, &missing]);
        assert!(both.starts_with("TRYAGAIN"), "{both}");
    }
    moving.move_keys();
    assert_eq!(error(cluster.server(0), &["GET", &here]), asks);
    let mut client: Connection = connect(&cluster.server(1).bare_url());
    redis::cmd("ASKING").exec(&mut client).expect("a reply");
    let found = redis::cmd("GET").arg(&here).query::<String>(&mut client);
    assert_eq!(found.as_deref(), Ok("1"));
    assert!(error(cluster.server(1), &["GET", &here]).starts_with("MOVED"));
    assert_eq!(cluster.owner(slot), 0);
    moving.end();
    assert!(cluster.server(1).exists(&here));
    let moved = format!("MOVED {slot} {}", cluster.address(1));
    assert_eq!(error(cluster.server(0), &["GET", &here]), moved);
}

#[test]
fn nodes_can_be_behind_proxies() {
    let cluster = Cluster::with(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let name = stored(&cluster, 0);
    let mut client = connect(&cluster.proxy(1).bare_url());
    let wrong = redis::cmd("GET").arg(key(&name)).exec(&mut client);
    let wrong = wrong.expect_err("another node's key");
    let port = cluster.proxy(0).port().to_string();
    assert!(wrong.detail().is_some_and(|it| it.ends_with(&port)));
    assert_eq!(cluster.proxy(1).commands("GET"), 1);
    cluster.fail_over(3);
    cluster.until_well();
    let port = cluster.proxy(3).port();
    assert_eq!(cluster.address(3), format!("127.0.0.1:{port}"));
    assert!(error(cluster.server(1), &["GET", &key(&name)]).ends_with(&cluster.address(3)));
}
