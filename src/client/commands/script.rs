//! Lua scripts: sent by their hash, or whole if Redis does not know them.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::client::wire::failure::Failure;

/// A script, its hash, and the rights that it needs besides `+evalsha +eval`.
pub(crate) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
    rights: &'static str,
}

/// Makes all hashes now. If a thread made one at the first use of its script, and the process were
/// forked at that moment, the child would wait forever for the hash to be made.
pub(crate) fn prepare() {
    for script in [
        &CLAIM,
        &CLAIM_FENCED,
        &CLAIM_SLOT,
        &NO_READER,
        &ADOPT,
        &ADOPT_FENCED,
        &RELEASE,
        &KEEP,
        &RENEW,
        &FORCE,
        &LOOK,
    ] {
        script.hash();
    }
}

const ADOPT_TEXT: &str = include_str!("lua/adopt.lua");

pub(crate) static CLAIM: Script = Script::new(include_str!("lua/claim.lua"), "+set +get +pttl");
pub(crate) static CLAIM_FENCED: Script = Script::new(
    include_str!("lua/claim_fenced.lua"),
    "+set +get +pttl +time",
);
pub(crate) static CLAIM_SLOT: Script =
    Script::new(include_str!("lua/claim_slot.lua"), "+set +get +pttl");
pub(crate) static NO_READER: Script = Script::new(include_str!("lua/no_reader.lua"), "+get +pttl");
pub(crate) static ADOPT: Script = Script::new(ADOPT_TEXT, "+get +pttl +set +pexpire");
pub(crate) static ADOPT_FENCED: Script = Script::new(ADOPT_TEXT, "+get +pttl +set +pexpire +time");
pub(crate) static RELEASE: Script = Script::new(include_str!("lua/release.lua"), "+get +del");
/// Only for a bug that is built in on purpose.
pub(crate) static DELETE: Script = Script::new("return redis.call('DEL', KEYS[1])", "+del");
pub(crate) static KEEP: Script = Script::new(include_str!("lua/keep.lua"), "+get +pexpire +set");
pub(crate) static RENEW: Script = Script::new(include_str!("lua/renew.lua"), "+get +pttl +pexpire");
pub(crate) static LOOK: Script = Script::new(include_str!("lua/look.lua"), "+get +pttl");
pub(crate) static FORCE: Script = Script::new(include_str!("lua/force.lua"), "+pttl +get +del");

impl Script {
    const fn new(text: &'static str, rights: &'static str) -> Script {
        Script {
            text,
            hash: OnceLock::new(),
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
        keys: &[&'a str],
        args: &[&'a str],
    ) -> Vec<Cow<'a, [u8]>> {
        let (name, script) = if whole {
            ("EVAL", self.text)
        } else {
            ("EVALSHA", self.hash())
        };
        let count = match keys.len() {
            1 => Cow::Borrowed("1".as_bytes()),
            many => Cow::Owned(many.to_string().into_bytes()),
        };
        let mut words = Vec::with_capacity(3 + keys.len() + args.len());
        words.extend([name.as_bytes().into(), script.as_bytes().into(), count]);
        words.extend(keys.iter().chain(args).map(|word| word.as_bytes().into()));
        words
    }
}
