//! Processes that take part in a benchmark: each runs this program again, in a role. They get
//! orders and send answers as lines on pipes.

use std::fmt::Display;
use std::process;
use std::thread;
use std::time::Duration;

use relatch::LockManager;
use relatch_rig::{Process, now, role};

use super::turns::{Kind, Polling, Relatch, Taker, Tally, take_turns_for};

/// How long a child lives at most, even if it hangs. Its parent then reads the end of its answers.
const LIFETIME: Duration = Duration::from_secs(240);

/// A child, as its parent sees it. Dropping this kills the child.
pub(crate) struct Child(Process);

impl Child {
    /// Starts a child with a role, the URL of the server, and the key (or the prefix of its keys).
    pub(crate) fn start(role: &str, url: &str, key: &str) -> Child {
        let mut command = role::command(role, &[("url", url), ("key", key)]);
        Child(Process::start(&mut command).expect("starts itself"))
    }

    /// Starts `count` children, a few at a time, and waits until each has given this first answer.
    pub(crate) fn start_all(
        count: usize,
        role: &str,
        url: &str,
        key: &str,
        answer: &str,
    ) -> Vec<Child> {
        const AT_ONCE: usize = 20;

        let mut children: Vec<Child> = Vec::new();
        while children.len() < count {
            let ready = children.len();
            children
                .extend((ready..count.min(ready + AT_ONCE)).map(|_| Child::start(role, url, key)));
            for child in &mut children[ready..] {
                child.expect(answer);
            }
        }
        children
    }

    /// Sends an order. If the child is gone, the missing answer shows it.
    pub(crate) fn tell(&mut self, order: impl Display) {
        let _ = self.0.send(&order.to_string());
    }

    /// Waits for this answer.
    pub(crate) fn expect(&mut self, answer: &str) {
        assert_eq!(self.line(), answer);
    }

    /// Waits for an answer of `N` numbers.
    pub(crate) fn numbers<const N: usize>(&mut self) -> [u64; N] {
        self.try_numbers()
            .unwrap_or_else(|line| panic!("{N} numbers, not {line:?}"))
    }

    /// Waits for an answer of `N` numbers. If the answer is something else, returns it as the
    /// error.
    pub(crate) fn try_numbers<const N: usize>(&mut self) -> Result<[u64; N], String> {
        let line = self.line();
        let numbers: Vec<u64> = line.split(' ').flat_map(str::parse).collect();
        numbers.try_into().map_err(|_| line)
    }

    /// Tells a child that takes turns to begin.
    pub(crate) fn begin_turns(&mut self, threads: usize, span: Duration, hold: Duration) {
        self.tell(format_args!("{threads} {} {}", nanos(span), nanos(hold)));
    }

    /// The result of the child's turns. A child that has ended counts as one turn that failed.
    pub(crate) fn tally(&mut self, span: Duration) -> Tally {
        let numbers = self.try_numbers::<6>().unwrap_or_else(|line| {
            eprintln!(
                "waiting: process {} said {line:?} in place of what it did",
                self.0.pid()
            );
            [0, 0, 0, 0, 1, 0]
        });
        let [turns, waited, longest, cpu, failed, overlapped] = numbers;
        let [waited, longest, cpu] = [waited, longest, cpu].map(Duration::from_nanos);
        Tally {
            turns,
            span,
            waited,
            longest,
            cpu,
            failed,
            overlapped,
        }
    }

    /// The next answer. Empty if the child has ended.
    fn line(&mut self) -> String {
        self.0.next_report().unwrap_or_default()
    }
}

/// Plays the role of this process. False if it has none.
pub(crate) fn play() -> bool {
    let Some(role) = role::name() else {
        return false;
    };
    let (url, key) = (&*role::arg("url"), &*role::arg("key"));
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
                "3 slots turns" => turns(|| locks.slots(key, 3)),
                "10 slots turns" => turns(|| locks.slots(key, 10)),
                "relatch once" => once(&mut Relatch { locks, key }),
                other => panic!("no role {other:?}"),
            }
        }
    }
    true
}

