//! The beginning of a connection: which way it is opened, who logs in, and what must be at the
//! other end.
//!
//! All commands of a login go out in one batch, so it costs one round trip.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::owner::host_name;
use crate::base::sync::mpsc::{self, RecvTimeoutError};
use crate::base::sync::{process, thread};
use crate::client::wire::endpoint::{Endpoint, Login};
use crate::client::wire::failure::{Failure, accept, expect_ok, nonsense};
use crate::client::wire::link::{Link, Role};
use crate::client::wire::refusal::{Refusal, legible};
use crate::client::wire::resp::{Batch, Reply};
use crate::client::wire::socket::{Ender, SHORTEST, Way};

/// A function that returns a user and a password.
pub(crate) type AskCredentials = Arc<dyn Fn() -> (String, String) + Send + Sync>;

/// The refusal code for a server that turns out to be a node of a cluster.
pub(crate) const CLUSTER_NODE: &str = "CLUSTERNODE";

/// The refusal code for a server that should be a node of a cluster, and is not.
pub(crate) const NO_NODE: &str = "NOCLUSTER";

/// How many calls of [`AskCredentials`] may be under way at a time, if they do not return. (Each
/// call has a reference, and there are a few others.)
const MOST_ASKED: usize = 100;

/// How to begin a connection.
#[derive(Clone)]
pub(crate) struct Access {
    credentials: Option<Credentials>,
    db: i64,
    /// The name that `CLIENT LIST` shows. Empty: the connection gets no name.
    client_name: String,
    expected: Expected,
}

#[derive(Clone)]
pub(crate) enum Credentials {
    Fixed(Login),
    /// Asked for each connection, for passwords that expire.
    Asked(AskCredentials),
}

/// What has to be at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// One server, whatever its role: while it is a replica, it refuses each `SET`.
    Server,
    /// The master that the sentinels named.
    Master,
    /// A node of a cluster. If it is a replica, it names the master instead of answering.
    ClusterNode,
    /// A sentinel. Its answers show what it is.
    Sentinel,
}

impl Access {
    pub(crate) fn new(credentials: Option<Credentials>, db: i64, expected: Expected) -> Access {
        let client_name = format!("relatch:{}-{}", host_name(), process::id());
        Access {
            credentials,
            db,
            client_name,
            expected,
        }
    }

    pub(crate) fn expects(&self, expected: Expected) -> bool {
        self.expected == expected
    }

    pub(crate) fn expecting(self, expected: Expected) -> Access {
        Access { expected, ..self }
    }

    /// Connects and logs in over the first of `ways` that works, and sends `first` with the login.
    /// Also returns the replies to `first`. `connected` gets each connection's ender before the
    /// login, and can refuse the connection.
    ///
    /// Each way gets half of the time that is left, and the last one all of it: an address may be
    /// dead, or accept connections and answer nothing. (With equal shares, a server that is far
    /// away could not be reached by a name with many addresses.) A server that refuses the login
    /// for good has answered, and no other way is tried.
    pub(crate) fn open(
        &self,
        endpoint: &Endpoint,
        ways: &[Way],
        first: &[&[&str]],
        deadline: Moment,
        connected: impl Fn(Ender) -> Result<(), Failure>,
    ) -> Result<(Link, Vec<Reply>), Failure> {
        let mut last = None;
        for (at, way) in ways.iter().enumerate() {
            let now = Moment::now();
            let left = deadline.since(now);
            if left < SHORTEST {
                break;
            }
            let limit = now.after(if at + 1 < ways.len() { left / 2 } else { left });
            let opened = Link::connect(endpoint, way, limit).and_then(|mut link| {
                connected(link.stream.ender())?;
                let replies = self.begin(endpoint.name(), &mut link, first, limit)?;
                Ok((link, replies))
            });
            match opened {
                Ok(opened) => {
                    endpoint.worked(way);
                    return Ok(opened);
                }
                Err(failure @ Failure::Refused(_)) if !failure.can_pass() => return Err(failure),
                // Another address may lead to no server at all, and that would hide why this server
                // refused.
                Err(_) if matches!(last, Some(Failure::Tls { .. } | Failure::Refused(_))) => {}
                Err(failure) => last = Some(failure),
            }
        }
        Err(last.unwrap_or_else(|| {
            Failure::OutOfTime(
                io::Error::new(io::ErrorKind::TimedOut, "no time was left to connect").into(),
            )
        }))
    }

