//! Sentinels that a test plays: reports that come exactly when the test says so, sentinels that
//! disagree, are silent, or know better than others.

use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{LockManager, LostCause};
use relatch_rig::{
    FakeServer, Fault, LONG, MASTER, Proxy, Reply, Server, eventually, rights, time, within,
};

use crate::many::sentinel::{
    PERIOD, array, clients_of, open_connections, patient, port_of, sentinel_that_says,
    until_subscribed,
};
use crate::support::{ANSWER, MINUTE, SOON, assert_unavailable, builder, returns_by};

/// The question with which a new connection begins.
const QUESTION: &str = "SENTINEL GET-MASTER-ADDR-BY-NAME";

/// What a sentinel answers to what the user may not do.
const REFUSED: &[u8] = b"-NOPERM this user has no permissions to do this\r\n";

/// A sentinel that says what the test has it say, behind a proxy.
struct Played {
    /// The port that it names, and the epoch.
    view: Arc<Mutex<(u16, u64)>>,
    fake: FakeServer,
    proxy: Proxy,
}

impl Played {
    fn naming(port: u16) -> Played {
        let view = Arc::new(Mutex::new((port, 1)));
        let shared = Arc::clone(&view);
        let fake = sentinel_that_says(move || Some(*shared.lock()));
        let proxy = Proxy::start(port_of(&fake));
        Played { view, fake, proxy }
    }

    /// From now on it names this port, with a newer epoch.
    fn names(&self, port: u16) {
        let mut view = self.view.lock();
        *view = (port, view.1 + 1);
    }

    /// Sends a report to the manager, which has to have subscribed to the channel.
    #[track_caller]
    fn report(&self, channel: &str, payload: &str) {
        let is_subscribed = || self.proxy.commands(&format!("SUBSCRIBE {channel}")) > 0;
        eventually(
            LONG,
            "the manager has subscribed to the channel",
            is_subscribed,
        );
        let message = array(&["message", channel, payload]);
        eventually(LONG, "the manager has subscribed", || {
            self.fake.push(message.as_bytes()) > 0
        });
    }

    /// From now on it names the server at `to`, and reports the switch.
    #[track_caller]
    fn switches(&self, from: u16, to: u16) {
        self.names(to);
        self.report(
            "+switch-master",
            &format!("{MASTER} 127.0.0.1 {from} 127.0.0.1 {to}"),
        );
    }

    fn questions(&self) -> u64 {
        self.proxy.commands(QUESTION)
    }
}

fn url_of(sentinels: &[Played]) -> String {
    let hosts: Vec<_> = sentinels
        .iter()
        .map(|it| format!("127.0.0.1:{}", it.proxy.port()))
        .collect();
    format!(
        "redis+sentinel://{}{}/{MASTER}",
        rights::login(),
        hosts.join(",")
    )
}

/// A manager that neither renews nor polls while a test runs, and gives a sentinel as much time as
/// a sentinel ever gets.
fn connect(sentinels: &[Played]) -> LockManager {
    let builder = patient(&url_of(sentinels))
        .renew_every(MINUTE / 3)
        .poll_every(LONG);
    builder.connect_timeout(LONG).build().expect("connects")
}

/// Two servers that both say that they are the master, the old and the new one.
fn servers() -> [Server; 2] {
    [(); 2].map(|()| Server::start())
}

