//! How scripts are run: by their hash or whole, for one key or for many.

use crate::base::clock::Moment;
use crate::client::commands::connection::{ServerConnection, next};
use crate::client::commands::replicas::ReplicaWait;
use crate::client::commands::reply::{Tracking, read_tracking};
use crate::client::commands::script::Script;
use crate::client::wire::failure::{Failure, accept_change, nonsense};
use crate::client::wire::resp::{Batch, Reply};

/// Runs of one script, which go out in one batch.
pub(crate) struct Runs<'a> {
    pub(crate) script: &'a Script,
    /// The key of each run, and the arguments.
    pub(crate) calls: &'a [(&'a str, &'a [&'a str])],
    /// If true, the first run carries the text of the script, since Redis may not know its hash.
    pub(crate) begins_whole: bool,
    /// The batch first asks Redis, once per connection, to send this listener the invalidations of
    /// keys that are read over the connection. The listener is one of this node: after a redirect,
    /// the other node sends no invalidations.
    pub(crate) listener: Option<u64>,
    /// What the batch ends with. Its reply is the last one.
    pub(crate) wait: Option<&'a ReplicaWait>,
}

impl<'a> Runs<'a> {
    pub(crate) fn of(script: &'a Script, calls: &'a [(&'a str, &'a [&'a str])]) -> Runs<'a> {
        Runs {
            script,
            calls,
            begins_whole: false,
            listener: None,
            wait: None,
        }
    }
}

impl ServerConnection {
    /// Runs a script for one key.
    pub(super) fn run_script(
        &mut self,
        script: &Script,
        key: &str,
        args: &[&str],
        deadline: Moment,
    ) -> Result<Reply, Failure> {
        let (replies, _) = self.run_all(&Runs::of(script, &[(key, args)]), deadline)?;
        accept_change(next(&mut replies.into_iter()))
    }

    /// Runs a script for each key, by its hash. What Redis refuses because it does not know the
    /// script is sent once more. The first of these commands then has the text, and makes the
    /// script known to the others. (It is one that this node executes, and does not redirect.) If
    /// the script is unknown even then, the answer is the second copy of another one, and the
    /// script may have been executed.
    ///
    /// A batch with more than one key follows no redirect.
    pub(crate) fn run_all(
        &mut self,
        runs: &Runs<'_>,
        deadline: Moment,
    ) -> Result<(Vec<Reply>, Tracking), Failure> {
        let keys = runs.calls.len();
        let listener = runs.listener.filter(|_| !self.redirected);
        let link = self.link.as_ref().map_or(0, |link| link.id);
        let mut result = listener.map_or(Tracking::Off, |_| Tracking::On { link });
        let mut to_ask = listener.filter(|listener| !self.invalidates_to(*listener));
        let mut all = vec![Reply::Nil; keys];
        let mut open = (0..keys).collect::<Vec<_>>();
        let mut teach = false;
        loop {
            let begun = self.ask(begin(to_ask));
            let batch = open.iter().fold(begun, |batch, n| {
                let is_whole = teach && *n == open[0] || runs.begins_whole && *n == 0;
                let (key, args) = runs.calls[*n];
                batch.and(&runs.script.command(is_whole, key, args))
            });
            let batch = match runs.wait {
                Some(wait) => wait.behind(batch),
                None => batch,
            };
            let mut replies = self.exchange(&batch, deadline)?.into_iter();
            if let Some(listener) = to_ask.take() {
                result = read_tracking(next(&mut replies), link);
                if let (Tracking::On { .. }, Some(link)) = (&result, &mut self.link) {
                    link.set_listener(listener);
                }
            }
            if self.asking {
                next(&mut replies);
            }
            for n in &open {
                all[*n] = next(&mut replies);
            }
            if keys == 1 && self.follow(&all[0], deadline)? {
                result = Tracking::Off;
                continue;
            }
            let taught = open[0];
            if teach && all[taught].is_noscript() {
                return self.retire_if_nonsense(Err(nonsense(&all[taught])));
            }
            open.retain(|n| all[*n].is_noscript());
            if teach || open.is_empty() {
                all.extend(replies);
                return Ok((all, result));
            }
            teach = true;
        }
    }

    fn invalidates_to(&self, listener: u64) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.invalidates_to(listener))
    }
}

/// An empty batch or, if `listener` is given, a batch that asks for invalidations. With `NOLOOP`,
/// changes over this connection cause no invalidations, so that an uncontended release costs no
/// extra message.
fn begin(listener: Option<u64>) -> Batch {
    let Some(listener) = listener else {
        return Batch::default();
    };
    Batch::of(&[
        "CLIENT",
        "TRACKING",
        "ON",
        "REDIRECT",
        &listener.to_string(),
        "NOLOOP",
    ])
}
