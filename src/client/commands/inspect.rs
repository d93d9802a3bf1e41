//! What a server says about itself.

use crate::base::clock::Moment;
use crate::client::commands::connection::ServerConnection;
use crate::client::wire::failure::{Failure, accept, nonsense};
use crate::client::wire::refusal::legible;
use crate::client::wire::resp::{Batch, Reply};

/// What `INFO` says: a field and its value in each line.
#[derive(Debug, Default)]
pub(crate) struct Info(String);

impl Info {
    /// Reads the reply. Its lines are shown to people, so each is made legible.
    pub(crate) fn read(text: &[u8]) -> Info {
        let text = String::from_utf8_lossy(text);
        let lines: Vec<_> = text.lines().map(legible).collect();
        Info(lines.join("\n"))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        fields.find_map(|(it, value)| (it == name).then_some(value))
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }
}

/// A right, with a command that needs no other right. `KEY` is a key that nobody else uses.
type Trial = (&'static str, &'static [&'static str]);

/// The rights that each lock needs.
const EACH_LOCK: [Trial; 8] = [
    ("+set", &["SET", "KEY", "-", "PX", "1000"]),
    ("+get", &["GET", "KEY"]),
    ("+pttl", &["PTTL", "KEY"]),
    ("+pexpire", &["PEXPIRE", "KEY", "1000"]),
    ("+del", &["DEL", "KEY"]),
    ("+eval", &["EVAL", "return 1", "1", "KEY"]),
    ("+evalsha", &["EVALSHA", "0", "1", "KEY"]),
    ("+ping", &["PING"]),
];

/// Other rights that are of use: for the login, for people on call, for waiters. The last one
/// leaves the connection subscribed.
const OTHERS: [Trial; 9] = [
    ("+hello", &["HELLO"]),
    ("+client|setname", &["CLIENT", "SETNAME", "relatch"]),
    ("+scan", &["SCAN", "0", "COUNT", "1"]),
    ("+getrange", &["GETRANGE", "KEY", "0", "0"]),
    ("+info", &["INFO", "server"]),
    ("+time", &["TIME"]),
    ("+client|id", &["CLIENT", "ID"]),
    ("+client|tracking", &["CLIENT", "TRACKING", "OFF"]),
    ("+subscribe", &["SUBSCRIBE", "__redis__:invalidate"]),
];

/// How many of [`OTHERS`] are left without the listener's.
const WITHOUT_LISTENER: usize = 6;

/// What a user lacks, as `ACL SETUSER` takes it.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    pub(crate) each_lock: Vec<String>,
    pub(crate) others: Vec<String>,
}

impl ServerConnection {
    /// What the server says about itself.
    pub(crate) fn info(&mut self, deadline: Moment) -> Result<Info, Failure> {
        match accept(self.ask(&Batch::of(&["INFO"]), deadline)?)? {
            Reply::Bytes(text) => Ok(Info::read(&text)),
            other => self.judged(Err(nonsense(&other))),
        }
    }

    /// Which rights this user lacks. Uses a connection of its own, which is of no use afterwards. A
    /// server checks for rights before it checks whether it has the key.
    pub(crate) fn missing_rights(
        &mut self,
        prefix: &str,
        key: &str,
        listens: bool,
        deadline: Moment,
    ) -> Result<Missing, Failure> {
        let each_lock = self.missing_of(&EACH_LOCK, prefix, key, deadline)?;
        let others = &OTHERS[..if listens {
            OTHERS.len()
        } else {
            WITHOUT_LISTENER
        }];
        self.lent.link()?.stream.expect_list();
        // A proxy may know fewer commands, and end the connection. Anything that does not work then
        // is found later.
        let others = self.missing_of(others, prefix, key, deadline);
        let mut others = others.unwrap_or_default();
        others.retain(|right| !each_lock.contains(right));
        Ok(Missing { each_lock, others })
    }

    fn missing_of(
        &mut self,
        trials: &[Trial],
        prefix: &str,
        key: &str,
        deadline: Moment,
    ) -> Result<Vec<String>, Failure> {
        let named = |part: &&'static str| if *part == "KEY" { key } else { part };
        let batch = trials.iter().fold(Batch::default(), |batch, (_, trial)| {
            batch.and(&trial.iter().map(named).collect::<Vec<_>>())
        });
        let replies = self.exchange(&batch, deadline)?;
        let mut missing = Vec::new();
        for ((right, trial), reply) in trials.iter().zip(&replies) {
            if let Reply::Error(error) = reply
                && error.code == "NOPERM"
            {
                let is_of_command = error.says("to run the ");
                let right = match trial {
                    _ if is_of_command => (*right).to_owned(),
                    ["SUBSCRIBE", channel] => format!("&{channel}"),
                    _ => format!("~{prefix}*"),
                };
                if !missing.contains(&right) {
                    missing.push(right);
                }
            }
        }
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn fields_are_read_as_they_were_written(fields in proptest::collection::btree_map("[a-z_]{1,12}[0-9]?", "[!-~ ]{0,40}", 0..10)) {
            let lines: Vec<_> = fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
            let info = Info::read(format!("# Server\r\n{}", lines.concat()).as_bytes());
            for (name, value) in &fields {
                prop_assert_eq!(info.field(name), Some(value.as_str()));
            }
        }

    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = Info::read(b"# Server\nredis_version:8.2.3\nredis:x\nrole:master\nempty:\n");
        assert_eq!(info.field("redis_version"), Some("8.2.3"));
        assert_eq!(info.field("redis"), Some("x"));
        assert_eq!((info.field("empty"), info.field("ole")), (Some(""), None));
        assert_eq!((info.number("role"), info.number("redis")), (None, None));
    }
}
