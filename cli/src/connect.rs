//! Builds the manager from the command line and the environment.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{self, Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use form_urlencoded::Serializer;
use percent_encoding::percent_decode_str;
use relatch::{Builder, LockManager, Tls};

use crate::args::Common;
use crate::exit::{Failure, code};
use crate::output::tell;

/// The warning about a password is printed once: `run --connect-within` may build repeatedly.
static TOLD: Once = Once::new();

/// A builder with the address, the credentials and the prefix.
pub(crate) fn builder(common: &Common) -> Result<Builder, Failure> {
    let mut builder = match (&common.redis, &common.redis_file) {
        (Some(url), _) => {
            if apart(url).is_some() {
                TOLD.call_once(|| {
                    tell(
                        "others on this machine can read the password on the command line: \
                         use --redis-file or REDIS_URL",
                    );
                });
            }
            LockManager::builder(url)
        }
        (None, Some(file)) => of_file(common, file)?,
        (None, None) => LockManager::builder(&from_env()?),
    };
    if let Some(tls) = tls(common)? {
        builder = builder.tls(tls);
    }
    if let Some(login) = text_of(SENTINEL_LOGIN)? {
        let (user, password) = login.split_once(':').ok_or_else(|| {
            let form = "must have the form user:password or :password";
            Failure::new(code::CONFIG, format!("{SENTINEL_LOGIN} {form}"))
        })?;
        builder = builder.sentinel_login(Some(user).filter(|it| !it.is_empty()), password);
    }
    // If this process is killed, its guard and its job survive it briefly.
    Ok(builder.prefix(&*common.prefix).reclaimable(false))
}

/// The variables that make `relatch confirm` in a job ask the same Redis. An empty variable hides
/// an inherited one.
pub(crate) fn for_job(common: &Common) -> Vec<(&'static str, OsString)> {
    let lasting = |file: &PathBuf| {
        // The job may change its directory.
        let file = path::absolute(file).unwrap_or_else(|_| file.clone());
        if is_lasting(&file) {
            file.into()
        } else {
            OsString::new()
        }
    };
    let mut all = Vec::new();
    if let Some(url) = common.redis.as_ref().or(common.piped.get()) {
        all.push(("RELATCH_URL", url.into()));
        all.push(("RELATCH_REDIS_FILE", OsString::new()));
    } else if let Some(file) = &common.redis_file {
        all.push(("RELATCH_REDIS_FILE", lasting(file)));
    }
    let files = [
        ("RELATCH_CACERT", &common.cacert),
        ("RELATCH_CERT", &common.cert),
        ("RELATCH_CERT_KEY", &common.cert_key),
    ];
    let files = files.into_iter();
    all.extend(files.filter_map(|(name, file)| Some((name, lasting(file.as_ref()?)))));
    all.extend(common.sni.iter().map(|name| ("RELATCH_SNI", name.into())));
    all
}

/// Whether the job would read the same content from the file. False for a pipe or one of this
/// process's descriptors.
fn is_lasting(file: &Path) -> bool {
    let is_of_process = ["/proc", "/dev/fd", "/dev/stdin"].map(|it| file.starts_with(it));
    !is_of_process.contains(&true) && file.is_file()
}

/// A builder with the URL from a file. The file is reread for each connection, because its password
/// may have changed.
fn of_file(common: &Common, file: &Path) -> Result<Builder, Failure> {
    let url = url(common)?;
    if !is_lasting(file) {
        return Ok(LockManager::builder(&url));
    }
    let Some((url, login)) = apart(&url) else {
        return Ok(LockManager::builder(&url));
    };
    let file = file.to_owned();
    let last = Mutex::new(login);
    Ok(LockManager::builder(&url).credentials(move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody may be rewriting it just now.
        if let Some((_, login)) = fs::read_to_string(&file)
            .ok()
            .and_then(|it| apart(it.trim()))
        {
            *last = login;
        }
        last.clone()
    }))
}

fn tls(common: &Common) -> Result<Option<Tls>, Failure> {
    let Common {
        cacert, cert, sni, ..
    } = common;
    if cacert.is_none() && cert.is_none() && sni.is_none() {
        return Ok(None);
    }
    let mut tls = Tls::new();
    if let Some(file) = cacert {
        tls = tls.roots(read(file)?);
    }
    if let Some(file) = cert {
        let certificate = read(file)?;
        let key = common.cert_key.as_deref().map(read).transpose()?;
        tls = tls.client_certificate(certificate.clone(), key.unwrap_or(certificate));
    }
    if let Some(name) = sni {
        tls = tls.server_name(name);
    }
    Ok(Some(tls))
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::new(code::CONFIG, format!("{}: {error}", file.display())))
}

