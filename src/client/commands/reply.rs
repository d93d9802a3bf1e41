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
    /// The key holds a string already. `Some` if the command asked for it. The string is the
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
    /// Redis sends an invalidation, unless the connection ends over which the key was read.
    On {
        link: u64,
    },
    /// A store in memory wakes the waiter itself.
    Direct,
    Refused(Refusal),
}

/// Reads the reply of a script that compares the token.
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

/// Reads the reply of the script that extends the lease of a hold with this token, which it
/// answers.
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

/// Reads the reply of a script that takes a lock, or says who has it. If it has taken the lock, it
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

/// Reads the reply of the script that swaps the token.
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

/// Reads the number in a counter. `None` if it is no number, or zero: the counter is gone.
fn read_fence(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits)
        .ok()?
        .parse()
        .ok()
        .filter(|fence| *fence > 0)
}

/// Reads the reply of the script that looks who has a lock.
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

/// Reads the reply of the script that deletes a key whatever its value.
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

/// Reads the reply of `SET NX`.
pub(crate) fn read_set(reply: &Reply) -> Result<ClaimReply, Failure> {
    match reply {
        Reply::Ok => Ok(ClaimReply::Taken { number: None }),
        Reply::Nil => Ok(ClaimReply::Busy(None)),
        other => Err(nonsense(other)),
    }
}

/// Reads the reply of `CLIENT TRACKING` on a link.
pub(crate) fn read_tracking(reply: Reply, link: u64) -> Tracking {
    match reply {
        Reply::Ok => Tracking::On { link },
        Reply::Error(error) => Tracking::Refused(*error),
        // The reply is no refusal, but a waiter must not rely on invalidations now: it would sleep
        // for long.
        other => Tracking::Refused(Refusal::nonsense(other.kind())),
    }
}

