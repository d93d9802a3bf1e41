//! Which commands are executed, and why others are refused, in the order in which Redis asks.

use crate::simulation::redis::resp::{Reply, error};
use crate::simulation::redis::state::State;
use crate::simulation::redis::table::{self, Command};

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const NO_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
pub(super) const NO_MASTER: &str =
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
const LOADING: &str = "LOADING Redis is loading the dataset in memory";
const STUCK: &str =
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";

const SUBSCRIBED: &str = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET";

impl State {
    /// Executes a command of a client. `None` if the command has to wait for the end of a pause.
    pub(super) fn execute(&mut self, args: &[&[u8]]) -> Option<Reply> {
        let command = match table::find(args, self.sentinel.is_some()) {
            Ok(command) if command.takes(args.len()) => command,
            Ok(command) => return Some(command.wrong_number()),
            Err(unknown) => return Some(unknown),
        };
        if let Some(refusal) = self.refusal(command, args) {
            return Some(refusal);
        }
        if self.postpones(command) {
            return None;
        }
        Some(self.call(command, args))
    }

    fn call(&mut self, command: &Command, args: &[&[u8]]) -> Reply {
        let reply = (command.run)(self, args).unwrap_or_else(|refusal| refusal);
        if command.is(table::READ) {
            match self.script.take() {
                // All keys of the script count as read.
                Some(script) => {
                    self.remember(&script.keys);
                    self.script = Some(script);
                }
                None => self.remember(command.keys(args)),
            }
        }
        reply
    }

    fn refusal(&mut self, command: &Command, args: &[&[u8]]) -> Option<Reply> {
        if !self.is_in() && !command.is(table::NO_AUTH) {
            return Some(error("NOAUTH Authentication required."));
        }
        if let Some(redirection) = self.redirection(command.keys(args)) {
            return Some(redirection);
        }
        let (writes, is_replica, now) = (
            command.is(table::WRITE),
            self.replication.is_replica,
            self.now,
        );
        let is_subscriber = !self.connection().channels.is_empty();
        let faults = &self.faults;
        Some(error(match () {
            () if faults.out_of_memory && command.is(table::DENY_OOM) => OUT_OF_MEMORY,
            () if faults.lacks_replicas && writes => NO_REPLICAS,
            () if is_replica && writes => READ_ONLY,
            () if is_subscriber && !command.is(table::PUB_SUB) => {
                let (name, start) = (command.name, "ERR Can't execute '");
                return Some(error(&format!(
                    "{start}{name}': only {SUBSCRIBED} are allowed in this context"
                )));
            }
            () if is_replica && faults.master_is_down && !command.is(table::STALE) => NO_MASTER,
            () if now < faults.loading_until && !command.is(table::LOADING) => LOADING,
            () if now < faults.stuck_until && !command.is(table::BUSY) => STUCK,
            () => return None,
        }))
    }

    fn postpones(&self, command: &Command) -> bool {
        let pauses =
            |only_writes: bool| !only_writes || command.is(table::WRITE | table::MAY_WRITE);
        self.faults
            .pause
            .is_some_and(|pause| self.now < pause.until && pauses(pause.only_writes))
    }

    /// Executes a command of a script.
    pub(super) fn call_from_script(&mut self, args: &[&[u8]]) -> Reply {
        let Ok(command) = table::find(args, false) else {
            return error("ERR Unknown Redis command called from script");
        };
        if command.is(table::NO_SCRIPT) {
            error("ERR This Redis command is not allowed from script")
        } else if let Some(reason) = self.refuses_to_script(command) {
            error(reason)
        } else {
            self.call(command, args)
        }
    }

    fn refuses_to_script(&mut self, command: &Command) -> Option<&'static str> {
        let (faults, is_replica) = (&self.faults, self.replication.is_replica);
        let script = self.script.as_mut()?;
        if command.is(table::WRITE) && !script.has_written {
            if is_replica {
                return Some(READ_ONLY);
            }
            if faults.lacks_replicas {
                return Some(NO_REPLICAS);
            }
            if script.out_of_memory && command.is(table::DENY_OOM) {
                return Some(OUT_OF_MEMORY);
            }
            script.has_written = true;
        }
        None
    }
}
