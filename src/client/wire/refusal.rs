//! An error that a server returns: its code, the text that may be shown, and what it says about the
//! command.

use std::fmt;

/// How many characters of a server's error are kept. The errors of Redis itself are shorter.
const LONGEST_MESSAGE: usize = 500;

/// The codes of the errors that Redis and Valkey return *instead of* executing a command that a
/// lock sends. (`NOFENCE` is the answer of `claim_fenced.lua` to a counter that is not a number,
/// and `NOGATE` that of `no_reader.lua` to a writer that has lost its gate.)
const DID_NOTHING: &str = "
    ASK BUSY CLUSTERDOWN CROSSSLOT DENIED EXECABORT LOADING MASTERDOWN MISCONF MOVED NOAUTH NOFENCE
    NOGATE NOGOODSLAVE NOPERM NOPROTO NOREPLICAS NOSCRIPT OOM READONLY REDIRECT TRYAGAIN WRONGPASS
    WRONGTYPE";

/// The same for errors with the code `ERR`. That code alone says nothing, so the message has to
/// begin with one of these texts. A script of this crate that
/// fails has taken, extended or released no lock.
const DID_NOTHING_ERR: [&str; 20] = [
    "ACL failure in script",
    "Error compiling script",
    "Error running script",
    "Number of keys can't be",
    "Protocol error",
    "Script attempted to access",
    "Script killed by user",
    "The user executing the script can't",
    "This Redis command is not allowed from script",
    "Unknown Redis command called from script",
    "WAITAOF cannot be used when",
    "Write commands are not allowed",
    "invalid expire time",
    "max number of clients",
    "operation not permitted",
    "syntax error",
    "unknown command",
    "unknown subcommand",
    "value is not an integer",
    "wrong number of arguments",
];

/// An error that Redis returned.
///
/// Its meaning is read from the text as Redis sent it. People see a different text, which does not
/// show the connection's password. So a password that occurs in a well-known error does not change
/// what that error means.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    /// A well-known code, or else the first word as it may be shown.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
    /// As Redis sent it. Never shown.
    pub(super) said: Box<str>,
}

impl Refusal {
    /// Parses an error as Redis sent it: a code, a space and a message. Neither message nor code
    /// shows the password.
    ///
    /// A server that does not know `AUTH` (because it was renamed, or the server is not Redis)
    /// repeats the arguments of the command, or their beginning: these are left out. If the
    /// password still shows after that, only the code is left.
    pub(crate) fn new(said: &str, password: &str) -> Refusal {
        let password = plain(password);
        let shows = |text: &str| !password.is_empty() && plain(text).contains(&password);
        let code = Some(code_of(said)).filter(|code| is_known(code) || !shows(code));
        let code = legible(code.unwrap_or("ERR"));
        let text = said.split(", with args beginning with").next();
        let message = match text.filter(|text| !shows(text)) {
            Some(text) => legible(text),
            // If only the password were removed, the gap in a well-known text would reveal a short
            // password.
            None => format!("{code} (not shown: the answer contains the password)"),
        };
        Refusal {
            code,
            message,
            said: said.into(),
        }
    }

    /// An error that this crate finds itself.
    pub(crate) fn found(code: &str, message: impl Into<String>) -> Refusal {
        Refusal {
            code: code.to_owned(),
            message: message.into(),
            said: "".into(),
        }
    }

    /// The error for a reply that does not answer the command.
    pub(crate) fn nonsense(kind: &str) -> Refusal {
        Refusal::found("", format!("the reply made no sense: {kind}"))
    }

    /// True if this is in the text that Redis sent.
    pub(crate) fn says(&self, words: &str) -> bool {
        self.said.contains(words)
    }

    /// The address in a redirect: its third word.
    pub(crate) fn address(&self) -> Option<&str> {
        self.said.split(' ').nth(2)
    }

    /// True for an error that Redis is known to return instead of executing the command.
    pub(crate) fn did_nothing(&self) -> bool {
        // Before Redis 7, an error that a script passes on begins with the script's line:
        // `@user_script: 14: The user ...`.
        let in_script = || {
            let message = self.said.strip_prefix("@user_script")?;
            Some(message.trim_start_matches(|c: char| c == ':' || c == ' ' || c.is_ascii_digit()))
        };
        let message = self
            .said
            .strip_prefix("ERR ")
            .or_else(in_script)
            .unwrap_or_default();
        is_known(&self.code)
            || DID_NOTHING_ERR
                .iter()
                .any(|beginning| message.starts_with(beginning))
    }