/// The connections of managers.
fn connections_to(server: &Server) -> Vec<String> {
    let clients: String = server.query(&["CLIENT", "LIST"]);
    let ours = clients
        .lines()
        .filter(|line| line.contains(" name=relatch:"));
    ours.filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

/// Waits until the manager's listener is connected, and has tested itself.
#[track_caller]
fn until_listening(server: &Server) {
    // It does so over a connection that it then closes.
    let is_tested =
        || server.redirects_invalidations() && server.clients_with("cmd=del").is_empty();
    eventually(LONG, "the listener is connected", is_tested);
}

/// Ends all connections of managers, so that the next command needs a new one.
fn end_all(server: &Server) {
    server.query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}

/// Checks that the manager has left the old master and uses the new one, and no other.
#[track_caller]
fn assert_moved(locks: &LockManager, old: &Server, new: &Server) {
    eventually(SOON, "the old master has no client", || {
        clients_of(old) == 0
    });
    let before = old.calls("set");
    open_connections(locks, 2);
    assert_eq!((clients_of(old), old.calls("set")), (0, before));
    assert!(new.calls("set") > 0);
}

/// How long after the report of a switch the holder of a lock that the new master lacks is told.
fn loss_after(channel: &str, report: impl Fn(u16, u16) -> String, renewed: bool) -> Duration {
    let [old, new] = servers();
    let sentinel = Played::naming(old.port());
    let locks = connect(slice::from_ref(&sentinel));
    let guard = locks.lock("a").expect("locks");
    if renewed {
        guard.set_lease(MINUTE).expect("extends");
    }
    until_subscribed(slice::from_ref(&sentinel.proxy));
    sentinel.names(new.port());
    let reported = Instant::now();
    sentinel.report(channel, &report(old.port(), new.port()));
    assert_eq!(guard.watch().wait_lost(SOON), Some(LostCause::Deleted));
    reported.elapsed()
}

#[test]
fn a_report_of_a_switch_reaches_each_hold_at_once() {
    for renewed in [false, true] {
        returns_by(Duration::ZERO, "the report of the loss", || {
            let report = |old, new| format!("{MASTER} 127.0.0.1 {old} 127.0.0.1 {new}");
            loss_after("+switch-master", report, renewed)
        });
    }
    for channel in ["+promoted-slave", "+slave"] {
        returns_by(Duration::ZERO, "the report of the loss", || {
            let report = |old, new| {
                format!("slave 127.0.0.1:{new} 127.0.0.1 {new} @ {MASTER} 127.0.0.1 {old}")
            };
            loss_after(channel, report, false)
        });
    }
}

/// A sentinel reports a switch, without a failover that others could know of, to a server that is
/// not there. The others name the master that was left, and it is used again.
#[test]
fn a_report_that_leads_nowhere_does_not_keep_the_manager_from_its_master() {
    let [master, dead] = servers();
    let (from, to) = (master.port(), dead.port());
    dead.kill();
    let sentinels = [(); 2].map(|()| Played::naming(from));
    let locks = connect(&sentinels);
    let liar = &sentinels[0];
    until_subscribed(slice::from_ref(&liar.proxy));
    liar.view.lock().0 = to;
    liar.report(
        "+switch-master",
        &format!("{MASTER} 127.0.0.1 {from} 127.0.0.1 {to}"),
    );
    eventually(LONG, "the report is followed", || clients_of(&master) == 0);
    let lock = locks.named("a").wait(LONG / 4);
    lock.with_lock(|| ()).expect("runs");
}

#[test]
fn reports_of_other_masters_and_reports_without_sense_change_nothing() {
    let [old, new] = servers();
    let sentinel = Played::naming(old.port());
    let locks = connect(slice::from_ref(&sentinel));
    let guard = locks.lock("a").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    until_subscribed(slice::from_ref(&sentinel.proxy));
    until_listening(&old);
    let (before, asked) = (connections_to(&old), sentinel.questions());
    let (from, to) = (old.port(), new.port());
    for report in [
        String::new(),
        "nonsense".to_owned(),
        format!("{MASTER} 127.0.0.1 {from} 127.0.0.1"),
        format!("{MASTER} 127.0.0.1 {from} 127.0.0.1 {to}0000"),
        format!("another 127.0.0.1 {from} 127.0.0.1 {to}"),
        format!("{MASTER}2 127.0.0.1 {from} 127.0.0.1 {to}"),
        format!("slave 127.0.0.1:{to} 127.0.0.1 {to} @ another 127.0.0.1 {from}"),
    ] {
        sentinel.report("+switch-master", &report);
    }
    // Reports are handled in their order. For each of these, the sentinel is asked, so when most of
    // them have been read, all others have been.
    for _ in 0..20 {
        sentinel.report(
            "+slave",
            &format!("slave 127.0.0.1:1 127.0.0.1 1 @ {MASTER} 127.0.0.1 {from}"),
        );
    }
    eventually(LONG, "all reports have been read", || {
        sentinel.questions() >= asked + 20
    });
    let now = connections_to(&old);
    assert!(
        !before.is_empty() && before.iter().all(|it| now.contains(it)),
        "{before:?}, {now:?}"
    );
    assert_eq!(new.total_calls(&["hello", "set", "get"]), 0);
    guard.verify().expect("it is where it was");
    sentinel.switches(from, to);
    assert_moved(&locks, &old, &new);
}

/// Three sentinels. The manager gets the reports of the last one, and asks the first one first.
fn with_a_reporter_that_is_asked_last(server: &Server) -> ([Played; 3], LockManager) {
    let sentinels = [(); 3].map(|()| Played::naming(server.port()));
    for it in &sentinels[..2] {
        it.proxy
            .always("SUBSCRIBE", Fault::Answer(REFUSED.to_vec()));
    }
    // The thread that has subscribed asks its sentinel first, and then prefers the one that
    // answers.
    sentinels[2].proxy.always(QUESTION, Fault::CutBeforeForward);
    let locks = connect(&sentinels);
    // A connection that ends while it is opened would be taken for a master that is gone.
    let locks_once = || {
        locks
            .with_lock("a", || until_listening(server))
            .expect("runs");
    };
    locks_once();
    until_subscribed(slice::from_ref(&sentinels[2].proxy));
    eventually(LONG, "the first one is asked first", || {
        let before = sentinels[2].questions();
        end_all(server);
        locks_once();
        before > 0 && sentinels[2].questions() == before
    });
    (sentinels, locks)
}

#[test]
fn a_sentinel_that_reports_a_switch_counts_more_than_those_that_have_not_heard_of_it() {
    for tells_epoch in [true, false] {
        let [old, new] = servers();
        let (sentinels, locks) = with_a_reporter_that_is_asked_last(&old);
        let [_, knows, reporter] = &sentinels;
        knows.names(new.port());
        reporter.proxy.clear();
        if tells_epoch {
            // It answers once, and is gone.
            reporter
                .proxy
                .on(QUESTION, Fault::DelayReply(Duration::ZERO));
            reporter.proxy.always(QUESTION, Fault::CutBeforeForward);
        } else {
            for it in &sentinels {
                it.proxy
                    .always("SENTINEL MASTER", Fault::Answer(REFUSED.to_vec()));
            }
        }
        reporter.switches(old.port(), new.port());
        assert_moved(&locks, &old, &new);
    }
}

#[test]
fn a_connection_that_is_logging_in_does_not_escape_a_switch() {
    let [old, new] = servers();
    let between = Proxy::start(old.port());
    let sentinel = Played::naming(between.port());
    let locks = patient(&url_of(slice::from_ref(&sentinel)))
        .connect_timeout(LONG)
        .response_timeout(LONG);
    let locks = locks.build().expect("connects");
    until_subscribed(slice::from_ref(&sentinel.proxy));
    between.cut_all();
    between.hold_replies(true);
    let accepted = between.connections_accepted();
    thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let (took, guard) = time(|| locks.lock("a").expect("locks"));
            assert_eq!(new.get("lock:a").as_deref(), Some(guard.token()));
            took
        });
        eventually(LONG, "a connection is opened", || {
            between.connections_accepted() > accepted
        });
        sentinel.switches(between.port(), new.port());
        // The replies of the old master are still held.
        let took = taking.join().expect("no panic");
        assert!(took < LONG / 2, "{took:?}");
        between.hold_replies(false);
    });
    assert_eq!(old.calls("set"), 0);
}

