//! The commands about one lock: `holder`, `wait`, `confirm`, `force-unlock`.

use std::env;
use std::io::{self, BufRead, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Holder, Owner};
use serde_json::json;

use crate::args::{Common, Confirm, ForceUnlock, Holder as HolderArgs, Wait};
use crate::connect::connect;
use crate::exit::{Failure, code};
use crate::json;
use crate::output::{json_line, tell, write};
use crate::run::nested::Outer;
use crate::whose;

/// The longest pause between two looks of `wait`.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) fn holder(common: &Common, asked: &HolderArgs) -> Result<u8, Failure> {
    let holder = connect(common)?.named(&asked.key).holder()?;
    let by = holder.as_ref().and_then(|holder| {
        let redis_key = format!("{}{}", common.prefix, asked.key);
        whose::library(redis_key.as_bytes(), &holder.raw)
    });
    if common.json {
        let mut object = json!({ "v": 1, "key": asked.key, "holder": null });
        if let Some(holder) = &holder {
            object["holder"] = json::holder(holder);
            object["holder"]["library"] = by.into();
        }
        write(&json_line(&object))?;
    } else if let Some(holder) = &holder {
        let by = by.map_or_else(String::new, |by| format!("library {by}\n"));
        write(&format!("{holder}\ntoken {}\n{by}", json::token(holder)))?;
    } else if !common.quiet {
        write("free\n")?;
    }
    Ok(holder.map_or(code::NOTHING, |_| code::OK))
}

pub(crate) fn wait(common: &Common, asked: &Wait) -> Result<u8, Failure> {
    let lock = connect(common)?.named(&asked.key);
    let end = asked.wait.map(|limit| Instant::now() + limit);
    let mut pause = Duration::from_millis(25);
    loop {
        let Some(holder) = lock.holder()? else {
            return Ok(code::OK);
        };
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            if !common.quiet {
                tell(&format!("lock {:?} is still held: {holder}", asked.key));
            }
            return Ok(code::BUSY);
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        let expires = holder.remaining.map(|left| left + Duration::from_millis(1));
        let limits = [left, expires].into_iter().flatten();
        thread::sleep(limits.fold(pause, Duration::min));
    }
}

pub(crate) fn confirm(common: &Common, asked: &Confirm) -> Result<u8, Failure> {
    let no_job = || {
        Failure::new(
            code::USAGE,
            "this is for the inside of a job: `relatch run` sets RELATCH_KEY and RELATCH_KEYS",
        )
    };
    let key = asked.key.clone().or_else(|| env::var("RELATCH_KEY").ok());
    let key = key.ok_or_else(no_job)?;
    let outer = Outer::from_env();
    let token = outer.token(&common.prefix, &key).ok_or_else(no_job)?;
    let holder = connect(common)?.named(&key).holder()?;
    let message = match &holder {
        None => format!("lock {key:?} is not ours any more, nobody has it: do not go on"),
        Some(holder) if holder.raw != token => {
            format!("lock {key:?} is not ours any more, {holder} has it: do not go on")
        }
        Some(Holder {
            remaining: Some(left),
            ..
        }) if *left < asked.span => {
            let [left, span] = [*left, asked.span].map(crate::span::show);
            format!(
                "lock {key:?} is ours for {left}, and not for {span}: ask again after the next \
                 renewal, or have a longer --lease for the run"
            )
        }
        Some(_) => return Ok(code::OK),
    };
    Err(Failure::new(code::LOST, message))
}

pub(crate) fn force_unlock(common: &Common, asked: &ForceUnlock) -> Result<u8, Failure> {
    let lock = connect(common)?.named(&asked.key);
    let nothing = |what: &str| {
        tell(&format!("lock {:?} {what}", asked.key));
        Ok(code::NOTHING)
    };
    if let Some(token) = &asked.if_token {
        let bytes = json::token_bytes(token).map_err(|why| Failure::new(code::USAGE, why))?;
        return if lock.force_unlock_if(bytes)? {
            let owner = Owner::parse(token).map(|owner| owner.to_string());
            deleted(common, asked, &owner.unwrap_or(format!("token {token}")))
        } else {
            nothing("has another token, or is free")
        };
    }
    if !asked.yes {
        let Some(holder) = lock.holder()? else {
            return nothing("is free");
        };
        if !io::stdin().is_terminal() {
            return Err(Failure::new(
                code::USAGE,
                format!(
                    "{holder} has it: say --yes, or --if-token with the token that `relatch holder` shows"
                ),
            ));
        }
        eprint!(
            "{holder} has lock {:?}, and its work may go on. Delete it? [y/N] ",
            asked.key
        );
        io::stderr().flush().ok();
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).ok();
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(code::NOTHING);
        }
        // What was shown is what is meant. A value that cannot be shown whole is deleted as it is.
        let value = holder.bytes.as_deref().unwrap_or(holder.raw.as_bytes());
        return match lock.force_unlock_if(value) {
            Ok(true) => deleted(common, asked, &holder.to_string()),
            Ok(false) => nothing("has changed hands meanwhile, and was left alone"),
            Err(relatch::Error::InvalidOption { .. }) => match lock.force_unlock()? {
                Some(holder) => deleted(common, asked, &holder.to_string()),
                None => nothing("is free"),
            },
            Err(error) => Err(error.into()),
        };
    }
    match lock.force_unlock()? {
        Some(holder) => deleted(common, asked, &holder.to_string()),
        None => nothing("is free"),
    }
}

fn deleted(common: &Common, asked: &ForceUnlock, whose: &str) -> Result<u8, Failure> {
    if common.json {
        write(&json_line(
            &json!({ "v": 1, "key": asked.key, "deleted": true }),
        ))?;
    } else if !common.quiet {
        tell(&format!(
            "lock {:?} is deleted; it was held by {whose}",
            asked.key
        ));
    }
    Ok(code::OK)
}
