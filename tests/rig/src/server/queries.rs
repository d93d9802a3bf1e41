//! What a test can ask its server: keys, counters, clients.

use std::collections::HashMap;

use redis::{Client, Connection, FromRedisValue, IntoConnectionInfo, RedisResult, Value};

use super::{ANSWER, Server, number_after};

impl Server {
    /// Sends a command and returns the reply.
    ///
    /// If the connection turns out to be broken, opens it again, and sends the command once more.
    /// It is an error if there is no reply for 5 s.
    pub fn command(&self, args: &[&str]) -> RedisResult<Value> {
        let mut private = self.private.lock();
        let reused = private.is_some();
        let result = self.attempt(&mut private, args);
        match result {
            Err(error) if reused && error.is_connection_dropped() => {
                self.attempt(&mut private, args)
            }
            result => result,
        }
    }

    /// Sends commands in one batch, which is much faster, and returns the replies; the first error,
    /// if there is one.
    pub(crate) fn batch(&self, commands: &[Vec<&str>]) -> RedisResult<Vec<Value>> {
        let mut pipeline = redis::pipe();
        for command in commands {
            pipeline.cmd(command[0]).arg(&command[1..]);
        }
        pipeline.query(&mut self.connect_with_password()?)
    }

    /// Sends a command and returns the reply as a `T`; panics if that fails.
    #[track_caller]
    pub fn query<T: FromRedisValue>(&self, args: &[&str]) -> T {
        let result = self.command(args);
        let value = result.unwrap_or_else(|error| panic!("{args:?}: {error}"));
        redis::from_redis_value(value).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// The string at `key`.
    #[track_caller]
    pub fn get(&self, key: &str) -> Option<String> {
        self.query(&["GET", key])
    }

    /// Milliseconds until `key` expires: -1 if never, -2 if there is no such key.
    #[track_caller]
    pub fn pttl(&self, key: &str) -> i64 {
        self.query(&["PTTL", key])
    }

    /// Whether there is a `key`.
    #[track_caller]
    pub fn exists(&self, key: &str) -> bool {
        self.query(&["EXISTS", key])
    }

    /// How often `command` was called since the start or [`reset_stats`](Self::reset_stats), by all
    /// clients, scripts and this helper included.
    ///
    /// A subcommand is written `client|id`; a command with subcommands has no count of its own.
    /// (Before Redis 7 it is the other way round: subcommands have no counts.)
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        let info: String = self.query(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{}:calls=", command.to_lowercase());
        number_after(&info, &start).unwrap_or(0)
    }

    /// The sum of [`calls`](Self::calls) over `commands`.
    #[track_caller]
    pub fn total_calls(&self, commands: &[&str]) -> u64 {
        commands.iter().map(|command| self.calls(command)).sum()
    }

    /// How many commands all clients and scripts executed since the start or
    /// [`reset_stats`](Self::reset_stats). `INFO` does not count, because this method sends it.
    #[track_caller]
    pub fn all_calls(&self) -> u64 {
        let info: String = self.query(&["INFO", "commandstats"]);
        let others = info
            .lines()
            .filter(|line| !line.starts_with("cmdstat_info:"));
        others
            .filter_map(|line| number_after(line, ":calls="))
            .sum()
    }

    /// Sets all counts to 0.
    #[track_caller]
    pub fn reset_stats(&self) {
        self.query::<()>(&["CONFIG", "RESETSTAT"]);
    }

    /// How many keys there are whose next change leads to an invalidation.
    #[track_caller]
    pub fn tracked_keys(&self) -> u64 {
        let info: String = self.query(&["INFO", "stats"]);
        number_after(&info, "tracking_total_keys:").expect("tracking_total_keys in INFO")
    }

    /// The ids of the connections that subscribed to something: the listeners' connections.
    #[track_caller]
    pub fn listeners(&self) -> Vec<u64> {
        let clients: String = self.query(&["CLIENT", "LIST", "TYPE", "PUBSUB"]);
        clients
            .lines()
            .map(|line| number_after(line, "id=").expect("an id in CLIENT LIST"))
            .collect()
    }

    /// Whether a connection redirects its invalidations to a listener that is connected.
    #[track_caller]
    pub fn redirects_invalidations(&self) -> bool {
        let clients: String = self.query(&["CLIENT", "LIST"]);
        let listeners = self.listeners();
        let mut targets = clients
            .lines()
            .filter_map(|line| number_after(line, " redir="));
        targets.any(|id| listeners.contains(&id))
    }

    /// The ids of the connections whose line in `CLIENT LIST` has this field, such as
    /// `cmd=evalsha`.
    #[track_caller]
    pub fn clients_with(&self, field: &str) -> Vec<u64> {
        let clients: String = self.query(&["CLIENT", "LIST"]);
        let found = clients
            .lines()
            .filter(|line| line.split(' ').any(|it| it == field));
        found
            .map(|line| number_after(line, "id=").expect("an id in CLIENT LIST"))
            .collect()
    }

    /// How many clients are connected, besides the one that asks here.
    #[track_caller]
    pub fn connections(&self) -> u64 {
        let info: String = self.query(&["INFO", "clients"]);
        number_after(&info, "connected_clients:").expect("connected_clients in INFO") - 1
    }

    /// The user that each client has logged in as, besides the client that asks here.
    #[track_caller]
    pub fn users(&self) -> Vec<String> {
        let this = format!("id={} ", self.query::<u64>(&["CLIENT", "ID"]));
        let clients: String = self.query(&["CLIENT", "LIST"]);
        let others = clients.lines().filter(|line| !line.starts_with(&this));
        let user = |line: &str| {
            line.split(' ')
                .find_map(|it| it.strip_prefix("user=").map(str::to_owned))
        };
        others.filter_map(user).collect()
    }

    /// What the server refused because a right was missing, the latest first, at most 128 entries:
    /// the user, and the command, key or channel.
    #[track_caller]
    pub fn refused(&self) -> Vec<(String, String)> {
        let log: Vec<HashMap<String, Value>> = self.query(&["ACL", "LOG", "128"]);
        let text = |value: &Value| redis::from_redis_value(value.clone()).expect("a string");
        log.iter()
            .map(|entry| (text(&entry["username"]), text(&entry["object"])))
            .collect()
    }

    fn attempt(&self, private: &mut Option<Connection>, args: &[&str]) -> RedisResult<Value> {
        let mut connection = match private.take() {
            Some(connection) => connection,
            None => self.connect_with_password()?,
        };
        let result = redis::cmd(args[0]).arg(&args[1..]).query(&mut connection);
        if !matches!(&result, Err(error) if error.is_io_error()) {
            *private = Some(connection);
        }
        result
    }

    fn connect_with_password(&self) -> RedisResult<Connection> {
        let info = self.bare_url().into_connection_info()?;
        let mut login = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(at) = self.args.iter().position(|arg| arg == "--requirepass") {
            login = login.set_password(&self.args[at + 1]);
        }
        let client = Client::open(info.set_redis_settings(login))?;
        let connection = client.get_connection_with_timeout(ANSWER)?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.set_write_timeout(Some(ANSWER))?;
        Ok(connection)
    }
}
