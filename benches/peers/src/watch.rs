//! Counts the commands that clients send, by `MONITOR`. That slows the server down, so work is
//! either watched or timed.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

/// A connection that sees all commands.
pub(crate) struct Watch {
    reader: JoinHandle<Result<u64>>,
}

impl Watch {
    /// The argument of the command that ends the watch, and is not counted.
    pub(crate) const END: &str = "the watch ends";

    pub(crate) fn start(address: &str) -> Result<Watch> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(stream).lines();
        lines.next().context("MONITOR has no answer")??;
        let reader = thread::spawn(move || {
            let mut sent = 0;
            for line in lines {
                let line = line?;
                if line.contains(Watch::END) {
                    break;
                }
                sent += u64::from(is_sent(&line));
            }
            Ok(sent)
        });
        Ok(Watch { reader })
    }

    /// Waits for the end of the watch.
    pub(crate) fn count(self) -> Result<u64> {
        self.reader.join().ok().context("a thread panicked")?
    }
}

/// Whether a client sent the command, and no script. A line reads
/// `+1700000000.123456 [0 127.0.0.1:50000] "SET" "key"`, or `[0 lua]`.
fn is_sent(line: &str) -> bool {
    let from = line.split_once("] \"").map_or("", |(from, _)| from);
    !from.is_empty() && !from.ends_with(" lua")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_scripts_are_not_counted() {
        assert!(is_sent(r#"+1700000000.1 [0 127.0.0.1:50000] "SET" "key""#));
        assert!(!is_sent(r#"+1700000000.1 [0 lua] "SET" "key""#));
    }
}
