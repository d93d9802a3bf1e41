//! Eight threads work under locks, with metrics on a port, while Redis is killed and comes back.
//!
//! Run it with `bash examples/run.sh worker`, or `cargo run --example worker` if redis-server is
//! installed. It starts a Redis of its own, whatever `REDIS_URL` says, and ends by itself after ten
//! seconds.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use log::{LevelFilter, Log, Metadata, Record};
use relatch::LockManager;
use relatch_rig::Server;

mod support;

const THREADS: usize = 8;

/// Fewer locks than threads, so that some threads wait.
const LOCKS: [&str; 4] = ["stock:1", "stock:2", "stock:3", "stock:4"];

const A_JOB: Duration = Duration::from_millis(10);
const KILLED_AFTER: Duration = Duration::from_secs(3);
const OUTAGE: Duration = Duration::from_secs(3);
const ENDS_AFTER: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: worker [port]

Eight threads work under locks for ten seconds. Their Redis is killed after three seconds and comes
back three seconds later. Metrics: http://127.0.0.1:<port>/metrics (0, the default: any free port)";

/// What the threads have done, and whether they go on.
#[derive(Default)]
struct Work {
    done: AtomicU64,
    failed: AtomicU64,
    is_over: AtomicBool,
}

/// Prints the warnings of what lasts long.
struct SlowLog;

fn main() -> Result<(), Box<dyn Error>> {
    let port = match std::env::args().nth(1).as_deref() {
        Some("-h" | "--help") => {
            println!("{USAGE}");
            return Ok(());
        }
        Some(port) => port
            .parse()
            .map_err(|error| format!("port {port:?}: {error}\n\n{USAGE}"))?,
        None => 0,
    };
    log::set_logger(&SlowLog).map_err(|error| error.to_string())?;
    log::set_max_level(LevelFilter::Warn);
    support::check_installed()?;
    let server = Server::without_files();
    let locks = LockManager::builder(&server.bare_url())
        .response_timeout(Duration::from_millis(500))
        .tolerate_outage(Duration::from_secs(1))
        .warn_after(Duration::from_secs(1), Duration::from_secs(1))
        .build()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let port = listener.local_addr()?.port();
    println!("metrics: http://127.0.0.1:{port}/metrics\n");

    let work = Work::default();
    let (before, after) = thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &locks, &work));
        for thread in 0..THREADS {
            let (locks, work) = (&locks, &work);
            scope.spawn(move || run_jobs(locks, work, thread));
        }
        let outcome = watch(&server, &locks, &work, port);
        work.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that serves, which waits for a connection.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
        outcome
    })?;
    println!(
        "\n{THREADS} threads did {before} jobs before the outage, and {} after it.",
        after - before
    );
    if after == before {
        Err("no thread got a lock after the outage".into())
    } else {
        Ok(())
    }
}

/// One thread's jobs. A job that fails is done again later: it is the next of its kind.
fn run_jobs(locks: &LockManager, work: &Work, thread: usize) {
    let names = LOCKS.iter().cycle().skip(thread);
    for name in names.take_while(|_| !work.is_over.load(Ordering::Relaxed)) {
        // With the feature `metrics`, or with a logger, this needs nothing else to be seen.
        if locks.with_lock(name, || sleep(A_JOB)).is_ok() {
            work.done.fetch_add(1, Ordering::Relaxed);
        } else {
            work.failed.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(100));
        }
    }
}

/// Kills Redis and starts it again, and prints a line every half second. Returns how many locks had
/// been taken when Redis came back and at the end, as the metrics say.
fn watch(
    server: &Server,
    locks: &LockManager,
    work: &Work,
    port: u16,
) -> Result<(u64, u64), io::Error> {
    let start = Instant::now();
    let (mut killed, mut before) = (false, None);
    println!(
        "{:>6} {:>6} {:>6} {:>7} {:>4} {:>11}",
        "s", "done", "failed", "waiting", "held", "unavailable"
    );
    while start.elapsed() < ENDS_AFTER {
        sleep(Duration::from_millis(500));
        if !killed && start.elapsed() >= KILLED_AFTER {
            server.kill();
            killed = true;
            println!("       Redis is killed");
        } else if killed && before.is_none() && start.elapsed() >= KILLED_AFTER + OUTAGE {
            before = Some(acquired(&fetch(port)?)?);
            server.restart();
            println!("       Redis is back");
        }
        let stats = locks.stats();
        let [done, failed] = [&work.done, &work.failed].map(|count| count.load(Ordering::Relaxed));
        let (waiting, held, unavailable) = (stats.waiting, stats.held, stats.unavailable);
        let seconds = start.elapsed().as_secs_f64();
        println!("{seconds:>6.1} {done:>6} {failed:>6} {waiting:>7} {held:>4} {unavailable:>11}");
    }
    let text = fetch(port)?;
    println!("\nA part of /metrics after the outage:\n");
    let is_shown = |line: &&str| !line.starts_with('#') && !line.contains("_bucket");
    text.lines()
        .filter(is_shown)
        .for_each(|line| println!("  {line}"));
    Ok((before.unwrap_or_default(), acquired(&text)?))
}

/// Answers every request with the statistics.
fn serve(listener: &TcpListener, locks: &LockManager, work: &Work) {
    for client in listener.incoming() {
        if work.is_over.load(Ordering::Relaxed) {
            return;
        }
        // A client that goes away, or sends nothing, does not end the service.
        let _ = client.and_then(|client| answer(client, &locks.stats().prometheus()));
    }
}

fn answer(mut client: TcpStream, text: &str) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut head = BufReader::new(client.try_clone()?.take(8192)).lines();
    while head
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let length = text.len();
    write!(
        client,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
}

/// What a monitoring system does.
fn fetch(port: u16) -> io::Result<String> {
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    let body = answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned());
    body.ok_or_else(|| io::Error::other("an answer without a body"))
}

/// How many locks were taken, in the text for Prometheus.
fn acquired(text: &str) -> io::Result<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("relatch_acquired_total "));
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| io::Error::other("the metric is missing"))
}

impl Log for SlowLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "relatch::slow"
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            println!("       {}", record.args());
        }
    }

    fn flush(&self) {}
}
