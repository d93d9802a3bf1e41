//! At a terminal, which `script` provides.

use std::io::{BufReader, Read, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use relatch_rig::{LONG, eventually};

use crate::support::{Place, Running, spawn};

struct Terminal {
    _program: Running,
    keyboard: ChildStdin,
    screen: Receiver<u8>,
    shown: String,
}

impl Terminal {
    /// A terminal at which this line runs. `$R` is the command.
    fn new(place: &Place, line: &str) -> Terminal {
        let mut script = place.program("script", &["-qec", line, "/dev/null"]);
        let script = script.env("SHELL", "/bin/bash");
        let mut program = spawn(script.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let screen = program.stdout.take().unwrap();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let mut bytes = BufReader::new(screen).bytes().map_while(Result::ok);
            bytes.try_for_each(|byte| sender.send(byte))
        });
        Terminal {
            keyboard: program.stdin.take().unwrap(),
            screen: receiver,
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
            let byte = self.screen.recv_timeout(LONG);
            let byte = byte.unwrap_or_else(|_| panic!("{text:?} is not in {shown:?}"));
            shown.push(byte.into());
        }
        self.shown += &shown;
    }

    /// All that was shown, once the line is done.
    fn end(self) -> String {
        let mut rest = Vec::new();
        let ended = loop {
            match self.screen.recv_timeout(LONG) {
                Ok(byte) => rest.push(byte),
                Err(ended) => break ended,
            }
        };
        let shown = self.shown + &String::from_utf8_lossy(&rest);
        assert_eq!(ended, RecvTimeoutError::Disconnected, "{shown:?}");
        shown
    }
}

#[test]
fn ctrl_c_and_the_input_reach_the_job_once() {
    let place = Place::new();
    let job =
        "trap 'echo caught' INT; echo ready; read line; echo got $line; read line; echo got $line";
    place.write("job", job);
    let mut terminal = Terminal::new(&place, "$R run k bash job; echo code $?");
    terminal.shows("ready");
    terminal.types("\x03word\nother\n");
    let shown = terminal.end();
    assert_eq!(shown.matches("caught").count(), 1, "{shown}");
    assert!(shown.contains("got word"), "{shown}");
}

/// In a group of its own, the job would be stopped.
#[test]
fn a_job_whose_input_is_a_pipe_can_use_the_terminal() {
    let place = Place::new();
    let job = "stty -echo </dev/tty; cat; read line </dev/tty; echo got $line";
    place.write("job", job);
    let mut terminal = Terminal::new(&place, "echo ready | $R run k bash job; echo code $?");
    terminal.shows("ready");
    terminal.types("word\n");
    let shown = terminal.end();
    let is_read = shown.contains("got word") && shown.contains("code 0");
    assert!(is_read, "{shown}");
}

/// With all of its descriptors elsewhere, too.
#[test]
fn ctrl_c_reaches_a_job_that_is_redirected_once() {
    let place = Place::new();
    let job = "trap 'echo caught >> got' INT; exec 3<> <(:); echo > ready
        until test -s got; do read -t 0.01 -u 3; done; read -t 0.3 -u 3; exit 0";
    place.write("job", job);
    let line = "$R run --foreground k bash job </dev/null >out 2>&1";
    let mut terminal = Terminal::new(&place, line);
    place.wait_for("ready");
    terminal.types("\x03");
    terminal.end();
    assert_eq!(place.text("got"), "caught\n");
}

