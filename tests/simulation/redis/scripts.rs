//! Scripts, which run in a real Lua.
//!
//! One Lua serves all servers of a system thread. While a script runs, the server's state is where
//! the functions of that Lua can reach it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;

use mlua::{BString, Function, Lua, LuaOptions, LuaString, StdLib, Table, Value, Variadic};

use crate::simulation::redis::gate::NO_MASTER;
use crate::simulation::redis::resp::{OK, Reply, bulk, error, integer};
use crate::simulation::redis::state::State;
use crate::simulation::redis::table::Answer;

const UNKNOWN: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// What a server knows of the script that it runs.
pub(super) struct Running {
    hash: Vec<u8>,
    /// Tracking remembers all of these as soon as the script reads anything.
    pub(super) keys: Vec<Vec<u8>>,
    /// The script has written something, and cannot be refused any more.
    pub(super) has_written: bool,
    /// The memory was full when the script began.
    pub(super) out_of_memory: bool,
}

struct Engine {
    lua: Lua,
    /// By their hash.
    compiled: RefCell<HashMap<Vec<u8>, Function>>,
    /// The hash of each text.
    hashes: RefCell<HashMap<Box<[u8]>, Vec<u8>>>,
}

thread_local! {
    static ENGINE: Engine = Engine::new().expect("Lua begins");
    /// The server whose script runs.
    static SERVER: RefCell<State> = RefCell::default();
}

impl Engine {
    fn new() -> mlua::Result<Engine> {
        let lua = Lua::new_with(
            StdLib::STRING | StdLib::TABLE | StdLib::MATH,
            LuaOptions::default(),
        )?;
        let redis = lua.create_table()?;
        redis.set(
            "call",
            lua.create_function(|lua, words| call(lua, &words, true))?,
        )?;
        redis.set(
            "pcall",
            lua.create_function(|lua, words| call(lua, &words, false))?,
        )?;
        redis.set("error_reply", lua.create_function(error_reply)?)?;
        redis.set("replicate_commands", lua.create_function(|_, ()| Ok(true))?)?;
        lua.globals().set("redis", redis)?;
        Ok(Engine {
            lua,
            compiled: RefCell::default(),
            hashes: RefCell::default(),
        })
    }

    fn hash(&self, text: &[u8]) -> Vec<u8> {
        let mut known = self.hashes.borrow_mut();
        if let Some(hash) = known.get(text) {
            return hash.clone();
        }
        let script = redis::Script::new(&String::from_utf8_lossy(text));
        let hash = script.get_hash().as_bytes().to_vec();
        known.insert(text.into(), hash.clone());
        hash
    }

    /// The script with this hash and this text.
    fn compile(&self, hash: &[u8], text: &[u8]) -> Function {
        if let Some(script) = self.compiled.borrow().get(hash) {
            return script.clone();
        }
        let script = self.lua.load(text).set_name("@user_script");
        let script = script.into_function().expect("a script of the crate");
        self.compiled
            .borrow_mut()
            .insert(hash.to_vec(), script.clone());
        script
    }

    fn run(&self, script: &Function, keys: &[&[u8]], args: &[&[u8]]) -> mlua::Result<Reply> {
        let globals = self.lua.globals();
        for (name, words) in [("KEYS", keys), ("ARGV", args)] {
            let words = words.iter().map(|word| BString::from(*word));
            globals.raw_set(name, self.lua.create_sequence_from(words)?)?;
        }
        from_lua(&script.call::<Value>(())?)
    }
}

/// `redis.call` and, if it does not raise errors, `redis.pcall`. No script of the crate passes a
/// number, which Redis writes in another way than Lua.
fn call(lua: &Lua, args: &Variadic<Option<BString>>, raises: bool) -> mlua::Result<Value> {
    let words = args.iter().map(|it| it.as_ref().map(AsRef::as_ref));
    let reply = match words.collect::<Option<Vec<&[u8]>>>() {
        Some(words) => SERVER.with_borrow_mut(|server| server.call_from_script(&words)),
        None => error("ERR Lua redis lib command arguments must be strings or integers"),
    };
    match reply {
        Reply::Error(text) if raises => {
            #[expect(
                clippy::redundant_closure_for_method_calls,
                reason = "the method is not general enough"
            )]
            let line = lua
                .inspect_stack(1, |debug| debug.current_line())
                .flatten()
                .unwrap_or_default();
            Err(mlua::Error::RuntimeError(ended(
                &String::from_utf8_lossy(&text),
                &line.to_string(),
            )))
        }
        reply => to_lua(lua, reply),
    }
}

/// `redis.error_reply`: a text of one word gets the code `ERR`.
#[expect(clippy::needless_pass_by_value, reason = "Lua passes it so")]
fn error_reply(lua: &Lua, text: LuaString) -> mlua::Result<Table> {
    let text = text.as_bytes();
    let text = text.strip_prefix(b"-").unwrap_or(&text);
    let code: &[u8] = if text.contains(&b' ') { b"" } else { b"ERR " };
    field(lua, "err", lua.create_string([code, text].concat())?)
}