/// Reads the reply of `PTTL`: milliseconds, or -1 for a key that never expires.
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
    use crate::client::wire::failure::{accept, accept_change, expect_ok, expect_pong};
    use crate::client::wire::resp::tests::said as error;

    fn token() -> String {
        format!("host-1-2-{}", "0".repeat(32))
    }

    /// Any reply of a server.
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

    fn is_legible(refusal: &Refusal) -> bool {
        [&refusal.code, &refusal.message]
            .iter()
            .all(|text| text.chars().count() <= 503 && !text.chars().any(char::is_control))
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_reply_is_read_or_makes_no_sense(value in any_value(), left in any_value()) {
            let is_error = matches!(value, Reply::Error(_));
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
            prop_assert_eq!(makes_no_sense(&agreed), agreed.is_err() && !is_error);
            let alive = expect_pong(value.clone());
            prop_assert_eq!(makes_no_sense(&alive), alive.is_err() && !is_error);

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

        #[test]
        fn the_text_of_an_error_is_one_line_of_bounded_length(line in "[^\r]{0,2000}") {
            let Err(Failure::Refused(refusal)) = accept(error(&line)) else {
                return Err(TestCaseError::fail("an error is a refusal"));
            };
            prop_assert!(is_legible(&refusal), "{:?}", refusal);
        }
    }

    #[test]
    fn an_attempt_by_script_is_read() {
        let read = |reply| read_claim(accept_change(reply), &token(), false);
        let bytes = |text: String| Reply::Bytes(text.into_bytes());
        let busy = |value: &str, left| {
            read(Reply::Array(vec![
                Reply::Bytes(value.as_bytes().to_vec()),
                Reply::Int(left),
            ]))
        };
        assert!(matches!(
            read(bytes(token())),
            Ok(ClaimReply::Taken { number: None })
        ));
        assert!(matches!(busy(&token(), 5), Ok(ClaimReply::Busy(Some(own))) if own.raw == token()));
        let Ok(ClaimReply::Busy(Some(holder))) = busy("other", -1) else {
            panic!("another holds it")
        };
        assert_eq!((&*holder.raw, holder.remaining), ("other", None));
        assert!(matches!(
            read(error("WRONGTYPE no")),
            Ok(ClaimReply::NotAString)
        ));
        assert!(matches!(read(error("OOM no")), Err(Failure::Refused(_))));
        // Busy, but without a holder: the script never answers that.
        let nobody = Reply::Array(vec![Reply::Nil, Reply::Int(-2)]);
        // To another command.
        let others = [Reply::Ok, Reply::Int(1), bytes("another token".to_owned())];
        let no_answers = [
            nobody,
            Reply::Nil,
            Reply::Array(vec![]),
            error("upstream failure"),
        ];
        for nonsense in no_answers.into_iter().chain(others) {
            assert!(makes_no_sense(&read(nonsense.clone())), "{nonsense:?}");
        }
        assert!(makes_no_sense(&busy("other", -2)));
    }

    #[test]
    fn a_fenced_attempt_is_read() {
        let read = |reply| read_claim(accept_change(reply), &token(), true);
        let array = |more: &[Reply]| {
            Reply::Array([&[Reply::Bytes(token().into_bytes()), Reply::Int(5)], more].concat())
        };
        let fence_of = |reply| match read(reply) {
            Ok(ClaimReply::Busy(Some(holder))) => holder.fence,
            other => panic!("it is busy: {other:?}"),
        };
        let digits = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
        let taken = |by: &str, number| digits(&format!("{by} {number}"));
        let numbered = read(taken(&token(), "1784000000000007"));
        assert!(matches!(
            numbered,
            Ok(ClaimReply::Taken {
                number: Some(1_784_000_000_000_007)
            })
        ));
        assert_eq!(fence_of(array(&[])), None);
        assert_eq!(fence_of(array(&[digits("7")])), Some(7));
        assert_eq!(
            fence_of(array(&[digits("0")])),
            None,
            "the counter was gone"
        );
        // A lock without a fence would be taken for one that is not fenced.
        let no_digits = ["0", "", "-7", "x"].map(|number| taken(&token(), number));
        let others = [
            array(&[Reply::Nil]),
            taken("another", "7"),
            digits(&token()),
            digits("7"),
            Reply::Ok,
        ];
        for nonsense in no_digits
            .into_iter()
            .chain(others)
            .chain([Reply::Int(7), Reply::Nil])
        {
            assert!(makes_no_sense(&read(nonsense.clone())), "{nonsense:?}");
        }
        for of_a_fence in [
            taken(&token(), "7"),
            taken(&token(), ""),
            array(&[digits("7")]),
        ] {
            assert!(makes_no_sense(&read_claim(
                accept_change(of_a_fence),
                &token(),
                false
            )));
        }
    }

    #[test]
    fn a_renewal_is_read() {
        let read = |reply| read_extended(accept_change(reply), &token());
        assert!(matches!(
            read(Reply::Bytes(token().into_bytes())),
            Ok(Compared::Done)
        ));
        assert!(matches!(read(Reply::Int(0)), Ok(Compared::Absent)));
        assert!(matches!(read(Reply::Int(-1)), Ok(Compared::NotOurs)));
        for of_another in [
            Reply::Int(1),
            Reply::Ok,
            Reply::Bytes(b"another token".to_vec()),
        ] {
            assert!(makes_no_sense(&read(of_another.clone())), "{of_another:?}");
        }
    }

    #[test]
    fn the_answers_of_redis_are_read() {
        let token = || Reply::Bytes(token().into_bytes());
        assert!(expect_pong(Reply::Line("PONG".to_owned())).is_ok());
        assert!(makes_no_sense(&expect_pong(Reply::Ok)));
        let look = |reply| read_seen(accept_change(reply));
        assert!(matches!(look(Reply::Nil), Ok(Seen::Nothing)));
        assert!(matches!(look(error("WRONGTYPE no")), Ok(Seen::NotAString)));
        let Ok(Seen::Somebody(holder)) = look(Reply::Array(vec![token(), Reply::Int(i64::MAX)]))
        else {
            panic!("it is held");
        };
        assert_eq!(
            holder.remaining,
            Some(Duration::from_millis(i64::MAX.unsigned_abs()))
        );
        let Ok(Some(holder)) = read_deleted(Reply::Array(vec![token(), Reply::Int(-1)])) else {
            panic!("it was held");
        };
        assert_eq!(holder.remaining, None);
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

    #[test]
    fn a_reply_that_makes_no_sense_leaves_the_fate_of_the_command_unknown() {
        for (reply, name) in [
            (Reply::Nil, "nil"),
            (Reply::Int(7), "an integer"),
            (Reply::Ok, "a string"),
            (Reply::Bytes(b"secret".to_vec()), "a string"),
            (Reply::Array(Vec::new()), "an array"),
            (error("ERR"), "an error"),
        ] {
            let Err(Failure::Unanswered {
                link_stands: false,
                cause,
            }) = read_compared(Ok(reply))
            else {
                panic!("{name} does not answer the command");
            };
            assert_eq!(
                cause.to_string(),
                format!("the reply made no sense: {name}")
            );
        }
        assert!(
            read_set(&Reply::Int(1)).is_err(),
            "`SET` never answers a number"
        );
    }
}