fn url(common: &Common) -> Result<String, Failure> {
    match (&common.redis, &common.redis_file) {
        (Some(url), _) => Ok(url.clone()),
        (None, Some(file)) => {
            if let Some(url) = common.piped.get() {
                return Ok(url.clone());
            }
            let url = read(file)?.trim().to_owned();
            if !is_lasting(file) {
                let _ = common.piped.set(url.clone()); // It cannot be read again.
            }
            Ok(url)
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
    if scheme.contains("unix") {
        let place = apart(url).map_or_else(|| url.to_owned(), |(others, _)| others);
        return place.trim_end_matches('?').to_owned();
    }
    let rest = rest.split('?').next().unwrap_or_default();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{}", host.trim_end_matches('/'))
}

/// Connects, for a command that only queries.
pub(crate) fn connect(common: &Common) -> Result<LockManager, Failure> {
    Ok(builder(common)?.build()?)
}

/// The text of an error with the command's names for the settings, and a note if the address is the
/// default.
pub(crate) fn with_hint(message: String) -> String {
    let mut message = NAMES
        .iter()
        .fold(message, |text, (name, ours)| text.replace(name, ours));
    let is_set = VARIABLES.iter().any(|name| set(name).is_some());
    if !is_set && message.contains(DEFAULT_PLACE) {
        message += " (the default address: neither RELATCH_URL nor REDIS_URL is set)";
    }
    message
}

/// The variables for the address. The first one that is set counts.
const VARIABLES: [&str; 2] = ["RELATCH_URL", "REDIS_URL"];

/// The library's names for settings, and the command's.
const NAMES: [(&str, &str); 6] = [
    ("option `tls`", "a TLS option"),
    ("option `sentinel_login`", SENTINEL_LOGIN),
    ("`roots`", "--cacert"),
    ("the chain of `client_certificate`", "--cert"),
    ("the key of `client_certificate`", "--cert-key"),
    ("`server_name`", "--sni"),
];

/// The user and password for the sentinels, which may differ from those for the Redis that they
/// name.
const SENTINEL_LOGIN: &str = "RELATCH_SENTINEL_LOGIN";

/// The default, as errors name it.
const DEFAULT_PLACE: &str = "127.0.0.1:6379";

/// An environment variable. An empty one counts as unset.
pub(crate) fn set(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|text| !text.is_empty())
}

fn text_of(name: &str) -> Result<Option<String>, Failure> {
    let text = set(name).map(OsString::into_string).transpose();
    text.map_err(|_| Failure::new(code::CONFIG, format!("{name} is not UTF-8")))
}

fn from_env() -> Result<String, Failure> {
    for name in VARIABLES {
        if let Some(url) = text_of(name)? {
            return Ok(url);
        }
    }
    Ok("redis://127.0.0.1/".to_owned())
}

/// Splits a URL into the URL without its login, and the login: user and password. `None` if there
/// is no readable login.
fn apart(url: &str) -> Option<(String, (String, String))> {
    let (scheme, rest) = url.split_once("://")?;
    if scheme.to_ascii_lowercase().contains("unix") {
        let (socket, options) = url.split_once('?')?;
        let options = form_urlencoded::parse(options.as_bytes());
        let find = |wanted| options.clone().find(|(name, _)| name == wanted);
        let (_, password) = find("pass")?;
        let user = find("user").map_or_else(String::new, |(_, user)| user.into_owned());
        let others = options.filter(|(name, _)| !["user", "pass"].contains(&&**name));
        let others = Serializer::new(String::new()).extend_pairs(others).finish();
        return Some((format!("{socket}?{others}"), (user, password.into_owned())));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (login, _) = rest[..end].rsplit_once('@')?;
    let (user, password) = login.split_once(':')?;
    let decoded = |text| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
    let others = &rest[login.len() + 1..];
    Some((
        format!("{scheme}://{others}"),
        (decoded(user)?, decoded(password)?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        for (url, others, user, password) in [
            (
                "redis://:secret@127.0.0.1/",
                "redis://127.0.0.1/",
                "",
                "secret",
            ),
            (
                "rediss://user:p@ss@host:6380/2",
                "rediss://host:6380/2",
                "user",
                "p@ss",
            ),
            (
                "redis+sentinel://u%40:p%2F@a:1,b/m/3",
                "redis+sentinel://a:1,b/m/3",
                "u@",
                "p/",
            ),
            (
                "unix:///a@b?pass=%26+&db=2&user=u",
                "unix:///a@b?db=2",
                "u",
                "& ",
            ),
        ] {
            let login = (user.to_owned(), password.to_owned());
            assert_eq!(apart(url), Some((others.to_owned(), login)), "{url}");
        }
        for url in [
            "redis://127.0.0.1:6379/",
            "redis://user@host/a:b@c",
            "redis://:1/2@host/",
            "unix:///a:b@c?db=2",
            "localhost",
        ] {
            assert_eq!(apart(url), None, "{url}");
        }
    }

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
}
