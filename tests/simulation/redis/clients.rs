//! Connections: login, names, subscriptions, pauses.

use crate::simulation::redis::keys::{NO_INTEGER, SYNTAX};
use crate::simulation::redis::resp::{OK, Reply, bulk, count, error, integer};
use crate::simulation::redis::state::{DATABASES, Pause, State};
use crate::simulation::redis::table::{Answer, is};
use crate::simulation::redis::tracking::Tracking;
use crate::simulation::redis::{Client, RUN, User};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// A connection, as the server sees it.
#[derive(Default)]
pub(super) struct Connection {
    /// What has come and was not executed yet.
    pub(super) input: Vec<u8>,
    /// The user. `None` is the default one, with all rights.
    pub(super) user: Option<String>,
    pub(super) is_in: bool,
    pub(super) db: usize,
    pub(super) channels: Vec<Vec<u8>>,
    pub(super) tracking: Option<Tracking>,
    /// The next command is for a slot that is on its way here.
    pub(super) asking: bool,
    /// No further command is executed until a pause has ended, or replicas have acknowledged.
    pub(super) is_blocked: bool,
    /// The number of the last write at the end of the last command.
    pub(super) written: u64,
}

impl State {
    /// While nobody has to log in, the clients that could not do so before are in, too.
    pub(super) fn is_in(&mut self) -> bool {
        self.settings.password.is_none() || self.connection().is_in
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        let client = self.current.expect("a command has a client");
        self.clients
            .get_mut(&client)
            .expect("a client has a connection")
    }

    /// The number of the current client that `CLIENT ID` tells.
    fn id(&self) -> i64 {
        self.current
            .map_or(0, |client| (client % RUN).cast_signed())
    }

    /// The client with the number that `CLIENT ID` told, if it is still there.
    fn client_of(&self, id: i64) -> Option<Client> {
        let run = self.next_client / RUN * RUN;
        let client = run + u64::try_from(id).ok()?;
        self.clients.contains_key(&client).then_some(client)
    }

    pub(super) fn ping(&mut self, args: &[&[u8]]) -> Answer {
        if args.len() > 2 {
            return Err(error("ERR wrong number of arguments for 'ping' command"));
        }
        let said = args.get(1);
        if self.script.is_none() && !self.connection().channels.is_empty() {
            return Ok(Reply::Array(vec![
                bulk("pong"),
                bulk(said.copied().unwrap_or_default()),
            ]));
        }
        Ok(said.map_or(Reply::Status("PONG"), bulk))
    }

    pub(super) fn select(&mut self, args: &[&[u8]]) -> Answer {
        let db = integer(args[1]).ok_or_else(|| error(NO_INTEGER))?;
        if self.cluster.is_some() && db != 0 {
            return Err(error("ERR SELECT is not allowed in cluster mode"));
        }
        let db = usize::try_from(db).ok().filter(|db| *db < DATABASES);
        self.connection().db = db.ok_or_else(|| error("ERR DB index is out of range"))?;
        Ok(OK)
    }

