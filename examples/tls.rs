//! A lock over TLS, with a client certificate; and what a connection without one is told.
//!
//! Run it: `bash examples/run.sh tls`
//! Copy it: `cargo add relatch --path ../relatch --features tls`

use std::error::Error;
use std::{env, fs};

use relatch::{Builder, Tls};

fn main() -> Result<(), Box<dyn Error>> {
    // Without `roots`, a connection trusts what the system trusts.
    let tls = Tls::new()
        .roots(pem("REDIS_CA")?)
        .client_certificate(pem("REDIS_CERT")?, pem("REDIS_KEY")?);
    // REDIS_URL begins with `rediss`, and its host is the name in the server's certificate.
    let locks = Builder::from_env()
        .tls(tls)
        .build()
        .map_err(|error| error.to_string())?;
    locks.with_lock("orders:42", || println!("order 42 is locked, over TLS"))?;

    for (what, tls) in [
        ("an authority that nobody trusts", Tls::new()),
        ("no client certificate", Tls::new().roots(pem("REDIS_CA")?)),
    ] {
        match Builder::from_env().tls(tls).build() {
            Ok(_) => println!("{what}: allowed"),
            Err(error) => println!("{what}: {error}"),
        }
    }
    Ok(())
}

/// The text of the file that a variable names.
fn pem(variable: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let path =
        env::var(variable).map_err(|_| format!("set {variable} to the path of a PEM file"))?;
    Ok(fs::read(path)?)
}
