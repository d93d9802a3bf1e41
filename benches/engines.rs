//! What TLS, Sentinel, acknowledged replicas and fencing tokens cost, beside a plain connection to
//! the same server: `cargo bench --bench engines --features tls`. It takes about a minute.
//! `cargo bench --bench engines --features tls fence` runs the last two parts alone.
//!
//! One thread locks and unlocks a free lock. All subjects take turns, in many short rounds, and the
//! ratios are medians over the rounds. The program and all servers share one core, so that the
//! figures do not depend on how the system wakes a core. TLS and the fence are measured a second
//! time with the server on a core of its own, as if a network lay between them: on one core, the
//! server's cryptography and its Lua count as if the program did them.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use relatch::{LockManager, Replicas, Tls};
use relatch_rig::{Authority, Sentinels, Server, Setup};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use support::figures::{Figure, Report};
use support::{Rounds, TOKEN, load, pin_apart, pin_together};

const CYCLES: u32 = 200;
const ROUNDS: usize = 61;

fn main() {
    let mut report = Report::new(None);
    if !std::env::args().any(|arg| arg == "fence") {
        secured_and_replicated(&mut report);
    }
    eprintln!("engines: part 4 of 5, fence on two cores");
    report.part(
        "fence",
        "lock and unlock with a fencing token, the server on a core of its own",
    );
    fenced(&mut report, pin_apart, true);
    eprintln!("engines: part 5 of 5, fence on one core");
    report.part(
        "fence-one-core",
        "lock and unlock with a fencing token, all on one core",
    );
    fenced(&mut report, pin_together, false);
    report.close();
}

fn secured_and_replicated(report: &mut Report) {
    eprintln!("engines: part 1 of 5, tls on two cores");
    report.part(
        "tls",
        "lock and unlock over TLS, the server on a core of its own",
    );
    over_tls(report, pin_apart, true);
    eprintln!("engines: part 2 of 5, tls on one core");
    report.part("tls-one-core", "lock and unlock over TLS, all on one core");
    over_tls(report, pin_together, false);
    eprintln!("engines: part 3 of 5, sentinel");
    report.part(
        "sentinel",
        "lock and unlock on a master with a replica and three sentinels",
    );
    by_sentinels(report);
}

fn over_tls(report: &mut Report, pin: fn(&Server) -> bool, is_bounded: bool) {
    let authority = Authority::new();
    let server = Server::with_tls(
        &authority.issue(&["localhost", "127.0.0.1"]),
        &authority,
        &[],
    );
    report.say("pinned", if pin(&server) { "yes" } else { "no" }.to_owned());
    let plain = LockManager::connect(&server.url()).expect("connects");
    let builder = LockManager::builder(&server.tls_url()).tls(Tls::new().roots(authority.pem()));
    let sealed = builder.build().expect("connects");
    let mut floors = [Floor::plain(&server), Floor::over_tls(&server, &authority)];

    let mut rounds = Rounds::new(&["lock + unlock", "over TLS", "floor", "floor over TLS"]);
    for _ in 0..ROUNDS {
        for (subject, locks) in [&plain, &sealed].into_iter().enumerate() {
            rounds.time(subject, CYCLES, || cycles(locks));
        }
        for (subject, floor) in floors.iter_mut().enumerate() {
            rounds.time(2 + subject, CYCLES, || {
                (0..CYCLES).for_each(|_| floor.cycle(false));
            });
        }
    }
    rounds.print("TLS");
    if is_bounded {
        bounded(report, "over TLS, x plain", rounds.ratio(1), 1.25);
    } else {
        report.say("over TLS, x plain", Figure::number(rounds.ratio(1), 3, ""));
    }
    let floor = rounds.ratio(3) / rounds.ratio(2);
    report.say(
        "floor over TLS, x plain floor",
        Figure::number(floor, 3, ""),
    );
    bounded(
        report,
        "over TLS, beyond what the floor costs",
        rounds.ratio(1) / floor,
        1.10,
    );
}

fn by_sentinels(report: &mut Report) {
    let sentinels = Sentinels::with(Setup {
        replicas: 1,
        ..Setup::default()
    });
    let master = sentinels.server(0);
    for server in (0..2)
        .map(|it| sentinels.server(it))
        .chain((0..3).map(|it| sentinels.sentinel(it)))
    {
        pin_together(server);
    }
    let acknowledged = LockManager::builder(&master.url())
        .replicas(Replicas::at_least(1), Duration::from_secs(1))
        .build()
        .expect("connects");
    let managers = [
        LockManager::connect(&master.url()).expect("connects"),
        LockManager::connect(&sentinels.url()).expect("connects"),
        acknowledged,
    ];
    let mut floor = Floor::plain(master);

    let names = [
        "the master's address",
        "sentinels",
        "replicas(1)",
        "floor",
        "floor with WAIT",
    ];
    let mut rounds = Rounds::new(&names);
    for _ in 0..ROUNDS {
        for (subject, locks) in managers.iter().enumerate() {
            rounds.time(subject, CYCLES, || cycles(locks));
        }
        for (subject, waits) in [(3, false), (4, true)] {
            rounds.time(subject, CYCLES, || {
                (0..CYCLES).for_each(|_| floor.cycle(waits));
            });
        }
    }
    rounds.print("Sentinel and replicas");
    bounded(
        report,
        "sentinels, x the master's address",
        rounds.ratio(1),
        1.02,
    );
    let wait = rounds.ratio(4) - rounds.ratio(3);
    report.say("a WAIT by hand, x a cycle", Figure::number(wait, 3, ""));
    bounded(
        report,
        "replicas(1), x (a cycle + a WAIT by hand)",
        rounds.ratio(2) / (1.0 + wait),
        1.05,
    );
}

