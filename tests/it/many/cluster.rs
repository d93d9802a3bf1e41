//! A Redis Cluster: which node a command goes to, how a cluster is found, and what errors say.

use std::net::{Ipv6Addr, TcpListener};
use std::thread;
use std::time::Duration;

use relatch::{Builder, Error, LockManager, LostCause, Unlocked};
use relatch_rig::rights::{least_rights, login};
use relatch_rig::{
    Cluster, ClusterSetup, Fault, LONG, Proxy, Server, Worker, eventually, server_version,
    throughout, unique_key, within,
};

use crate::many::sentinel::array;
#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{
    ANSWER, MINUTE, SOON, assert_lost, assert_unavailable, chain, delete, names_right, occupy, take,
};

/// The rights that a user needs as well if Redis is a cluster.
const OF_A_CLUSTER: [&str; 3] = ["+cluster|slots", "+cluster|info", "+asking"];

/// A manager that waits through a failover, and whose leases outlast it. It has time to read the
/// map on a busy machine.
pub(crate) fn patient(url: &str) -> Builder {
    crate::many::sentinel::patient(url).connect_timeout(SOON)
}

/// On a busy machine, a second may be too short for the login at all nodes.
pub(crate) fn connect(url: &str) -> LockManager {
    let mut built = patient(url).build();
    eventually(LONG, "a manager connects", || {
        if built.is_err() {
            built = patient(url).build();
        }
        built.is_ok()
    });
    built.expect("just seen")
}

/// Without replicas, set up in another way.
pub(crate) fn small(setup: ClusterSetup) -> Cluster {
    Cluster::with(ClusterSetup {
        replicas: 0,
        ..setup
    })
}

