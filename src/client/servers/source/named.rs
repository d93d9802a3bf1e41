//! What a sentinel answers: who is the master, who the other sentinels are, how new that is.

use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::{Failure, accept};
use crate::client::wire::resp::Reply;

/// The address of a server, according to a sentinel.
pub(super) fn place(host: &str, port: &str) -> Option<Place> {
    Place::announced(host, port.parse().ok()?)
}

/// Reads the reply to `SENTINEL get-master-addr-by-name`. `None` if the sentinel does not know the
/// name.
pub(super) fn read_master(reply: Reply) -> Result<Option<Place>, Failure> {
    let parts = match accept(reply)? {
        Reply::Nil => return Ok(None),
        Reply::Array(parts) => parts,
        _ => Vec::new(),
    };
    let read = || place(parts.first()?.text()?, parts.get(1)?.text()?);
    read()
        .map(Some)
        .ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))
}

/// Reads the reply to `SENTINEL sentinels`: where the other sentinels are.
pub(super) fn read_others(others: &[Reply]) -> impl Iterator<Item = Place> {
    others
        .iter()
        .filter_map(|other| place(other.field("ip")?, other.field("port")?))
}

/// Reads the epoch in the reply to `SENTINEL master`.
pub(super) fn read_epoch(master: &Reply) -> Option<u64> {
    master.field("config-epoch")?.parse().ok()
}

/// Reads the number of replicas in the reply to `SENTINEL master`.
pub(super) fn read_replicas(master: Reply) -> Result<u32, Failure> {
    let master = accept(master)?;
    let count = master.field("num-slaves").and_then(|it| it.parse().ok());
    count.ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))
}

/// Adds to a refusal which sentinel it came from.
pub(super) fn refused_by(sentinel: &Endpoint, failure: Failure) -> Failure {
    let Failure::Refused(mut refusal) = failure else {
        return failure;
    };
    let what = if refusal.says("unknown command") {
        "is not a sentinel"
    } else {
        "is a sentinel that refuses"
    };
    refusal.message = format!("{} {what}: {refusal}", sentinel.name());
    Failure::Refused(refusal)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::client::servers::slots::tests::{any_host, is_sound};
    use crate::client::wire::resp::tests::{garbled_reply, list};

    /// What a sentinel says about a server that it watches, or about another sentinel.
    fn any_server() -> impl Strategy<Value = (String, u16, u64, u32)> {
        (any_host(), 1..=u16::MAX, any::<u64>(), any::<u32>())
    }

    fn written((host, port, epoch, replicas): &(String, u16, u64, u32)) -> Reply {
        let (port, epoch, replicas) = (port.to_string(), epoch.to_string(), replicas.to_string());
        list([
            "name",
            "x",
            "ip",
            host,
            "port",
            &port,
            "num-slaves",
            &replicas,
            "config-epoch",
            &epoch,
        ])
    }

    fn address((host, port, ..): &(String, u16, u64, u32)) -> Reply {
        list([host, &port.to_string()])
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn what_a_sentinel_answers_is_read_as_it_was_written(servers in vec(any_server(), 1..4)) {
            let places: Vec<_> = servers.iter().map(|(host, port, ..)| Place::announced(host, *port).unwrap()).collect();
            let replies: Vec<_> = servers.iter().map(written).collect();
            prop_assert_eq!(read_others(&replies).collect::<Vec<_>>(), places.clone());
            let (_, _, epoch, replicas) = servers[0];
            prop_assert_eq!(read_epoch(&replies[0]), Some(epoch));
            prop_assert_eq!(read_replicas(replies[0].clone()).unwrap(), replicas);
            prop_assert_eq!(read_master(address(&servers[0])).unwrap(), Some(places[0].clone()));
        }

        #[test]
        fn any_answer_of_a_sentinel_is_read_or_makes_no_sense(
            master in garbled_reply(any_server().prop_map(|it| address(&it))),
            others in garbled_reply(vec(any_server(), 0..4).prop_map(|all| Reply::Array(all.iter().map(written).collect()))),
        ) {
            if let Ok(Some(place)) = read_master(master) {
                prop_assert!(is_sound(&place), "{}", place);
            }
            if let Reply::Array(others) = others {
                prop_assert!(read_others(&others).all(|place| is_sound(&place)));
                for other in others {
                    let _ = read_epoch(&other);
                    let _ = read_replicas(other);
                }
            }
        }
    }
}
