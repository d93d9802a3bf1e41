//! As whom managers log in: as nobody in particular or, if the environment says so, as a user who may do no more than
//! docs/operations.md asks for. `tests/rights.sh` runs all tests so, and looks for the password in what they print.

use std::io::Write as _;
use std::sync::{Once, OnceLock};

use log::{LevelFilter, Log, Metadata, Record};

/// The variable that has the tests log in, and with which password: letters, digits and hyphens.
const PASSWORD: &str = "RELATCH_TEST_LEAST_RIGHTS";

/// The user, by the name that the page gives him.
const USER: &str = "locks";

/// What is said in front of a command that this user was not let run: the script looks for it.
const REFUSED: &str = "refused to the user with the least rights:";

/// The rights that docs/operations.md says a user needs, from its own line.
pub(crate) fn least_rights() -> Vec<&'static str> {
    let page = include_str!("../../../docs/operations.md");
    let mut lines = page.lines();
    let rights = lines.find_map(|line| line.strip_prefix("ACL SETUSER locks on >password resetchannels "));
    let rights = rights.expect("docs/operations.md says how the user is made").split(' ');
    rights.filter(|right| *right != "-@all").collect()
}

/// Those of them without which everything works, but Redis tells of nothing.
pub(crate) fn rights_to_hear() -> Vec<&'static str> {
    let is_to_hear =
        |right: &str| right.starts_with(['&']) || right.contains("client|") || right == "+subscribe";
    least_rights().into_iter().filter(|right| is_to_hear(right)).collect()
}

/// The others.
pub(crate) fn rights_to_work() -> Vec<&'static str> {
    let to_hear = rights_to_hear();
    least_rights().into_iter().filter(|right| !to_hear.contains(right)).collect()
}

/// As whom managers log in, as Redis says.
pub(crate) fn user() -> &'static str {
    password().map_or("default", |_| USER)
}

/// What stands in front of the host in a URL.
pub(super) fn login() -> String {
    password().map_or_else(String::new, |password| format!("{USER}:{password}@"))
}

/// What a server is started with, so that it knows the user, also after a restart.
pub(super) fn server_args() -> Vec<String> {
    let Some(password) = password() else {
        return Vec::new();
    };
    log_everything();
    let words = ["--user", USER, "on", &format!(">{password}"), "resetchannels", "-@all"].map(str::to_owned);
    words.into_iter().chain(least_rights().into_iter().map(str::to_owned)).collect()
}

/// Has what a child process printed looked at as well.
pub(super) fn note_printed(line: &str) {
    if password().is_some() {
        print(&format!("a child: {line}"));
    }
}

/// Has it found out what a server refused, as far as `ACL LOG` told: user and command (or key, or channel).
pub(super) fn note_refused(ask: impl FnOnce() -> Vec<(String, String)>) {
    if password().is_some() {
        for (_, what) in ask().into_iter().filter(|(user, _)| user == USER) {
            print(&format!("{REFUSED} {what}"));
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
        log::set_logger(&Printer).expect("the only logger of a process that starts servers");
        log::set_max_level(LevelFilter::Trace);
    });
}

struct Printer;

impl Log for Printer {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        print(&format!("{} {} {}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// Past the test harness, which keeps what passing tests print to itself.
fn print(line: &str) {
    // Whoever reads may have gone.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
