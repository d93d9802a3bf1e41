//! What a server says of itself.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::commands::connection::{ServerConnection, next};
use crate::client::wire::failure::{Failure, accept, expect_pong, nonsense};
use crate::client::wire::resp::{Batch, Reply};

/// What `INFO` says: a field and its value in each line.
#[derive(Debug, Default)]
pub(crate) struct Info(String);

impl Info {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.len());
        self.0.lines().find_map(|line| {
            let length = value(line)?;
            Some(&line[line.len() - length..])
        })
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Info {
        Info(text.to_owned())
    }
}

/// The rights that each lock needs, with a command that asks for no other right. `KEY` is a key
/// that nobody else uses.
const TRIALS: [(&str, &[&str]); 8] = [
    ("+set", &["SET", "KEY", "-", "PX", "1000"]),
    ("+get", &["GET", "KEY"]),
    ("+pttl", &["PTTL", "KEY"]),
    ("+pexpire", &["PEXPIRE", "KEY", "1000"]),
    ("+del", &["DEL", "KEY"]),
    ("+eval", &["EVAL", "return 1", "1", "KEY"]),
    ("+evalsha", &["EVALSHA", "0", "1", "KEY"]),
    ("+ping", &["PING"]),
];

/// What is wanted of a user that may not touch its keys.
const KEYS: &str = "the pattern of its keys";

impl ServerConnection {
    /// What the server says of itself.
    pub(crate) fn info(&mut self, deadline: Moment) -> Result<Info, Failure> {
        self.ask_for_info(&["INFO"], deadline)
    }

    /// What the server says of the cluster that it is in.
    pub(crate) fn cluster_info(&mut self, deadline: Moment) -> Result<Info, Failure> {
        self.ask_for_info(&["CLUSTER", "INFO"], deadline)
    }

    fn ask_for_info(&mut self, command: &[&str], deadline: Moment) -> Result<Info, Failure> {
        match self.ask_server(command, deadline)? {
            Reply::Bytes(text) => Ok(Info(String::from_utf8_lossy(&text).replace('\r', ""))),
            other => self.retire_if_nonsense(Err(nonsense(&other))),
        }
    }

    /// Which of the rights that each lock needs this user has not. A server asks for rights before
    /// it looks whether it has the key.
    pub(crate) fn missing_rights(
        &mut self,
        key: &str,
        deadline: Moment,
    ) -> Result<Vec<&'static str>, Failure> {
        let named = |part: &&'static str| if *part == "KEY" { key } else { part };
        let batch = TRIALS.iter().fold(Batch::default(), |batch, (_, trial)| {
            batch.and(&trial.iter().map(named).collect::<Vec<_>>())
        });
        let replies = self.exchange(&batch, deadline)?;
        let mut missing = Vec::new();
        for ((right, _), reply) in TRIALS.iter().zip(&replies) {
            match reply {
                Reply::Error(said) if said.starts_with("NOPERM") => {
                    let is_of_command = said.contains("to run the ");
                    missing.push(if is_of_command { right } else { KEYS });
                }
                _ => {}
            }
        }
        missing.dedup();
        Ok(missing)
    }

    /// The time by the server's clock, since 1970.
    pub(crate) fn server_time(&mut self, deadline: Moment) -> Result<Duration, Failure> {
        let reply = self.ask_server(&["TIME"], deadline)?;
        let number = |part: &Reply| part.text()?.parse().ok();
        let time = match &reply {
            Reply::Array(parts) => match parts.as_slice() {
                [seconds, micros] => number(seconds).zip(number(micros)),
                _ => None,
            },
            _ => None,
        };
        match time {
            Some((seconds, micros)) => {
                Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
            None => self.retire_if_nonsense(Err(nonsense(&reply))),
        }
    }

    /// Asks for the shortest answer that there is.
    pub(crate) fn ping(&mut self, deadline: Moment) -> Result<(), Failure> {
        let reply = self.ask_server(&["PING"], deadline)?;
        self.retire_if_nonsense(expect_pong(reply))
    }

    fn ask_server(&mut self, command: &[&str], deadline: Moment) -> Result<Reply, Failure> {
        let replies = self.exchange(&Batch::of(command), deadline)?;
        accept(next(&mut replies.into_iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = Info::of("# Server\nredis_version:8.2.3\nredis:x\nrole:master\nempty:\n");
        assert_eq!(info.field("redis_version"), Some("8.2.3"));
        assert_eq!(info.field("redis"), Some("x"));
        assert_eq!((info.field("empty"), info.field("ole")), (Some(""), None));
        assert_eq!((info.number("role"), info.number("redis")), (None, None));
    }
}
