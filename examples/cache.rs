//! A cache that many read at a time, and that one writer rebuilds alone.
//!
//! Run it: `bash examples/run.sh cache`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use relatch::{Builder, ReadWriteLock};

/// These stand for files that many machines share. They belong together: a reader that came in the
/// middle of a rebuild would find pages of two versions.
static PAGES: [AtomicU32; 4] = [const { AtomicU32::new(1) }; 4];

const LAST_VERSION: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    // At most 16 readers at a time. All readers and writers have to say the same number.
    let cache = locks.read_write("cache", 16);
    scope(|scope| {
        // Each thread stands for a process. As soon as one has read, it reads again.
        let readers = [(); 4].map(|()| scope.spawn(|| read_until_the_last(&cache)));
        for version in 2..=LAST_VERSION {
            sleep(Duration::from_millis(200));
            rebuild(&cache, version)?;
        }
        for reader in readers {
            let reads = reader.join().map_err(|_| "a reader panicked")??;
            println!("a reader has read {reads} times, and always found one version");
        }
        Ok(())
    })
}

/// New readers wait while a writer waits. So its turn comes, however many read.
fn rebuild(cache: &ReadWriteLock, version: u32) -> Result<(), relatch::Error> {
    let asked = Instant::now();
    cache.with_write(|| {
        println!("version {version}: alone after {:.0?}", asked.elapsed());
        for page in &PAGES {
            page.store(version, Relaxed);
            sleep(Duration::from_millis(10));
        }
    })
}

fn read_until_the_last(cache: &ReadWriteLock) -> Result<u32, String> {
    for reads in 1..=1000 {
        let version = cache
            .with_read(look_up)
            .map_err(|error| error.to_string())??;
        if version == LAST_VERSION {
            return Ok(reads);
        }
    }
    Err("the cache stays old".to_owned())
}

fn look_up() -> Result<u32, String> {
    let [first, rest @ ..] = &PAGES;
    let version = first.load(Relaxed);
    sleep(Duration::from_millis(5));
    if rest.iter().any(|page| page.load(Relaxed) != version) {
        return Err(format!("only some pages have version {version}"));
    }
    Ok(version)
}
