//! A web service: a request whose lock is busy gets 409 after 0.2 s, and there are metrics.
//!
//! Run it: `bash examples/run.sh web`
//! Copy it: `cargo add relatch --path ../relatch && cargo add tiny_http`

use std::env;
use std::error::Error;
use std::io;
use std::thread::{scope, sleep};
use std::time::Duration;

use relatch::{Builder, LockManager};
use tiny_http::{Header, Method, Request, Response, Server};

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Also starts without a Redis: requests then get 503, and succeed when it is there.
    let locks = Builder::from_env()
        .wait(Duration::from_millis(200)) // A client waits, and so does a thread of this pool.
        .tolerate_outage(Duration::from_secs(1))
        .build_lazily()
        .map_err(|error| error.to_string())?;
    let address = env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let server = Server::http(address)?;
    println!("http://{}", server.server_addr());
    scope(|scope| {
        // As many as may be slow at a time, and one more for `/metrics`. (A request in front of
        // them has waited already: a strict limit counts that, too.)
        for _ in 0..5 {
            scope.spawn(|| {
                while let Ok(request) = server.recv() {
                    // A client that has gone away needs no answer.
                    let _ = answer(request, &locks);
                }
            });
        }
    });
    Ok(())
}

fn answer(request: Request, locks: &LockManager) -> io::Result<()> {
    let url = request.url().to_owned();
    let (status, text) = match (request.method(), url.as_str()) {
        (Method::Get, "/metrics") => (200, locks.stats().prometheus()),
        (Method::Post, url) if url.starts_with("/orders/") => ship(locks, &url[1..]),
        _ => (404, "POST /orders/42, or GET /metrics\n".to_owned()),
    };
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(kind) = "Content-Type: text/plain; version=0.0.4".parse::<Header>() {
        response.add_header(kind);
    }
    request.respond(response)
}

fn ship(locks: &LockManager, order: &str) -> (u16, String) {
    let shipped = locks.with_lock(order, || sleep(Duration::from_secs(1)));
    match shipped {
        Ok(()) => (200, format!("{order} is shipped\n")),
        // Begun, and then lost: somebody has to look at it.
        Err(error) if error.body_ran() => (500, format!("uncertain: {error}\n")),
        Err(relatch::Error::Timeout { source: None, .. }) => (409, format!("{order} is in use\n")),
        Err(error) => (503, format!("try again: {error}\n")),
    }
}