    /// True if another node of a cluster has the slot of the key.
    pub(crate) fn is_redirect(&self) -> bool {
        matches!(&*self.code, "MOVED" | "ASK")
    }

    /// True for states of Redis that end by themselves: loading, failing over, running a long
    /// script, moving slots.
    pub(crate) fn can_pass(&self) -> bool {
        matches!(
            self.code.as_str(),
            "LOADING"
                | "READONLY"
                | "MASTERDOWN"
                | "BUSY"
                | "NOREPLICAS"
                | "CLUSTERDOWN"
                | "TRYAGAIN"
                | "MOVED"
                | "ASK"
        ) || self.says("max number of clients")
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server's text as it may appear in a message and in a log: on one line, and of bounded length.
pub(crate) fn legible(text: &str) -> String {
    let mut shown = plain(text);
    if let Some((end, _)) = shown.char_indices().nth(LONGEST_MESSAGE) {
        shown.truncate(end);
        shown.push_str("...");
    }
    shown
}

/// The text without line ends, and without characters that would change the order in which it is
/// shown.
fn plain(text: &str) -> String {
    let turns = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| c.is_control() || turns(c), " ")
}

/// True for a well-known code other than `ERR`: it gives away no password.
fn is_known(code: &str) -> bool {
    DID_NOTHING.split_ascii_whitespace().any(|it| it == code)
}

/// The code of an error. Before Redis 7, an error inside a script has its code after the script's
/// line: `ERR Error running script (call to f_...): @user_script:1: WRONGTYPE Operation ...`. The
/// line may be there twice, and the code may have a `-` before it: `...: @user_script:7:
/// @user_script: 7: -READONLY You ...`.
fn code_of(error: &str) -> &str {
    let (code, message) = error.split_once(' ').unwrap_or((error, ""));
    let inside = || {
        let (_, inside) = message
            .strip_prefix("Error running script")?
            .rsplit_once("@user_script")?;
        let inside =
            inside.trim_start_matches(|c: char| c == ':' || c == ' ' || c.is_ascii_digit());
        inside.trim_start_matches('-').split(' ').next()
    };
    let is_code =
        |code: &&str| code.len() > 1 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    inside().filter(is_code).unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    proptest! {
        #![proptest_config(garbled::cases())]

        /// No server's answer shows the password or forges a line in a log.
        #[test]
        fn any_error_is_one_line_without_the_password(
            error in garbled::text(prop_oneof![
                Just("ERR unknown command 'AUTH', with args beginning with: 'worker' 'c4nary' "),
                Just("ERR Error running script (call to f_0a1B): @user_script:7: @user_script: 7: -READONLY c4nary"),
                Just("WRONGPASS c4nary is invalid"),
            ]),
        ) {
            let refusal = Refusal::new(&error, "c4nary");
            prop_assert!(garbled::is_one_line(&refusal.message) && garbled::is_one_line(&refusal.code), "{:?}", refusal);
            prop_assert!(refusal.message.chars().count() <= LONGEST_MESSAGE + 3);
            prop_assert!(!format!("{refusal:?} {refusal}").contains("c4nary"), "{:?}", refusal);
            let plain = Refusal::new(&error, "");
            prop_assert_eq!(refusal.did_nothing(), plain.did_nothing());
            prop_assert_eq!(refusal.can_pass(), plain.can_pass());
        }
    }

    #[test]
    fn an_error_inside_a_script_has_its_own_code() {
        let code = |message: &str| Refusal::new(message, "").code;
        let failed = |words: &str| {
            code(&format!(
                "ERR Error running script (call to f_0a1B): {words}"
            ))
        };
        assert_eq!(
            failed("@user_script:1: WRONGTYPE Operation against a key"),
            "WRONGTYPE"
        );
        assert_eq!(
            failed("@user_script:7: @user_script: 7: -READONLY You can't write"),
            "READONLY"
        );
        assert_eq!(
            failed("@user_script:1: Script killed by user with SCRIPT KILL"),
            "ERR"
        );
        assert_eq!(failed("@user_script"), "ERR");
        assert_eq!(
            code("ERR no such thing as a @user_script:1: WRONGTYPE"),
            "ERR"
        );
        assert_eq!(
            code("WRONGTYPE Operation against a key script: x"),
            "WRONGTYPE"
        );
    }

    /// A terminal or an editor would show such a text in a different order, or on more lines.
    #[test]
    fn the_text_of_a_server_is_one_line_from_left_to_right() {
        let odd = "\n\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}";
        for c in odd.chars() {
            assert_eq!(
                legible(&format!("ERR a{c}b \u{e9}")),
                "ERR a b \u{e9}",
                "{c:?}"
            );
        }
    }

    /// The texts are those of Redis 6.2, Redis 7.0 and Valkey.
    #[test]
    fn errors_that_redis_answers_in_place_of_a_command_are_known() {
        for message in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions to run the 'set' command",
            "NOPERM ACL failure in script: User worker has no permissions to run the 'get' command",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "NOREPLICAS Not enough good replicas to write.",
            "CLUSTERDOWN Hash slot not served",
            "MOVED 3999 127.0.0.1:6381",
            "NOSCRIPT No matching script. Please use EVAL.",
            "DENIED Redis is running in protected mode because protected mode is enabled",
            "ERR unknown command 'SET', with args beginning with: 'lock:a' 'x'",
            "ERR unknown command `EVALSHA`, with args beginning with: `a`, `b`, ",
            "ERR wrong number of arguments for 'set' command",
            "ERR syntax error",
            "ERR invalid expire time in 'set' command",
            "ERR invalid expire time in set",
            "ERR value is not an integer or out of range",
            "ERR max number of clients reached",
            "ERR max number of clients + cluster connections reached",
            "ERR Protocol error: invalid multibulk length",
            "ERR The user executing the script can't run this command or subcommand script: f_1, on @user_script:1.",
            "ERR Error running script (call to f_1): @user_script:1: Script killed by user with SCRIPT KILL...",
            "ERR Error running script (call to f_1): @user_script: 1: -READONLY You can't write",
            "ERR Script killed by user with SCRIPT KILL. script: f_1, on @user_script:1.",
            "ERR Script attempted to access a non local key in a cluster node script: f_1",
            "ERR operation not permitted",
            "@user_script: 14: The user executing the script can't run this command or subcommand",
        ] {
            assert!(Refusal::new(message, "").did_nothing(), "{message}");
        }
    }