/// The address of these nodes, without a login.
fn bare_url(cluster: &Cluster, places: &[usize]) -> String {
    let hosts: Vec<_> = places.iter().map(|&place| cluster.address(place)).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// The address of one node, as if it were the only server.
fn url_of_one(cluster: &Cluster, place: usize) -> String {
    format!("redis://{}{}", login(), cluster.address(place))
}

/// How often these nodes have answered that another one has the slot of a key.
pub(crate) fn redirects(cluster: &Cluster, places: impl IntoIterator<Item = usize>) -> u64 {
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
    places.into_iter().map(of).sum()
}

/// Takes a lock of each of these nodes, looks for its key there, and releases it.
#[track_caller]
pub(crate) fn assert_works(cluster: &Cluster, locks: &LockManager, places: &[usize]) {
    for &place in places {
        let name = cluster.key_on(place);
        let guard = within(LONG, "a free lock", || locks.lock(&name)).expect("locks");
        assert_eq!(
            cluster
                .server(place)
                .get(&format!("lock:{name}"))
                .as_deref(),
            Some(guard.token())
        );
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(!cluster.server(place).exists(&format!("lock:{name}")));
    }
}

/// `CLUSTER KEYSLOT` of Redis is the judge: a command for a key in another slot than relatch thinks
/// would be redirected.
#[test]
fn each_command_goes_to_the_node_that_has_the_slot() {
    let cluster = Cluster::without_replicas();
    let mut owners = vec![0; 16384];
    for place in 0..3 {
        cluster
            .slots_of(place)
            .into_iter()
            .for_each(|slot| owners[usize::from(slot)] = place);
    }
    let fixed = [
        "a", "{a}", "{}", "a{}{b}", "{{b}}c", "foo{bar", "foo}bar", "}{x}", "ü{ß}", "x{a}{b}", "{ß",
    ];
    let names: Vec<_> = fixed
        .map(str::to_owned)
        .into_iter()
        .chain((0..30).map(|_| unique_key("k")))
        .collect();
    for prefix in ["lock:", "{", "{}", "a}{b}:", "\u{1}ü:\u{10FFFF}", "{tag}"] {
        let locks = patient(&bare_url(&cluster, &[0]))
            .prefix(prefix)
            .build()
            .expect("connects");
        for name in &names {
            let key = format!("{prefix}{name}");
            let slot: usize = cluster.server(0).query(&["CLUSTER", "KEYSLOT", &key]);
            let guard = locks.lock(name).expect("locks");
            assert_eq!(
                cluster.server(owners[slot]).get(&key).as_deref(),
                Some(guard.token()),
                "{key}"
            );
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        }
    }
    assert_eq!(redirects(&cluster, 0..3), 0);
    assert!(
        (0..3).all(|place| cluster.server(place).calls("set") > 20),
        "all nodes have locks"
    );
}

#[test]
fn waiters_are_woken_and_holds_renewed_on_every_node_without_a_redirect() {
    let cluster = Cluster::without_replicas();
    let locks = patient(&cluster.url())
        .renew_every(Duration::from_millis(50))
        .build()
        .expect("connects");
    let others = patient(&cluster.url())
        .poll_every(LONG)
        .build()
        .expect("connects");
    let names = [0, 1, 2].map(|place| cluster.key_on(place));
    let guards = names
        .each_ref()
        .map(|name| locks.lock(name).expect("locks"));
    thread::scope(|scope| {
        let waiters = names.each_ref().map(|name| {
            let others = &others;
            scope.spawn(move || crate::support::take(others, name))
        });
        for place in 0..3 {
            let server = cluster.server(place);
            eventually(LONG, "two listeners", || server.listeners().len() == 2);
            eventually(LONG, "waits are tracked", || server.tracked_keys() == 1);
        }
        eventually(LONG, "all are renewed", || {
            locks.held().iter().all(|it| it.renewals > 1)
        });
        for (guard, waiter) in guards.into_iter().zip(waiters) {
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            within(5 * SOON, "a wake-up", || waiter.join().expect("no panic"));
        }
    });
    assert_eq!(redirects(&cluster, 0..3), 0);
    assert_eq!(others.stats().waited, 3);
}

#[test]
fn one_node_of_many_that_answers_is_enough() {
    let cluster = Cluster::without_replicas();
    let dead = [Server::start(), Server::start()];
    dead.iter().for_each(Server::kill);
    let hosts = [dead[0].address(), dead[1].address(), cluster.address(2)].join(",");
    let locks = connect(&format!("redis+cluster://{}{hosts}", login()));
    assert_works(&cluster, &locks, &[0, 1, 2]);
    assert_eq!(redirects(&cluster, 0..3), 0);
}

#[test]
fn the_address_of_one_node_leads_to_the_whole_cluster() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&url_of_one(&cluster, 1));
    assert_works(&cluster, &locks, &[0, 1, 2]);
    assert_eq!(
        redirects(&cluster, 0..3),
        0,
        "the login shows what the server is"
    );
}

/// Without `HELLO`, only `MOVED` shows that the server is a node of a cluster.
#[test]
fn the_address_of_one_node_leads_to_the_whole_cluster_also_without_hello() {
    // (No ACL keeps a user from calling it.)
    let args = vec!["--rename-command", "HELLO", ""];
    let cluster = small(ClusterSetup {
        args,
        ..ClusterSetup::default()
    });
    let locks = connect(&url_of_one(&cluster, 1));
    assert_works(&cluster, &locks, &[0, 1, 2]);
    let moved = redirects(&cluster, 0..3);
    assert!(moved > 0, "something has shown it");
    assert_works(&cluster, &locks, &[0, 1, 2]);
    assert_eq!(redirects(&cluster, 0..3), moved, "now the map is known");
    let guard = locks.lock(cluster.key_on(2)).expect("locks");
    eventually(LONG, "it is renewed", || locks.held()[0].renewals > 0);
    guard.unlock().expect("unlocks");
}

