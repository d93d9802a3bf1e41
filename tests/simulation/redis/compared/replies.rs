//! When two replies agree.

use relatch_rig::server_version;

pub(super) fn command(words: &[impl AsRef<str>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|it| it == b"\r\n")? + 2;
    let number = || {
        std::str::from_utf8(&bytes[1..end - 2])
            .expect("the real server and this test work")
            .parse::<i64>()
            .expect("the real server and this test work")
    };
    match bytes[0] {
        b'$' => {
            let length = usize::try_from(number()).map_or(end, |length| end + length + 2);
            (length <= bytes.len()).then_some(length)
        }
        b'*' => (0..number()).try_fold(end, |at, _| Some(at + frame_length(&bytes[at..])?)),
        _ => Some(end),
    }
}

/// True if two answers differ in nothing but times: numbers of milliseconds or of microseconds.
pub(super) fn agree(one: &[u8], other: &[u8], tolerance: i64) -> bool {
    let (one, other) = (numbers(one), numbers(other));
    one.len() == other.len()
        && one
            .iter()
            .zip(&other)
            .all(|(one, other)| match (one, other) {
                (Ok(one), Ok(other)) => {
                    let within = if *one > 1_000_000_000_000_000 {
                        tolerance
                    } else {
                        1 + tolerance / 1000
                    };
                    one == other || *one > 9_999 && (one - other).abs() <= within
                }
                (one, other) => one == other,
            })
}

/// Beginnings of replies of a Redis 7.0, and what other versions answer in their place.
pub(super) const ELSEWHERE: [(&str, &str); 5] = [
    // `HELLO` names the server, its version, and modules.
    ("*14\r\n$6\r\nserver\r\n", "*14\r\n$6\r\nserver\r\n"),
    // Redis 7.2 knows the subcommand.
    ("-ERR unknown subcommand 'SETINFO'", "+OK\r\n"),
    ("-ERR unknown subcommand 'SETINFO'", "-NOAUTH "),
    // Valkey 9 asks in another order.
    ("-CLUSTERDOWN Hash slot not served", "-CROSSSLOT "),
    ("-ERR wrong number of arguments", "-NOAUTH "),
];

/// True if a server that is no Redis 7.0 answers so in place of what the simulated one answers. The
/// texts of its errors are its own. Their codes, which the crate reads, are the same.
pub(super) fn is_known(real: &[u8], simulated: &[u8]) -> bool {
    let code = |reply: &[u8]| {
        let end = reply.iter().position(|byte| *byte == b' ')?;
        (reply[0] == b'-').then(|| reply[..end].to_vec())
    };
    let is_it = |it: &(&str, &str)| {
        simulated.starts_with(it.0.as_bytes()) && real.starts_with(it.1.as_bytes())
    };
    server_version() != (7, 0)
        && (code(real).is_some_and(|it| Some(it) == code(simulated)) || ELSEWHERE.iter().any(is_it))
}

/// The text, cut into numbers and what is between them.
pub(super) fn numbers(text: &[u8]) -> Vec<Result<i64, &[u8]>> {
    let parts = text.chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit());
    let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse().ok();
    parts.map(|part| number(part).ok_or(part)).collect()
}

pub(super) fn show(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}
