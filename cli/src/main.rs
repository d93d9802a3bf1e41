//! The command `relatch`: locks on Redis, for the shell.
//!
//! `run` runs a job under a lock. The other commands ask the library a question and print the
//! answer. (`docs/command.md` is for users.)

#![forbid(unsafe_code)]

mod args;
mod ask;
mod connect;
mod doctor;
mod exit;
mod generate;
mod json;
mod ls;
mod output;
mod run;
mod span;
mod whose;

use std::process::ExitCode;

use crate::args::{Cli, Cmd};
use crate::exit::{Failure, code};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if arguments
        .get(1)
        .is_some_and(|first| first == run::guard::COMMAND)
    {
        let code = run::guard::main(&arguments[2..]).map_or(code::SOFTWARE, |()| code::OK);
        return code.into();
    }
    let cli = match Cli::read(arguments) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            output::say(error.render().to_string());
            output::drain();
            return code::USAGE.into();
        }
        Err(help) => {
            let _ = help.print();
            return code::OK.into();
        }
    };
    let Cli { common, command } = &cli;
    let done: Result<u8, Failure> = match command {
        Cmd::Run(options) => Ok(run::run(common, options)),
        Cmd::Holder(asked) => ask::holder(common, asked),
        Cmd::Ls(asked) => ls::ls(common, asked),
        Cmd::Generate(asked) => generate::generate(asked),
        Cmd::Doctor(asked) => doctor::doctor(common, asked),
        Cmd::Wait(asked) => ask::wait(common, asked),
        Cmd::Confirm(asked) => ask::confirm(common, asked),
        Cmd::ForceUnlock(asked) => ask::force_unlock(common, asked),
    };
    let code = done.unwrap_or_else(|Failure { code, message }| {
        output::tell(&message);
        code
    });
    output::drain();
    code.into()
}