/// As without the wrapper: the shell goes on only if the job has dealt with the signal itself. (A
/// bash that gets one while it starts a process may run for ever. So the job starts none.)
#[test]
fn ctrl_c_ends_the_script_around_the_run() {
    let place = Place::new();
    for (job, goes_on) in [
        ("bash -c \"echo ready; exec sleep 60\"", false),
        // A process group of its own, to which the terminal sends nothing.
        ("timeout 60 sh -c 'echo ready; exec sleep 60'", false),
        (
            "bash -c \"trap 'exit 130' INT; echo ready; read line\"",
            true,
        ),
    ] {
        let mut terminal = Terminal::new(&place, &format!("$R run k {job}; echo code $?"));
        terminal.shows("ready");
        terminal.types("\x03");
        let shown = terminal.end();
        assert_eq!(shown.contains("code 130"), goes_on, "{shown}");
        assert_eq!(shown.contains("code"), goes_on, "{shown}");
    }
}

/// The person means the value that was shown, and no answer is a no.
#[test]
fn a_person_is_asked_before_a_lock_is_deleted() {
    let place = Place::new();
    for (answer, meanwhile, code) in [
        ("\n", "theirs", 1),
        ("n\n", "theirs", 1),
        ("y\n", "another", 1),
        ("y\n", "theirs", 0),
    ] {
        place.set("lock:k", "theirs");
        let mut terminal = Terminal::new(&place, "$R force-unlock k; echo code $?");
        terminal.shows("\"theirs\"");
        terminal.shows("[y/N]");
        place.set("lock:k", meanwhile);
        terminal.types(answer);
        let shown = terminal.end();
        assert!(shown.contains(&format!("code {code}")), "{shown}");
        assert_eq!(place.server.exists("lock:k"), code == 1, "{shown}");
    }
}

/// Nothing is there to be stopped but the wait.
#[test]
fn ctrl_z_stops_the_wait() {
    let place = Place::new();
    let mut holder = place.holds(&["k"]);
    let mut terminal = Terminal::new(&place, "bash --norc --noediting -i");
    terminal.types("$R run -v k echo do''ne </dev/null\n");
    terminal.shows("waiting");
    terminal.types("\x1a");
    terminal.shows("Stopped");
    holder.end("TERM");
    terminal.types("fg\n");
    terminal.shows("done");
    terminal.types("exit\n");
    terminal.end();
}

/// A job that has no child, which could end in the way of a signal.
const TICKS: &str =
    "bash -c 'exec 3<> <(:); until [ -e end ]; do echo >> ticks; read -t 0.01 -u 3; done'";

fn length(place: &Place) -> usize {
    place.text("ticks").len()
}

fn goes_on(place: &Place) {
    let before = length(place);
    eventually(LONG, "the job goes on", || length(place) > before);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    // The second one has a process group of its own.
    for around in ["", "timeout 60 "] {
        let place = Place::new();
        let mut terminal = Terminal::new(&place, "bash --norc --noediting -i");
        terminal.types(&format!("$R run k {around}{TICKS}\n"));
        goes_on(&place);
        terminal.types("\x1a");
        terminal.shows("Stopped");
        eventually(LONG, "the job is stopped", || {
            let before = length(&place);
            thread::sleep(Duration::from_millis(50));
            length(&place) == before
        });
        terminal.types("fg\n");
        goes_on(&place);
        terminal.types("\x03");
        terminal.types("echo code $?\nexit\n");
        let shown = terminal.end();
        assert!(shown.contains("code 130"), "{shown}");
    }
}

/// As below `ssh -t` or in a container. Nobody would let the run go on, nor a shell around it.
#[test]
fn ctrl_z_stops_nothing_where_no_shell_has_job_control() {
    for (line, last) in [
        (format!("exec $R run k {TICKS}"), ""),
        (format!("$R run k {TICKS}; echo do''ne"), "done"),
    ] {
        let place = Place::new();
        let mut terminal = Terminal::new(&place, &line);
        goes_on(&place);
        terminal.types("\x1a");
        terminal.shows("^Z");
        thread::sleep(Duration::from_millis(50)); // Too short a time can only make this green.
        goes_on(&place);
        place.write("end", "");
        let shown = terminal.end();
        assert!(shown.trim_end().ends_with(last), "{shown}");
        assert_eq!(place.keys(), 0);
    }
}
