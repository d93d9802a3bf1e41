//! The manager, from what the command line and the environment say.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::sync::Once;

use relatch::{Builder, LockManager};

use crate::args::Common;
use crate::exit::{Failure, code};
use crate::output::tell;

/// The warning about a password. `run --connect-within` may build again and again.
static TOLD: Once = Once::new();

/// A builder with the address and the prefix.
pub(crate) fn builder(common: &Common) -> Result<Builder, Failure> {
    if common.redis.as_deref().is_some_and(has_password) {
        TOLD.call_once(|| {
            tell(
                "others on this machine can read the password on the command line: \
                 use --redis-file or REDIS_URL",
            );
        });
    }
    Ok(LockManager::builder(&url(common)?).prefix(&*common.prefix))
}

fn url(common: &Common) -> Result<String, Failure> {
    match (&common.redis, &common.redis_file) {
        (Some(url), _) => Ok(url.clone()),
        (None, Some(file)) => {
            let text = fs::read_to_string(file).map_err(|error| {
                Failure::new(code::CONFIG, format!("{}: {error}", file.display()))
            })?;
            Ok(text.trim().to_owned())
        }
        (None, None) => from_env(),
    }
}

/// Which Redis it is: the URL without its login.
pub(crate) fn place(common: &Common) -> Result<String, Failure> {
    Ok(without_login(&url(common)?))
}

fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.split('?').next().unwrap_or_default();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{}", host.trim_end_matches('/'))
}

/// Connects, for a command that asks.
pub(crate) fn connect(common: &Common) -> Result<LockManager, Failure> {
    Ok(builder(common)?.build()?)
}

/// The text of an error, and where the address came from if nobody has given one.
pub(crate) fn with_hint(mut message: String) -> String {
    let is_set = VARIABLES.iter().any(|name| set(name).is_some());
    if !is_set && message.contains(DEFAULT_PLACE) {
        message += " (the default address: neither RELATCH_URL nor REDIS_URL is set)";
    }
    message
}

/// Where the address may be. The first one counts.
const VARIABLES: [&str; 2] = ["RELATCH_URL", "REDIS_URL"];

/// The default, as errors name it.
const DEFAULT_PLACE: &str = "127.0.0.1:6379";

fn set(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|url| !url.is_empty())
}

fn from_env() -> Result<String, Failure> {
    for name in VARIABLES {
        if let Some(url) = set(name) {
            return url
                .into_string()
                .map_err(|_| Failure::new(code::CONFIG, format!("{name} is not UTF-8")));
        }
    }
    Ok("redis://127.0.0.1/".to_owned())
}

fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let login = rest
        .split('/')
        .next()
        .and_then(|place| place.rsplit_once('@'));
    // A URL of a unix socket or of sentinels has it behind the question mark.
    let options = url.split_once('?').map_or("", |(_, options)| options);
    login.is_some_and(|(login, _)| login.contains(':')) || options.contains("pass")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_no_login() {
        for (url, place) in [
            ("redis://host", "redis://host"),
            ("redis://:p@ss/w@host:6380/", "redis://host:6380"),
            ("rediss://user:secret@host/2", "rediss://host/2"),
            (
                "unix:///run/redis.sock?pass=secret",
                "unix:///run/redis.sock",
            ),
        ] {
            assert_eq!(without_login(url), place, "{url}");
        }
    }

    #[test]
    fn a_password_is_noticed() {
        assert!(has_password("redis://:secret@127.0.0.1/"));
        assert!(has_password("rediss://user:p@ss@host:6380/2"));
        assert!(has_password("unix:///run/redis.sock?pass=secret"));
        assert!(!has_password("redis://127.0.0.1:6379/"));
        assert!(!has_password("redis://user@host/a:b@c"));
    }
}
