//! Reads the reply to each command into a small enum.

use std::time::Duration;

use crate::base::owner::holder::Holder;
use crate::client::wire::failure::{Failure, nonsense};
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;

/// What came of an attempt to take a lock.
#[derive(Debug)]
pub(crate) enum ClaimReply {
    /// The key was free, and holds the caller's token now. The number is the fencing token, if one
    /// was wanted, or that of the slot, if this is one of several.
    Taken { number: Option<u64> },
    /// The key already holds a string. `Some` if the command asked for it. The string is the
    /// caller's own token if an earlier attempt, whose answer was lost, has taken the lock.
    Busy(Option<Holder>),
    /// The key holds something that is not a string.
    NotAString,
}

/// What came of an attempt to adopt a lock.
#[derive(Debug)]
pub(crate) enum AdoptReply {
    /// The key holds the caller's token now. `None`: no fencing token was wanted.
    Adopted {
        fence: Option<u64>,
    },
    Absent,
    NotOurs,
}

/// What a compare-and-delete or a compare-and-extend found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// `1`: the key held the token, and was deleted or extended.
    Done,
    /// `0`: there is no key.
    Absent,
    /// `-1`: the key holds another token.
    NotOurs,
}

#[derive(Debug)]
pub(crate) enum Seen {
    Nothing,
    Somebody(Holder),
    NotAString,
}

/// Whether Redis sends the listener an invalidation when the key changes.
#[derive(Debug)]
pub(crate) enum Tracking {
    /// The command did not ask for an invalidation.
    Off,
    /// Redis sends an invalidation, unless the connection over which the key was read ends.
    On {
        link: u64,
    },
    /// A store in memory wakes the waiter itself.
    Direct,
    Refused(Refusal),
}

/// Reads the reply to a script that compares the token.
pub(crate) fn read_compared(reply: Result<Reply, Failure>) -> Result<Compared, Failure> {
    match reply {
        Ok(Reply::Int(1)) => Ok(Compared::Done),
        Ok(Reply::Int(0)) => Ok(Compared::Absent),
        Ok(Reply::Int(-1)) => Ok(Compared::NotOurs),
        Ok(other) => Err(nonsense(&other)),
        Err(Failure::Refused(refusal)) if refusal.code == "WRONGTYPE" => Ok(Compared::NotOurs),
        Err(failure) => Err(failure),
    }
}

/// Reads the reply to the script that extends the lease of a hold, and answers with its token.
pub(crate) fn read_extended(
    reply: Result<Reply, Failure>,
    token: &str,
) -> Result<Compared, Failure> {
    match reply {
        Ok(Reply::Bytes(said)) if said == token.as_bytes() => Ok(Compared::Done),
        Ok(one @ Reply::Int(1)) => Err(nonsense(&one)),
        other => read_compared(other),
    }
}

/// Reads the reply to a script that takes a lock, or says who has it. If it has taken the lock, it
/// answers `token` and, if it `is_numbered`, a space and the number.
pub(crate) fn read_claim(
    reply: Result<Reply, Failure>,
    token: &str,
    is_numbered: bool,
) -> Result<ClaimReply, Failure> {
    let number_of = |said: &[u8]| match (said.strip_prefix(token.as_bytes())?, is_numbered) {
        ([], false) => Some(None),
        ([b' ', digits @ ..], true) => read_fence(digits).map(Some),
        _ => None,
    };
    match reply {
        Ok(Reply::Bytes(said)) => match number_of(&said) {
            Some(number) => Ok(ClaimReply::Taken { number }),
            None => Err(nonsense(&Reply::Bytes(said))),
        },
        Ok(Reply::Array(parts)) if is_numbered || parts.len() == 2 => {
            read_holder(parts).map(|holder| ClaimReply::Busy(Some(holder)))
        }
        Ok(other) => Err(nonsense(&other)),
        Err(Failure::Refused(refusal)) if refusal.code == "WRONGTYPE" => Ok(ClaimReply::NotAString),
        Err(failure) => Err(failure),
    }
}