    pub(super) fn auth(&mut self, args: &[&[u8]]) -> Answer {
        match args {
            [_, _] if self.settings.password.is_none() => Err(error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            )),
            [_, password] => self.log_in(b"default", password),
            [_, user, password] => self.log_in(user, password),
            _ => Err(error(SYNTAX)),
        }
    }

    fn log_in(&mut self, user: &[u8], password: &[u8]) -> Answer {
        let is_right = if user == b"default" {
            self.settings
                .password
                .as_ref()
                .is_none_or(|right| right.as_bytes() == password)
        } else {
            let is_right =
                |it: &User| it.name.as_bytes() == user && it.password.as_bytes() == password;
            self.settings.users.iter().any(is_right)
        };
        if !is_right {
            return Err(error(WRONG_PASSWORD));
        }
        let name = (user != b"default").then(|| String::from_utf8_lossy(user).into_owned());
        let connection = self.connection();
        connection.user = name;
        connection.is_in = true;
        Ok(OK)
    }

    /// Speaks RESP2 only, and knows no option.
    pub(super) fn hello(&mut self, args: &[&[u8]]) -> Answer {
        if let Some(version) = args.get(1) {
            let version = integer(version)
                .ok_or_else(|| error("ERR Protocol version is not an integer or out of range"))?;
            if version != 2 {
                return Err(error("NOPROTO unsupported protocol version"));
            }
        }
        if let Some(option) = args.get(2) {
            let option = String::from_utf8_lossy(option);
            return Err(error(&format!(
                "ERR Syntax error in HELLO option '{option}'"
            )));
        }
        if !self.is_in() {
            return Err(error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO AUTH <user> <pass> option can be used to authenticate the client and select \
                 the RESP protocol version at the same time",
            ));
        }
        let mode = match (&self.cluster, &self.sentinel) {
            (None, None) => "standalone",
            (Some(_), _) => "cluster",
            (None, Some(_)) => "sentinel",
        };
        let role = if self.replication.is_replica {
            "replica"
        } else {
            "master"
        };
        let fields = [
            ("server", bulk("redis")),
            ("version", bulk(self.settings.version)),
            ("proto", Reply::Int(2)),
            ("id", Reply::Int(self.id())),
            ("mode", bulk(mode)),
            ("role", bulk(role)),
            ("modules", Reply::Array(Vec::new())),
        ];
        let fields = fields
            .into_iter()
            .filter(|(name, _)| self.sentinel.is_none() || *name != "role");
        Ok(Reply::Array(
            fields
                .flat_map(|(name, value)| [bulk(name), value])
                .collect(),
        ))
    }

    pub(super) fn client_id(&mut self, _: &[&[u8]]) -> Answer {
        Ok(Reply::Int(self.id()))
    }

    pub(super) fn client_setname(&mut self, args: &[&[u8]]) -> Answer {
        if args[2].iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
            return Err(error(
                "ERR Client names cannot contain spaces, newlines or special characters.",
            ));
        }
        Ok(OK)
    }

    /// `CLIENT TRACKING` without `BCAST`, `PREFIX`, `OPTIN` and `OPTOUT`.
    pub(super) fn client_tracking(&mut self, args: &[&[u8]]) -> Answer {
        let (mut redirect, mut noloop, mut options) = (None, false, args[3..].iter());
        while let Some(option) = options.next() {
            if is(option, "NOLOOP") {
                noloop = true;
            } else if let (true, Some(id)) = (is(option, "REDIRECT"), options.next()) {
                if redirect.is_some() {
                    return Err(error(
                        "ERR A client can only redirect to a single other client",
                    ));
                }
                let id = integer(id).ok_or_else(|| error(NO_INTEGER))?;
                let client = self.client_of(id);
                redirect = Some(client.ok_or_else(|| {
                    error("ERR The client ID you want redirect to does not exist")
                })?);
            } else {
                return Err(error(SYNTAX));
            }
        }
        self.connection().tracking = match args[2] {
            on if is(on, "ON") => Some(Tracking { redirect, noloop }),
            off if is(off, "OFF") => None,
            _ => return Err(error(SYNTAX)),
        };
        Ok(OK)
    }

    /// A pause becomes longer and stricter, not shorter.
    pub(super) fn pause(&mut self, until: u64, only_writes: bool) {
        let old = self.faults.pause.filter(|old| old.until > self.now);
        let until = old.map_or(until, |old| old.until.max(until));
        let only_writes = old.is_none_or(|old| old.only_writes) && only_writes;
        self.faults.pause = Some(Pause { until, only_writes });
    }

    /// `SUBSCRIBE` for one channel.
    pub(super) fn subscribe(&mut self, args: &[&[u8]]) -> Answer {
        assert!(
            args.len() == 2,
            "the simulated server subscribes to one channel at a time"
        );
        let channels = &mut self.connection().channels;
        if !channels.iter().any(|it| it == args[1]) {
            channels.push(args[1].to_vec());
        }
        Ok(Reply::Array(vec![
            bulk("subscribe"),
            bulk(args[1]),
            Reply::Int(count(channels.len())),
        ]))
    }
}
