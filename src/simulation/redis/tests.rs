//! What no real server is asked: faults, replicas that lag, sentinels.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn command(words: &str) -> Vec<u8> {
    let words: Vec<&str> = words.split(' ').collect();
    let parts = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    (format!("*{}\r\n", words.len()) + &parts.collect::<String>()).into_bytes()
}

/// What the server says to all its clients after this command.
fn said(redis: &mut Redis, client: Client, words: &str, now: u64) -> String {
    redis.receive(client, &command(words), now);
    heard(redis)
}

fn heard(redis: &mut Redis) -> String {
    let output = redis.take_output().into_iter();
    let text = output.map(|(_, output)| match output {
        Output::Bytes(bytes) => String::from_utf8(bytes)
            .expect("UTF-8")
            .replace("\r\n", " "),
        Output::Close => "closed ".to_owned(),
    });
    text.collect()
}

fn string(text: &str) -> Entry {
    Entry {
        value: Value::String(text.as_bytes().to_vec()),
        expires: None,
    }
}

#[test]
fn after_a_restart_numbers_begin_again_and_scripts_are_forgotten() {
    for keeps_data in [false, true] {
        let mut redis = Redis::new(Settings::default());
        let old = redis.connect(0);
        assert_eq!(said(&mut redis, old, "EVAL return{} 0", 0), "*0 ");
        let known = format!("EVALSHA {} 0", ::redis::Script::new("return{}").get_hash());
        assert_eq!(said(&mut redis, old, &known, 0), "*0 ");
        assert_eq!(said(&mut redis, old, "SET a one PX 1000", 0), "+OK ");
        redis.restart(keeps_data, 1);
        assert_eq!(heard(&mut redis), "closed ");
        let new = redis.connect(1);
        assert!(new > old);
        assert_eq!(said(&mut redis, new, "CLIENT ID", 1), ":1 ");
        assert!(said(&mut redis, new, &known, 1).starts_with("-NOSCRIPT"));
        assert_eq!(
            said(&mut redis, new, "GET a", 1),
            if keeps_data { "$3 one " } else { "$-1 " }
        );
        assert_eq!(
            said(&mut redis, old, "GET a", 1),
            "",
            "nobody hears the old connection"
        );
        redis.advance(2 * SECOND);
        assert_eq!((redis.keys().count(), redis.next_due()), (0, None));
    }
}

#[test]
fn a_key_is_removed_when_it_is_due_also_after_a_step_of_the_clock() {
    let mut redis = Redis::new(Settings {
        expiry_delay: SECOND,
        ..Settings::default()
    });
    let [listener, reader] = [0; 2].map(|now| redis.connect(now));
    said(&mut redis, listener, "SUBSCRIBE __redis__:invalidate", 0);
    for words in [
        "SET a one PX 1000",
        "CLIENT TRACKING ON REDIRECT 1",
        "GET a",
    ] {
        said(&mut redis, reader, words, 0);
    }
    let due = redis.next_due().expect("a key has an expiry");
    assert_eq!(due, 2 * SECOND + 1_000_000);
    redis.advance(due - 1);
    assert_eq!((heard(&mut redis), redis.get(b"a")), (String::new(), None));
    redis.step_clock(-500_000_000);
    assert!(redis.get(b"a").is_none() && redis.next_due() == Some(due + SECOND / 2));
    redis.advance(due + SECOND / 2);
    assert_eq!(
        heard(&mut redis),
        "*3 $7 message $20 __redis__:invalidate *1 $1 a "
    );
    redis.set(b"b", string("two"), 3 * SECOND);
    redis.delete(b"b", 3 * SECOND);
    assert!(
        heard(&mut redis).is_empty() && redis.get(b"b").is_none(),
        "nobody has read it"
    );
    redis.set(b"b", string("two"), 3 * SECOND);
    assert_eq!(redis.clock(), 1_700_000_002_500);
    said(&mut redis, reader, "GET b", 3 * SECOND);
    redis.flush(3 * SECOND);
    assert_eq!(
        heard(&mut redis),
        "*3 $7 message $20 __redis__:invalidate $-1 "
    );
}

#[test]
fn a_promoted_replica_lacks_what_has_not_arrived() {
    let settings = || Settings {
        replicates: true,
        timeout_delay: 0,
        ..Settings::default()
    };
    let (mut master, mut replica) = (Redis::new(settings()), Redis::new(settings()));
    replica.demote(0);
    let nothing: Snapshot = master.snapshot();
    replica.load(nothing, 0);
    let client = master.connect(0);
    for words in ["SET a one", "SET b two"] {
        said(&mut master, client, words, 0);
    }
    let writes: Vec<Write> = master.take_writes();
    replica.apply(&writes[0], 1);
    master.acknowledge(7, replica.offset(), 1);
    assert_eq!(said(&mut master, client, "WAIT 1 1000", 1), "");
    assert_eq!(master.next_due(), Some(SECOND + 1));
    master.advance(SECOND + 1);
    assert_eq!(heard(&mut master), ":0 ");
    assert_eq!(said(&mut master, client, "WAIT 0 1000", SECOND + 1), ":0 ");
    master.acknowledge(7, writes[1].offset, SECOND + 1);
    assert_eq!(said(&mut master, client, "WAIT 1 1000", SECOND + 1), ":1 ");
    master.forget_replica(7);
    assert_eq!(said(&mut master, client, "WAIT 0 1000", SECOND + 1), ":0 ");
    master.restart(true, 2 * SECOND);
    replica.promote(2 * SECOND);
    assert_eq!(
        (replica.get(b"a"), replica.get(b"b")),
        (Some(&string("one")), None)
    );
    master.demote(2 * SECOND);
    master.load(replica.snapshot(), 2 * SECOND);
    assert!(master.get(b"b").is_none() && master.is_replica());
}

#[test]
fn a_sentinel_names_the_master_and_reports_another_one() {
    let mut sentinel = Redis::new(Settings::default());
    let at = |port| ("10.0.0.1".to_owned(), port);
    let (name, others) = ("main".to_owned(), vec![at(3)]);
    sentinel.watch(Watched {
        name,
        master: at(1),
        epoch: 1,
        replicas: 1,
        others,
    });
    let client = sentinel.connect(0);
    let ask = "SENTINEL get-master-addr-by-name main";
    assert_eq!(said(&mut sentinel, client, ask, 0), "*2 $8 10.0.0.1 $1 1 ");
    assert_eq!(
        said(
            &mut sentinel,
            client,
            "SENTINEL get-master-addr-by-name other",
            0
        ),
        "*-1 "
    );
    assert!(said(&mut sentinel, client, "GET a", 0).starts_with("-ERR unknown command 'GET'"));
    said(&mut sentinel, client, "SUBSCRIBE +switch-master", 0);
    sentinel.switch_master(at(2), 2, 0);
    let message = "*3 $7 message $14 +switch-master $26 main 10.0.0.1 1 10.0.0.1 2 ";
    assert_eq!(heard(&mut sentinel), message);
}
