//! Connections: login, names, subscriptions, pauses.

use crate::simulation::redis::keys::SYNTAX;
use crate::simulation::redis::resp::{OK, Reply, bulk, count, error, integer};
use crate::simulation::redis::state::{DATABASES, Pause, State};
use crate::simulation::redis::table::{Answer, is};
use crate::simulation::redis::tracking::Tracking;
use crate::simulation::redis::{Client, RUN};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// A connection, as the server sees it.
#[derive(Default)]
pub(super) struct Connection {
    /// What has come and was not executed yet.
    pub(super) input: Vec<u8>,
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

    pub(super) fn ping(&mut self, _: &[&[u8]]) -> Answer {
        if self.script.is_none() && !self.connection().channels.is_empty() {
            return Ok(Reply::Array(vec![bulk("pong"), bulk("")]));
        }
        Ok(Reply::Status("PONG"))
    }

    pub(super) fn select(&mut self, args: &[&[u8]]) -> Answer {
        if self.cluster.is_some() && args[1] != b"0" {
            return Err(error("ERR SELECT is not allowed in cluster mode"));
        }
        let db = integer(args[1]).and_then(|db| usize::try_from(db).ok());
        let db = db.filter(|db| *db < DATABASES);
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
        let right = self.settings.password.as_ref();
        if user != b"default" || right.is_some_and(|right| right.as_bytes() != password) {
            return Err(error(WRONG_PASSWORD));
        }
        self.connection().is_in = true;
        Ok(OK)
    }

    /// Speaks RESP2 only, and knows no option.
    pub(super) fn hello(&mut self, args: &[&[u8]]) -> Answer {
        if args.get(1).is_some_and(|version| *version != b"2") {
            return Err(error("NOPROTO unsupported protocol version"));
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

    pub(super) fn client_setname(&mut self, _: &[&[u8]]) -> Answer {
        Ok(OK)
    }

    /// `CLIENT TRACKING` with `REDIRECT` and `NOLOOP`, or neither.
    pub(super) fn client_tracking(&mut self, args: &[&[u8]]) -> Answer {
        let redirect = args.get(4).and_then(|id| integer(id));
        let redirect = redirect.map(|id| {
            let client = self.client_of(id);
            client.ok_or_else(|| error("ERR The client ID you want redirect to does not exist"))
        });
        let (redirect, noloop) = (redirect.transpose()?, args.len() > 5);
        let is_on = is(args[2], "ON");
        self.connection().tracking = is_on.then_some(Tracking { redirect, noloop });
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
