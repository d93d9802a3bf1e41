//! The manager, from what the command line and the environment say.

use std::env;
use std::fs;

use relatch::{Builder, LockManager};

use crate::args::Common;
use crate::exit::{Failure, code};
use crate::output::tell;

/// A builder with the address and the prefix.
pub(crate) fn builder(common: &Common) -> Result<Builder, Failure> {
    let url = match (&common.redis, &common.redis_file) {
        (Some(url), _) => {
            if has_password(url) {
                tell(
                    "others on this machine can read the password on the command line: \
                     use --redis-file or REDIS_URL",
                );
            }
            url.clone()
        }
        (None, Some(file)) => {
            let text = fs::read_to_string(file).map_err(|error| {
                Failure::new(code::CONFIG, format!("{}: {error}", file.display()))
            })?;
            text.trim().to_owned()
        }
        (None, None) => from_env()?,
    };
    Ok(LockManager::builder(&url).prefix(&*common.prefix))
}

/// Connects, for a command that asks.
pub(crate) fn connect(common: &Common) -> Result<LockManager, Failure> {
    Ok(builder(common)?.build()?)
}

fn from_env() -> Result<String, Failure> {
    for name in ["RELATCH_URL", "REDIS_URL"] {
        if let Some(url) = env::var_os(name).filter(|url| !url.is_empty()) {
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
    fn a_password_is_noticed() {
        assert!(has_password("redis://:secret@127.0.0.1/"));
        assert!(has_password("rediss://user:p@ss@host:6380/2"));
        assert!(has_password("unix:///run/redis.sock?pass=secret"));
        assert!(!has_password("redis://127.0.0.1:6379/"));
        assert!(!has_password("redis://user@host/a:b@c"));
    }
}
