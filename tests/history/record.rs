//! What a worker claims: a line for each thing it does, written at once, so that a process that is
//! killed has recorded what it did until then.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use relatch_rig::now;

/// Where one thread writes.
pub(crate) struct Record(File);

/// What one thread claimed of one lock: from the call to the result of the release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The process, and the thread in it.
    pub(crate) by: (u32, u32),
    pub(crate) key: String,
    pub(crate) asked: Duration,
    /// How long the thread was ready to wait.
    pub(crate) wait: Duration,
    /// When the call returned. If there is no `token`, it returned without the lock.
    pub(crate) answered: Option<Duration>,
    /// Why there is no lock.
    pub(crate) refused: Option<String>,
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
    pub(crate) fn create(dir: &Path, process: u32, thread: u32) -> Record {
        Record(File::create(dir.join(format!("{process}.{thread}"))).expect("a file to write to"))
    }

    /// A lock is about to be taken.
    pub(crate) fn asks(&mut self, key: &str, wait: Duration) {
        self.line(&format!(
            "asks {} {key} {}",
            now().as_nanos(),
            wait.as_nanos()
        ));
    }

    /// The lock was not taken.
    pub(crate) fn refused(&mut self, why: &str) {
        self.line(&format!("refused {} {why}", now().as_nanos()));
    }

    /// The lock was taken.
    pub(crate) fn has(&mut self, token: &str, renewed: bool) {
        self.line(&format!("has {} {token} {renewed}", now().as_nanos()));
    }

    /// A check that began at `at` found the hold valid until `until`. The last such line counts.
    pub(crate) fn valid(&mut self, (at, until): (Duration, Duration)) {
        self.line(&format!("valid {} {}", at.as_nanos(), until.as_nanos()));
    }

    /// The lock is about to be released.
    pub(crate) fn releases(&mut self) {
        self.line(&format!("releases {}", now().as_nanos()));
    }

    /// The release has returned with the result `how`.
    pub(crate) fn ended(&mut self, how: &str) {
        self.line(&format!("ended {} {how}", now().as_nanos()));
    }

    fn line(&mut self, line: &str) {
        // Written at once, so that a killed process has written all lines but perhaps the last.
        self.0
            .write_all(format!("{line}\n").as_bytes())
            .expect("a file that can be written to");
    }
}

/// Reads what all threads wrote, each claim once.
pub(crate) fn read(dir: &Path) -> Vec<Claim> {
    let mut claims = Vec::new();
    for entry in fs::read_dir(dir).expect("the directory of the records") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let (process, thread) = name.split_once('.').expect("process.thread");
        let by = (
            process.parse().expect("a number"),
            thread.parse().expect("a number"),
        );
        claims.extend(parse(by, &fs::read_to_string(&path).expect("a record")));
    }
    claims
}

fn parse(by: (u32, u32), text: &str) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    // A line without an end was not written whole: its writer was killed during the write, between
    // two pages of the file.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let time = |place: usize| Duration::from_nanos(words[place].parse().expect("nanoseconds"));
        let at = time(1);
        if words[0] == "asks" {
            let (key, wait) = (words[2].to_owned(), time(3));
            claims.push(Claim {
                by,
                key,
                asked: at,
                wait,
                ..Claim::default()
            });
            continue;
        }
        let claim = claims.last_mut().expect("asked before");
        match words[0] {
            "refused" => (claim.answered, claim.refused) = (Some(at), Some(words[2].to_owned())),
            "has" => {
                (claim.answered, claim.token) = (Some(at), Some(words[2].to_owned()));
                claim.renewed = words[3] == "true";
            }
            "valid" => claim.valid = Some((at, time(2))),
            "releases" => claim.released = Some(at),
            "ended" => claim.ended = Some((at, words[2].to_owned())),
            other => panic!("{other:?} in a record"),
        }
    }
    claims
}

#[test]
fn what_was_written_reads_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let second = Duration::from_secs(1);
    let mut record = Record::create(dir.path(), 7, 1);
    record.asks("a", second);
    record.refused("Timeout");
    record.asks("b", 2 * second);
    record.has("token", true);
    record.valid((second / 2, second));
    record.valid((second, 2 * second));
    record.releases();
    record.ended("Released");
    record.0.write_all(b"asks 1").expect("written"); // The process was killed here.
    let claims = read(dir.path());
    assert_eq!(claims.len(), 2);
    assert_eq!(
        (claims[0].refused.as_deref(), &claims[0].token),
        (Some("Timeout"), &None)
    );
    let last = &claims[1];
    assert_eq!((last.by, &*last.key, last.wait), ((7, 1), "b", 2 * second));
    assert_eq!((last.token.as_deref(), last.renewed), (Some("token"), true));
    assert_eq!(last.valid, Some((second, 2 * second)));
    assert!(last.asked <= last.answered.expect("answered") && last.answered <= last.released);
    assert_eq!(last.ended.as_ref().map(|(_, how)| &**how), Some("Released"));
}