/// Takes the lock at each order, and answers with the time at which it took the lock.
fn waiter(locks: &LockManager, key: &str) {
    while role::next_line().is_some() {
        role::report("waiting");
        let guard = locks.lock(key).expect("locks");
        let had = now();
        drop(guard);
        role::report(nanos(had));
    }
}

/// The simplest waiter that Redis can wake: one thread, which receives the invalidation on one
/// connection and sends its `SET` on another.
fn by_hand(url: &str, key: &str) {
    let client = redis::Client::open(url).expect("a URL");
    let [mut listener, mut connection] =
        [(); 2].map(|()| client.get_connection().expect("connects"));
    let id: u64 = redis::cmd("CLIENT")
        .arg("ID")
        .query(&mut listener)
        .expect("answers");
    let mut listener = listener.as_pubsub();
    listener
        .subscribe("__redis__:invalidate")
        .expect("subscribes");
    let mut send = |args: &[&str]| -> redis::Value {
        redis::cmd(args[0])
            .arg(&args[1..])
            .query(&mut connection)
            .expect("answers")
    };
    send(&[
        "CLIENT",
        "TRACKING",
        "ON",
        "REDIRECT",
        &id.to_string(),
        "NOLOOP",
    ]);
    while role::next_line().is_some() {
        send(&["GET", key]);
        role::report("waiting");
        listener.get_message().expect("an invalidation");
        assert_eq!(
            send(&["SET", key, "token", "NX", "PX", "30000"]),
            redis::Value::Okay
        );
        role::report(nanos(now()));
        send(&["DEL", key]);
        role::report("given back");
    }
}

/// Takes turns with others, once for each order.
fn turns<T: Taker>(open: impl Fn() -> T) {
    let mut takers = vec![open()];
    role::report("ready");
    while let Some(order) = role::next_line() {
        let numbers: Vec<u64> = order.split(' ').flat_map(str::parse).collect();
        let [threads, span, hold] = numbers[..] else {
            panic!("no order: {order:?}")
        };
        takers.resize_with(usize::try_from(threads).expect("a few threads"), &open);
        let tally = take_turns_for(
            &mut takers,
            Duration::from_nanos(span),
            Duration::from_nanos(hold),
        );
        let [waited, longest, cpu] = [tally.waited, tally.longest, tally.cpu].map(nanos);
        role::report(format!(
            "{} {waited} {longest} {cpu} {} {}",
            tally.turns, tally.failed, tally.overlapped
        ));
    }
}

/// Keeps a core busy until the parent has ended.
fn busy() {
    role::report("busy");
    thread::spawn(|| {
        role::next_line();
        process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}

/// Holds as many keys as the first order says, until the next order. Nothing is renewed meanwhile.
fn holder(locks: &LockManager, keys: &str) {
    let count: u32 = role::next_line()
        .and_then(|order| order.parse().ok())
        .expect("a number");
    let hold = |n| {
        let lock = locks
            .named(format!("{keys}:{n}"))
            .lease(Duration::from_secs(60))
            .renew(false);
        lock.lock().expect("locks")
    };
    let guards: Vec<_> = (0..count).map(hold).collect();
    role::report("held");
    role::next_line();
    drop(guards);
}

/// Takes the lock, holds it for a millisecond, and answers with the times at which it took and
/// released the lock. Then it waits for the end of its input.
fn once(taker: &mut impl Taker) {
    role::report("waiting");
    let (mut had, mut gave_back) = (Duration::ZERO, Duration::ZERO);
    let turn = taker.turn(&mut || {
        had = now();
        thread::sleep(Duration::from_millis(1));
        gave_back = now();
    });
    match turn {
        Ok(()) => role::report(format!("{} {}", nanos(had), nanos(gave_back))),
        Err(error) => role::report(error.replace('\n', " ")),
    }
    role::next_line(); // Only then is the manager dropped, so this is not measured.
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("less than five hundred years")
}