/// Reads the reply to the script that swaps the token.
pub(crate) fn read_adoption(
    reply: Result<Reply, Failure>,
    token: &str,
    is_fenced: bool,
) -> Result<AdoptReply, Failure> {
    match reply {
        Ok(Reply::Int(0)) => Ok(AdoptReply::Absent),
        other => Ok(match read_claim(other, token, is_fenced)? {
            ClaimReply::Taken { number: fence } => AdoptReply::Adopted { fence },
            ClaimReply::Busy(_) | ClaimReply::NotAString => AdoptReply::NotOurs,
        }),
    }
}

/// Reads the number in a counter. `None` if it is not a number, or is zero: the counter is gone.
fn read_fence(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits)
        .ok()?
        .parse()
        .ok()
        .filter(|fence| *fence > 0)
}

/// Reads the reply to the script that finds out who has a lock.
pub(crate) fn read_seen(reply: Result<Reply, Failure>) -> Result<Seen, Failure> {
    match reply {
        Ok(Reply::Nil) => Ok(Seen::Nothing),
        Ok(Reply::Array(parts)) => read_holder(parts).map(Seen::Somebody),
        Ok(other) => Err(nonsense(&other)),
        Err(Failure::Refused(refusal)) if refusal.code == "WRONGTYPE" => Ok(Seen::NotAString),
        Err(failure) => Err(failure),
    }
}

/// Reads value, TTL and, if it was asked for, the number in the counter.
fn read_holder(parts: Vec<Reply>) -> Result<Holder, Failure> {
    match parts.as_slice() {
        [Reply::Bytes(value), left] => Ok(Holder::new(value, read_time_left(left)?)),
        [Reply::Bytes(value), left, Reply::Bytes(digits)] => {
            Ok(Holder::new(value, read_time_left(left)?).with_fence(read_fence(digits)))
        }
        _ => Err(nonsense(&Reply::Array(parts))),
    }
}

/// Reads the reply to the script that deletes a key whatever its value.
pub(crate) fn read_deleted(reply: Reply) -> Result<Option<Holder>, Failure> {
    let parts = match reply {
        Reply::Nil => return Ok(None),
        Reply::Array(parts) => parts,
        other => return Err(nonsense(&other)),
    };
    match parts.as_slice() {
        [Reply::Bytes(value), left] => Ok(Some(Holder::new(value, read_time_left(left)?))),
        [Reply::Nil, left] => Ok(Some(Holder::new(b"(not a string)", read_time_left(left)?))),
        _ => Err(nonsense(&Reply::Array(parts))),
    }
}

/// Reads the reply to `SET NX`.
pub(crate) fn read_set(reply: &Reply) -> Result<ClaimReply, Failure> {
    match reply {
        Reply::Ok => Ok(ClaimReply::Taken { number: None }),
        Reply::Nil => Ok(ClaimReply::Busy(None)),
        other => Err(nonsense(other)),
    }
}

/// Reads the reply to `CLIENT TRACKING` on a link.
pub(crate) fn read_tracking(reply: Reply, link: u64) -> Tracking {
    match reply {
        Reply::Ok => Tracking::On { link },
        Reply::Error(error) => Tracking::Refused(*error),
        // The reply is no refusal, but a waiter must not rely on invalidations now: it would sleep
        // for a long time.
        other => Tracking::Refused(Refusal::nonsense(other.kind())),
    }
}

