//! Counts the commands that clients send.
//!
//! `INFO commandstats` counts these together with the commands that scripts execute. `MONITOR`
//! shows each command with the address of the client that sent it, or with `lua` if a script
//! executed it. `MONITOR` costs the server a few microseconds per command, so a run is either
//! watched or timed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use relatch_rig::Server;

use super::figures::Commands;

/// The argument of the last command, an `ECHO`, which is not counted.
const END: &str = "the watch ends";

/// Records all commands from its own start on.
pub(crate) struct Watch {
    connection: redis::Connection,
    /// Keeps the output unparsed until the end, when the cores are free.
    reader: JoinHandle<std::io::Result<Vec<u8>>>,
}

impl Watch {
    pub(crate) fn start(server: &Server) -> Watch {
        const OK: &[u8] = b"+OK\r\n";

        let connection = server.connect();
        let mut stream = TcpStream::connect(server.address()).expect("connects");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a time");
        stream.write_all(b"MONITOR\r\n").expect("is sent");
        let mut answer = [0; OK.len()];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, OK);
        Watch {
            connection,
            reader: thread::spawn(move || read_to_the_end(stream)),
        }
    }

    /// Ends the watch, and returns the commands that clients have sent since its start.
    pub(crate) fn end(mut self) -> Commands {
        let () = redis::cmd("ECHO")
            .arg(END)
            .query(&mut self.connection)
            .expect("answers");
        let seen = self
            .reader
            .join()
            .expect("no panic")
            .expect("MONITOR goes on");
        String::from_utf8_lossy(&seen)
            .lines()
            .filter_map(sent_by_client)
            .collect()
    }
}

fn read_to_the_end(mut stream: TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut seen, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    let end = END.as_bytes();
    loop {
        let from = seen.len().saturating_sub(end.len());
        match stream.read(&mut chunk)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => seen.extend_from_slice(&chunk[..read]),
        }
        if seen[from..].windows(end.len()).any(|found| found == end) {
            return Ok(seen);
        }
    }
}

/// The name of the command, unless a script or this benchmark sent it. A line reads
/// `+1700000000.123456 [0 127.0.0.1:50000] "SET" "key"`.
fn sent_by_client(line: &str) -> Option<String> {
    let (head, command) = line.split_once("] \"")?;
    let (name, rest) = command.split_once('"')?;
    let name = name.to_lowercase();
    (!head.ends_with(" lua") && !rest.contains(END) && name != "info").then_some(name)
}