fn fenced(report: &mut Report, pin: fn(&Server) -> bool, is_bounded: bool) {
    let server = Server::start();
    report.say("pinned", if pin(&server) { "yes" } else { "no" }.to_owned());
    let plain = LockManager::connect(&server.url()).expect("connects");
    let fenced = LockManager::builder(&server.url())
        .fenced(true)
        .build()
        .expect("connects");
    let mut floors = [Floor::plain(&server), Floor::by_script(&server)];

    let mut rounds = Rounds::new(&[
        "lock + unlock",
        "with a fence",
        "floor",
        "floor, `SET` in a script",
    ]);
    for _ in 0..ROUNDS {
        for (subject, locks) in [&plain, &fenced].into_iter().enumerate() {
            rounds.time(subject, CYCLES, || cycles(locks));
        }
        for (subject, floor) in floors.iter_mut().enumerate() {
            rounds.time(2 + subject, CYCLES, || {
                (0..CYCLES).for_each(|_| floor.cycle(false));
            });
        }
    }
    rounds.print("fence");
    let ratio = rounds.ratio(1);
    if is_bounded {
        bounded(report, "with a fence, x plain", ratio, 1.15);
    } else {
        report.say("with a fence, x plain", Figure::number(ratio, 3, ""));
    }
    let floor = rounds.ratio(3) / rounds.ratio(2);
    report.say(
        "a lone `SET` in a script, x the floor",
        Figure::number(floor, 3, ""),
    );
    report.say(
        "with a fence, beyond what the floor costs",
        Figure::number(ratio / floor, 3, ""),
    );
}

fn cycles(locks: &LockManager) {
    (0..CYCLES).for_each(|_| drop(locks.lock("a").expect("locks")));
}

fn bounded(report: &mut Report, what: &str, ratio: f64, most: f64) {
    report.must(
        what,
        Figure::number(ratio, 3, ""),
        format!("<= {most:.2}"),
        ratio <= most,
    );
}

/// The floor: the two commands of a lock as bytes that were made before, on one connection.
struct Floor {
    stream: Box<dyn Stream>,
    set: Vec<u8>,
    removal: Vec<u8>,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Floor {
    fn plain(server: &Server) -> Floor {
        Floor::over(Box::new(tcp(server.port())), server)
    }

    fn over_tls(server: &Server, authority: &Authority) -> Floor {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM"))
            .expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let client = ClientConnection::new(Arc::new(config), name).expect("a client");
        Floor::over(
            Box::new(StreamOwned::new(client, tcp(server.tls_port()))),
            server,
        )
    }

    /// No script that takes a lock can be cheaper than one that has a `SET` alone.
    fn by_script(server: &Server) -> Floor {
        let script = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
        let hash = load(&mut server.connect(), script);
        let set = command(&["EVALSHA", &hash, "1", "lock:floor", TOKEN, "30000"]);
        Floor {
            set,
            ..Floor::plain(server)
        }
    }

    fn over(stream: Box<dyn Stream>, server: &Server) -> Floor {
        let hash = load(
            &mut server.connect(),
            include_str!("../src/client/commands/lua/release.lua"),
        );
        let set = command(&["SET", "lock:floor", TOKEN, "NX", "PX", "30000"]);
        Floor {
            stream,
            set,
            removal: command(&["EVALSHA", &hash, "1", "lock:floor", TOKEN]),
        }
    }

    fn cycle(&mut self, waits: bool) {
        let (set, removal) = (self.set.clone(), self.removal.clone());
        self.ask(&set, b"+OK\r\n");
        if waits {
            self.ask(&command(&["WAIT", "1", "1000"]), b":1\r\n");
        }
        self.ask(&removal, b":1\r\n");
    }

    fn ask(&mut self, command: &[u8], expected: &[u8]) {
        self.stream.write_all(command).expect("writes");
        self.stream.flush().expect("writes");
        let mut reply = vec![0; expected.len()];
        self.stream.read_exact(&mut reply).expect("answers");
        assert_eq!(reply, expected);
    }
}

fn tcp(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_nodelay(true).expect("an option");
    stream
}

fn command(parts: &[&str]) -> Vec<u8> {
    let parts = parts
        .iter()
        .map(|part| format!("${}\r\n{part}\r\n", part.len()));
    let parts: Vec<_> = parts.collect();
    format!("*{}\r\n{}", parts.len(), parts.concat()).into_bytes()
}