/// Gives the user `worker` with the password `canary` these rights on every node.
/// The node that is asked for the map is far away, and so are those that the map names.
#[test]
fn a_cluster_may_be_far_away() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let be_far = |round_trip: Duration| {
        for proxy in [0, 1, 2].map(|place| cluster.proxy(place)) {
            proxy.clear();
            // Opening the connection takes a round trip, too.
            proxy.always("HELLO", Fault::DelayReply(2 * round_trip));
            for command in ["PING", "SET", "EVALSHA"] {
                proxy.always(command, Fault::DelayReply(round_trip));
            }
        }
    };
    let builder = |limit| LockManager::builder(&cluster.url()).connect_timeout(limit);
    be_far(Duration::from_millis(200));
    eventually(LONG, "a manager is made", || builder(SOON).build().is_ok());
    // No node sends its map in the time that one gets at first.
    be_far(Duration::from_millis(700));
    let locks = builder(4 * SOON).build_lazily().expect("sends nothing");
    let guard = within(LONG, "a free lock", || locks.lock("a")).expect("locks");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// As a proxy may, or a server that is a cluster for those only who know it. `CLUSTER SLOTS`
/// decides.
#[test]
fn nodes_of_a_cluster_may_call_themselves_standalone() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let fields = [
        "server",
        "redis",
        "version",
        "7.0.15",
        "mode",
        "standalone",
        "role",
        "master",
    ];
    let greeting = array(&fields).into_bytes();
    (0..3).for_each(|place| {
        cluster
            .proxy(place)
            .always("HELLO", Fault::Replace(greeting.clone()));
    });
    for url in [cluster.url(), url_of_one(&cluster, 1)] {
        let locks = connect(&url);
        assert_works(&cluster, &locks, &[0, 1, 2]);
        let name = cluster.key_on(2);
        let guard = locks.lock(&name).expect("locks");
        eventually(LONG, "it is renewed", || locks.held()[0].renewals > 0);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
}

fn grant_all(cluster: &Cluster, rights: &[&str]) {
    (0..cluster.count()).for_each(|place| crate::support::grant(cluster.server(place), rights));
}

#[test]
fn a_replica_leads_to_the_masters() {
    let cluster = Cluster::start();
    for url in [cluster.url_with(&[3]), url_of_one(&cluster, 4)] {
        assert_works(&cluster, &connect(&url), &[0, 1, 2]);
    }
}

#[test]
fn a_cluster_may_have_a_password() {
    let cluster = small(ClusterSetup {
        password: Some("canary".into()),
        ..ClusterSetup::default()
    });
    assert_works(&cluster, &connect(&cluster.url()), &[0, 1, 2]);
    let wrong = format!("redis+cluster://:wrong@{}", cluster.address(0));
    let error = patient(&wrong).build().expect_err("the password is wrong");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "WRONGPASS"),
        "{error:?}"
    );
    assert!(error.to_string().contains(&cluster.address(0)), "{error}");
}

#[test]
#[cfg(feature = "tls")]
fn a_cluster_may_speak_tls() {
    let setup = ClusterSetup {
        tls: true,
        password: Some("canary".into()),
        ..ClusterSetup::default()
    };
    let cluster = small(setup);
    let tls = relatch::Tls::new().roots(cluster.roots());
    let locks = patient(&cluster.url()).tls(tls).build().expect("connects");
    assert_works(&cluster, &locks, &[0, 1, 2]);
    assert_eq!(redirects(&cluster, 0..3), 0);
    let (name, guard) = held_on(&cluster, &locks, 0);
    cluster.move_slot(cluster.slot_of(&name), 1);
    guard.verify().expect("still there");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    let error = patient(&cluster.url())
        .build()
        .expect_err("an unknown authority");
    assert!(matches!(error, Error::Tls { .. }), "{error:?}");
}

#[cfg(feature = "tls")]
fn held_on(cluster: &Cluster, locks: &LockManager, place: usize) -> (String, relatch::LockGuard) {
    let name = cluster.key_on(place);
    let guard = locks.lock(&name).expect("locks");
    (name, guard)
}

#[test]
fn a_cluster_has_one_database() {
    let cluster = Cluster::without_replicas();
    let urls = [
        bare_url(&cluster, &[0]),
        cluster
            .server(0)
            .bare_url()
            .trim_end_matches('/')
            .to_owned(),
    ];
    for url in urls.each_ref().map(|url| format!("{url}/3")) {
        let error = patient(&url)
            .build()
            .expect_err("there is no other database");
        assert!(
            matches!(error, Error::Refused { .. } | Error::InvalidOption { .. }),
            "{error:?}"
        );
        // Valkey says that the number is too large.
        let text = chain(&error);
        assert!(
            ["SELECT", "database", "DB index"]
                .iter()
                .any(|it| text.contains(it)),
            "{text}"
        );
    }
    for url in urls.map(|url| format!("{url}/0")) {
        assert_works(&cluster, &connect(&url), &[1]);
    }
}