    /// Asks a server, over a connection that is opened for it. The questions go out with the login:
    /// saving a round trip matters where the server is far away.
    pub(crate) fn ask<const N: usize>(
        &self,
        endpoint: &Endpoint,
        commands: [&[&str]; N],
        time: Duration,
        connected: impl Fn(Ender) -> Result<(), Failure>,
    ) -> Result<[Reply; N], Failure> {
        let ways = endpoint.ways()?;
        let deadline = Moment::now().after(time);
        let (_, replies) = self.open(endpoint, &ways, &commands, deadline, connected)?;
        // They were sent, but they change nothing: the caller may ask again.
        replies
            .try_into()
            .map_err(|_| Failure::not_sent("replies are missing"))
    }

    /// Logs in at `server`, and sends `first` in the same batch. Returns the replies to `first`.
    fn begin(
        &self,
        server: &str,
        link: &mut Link,
        first: &[&[&str]],
        deadline: Moment,
    ) -> Result<Vec<Reply>, Failure> {
        let credentials = self
            .credentials
            .as_ref()
            .map(|it| it.get(deadline))
            .transpose()?;
        let batch = self.batch(credentials.as_ref(), first);
        let authenticates = credentials.is_some();
        if let Some((_, password)) = credentials {
            link.stream.hide(password);
        }
        if self.expected == Expected::ClusterNode && !first.is_empty() {
            link.stream.expect_list();
        }
        let answer = link.exchange(&batch, deadline).and_then(|replies| {
            let mut replies = replies.into_iter();
            let greeting = self.read(authenticates, &mut replies)?;
            if let Some(greeting) = &greeting {
                debug!(target: "relatch::connection", "{server} is {}", told_by(greeting));
            }
            let field = |name| greeting.as_ref().and_then(|it| it.field(name));
            if let Some("replica" | "slave") = field("role") {
                link.role = Role::Replica;
            }
            let mode = field("mode");
            if self.expected == Expected::ClusterNode && mode == Some("standalone") {
                knows_slots(link, deadline)?;
            }
            if link.probe() {
                return Err(Failure::not_sent(
                    "the server closed the connection, or sent too much",
                ));
            }
            Ok(replies.collect())
        });
        answer.map_err(|failure| match failure {
            // Even if the login was executed, no lock command has been sent yet. A server that
            // accepts no client sends the reason, and ends the connection.
            Failure::Unanswered { cause, .. } => match cause.downcast() {
                Ok(refusal) if is_about_the_client(&refusal) => Failure::Refused(*refusal),
                Ok(refusal) => Failure::NotSent(refusal),
                Err(cause) => Failure::NotSent(cause),
            },
            other => other,
        })
    }

    fn batch(&self, credentials: Option<&(Option<String>, String)>, first: &[&[&str]]) -> Batch {
        let mut batch = Batch::default();
        batch = match credentials {
            Some((Some(username), password)) => batch.and(&["AUTH", username, password]),
            Some((None, password)) => batch.and(&["AUTH", password]),
            None => batch,
        };
        if self.expected != Expected::Sentinel {
            batch = batch.and(&["HELLO", "2"]);
        }
        batch = batch.and(&["CLIENT", "SETNAME", &self.client_name]);
        if self.db != 0 {
            batch = batch.and(&["SELECT", &self.db.to_string()]);
        }
        first
            .iter()
            .fold(batch, |batch, command| batch.and(command))
    }

    /// Reads the replies to the login, in the order of [`Self::batch`]. Returns the reply to
    /// `HELLO`, if the server has allowed that command.
    fn read(
        &self,
        authenticates: bool,
        replies: &mut impl Iterator<Item = Reply>,
    ) -> Result<Option<Reply>, Failure> {
        let mut next = || replies.next().unwrap_or(Reply::Nil);
        if authenticates {
            expect_ok(next())?;
        }
        let asks = self.expected != Expected::Sentinel;
        let greeting = if asks { optional(next())? } else { None };
        match &greeting {
            Some(Reply::Array(_)) | None => {}
            Some(other) => return Err(nonsense(other)),
        }
        if let Some(greeting) = &greeting {
            check_greeting(greeting, self.expected)?;
        }
        // A connection works without a name, too.
        optional(next())?.map_or(Ok(()), expect_ok)?;
        if self.db != 0 {
            expect_ok(next())?;
        }
        Ok(greeting)
    }
}

