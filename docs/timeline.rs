//! Three processes, one lock: who waits, who holds it, and a loss, drawn as a picture (SVG).
//!
//! Draws the picture beside it: `bash examples/run.sh timeline > docs/timeline.svg`. It takes some
//! seven seconds.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, pipe};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, UNIX_EPOCH};

use relatch::LockManager;

const KEY: &str = "report";
const LEASE: Duration = Duration::from_millis(1500);
const A_MOMENT: Duration = Duration::from_millis(10);

/// What a process does, or what the key in Redis says, and from when on.
struct Event {
    at: u64,
    who: String,
    what: String,
}

type Failed = Box<dyn Error>;

fn main() -> Result<(), Failed> {
    let url = env::var("REDIS_URL").map_err(|_| "set REDIS_URL to the URL of a Redis")?;
    let locks = LockManager::builder(&url).lease(LEASE).build()?;
    if let Some(name) = env::args().nth(1) {
        return work(&locks, &name);
    }
    let events = play(&locks)?;
    println!("{}", picture(&events)?);
    Ok(())
}

/// What each process does with the lock.
fn work(locks: &LockManager, name: &str) -> Result<(), Failed> {
    tell(name, "waits");
    let is_done = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| tell_renewals(locks, name, &is_done));
        let result = locks.with_lock(KEY, || {
            tell(name, "holds");
            if name == "A" {
                sleep(Duration::from_millis(700));
                step(locks, name);
                sleep(Duration::from_millis(700));
            } else {
                sleep(Duration::from_millis(1400));
            }
        });
        is_done.store(true, Ordering::Relaxed);
        result
    });
    match result {
        Ok(()) => tell(name, "done"),
        Err(error) if error.is_lost() => tell(name, "lost"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// A function that locks, called by one that has the lock: the same thread takes it again.
fn step(locks: &LockManager, name: &str) {
    let again = locks.with_lock(KEY, || {
        tell(name, "again");
        sleep(Duration::from_millis(800));
    });
    tell(name, if again.is_ok() { "holds" } else { "lost" });
}

/// Says when the manager has renewed the lease.
fn tell_renewals(locks: &LockManager, name: &str, is_done: &AtomicBool) {
    let mut seen = 0;
    while !is_done.load(Ordering::Relaxed) {
        let renewals = locks.held().first().map_or(0, |held| held.renewals);
        if renewals > seen {
            tell(name, "renewed");
        }
        seen = renewals;
        sleep(A_MOMENT);
    }
}

fn tell(who: &str, what: &str) {
    println!("{} {who} {what}", now());
}

/// Milliseconds on a clock that all processes share.
fn now() -> u64 {
    UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0))
}

/// Starts the three processes, and stops the second one for longer than its lease.
fn play(locks: &LockManager) -> Result<Vec<Event>, Failed> {
    let (reader, writer) = pipe()?;
    let events = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| collect(reader, &events));
        scope.spawn(|| watch_key(locks, &events, &is_over));
        let played = start_all(writer, &events);
        is_over.store(true, Ordering::Relaxed);
        played
    })?;
    let mut events = events.into_inner()?;
    events.sort_by_key(|event| event.at);
    Ok(events)
}

fn start_all(writer: PipeWriter, events: &Mutex<Vec<Event>>) -> Result<(), Failed> {
    let wait_for = |who: &str, what: &str| -> Result<(), Failed> {
        for _ in 0..2000 {
            let has_come = |event: &Event| event.who == who && event.what == what;
            if events.lock().is_ok_and(|all| all.iter().any(has_come)) {
                return Ok(());
            }
            sleep(A_MOMENT);
        }
        Err(format!("{who} never said {what:?}").into())
    };
    let mut first = start("A", writer.try_clone()?)?;
    wait_for("A", "holds")?;
    let mut second = start("B", writer.try_clone()?)?;
    wait_for("B", "holds")?;
    let mut third = start("C", writer)?;
    sleep(Duration::from_millis(700));
    signal(&second, "-STOP")?;
    note(events, "B", "paused");
    wait_for("C", "holds")?;
    sleep(Duration::from_millis(600));
    note(events, "B", "awake");
    signal(&second, "-CONT")?;
    for child in [&mut first, &mut second, &mut third] {
        if !child.wait()?.success() {
            return Err("a process failed".into());
        }
    }
    Ok(())
}

fn start(name: &str, output: PipeWriter) -> Result<Child, Failed> {
    let program = env::current_exe()?;
    Ok(Command::new(program).arg(name).stdout(output).spawn()?)
}

fn signal(child: &Child, signal: &str) -> Result<(), Failed> {
    let pid = child.id().to_string();
    Command::new("kill").args([signal, &pid]).status()?;
    Ok(())
}

fn note(events: &Mutex<Vec<Event>>, who: &str, what: &str) {
    if let Ok(mut events) = events.lock() {
        let [who, what] = [who, what].map(str::to_owned);
        events.push(Event {
            at: now(),
            who,
            what,
        });
    }
}

/// Reads what the processes tell.
fn collect(reader: PipeReader, events: &Mutex<Vec<Event>>) {
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        let mut words = line.splitn(3, ' ');
        let at = words.next().and_then(|word| word.parse().ok());
        if let (Some(at), Some(who), Some(what)) = (at, words.next(), words.next())
            && let Ok(mut events) = events.lock()
        {
            let [who, what] = [who, what].map(str::to_owned);
            events.push(Event { at, who, what });
        }
    }
}

