//! Lua scripts: sent by their hash, or whole if Redis does not know them.

use std::sync::OnceLock;

use crate::client::wire::failure::Failure;

/// A script, its hash, and the rights that it needs besides `+evalsha +eval`.
pub(crate) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
    /// How many keys it has.
    keys: &'static str,
    rights: &'static str,
}

/// Makes all hashes now. If a thread made one at the first use of its script, and the process were
/// forked at that moment, the child would wait for ever for the hash to be made.
pub(crate) fn prepare() {
    for script in [
        &CLAIM,
        &CLAIM_FENCED,
        &ADOPT,
        &ADOPT_FENCED,
        &RELEASE,
        &KEEP,
        &RENEW,
        &FORCE,
        &LOOK,
        &LOOK_FENCED,
    ] {
        script.hash();
    }
}

const ADOPT_TEXT: &str = include_str!("lua/adopt.lua");
const LOOK_TEXT: &str = include_str!("lua/look.lua");

pub(crate) static CLAIM: Script =
    Script::new(include_str!("lua/claim.lua"), "1", "+set +get +pttl");
/// Has a second key: its first argument is the key of the lock's counter.
pub(crate) static CLAIM_FENCED: Script = Script::new(
    include_str!("lua/claim_fenced.lua"),
    "2",
    "+set +get +pttl +time",
);
pub(crate) static ADOPT: Script = Script::new(ADOPT_TEXT, "1", "+get +pttl +set +pexpire");
/// Has a second key, as [`CLAIM_FENCED`].
pub(crate) static ADOPT_FENCED: Script =
    Script::new(ADOPT_TEXT, "2", "+get +pttl +set +pexpire +time");
pub(crate) static RELEASE: Script = Script::new(include_str!("lua/release.lua"), "1", "+get +del");
/// Only for a bug that is built in.
pub(crate) static DELETE: Script = Script::new("return redis.call('DEL', KEYS[1])", "1", "+del");
pub(crate) static KEEP: Script =
    Script::new(include_str!("lua/keep.lua"), "1", "+get +pexpire +set");
pub(crate) static RENEW: Script =
    Script::new(include_str!("lua/renew.lua"), "1", "+get +pttl +pexpire");
pub(crate) static LOOK: Script = Script::new(LOOK_TEXT, "1", "+get +pttl");
/// Has a second key, as [`CLAIM_FENCED`].
pub(crate) static LOOK_FENCED: Script = Script::new(LOOK_TEXT, "2", "+get +pttl");
pub(crate) static FORCE: Script =
    Script::new(include_str!("lua/force.lua"), "1", "+pttl +get +del");

impl Script {
    const fn new(text: &'static str, keys: &'static str, rights: &'static str) -> Script {
        Script {
            text,
            hash: OnceLock::new(),
            keys,
            rights,
        }
    }

    fn hash(&self) -> &str {
        let hash = || redis::Script::new(self.text).get_hash().to_owned();
        self.hash.get_or_init(hash)
    }

    /// If a right was missing, adds the rights that the script needs to the failure's message:
    /// Redis 7.0 does not say which right was missing.
    pub(crate) fn explained<T>(&self, mut read: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(Failure::Refused(refusal)) = &mut read
            && refusal.says("can't run this command")
        {
            let needs = format!(" (the script needs {})", self.rights);
            refusal.message.push_str(&needs);
        }
        read
    }

    /// `EVALSHA`: short. Redis answers NOSCRIPT if it does not know the script. `whole`: `EVAL`
    /// with the text. Redis then knows the script for the next `EVALSHA`.
    pub(crate) fn command<'a>(
        &'a self,
        whole: bool,
        key: &'a str,
        args: &[&'a str],
    ) -> Vec<&'a str> {
        let (name, script) = if whole {
            ("EVAL", self.text)
        } else {
            ("EVALSHA", self.hash())
        };
        [&[name, script, self.keys, key], args].concat()
    }
}
