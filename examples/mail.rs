//! Workers in five processes share three connections to a mail server, by a semaphore.
//!
//! Run it: `bash examples/run.sh mail`
//! Copy it: `cargo add relatch --path ../relatch`

use std::env;
use std::error::Error;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use relatch::Builder;

/// How many the mail server accepts. The number is not in Redis: every worker has to use the same.
const CONNECTIONS: usize = 3;
const A_LETTER: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(worker) = env::args().nth(1) {
        return send_letters(&worker);
    }
    let start = Instant::now();
    let mut workers = Vec::new();
    for name in ["A", "B", "C", "D", "E"] {
        workers.push(Command::new(env::current_exe()?).arg(name).spawn()?);
    }
    for mut worker in workers {
        if !worker.wait()?.success() {
            return Err("a worker has failed".into());
        }
    }
    println!("15 letters, three at a time: {:.1?}", start.elapsed());
    Ok(())
}

fn send_letters(worker: &str) -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    let mail = locks
        .slots("mail", CONNECTIONS)
        .wait(Duration::from_secs(30));
    for letter in 1..=3 {
        mail.with_lock_result(|guard| {
            // No two holders have the same number, so it can stand for a thing that one may use.
            let connection = guard.slot().ok_or("not a slot")?;
            println!("{worker} sends letter {letter} over connection {connection}");
            sleep(A_LETTER);
            Ok::<_, Box<dyn Error>>(())
        })?;
    }
    Ok(())
}