/// Two sentinels disagree at the start. The manager connects to the server that the first one
/// names, and then the second one answers.
#[test]
fn the_first_connection_does_not_lead_to_an_old_master_either() {
    let [old, new] = servers();
    let between = Proxy::start(old.port());
    let sentinels = [&between, &between].map(|it| Played::naming(it.port()));
    let [behind, knows] = &sentinels;
    knows.names(new.port());
    behind
        .proxy
        .always("SUBSCRIBE", Fault::Answer(REFUSED.to_vec()));
    knows.proxy.hold_replies(true);
    between.hold_replies(true);
    let builder = patient(&url_of(&sentinels))
        .connect_timeout(LONG)
        .response_timeout(LONG);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| time(|| builder.build().expect("connects")));
        eventually(LONG, "the connection logs in", || {
            between.commands("HELLO") > 0
        });
        knows.proxy.hold_replies(false);
        // The replies of the old master are still held.
        let (took, locks) = connecting.join().expect("no panic");
        assert!(took < LONG / 2, "{took:?}");
        between.hold_replies(false);
        assert_moved(&locks, &old, &new);
    });
}

#[test]
fn an_answer_that_a_report_has_overtaken_does_not_count() {
    let [old, new] = servers();
    let (sentinels, locks) = with_a_reporter_that_is_asked_last(&old);
    for it in &sentinels {
        it.proxy
            .always("SENTINEL MASTER", Fault::Answer(REFUSED.to_vec()));
    }
    let [asked, knows, reporter] = &sentinels;
    reporter.proxy.clear();
    knows.names(new.port());
    let held = locks.lock("held").expect("locks");
    held.set_lease(MINUTE).expect("extends");
    asked.proxy.hold_replies(true);
    let before = asked.questions();
    // The one that reports is asked first, and does not answer this time.
    reporter.proxy.on(QUESTION, Fault::CutBeforeForward);
    let (from, to) = (old.port(), new.port());
    reporter.report(
        "+slave",
        &format!("slave 127.0.0.1:1 127.0.0.1 1 @ {MASTER} 127.0.0.1 {from}"),
    );
    eventually(LONG, "the next one is asked", || asked.questions() > before);
    reporter.switches(from, to);
    asked.proxy.hold_replies(false);
    assert_moved(&locks, &old, &new);
    assert_eq!(held.watch().wait_lost(SOON), Some(LostCause::Deleted));
}

