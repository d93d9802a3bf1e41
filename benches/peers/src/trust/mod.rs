//! The same faults for relatch and for other locks, and a judge who only sees who was inside when,
//! and what the locks said. `docs/trust.md` says how to read the result.

mod history;
mod judge;
mod report;
mod slot;
mod weather;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rand::SeedableRng;
use rand::rngs::StdRng;
use relatch_rig::{Proxy, Server};

use self::history::History;
use self::judge::{Verdict, judge};
use self::slot::{Slot, Work};
use self::weather::{Scene, Weather};
use crate::languages::Program;
use crate::peer::Peer;
use crate::worker::now;

/// The lease of all locks: the shortest of python-redis-lock.
const LEASE_MS: u32 = 1000;

/// How long a lock call may wait.
const WAIT_MS: u32 = 2000;

/// After each step of its work, a worker asks whether it still has the lock.
const STEP_MS: u32 = 5;

const WORKERS: usize = 4;

const KEYS: usize = 2;

/// Runs each lock through each kind of fault, and writes trust.csv.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long faults happen to each lock in each weather.
    #[arg(long, default_value_t = 6)]
    seconds: u64,

    /// Decides which faults happen, and what the workers do.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Only these, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,

    /// Only these, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    weathers: Vec<Weather>,

    /// How many locks are tried at a time, each on a server of its own.
    #[arg(long, default_value_t = 3)]
    lanes: usize,

    /// The folder for trust.csv [default: docs/benchmarks of the repository].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// One lock in one weather.
type Cell = (Weather, Peer);

pub(crate) fn run(options: &Options) -> Result<()> {
    let began = Instant::now();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
    ensure!(
        options.peers.iter().all(|it| it.slots() == 1),
        "the judge only knows locks that one holder has alone"
    );
    let wanted = |it: &Peer| {
        let named = options.peers.is_empty() || options.peers.contains(it);
        it.is_lock() && it.slots() == 1 && named
    };
    let mut peers: Vec<Peer> = Peer::value_variants()
        .iter()
        .copied()
        .filter(wanted)
        .collect();
    let (programs, versions) = crate::build(&mut peers);
    let weathers = Weather::value_variants().iter().copied();
    let weathers =
        weathers.filter(|it| options.weathers.is_empty() || options.weathers.contains(it));
    let mut left: Vec<Cell> = weathers
        .flat_map(|weather| peers.iter().map(move |&peer| (weather, peer)))
        .collect();
    left.reverse();
    let histories = beside.join("target/histories");
    let _ = fs::remove_dir_all(&histories);
    fs::create_dir_all(&histories)?;
    let (left, done) = (Mutex::new(left), Mutex::new(BTreeMap::new()));
    let lane = || -> Result<()> {
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((weather, peer)) = next else {
                return Ok(());
            };
            let program = programs
                .get(&peer.language())
                .context("there is no program for it")?;
            let history = play(program, peer, weather, options)?;
            write(&history, &histories.join(name(weather, peer)))?;
            let verdict = judge(&history, u64::from(LEASE_MS) * 1_000_000);
            eprintln!("{} {weather:?}: {}", peer.title(), report::brief(&verdict));
            done.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert((weather, peer), verdict);
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..options.lanes).map(|_| scope.spawn(lane)).collect();
        let ends = lanes
            .into_iter()
            .map(|it| it.join().ok().context("a lane panicked")?);
        ends.collect::<Result<()>>()
    })?;
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut versions = versions;
    versions.push(("Porcupine", porcupine(&histories, &done)));
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| beside.join("../../docs/benchmarks"));
    report::write(&out, &done, options, &versions, began.elapsed())
}

fn name(weather: Weather, peer: Peer) -> String {
    let weather = weather.to_possible_value();
    let weather = weather.as_ref().map_or("", |it| it.get_name());
    format!("{weather}.{}.jsonl", peer.argument())
}

