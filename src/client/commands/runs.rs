//! How scripts are run: by their hash or whole, once or many times.

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
    /// The keys of each run, and the arguments.
    pub(crate) calls: &'a [Call<'a>],
    /// If true, the first run carries the text of the script, since Redis may not know its hash.
    pub(crate) begins_whole: bool,
    /// The batch first asks Redis, once per connection, to send this listener the invalidations of
    /// keys that are read over the connection. The listener is one of this node: after a redirect,
    /// the other node sends no invalidations.
    pub(crate) listener: Option<u64>,
    /// What the batch ends with. Its reply is the last one.
    pub(crate) wait: Option<&'a ReplicaWait>,
}

/// The keys of one run of a script, all in one place in a cluster, and its arguments.
pub(crate) type Call<'a> = (&'a [&'a str], &'a [&'a str]);

impl<'a> Runs<'a> {
    pub(crate) fn of(script: &'a Script, calls: &'a [Call<'a>]) -> Runs<'a> {
        Runs {
            script,
            calls,
            begins_whole: false,
            listener: None,
            wait: None,
        }
    }
}

impl Script {
    /// Runs the script once. `read` reads the reply; if a right was missing, the failure
    /// names those that the script needs.
    pub(super) fn invoke<T>(
        &self,
        connection: &mut ServerConnection,
        keys: &[&str],
        args: &[&str],
        deadline: Moment,
        read: impl FnOnce(Result<Reply, Failure>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let runs = Runs::of(self, &[(keys, args)]).send(connection, deadline);
        let reply = runs.and_then(|(mut replies, _)| accept_change(replies.remove(0)));
        connection.judged(self.explained(read(reply)))
    }
}

impl Runs<'_> {
    /// Makes all these runs, by the script's hash. Commands that Redis refuses because it does not
    /// know the script are sent once more. The first of these commands then has the text, and makes
    /// the script known to the others. (It is one that this node executes, and does not redirect.)
    /// If the script is unknown even then, the answer is a second copy of an earlier one, and the
    /// script may have been executed.
    ///
    /// A batch with more than one run follows no redirect.
    pub(super) fn send(
        &self,
        connection: &mut ServerConnection,
        deadline: Moment,
    ) -> Result<(Vec<Reply>, Tracking), Failure> {
        let calls = self.calls.len();
        let listener = self.listener.filter(|_| !connection.redirected);
        let link = connection.lent.link.as_ref();
        let id = link.map_or(0, |link| link.id);
        let mut to_ask = listener.filter(|_| link.is_none_or(|link| link.listener != listener));
        let mut result = listener.map_or(Tracking::Off, |_| Tracking::On { link: id });
        let mut all = vec![Reply::Nil; calls];
        let mut open = (0..calls).collect::<Vec<_>>();
        let mut teach = false;
        loop {
            let begun = connection.begin(tracking(to_ask, &["NOLOOP"]));
            let batch = open.iter().fold(begun, |batch, n| {
                let is_whole = teach && *n == open[0] || self.begins_whole && *n == 0;
                let (keys, args) = self.calls[*n];
                batch.and(&self.script.command(is_whole, keys, args))
            });
            let batch = match self.wait {
                Some(wait) => wait.behind(batch),
                None => batch,
            };
            let mut replies = connection.exchange(&batch, deadline)?.into_iter();
            if to_ask.take().is_some() {
                result = read_tracking(next(&mut replies), id);
                if let (Tracking::On { .. }, Some(link)) = (&result, &mut connection.lent.link) {
                    link.listener = listener;
                }
            }
            if connection.asking {
                next(&mut replies);
            }
            for n in &open {
                all[*n] = next(&mut replies);
            }
            if calls == 1 && connection.follow(&all[0], deadline)? {
                result = Tracking::Off;
                continue;
            }
            let taught = open[0];
            if teach && all[taught].is_noscript() {
                return connection.judged(Err(nonsense(&all[taught])));
            }
            open.retain(|n| all[*n].is_noscript());
            if teach || open.is_empty() {
                all.extend(replies);
                return Ok((all, result));
            }
            teach = true;
        }
    }
}

/// An empty batch or, if `listener` is given, a batch that asks for invalidations. With `NOLOOP`,
/// changes over this connection cause no invalidations, so that an uncontended release costs no
/// extra message.
pub(super) fn tracking(listener: Option<u64>, options: &[&str]) -> Batch {
    let Some(listener) = listener else {
        return Batch::default();
    };
    let on = [
        "CLIENT",
        "TRACKING",
        "ON",
        "REDIRECT",
        &listener.to_string(),
    ];
    Batch::of(&[&on, options].concat())
}
