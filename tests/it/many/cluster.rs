//! A Redis Cluster: which node a command goes to, how a cluster is found, and what errors say.

use std::net::{Ipv6Addr, TcpListener};
use std::thread;
use std::time::Duration;

use relatch::{Builder, Error, LockManager, LostCause, Unlocked};
use relatch_rig::rights::{least_rights, login};
use relatch_rig::{Cluster, ClusterSetup, Fault, LONG, Server, eventually, server_version, within};

use crate::many::sentinel::{array, connected, patient};
#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{
    ANSWER, MINUTE, SOON, assert_lost, assert_unavailable, chain, names_right, take,
};

/// The rights that a user needs as well if Redis is a cluster.
const OF_A_CLUSTER: [&str; 3] = ["+cluster|slots", "+cluster|info", "+asking"];

pub(crate) fn connect(url: &str) -> LockManager {
    connected(|| patient(url).build())
}

/// Without replicas, set up in another way.
pub(crate) fn small(setup: ClusterSetup) -> Cluster {
    Cluster::with(ClusterSetup {
        replicas: 0,
        ..setup
    })
}

/// How often the nodes have answered that another one has the slot of a key.
pub(crate) fn redirects(cluster: &Cluster) -> u64 {
    let of = |place: usize| -> u64 {
        let info: String = cluster.server(place).query(&["INFO", "errorstats"]);
        let starts = ["errorstat_MOVED:count=", "errorstat_ASK:count="];
        let counts = info
            .lines()
            .filter_map(|line| starts.iter().find_map(|it| line.strip_prefix(it)));
        counts
            .map(|count| count.parse::<u64>().expect("a number"))
            .sum()
    };
    (0..cluster.count()).map(of).sum()
}

/// Takes a lock of each of these nodes, looks for its key there, and releases it.
#[track_caller]
pub(crate) fn assert_works(cluster: &Cluster, locks: &LockManager, places: &[usize]) {
    for &place in places {
        let name = cluster.key_on(place);
        let guard = within(LONG, "a free lock", || locks.lock(&name)).expect("locks");
        let key = format!("lock:{name}");
        let found = cluster.server(place).get(&key);
        assert_eq!(found.as_deref(), Some(guard.token()));
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(!cluster.server(place).exists(&key));
    }
}

/// A command for a key in another slot than relatch thinks would be redirected. Any node leads to
/// the others, also a replica.
#[test]
fn each_command_goes_to_the_node_that_has_the_slot() {
    let cluster = Cluster::start();
    let dead = [Server::start(), Server::start()];
    dead.iter().for_each(Server::kill);
    let [one, other] = dead.each_ref().map(Server::address);
    let one_of_many = format!(
        "redis+cluster://{}{one},{other},{}",
        login(),
        cluster.address(2)
    );
    let alone = |place: usize| format!("redis://{}{}", login(), cluster.address(place));
    for url in [one_of_many, alone(1), cluster.url_with(&[3]), alone(4)] {
        assert_works(&cluster, &connect(&url), &[0, 1, 2]);
    }
    (0..6).for_each(|place| cluster.server(place).reset_stats());
    let names = [
        "a", "{a}", "{}", "a{}{b}", "{{b}}c", "foo{bar", "foo}bar", "}{x}", "ü{ß}", "{ß",
    ];
    for prefix in ["lock:", "{", "a}{b}:", "\u{1}ü:\u{10FFFF}", "{tag}"] {
        let locks = connected(|| patient(&cluster.url()).prefix(prefix).build());
        for name in names {
            locks.with_lock(name, || {}).expect("runs");
        }
    }
    all_is_done_on_every_node(&cluster);
    assert_eq!(redirects(&cluster), 0);
    let error = patient(&format!("{}/3", alone(0)))
        .build()
        .expect_err("there is one database");
    // Valkey says that the number is too large.
    let is_said = |it: &&str| chain(&error).contains(it);
    assert!(
        ["SELECT", "database", "DB index"].iter().any(is_said),
        "{error:?}"
    );
}

