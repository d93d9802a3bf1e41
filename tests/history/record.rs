//! What a worker claims: a line for each thing it does, written at once, so that a process that is
//! killed has recorded what it did until then.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use relatch_rig::now;

/// Where one thread writes.
pub(crate) struct Record(File);

/// What one thread claimed of one lock: from the call to the result of the release.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim {
    /// The process, and the thread in it.
    pub(crate) by: (u32, u32),
    pub(crate) key: String,
    pub(crate) asked: Duration,
    /// When the call returned. If there is no `token`, it returned without the lock.
    pub(crate) answered: Option<Duration>,
    pub(crate) token: Option<String>,
    pub(crate) renewed: bool,
    /// The last check that found the hold valid: the time just before the check, and the end of the
    /// validity that it returned.
    pub(crate) valid: Option<(Duration, Duration)>,
    pub(crate) released: Option<Duration>,
    /// When the release returned, and with what.
    pub(crate) ended: Option<(Duration, String)>,
}

impl Record {
    pub(crate) fn create(dir: &Path, thread: u32) -> Record {
        let path = dir.join(format!("{}.{thread}", std::process::id()));
        Record(File::create(path).expect("a file to write to"))
    }

    /// Writes what happens now: `asks` (and a key), `refused`, `has` (a token, and whether it is
    /// renewed), `releases` and `ended` (and how).
    pub(crate) fn write(&mut self, what: &str, more: impl Display) {
        self.write_at(now(), what, more);
    }

    /// A check that began at `at` found the hold valid until `until`. The last such line counts.
    pub(crate) fn valid(&mut self, at: Duration, until: Duration) {
        self.write_at(at, "valid", until.as_nanos());
    }

    fn write_at(&mut self, at: Duration, what: &str, more: impl Display) {
        // At once, so that a killed process has written all lines but perhaps the last.
        let line = format!("{what} {} {more}\n", at.as_nanos());
        let written = self.0.write_all(line.as_bytes());
        written.expect("a file that can be written to");
    }
}

/// Reads what all threads wrote, each claim once.
pub(crate) fn read(dir: &Path) -> Vec<Claim> {
    let entries = fs::read_dir(dir).expect("the directory of the records");
    let claims = entries.flat_map(|entry| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        let (process, thread) = name.split_once('.').expect("process.thread");
        let [process, thread] = [process, thread].map(|it| it.parse().expect("a number"));
        let text = fs::read_to_string(entry.path()).expect("a record");
        parse((process, thread), &text)
    });
    claims.collect()
}

fn parse(by: (u32, u32), text: &str) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    // A line without an end was not written whole: its writer was killed during the write, between
    // two pages of the file.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let time = |place: usize| Duration::from_nanos(words[place].parse().expect("nanoseconds"));
        let (at, word) = (time(1), words[2].to_owned());
        if words[0] == "asks" {
            claims.push(Claim {
                by,
                key: word,
                asked: at,
                ..Claim::default()
            });
            continue;
        }
        let claim = claims.last_mut().expect("asked before");
        match words[0] {
            "refused" => claim.answered = Some(at),
            "has" => {
                (claim.answered, claim.token) = (Some(at), Some(word));
                claim.renewed = words[3] == "true";
            }
            "valid" => claim.valid = Some((at, time(2))),
            "releases" => claim.released = Some(at),
            "ended" => claim.ended = Some((at, word)),
            other => panic!("{other:?} in a record"),
        }
    }
    claims
}
