//! The user that managers log in as: the default one or, if the environment says so, a user who may
//! do no more than `docs/operations.md` asks for. `tests/rights.sh` runs all tests as that user,
//! and looks for the password in what they print.

use std::io::Write as _;
use std::sync::{Once, OnceLock};

use log::{LevelFilter, Log, Metadata, Record};

use crate::{road, server_version};

/// If this variable is set, the tests log in. Its value is the password: letters, digits and
/// hyphens.
const PASSWORD: &str = "RELATCH_TEST_LEAST_RIGHTS";

/// The name of the user in `docs/operations.md`.
const USER: &str = "locks";

/// The rights that a manager needs as well if replicas have to acknowledge its locks, if its locks
/// are fenced, or if Redis is a cluster.
const FOR_OPTIONS: [&str; 5] = [
    "+wait",
    "+time",
    "+cluster|slots",
    "+cluster|info",
    "+asking",
];

/// What is printed in front of a command that the server refused to this user. `tests/rights.sh`
/// looks for that text.
const REFUSED: &str = "refused to the user with the least rights:";

/// The rights that a user needs, read from the command in docs/operations.md.
pub fn least_rights() -> Vec<&'static str> {
    let page = include_str!("../../../docs/operations.md");
    let mut lines = page.lines();
    let rights =
        lines.find_map(|line| line.strip_prefix("ACL SETUSER locks on >password resetchannels "));
    let rights = rights
        .expect("docs/operations.md says how the user is made")
        .split(' ');
    rights.filter(|right| *right != "-@all").collect()
}

/// Those of the least rights that are for invalidations only. Everything works without them.
pub fn invalidation_rights() -> Vec<&'static str> {
    let is_for_invalidations = |right: &&str| {
        right.starts_with('&') || ["+client|id", "+client|tracking", "+subscribe"].contains(right)
    };
    least_rights()
        .into_iter()
        .filter(is_for_invalidations)
        .collect()
}

/// The least rights without those for invalidations.
pub fn working_rights() -> Vec<&'static str> {
    let others = invalidation_rights();
    least_rights()
        .into_iter()
        .filter(|right| !others.contains(right))
        .collect()
}

/// The rights that a manager needs as well if each server is a cluster: none otherwise.
pub fn in_cluster() -> &'static [&'static str] {
    match (road::is_in_cluster(), server_version() >= (7, 0)) {
        (false, _) => &[],
        (true, true) => &["+cluster|slots", "+cluster|info", "+asking"],
        (true, false) => &["+cluster", "+asking"],
    }
}

/// The user that managers log in as, by the name that Redis has for it.
pub fn user() -> &'static str {
    password().map_or("default", |_| USER)
}

/// The login, as it stands in front of the host in a URL. Empty for the default user.
pub fn login() -> String {
    password().map_or_else(String::new, |password| format!("{USER}:{password}@"))
}

/// The arguments that make a server know the user, also after a restart.
pub(crate) fn server_args() -> Vec<String> {
    let Some(password) = password() else {
        return Vec::new();
    };
    log_everything();
    let user = [
        "--user",
        USER,
        "on",
        &format!(">{password}"),
        "resetchannels",
        "-@all",
    ];
    let args = user.map(str::to_owned);
    let rights = least_rights()
        .into_iter()
        .chain(FOR_OPTIONS)
        .chain(in_cluster().iter().copied());
    args.into_iter().chain(rights.map(str::to_owned)).collect()
}

/// Prints what a worker printed, so that `tests/rights.sh` sees that as well.
pub(crate) fn note_printed(line: &str) {
    if password().is_some() {
        print(&format!("a worker: {line}"));
    }
}

/// Prints what a server refused to the user, as far as `ACL LOG` has it: command, key or channel.
pub(crate) fn note_refused(ask: impl FnOnce() -> Vec<(String, String)>) {
    if password().is_some() {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        for (_, what) in ask().into_iter().filter(|(user, _)| user == USER) {
            print(&format!("{REFUSED} {what}, in {test}"));
        }
    }
}

fn password() -> Option<&'static str> {
    static READ: OnceLock<Option<String>> = OnceLock::new();
    READ.get_or_init(|| std::env::var(PASSWORD).ok()).as_deref()
}

/// Prints every log line of every crate: none may hold the password.
fn log_everything() {
    static LOGS: Once = Once::new();
    LOGS.call_once(|| {
        // A process has one logger. Some tests collect what is logged, and had theirs set before
        // they started a server. They keep it, with the level that they want: they read every line
        // themselves, and their lines are not printed here.
        if log::set_logger(&Printer).is_ok() {
            log::set_max_level(LevelFilter::Trace);
        }
    });
}

struct Printer;

impl Log for Printer {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        print(&format!(
            "{} {} {}",
            record.level(),
            record.target(),
            record.args()
        ));
    }

    fn flush(&self) {}
}

/// Prints directly to stderr, because the test harness hides what passing tests print.
fn print(line: &str) {
    // The reader may be gone.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