/// A map may name no host: then it is the host that was asked. Or it has names of hosts.
#[test]
fn a_map_may_leave_out_hosts_or_name_them() {
    if server_version() < (7, 0) {
        return; // It names addresses.
    }
    let unknown = vec!["--cluster-preferred-endpoint-type", "unknown-endpoint"];
    let named = vec![
        "--cluster-preferred-endpoint-type",
        "hostname",
        "--cluster-announce-hostname",
        "localhost",
    ];
    for args in [unknown, named] {
        let cluster = small(ClusterSetup {
            args,
            ..ClusterSetup::default()
        });
        for url in [cluster.url_with(&[1]), url_of_one(&cluster, 1)] {
            let locks = connect(&url);
            assert_works(&cluster, &locks, &[0, 1, 2]);
            assert_eq!(redirects(&cluster, 0..3), 0);
            let name = cluster.key_on(0);
            let guard = locks.lock(&name).expect("locks");
            cluster.move_slot(cluster.slot_of(&name), 2);
            guard
                .verify()
                .expect("found by a redirect without a host, or with its name");
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            cluster.move_slot(cluster.slot_of(&name), 0);
            (0..3).for_each(|place| cluster.server(place).reset_stats());
        }
    }
}

/// A node that prefers names of hosts says `?` for a node whose name it does not know. Locks of
/// that node are not to be had until it has a name; the others do not notice.
#[test]
fn a_node_without_an_address_in_the_map_is_unavailable_and_no_other() {
    if server_version() < (7, 0) {
        return; // It names addresses.
    }
    let args = vec!["--cluster-preferred-endpoint-type", "hostname"];
    let cluster = small(ClusterSetup {
        args,
        ..ClusterSetup::default()
    });
    let announce = |place: usize| {
        let name = ["CONFIG", "SET", "cluster-announce-hostname", "localhost"];
        cluster.server(place).query::<()>(&name);
        eventually(LONG, "all nodes know the name", || {
            let named = |asked| {
                let map: String = cluster.server(asked).query(&["CLUSTER", "NODES"]);
                let port = cluster.server(place).port();
                map.lines()
                    .any(|line| line.contains(&format!(":{port}@")) && line.contains(",localhost"))
            };
            (0..3).all(named)
        });
    };
    [0, 1].into_iter().for_each(announce);
    let [first, nameless] = [0, 2].map(|place| cluster.key_on(place));
    let locks = connect(&cluster.url_with(&[2, 0]));
    assert_works(&cluster, &locks, &[0, 1]);
    for error in [
        within(2 * ANSWER + SOON, "try_lock", || locks.try_lock(&nameless)),
        within(ANSWER + SOON, "try_lock_for", || {
            locks.named(&nameless).try_lock_for(ANSWER)
        }),
    ] {
        assert_unavailable(&error);
        let text = chain(&error.expect_err("unavailable"));
        assert!(text.contains("no known node has the slot"), "{text}");
    }
    // A redirect to `?` leads nowhere, either.
    let guard = locks.lock(&first).expect("locks");
    let moving = cluster.begin_move(cluster.slot_of(&first), 2);
    moving.move_keys();
    let text = chain(
        &guard
            .verify()
            .expect_err("it is at the node without a name"),
    );
    assert!(text.contains("ASK"), "{text}");
    announce(2);
    eventually(LONG, "the lock is found", || guard.verify().is_ok());
    moving.end();
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    drop(
        within(LONG, "a lock of the node that has a name now", || {
            locks.lock(&nameless)
        })
        .expect("locks"),
    );
    assert_works(&cluster, &locks, &[0, 1, 2]);
}

