//! What a server's answers mean for locks.

use std::fmt;
use std::time::Duration;

use crate::store::{Info, Missing};

/// One thing that was examined.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How well it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it. `None` if all is well.
    pub advice: Option<&'static str>,
}

/// How well a [`Finding`] is. The worse, the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// As it should be.
    Well,
    /// Locks work, but they are slower or more easily lost than they need be.
    Warning,
    /// Locks do not work.
    Failed,
}

impl Finding {
    pub(super) fn well(found: String) -> Finding {
        Finding {
            verdict: Verdict::Well,
            found,
            advice: None,
        }
    }

    pub(super) fn warning(found: String, advice: &'static str) -> Finding {
        Finding {
            verdict: Verdict::Warning,
            found,
            advice: Some(advice),
        }
    }

    pub(super) fn failed(found: String, advice: &'static str) -> Finding {
        Finding {
            verdict: Verdict::Failed,
            found,
            advice: Some(advice),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Well => "ok",
            Verdict::Warning => "warn",
            Verdict::Failed => "FAIL",
        })
    }
}

/// One line for a log.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:4}  {}", self.verdict, self.found)?;
        match self.advice {
            Some(advice) => write!(f, "  -> {advice}"),
            None => Ok(()),
        }
    }
}

/// A test lock was taken, renewed, seen and given back in this time.
pub(super) fn of_cycle(took: Duration, lease: Duration) -> Finding {
    let found = format!("a test lock was taken, renewed, seen and given back, in {took:.1?}");
    if took > lease / 10 {
        let advice =
            "more than a tenth of the lease: use a longer lease, or a Redis that is closer";
        Finding::warning(found, advice)
    } else {
        Finding::well(found)
    }
}

/// The rights that the user lacks.
pub(super) fn of_rights(missing: &Missing) -> Finding {
    let Missing { each_lock, others } = missing;
    let all = [&each_lock[..], others].concat().join(" ");
    let found = format!("the user lacks these rights: {all}");
    match (&each_lock[..], &others[..]) {
        ([], []) => Finding::well("the user has all rights".to_owned()),
        ([], _) => Finding::warning(
            found,
            "locks work without them, but waiters poll, or people on call see less: ACL SETUSER \
             adds them",
        ),
        _ => Finding::failed(found, "locks do not work: ACL SETUSER adds them"),
    }
}

/// Whether the server may forget a lock that is held.
pub(super) fn of_evictions(info: &Info) -> Finding {
    let policy = info.field("maxmemory_policy").unwrap_or("not known");
    let is_limited = info.number("maxmemory").unwrap_or_default() > 0;
    let evicted = info.number("evicted_keys").unwrap_or_default();
    let found = format!("the eviction policy is {policy}, and {evicted} keys were evicted");
    if policy == "noeviction" || !is_limited && evicted == 0 {
        Finding::well(found)
    } else {
        let advice = "Redis may forget a lock that is held: set maxmemory-policy to noeviction";
        Finding::warning(found, advice)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    const INFO: &str = "maxmemory:0\r\nmaxmemory_policy:noeviction\r\nevicted_keys:0\r\n";

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn whatever_a_server_says_a_finding_is_one_line(text in garbled::text(Just(INFO))) {
            let finding = of_evictions(&Info::read(text.as_bytes())).to_string();
            prop_assert!(garbled::is_one_line(&finding), "{:?}", finding);
        }
    }

    #[test]
    fn what_can_lose_locks_is_found() {
        let verdict = |text: &str| of_evictions(&Info::read(text.as_bytes())).verdict;
        assert_eq!(verdict(INFO), Verdict::Well);
        assert_eq!(
            verdict("maxmemory:0\nmaxmemory_policy:allkeys-lru"),
            Verdict::Well
        );
        assert_eq!(
            verdict("maxmemory:1000\nmaxmemory_policy:allkeys-lru"),
            Verdict::Warning
        );
        assert_eq!(
            verdict("maxmemory_policy:allkeys-lru\nevicted_keys:1"),
            Verdict::Warning
        );
    }

    #[test]
    fn a_lock_is_quick_against_the_lease() {
        let verdict = |millis| {
            let took = Duration::from_millis(millis);
            of_cycle(took, Duration::from_secs(1)).verdict
        };
        assert_eq!(
            (verdict(100), verdict(101)),
            (Verdict::Well, Verdict::Warning)
        );
    }

    #[test]
    fn a_right_that_each_lock_needs_is_a_failure() {
        let missing = |each_lock: &[&str], others: &[&str]| {
            let [each_lock, others] =
                [each_lock, others].map(|it| it.iter().map(ToString::to_string).collect());
            of_rights(&Missing { each_lock, others }).verdict
        };
        assert_eq!(missing(&["+set"], &["+time"]), Verdict::Failed);
        assert_eq!(missing(&[], &["+time"]), Verdict::Warning);
        assert_eq!(missing(&[], &[]), Verdict::Well);
    }
}
