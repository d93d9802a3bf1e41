//! What Redis answers, turned into small enums.

use std::time::Duration;

use redis::Value;

use crate::holder::Holder;
use crate::store::link::accepted;
use crate::store::trouble::{Refusal, Trouble};

/// What came of an attempt to take a lock.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The key was free, and holds our token now.
    Taken,
    /// The key holds our token already: an earlier attempt, whose answer was lost, had taken it.
    TakenBefore,
    /// Somebody else holds it: who, where that was asked and they still did.
    Busy(Option<Holder>),
    /// The key holds something that is not a string.
    NotAString,
}

/// What a compare-and-delete or a compare-and-extend found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// The token stood there, and it is done.
    Done,
    /// Nothing stood there.
    Absent,
    /// Something else stands there.
    NotOurs,
}

/// What stands at a key.
#[derive(Debug)]
pub(crate) enum Seen {
    Nothing,
    Somebody(Holder),
    NotAString,
}

/// Whether Redis will tell the listener when a key changes that was looked at.
#[derive(Debug)]
pub(crate) enum Watch {
    /// It was not asked to.
    Off,
    /// It will, once.
    On,
    /// It will not.
    Refused(Refusal),
}

/// Reads the reply of a script that compares.
pub(super) fn compared(reply: Result<Value, Trouble>) -> Result<Compared, Trouble> {
    match reply {
        Ok(Value::Int(1)) => Ok(Compared::Done),
        Ok(Value::Int(0)) => Ok(Compared::Absent),
        Ok(Value::Int(-1)) => Ok(Compared::NotOurs),
        Ok(other) => Err(unexpected(&other)),
        Err(Trouble::Refused(refusal)) if refusal.code == "WRONGTYPE" => Ok(Compared::NotOurs),
        Err(trouble) => Err(trouble),
    }
}

/// Reads the replies of `GET` and `PTTL`.
pub(super) fn seen(value: Value, left: Value) -> Result<Seen, Trouble> {
    let value = match accepted(value) {
        Err(Trouble::Refused(refusal)) if refusal.code == "WRONGTYPE" => return Ok(Seen::NotAString),
        other => other?,
    };
    match (value, accepted(left)?) {
        (Value::Nil, _) | (_, Value::Int(-2)) => Ok(Seen::Nothing),
        (Value::BulkString(value), left) => Ok(Seen::Somebody(Holder::new(&value, time_left(&left)))),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Reads the reply of `SET NX`: whether the key was set.
pub(super) fn was_set(reply: &Value) -> Result<bool, Trouble> {
    match reply {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        other => Err(unexpected(other)),
    }
}

/// Reads the reply of `CLIENT TRACKING`.
pub(super) fn watch(reply: Value) -> Watch {
    match reply {
        Value::ServerError(error) => Watch::Refused(Refusal::new(&error)),
        _ => Watch::On,
    }
}

/// `PTTL`'s answer: milliseconds, or -1 for a key that never expires.
pub(super) fn time_left(reply: &Value) -> Option<Duration> {
    match reply {
        Value::Int(millis) => u64::try_from(*millis).ok().map(Duration::from_millis),
        _ => Some(Duration::ZERO),
    }
}

/// Whoever answers so is not Redis, or not in step with us: what became of the command is not known.
fn unexpected(reply: &Value) -> Trouble {
    let kind = match reply {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a string",
        Value::Array(_) => "an array",
        _ => "something else",
    };
    Trouble::Unanswered { link_stands: false, cause: format!("the reply made no sense: {kind}").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_makes_no_sense_is_named_and_settles_nothing() {
        for (reply, name) in [
            (Value::Nil, "nil"),
            (Value::Int(7), "an integer"),
            (Value::Okay, "a string"),
            (Value::BulkString(b"secret".to_vec()), "a string"),
            (Value::Array(Vec::new()), "an array"),
            (Value::Boolean(true), "something else"),
        ] {
            let Err(Trouble::Unanswered { link_stands: false, cause }) = compared(Ok(reply)) else {
                panic!("{name} says nothing of the command");
            };
            assert_eq!(cause.to_string(), format!("the reply made no sense: {name}"));
        }
        assert!(was_set(&Value::Int(1)).is_err(), "`SET` does not count");
    }
}
