//! Generates the manual page and the completions from the definition of the command line.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::{Cli, Generate, Paper};
use crate::exit::{Failure, code};
use crate::output::write;

/// The part of the manual page that is not in the definition of the command line.
const MORE: &str = include_str!("more.roff");

pub(crate) fn generate(asked: &Generate) -> Result<u8, Failure> {
    let shell = match asked.what {
        Paper::Man => {
            let page = man().map_err(|error| Failure::new(code::SOFTWARE, error.to_string()))?;
            write(&page)?;
            return Ok(code::OK);
        }
        Paper::Bash => Shell::Bash,
        Paper::Zsh => Shell::Zsh,
        Paper::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "relatch", &mut text);
    write(&String::from_utf8_lossy(&text))?;
    Ok(code::OK)
}

/// One page for all commands.
fn man() -> io::Result<String> {
    let mut all = Cli::command();
    all.build();
    let page = Man::new(all.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    for command in all.get_subcommands().filter(|it| !it.is_hide_set()) {
        if command.get_name() != "help" {
            text.push_str(&section(command)?);
        }
    }
    text.push_str(MORE);
    Ok(text)
}

/// The section for one command: what it does, and its own options.
fn section(command: &Command) -> io::Result<String> {
    let name = command.get_name().to_owned();
    let own = command.clone().mut_args(|argument| {
        let is_common =
            argument.is_global_set() || matches!(argument.get_id().as_str(), "help" | "version");
        if is_common {
            argument.hide(true)
        } else {
            argument
        }
    });
    let page = Man::new(own);
    let mut text = Vec::new();
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let text = text
        .replace(".SH SYNOPSIS\n", "")
        .replace(".SH DESCRIPTION\n", ".PP\n")
        .replace(".SH OPTIONS\n", "");
    Ok(format!(".SH \"RELATCH {}\"\n{text}", name.to_uppercase()))
}
