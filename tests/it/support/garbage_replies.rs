//! What a server may send instead of an answer.

use std::time::Duration;

use relatch_rig::Reply;

/// How long a reply without an end goes on: longer than any call waits.
const TIME: Duration = Duration::from_secs(20);

/// What Redis replies to a listener at first.
pub(crate) const SUBSCRIBED: &str =
    "*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n";

/// Replies of types that no command here gets.
const WRONG: [&str; 18] = [
    "+QUEUED\r\n",
    "*0\r\n",
    "*1\r\n+OK\r\n",
    "*2\r\n:1\r\n$-1\r\n",
    "*3\r\n$1\r\na\r\n:1\r\n:1\r\n",
    "%1\r\n+a\r\n:1\r\n",
    "~1\r\n+a\r\n",
    "#t\r\n",
    ",1.5\r\n",
    ",nan\r\n",
    "(123456789012345678901234567890\r\n",
    "=7\r\ntxt:abc\r\n",
    ">2\r\n+a\r\n+b\r\n",
    ">3\r\n$7\r\nmessage\r\n$22\r\n__redis__:invalidate\r\n*0\r\n",
    ">-5\r\n",
    "|1\r\n+a\r\n+b\r\n+OK\r\n",
    "|0\r\n+OK\r\n",
    ":-9\r\n",
];

/// Bytes that are no RESP.
const GARBAGE: [&[u8]; 12] = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"+\xff\xfe\r\n",
    b"-\xff\xfe\r\n",
    b":abc\r\n",
    b"#x\r\n",
    b"=3\r\nabc\r\n",
    b">1\r\n:1\r\n",
    b"$5\r\nhelloworld",
    b"$99999999999999999999\r\n",
    b"*99999999999999999999\r\n",
    b"%9223372036854775807\r\n\r\n",
    b"\r\n\r\n",
];

/// Errors with control characters, which could forge lines of a log, and errors without a text.
const ERRORS: [&str; 5] = [
    "-ERR \x1b[2J\x07\nWARN relatch::lost lock \"a\" was lost\r\n",
    "-\r\n",
    "!0\r\n\r\n",
    "!11\r\nERR a\r\nb\0c\r\n",
    "!-0\r\n\r\n",
];

/// The beginnings of replies that never end.
pub(crate) const ENDLESS: [&str; 12] = [
    "+",
    "-ERR ",
    "$9223372036854775807\r\n",
    "$549755813888\r\n",
    "*2147483647\r\n",
    "*9223372036854775807\r\n",
    "%4611686018427387903\r\n",
    "|4611686018427387903\r\n",
    "~9223372036854775807\r\n",
    ">9223372036854775807\r\n",
    "!-1\r\n",
    "=-1\r\n",
];

/// Lists in lists, too deep for a parser that recurses on a thread's stack.
fn nested() -> impl Iterator<Item = Vec<u8>> {
    [
        "*1\r\n",
        "%1\r\n",
        "|1\r\n",
        "~1\r\n",
        ">1\r\n",
        "*4096\r\n",
    ]
    .iter()
    .map(|head| head.repeat(100_000 / 4).into())
}

/// All replies that answer nothing and have an end.
pub(crate) fn nonsense() -> Vec<Reply> {
    let wrong = WRONG
        .iter()
        .chain(&ERRORS)
        .map(|text| text.as_bytes().to_vec());
    let long = [b"-".to_vec(), b"x".repeat(60_000), b"\r\n".to_vec()].concat();
    let all = wrong
        .chain(GARBAGE.iter().map(|bytes| bytes.to_vec()))
        .chain(nested())
        .chain([long]);
    all.map(Reply::Bytes).chain([Reply::Close]).collect()
}

/// Replies without an end.
pub(crate) fn streams() -> [Reply; 4] {
    [
        ("+", "x"),
        ("$549755813888\r\n", "x"),
        ("*9223372036854775807\r\n", "$-1\r\n"),
        ("+a\r\n", "+a\r\n"),
    ]
    .map(|(first, again)| Reply::Endless(first.into(), again.into(), TIME))
}

/// What a listener might receive after it has subscribed.
pub(crate) fn messages() -> Vec<Reply> {
    let payloads = [
        "$-1",
        ":5",
        "+a",
        "*1\r\n:1",
        "*2\r\n*0\r\n$-1",
        "%0",
        "*-1",
        "*1\r\n$2\r\n\u{e9}",
    ]
    .map(str::to_owned);
    let many = format!("*10000{}", "\r\n$6\r\nlock:a".repeat(10_000));
    let start = format!("{SUBSCRIBED}*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n");
    let said = payloads
        .into_iter()
        .chain([many])
        .map(|payload| format!("{start}{payload}\r\n").into_bytes());
    let after = |say| match say {
        Reply::Bytes(bytes) => [SUBSCRIBED.as_bytes(), &bytes].concat(),
        _ => SUBSCRIBED.into(),
    };
    let endless = streams().map(|say| match say {
        Reply::Endless(first, again, time) => {
            Reply::Endless([SUBSCRIBED.as_bytes(), &first].concat(), again, time)
        }
        other => other,
    });
    said.chain(nonsense().into_iter().map(after))
        .map(Reply::Bytes)
        .chain(endless)
        .collect()
}
