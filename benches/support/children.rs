//! Processes that take part in a benchmark: this program again, with a role as its argument. Lines
//! on their pipes say what to do and what was done.

use std::env;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{self, Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use relatch::LockManager;

use super::figures::now;
use super::turns::{Kind, Polling, Relatch, Taker, Tally, take_turns_for};

/// The argument that makes a process a child.
const CHILD: &str = "child";

/// For how long a child lives at most, even if it hangs: its parent then reads the end of its
/// answers.
const LIFETIME: Duration = Duration::from_secs(240);

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

    /// Starts so many, a few at a time, and waits for the first word of each.
    pub(crate) fn start_all(count: usize, role: &str, url: &str, key: &str, word: &str) -> Vec<Child> {
        const AT_ONCE: usize = 20;

        let mut children: Vec<Child> = Vec::new();
        while children.len() < count {
            let ready = children.len();
            children.extend((ready..count.min(ready + AT_ONCE)).map(|_| Child::start(role, url, key)));
            for child in &mut children[ready..] {
                child.expect(word);
            }
        }
        children
    }

    /// Sends an order. A child that is gone shows in its answers.
    pub(crate) fn tell(&mut self, order: impl Display) {
        let _ = writeln!(self.orders, "{order}");
    }

    /// Waits for a line of these words.
    pub(crate) fn expect(&mut self, words: &str) {
        assert_eq!(self.line(), words);
    }

    /// Waits for a line of so many numbers.
    pub(crate) fn numbers<const N: usize>(&mut self) -> [u64; N] {
        self.try_numbers().unwrap_or_else(|line| panic!("{N} numbers, not {line:?}"))
    }

    /// Waits for a line of so many numbers; the line, where it is another one.
    pub(crate) fn try_numbers<const N: usize>(&mut self) -> Result<[u64; N], String> {
        let line = self.line();
        let numbers: Vec<u64> = line.split(' ').flat_map(str::parse).collect();
        numbers.try_into().map_err(|_| line)
    }

    /// Tells a child that takes turns to begin.
    pub(crate) fn begin_turns(&mut self, threads: usize, span: Duration, hold: Duration) {
        self.tell(format_args!("{threads} {} {}", nanos(span), nanos(hold)));
    }

    /// What came of its turns. A child that is gone counts as one turn that failed.
    pub(crate) fn tally(&mut self, span: Duration) -> Tally {
        let numbers = self.try_numbers::<6>().unwrap_or_else(|line| {
            eprintln!("waiting: process {} said {line:?} in place of what it did", self.process.id());
            [0, 0, 0, 0, 1, 0]
        });
        let [turns, waited, longest, cpu, failed, overlapped] = numbers;
        let [waited, longest, cpu] = [waited, longest, cpu].map(Duration::from_nanos);
        Tally { turns, span, waited, longest, cpu, failed, overlapped }
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
    thread::spawn(|| {
        thread::sleep(LIFETIME);
        process::exit(1);
    });
    match role.as_str() {
        "told by hand" => by_hand(url, key),
        "by hand turns" => turns(|| Polling::open(url, key, Kind::Pooled)),
        "by hand, bare turns" => turns(|| Polling::open(url, key, Kind::Bare)),
        "by hand once" => once(&mut Polling::open(url, key, Kind::Pooled)),
        "busy" => busy(),
        _ => {
            let locks = &LockManager::connect(url).expect("a Redis of our own");
            match role.as_str() {
                "waiter" => waiter(locks, key),
                "holder" => holder(locks, key),
                "relatch turns" => turns(|| Relatch { locks, key }),
                "relatch once" => once(&mut Relatch { locks, key }),
                other => panic!("no role {other:?}"),
            }
        }
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

/// The least that a waiter can be that Redis wakes: one thread, which hears of the release on one
/// connection, and sends its `SET` on the other.
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

/// Takes turns with others, once for each order.
fn turns<T: Taker>(open: impl Fn() -> T) {
    let mut takers = vec![open()];
    answer("ready");
    while let Some(order) = order() {
        let numbers: Vec<u64> = order.split(' ').flat_map(str::parse).collect();
        let [threads, span, hold] = numbers[..] else { panic!("no order: {order:?}") };
        takers.resize_with(usize::try_from(threads).expect("a few threads"), &open);
        let tally = take_turns_for(&mut takers, Duration::from_nanos(span), Duration::from_nanos(hold));
        let [waited, longest, cpu] = [tally.waited, tally.longest, tally.cpu].map(nanos);
        answer(format!("{} {waited} {longest} {cpu} {} {}", tally.turns, tally.failed, tally.overlapped));
    }
}

/// Keeps a core busy until the parent is gone.
fn busy() {
    answer("busy");
    thread::spawn(|| {
        order();
        process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}

/// Holds as many keys as it is told, until the next order. Nothing is renewed meanwhile.
fn holder(locks: &LockManager, keys: &str) {
    let count: u32 = order().and_then(|order| order.parse().ok()).expect("a number");
    let hold = |n| {
        let lock = locks.named(format!("{keys}:{n}")).lease(Duration::from_secs(60)).renew(false);
        lock.lock().expect("locks")
    };
    let guards: Vec<_> = (0..count).map(hold).collect();
    answer("held");
    order();
    drop(guards);
}

/// Takes the lock, has it for a millisecond, and ends; says when it had it and when it gave it
/// back.
fn once(taker: &mut impl Taker) {
    answer("waiting");
    let (mut had, mut gave_back) = (Duration::ZERO, Duration::ZERO);
    let turn = taker.turn(&mut || {
        had = now();
        thread::sleep(Duration::from_millis(1));
        gave_back = now();
    });
    match turn {
        Ok(()) => answer(format!("{} {}", nanos(had), nanos(gave_back))),
        Err(error) => answer(error.replace('\n', " ")),
    }
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
