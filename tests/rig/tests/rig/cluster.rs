//! A cluster.

use redis::{Connection, RedisResult};
use relatch_rig::{Cluster, ClusterSetup, LONG, Server, eventually, server_version, time};

use crate::client::connect;

fn key(name: &str) -> String {
    format!("lock:{name}")
}

/// Sends commands to a node, which may redirect them.
fn ask(server: &Server, args: &[&str]) -> RedisResult<redis::Value> {
    server.command(args)
}

/// The error that a command leads to, with its detail: `MOVED 1 127.0.0.1:1`.
#[track_caller]
fn error(server: &Server, args: &[&str]) -> String {
    let error = ask(server, args).expect_err("an error");
    format!(
        "{} {}",
        error.code().unwrap_or_default(),
        error.detail().unwrap_or_default()
    )
}

/// A lock on a node, whose key is there.
fn stored(cluster: &Cluster, place: usize) -> String {
    let name = cluster.key_on(place);
    cluster
        .server(place)
        .query::<()>(&["SET", &key(&name), "1"]);
    name
}

#[test]
fn three_masters_share_the_slots() {
    let (took, cluster) = time(Cluster::without_replicas);
    println!("started in {took:?}");
    for place in 0..3 {
        let name = stored(&cluster, place);
        let slot = cluster.slot_of(&name);
        assert!(cluster.slots_of(place).contains(&slot));
        assert_eq!(
            (cluster.node_of(&name), cluster.owner(slot)),
            (place, place)
        );
        assert!(cluster.server(place).exists(&key(&name)));
        let wrong = error(cluster.server((place + 1) % 3), &["GET", &key(&name)]);
        assert_eq!(wrong, format!("MOVED {slot} {}", cluster.address(place)));
        assert!(cluster.url().contains(&cluster.address(place)));
    }
    assert_eq!((cluster.count(), cluster.replicas_of(0).len()), (3, 0));
}

/// If two masters had taken the same one, and one of them had died before its replica had heard
/// which one it has instead, nobody would have voted for the replica.
#[test]
fn each_master_starts_with_an_epoch_of_its_own() {
    for _ in 0..5 {
        let cluster = Cluster::without_replicas();
        let epoch = |place| {
            let nodes: String = cluster.server(place).query(&["CLUSTER", "NODES"]);
            let own = nodes
                .lines()
                .find(|line| line.contains("myself"))
                .expect("it knows itself");
            own.split(' ').nth(6).map(str::to_owned)
        };
        assert_eq!(
            [0, 1, 2].map(epoch),
            ["4", "5", "6"].map(|it| Some(it.to_owned()))
        );
    }
}

#[test]
fn a_killed_master_is_replaced_and_comes_back_as_a_replica() {
    let (took, cluster) = time(Cluster::start);
    println!("started in {took:?}");
    let name = stored(&cluster, 1);
    assert_eq!(cluster.server(1).query::<u64>(&["WAIT", "1", "5000"]), 1);
    cluster.server(1).kill();
    let (took, master) = time(|| cluster.until_replaced(1));
    println!("replaced in {took:?}");
    assert_eq!((master, cluster.node_of(&name)), (4, 4));
    assert!(cluster.server(4).exists(&key(&name)));
    cluster.server(1).restart();
    let (took, ()) = time(|| cluster.until_well());
    println!("back in {took:?}");
    assert!(!cluster.is_master(1) && cluster.is_master(4));
    cluster.fail_over(1);
    assert!(cluster.server(1).exists(&key(&name)));
}

#[test]
fn a_paused_master_is_replaced_and_becomes_a_replica() {
    let cluster = Cluster::start();
    cluster.server(0).pause();
    assert_eq!(cluster.until_replaced(0), 3);
    cluster.server(0).resume();
    cluster.until_well();
    assert!(!cluster.is_master(0) && cluster.is_master(3));
}

#[test]
fn a_planned_failover_loses_nothing() {
    let cluster = Cluster::start();
    let mut master = 2;
    let name = stored(&cluster, master);
    for count in 0..3 {
        let replica = cluster.replicas_of(master)[0];
        let (took, ()) = time(|| cluster.fail_over(replica));
        println!("failed over in {took:?}");
        assert!(
            cluster.is_master(replica) && !cluster.is_master(master),
            "failover {count}"
        );
        assert_eq!(cluster.node_of(&name), replica);
        assert!(cluster.server(replica).exists(&key(&name)));
        cluster.until_well();
        master = replica;
    }
}