impl Credentials {
    /// The user, if one is named, and the password.
    ///
    /// The program's function runs on a thread of its own: the connection may be opened by a thread
    /// that renews leases, or in a drop.
    fn get(&self, deadline: Moment) -> Result<(Option<String>, String), Failure> {
        let asked = match self {
            Credentials::Fixed(Login { username, password }) => {
                return Ok((username.clone(), password.clone()));
            }
            Credentials::Asked(asked) => asked,
        };
        let failed =
            |what| Failure::not_sent(format!("the function that returns the credentials {what}"));
        let ask = loop {
            // Callers that wait have no reference: if they had, enough of them would wait for each
            // other.
            let ask = Arc::clone(asked);
            if Arc::strong_count(&ask) <= MOST_ASKED {
                break ask;
            }
            drop(ask);
            if deadline <= Moment::now() {
                return Err(failed("has too often failed to return"));
            }
            thread::sleep(Duration::from_millis(1));
        };
        let (tell, told) = mpsc::channel();
        let thread = thread::Builder::new().name("relatch-login".to_owned());
        let asks = thread.spawn(move || tell.send(ask()));
        asks.map_err(Failure::not_sent)?;
        let answer = told.recv_timeout(deadline.since(Moment::now()));
        let (username, password) = answer.map_err(|why| match why {
            RecvTimeoutError::Timeout => failed("takes too long"),
            RecvTimeoutError::Disconnected => failed("panicked"),
        })?;
        Ok((Some(username).filter(|it| !it.is_empty()), password))
    }
}

/// Returns an error if `greeting`, the reply to `HELLO`, shows that something else is at the other
/// end. Nothing is known if the server does not know the command, or if the user may not call it.
fn check_greeting(greeting: &Reply, expected: Expected) -> Result<(), Failure> {
    let (code, wrong) = match (greeting.field("mode"), greeting.field("role")) {
        (Some("sentinel"), _) if expected == Expected::Master => {
            // Another sentinel may know better.
            return Err(Failure::not_sent(
                "the server that the sentinels named is a sentinel",
            ));
        }
        (Some("sentinel"), _) => (
            "",
            "this is a sentinel: its URL is redis+sentinel://host:port/name",
        ),
        (Some("cluster"), _) if expected == Expected::Server => {
            (CLUSTER_NODE, "this is a node of a cluster")
        }
        (Some("cluster"), _) if expected == Expected::Master => (
            "",
            "this is a node of a cluster: its URL is redis+cluster://host:port",
        ),
        (_, Some("replica" | "slave")) if expected == Expected::Master => {
            // The sentinels may name another server soon.
            return Err(Failure::not_sent(
                "the server that the sentinels named is a replica",
            ));
        }
        _ => return Ok(()),
    };
    Err(Failure::Refused(Refusal::found(code, wrong)))
}

/// Asks a server that calls itself standalone whether it is a node of a cluster. Some servers and
/// proxies call themselves that even in a cluster. But it may also be a server that has the address
/// of a node which has left: if locks were taken there, they would have two holders.
fn knows_slots(link: &mut Link, deadline: Moment) -> Result<(), Failure> {
    link.stream.expect_list();
    let slots = link.exchange(&Batch::of(&["CLUSTER", "SLOTS"]), deadline)?;
    slots.into_iter().try_for_each(|reply| match accept(reply) {
        Err(Failure::Refused(refusal)) if refusal.code == "ERR" => {
            let message = "this server is not part of a cluster: its URL is redis://host:port";
            Err(Failure::Refused(Refusal::found(NO_NODE, message)))
        }
        Ok(Reply::Array(_)) => Ok(()),
        other => Err(nonsense(&other?)),
    })
}

/// What a server is, in one line: its kind, its version, its mode and its role.
fn told_by(greeting: &Reply) -> String {
    let told =
        ["server", "version", "mode", "role"].map(|field| greeting.field(field).unwrap_or("?"));
    let [kind, version, mode, role] = told;
    legible(&format!("{kind} {version}, {mode}, {role}"))
}

/// Reads the reply to a command that a login can do without: `None` if it was refused.
///
/// Some refusals are about the connection, not about the command: too many clients, protected mode.
/// Redis sends such a refusal as soon as it accepts the connection, so it comes in place of the
/// first reply.
fn optional(reply: Reply) -> Result<Option<Reply>, Failure> {
    match accept(reply) {
        Err(Failure::Refused(refusal)) if !is_about_the_client(&refusal) => Ok(None),
        other => other.map(Some),
    }
}

