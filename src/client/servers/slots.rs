//! The slots of a cluster: which slot a key is in, and which server has a slot.
//!
//! Source: the [Redis Cluster
//! specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

pub(crate) use crate::base::key::hash_tag;
use crate::client::wire::endpoint::Place;
use crate::client::wire::failure::{Failure, nonsense};
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16384;

/// A map with more masters than this is not believed. Redis recommends a thousand nodes at most.
const MOST_MASTERS: usize = 1000;

/// CRC-16/XMODEM of each byte: polynomial 0x1021, initial value 0.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// The slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// Slots in a row, and the master that has them.
pub(crate) type Range = (RangeInclusive<u16>, Place);

/// Reads the reply to `CLUSTER SLOTS` of the server at `asked`: the slots with their masters, and
/// all replicas. Leaves out servers whose address that server does not know. Refuses a map that has
/// more slots in all than a cluster, or more than [`MOST_MASTERS`] masters: so a wrong reply cannot
/// fill the memory. (A slot may be in two ranges.)
pub(crate) fn ranges(
    reply: &Reply,
    asked: &Place,
) -> Result<(Vec<Range>, BTreeSet<Place>), Failure> {
    let Reply::Array(entries) = reply else {
        return Err(nonsense(reply));
    };
    let mut ranges = Vec::new();
    let mut replicas = BTreeSet::new();
    let mut slots = 0;
    for entry in entries {
        let (first, last, servers) = read(entry).ok_or_else(|| nonsense(reply))?;
        slots += u64::from(last - first) + 1;
        let mut servers = servers
            .into_iter()
            .map(|(host, port)| place(host, port, asked));
        if let Some(master) = servers.next().flatten() {
            ranges.push((first..=last, master));
        }
        replicas.extend(servers.flatten());
    }
    if slots > SLOTS.into() {
        return Err(nonsense(reply));
    }
    let masters = ranges
        .iter()
        .map(|(_, master)| master)
        .collect::<BTreeSet<_>>()
        .len();
    if masters > MOST_MASTERS {
        let message =
            format!("the map of the cluster has {masters} masters, more than {MOST_MASTERS}");
        return Err(Failure::Refused(Refusal::found("", message)));
    }
    Ok((ranges, replicas))
}

/// First slot, last slot, and host and port of the servers, of which the first is the master.
type Entry<'a> = (u16, u16, Vec<(&'a str, u16)>);

fn read(entry: &Reply) -> Option<Entry<'_>> {
    let Reply::Array(parts) = entry else {
        return None;
    };
    let [Reply::Int(first), Reply::Int(last), servers @ ..] = parts.as_slice() else {
        return None;
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|number| *number < SLOTS);
    let first = slot(first)?;
    let last = slot(last)?;
    let servers: Option<Vec<_>> = servers.iter().map(read_server).collect();
    servers
        .filter(|servers| first <= last && !servers.is_empty())
        .map(|servers| (first, last, servers))
}

/// Host and port of a server. (Its id and further details follow.)
fn read_server(server: &Reply) -> Option<(&str, u16)> {
    let Reply::Array(parts) = server else {
        return None;
    };
    let [host, Reply::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let host = if *host == Reply::Nil {
        ""
    } else {
        host.text()?
    };
    Some((host, u16::try_from(*port).ok()?))
}

/// The server at this host and port. Without a host, it is the host where the server that named it
/// was asked. `None` for a server whose address is not known (`?`).
fn place(host: &str, port: u16, asked: &Place) -> Option<Place> {
    match asked {
        // The program has named it.
        Place::Tcp { host: of_asked, .. } if host.is_empty() => (port != 0).then(|| Place::Tcp {
            host: of_asked.clone(),
            port,
        }),
        _ => Place::announced(host, port),
    }
}

/// `MOVED` or `ASK`: another server has the slot of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) to: Place,
    /// `ASK`: the slot is on its way there. The command has to be sent after `ASKING`, and the next
    /// command for the slot goes to the old server again.
    pub(crate) asks: bool,
}

