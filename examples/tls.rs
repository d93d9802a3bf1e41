//! Two threads take turns over TLS, then connections are refused, then the server is killed.
//!
//! Run it with `cargo run --features tls --example tls`, if redis-server is installed.

use std::env;
use std::error::Error;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use relatch::{LockManager, Tls};
use relatch_rig::{Authority, Identity, Server, is_server_installed};

const USAGE: &str = "usage: tls

Makes an authority and its certificates, and starts a redis-server that speaks TLS and asks each
client for a certificate. Two threads take turns with a lock there. Then shows how connections are
refused, and what a holder sees when the server is killed. All that was started ends with this
program.";

const LEASE: Duration = Duration::from_secs(1);
const TURNS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    if env::args().nth(1).is_some() {
        println!("{USAGE}");
        return Ok(());
    }
    if !is_server_installed() {
        return Err("neither redis-server nor valkey-server is installed".into());
    }
    let authority = Authority::new();
    let client = authority.issue(&["a client"]);
    let server = Server::with_tls(
        &authority.issue(&["localhost"]),
        &authority,
        &["--tls-auth-clients", "yes"],
    );
    let url = format!("rediss://localhost:{}/", server.tls_port());
    println!("{url} asks for a certificate of our authority.");
    take_turns(&url, &authority, &client)?;
    show_refusals(&server, &authority, &client)?;
    kill(&server, &url, &authority, &client)
}

/// What a program sets: whom it trusts, and what it shows to the server. Both are PEM, here from
/// memory, and otherwise from files. Without `roots`, the system says whom to trust.
fn tls(authority: &Authority, client: &Identity) -> Tls {
    Tls::new()
        .roots(authority.pem())
        .client_certificate(client.certificate.as_str(), client.key.as_str())
}

/// Two managers, as if in two processes: each line of the chart is one turn.
fn take_turns(url: &str, authority: &Authority, client: &Identity) -> Result<(), Box<dyn Error>> {
    println!("\nA and B take turns with the lock `till`:\n");
    let connect = || {
        LockManager::builder(url)
            .tls(tls(authority, client))
            .build()
    };
    let managers = [("A", connect()?), ("B", connect()?)];
    let start = Instant::now();
    let turns = |name: &str, locks: LockManager| {
        for _ in 0..TURNS {
            let guard = locks.lock("till")?;
            let from = start.elapsed().as_millis();
            let column = usize::try_from(from / 10).unwrap_or_default();
            sleep(Duration::from_millis(60));
            println!("{from:>5} ms  {name}  {:·<column$}██████", "");
            guard.unlock()?;
        }
        Ok::<_, relatch::Error>(())
    };
    scope(|scope| {
        for thread in managers.map(|(name, locks)| scope.spawn(move || turns(name, locks))) {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}

/// What a program sees if the two ends do not fit.
fn show_refusals(
    server: &Server,
    authority: &Authority,
    client: &Identity,
) -> Result<(), Box<dyn Error>> {
    println!("\nConnections that are refused, at once and without a wait:\n");
    let (good, stranger) = (format!("localhost:{}", server.tls_port()), Authority::new());
    for (what, address, tls) in [
        (
            "another name",
            format!("127.0.0.1:{}", server.tls_port()),
            tls(authority, client),
        ),
        ("an unknown issuer", good.clone(), tls(&stranger, client)),
        (
            "no client certificate",
            good.clone(),
            Tls::new().roots(authority.pem()),
        ),
        (
            "another's certificate",
            good,
            tls(authority, &stranger.issue(&["a client"])),
        ),
        (
            "a port without TLS",
            format!("localhost:{}", server.port()),
            tls(authority, client),
        ),
    ] {
        let built = LockManager::builder(&format!("rediss://{address}/"))
            .tls(tls)
            .build();
        let error = built
            .err()
            .ok_or("a connection that should be refused was not")?;
        println!("{what:>22}: {error}");
        let mut source = error.source();
        while let Some(error) = source {
            println!("{:>24}{error}", "");
            source = error.source();
        }
    }
    Ok(())
}

/// The server is killed under a held lock, and comes back empty: the holder learns of that.
fn kill(
    server: &Server,
    url: &str,
    authority: &Authority,
    client: &Identity,
) -> Result<(), Box<dyn Error>> {
    let locks = LockManager::builder(url)
        .tls(tls(authority, client))
        .lease(LEASE)
        .build()?;
    let start = Instant::now();
    let say = |what: &str| println!("{:>5} ms  {what}", start.elapsed().as_millis());
    println!("\nThe server dies under a lock:\n");
    let guard = locks.lock("till")?;
    say("the lock is held");
    server.kill();
    say(&format!(
        "the server is killed; is_valid() is {}: the lease has not ended",
        guard.is_valid()
    ));
    server.restart();
    say("the server is back, without its keys");
    let cause = guard
        .watch()
        .wait_lost(10 * LEASE)
        .ok_or("the loss was not noticed")?;
    say(&format!("is_valid() is {}: {cause}", guard.is_valid()));
    let lost = guard.unlock().err().ok_or("a lost lock was released")?;
    say(&format!("unlock(): {lost}"));
    drop(locks.lock("till")?);
    say("the next lock works, over a new connection");
    Ok(())
}
