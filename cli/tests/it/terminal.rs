//! At a terminal, which `script` provides.

use std::fs;
use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use relatch_rig::{LONG, eventually};

use crate::support::{Place, Running, spawn};

struct Terminal {
    _program: Running,
    keyboard: ChildStdin,
    screen: ChildStdout,
    shown: String,
}

impl Terminal {
    /// A terminal at which this line runs. `$R` is the command.
    fn new(place: &Place, line: &str) -> Terminal {
        let mut program = spawn(
            Command::new("script")
                .args(["-qec", line, "/dev/null"])
                .current_dir(place.file(""))
                .env("REDIS_URL", place.server.url())
                .env("R", env!("CARGO_BIN_EXE_relatch"))
                .env("SHELL", "/bin/bash")
                .env_remove("RELATCH_URL")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        );
        Terminal {
            keyboard: program.stdin.take().unwrap(),
            screen: program.stdout.take().unwrap(),
            _program: program,
            shown: String::new(),
        }
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until the text is shown, behind all that was waited for before.
    fn shows(&mut self, text: &str) {
        let mut shown = String::new();
        while !shown.contains(text) {
            let mut byte = [0];
            let read = self.screen.read(&mut byte).unwrap();
            assert_eq!(read, 1, "{text:?} is not in {shown:?}");
            shown.push(byte[0].into());
        }
        self.shown += &shown;
    }

    /// All that was shown, once the line is done.
    fn end(mut self) -> String {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).unwrap();
        self.shown + &String::from_utf8_lossy(&rest)
    }
}

#[test]
fn ctrl_c_and_the_input_reach_the_job_once() {
    let place = Place::new();
    let job = "trap 'echo caught' INT; echo ready; read line; echo got \\$line; read line; echo got \\$line";
    let mut terminal = Terminal::new(&place, &format!("$R run k bash -c \"{job}\"; echo code $?"));
    terminal.shows("ready");
    terminal.types("\x03word\nother\n");
    let shown = terminal.end();
    assert_eq!(shown.matches("caught").count(), 1, "{shown}");
    assert!(shown.contains("got word"), "{shown}");
}

/// As without the wrapper: the shell goes on only if the job has dealt with the signal itself. (A
/// bash that gets one while it starts a process may run for ever. So the job starts none.)
#[test]
fn ctrl_c_ends_the_script_around_the_run() {
    let place = Place::new();
    for (job, goes_on) in [
        ("echo ready; exec sleep 60", false),
        ("trap 'exit 130' INT; echo ready; read line", true),
    ] {
        let line = format!("$R run k bash -c \"{job}\"; echo code $?");
        let mut terminal = Terminal::new(&place, &line);
        terminal.shows("ready");
        terminal.types("\x03");
        let shown = terminal.end();
        assert_eq!(shown.contains("code 130"), goes_on, "{shown}");
    }
}

#[test]
fn ctrl_c_ends_the_wait() {
    let place = Place::new();
    let _holder = place.start(&["k"], "f", "echo > $1; sleep 60");
    let mut terminal = Terminal::new(&place, "$R run -v k true; echo code $?");
    terminal.shows("waiting");
    terminal.types("\x03");
    let shown = terminal.end();
    assert!(!shown.contains("code"), "the shell goes on: {shown}");
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place, "bash --norc --noediting -i");
    let length = || fs::metadata(place.file("ticks")).map_or(0, |file| file.len());
    let goes_on = || {
        let before = length();
        eventually(LONG, "the job goes on", || length() > before);
    };
    terminal.types("$R run k bash -c 'while :; do echo >> ticks; sleep 0.01; done'\n");
    goes_on();
    terminal.types("\x1a");
    terminal.shows("Stopped");
    eventually(LONG, "the job is stopped", || {
        let before = length();
        thread::sleep(Duration::from_millis(50));
        length() == before
    });
    terminal.types("fg\n");
    goes_on();
    terminal.types("\x03");
    terminal.types("echo code $?\nexit\n");
    let shown = terminal.end();
    assert!(shown.contains("code 130"), "{shown}");
}