/// Asks Redis whose token the key has.
fn watch_key(locks: &LockManager, events: &Mutex<Vec<Event>>, is_over: &AtomicBool) {
    let mut before = String::new();
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(holder) = locks.named(KEY).holder() {
            let token = holder.map_or(String::new(), |holder| holder.raw);
            if token != before {
                note(events, "Redis", &token);
            }
            before = token;
        }
        sleep(A_MOMENT);
    }
}

const LEFT: u64 = 86;
const WIDTH: u64 = 630;
const LANE: u64 = 58;
const LANES: [&str; 4] = ["A", "B", "C", "Redis"];
const HEIGHT: u64 = LANE * 4 + 40;

/// Draws the events.
fn picture(events: &[Event]) -> Result<String, Failed> {
    let start = events.first().ok_or("nothing has happened")?.at;
    let end = events.last().ok_or("nothing has happened")?.at;
    let x = |at: u64| LEFT + (at - start) * WIDTH / (end - start).max(1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        LEFT + WIDTH + 44
    );
    for (lane, who) in LANES.iter().enumerate() {
        let y = 10 + LANE * lane as u64;
        let title = if *who == "Redis" {
            "key in Redis".to_owned()
        } else {
            format!("process {who}")
        };
        writeln!(
            svg,
            "<text x=\"10\" y=\"{}\" fill=\"#555\">{title}</text>",
            y + 22
        )?;
        let own: Vec<_> = events.iter().filter(|event| event.who == *who).collect();
        draw_lane(&mut svg, &own, y, &x, end)?;
    }
    draw_axis(&mut svg, (end - start) / 1000, &|second| {
        x(start + second * 1000)
    })?;
    svg.push_str("</svg>");
    Ok(svg)
}

/// Draws what one process did. What is no state, but a moment, becomes a mark.
fn draw_lane(
    svg: &mut String,
    events: &[&Event],
    y: u64,
    x: &dyn Fn(u64) -> u64,
    end: u64,
) -> Result<(), Failed> {
    let states: Vec<_> = events
        .iter()
        .filter(|event| event.what != "renewed")
        .collect();
    for (number, event) in states.iter().enumerate() {
        let until = states.get(number + 1).map_or(end, |next| next.at);
        let (from, to) = (x(event.at), x(until));
        let (color, text) = look(event, &states[..number]);
        if event.what == "done" || event.what == "lost" || event.what.is_empty() {
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" fill=\"{color}\">{text}</text>",
                from + 5,
                y + 22
            )?;
            continue;
        }
        writeln!(
            svg,
            "<rect x=\"{from}\" y=\"{y}\" width=\"{}\" height=\"34\" fill=\"{color}\"/>\n\
             <text x=\"{}\" y=\"{}\" fill=\"#222\">{text}</text>",
            (to - from).max(1),
            from + 5,
            y + 22
        )?;
    }
    for event in events.iter().filter(|event| event.what == "renewed") {
        let at = x(event.at);
        writeln!(
            svg,
            "<path d=\"M{at} {} v6\" stroke=\"#222\" stroke-width=\"2\"/>",
            y + 34
        )?;
    }
    Ok(())
}

/// The color of a state, and its name.
fn look(event: &Event, before: &[&&Event]) -> (&'static str, String) {
    let (color, text) = match event.what.as_str() {
        "waits" => ("#eee", "waits"),
        "holds" if before.iter().any(|event| event.what == "again") => ("#9fd3a8", ""),
        "holds" => ("#9fd3a8", "holds it"),
        "again" => ("#5fb06f", "takes it again"),
        "paused" => ("#ccc", "paused for longer than its lease"),
        "awake" => ("#f4c2c2", ""),
        "lost" => ("#b00020", "told: lost"),
        "done" => ("#555", "done"),
        "" => ("#555", "free"),
        // Without its nonce.
        token => (
            "#cfe2f3",
            token.rsplit_once('-').map_or(token, |(owner, _)| owner),
        ),
    };
    (color, text.to_owned())
}

fn draw_axis(svg: &mut String, seconds: u64, x: &dyn Fn(u64) -> u64) -> Result<(), Failed> {
    let y = HEIGHT - 22;
    writeln!(
        svg,
        "<path d=\"M{} {y} V10\" stroke=\"#ddd\"/>\
         <text x=\"10\" y=\"{}\" fill=\"#555\">seconds</text>\n\
         <path d=\"M{} {} v6\" stroke=\"#222\" stroke-width=\"2\"/>\
         <text x=\"{}\" y=\"{}\" fill=\"#555\">lease renewed</text>",
        x(0),
        y + 14,
        LEFT + WIDTH - 60,
        20,
        LEFT + WIDTH - 54,
        27
    )?;
    for second in 0..=seconds {
        let at = x(second);
        writeln!(
            svg,
            "<path d=\"M{at} {y} v-4\" stroke=\"#555\"/><text x=\"{at}\" y=\"{}\" fill=\"#555\">{second}</text>",
            y + 14
        )?;
    }
    Ok(())
}
