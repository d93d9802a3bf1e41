//! Lua scripts: sent by their hash, or whole if Redis does not know them.

use std::sync::LazyLock;

use crate::client::wire::failure::Failure;

/// A script, its hash, and the rights that it needs besides `+evalsha +eval`.
pub(crate) struct Script {
    text: &'static str,
    hash: String,
    /// How many keys it has.
    keys: &'static str,
    rights: &'static str,
}

/// Makes all scripts now. If a thread made a script at its first use, and the process were forked
/// at that moment, the child would wait for ever for the script to be made.
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
        LazyLock::force(script);
    }
}

pub(crate) static CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/claim.lua"), "+set +get +pttl"));
/// Has a second key: its first argument is the key of the lock's counter.
pub(crate) static CLAIM_FENCED: LazyLock<Script> = LazyLock::new(|| {
    let script = Script::new(
        include_str!("lua/claim_fenced.lua"),
        "+set +get +pttl +time",
    );
    Script {
        keys: "2",
        ..script
    }
});
pub(crate) static ADOPT: LazyLock<Script> =
    LazyLock::new(|| adopt("1", "+get +pttl +set +pexpire"));
/// Has a second key, as [`CLAIM_FENCED`].
pub(crate) static ADOPT_FENCED: LazyLock<Script> =
    LazyLock::new(|| adopt("2", "+get +pttl +set +pexpire +time"));
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/release.lua"), "+get +del"));
/// Only for a bug that is built in.
pub(crate) static DELETE: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.call('DEL', KEYS[1])", "+del"));
pub(crate) static KEEP: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/keep.lua"), "+get +pexpire +set"));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/renew.lua"), "+get +pttl +pexpire"));
pub(crate) static LOOK: LazyLock<Script> = LazyLock::new(|| look("1"));
/// Has a second key, as [`CLAIM_FENCED`].
pub(crate) static LOOK_FENCED: LazyLock<Script> = LazyLock::new(|| look("2"));
pub(crate) static FORCE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/force.lua"), "+pttl +get +del"));

fn adopt(keys: &'static str, rights: &'static str) -> Script {
    Script {
        keys,
        ..Script::new(include_str!("lua/adopt.lua"), rights)
    }
}

fn look(keys: &'static str) -> Script {
    Script {
        keys,
        ..Script::new(include_str!("lua/look.lua"), "+get +pttl")
    }
}

impl Script {
    fn new(text: &'static str, rights: &'static str) -> Script {
        Script {
            hash: redis::Script::new(text).get_hash().to_owned(),
            text,
            keys: "1",
            rights,
        }
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
            ("EVALSHA", &*self.hash)
        };
        [&[name, script, self.keys, key], args].concat()
    }
}