impl Redirect {
    /// Reads an error from the server at `asked`: `MOVED slot host:port`, all of which is in the
    /// message. (Redis writes an IPv6 address without brackets; with them it is read, too.) `None`
    /// for any other error.
    pub(crate) fn read(refusal: &Refusal, asked: &Place) -> Option<Redirect> {
        let asks = match &*refusal.code {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (host, port) = refusal.address()?.rsplit_once(':')?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Some(Redirect {
            to: place(host, port.parse().ok()?, asked)?,
            asks,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;
    use crate::client::wire::resp::tests::garbled_reply;

    /// A host, as a server may name it.
    pub(in super::super) fn any_host() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z]{1,8}(\\.[a-z-]{1,8}){0,2}",
            any::<std::net::Ipv4Addr>().prop_map(|it| it.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|it| it.to_string()),
        ]
    }

    /// True for a place that may be shown in a log.
    pub(in super::super) fn is_sound(place: &Place) -> bool {
        let text = place.to_string();
        text.len() < 300
            && text.bytes().all(|byte| byte.is_ascii_graphic())
            && !text.ends_with(":0")
    }

    /// The servers of each range of slots, by its first slot.
    type Sketch = BTreeMap<u16, Vec<(String, u16)>>;

    fn any_map() -> impl Strategy<Value = Sketch> {
        let servers = vec((any_host(), 1..=u16::MAX), 1..3);
        btree_map(0..SLOTS, servers, 0..6)
    }

    /// The reply for such a map, and what is read in it. The last slot of a range is the one before
    /// the next range.
    fn written(map: Sketch) -> (Reply, Vec<Range>) {
        let firsts = map.keys().skip(1).copied();
        let ends: Vec<_> = firsts.chain([SLOTS]).collect();
        let mut entries = Vec::new();
        let mut expected = Vec::new();
        for ((first, servers), end) in map.into_iter().zip(ends) {
            let (host, port) = &servers[0];
            expected.push((first..=end - 1, at(host, *port)));
            let servers = servers.into_iter().map(|(host, port)| {
                let host = Reply::Bytes(host.into_bytes());
                Reply::Array(vec![
                    host,
                    Reply::Int(port.into()),
                    Reply::Bytes(vec![b'a'; 40]),
                ])
            });
            let range = [first, end - 1].map(|slot| Reply::Int(slot.into()));
            entries.push(Reply::Array(range.into_iter().chain(servers).collect()));
        }
        (Reply::Array(entries), expected)
    }

    /// The reply to `CLUSTER SLOTS` with some map.
    pub(in super::super) fn any_slots() -> impl Strategy<Value = Reply> {
        any_map().prop_map(|map| written(map).0)
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn a_map_is_read_as_it_was_written(map in any_map()) {
            let (reply, expected) = written(map);
            prop_assert_eq!(ranges(&reply, &at("asked", 9)).unwrap().0, expected);
        }

        /// A map's cost is bounded, and it leads to no place that could not be shown.
        #[test]
        fn any_map_is_read_or_refused(reply in garbled_reply(any_slots())) {
            if let Ok((ranges, replicas)) = ranges(&reply, &at("asked", 9)) {
                let slots = ranges.iter().map(|(range, _)| range.len());
                prop_assert!(slots.sum::<usize>() <= SLOTS.into());
                for (range, master) in &ranges {
                    prop_assert!(range.start() <= range.end() && *range.end() < SLOTS);
                    prop_assert!(is_sound(master), "{}", master);
                }
                prop_assert!(replicas.iter().all(is_sound), "{:?}", replicas);
            }
        }

        #[test]
        fn a_redirect_is_read_as_it_was_written(host in any_host(), port in 1..=u16::MAX, brackets: bool) {
            let to = at(&host, port);
            let named = if brackets { to.to_string() } else { format!("{host}:{port}") };
            let read = Redirect::read(&Refusal::new(&format!("MOVED 3999 {named}"), ""), &at("asked", 9));
            prop_assert_eq!(read, Some(Redirect { to, asks: false }));
        }

        #[test]
        fn any_redirect_leads_to_a_place_or_nowhere(
            error in garbled::text((any_host(), 0..SLOTS, any::<u16>()).prop_map(|(host, slot, port)| format!("ASK {slot} {host}:{port}"))),
        ) {
            if let Some(redirect) = Redirect::read(&Refusal::new(&error, ""), &at("asked", 9)) {
                prop_assert!(is_sound(&redirect.to), "{}", redirect.to);
            }
        }
    }

    fn at(host: &str, port: u16) -> Place {
        Place::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    /// The first vector is from the specification. In `tests/it/many/cluster.rs`, the judge is
    /// Redis's `CLUSTER KEYSLOT`.
    #[test]
    fn the_slot_of_a_key_is_that_of_its_tag() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, tag_of) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar{zap}", "zap"),
            ("", ""),
        ] {
            assert_eq!(
                slot(key.as_bytes()),
                crc16(tag_of.as_bytes()) % SLOTS,
                "{key}"
            );
        }
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{foo}bar"), 12182);
    }

    fn entry(first: i64, last: i64, host: Reply, port: i64) -> Reply {
        let id = Reply::Bytes(b"an id".to_vec());
        let master = Reply::Array(vec![host, Reply::Int(port), id, Reply::Array(Vec::new())]);
        Reply::Array(vec![
            Reply::Int(first),
            Reply::Int(last),
            master.clone(),
            master,
        ])
    }

    #[test]
    fn the_map_names_hosts_or_leaves_them_to_the_server_that_was_asked() {
        let named = |host: &str| Reply::Bytes(host.as_bytes().to_vec());
        let reply = Reply::Array(vec![
            entry(0, 99, named("a"), 1),
            entry(100, 100, Reply::Nil, 2),
            entry(101, 200, named(""), 3),
            entry(201, 300, named("?"), 4),
            entry(301, 16383, named("::1"), 5),
        ]);
        let (read, replicas) = ranges(&reply, &at("asked", 9)).unwrap();
        let expected = [
            (0..=99, at("a", 1)),
            (100..=100, at("asked", 2)),
            (101..=200, at("asked", 3)),
            (301..=16383, at("::1", 5)),
        ];
        assert_eq!(read, expected);
        assert_eq!(replicas, expected.map(|(_, master)| master).into());
    }

    #[test]
    fn a_host_that_is_left_out_is_whatever_the_program_has_named() {
        let map = |port| Reply::Array(vec![entry(0, 16383, Reply::Nil, port)]);
        for host in ["b\u{fc}cher", "fe80::1%eth0"] {
            assert_eq!(ranges(&map(1), &at(host, 9)).unwrap().0[0].1, at(host, 1));
            assert!(ranges(&map(0), &at(host, 9)).unwrap().0.is_empty());
        }
    }

    #[test]
    fn a_map_that_makes_no_sense_is_refused() {
        let host = || Reply::Bytes(b"a".to_vec());
        for reply in [
            Reply::Nil,
            Reply::Array(vec![Reply::Int(1)]),
            Reply::Array(vec![entry(5, 4, host(), 1)]),
            Reply::Array(vec![entry(0, 16384, host(), 1)]),
            Reply::Array(vec![entry(-1, 4, host(), 1)]),
            Reply::Array(vec![entry(0, 4, host(), 65536)]),
            Reply::Array(vec![entry(0, 4, Reply::Int(1), 1)]),
            Reply::Array(vec![entry(0, 16383, host(), 1), entry(5, 5, host(), 1)]),
        ] {
            assert!(ranges(&reply, &at("asked", 9)).is_err(), "{reply:?}");
        }
    }

    #[test]
    fn a_map_with_too_many_masters_is_refused_with_their_number() {
        let map = |masters: i64| {
            let entry = |n| entry(n, n, Reply::Bytes(b"a".to_vec()), 1 + n % masters);
            ranges(
                &Reply::Array((0..SLOTS.into()).map(entry).collect()),
                &at("asked", 9),
            )
        };
        assert_eq!(
            map(1000).unwrap().0.len(),
            usize::from(SLOTS),
            "a range for each slot"
        );
        let failure = map(1001).unwrap_err();
        assert!(
            !failure.can_pass() && failure.text().contains("1001 masters"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_redirect_names_the_server() {
        let read = |error: &str| Redirect::read(&Refusal::new(error, ""), &at("asked", 9));
        let to = |host, port, asks| {
            Some(Redirect {
                to: at(host, port),
                asks,
            })
        };
        assert_eq!(
            read("MOVED 3999 127.0.0.1:6381"),
            to("127.0.0.1", 6381, false)
        );
        assert_eq!(
            read("ASK 3999 redis.example.org:6381"),
            to("redis.example.org", 6381, true)
        );
        assert_eq!(read("MOVED 3999 :6380"), to("asked", 6380, false));
        assert_eq!(
            read("MOVED 3999 2001:db8::1:6380"),
            to("2001:db8::1", 6380, false)
        );
        assert_eq!(read("MOVED 3999 [::1]:6380"), to("::1", 6380, false));
        for error in [
            "MOVED 3999 ?:6380",
            "MOVED 3999 a:0",
            "MOVED 3999 a",
            "MOVED 3999 a:b:6380",
            "MOVED 3999 a/b:6380",
            "MOVED",
            "TRYAGAIN Multiple keys",
            "ERR MOVED 1 a:1",
        ] {
            assert_eq!(read(error), None, "{error}");
        }
    }
}
