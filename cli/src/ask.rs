//! The commands about one lock: `holder`, `wait`, `confirm`, `force-unlock`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Holder, Lock, Owner};
use serde_json::json;

use crate::args::{Common, Confirm, ForceUnlock, Holder as HolderArgs, Wait};
use crate::connect::{builder, connect};
use crate::exit::{Failure, code};
use crate::json;
use crate::output::{json_line, plain, tell, write};
use crate::run::nested::{Has, Outer};
use crate::span;
use crate::whose;

/// The longest pause between two checks by `wait`.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait for a key's expiry, which some programs set with a second command.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

pub(crate) fn holder(common: &Common, asked: &HolderArgs) -> Result<u8, Failure> {
    let holder = connect(common)?.named(&asked.key).holder()?;
    let redis_key = format!("{}{}", common.prefix, asked.key);
    let by = holder
        .as_ref()
        .and_then(|holder| whose::library(redis_key.as_bytes(), &holder.raw));
    if asked.answer.json {
        let mut object = json!({ "v": 1, "key": asked.key, "holder": null });
        if let Some(holder) = &holder {
            object["holder"] = json::holder(holder);
            object["holder"]["library"] = by.into();
        }
        write(&json_line(&object))?;
    } else if let Some(holder) = &holder {
        let by = by.map_or_else(String::new, |by| format!("library {by}\n"));
        let (shown, token) = (whose::shown(holder), json::token(holder));
        write(&format!("{shown}\ntoken {token}\n{by}"))?;
    } else if !common.quiet {
        let free = format!("{:?} is free (key {redis_key:?})", asked.key);
        write(&format!("{}\n", plain(&free)))?;
    }
    Ok(holder.map_or(code::NOTHING, |_| code::OK))
}

pub(crate) fn wait(common: &Common, asked: &Wait) -> Result<u8, Failure> {
    let began = Instant::now();
    let lock = connect(common)?.named(&asked.key);
    let mut pause = Duration::from_millis(25);
    let (mut has_answered, mut is_away) = (false, false);
    let holder = loop {
        let left = asked
            .limit
            .map(|limit| limit.saturating_sub(began.elapsed()));
        let is_over = left == Some(Duration::ZERO);
        let expires = match look(&lock) {
            Ok(None) => break None,
            Ok(Some(holder)) if is_over => break Some(holder),
            Ok(Some(holder)) => {
                is_away = false;
                holder.remaining
            }
            // At the start, the address may be wrong. The wait continues through a later outage.
            Err(failure) if is_over || !has_answered || failure.code != code::UNAVAILABLE => {
                return Err(failure);
            }
            Err(failure) => {
                if !is_away && !common.quiet {
                    tell(&format!("{}: the wait continues", failure.message));
                }
                is_away = true;
                None
            }
        };
        has_answered = true;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let expires = expires.map(|left| left + Duration::from_millis(1));
        let limits = [left, expires].into_iter().flatten();
        thread::sleep(limits.fold(pause, Duration::min));
    };
    if asked.answer.json {
        let waited = span::millis(began.elapsed());
        let by = holder.as_ref().map(json::holder);
        write(&json_line(
            &json!({ "v": 1, "key": asked.key, "holder": by, "waited_ms": waited }),
        ))?;
    } else if let (Some(holder), false) = (&holder, common.quiet) {
        let by = whose::shown(holder);
        tell(&format!("lock {:?} is still held: {by}", asked.key));
    }
    Ok(holder.map_or(code::OK, |_| code::BUSY))
}

/// Returns the holder of the lock, or an error if the lock would never be free.
fn look(lock: &Lock) -> Result<Option<Holder>, Failure> {
    let never_expires = |holder: &Holder| holder.remaining.is_none();
    let mut holder = lock.holder()?;
    if holder.as_ref().is_some_and(never_expires) {
        thread::sleep(ON_ITS_WAY);
        holder = lock.holder()?;
    }
    match &holder {
        Some(other) if never_expires(other) => {
            let message = format!("{:?} is not a lock: {other}", lock.key());
            Err(Failure::new(code::CONFIG, message))
        }
        _ => Ok(holder),
    }
}