#[test]
fn after_the_end_of_a_subscription_another_sentinel_reports() {
    let ends: [fn(&Proxy); 2] = [
        |proxy| {
            proxy.refuse(true);
            proxy.cut_all();
        },
        // Noticed by a `PING`, 3 s after the last message.
        |proxy| proxy.black_hole(true),
    ];
    thread::scope(|scope| {
        for end in ends {
            scope.spawn(move || {
                let [old, new] = servers();
                let sentinels = [(); 2].map(|()| Played::naming(old.port()));
                // A connection that is silent for the connect timeout after a `PING` is dead.
                let locks = patient(&url_of(&sentinels))
                    .connect_timeout(SOON)
                    .build()
                    .expect("connects");
                until_subscribed(slice::from_ref(&sentinels[0].proxy));
                end(&sentinels[0].proxy);
                until_subscribed(slice::from_ref(&sentinels[1].proxy));
                sentinels[1].switches(old.port(), new.port());
                assert_moved(&locks, &old, &new);
            });
        }
    });
}

#[test]
fn a_switch_that_nobody_reports_is_noticed_by_the_next_new_connection() {
    let [old, new] = servers();
    let sentinel = Played::naming(old.port());
    let locks = connect(slice::from_ref(&sentinel));
    let guard = locks.lock("held").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    until_subscribed(slice::from_ref(&sentinel.proxy));
    sentinel.names(new.port());
    // The old master is well, and still says that it is the master.
    let asked = sentinel.questions();
    eventually(LONG, "a new connection", || {
        open_connections(&locks, 4);
        sentinel.questions() > asked
    });
    assert_moved(&locks, &old, &new);
    assert_eq!(guard.watch().wait_lost(SOON), Some(LostCause::Deleted));
}

/// The client reaches both sides, and its reports come from the wrong one.
#[test]
fn a_sentinel_that_is_cut_off_with_the_old_master_does_not_keep_the_manager_there() {
    let [old, new] = servers();
    let sentinels = [(); 3].map(|()| Played::naming(old.port()));
    let locks = connect(&sentinels);
    let guard = locks.lock("held").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    until_subscribed(slice::from_ref(&sentinels[0].proxy));
    sentinels[1].names(new.port());
    eventually(LONG, "the other sentinels are asked as well", || {
        clients_of(&old) == 0
    });
    assert_eq!(guard.watch().wait_lost(SOON), Some(LostCause::Deleted));
    assert_moved(&locks, &old, &new);
}