/// Waits, wake-ups, renewals, hand-offs, questions and `force_unlock`.
fn all_is_done_on_every_node(cluster: &Cluster) {
    let often = || patient(&cluster.url()).renew_every(Duration::from_millis(50));
    let locks = connected(|| often().local_handoff(MINUTE).build());
    let others = connected(|| patient(&cluster.url()).poll_every(LONG).build());
    for place in 0..3 {
        let name = &cluster.key_on(place);
        let guard = locks.lock(name).expect("locks");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&others, name));
            let server = cluster.server(place);
            eventually(LONG, "two listeners", || server.listeners().len() == 2);
            eventually(LONG, "the wait is tracked", || server.tracked_keys() == 1);
            eventually(LONG, "it is renewed", || locks.held()[0].renewals > 1);
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            within(5 * SOON, "a wake-up", || waiter.join().expect("no panic"));
        });
        let guard = locks.lock(name).expect("locks");
        #[cfg(target_os = "linux")]
        let guard = thread::scope(|scope| {
            let next = behind(scope, || take(&locks, name));
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            next.join().expect("no panic");
            locks.lock(name).expect("locks")
        });
        guard.set_lease(MINUTE).expect("extends"); // From now on, Redis tracks the key.
        let seen = others.named(name).holder().expect("answers").expect("held");
        assert_eq!(seen.raw, guard.token());
        let gone = others.named(name).force_unlock().expect("answers");
        assert_eq!(gone.expect("held").raw, guard.token());
        assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
        assert_lost(&guard.unlock(), LostCause::Deleted);
    }
    let handed_off = if cfg!(target_os = "linux") { 3 } else { 0 };
    assert_eq!(locks.stats().handed_off, handed_off);
}

/// Checks that managers of these addresses find all nodes, and follow a slot that moves.
#[track_caller]
fn assert_found(setup: ClusterSetup, host: &str, change: impl Fn(&Cluster, Builder) -> Builder) {
    let cluster = small(setup);
    eventually(LONG, "all nodes have the address", || {
        (0..3).all(|place| {
            let map: String = cluster.server(place).query(&["CLUSTER", "NODES"]);
            host != "[::1]" || map.matches(" ::1:").count() == 3
        })
    });
    let url = cluster.url_with(&[1]).replace("127.0.0.1", host);
    for url in [url.replace("+cluster", ""), url] {
        let locks = connected(|| change(&cluster, patient(&url)).build());
        assert_works(&cluster, &locks, &[0, 1, 2]);
        let name = cluster.key_on(0);
        let guard = locks.lock(&name).expect("locks");
        let before = redirects(&cluster);
        let moving = cluster.begin_move(cluster.slot_of(&name), 2);
        moving.move_keys();
        guard.verify().expect("found by `ASK`");
        moving.end();
        guard.verify().expect("found by `MOVED`");
        eventually(LONG, "it is renewed", || locks.held()[0].renewals > 0);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(redirects(&cluster) > before);
        cluster.move_slot(cluster.slot_of(&name), 0);
    }
}

/// Without `HELLO`, only `MOVED` shows that a server is a node. A proxy may say that it is none.
/// Nodes may leave hosts out, or name them, or have IPv6 addresses.
#[test]
fn a_cluster_is_found_however_its_nodes_show_and_name_themselves() {
    let with = |args: &[&'static str]| {
        let args = args.to_vec();
        assert_found(
            ClusterSetup {
                args,
                ..ClusterSetup::default()
            },
            "127.0.0.1",
            |_, it| it,
        );
    };
    with(&["--rename-command", "HELLO", ""]);
    if server_version() >= (7, 0) {
        let preferred = "--cluster-preferred-endpoint-type";
        let named = "--cluster-announce-hostname";
        with(&[preferred, "unknown-endpoint"]);
        with(&[preferred, "hostname", named, "localhost"]);
    }
    let setup = ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    };
    assert_found(setup, "127.0.0.1", |cluster, builder| {
        let fields = ["server", "redis", "version", "7.0.15", "mode", "standalone"];
        let greeting = Fault::Replace(array(&fields).into_bytes());
        (0..3).for_each(|place| cluster.proxy(place).always("HELLO", greeting.clone()));
        builder
    });
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        // The test itself asks the nodes at 127.0.0.1.
        let args = vec!["--bind", "127.0.0.1", "::1", "--cluster-announce-ip", "::1"];
        assert_found(
            ClusterSetup {
                args,
                ..ClusterSetup::default()
            },
            "[::1]",
            |_, it| it,
        );
    }
}

