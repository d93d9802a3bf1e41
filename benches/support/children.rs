//! Processes that take part in a benchmark: this program again, with a role as its argument. Lines on their
//! pipes say what to do and what was done.

use std::env;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use relatch::LockManager;

use super::figures::now;

/// The argument that makes a process a child.
const CHILD: &str = "child";

/// A child, as its parent sees it. It is ended when this goes.
pub(crate) struct Child {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child: its role, the server, and the key or what its keys begin with.
    pub(crate) fn start(role: &str, url: &str, key: &str) -> Child {
        let mut process = Command::new(env::current_exe().expect("this program has a path"))
            .args([CHILD, role, url, key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts itself");
        let orders = process.stdin.take().expect("it was asked for");
        let answers = BufReader::new(process.stdout.take().expect("it was asked for"));
        Child { process, orders, answers }
    }

    pub(crate) fn tell(&mut self, order: impl Display) {
        writeln!(self.orders, "{order}").expect("the child listens");
    }

    /// Waits for a line of these words.
    pub(crate) fn expect(&mut self, words: &str) {
        assert_eq!(self.line(), words);
    }

    /// Waits for a line of so many numbers.
    pub(crate) fn numbers<const N: usize>(&mut self) -> [u64; N] {
        let line = self.line();
        let numbers: Vec<u64> = line.split(' ').flat_map(str::parse).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{N} numbers, not {line:?}"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Plays the role that the arguments give; false where they give none.
pub(crate) fn play(arguments: &[String]) -> bool {
    let [child, role, url, key] = arguments else { return false };
    if child != CHILD {
        return false;
    }
    if role == "by hand" {
        by_hand(url, key);
        return true;
    }
    let locks = LockManager::connect(url).expect("a Redis of our own");
    match role.as_str() {
        "waiter" => waiter(&locks, key),
        "crowd" => crowd(&locks, key),
        "holder" => holder(&locks, key),
        "once" => once(&locks, key),
        other => panic!("no role {other:?}"),
    }
    true
}

/// Takes the lock each time it is told to, and says when it had it.
fn waiter(locks: &LockManager, key: &str) {
    while order().is_some() {
        answer("waiting");
        let guard = locks.lock(key).expect("locks");
        let had = now();
        drop(guard);
        answer(nanos(had));
    }
}

/// The least that a waiter can be who is woken by Redis: one thread, which is told on one connection, and answers with a `SET`
/// on the other.
fn by_hand(url: &str, key: &str) {
    let client = redis::Client::open(url).expect("a URL");
    let [mut ear, mut connection] = [(); 2].map(|()| client.get_connection().expect("connects"));
    let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut ear).expect("answers");
    let mut ear = ear.as_pubsub();
    ear.subscribe("__redis__:invalidate").expect("subscribes");
    let mut send = |words: &[&str]| -> redis::Value {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).expect("answers")
    };
    send(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id.to_string(), "NOLOOP"]);
    while order().is_some() {
        send(&["GET", key]);
        answer("waiting");
        ear.get_message().expect("word");
        assert_eq!(send(&["SET", key, "token", "NX", "PX", "30000"]), redis::Value::Okay);
        answer(nanos(now()));
        send(&["DEL", key]);
        answer("given back");
    }
}

/// Two threads that take the lock and give it back for so many milliseconds; says how often in all, and how long the
/// longest wait was.
fn crowd(locks: &LockManager, key: &str) {
    answer("ready");
    let Some(span) = order().and_then(|order| order.parse().ok()).map(Duration::from_millis) else { return };
    let started = Instant::now();
    let take_turns = || {
        let (mut turns, mut longest) = (0_u64, Duration::ZERO);
        while started.elapsed() < span {
            let asked = Instant::now();
            let guard = locks.lock(key).expect("locks");
            longest = longest.max(asked.elapsed());
            drop(guard);
            turns += 1;
        }
        (turns, longest)
    };
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(take_turns);
        (take_turns(), other.join().expect("no panic"))
    });
    answer(format!("{} {}", one.0 + other.0, nanos(one.1.max(other.1))));
}

/// Holds as many keys as it is told, until the next order. Nothing is renewed meanwhile.
fn holder(locks: &LockManager, keys: &str) {
    let count: u32 = order().and_then(|order| order.parse().ok()).expect("a number");
    let hold = |n| {
        let lock = locks.get(format!("{keys}:{n}")).lease(Duration::from_secs(60)).renew(false);
        lock.lock().expect("locks")
    };
    let guards: Vec<_> = (0..count).map(hold).collect();
    answer("held");
    order();
    drop(guards);
}

/// Takes the lock, has it for a millisecond, and ends; says when it had it and when it gave it back.
fn once(locks: &LockManager, key: &str) {
    answer("waiting");
    let guard = locks.lock(key).expect("locks");
    let had = now();
    thread::sleep(Duration::from_millis(1));
    let gave_back = now();
    drop(guard);
    answer(format!("{} {}", nanos(had), nanos(gave_back)));
    order(); // The manager's end is not part of it.
}

/// The next line from the parent; `None` where there is no parent any more.
fn order() -> Option<String> {
    io::stdin().lines().next()?.ok()
}

fn answer(line: impl Display) {
    let mut out = io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the parent listens");
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("less than five hundred years")
}