    #[test]
    fn the_page_on_errors_names_those_that_pass() {
        let page = include_str!("../../../docs/errors.md");
        let (_, part) = page
            .split_once("## Which Redis errors are transient")
            .expect("the part");
        let (pass, _) = part.split_once("relatch tries again").expect("their list");
        for code in DID_NOTHING.split_ascii_whitespace() {
            let can_pass = Refusal::new(&format!("{code} so"), "").can_pass();
            assert_eq!(can_pass, pass.contains(&format!("`{code}`")), "{code}");
        }
    }

    #[test]
    fn an_error_does_not_show_the_password() {
        let concealed = |said: &str, password| Refusal::new(said, password).message;
        let unknown = "ERR unknown command 'AUTH', with args beginning with: 'worker' 'canar";
        assert_eq!(concealed(unknown, "canary"), "ERR unknown command 'AUTH'");
        let not_shown = "(not shown: the answer contains the password)";
        assert_eq!(
            concealed("ERR what is canary?", "canary"),
            format!("ERR {not_shown}")
        );
        assert_eq!(
            concealed("canary is unknown", "canary"),
            format!("ERR {not_shown}")
        );
        assert_eq!(
            concealed(&("x".repeat(495) + "canary"), "canary"),
            format!("ERR {not_shown}")
        );
        let wrong = "WRONGPASS invalid username-password pair or user is disabled.";
        assert_eq!(concealed(wrong, "canary"), wrong);
        assert_eq!(concealed(wrong, ""), wrong);
        assert_eq!(
            concealed(wrong, "password"),
            format!("WRONGPASS {not_shown}")
        );
        assert_eq!(
            concealed("ERR what is can ary?", "can\tary"),
            format!("ERR {not_shown}"),
            "as it is shown"
        );
    }

    /// Each word of a well-known error may be somebody's password.
    #[test]
    fn a_password_changes_nothing_of_what_an_error_means() {
        for said in [
            "ERR max number of clients reached",
            "ERR unknown command 'EVALSHA', with args beginning with: 'a' 'b' ",
            "ERR Error running script (call to f_1): @user_script: 1: -READONLY You can't write",
            "LOADING Redis is loading the dataset in memory",
            "NOPERM User worker has no permissions to run the 'get' command",
            "NOSCRIPT No matching script. Please use EVAL.",
            "MOVED 3999 127.0.0.1:6381",
        ] {
            let meaning = |password| {
                let it = Refusal::new(said, password);
                let told = (it.did_nothing(), it.can_pass(), it.is_redirect());
                let address = it.address().map(str::to_owned);
                (it.code.clone(), told, address, it.says("to run the "))
            };
            for password in said.split(' ').chain(["client", "command", "39", "E"]) {
                assert_eq!(meaning(password), meaning(""), "{said}: {password}");
            }
        }
    }
}