/// The map and the redirects have IPv6 addresses, without brackets.
#[test]
fn a_cluster_may_have_ipv6_addresses() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return; // There are none here.
    }
    // The test itself asks the nodes at 127.0.0.1.
    let args = vec!["--bind", "127.0.0.1", "::1", "--cluster-announce-ip", "::1"];
    let cluster = small(ClusterSetup {
        args,
        ..ClusterSetup::default()
    });
    eventually(LONG, "all nodes have the address", || {
        (0..3).all(|place| {
            let map: String = cluster.server(place).query(&["CLUSTER", "NODES"]);
            map.matches(" ::1:").count() == 3
        })
    });
    let seed = format!("[::1]:{}", cluster.server(1).port());
    for url in [
        format!("redis+cluster://{}{seed}", login()),
        format!("redis://{}{seed}", login()),
    ] {
        let locks = connect(&url);
        assert_works(&cluster, &locks, &[0, 1, 2]);
        assert_eq!(redirects(&cluster, 0..3), 0);
        let name = cluster.key_on(0);
        let guard = locks.lock(&name).expect("locks");
        let moving = cluster.begin_move(cluster.slot_of(&name), 2);
        moving.move_keys();
        guard.verify().expect("found by `ASK`");
        moving.end();
        guard.verify().expect("found by `MOVED`");
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(redirects(&cluster, 0..3) > 0);
        (0..3).for_each(|place| cluster.server(place).reset_stats());
    }
}

/// The user may not use `CLIENT TRACKING` on one node. Its waiters poll, and those of the other
/// nodes are woken. A right that is taken away later is missed in the same way.
#[test]
fn row_23_waiters_poll_on_a_node_that_refuses_tracking_and_on_no_other() {
    let cluster = Cluster::without_replicas();
    let rights = [&least_rights()[..], &OF_A_CLUSTER].concat();
    grant_all(&cluster, &rights);
    let revoke = |place: usize| {
        // On a server before 7, a right is for a command with all its subcommands.
        let right = if server_version() >= (7, 0) {
            "-client|tracking"
        } else {
            "-client"
        };
        cluster
            .server(place)
            .query::<()>(&["ACL", "SETUSER", "worker", right]);
    };
    revoke(0);
    let others = connect(&cluster.url());
    let locks = connect(&format!(
        "redis+cluster://worker:canary@{}",
        cluster.address(0)
    ));
    let names = [0, 1].map(|place| cluster.key_on(place));
    let asked = |place: usize| cluster.server(place).calls("pttl");
    let until_polls = |place: usize| {
        let before = asked(place);
        eventually(LONG, "the waiter polls", || asked(place) >= before + 12);
    };
    let until_sleeps = |place: usize| {
        eventually(LONG, "the waiter does not poll", || {
            let before = asked(place);
            throughout(ANSWER, || ());
            asked(place) == before
        });
    };
    for later in [false, true] {
        let guards = names
            .each_ref()
            .map(|name| others.named(name).renew(false).lock().expect("locks"));
        thread::scope(|scope| {
            let waiters = names.each_ref().map(|name| {
                let locks = &locks;
                scope.spawn(move || take(locks, name))
            });
            until_polls(0);
            until_sleeps(1);
            assert_eq!(
                [0, 1].map(|place| cluster.server(place).tracked_keys()),
                [0, 1]
            );
            if later {
                revoke(1);
                cluster
                    .server(1)
                    .query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                until_polls(1);
            }
            for (guard, waiter) in guards.into_iter().zip(waiters) {
                assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
                within(SOON, "the lock", || waiter.join().expect("no panic"));
            }
        });
    }
}