pub(crate) fn confirm(common: &Common, asked: &Confirm) -> Result<u8, Failure> {
    let outer = Outer::from_env(common);
    if outer.all().next().is_none() {
        let message = "confirm works only in a job of `relatch run`, which sets RELATCH_KEYS";
        return Err(Failure::new(code::USAGE, message));
    }
    let all: Vec<_> = match &asked.key {
        None => outer.all().collect(),
        Some(key) => {
            let message = || format!("no outer run of this process holds lock {key:?}");
            let called = outer.called(&common.prefix, key);
            if called.is_empty() {
                return Err(Failure::new(code::LOST, message()));
            }
            called
        }
    };
    // Each lock has its own prefix, which may not be this command's.
    let locks = builder(common)?.prefix("").build()?;
    let mut code = code::OK;
    for has in all {
        let holder = locks.named(&has.redis_key).holder()?;
        let key = has.key(&common.prefix);
        let is_ours = |holder: &Holder| holder.raw == has.token;
        if !outer.is_here(has) && !holder.as_ref().is_some_and(is_ours) {
            let message = format!(
                "lock {key:?} is in another Redis, {}: pass the KEY of the lock to confirm",
                has.place
            );
            return Err(Failure::new(code::CONFIG, message));
        }
        let unconfirmed = unconfirmed(key, has, holder.as_ref(), asked.span);
        if asked.answer.json {
            let by = holder.as_ref().map(json::holder);
            let confirmed = unconfirmed.is_none();
            write(&json_line(
                &json!({ "v": 1, "key": key, "confirmed": confirmed, "holder": by }),
            ))?;
        }
        if let Some(message) = unconfirmed {
            tell(&message);
            code = code::LOST;
        }
    }
    Ok(code)
}

/// Why the job must not continue, unless it holds the lock for this span.
fn unconfirmed(key: &str, has: &Has, holder: Option<&Holder>, span: Duration) -> Option<String> {
    let Some(holder) = holder else {
        return Some(format!(
            "lock {key:?} is no longer held by this job, and nobody holds it: do not continue"
        ));
    };
    let by = whose::shown(holder);
    if holder.raw != has.token {
        return Some(format!(
            "lock {key:?} is no longer held by this job: {by} holds it: do not continue"
        ));
    }
    let left = holder.remaining.filter(|left| *left < span)?;
    let [left, span] = [left, span].map(span::show);
    Some(format!(
        "lock {key:?} is valid for {left}, not for {span}: ask again after the next renewal, or \
         give the run a longer --lease"
    ))
}

pub(crate) fn force_unlock(common: &Common, asked: &ForceUnlock) -> Result<u8, Failure> {
    let lock = connect(common)?.named(&asked.key);
    let deleted = |whose: &str| {
        told(
            asked,
            true,
            common.quiet,
            &format!("is deleted; it was held by {whose}"),
        )
    };
    let nothing = |why: &str| told(asked, false, false, why);
    if let Some(token) = &asked.if_token {
        let bytes = json::token_bytes(token).map_err(|why| Failure::new(code::USAGE, why))?;
        let owner = Owner::parse(token).map(|owner| owner.to_string());
        return if lock.force_unlock_if(bytes)? {
            deleted(&owner.unwrap_or(format!("token {token}")))
        } else {
            nothing("has another token, or is free")
        };
    }
    // Fails if the value is not text, and so not a lock.
    let Some(holder) = lock.holder()? else {
        return nothing("is free");
    };
    let by = whose::shown(&holder);
    if !asked.yes {
        if !io::stdin().is_terminal() {
            let message = format!(
                "{by} has it: use --yes, or --if-token with the token that `relatch holder` shows"
            );
            return Err(Failure::new(code::USAGE, message));
        }
        if !is_meant(&asked.key, &by) {
            return Ok(code::NOTHING);
        }
        // Delete only the value that the user saw. A value too long to show in full is deleted
        // without this check.
        let value = holder.bytes.as_deref().unwrap_or(holder.raw.as_bytes());
        match lock.force_unlock_if(value) {
            Ok(true) => return deleted(&by),
            Ok(false) => return nothing("changed hands in the meantime, and was left alone"),
            Err(relatch::Error::InvalidOption { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match lock.force_unlock()? {
        Some(holder) => deleted(&whose::shown(&holder)),
        None => nothing("is free"),
    }
}

/// Asks the user at the terminal.
fn is_meant(key: &str, by: &str) -> bool {
    let question =
        format!("lock {key:?} is held by {by}, which may still be working. Delete it? [y/N] ");
    eprint!("{}", plain(&question));
    io::stderr().flush().ok();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).ok();
    matches!(answer.trim(), "y" | "Y" | "yes")
}

fn told(asked: &ForceUnlock, deleted: bool, quiet: bool, what: &str) -> Result<u8, Failure> {
    let key = &asked.key;
    if asked.answer.json {
        write(&json_line(
            &json!({ "v": 1, "key": key, "deleted": deleted }),
        ))?;
    } else if !quiet {
        tell(&format!("lock {key:?} {what}"));
    }
    Ok(if deleted { code::OK } else { code::NOTHING })
}