#[test]
fn a_slot_can_be_moved_with_its_keys() {
    let cluster = Cluster::without_replicas();
    let name = stored(&cluster, 0);
    let slot = cluster.slot_of(&name);
    let others: Vec<_> = (0..250)
        .map(|number| format!("other{number}{{{}}}", key(&name)))
        .collect();
    for other in &others {
        cluster.server(0).query::<()>(&["SET", other, "1"]);
    }
    let (took, ()) = time(|| cluster.move_slot(slot, 1));
    println!("moved in {took:?}");
    assert_eq!(cluster.owner(slot), 1);
    assert!(others.iter().all(|other| cluster.server(1).exists(other)));
    let wrong = error(cluster.server(0), &["GET", &key(&name)]);
    assert_eq!(wrong, format!("MOVED {slot} {}", cluster.address(1)));
    cluster.move_slot(slot, 0);
    assert!(cluster.server(0).exists(&key(&name)));
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
    let found: Option<String> = redis::cmd("GET")
        .arg(&here)
        .query(&mut client)
        .expect("a reply");
    assert_eq!(found.as_deref(), Some("1"));
    assert!(error(cluster.server(1), &["GET", &here]).starts_with("MOVED"));
    assert_eq!(cluster.owner(slot), 0);
    moving.end();
    assert!(cluster.server(1).exists(&here));
    cluster.begin_move(slot, 2).cancel();
    assert!(cluster.server(1).exists(&here));
}

#[test]
fn nodes_can_be_behind_proxies() {
    let cluster = Cluster::with(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let name = stored(&cluster, 0);
    let mut client = connect(&cluster.proxy(1).bare_url());
    let wrong = redis::cmd("GET")
        .arg(key(&name))
        .query::<()>(&mut client)
        .expect_err("another node's key");
    assert!(
        wrong
            .detail()
            .is_some_and(|it| it.ends_with(&cluster.proxy(0).port().to_string()))
    );
    assert_eq!(cluster.proxy(1).commands("GET"), 1);
    cluster.fail_over(3);
    cluster.until_well();
    assert_eq!(
        cluster.address(3),
        format!("127.0.0.1:{}", cluster.proxy(3).port())
    );
    assert!(error(cluster.server(1), &["GET", &key(&name)]).ends_with(&cluster.address(3)));
    cluster.server(3).kill();
    assert_eq!(cluster.until_replaced(3), 0);
    assert!(cluster.server(0).exists(&key(&name)));
}

#[test]
fn nodes_can_speak_tls_and_have_a_password() {
    let setup = ClusterSetup {
        tls: true,
        password: Some("secret".into()),
        ..ClusterSetup::default()
    };
    let cluster = Cluster::with(setup);
    assert!(cluster.url().starts_with("rediss+cluster://"));
    let name = stored(&cluster, 0);
    cluster.move_slot(cluster.slot_of(&name), 1);
    assert!(cluster.server(1).exists(&key(&name)));
    assert_eq!(cluster.server(1).query::<u64>(&["WAIT", "1", "5000"]), 1);
    assert!(
        cluster
            .address(1)
            .ends_with(&cluster.server(1).tls_port().to_string())
    );
    cluster.fail_over(4);
    assert!(cluster.server(4).exists(&key(&name)));
}

#[test]
fn without_full_coverage_the_rest_goes_on() {
    let args = vec!["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::with(ClusterSetup {
        replicas: 0,
        args,
        ..ClusterSetup::default()
    });
    let [gone, left] = [0, 1].map(|place| stored(&cluster, place));
    cluster.server(0).kill();
    eventually(LONG, "its slots are down", || {
        let info: String = cluster.server(1).query(&["CLUSTER", "INFO"]);
        info.contains("cluster_slots_fail:546")
    });
    assert!(cluster.server(1).exists(&key(&left)));
    assert!(error(cluster.server(1), &["GET", &key(&gone)]).ends_with(&cluster.address(0)));
}