/// True if the server accepts no client, or not this one.
fn is_about_the_client(refusal: &Refusal) -> bool {
    refusal.can_pass() || ["DENIED", "WRONGPASS"].contains(&&*refusal.code)
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::time::Duration;

    use proptest::prelude::*;
    use relatch_rig::{FakeServer, Reply as Say};

    use super::*;
    use crate::base::garbled;
    use crate::client::wire::endpoint::Place;
    use crate::client::wire::resp::tests::{garbled_reply, list, said};

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_greeting_is_told_in_one_line_or_refused(
            greeting in garbled_reply(("redis|valkey", "(standalone|sentinel|cluster)", "(master|replica)").prop_map(|(kind, mode, role)| {
                list(["server", &kind, "version", "8.2.3", "proto", "2", "mode", &mode, "role", &role])
            })),
        ) {
            prop_assert!(garbled::is_one_line(&told_by(&greeting)));
            for expected in [Expected::Server, Expected::Master, Expected::ClusterNode, Expected::Sentinel] {
                let access = Access::new(None, 0, expected);
                let replies = [greeting.clone(), Reply::Ok];
                if let Err(failure) = access.read(false, &mut replies.into_iter()) {
                    prop_assert!(garbled::is_one_line(&failure.text()), "{:?}", failure);
                }
            }
        }
    }

    #[test]
    fn what_a_server_says_of_itself_is_one_short_line() {
        for (version, told) in [("7.0.15", "7.0.15"), ("7\nERROR", "7 ERROR")] {
            let greeting = ["server", "redis", "version", version, "mode", "standalone"];
            assert_eq!(
                told_by(&list(greeting)),
                format!("redis {told}, standalone, ?")
            );
        }
        assert!(told_by(&list(["server", "redis", "version", &"7".repeat(10_000)])).len() < 1000);
    }

    /// The sentinels may have named a master that is no longer one.
    #[test]
    fn only_a_master_that_sentinels_name_must_be_no_replica() {
        let greeting = list(["server", "redis", "mode", "standalone", "role", "replica"]);
        let check = |expected| check_greeting(&greeting, expected);
        assert!(matches!(check(Expected::Master), Err(Failure::NotSent(_))));
        assert!(check(Expected::Server).is_ok());
    }

    #[test]
    fn what_a_login_can_do_without_may_be_refused_but_not_the_client() {
        let read = |error: &str| optional(said(error));
        assert!(matches!(read("ERR unknown command"), Ok(None)));
        for error in ["WRONGPASS no such user", "LOADING the dataset"] {
            assert!(matches!(read(error), Err(Failure::Refused(_))), "{error}");
        }
    }

    #[test]
    fn nobody_waits_for_credentials_past_the_deadline_and_calls_do_not_pile_up() {
        let (go, may_go) = mpsc::channel::<()>();
        let may_go = parking_lot::Mutex::new(may_go);
        let ask = move || {
            let _ = may_go.lock().recv();
            ("user".to_owned(), "password".to_owned())
        };
        let credentials = Credentials::Asked(Arc::new(ask));
        let by = |limit| credentials.get(Moment::now().after(limit));
        let told = |limit| by(limit).unwrap_err().text();
        let tried = (0..=MOST_ASKED).map(|_| told(Duration::from_millis(1)));
        let tried: Vec<_> = tried.collect();
        assert!(tried[0].contains("too long"), "{tried:?}");
        assert!(tried[MOST_ASKED].contains("too often"), "{tried:?}");
        drop(go);
        let end = Moment::now().after(Duration::from_secs(10));
        let (user, password) = loop {
            match by(Duration::from_secs(10)) {
                Ok(found) => break found,
                Err(failure) => assert!(Moment::now() < end, "{failure:?}"),
            }
        };
        assert_eq!((user.as_deref(), &*password), (Some("user"), "password"));
    }

    /// As in `redis://:password@host`. Many may ask at a time.
    #[test]
    fn a_provider_may_name_no_user() {
        let ask = || {
            std::thread::sleep(Duration::from_millis(20));
            (String::new(), "password".to_owned())
        };
        let credentials = Credentials::Asked(Arc::new(ask));
        let asks = || credentials.get(Moment::now().after(Duration::from_secs(10)));
        std::thread::scope(|scope| {
            let all = [(); 2 * MOST_ASKED].map(|()| scope.spawn(asks));
            for asked in all {
                assert_eq!(
                    asked.join().unwrap().unwrap(),
                    (None, "password".to_owned())
                );
            }
        });
    }

    fn way(port: u16) -> Way {
        Way::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    fn endpoint(port: u16) -> Endpoint {
        let host = "127.0.0.1".to_owned();
        Endpoint::new(Place::Tcp { host, port }, None)
    }

    /// A server that answers `HELLO` after a pause, and anything else at once.
    fn server(hello: &'static str, pause: Duration, other: &'static str) -> (FakeServer, u16) {
        let server = FakeServer::start(move |command| match command {
            [] => Say::Bytes(Vec::new()),
            [word, ..] if word == "HELLO" => Say::Paused(Vec::new(), pause, hello.into()),
            command => Say::Bytes(other.replace('@', &command.join(" ")).into()),
        });
        let port = server.address().parse::<SocketAddr>().unwrap().port();
        (server, port)
    }

    const UNKNOWN: &str = "-ERR unknown command\r\n";

    fn open(
        access: &Access,
        endpoint: &Endpoint,
        ports: &[u16],
        limit: Duration,
    ) -> Result<(), Failure> {
        let ways: Vec<_> = ports.iter().copied().map(way).collect();
        let deadline = Moment::now().after(limit);
        access
            .open(endpoint, &ways, &[], deadline, |_| Ok(()))
            .map(drop)
    }

    /// One is silent, one closes what it has accepted, and one answers.
    #[test]
    fn an_address_that_answers_no_login_leaves_time_for_the_next_and_is_not_remembered() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let silent = listener.local_addr().unwrap().port();
        let closes = FakeServer::start(|_| Say::Close);
        let closing = closes.address().parse::<SocketAddr>().unwrap().port();
        let (_good, good) = server(UNKNOWN, Duration::ZERO, "+OK\r\n");
        let endpoint = endpoint(good);
        let access = Access::new(None, 0, Expected::Server);
        let addresses =
            [1, silent, closing, good].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let first = || endpoint.in_order(addresses.to_vec())[0].port();
        for ports in [&[silent, closing][..], &[silent]] {
            assert!(open(&access, &endpoint, ports, Duration::from_millis(50)).is_err());
            assert_eq!(first(), 1, "though it accepts connections");
        }
        let all = [silent, closing, good];
        // On a busy machine, the half of the time that the silent one leaves may be too short.
        let opens = || open(&access, &endpoint, &all, Duration::from_secs(1)).is_ok();
        assert!((0..20).any(|_| opens()));
        assert_eq!(first(), good);
    }

    /// `redis://:password@host` names no user. Each word of an error may be a password.
    #[test]
    fn a_password_is_not_shown_and_changes_nothing_of_what_an_error_means() {
        for (says, password, can_pass) in [
            ("-ERR what is @?\r\n", "canary", false),
            ("-ERR max number of clients reached\r\n", "client", true),
        ] {
            let (_server, port) = server(says, Duration::ZERO, says);
            let login = Login {
                username: None,
                password: password.to_owned(),
            };
            let access = Access::new(Some(Credentials::Fixed(login)), 0, Expected::Server);
            let opened = open(&access, &endpoint(port), &[port], Duration::from_secs(10));
            let failure = opened.unwrap_err();
            let shown = format!("{failure:?} {}", failure.text());
            assert!(
                shown.contains("ERR") && !shown.contains("canary"),
                "{shown}"
            );
            assert_eq!(failure.can_pass(), can_pass, "{shown}");
        }
    }

    /// Such as a proxy that says `OK` to commands that it does not know.
    #[test]
    fn a_server_without_a_map_is_no_node_of_a_cluster() {
        let hello = "*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n";
        let (_proxy, port) = server(hello, Duration::ZERO, "+OK\r\n");
        for (expected, is_one) in [(Expected::Server, true), (Expected::ClusterNode, false)] {
            let access = Access::new(None, 0, expected);
            let opened = open(&access, &endpoint(port), &[port], Duration::from_secs(10));
            assert_eq!(opened.is_ok(), is_one);
        }
    }

    /// The first of many addresses is the one that answers, and it needs more than its equal share.
    #[test]
    fn the_time_to_log_in_does_not_shrink_with_the_number_of_addresses() {
        let limit = Duration::from_secs(20);
        let (_far, far) = server(UNKNOWN, limit / 50, "+OK\r\n");
        let mut ports = [1; 100];
        ports[0] = far;
        let access = Access::new(None, 0, Expected::Server);
        open(&access, &endpoint(far), &ports, limit).unwrap();
    }

    /// A host may have several addresses. The reason why one of them is not trusted says more than
    /// that nobody listens at another.
    #[cfg(feature = "tls")]
    #[test]
    fn a_failure_of_tls_is_reported_though_another_address_is_dead() {
        let garbage = FakeServer::start(|_| Say::Bytes(b"HTTP/1.1 400 Bad Request\r\n".to_vec()));
        let port = garbage.address().parse::<SocketAddr>().unwrap().port();
        let place = Place::Tcp {
            host: "localhost".to_owned(),
            port,
        };
        let endpoint = Endpoint::new(place, Some(crate::client::wire::tls::tests::client()));
        let access = Access::new(None, 0, Expected::Server);
        let failure = open(&access, &endpoint, &[port, 1], Duration::from_secs(10));
        assert!(matches!(failure, Err(Failure::Tls { .. })));
    }
}