/// No subscription lasts for long. (One that is quiet for three seconds sends a `PING`.)
#[test]
fn without_any_report_all_sentinels_are_asked_all_the_same() {
    let faults = [
        ("SUBSCRIBE", Fault::Answer(REFUSED.to_vec())),
        ("SUBSCRIBE", Fault::CutBeforeReply),
        ("PING", Fault::CutBeforeReply),
    ];
    thread::scope(|scope| {
        for (command, fault) in faults {
            scope.spawn(move || {
                let [old, new] = servers();
                let sentinels = [(); 3].map(|()| Played::naming(old.port()));
                for sentinel in &sentinels {
                    sentinel.proxy.always(command, fault.clone());
                }
                let locks = connect(&sentinels);
                sentinels[2].names(new.port());
                drop(locks.lock("a").expect("locks"));
                eventually(LONG, "the last sentinel is asked as well", || {
                    clients_of(&old) == 0
                });
                assert_moved(&locks, &old, &new);
            });
        }
    });
}

/// Replaces the first server by the second, without a report. Returns the time from which on the
/// sentinel names the second, and the first is not the master any more.
type Replace = fn(&Played, &Server, &Server) -> Instant;

const REPLACEMENTS: [(&str, Replace); 4] = [
    ("killed", |sentinel, old, new| {
        sentinel.names(new.port());
        let ended = Instant::now();
        old.kill();
        ended
    }),
    (
        "killed before another one is named",
        |sentinel, old, new| {
            let asked = sentinel.questions();
            old.kill();
            eventually(LONG, "the manager looks for another one", || {
                sentinel.questions() > asked + 1
            });
            sentinel.names(new.port());
            Instant::now()
        },
    ),
    ("demoted as by a sentinel", |sentinel, old, new| {
        let ended = demote(sentinel, old, new);
        for kind in ["normal", "pubsub"] {
            old.query::<()>(&["CLIENT", "KILL", "TYPE", kind]);
        }
        ended
    }),
    ("demoted as by hand", demote),
];

