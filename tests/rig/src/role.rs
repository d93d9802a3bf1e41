//! This program, run again as another process that plays a role: how its parent starts it, and what
//! the role itself can do.
//!
//! Parent and child talk in lines. The child reads its standard input. A line that is meant for the
//! parent begins with a mark, because the test harness prints lines, too.

use std::env;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::{Command, Stdio};

/// The variable that holds the role of a process.
const ROLE: &str = "RELATCH_TEST_ROLE";

/// What a line that is meant for the parent begins with.
pub(crate) const MARK: &str = "@";

/// The command that runs this program again in the role `name`. In that process, [`arg`] returns
/// what `args` says. The standard input and output of the process are piped.
pub fn command(name: &str, args: &[(&str, &str)]) -> Command {
    command_under(&[], name, args)
}

/// The same command, run by another program: `launcher` is put in front of it.
pub(crate) fn command_under(launcher: &[&str], name: &str, args: &[(&str, &str)]) -> Command {
    let this = env::current_exe().expect("the path of this program");
    let mut command = match launcher {
        [] => Command::new(this),
        [program, rest @ ..] => {
            let mut command = Command::new(program);
            command.args(rest).arg(this);
            command
        }
    };
    command
        .env(ROLE, name)
        // On a busy machine, writing many backtraces takes longer than a test waits for a line.
        .env("RUST_BACKTRACE", "0")
        .envs(args.iter().map(|(name, value)| (variable(name), value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// The role of this process; `None` if its parent gave it none.
pub fn name() -> Option<String> {
    env::var(ROLE).ok()
}

/// The argument called `name`; panics if the parent gave none.
pub fn arg(name: &str) -> String {
    let value = env::var(variable(name));
    value.unwrap_or_else(|error| panic!("the argument {name:?}: {error}"))
}

/// Sends the parent a line.
pub fn report(line: impl Display) {
    // The first line end closes a line that the test harness may have begun.
    let line = format!("\n{MARK}{line}\n");
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(line.as_bytes()).and(stdout.flush());
    written.expect("the parent reads");
}

/// Waits for a line from the parent; `None` when there will be no more.
pub fn next_line() -> Option<String> {
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line).expect("the parent writes");
    (read > 0).then(|| line.trim_end_matches('\n').to_owned())
}

/// The variable that carries the argument `name`.
fn variable(name: &str) -> String {
    format!("RELATCH_TEST_{}", name.to_uppercase().replace('-', "_"))
}
