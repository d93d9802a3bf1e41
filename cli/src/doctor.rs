//! `relatch doctor`: what is wrong with Redis, the network and the access rights.

use std::time::Duration;

use relatch::{Found, Health, LockManager, Verdict};
use serde_json::json;

use crate::args::{Common, Doctor};
use crate::connect::{builder, with_hint};
use crate::exit::Failure;
use crate::output::{json_line, plain, write};

/// The limit of the checks, and of the key scan.
const LIMIT: Duration = Duration::from_secs(30);

/// A lease longer than this is almost certainly a mistake.
const LONG_LEASE: Duration = Duration::from_secs(24 * 3600);

/// One line of the answer.
struct Line {
    verdict: Verdict,
    found: String,
    advice: String,
}

pub(crate) fn doctor(common: &Common, asked: &Doctor) -> Result<u8, Failure> {
    let locks = builder(common)?.lease(asked.for_lease).build_lazily()?;
    let health = locks.check(LIMIT);
    let mut lines = of_health(&health);
    if health.verdict < Verdict::Failed {
        lines.push(of_keys(&locks, common));
    }
    for line in &lines {
        if common.quiet && line.verdict == Verdict::Well {
            continue;
        }
        let Line {
            verdict,
            found,
            advice,
        } = line;
        if asked.answer.json {
            let verdict = verdict.to_string().to_lowercase();
            let object = json!({ "v": 1, "verdict": verdict, "found": found, "advice": advice });
            write(&json_line(&object))?;
        } else {
            let arrow = if advice.is_empty() { "" } else { "  -> " };
            let line = plain(&format!("{verdict:4}  {found}{arrow}{advice}"));
            write(&format!("{line}\n"))?;
        }
    }
    // The exit codes are those of Nagios.
    Ok(match lines.iter().map(|line| line.verdict).max() {
        Some(Verdict::Well) => 0,
        Some(Verdict::Warning) => 1,
        _ => 2,
    })
}

fn of_health(health: &Health) -> Vec<Line> {
    let lines = health.findings.iter().map(|finding| Line {
        verdict: finding.verdict,
        found: with_hint(finding.found.clone()),
        advice: finding.advice.unwrap_or_default().to_owned(),
    });
    lines.collect()
}

/// Keys with the prefix that could block locks.
fn of_keys(locks: &LockManager, common: &Common) -> Line {
    let mut all = 0;
    let mut odd = Vec::new();
    for found in locks.survey(LIMIT) {
        match found {
            Ok(found) => {
                all += 1;
                let left = found.holder.as_ref().and_then(|holder| holder.remaining);
                let is_long = left.is_some_and(|left| left > LONG_LEASE);
                if is_long || matches!(found.found, Found::NeverExpires | Found::NotALock) {
                    odd.push(found.key);
                }
            }
            Err(error) => {
                return Line {
                    verdict: Verdict::Warning,
                    found: format!("the keys cannot be listed: {error}"),
                    advice:
                        "locks do not need this; `relatch ls` does: give the operator's user +scan +getrange"
                            .to_owned(),
                };
            }
        }
    }
    let prefix = &common.prefix;
    if odd.is_empty() {
        return Line {
            verdict: Verdict::Well,
            found: format!("{all} keys begin with {prefix:?}, and each can be a lock"),
            advice: String::new(),
        };
    }
    let some = odd[..odd.len().min(3)].join(", ");
    Line {
        verdict: Verdict::Warning,
        found: format!(
            "{} of {all} keys with prefix {prefix:?} never expire, last for days, or are not strings: {some}",
            odd.len()
        ),
        advice: "a program that wants a lock with such a key fails or waits a long time: `relatch ls --all` shows them"
            .to_owned(),
    }
}