/// A manager listens to 64 nodes at most. The node here has as many addresses as the map has
/// masters.
#[test]
fn waiters_poll_beyond_sixty_four_nodes() {
    const MOST: usize = 64;
    let cluster = Cluster::with(ClusterSetup {
        masters: 1,
        replicas: 0,
        ..ClusterSetup::default()
    });
    let server = cluster.server(0);
    let proxies: Vec<_> = (0..=MOST).map(|_| Proxy::start(server.port())).collect();
    let border = |place: usize| 16384 * place / (MOST + 1);
    let masters = proxies.iter().enumerate().map(|(place, proxy)| {
        let (first, last, port) = (border(place), border(place + 1) - 1, proxy.port());
        format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
    });
    let map = format!("*{}\r\n{}", proxies.len(), masters.collect::<String>());
    for proxy in &proxies {
        proxy.always("CLUSTER SLOTS", Fault::Answer(map.clone().into_bytes()));
    }
    let url = format!("redis+cluster://{}127.0.0.1:{}", login(), proxies[0].port());
    let locks = patient(&url).build().expect("connects");
    let name_at = |place: usize| {
        let mut names = std::iter::repeat_with(|| unique_key("k"));
        let is_there = |name: &String| {
            (border(place)..border(place + 1)).contains(&usize::from(cluster.slot_of(name)))
        };
        names.find(is_there).expect("endless")
    };
    let names: Vec<_> = (0..=MOST).map(name_at).collect();
    for name in &names {
        occupy(server, name, MINUTE);
    }
    thread::scope(|scope| {
        let waiters: Vec<_> = names[..MOST]
            .iter()
            .map(|name| scope.spawn(|| take(&locks, name)))
            .collect();
        eventually(LONG, "all but one node have a listener", || {
            server.listeners().len() == MOST
        });
        let last = scope.spawn(|| take(&locks, &names[MOST]));
        let looks = || proxies[MOST].commands(&format!("SET lock:{}", names[MOST]));
        eventually(LONG, "the waiter polls", || looks() > 12);
        assert_eq!(server.listeners().len(), MOST);
        for (name, waiter) in names.iter().zip(waiters.into_iter().chain([last])) {
            delete(server, name);
            within(SOON, "the lock", || waiter.join().expect("no panic"));
        }
    });
}

