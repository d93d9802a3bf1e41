//! The commands that read and write keys.

use crate::simulation::redis::resp::{OK, Reply, bulk, error, integer};
use crate::simulation::redis::state::{Entry, State, Value};
use crate::simulation::redis::table::{Answer, is};

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const NO_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const SYNTAX: &str = "ERR syntax error";

fn text_of(entry: Option<&Entry>) -> Answer {
    match entry.map(|entry| &entry.value) {
        None => Ok(Reply::Nil),
        Some(Value::String(text)) => Ok(bulk(text)),
        Some(Value::List(_)) => Err(error(WRONG_TYPE)),
    }
}

impl State {
    pub(super) fn get(&mut self, args: &[&[u8]]) -> Answer {
        text_of(self.live(args[1]).map(|entry| &*entry))
    }

    /// `SET` with `NX` and `PX`, which is all that the crate uses.
    pub(super) fn set(&mut self, args: &[&[u8]]) -> Answer {
        let nx = args.get(3).is_some_and(|option| is(option, "NX"));
        let lives = args.iter().position(|option| is(option, "PX"));
        let lives = lives.map(|at| integer(args[at + 1]).ok_or_else(|| error(NO_INTEGER)));
        let expires = match lives.transpose()? {
            Some(..=0) => return Err(error("ERR invalid expire time in 'set' command")),
            lives => lives.map(|millis| self.unix_millis() + millis),
        };
        if nx && self.live(args[1]).is_some() {
            return Ok(Reply::Nil);
        }
        self.put(
            args[1],
            Entry {
                value: Value::String(args[2].to_vec()),
                expires,
            },
        );
        Ok(OK)
    }

    pub(super) fn del(&mut self, args: &[&[u8]]) -> Answer {
        let mut deleted = 0;
        for key in &args[1..] {
            if self.live(key).is_some() {
                self.remove(key);
                deleted += 1;
            }
        }
        Ok(Reply::Int(deleted))
    }

    pub(super) fn pttl(&mut self, args: &[&[u8]]) -> Answer {
        let now = self.unix_millis();
        Ok(Reply::Int(
            match self.live(args[1]).map(|entry| entry.expires) {
                None => -2,
                Some(None) => -1,
                Some(Some(expires)) => (expires - now).max(0),
            },
        ))
    }

    pub(super) fn pexpire(&mut self, args: &[&[u8]]) -> Answer {
        let now = self.unix_millis();
        let when = integer(args[2]).ok_or_else(|| error(NO_INTEGER))? + now;
        if self.live(args[1]).is_none() {
            return Ok(Reply::Int(0));
        }
        if when <= now {
            self.remove(args[1]);
        } else {
            self.expire_at(args[1], when);
        }
        Ok(Reply::Int(1))
    }

    pub(super) fn time(&mut self, _: &[&[u8]]) -> Answer {
        let micros = self.unix_micros();
        let parts = [micros / 1_000_000, micros % 1_000_000];
        Ok(Reply::Array(
            parts.map(|part| bulk(part.to_string())).to_vec(),
        ))
    }
}