/// Reads the reply to `PTTL`: milliseconds, or -1 for a key that never expires.
fn read_time_left(reply: &Reply) -> Result<Option<Duration>, Failure> {
    match reply {
        Reply::Int(-1) => Ok(None),
        Reply::Int(millis @ 0..) => Ok(Some(Duration::from_millis(millis.unsigned_abs()))),
        other => Err(nonsense(other)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::client::wire::failure::{accept_change, expect_ok, expect_pong};
    use crate::client::wire::resp::tests::said as error;

    fn token() -> String {
        format!("host-1-2-{}", "0".repeat(32))
    }

    /// Any reply from a server.
    fn any_value() -> impl Strategy<Value = Reply> {
        let plain = prop_oneof![
            Just(Reply::Nil),
            Just(Reply::Ok),
            any::<i64>().prop_map(Reply::Int),
            (-3_i64..3).prop_map(Reply::Int),
            vec(any::<u8>(), 0..40).prop_map(Reply::Bytes),
            Just(Reply::Bytes(token().into_bytes())),
            any::<String>().prop_map(Reply::Line),
            "[A-Z]{0,10}[^\r]{0,700}".prop_map(|said| error(&said)),
            Just(error("WRONGTYPE not a string")),
        ];
        plain.prop_recursive(4, 24, 3, |inner| vec(inner, 0..3).prop_map(Reply::Array))
    }

    /// True if the reply made no sense. The failure then says that the connection must not be used
    /// again.
    fn makes_no_sense<T>(read: &Result<T, Failure>) -> bool {
        matches!(
            read,
            Err(Failure::Unanswered {
                link_stands: false,
                ..
            })
        )
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_reply_is_read_or_makes_no_sense(value in any_value(), left in any_value()) {
            let is_refusal = |value: &Reply| matches!(accept_change(value.clone()), Err(Failure::Refused(_)));
            let read = read_compared(accept_change(value.clone()));
            let sensible = matches!(value, Reply::Int(-1..=1)) || is_refusal(&value);
            prop_assert_eq!(makes_no_sense(&read), !sensible);

            let parts = Reply::Array(vec![value.clone(), left.clone()]);
            let sensible = matches!((&value, &left), (Reply::Bytes(_), Reply::Int(-1..)));
            prop_assert_eq!(makes_no_sense(&read_claim(accept_change(parts.clone()), &token(), false)), !sensible);
            prop_assert_eq!(makes_no_sense(&read_seen(accept_change(parts))), !sensible);
            let sensible = matches!(value, Reply::Nil) || is_refusal(&value);
            let is_list = matches!(value, Reply::Array(_));
            prop_assert!(is_list || makes_no_sense(&read_seen(accept_change(value.clone()))) != sensible);

            let set = read_set(&value);
            prop_assert_eq!(makes_no_sense(&set), !matches!(value, Reply::Ok | Reply::Nil));

            let agreed = expect_ok(value.clone());
            prop_assert_eq!(agreed.is_ok(), matches!(value, Reply::Ok));
            prop_assert_eq!(makes_no_sense(&agreed), agreed.is_err() && !matches!(value, Reply::Error(_)));

            let is_on = matches!(read_tracking(value.clone(), 7), Tracking::On { link: 7 });
            prop_assert_eq!(is_on, matches!(value, Reply::Ok));
        }

        #[test]
        fn what_was_deleted_is_read_or_makes_no_sense(
            reply in any_value(),
            parts in vec(any_value(), 0..4),
        ) {
            if !matches!(reply, Reply::Nil | Reply::Array(_)) {
                prop_assert!(makes_no_sense(&read_deleted(reply)));
            }
            let is_read = matches!(
                parts.as_slice(),
                [Reply::Bytes(_) | Reply::Nil, Reply::Int(-1..)]
            );
            let read = read_deleted(Reply::Array(parts));
            prop_assert_eq!(matches!(read, Ok(Some(_))), is_read);
            prop_assert_eq!(makes_no_sense(&read), !is_read);
        }
    }

    #[test]
    fn an_error_that_may_come_after_the_command_was_executed_is_no_answer() {
        for line in [
            "upstream failure",
            "no upstream host",
            "ERR Connection timed out",
            "ERR Connection refused",
            "ERR backend closed the connection",
            "ERR",
            "",
            "UNKNOWN nobody knows",
            "oom in small letters",
        ] {
            let Err(Failure::Unanswered {
                link_stands: false,
                cause,
            }) = accept_change(error(line))
            else {
                panic!("{line:?} does not say what became of the command")
            };
            assert_eq!(cause.to_string(), line.trim_end());
            assert!(
                matches!(expect_ok(error(line)), Err(Failure::Refused(_))),
                "a login changes no lock"
            );
        }
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn an_attempt_is_read() {
        let read = |reply, fenced| read_claim(accept_change(reply), &token(), fenced);
        let own = token();
        let busy = |value: &str, left| vec![bytes(value), Reply::Int(left)];
        let with_fence = |fence: &str| Reply::Array([busy(&own, 5), vec![bytes(fence)]].concat());
        // Without a fence, and with one: its number, or who has the lock.
        for (reply, plain, fenced) in [
            (bytes(&own), "taken None", ""),
            (bytes(&format!("{own} 7")), "", "taken Some(7)"),
            (
                Reply::Array(busy(&own, 5)),
                "busy Some(5ms) None",
                "busy Some(5ms) None",
            ),
            (
                Reply::Array(busy("other", -1)),
                "busy None None",
                "busy None None",
            ),
            (with_fence("7"), "", "busy Some(5ms) Some(7)"),
            // The counter was gone.
            (with_fence("0"), "", "busy Some(5ms) None"),
            (error("WRONGTYPE no"), "no string", "no string"),
            (error("OOM no"), "refused", "refused"),
            // A lock without a fence would be taken for one that is not fenced.
            (bytes(&format!("{own} 0")), "", ""),
            (bytes(&format!("{own} ")), "", ""),
            (bytes(&format!("{own} -7")), "", ""),
            // Replies to another command, or from no script of ours.
            (bytes("another 7"), "", ""),
            (bytes("7"), "", ""),
            (Reply::Array(busy("other", -2)), "", ""),
            (Reply::Array(vec![Reply::Nil, Reply::Int(-2)]), "", ""),
            (Reply::Array(Vec::new()), "", ""),
            (error("upstream failure"), "", ""),
            (Reply::Nil, "", ""),
            (Reply::Ok, "", ""),
            (Reply::Int(7), "", ""),
        ] {
            for (is_fenced, expected) in [(false, plain), (true, fenced)] {
                let read = read(reply.clone(), is_fenced);
                let told = match &read {
                    Ok(ClaimReply::Taken { number }) => format!("taken {number:?}"),
                    Ok(ClaimReply::Busy(Some(it))) => {
                        format!("busy {:?} {:?}", it.remaining, it.fence)
                    }
                    Ok(ClaimReply::NotAString) => "no string".to_owned(),
                    Err(Failure::Refused(_)) => "refused".to_owned(),
                    _ => String::new(),
                };
                assert_eq!(told, expected, "{reply:?}, fenced: {is_fenced}");
                assert_eq!(makes_no_sense(&read), expected.is_empty(), "{reply:?}");
            }
        }
    }

    #[test]
    fn a_renewal_and_a_look_are_read() {
        let read = |reply| read_extended(accept_change(reply), &token());
        for (reply, expected) in [
            (bytes(&token()), Some(Compared::Done)),
            (Reply::Int(0), Some(Compared::Absent)),
            (Reply::Int(-1), Some(Compared::NotOurs)),
            // Replies to another command.
            (Reply::Int(1), None),
            (Reply::Ok, None),
            (bytes("another token"), None),
        ] {
            let read = read(reply);
            assert_eq!(makes_no_sense(&read), expected.is_none());
            assert_eq!(read.ok(), expected);
        }
        let look = |reply| read_seen(accept_change(reply));
        assert!(matches!(look(Reply::Nil), Ok(Seen::Nothing)));
        assert!(matches!(look(error("WRONGTYPE no")), Ok(Seen::NotAString)));
        let longest = Reply::Array(vec![bytes(&token()), Reply::Int(i64::MAX)]);
        let left = Duration::from_millis(i64::MAX.unsigned_abs());
        assert!(matches!(look(longest), Ok(Seen::Somebody(it)) if it.remaining == Some(left)));
        assert!(expect_pong(Reply::Line("PONG".to_owned())).is_ok());
        assert!(makes_no_sense(&expect_pong(Reply::Ok)));
    }

    #[test]
    fn a_reply_that_makes_no_sense_is_told_without_its_text() {
        for (reply, name) in [
            (Reply::Nil, "nil"),
            (Reply::Int(7), "an integer"),
            (bytes("secret"), "a string"),
            (Reply::Array(Vec::new()), "an array"),
            (error("ERR"), "an error"),
        ] {
            let failure = read_compared(Ok(reply)).unwrap_err();
            assert_eq!(failure.text(), format!("the reply made no sense: {name}"));
        }
    }
}