#[test]
fn a_cluster_may_speak_tls_and_have_a_password() {
    let setup = || ClusterSetup {
        tls: cfg!(feature = "tls"),
        password: Some("canary".into()),
        ..ClusterSetup::default()
    };
    let trusting = |cluster: &Cluster, builder: Builder| {
        #[cfg(feature = "tls")]
        let builder = builder.tls(relatch::Tls::new().roots(cluster.roots()));
        let _ = cluster;
        builder
    };
    assert_found(setup(), "127.0.0.1", trusting);
    let cluster = small(setup());
    let wrong = cluster.url().replace("canary", "wrong");
    if wrong.contains("wrong") {
        let refused = trusting(&cluster, patient(&wrong)).build();
        let error = refused.expect_err("the password is wrong");
        let is_refused = matches!(&error, Error::Refused { code, .. } if code == "WRONGPASS");
        assert!(
            is_refused && error.to_string().contains("127.0.0.1:"),
            "{error:?}"
        );
    }
    if cfg!(feature = "tls") {
        let error = patient(&cluster.url())
            .build()
            .expect_err("an unknown authority");
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
    }
}

/// A dead master stops all nodes, if the cluster has to be whole. Errors name the node that has the
/// key or, if no map is known, the nodes of the URL.
#[test]
fn a_cluster_that_is_down_is_unavailable_until_it_is_up_again() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&cluster.url());
    let names = [0, 1, 2].map(|place| cluster.key_on(place));
    let guard = locks.lock(&names[2]).expect("locks");
    cluster.server(0).kill();
    eventually(LONG, "the cluster is down", || {
        let info: String = cluster.server(1).query(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail")
    });
    for (place, told) in [(0, &*cluster.address(0)), (1, "CLUSTERDOWN")] {
        let lock = locks.named(&names[place]);
        // Long before the outage is no longer tolerated.
        for taken in [
            within(LONG / 2, "a wait", || lock.clone().try_lock_for(SOON)),
            within(LONG / 2, "a try", || lock.try_lock()),
        ] {
            assert_unavailable(&taken);
            let text = chain(&taken.expect_err("unavailable"));
            assert!(text.contains(told), "{text}");
        }
    }
    eventually(LONG, "a renewal fails", || locks.stats().renewal_errors > 0);
    thread::scope(|scope| {
        let waits = [0, 1].map(|it| {
            scope.spawn({
                let (locks, name) = (&locks, &names[it]);
                move || take(locks, name)
            })
        });
        cluster.server(0).restart();
        cluster.until_well();
        for wait in waits {
            within(LONG / 2, "a lock", || wait.join().expect("no panic"));
        }
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_works(&cluster, &locks, &[0, 1, 2]);
    (0..3).for_each(|place| cluster.server(place).kill());
    let error = patient(&cluster.url_with(&[2, 0]))
        .build()
        .expect_err("all are dead");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let seeds = format!(
        "the cluster of {}, {}",
        cluster.address(2),
        cluster.address(0)
    );
    assert!(error.to_string().contains(&seeds), "{error}");
}

#[test]
fn row_23_the_right_to_read_the_map_is_needed_and_named() {
    let cluster = Cluster::without_replicas();
    let grant = |rights: &[&str]| {
        (0..3).for_each(|place| crate::support::grant(cluster.server(place), rights));
    };
    grant(&least_rights());
    let urls = ["redis+cluster", "redis"];
    let urls = urls.map(|it| format!("{it}://worker:canary@{}", cluster.address(0)));
    for url in &urls {
        let error = patient(url).build().expect_err("it may not be read");
        let is_refused = matches!(&error, Error::Refused { code, .. } if code == "NOPERM");
        assert!(
            is_refused && names_right(&chain(&error), OF_A_CLUSTER[0]),
            "{}",
            chain(&error)
        );
    }
    grant(&[&least_rights()[..], &OF_A_CLUSTER].concat());
    for url in &urls {
        let (locks, name) = (connect(url), cluster.key_on(0));
        let guard = locks.lock(&name).expect("locks");
        let moving = cluster.begin_move(cluster.slot_of(&name), 1);
        moving.move_keys();
        guard.set_lease(MINUTE).expect("extends at the new owner");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| connect(url).named(&name).try_lock_for(ANSWER).is_ok());
            assert!(waiter.join().expect("no panic"), "it asks there as well");
        });
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        moving.cancel();
    }
    for place in 0..3 {
        let mut refused = cluster.server(place).refused();
        refused.retain(|(_, what)| !what.starts_with("cluster"));
        assert!(refused.is_empty(), "{refused:?}");
    }
}
