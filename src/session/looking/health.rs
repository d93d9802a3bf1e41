//! Whether a manager, its Redis and the way between them are fit for locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::random;
use crate::session::Session;
use crate::session::looking::findings::{self, Finding, Verdict};
use crate::store::{ClaimReply, Compared, Extension, Failure, Goal, Node, Seen, Wanted};
use crate::waiting::core::Core;

/// The results of [`LockManager::check`](crate::LockManager::check).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// The worst of all findings. Unless it is [`Verdict::Failed`], locks work.
    pub verdict: Verdict,
    /// In the order in which they were found. If something could not be examined because an earlier
    /// step failed, there is no finding for it.
    pub findings: Vec<Finding>,
}

/// One line for each finding.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, finding) in self.findings.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{finding}")?;
        }
        Ok(())
    }
}

impl Health {
    pub(crate) fn of(session: &Session, limit: Duration) -> Health {
        let number = random::bits().unwrap_or_default();
        let mut examination = Examination {
            core: &session.core,
            deadline: Moment::now().after(limit),
            key: format!(
                "{}relatch-check-{number:032x}",
                session.core.settings.prefix
            ),
            findings: Vec::new(),
        };
        let is_whole = examination.run().is_some();
        let mut findings = examination.findings;
        if !is_whole && findings.is_empty() {
            findings.push(Finding::failed(
                "nothing could be examined".to_owned(),
                "give it more time",
            ));
        }
        let verdicts = findings.iter().map(|finding| finding.verdict);
        Health {
            verdict: verdicts.max().unwrap_or(Verdict::Well),
            findings,
        }
    }
}

/// An examination of everything on which locks depend, until the deadline.
struct Examination<'a> {
    core: &'a Core,
    deadline: Moment,
    /// A key that nobody else uses.
    key: String,
    findings: Vec<Finding>,
}

impl Examination<'_> {
    /// `None` if something failed on which the rest depends: the first failure is the cause of the
    /// others.
    fn run(&mut self) -> Option<()> {
        if let Err(error) = self.core.own_process(Moment::now()) {
            let advice = "fork before a manager is made";
            return self.note(Finding::failed(error.to_string(), advice));
        }
        let nodes = match self.core.store.masters(self.deadline) {
            Ok(nodes) => nodes,
            Err(failure) => {
                let advice = advice_on(&failure);
                let error = self.core.store.error(None, "connecting", failure);
                return self.note(Finding::failed(error.to_string(), advice));
            }
        };
        for node in &nodes {
            self.note(self.rights(node))?;
        }
        self.note(self.cycle())?;
        for node in &nodes {
            self.note(self.tracking(node))?;
            self.note(self.evictions(node))?;
        }
        Some(())
    }

    fn note(&mut self, finding: Finding) -> Option<()> {
        let works = finding.verdict < Verdict::Failed;
        self.findings.push(finding);
        works.then_some(())
    }

    /// Whether this user has all rights.
    fn rights(&self, node: &Arc<Node>) -> Finding {
        let (prefix, listens) = (
            &self.core.settings.prefix,
            self.core.settings.client_tracking,
        );
        let connection = self.core.store.connect_to(node, self.deadline);
        let missing = connection
            .and_then(|mut it| it.missing_rights(prefix, &self.key, listens, self.deadline));
        match missing {
            Ok(missing) => findings::of_rights(&missing),
            Err(failure) => failed("the server does not answer", &failure),
        }
    }

    /// Takes a lock that nobody else knows, extends its lease, looks at it, and gives it back.
    fn cycle(&self) -> Finding {
        let began = Moment::now();
        match self.try_cycle() {
            Ok(true) => {
                let took = Moment::now().since(began);
                findings::of_cycle(took, self.core.settings.options.lease)
            }
            Ok(false) => Finding::failed(
                "a test lock was sent, and the answers are not those of a Redis".to_owned(),
                "is it a Redis, and does a proxy change what is sent?",
            ),
            Err(failure) => failed(
                "a lock cannot be taken, renewed, seen and given back",
                &failure,
            ),
        }
    }

    /// False if the answers are not those of a Redis.
    fn try_cycle(&self) -> Result<bool, Failure> {
        /// Milliseconds.
        const LEASE: u64 = 10_000;
        let Examination {
            core,
            key,
            deadline,
            ..
        } = self;
        let fresh = core.identity.fresh_token(&core.identity.this_thread());
        let token = &*fresh.map_err(Failure::not_sent)?;
        let mut connection = core.store.checkout(key, *deadline)?;
        let wanted = Wanted {
            key,
            goal: Goal::Key,
            token,
            lease: LEASE,
            counter: None,
        };
        let ClaimReply::Taken { .. } = connection.claim(wanted, *deadline)? else {
            return Ok(false);
        };
        // This is longer, so that the script has something to do.
        let extension = Extension {
            key,
            token,
            lease: 2 * LEASE,
        };
        // All three are sent before any answer is judged. So the key is deleted, whatever comes of
        // the first two, unless the connection breaks.
        let extended = connection.extend(&extension, *deadline);
        let seen = connection.look(key, None, *deadline);
        // This sends the text of the script, which Redis needs again after a restart.
        let removed = connection.force_if(key, token.as_bytes(), *deadline);
        Ok(matches!(
            (extended?, seen?, removed?),
            (Compared::Done, Seen::Somebody(_), Compared::Done)
        ))
    }

    /// Whether invalidations come from this server.
    fn tracking(&self, node: &Arc<Node>) -> Finding {
        const ADVICE: &str = "waiters will poll: see \"Waiting\" in the documentation of the crate for the rights, \
                              and use no proxy that drops invalidations";
        if !self.core.settings.client_tracking {
            return Finding::well("invalidations are switched off: waiters poll".to_owned());
        }
        match self.core.store.listen(node, &self.key) {
            Ok(_) => Finding::well("invalidations come: waiters wake at once".to_owned()),
            Err(failure) => {
                Finding::warning(format!("no invalidations: {}", failure.text()), ADVICE)
            }
        }
    }

    /// Whether the server may forget a lock that is held.
    fn evictions(&self, node: &Arc<Node>) -> Finding {
        let connection = self.core.store.connect_to(node, self.deadline);
        match connection.and_then(|mut connection| connection.info(self.deadline)) {
            Ok(info) => findings::of_evictions(&info),
            Err(failure) => Finding::warning(
                format!("INFO is not available: {}", failure.text()),
                "with the right to INFO, the eviction policy could be checked",
            ),
        }
    }
}

fn failed(what: &str, failure: &Failure) -> Finding {
    Finding::failed(format!("{what}: {}", failure.text()), advice_on(failure))
}

fn advice_on(failure: &Failure) -> &'static str {
    if failure.can_pass() {
        "is it the right address, and is Redis up?"
    } else {
        "check login, rights and settings: docs/operations.md has the rights that locks need"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_one_line() {
        let one = Finding::well("one".to_owned());
        let other = Finding::failed("other".to_owned(), "repair it");
        let lines = format!("{one}\n{other}");
        let verdict = Verdict::Failed;
        let findings = vec![one, other];
        assert_eq!(Health { verdict, findings }.to_string(), lines);
    }
}
