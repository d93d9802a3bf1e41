//! A server that replies as Redis does, except to one command, to which it lies.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use std::{panic, thread};

use parking_lot::Mutex;
use relatch::{Builder, LockGuard, LockManager};
use relatch_rig::{CLAIM, FakeServer, LONG, Reply, as_set, by_hash, claim_hash, eventually};

use crate::support::garbage_replies::SUBSCRIBED;

/// How long the managers here wait for a connection, and for an answer, unless a test says
/// otherwise.
pub(crate) const ANSWER: Duration = Duration::from_millis(50);

/// The token of a lock that another holder has.
const THEIRS: &str = "elsewhere-1-2-00112233445566778899aabbccddeeff";

/// A server that replies as Redis does, except to one command.
pub(crate) struct LyingServer {
    fake: FakeServer,
    lie: Arc<Mutex<Option<(&'static str, Reply)>>>,
    /// How often it has lied.
    lies: Arc<AtomicUsize>,
    /// Whether another holder has the lock.
    pub(crate) busy: Arc<AtomicBool>,
    /// How long the managers here wait for a connection, and for an answer.
    pub(crate) answer: Duration,
}

impl LyingServer {
    pub(crate) fn new() -> LyingServer {
        LyingServer::waiting(ANSWER)
    }

    /// `answer` is both the connect timeout and the response timeout of its managers.
    pub(crate) fn waiting(answer: Duration) -> LyingServer {
        watch_threads();
        let lie = Arc::<Mutex<Option<(&'static str, Reply)>>>::default();
        let (lies, busy) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (liar, count, taken) = (Arc::clone(&lie), Arc::clone(&lies), Arc::clone(&busy));
        let stands = Mutex::new(String::new());
        let fake = FakeServer::start(move |args| {
            // A waiter's attempt is a script. A test may name it as `EVALSHA` or as `SET`.
            let lines = [
                by_hash(args.to_vec()).join(" "),
                as_set(args.to_vec()).join(" "),
            ];
            let meant = |to: &str| {
                lines
                    .iter()
                    .any(|line| to.is_empty() == line.is_empty() && line.starts_with(to))
            };
            let lie = liar.lock().clone();
            match lie {
                Some((to, say)) if meant(to) => {
                    count.fetch_add(1, Ordering::SeqCst);
                    say
                }
                _ => Reply::Bytes(honest(
                    args,
                    taken.load(Ordering::SeqCst),
                    &mut stands.lock(),
                )),
            }
        });
        LyingServer {
            fake,
            lie,
            lies,
            busy,
            answer,
        }
    }

    pub(crate) fn lie(&self, to: &'static str, say: Reply) {
        *self.lie.lock() = Some((to, say));
    }

    pub(crate) fn be_honest(&self) {
        *self.lie.lock() = None;
    }

    pub(crate) fn lies(&self) -> usize {
        self.lies.load(Ordering::SeqCst)
    }

    pub(crate) fn builder(&self) -> Builder {
        let url = format!("redis://user:secret@{}/3", self.fake.address());
        let builder = LockManager::builder(&url).connect_timeout(self.answer);
        builder
            .response_timeout(self.answer)
            .tolerate_outage(self.answer)
    }

    pub(crate) fn locks(&self) -> LockManager {
        self.builder().build_lazily().expect("nothing is sent")
    }

    /// Takes the free lock `a`, and tries again if the machine was too slow.
    pub(crate) fn hold(&self, locks: &LockManager) -> LockGuard {
        self.be_honest();
        let mut held = None;
        eventually(LONG, "the lock is taken", || {
            held = locks.try_lock("a").ok().flatten();
            held.is_some()
        });
        held.expect("just taken")
    }
}

/// Executes a command on `stands`, the value of the only key, and returns what Redis would reply.
/// If `busy`, another holder has the lock.
fn honest(args: &[String], busy: bool, stands: &mut String) -> Vec<u8> {
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        _ if busy => THEIRS.clone_into(stands),
        ["SET", _, token, ..] => token.clone_into(stands),
        ["EVALSHA" | "EVAL", script, _, _, token, _] if claims(script) => token.clone_into(stands),
        ["EVALSHA" | "EVAL", _, _, _, _] => stands.clear(),
        _ => {}
    }
    let said = match args[..] {
        [] => "",
        ["PING"] => "+PONG\r\n",
        ["SET", ..] if busy => "$-1\r\n",
        ["EVALSHA" | "EVAL", script, ..] if claims(script) && busy => {
            return format!("*2\r\n${}\r\n{stands}\r\n:60000\r\n", stands.len()).into_bytes();
        }
        // The answer to a claim or a renewal is the token.
        ["EVALSHA" | "EVAL", _, _, _, token, _] => {
            return format!("${}\r\n{token}\r\n", token.len()).into_bytes();
        }
        // To look who has the lock.
        ["EVALSHA", _, _, _] if !stands.is_empty() => {
            return format!("*2\r\n${}\r\n{stands}\r\n:60000\r\n", stands.len()).into_bytes();
        }
        ["EVALSHA" | "EVAL", _, _, _] => "$-1\r\n",
        ["EVALSHA" | "EVAL", ..] => ":1\r\n",
        ["CLIENT", "ID"] => ":7\r\n",
        ["SUBSCRIBE", ..] => SUBSCRIBED,
        _ => "+OK\r\n",
    };
    said.as_bytes().to_vec()
}

fn claims(script: &str) -> bool {
    [CLAIM, claim_hash()].contains(&script)
}

/// How many panics there were on the crate's own threads. No test would notice them otherwise.
pub(crate) static PANICS: AtomicUsize = AtomicUsize::new(0);

fn watch_threads() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let name = thread::current().name().unwrap_or_default().to_owned();
            let ours = [
                "relatch-pool",
                "relatch-keeper",
                "relatch-renew",
                "relatch-listen",
            ];
            PANICS.fetch_add(
                usize::from(ours.iter().any(|it| name.starts_with(it))),
                Ordering::SeqCst,
            );
            before(info);
        }));
    });
}