/// Compares Porcupine's verdict on each history with that of the judge.
fn porcupine(histories: &Path, done: &BTreeMap<Cell, Verdict>) -> String {
    let said = match crate::languages::porcupine(histories) {
        Ok(said) => said,
        Err(why) => return format!("left out ({why:#})"),
    };
    let expected = |(&(weather, peer), verdict): (&Cell, &Verdict)| {
        let word = if verdict.trusted.count == 0 {
            "Ok"
        } else {
            "Illegal"
        };
        format!("{} {word}", name(weather, peer))
    };
    let agrees = |line: &String| said.lines().any(|it| it == line);
    let agreed = done.iter().map(expected).filter(agrees).count();
    format!("the same verdict on {agreed} of {} histories", done.len())
}

/// Lets the weather rage while workers take locks.
fn play(program: &Program, peer: Peer, weather: Weather, options: &Options) -> Result<History> {
    let server = Server::without_files();
    let proxy = Proxy::start(server.port());
    let keys: Vec<String> = (0..KEYS).map(|it| format!("trust:{it}")).collect();
    let slots: Vec<Slot> = (0..WORKERS).map(|_| Slot::default()).collect();
    let over = AtomicBool::new(false);
    let url = proxy.bare_url();
    let work = Work {
        program,
        peer,
        url: &url,
        keys: &keys,
        weather,
        over: &over,
        seed: options.seed << 8,
    };
    let workers = each(&slots, |slot| slot.start(work))?;
    let mut scene = Scene {
        server: &server,
        proxy: &proxy,
        slots: &slots,
        keys: &keys,
        faults: Vec::new(),
    };
    let (struck, ended) = thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .zip(&slots)
            .enumerate()
            .map(|(number, (worker, slot))| scope.spawn(move || slot.work(number, worker, work)))
            .collect();
        let end = Instant::now() + Duration::from_secs(options.seconds);
        let mut rng = StdRng::seed_from_u64(options.seed);
        let mut struck = Ok(());
        while struck.is_ok() && Instant::now() < end {
            struck = weather.strike(&mut scene, &mut rng);
        }
        proxy.clear();
        over.store(true, Ordering::SeqCst);
        let ended: Vec<_> = running.into_iter().map(|it| it.join().ok()).collect();
        (struck, ended)
    });
    struck?;
    let end = now();
    let ended = ended.into_iter().map(|it| it.context("a thread panicked")?);
    let (turns, _workers): (Vec<_>, Vec<_>) =
        ended.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    // Leases end by themselves. What is there after that, somebody renews.
    thread::sleep(Duration::from_millis(u64::from(LEASE_MS) + 1500));
    let names: Vec<String> = keys.iter().flat_map(|it| names_of(it)).collect();
    let names = names.iter().map(String::as_str);
    let exist: Vec<&str> = ["EXISTS"].into_iter().chain(names).collect();
    Ok(History {
        turns: turns.into_iter().flatten().collect(),
        faults: scene.faults,
        stuck: server.query(&exist),
        end,
    })
}

/// What the libraries make of a key.
fn names_of(key: &str) -> [String; 3] {
    [
        key.to_owned(),
        format!("lock:{key}"),
        format!("rueidislock:0:{key}"),
    ]
}

/// Does the same with all slots at a time.
fn each<T: Send>(slots: &[Slot], action: impl Fn(&Slot) -> Result<T> + Sync) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let action = &action;
        let running: Vec<_> = slots
            .iter()
            .map(|slot| scope.spawn(move || action(slot)))
            .collect();
        let ends = running.into_iter();
        ends.map(|it| it.join().ok().context("a thread panicked")?)
            .collect()
    })
}

/// Writes a line for each turn and each fault.
fn write(history: &History, path: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let lease = u64::from(LEASE_MS) * 1_000_000;
    for turn in &history.turns {
        let trusted = turn.has.map(|_| judge::trusted_until(turn, lease));
        let trusted = trusted.filter(|it| turn.has < Some(*it));
        let line = serde_json::json!({ "turn": turn, "trusted": trusted });
        writeln!(file, "{line}")?;
    }
    for fault in &history.faults {
        writeln!(file, "{}", serde_json::json!({ "fault": fault }))?;
    }
    Ok(file.flush()?)
}
