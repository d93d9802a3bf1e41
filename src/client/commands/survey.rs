//! The commands that find all locks on a server. None of them keeps it busy for long.

use crate::base::clock::Moment;
use crate::client::commands::connection::{ServerConnection, next};
use crate::client::commands::reply::{Seen, read_seen};
use crate::client::wire::failure::{Failure, accept, nonsense};
use crate::client::wire::resp::{Batch, Reply};

/// What one step of a walk through all keys of a server has found.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// Where the next step begins. `None` after the last one.
    pub(crate) next: Option<String>,
    pub(crate) keys: Vec<Vec<u8>>,
}

impl ServerConnection {
    /// Walks on from a cursor ("0" at the beginning), past this many keys of the server, and
    /// returns those that begin with the prefix. Some may come twice.
    pub(crate) fn scan(
        &mut self,
        cursor: &str,
        prefix: &str,
        count: u32,
        deadline: Moment,
    ) -> Result<Scanned, Failure> {
        let pattern = pattern(prefix);
        let command = [
            "SCAN",
            cursor,
            "MATCH",
            &pattern,
            "COUNT",
            &count.to_string(),
        ];
        self.lent.link()?.stream.expect_list();
        let reply = self.ask(&Batch::of(&command), deadline)?;
        self.judged(accept(reply).and_then(read_step))
    }

    /// Reads the holder of each of these keys, in their order. Value and time are read one after
    /// the other, and without a script: that is twice as fast, and good enough for people. A key
    /// that is on another node by now counts as gone.
    pub(crate) fn look_at_all(
        &mut self,
        keys: &[Vec<u8>],
        deadline: Moment,
    ) -> Result<Vec<Seen>, Failure> {
        let batch = keys.iter().fold(Batch::default(), |batch, key| {
            let value = [b"GETRANGE", &**key, b"0", b"255"];
            batch.and(&value).and(&[b"PTTL", &**key])
        });
        let mut replies = self.exchange(&batch, deadline)?.into_iter();
        let seen = keys
            .iter()
            .map(|_| read_look(next(&mut replies), next(&mut replies)))
            .collect();
        self.judged(seen)
    }
}

/// Reads the beginning of a value, and what `PTTL` says.
fn read_look(value: Reply, left: Reply) -> Result<Seen, Failure> {
    match (accept(value), accept(left)) {
        (Err(Failure::Refused(refusal)), _) | (_, Err(Failure::Refused(refusal)))
            if refusal.is_redirect() =>
        {
            Ok(Seen::Nothing)
        }
        (Ok(_), Ok(Reply::Int(-2))) => Ok(Seen::Nothing),
        (Ok(value), Ok(left)) => read_seen(Ok(Reply::Array(vec![value, left]))),
        (Err(failure), _) | (_, Err(failure)) => read_seen(Err(failure)),
    }
}

/// The pattern of all texts that begin with the prefix.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

fn read_step(reply: Reply) -> Result<Scanned, Failure> {
    let mut parts = match reply {
        Reply::Array(parts) => parts.into_iter(),
        other => return Err(nonsense(&other)),
    };
    let (Some(Reply::Bytes(cursor)), Some(Reply::Array(found)), None) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Err(nonsense(&Reply::Nil));
    };
    let cursor = String::from_utf8_lossy(&cursor).into_owned();
    let keys = found.into_iter().map(|key| match key {
        Reply::Bytes(key) => Ok(key),
        other => Err(nonsense(&other)),
    });
    Ok(Scanned {
        next: Some(cursor).filter(|cursor| cursor != "0"),
        keys: keys.collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::client::wire::resp::tests::{garbled_reply, said as error};

    fn step(cursor: u64, keys: &[Vec<u8>]) -> Reply {
        let keys = keys.iter().cloned().map(Reply::Bytes).collect();
        Reply::Array(vec![
            Reply::Bytes(cursor.to_string().into_bytes()),
            Reply::Array(keys),
        ])
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn a_step_is_read_as_it_was_written(cursor: u64, keys in vec(vec(any::<u8>(), 0..20), 0..5)) {
            let read = read_step(step(cursor, &keys)).unwrap();
            prop_assert_eq!(read.next, Some(cursor.to_string()).filter(|it| it != "0"));
            prop_assert_eq!(read.keys, keys);
        }

        #[test]
        fn any_step_and_look_are_read_or_make_no_sense(
            reply in garbled_reply(vec(vec(any::<u8>(), 0..20), 0..5).prop_map(|keys| step(17, &keys))),
            value in garbled_reply(Just(Reply::Bytes(b"host-1-2-00112233445566778899aabbccddeeff".to_vec()))),
            left in garbled_reply(any::<i64>().prop_map(Reply::Int)),
        ) {
            let _ = read_step(reply);
            let _ = read_look(value, left);
        }
    }

    #[test]
    fn a_prefix_means_itself() {
        assert_eq!(pattern("lock:"), "lock:*");
        assert_eq!(pattern("a*[b]?\\^"), "a\\*\\[b\\]\\?\\\\\\^*");
        assert_eq!(pattern(""), "*");
    }

    #[test]
    fn a_look_is_read_or_makes_no_sense() {
        let look = |value: &Reply, left: Reply| read_look(value.clone(), left);
        let value = Reply::Bytes(b"token".to_vec());
        assert!(matches!(look(&value, Reply::Int(5)), Ok(Seen::Somebody(_))));
        assert!(matches!(
            look(&value, Reply::Int(-1)),
            Ok(Seen::Somebody(_))
        ));
        assert!(matches!(look(&value, Reply::Int(-2)), Ok(Seen::Nothing)));
        let list = error("WRONGTYPE it is a list");
        assert!(matches!(look(&list, Reply::Int(5)), Ok(Seen::NotAString)));
        for moved in [error("MOVED 7 host:1"), error("ASK 7 host:1")] {
            assert!(matches!(look(&moved, Reply::Int(5)), Ok(Seen::Nothing)));
            assert!(matches!(look(&value, moved), Ok(Seen::Nothing)));
        }
        assert!(look(&value, error("NOPERM pttl")).is_err());
        assert!(look(&error("NOPERM getrange"), Reply::Int(5)).is_err());
        assert!(look(&Reply::Nil, Reply::Int(5)).is_err());
        assert!(look(&value, Reply::Nil).is_err());
    }

    #[test]
    fn a_step_is_read_or_makes_no_sense() {
        let bytes = |text: &str| Reply::Bytes(text.into());
        let step = |cursor, keys| read_step(Reply::Array(vec![cursor, Reply::Array(keys)]));
        let more = step(bytes("17"), vec![bytes("a"), bytes("b")]).unwrap();
        assert_eq!((more.next.as_deref(), more.keys.len()), (Some("17"), 2));
        let last = step(bytes("0"), vec![]).unwrap();
        assert!(last.next.is_none() && last.keys.is_empty());
        assert!(step(Reply::Int(0), vec![]).is_err());
        assert!(step(bytes("0"), vec![Reply::Nil]).is_err());
        assert!(read_step(Reply::Ok).is_err());
        assert!(read_step(Reply::Array(vec![bytes("0")])).is_err());
    }
}