/// Makes the first server a replica of the second. (A sentinel would also end all connections.)
fn demote(sentinel: &Played, old: &Server, new: &Server) -> Instant {
    sentinel.names(new.port());
    let ended = Instant::now();
    old.query::<()>(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    ended
}

/// How long after the end of the old master the holder of a lock that the new master lacks is told,
/// although nobody has reported the switch.
fn loss_without_report(replace: Replace, may_subscribe: bool, tracks: bool) -> Duration {
    let [old, new] = servers();
    let sentinel = Played::naming(old.port());
    if !may_subscribe {
        sentinel
            .proxy
            .always("SUBSCRIBE", Fault::Answer(REFUSED.to_vec()));
    }
    let url = url_of(slice::from_ref(&sentinel));
    let locks = patient(&url)
        .connect_timeout(LONG)
        .client_tracking(tracks)
        .build()
        .expect("connects");
    let guard = locks.lock("a").expect("locks");
    // A busy machine may be late with an answer.
    eventually(LONG, "the lease is extended", || {
        guard.set_lease(MINUTE).is_ok()
    });
    // A connection that is opened later than this would notice the switch by itself.
    if may_subscribe {
        until_subscribed(slice::from_ref(&sentinel.proxy));
    }
    if tracks {
        until_listening(&old);
    }
    assert_eq!((clients_of(&new), guard.is_valid()), (0, true));
    let ended = replace(&sentinel, &old, &new);
    assert_eq!(
        guard.watch().wait_lost(PERIOD + SOON),
        Some(LostCause::Deleted)
    );
    let told = ended.elapsed();
    drop(guard);
    let other = locks
        .named("b")
        .try_lock_for(LONG)
        .expect("the new master answers")
        .expect("a free lock");
    assert_eq!(new.get("lock:b").as_deref(), Some(other.token()));
    told
}

/// Each holder is told within [`SOON`] after a renewal period. Where the machine gives the process
/// a core in time, it is 50 ms: one of three runs has to show that.
#[track_caller]
fn assert_loss_is_told_within_a_renewal_period(may_subscribe: bool, tracks: bool) {
    for (how, replace) in REPLACEMENTS {
        let what = format!("the news of a loss, the master {how}");
        returns_by(PERIOD, &what, || {
            loss_without_report(replace, may_subscribe, tracks)
        });
    }
}

#[test]
fn without_the_right_to_subscribe_a_lost_lock_is_noticed_within_a_renewal_period() {
    assert_loss_is_told_within_a_renewal_period(false, true);
}

/// Without invalidations, either: then no connection shows the end of the master before the next
/// renewal.
#[test]
fn without_any_subscription_a_lost_lock_is_noticed_within_a_renewal_period() {
    assert_loss_is_told_within_a_renewal_period(false, false);
}

#[test]
fn a_report_that_is_lost_delays_the_news_of_a_lost_lock_by_a_renewal_period_at_most() {
    assert_loss_is_told_within_a_renewal_period(true, false);
}

#[test]
fn the_login_of_the_url_does_not_go_to_the_sentinels() {
    let server = Server::with(&["--requirepass", "canary"]);
    let sentinel = Played::naming(server.port());
    sentinel.proxy.always(
        "AUTH",
        Fault::Answer(b"-ERR there is no password\r\n".to_vec()),
    );
    let url = format!(
        "redis+sentinel://:canary@127.0.0.1:{}/{MASTER}",
        sentinel.proxy.port()
    );
    let locks = patient(&url).build().expect("connects");
    until_subscribed(slice::from_ref(&sentinel.proxy));
    drop(locks.lock("a").expect("locks"));
    let sent = sentinel.proxy.log_in_full();
    assert!(
        sent.iter().flatten().all(|it| !it.contains("canary")),
        "{sent:?}"
    );
}

#[test]
fn sentinels_that_are_silent_do_not_delay_the_end_of_a_wait() {
    let server = Server::start();
    let sentinels = [(); 3].map(|()| Played::naming(server.port()));
    let patient = || {
        patient(&url_of(&sentinels))
            .connect_timeout(LONG)
            .response_timeout(LONG)
    };
    let connected = patient().build().expect("connects");
    drop(connected.lock("a").expect("locks"));
    until_subscribed(slice::from_ref(&sentinels[0].proxy));
    for it in &sentinels {
        it.proxy.black_hole(true);
    }
    let alone = patient().build_lazily().expect("an address");
    let wait = |locks: &LockManager| {
        returns_by(ANSWER, "a wait", || {
            let (took, taken) = time(|| locks.named("a").try_lock_for(ANSWER));
            assert_unavailable(&taken);
            took
        });
    };
    wait(&alone);
    // The same with a connection to the master that was open before.
    server.pause();
    wait(&connected);
    server.resume();
    for it in &sentinels {
        it.proxy.black_hole(false);
    }
}

#[test]
fn a_silent_sentinel_leaves_time_for_the_others_and_costs_little() {
    let server = Server::start();
    let sentinels = [(); 3].map(|()| Played::naming(server.port()));
    sentinels[0].proxy.black_hole(true);
    let url = url_of(&sentinels);
    let build = || {
        within(SOON, "a build", || {
            builder(&url).connect_timeout(LONG).build()
        })
    };
    drop(build().expect("connects"));
    // The connect timeout is as long as a sentinel gets at most. (The machine may be busy.)
    let mut tries = (0..3).map(|_| builder(&url).build());
    assert!(
        tries.any(|it| it.is_ok()),
        "there is no time for the second sentinel"
    );
}

/// The sentinel answers nothing before it has got the last question.
#[test]
fn the_login_at_a_sentinel_and_all_questions_are_one_batch() {
    let server = Server::start();
    let port = server.port().to_string();
    let sentinel = FakeServer::start(move |args| {
        let words: Vec<_> = args.iter().map(|it| it.to_lowercase()).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let reply = match words[..] {
            ["sentinel", "master", _] => {
                let known = array(&["num-slaves", "0", "config-epoch", "1"]);
                format!("+OK\r\n{}*0\r\n{known}", array(&["127.0.0.1", &port]))
            }
            _ => String::new(),
        };
        Reply::Bytes(reply.into_bytes())
    });
    let url = format!(
        "redis+sentinel://{}{}/{MASTER}",
        rights::login(),
        sentinel.address()
    );
    let locks = LockManager::connect(&url).expect("connects");
    locks.with_lock("a", || {}).expect("runs");
}