fn field(lua: &Lua, name: &str, text: LuaString) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set(name, text)?;
    Ok(table)
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Status(text) => Value::Table(field(lua, "ok", lua.create_string(text)?)?),
        Reply::Error(text) => Value::Table(field(lua, "err", lua.create_string(text)?)?),
        Reply::Int(number) => {
            #[expect(clippy::cast_precision_loss, reason = "as in Redis")]
            let number = number as f64;
            Value::Number(number)
        }
        Reply::Bulk(text) => Value::String(lua.create_string(text)?),
        Reply::Nil | Reply::NilArray | Reply::Later => Value::Boolean(false),
        Reply::Array(parts) => {
            let table = lua.create_table_with_capacity(parts.len(), 0)?;
            for part in parts {
                table.raw_push(to_lua(lua, part)?)?;
            }
            Value::Table(table)
        }
    })
}

fn from_lua(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::String(text) => bulk(text.as_bytes()),
        Value::Integer(number) => Reply::Int(*number),
        #[expect(clippy::cast_possible_truncation, reason = "as in Redis")]
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => {
            if let Value::String(text) = table.raw_get("err")? {
                return Ok(Reply::Error(text.as_bytes().to_vec()));
            }
            if table.contains_key("ok")? {
                return Ok(OK);
            }
            let mut parts = Vec::new();
            loop {
                match table.raw_get(parts.len() + 1)? {
                    Value::Nil => break,
                    part => parts.push(from_lua(&part)?),
                }
            }
            Reply::Array(parts)
        }
        _ => Reply::Nil,
    })
}

/// What Redis says when an error ends a script.
fn ended(text: &str, line: &str) -> String {
    let hash = SERVER.with_borrow(|server| server.script.as_ref().map(|it| it.hash.clone()));
    let hash = String::from_utf8(hash.unwrap_or_default()).unwrap_or_default();
    format!("{text} script: {hash}, on @user_script:{line}.")
}

fn failed(failure: &mlua::Error) -> Reply {
    match failure {
        // Of a command. The text is whole.
        mlua::Error::CallbackError { cause, .. } => match &**cause {
            mlua::Error::RuntimeError(text) => error(text),
            other => panic!("{other}"),
        },
        // Of Lua itself, with the line in front and the stack behind.
        mlua::Error::RuntimeError(message) => {
            let text = message.lines().next().unwrap_or_default();
            error(&ended(
                &format!("ERR {text}"),
                text.split(':').nth(1).unwrap_or_default(),
            ))
        }
        other => panic!("{other}"),
    }
}

impl State {
    pub(super) fn eval(&mut self, args: &[&[u8]]) -> Answer {
        let (keys, rest) = split(args);
        let hash = ENGINE.with(|engine| engine.hash(args[1]));
        let script = ENGINE.with(|engine| engine.compile(&hash, args[1]));
        if !self.scripts.contains_key(&hash) {
            self.scripts.insert(hash.clone(), args[1].into());
        }
        self.run_script(&script, hash, keys, rest)
    }

    pub(super) fn evalsha(&mut self, args: &[&[u8]]) -> Answer {
        let hash = args[1].to_ascii_lowercase();
        if hash.len() != 40 {
            return Err(error(UNKNOWN));
        }
        let (keys, rest) = split(args);
        let text = self.scripts.get(&hash).ok_or_else(|| error(UNKNOWN))?;
        let script = ENGINE.with(|engine| engine.compile(&hash, text));
        self.run_script(&script, hash, keys, rest)
    }

    fn run_script(
        &mut self,
        script: &Function,
        hash: Vec<u8>,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Answer {
        if self.replication.is_replica && self.faults.master_is_down {
            return Err(error(NO_MASTER));
        }
        let out_of_memory = self.faults.out_of_memory;
        let keys_of = keys.iter().map(|key| key.to_vec()).collect();
        self.script = Some(Running {
            hash,
            keys: keys_of,
            has_written: false,
            out_of_memory,
        });
        SERVER.with_borrow_mut(|server| mem::swap(server, self));
        let result = ENGINE.with(|engine| engine.run(script, keys, args));
        let result = result.map_err(|failure| failed(&failure));
        SERVER.with_borrow_mut(|server| mem::swap(server, self));
        self.script = None;
        result
    }
}

/// Words of a command.
type Words<'a> = &'a [&'a [u8]];

/// The keys and the arguments of a script.
fn split<'a>(args: &'a [&'a [u8]]) -> (Words<'a>, Words<'a>) {
    let count = integer(args[2]).and_then(|count| usize::try_from(count).ok());
    args[3..].split_at(count.expect("how many keys"))
}