#[test]
fn holder_held_and_force_unlock_find_the_node() {
    let cluster = Cluster::without_replicas();
    let (locks, others) = (connect(&cluster.url()), connect(&cluster.url()));
    let names = [0, 1, 2].map(|place| cluster.key_on(place));
    let guards = names
        .each_ref()
        .map(|name| locks.lock(name).expect("locks"));
    let mut listed: Vec<_> = locks.held().into_iter().map(|it| it.key).collect();
    listed.sort();
    let mut expected = names.to_vec();
    expected.sort();
    assert_eq!(listed, expected);
    for (name, guard) in names.iter().zip(guards) {
        guard.ensure(MINUTE / 2).expect("valid");
        guard.set_lease(MINUTE).expect("extends"); // From now on, Redis tracks the key.
        let seen = others.named(name).holder().expect("answers").expect("held");
        assert_eq!(seen.raw, guard.token());
        thread::scope(|scope| {
            let busy = || others.try_lock(name).expect("answers").is_none();
            assert!(scope.spawn(busy).join().expect("no panic"));
        });
        let gone = others
            .named(name)
            .force_unlock()
            .expect("answers")
            .expect("held");
        assert_eq!(gone.raw, guard.token());
        assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
        assert_lost(&guard.unlock(), LostCause::Deleted);
        assert!(others.named(name).holder().expect("answers").is_none());
    }
    let (stats, theirs) = (locks.stats(), others.stats());
    assert_eq!((stats.acquired, stats.lost, theirs.timed_out), (3, 3, 3));
    assert_eq!(redirects(&cluster, 0..3), 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_lock_is_handed_off_on_every_node() {
    let cluster = Cluster::without_replicas();
    let locks = patient(&cluster.url())
        .local_handoff(MINUTE)
        .build()
        .expect("connects");
    for place in 0..3 {
        let name = cluster.key_on(place);
        let guard = locks.lock(&name).expect("locks");
        thread::scope(|scope| {
            let next = behind(scope, || crate::support::take(&locks, &name));
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            next.join().expect("no panic");
        });
    }
    assert_eq!(locks.stats().handed_off, 3);
    assert_eq!(redirects(&cluster, 0..3), 0);
}

#[test]
fn the_lock_of_a_dead_process_is_taken_over() {
    let cluster = Cluster::without_replicas();
    let mut holder = Worker::spawn(
        "worker",
        &[
            ("url", &*cluster.url()),
            ("lease", "60000"),
            ("reclaim", "no"),
        ],
    );
    holder.expect_line("ready", LONG);
    holder.send("lock");
    let token = holder.expect_line("", LONG);
    let locks = connect(&cluster.url());
    assert_eq!(
        locks
            .named("a")
            .holder()
            .expect("answers")
            .expect("held")
            .raw,
        token
    );
    holder.kill();
    let guard = within(LONG, "the take-over", || {
        locks.named("a").reclaim_dead(true).lock()
    })
    .expect("locks");
    assert_eq!(locks.stats().reclaimed, 1);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// An error names the node that has the key or, if no map is known, the nodes of the URL.
#[test]
fn errors_name_the_node_or_those_of_the_url() {
    let args = vec!["--cluster-require-full-coverage", "no"];
    let cluster = small(ClusterSetup {
        args,
        ..ClusterSetup::default()
    });
    let names = [0, 1, 2].map(|place| cluster.key_on(place));
    let locks = connect(&cluster.url());
    assert_works(&cluster, &locks, &[0, 1, 2]);
    cluster.server(1).kill();
    let refused = locks.named(&names[1]).wait(2 * ANSWER).lock().map(Some);
    assert_unavailable(&refused);
    let text = refused.expect_err("it is dead").to_string();
    assert!(text.contains(&cluster.address(1)), "{text}");
    locks.with_lock(&names[2], || ()).expect("another node");
    // A map may name nodes that this machine cannot reach. The error names one of them.
    let map = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.2\r\n:1\r\n".to_vec();
    let elsewhere = Proxy::start(cluster.server(0).port());
    elsewhere.always("CLUSTER SLOTS", Fault::Answer(map));
    let url = format!("redis+cluster://{}127.0.0.1:{}", login(), elsewhere.port());
    let error = patient(&url).build().expect_err("nobody listens at port 1");
    assert!(
        error.is_redis_failure() && error.to_string().contains(" 127.0.0.2:1"),
        "{error}"
    );
    for place in [0, 2] {
        cluster.server(place).kill();
    }
    let url = cluster.url_with(&[2, 0]);
    for error in [
        patient(&url).build().map(drop).expect_err("all are dead"),
        patient(&url)
            .build_lazily()
            .expect("an address")
            .try_lock(&names[0])
            .expect_err("all are dead"),
    ] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let seeds = format!(
            "the cluster of {}, {}",
            cluster.address(2),
            cluster.address(0)
        );
        assert!(error.to_string().contains(&seeds), "{error}");
    }
}

#[test]
fn row_23_the_right_to_read_the_map_is_needed_and_named() {
    let cluster = Cluster::without_replicas();
    grant_all(&cluster, &least_rights());
    let url = |scheme: &str| format!("{scheme}://worker:canary@{}", cluster.address(0));
    for url in [url("redis+cluster"), url("redis")] {
        let error = patient(&url).build().expect_err("it may not be read");
        assert!(
            matches!(&error, Error::Refused { code, .. } if code == "NOPERM"),
            "{error:?}"
        );
        assert!(
            names_right(&chain(&error), OF_A_CLUSTER[0]),
            "{}",
            chain(&error)
        );
    }
    grant_all(&cluster, &[&least_rights()[..], &OF_A_CLUSTER].concat());
    for url in [url("redis+cluster"), url("redis")] {
        let locks = connect(&url);
        let name = cluster.key_on(0);
        let guard = locks.lock(&name).expect("locks");
        let moving = cluster.begin_move(cluster.slot_of(&name), 1);
        moving.move_keys();
        guard.set_lease(MINUTE).expect("extends at the new owner");
        thread::scope(|scope| {
            let others = connect(&url);
            let name = &name;
            scope.spawn(move || {
                assert!(
                    others
                        .named(name)
                        .try_lock_for(ANSWER)
                        .expect("answers")
                        .is_none()
                );
            });
        });
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        moving.cancel();
    }
    for place in 0..3 {
        let refused = cluster.server(place).refused().into_iter();
        let refused: Vec<_> = refused
            .map(|(_, what)| what)
            .filter(|it| !it.starts_with("cluster"))
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
}
