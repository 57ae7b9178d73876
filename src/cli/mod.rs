//! The `defrost` command: arguments in, text and exit status out. The only place that prints.
//!
//! One file per command. It must not do anything itself that a program using the library could want too.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the command's own output")]

#[macro_use]
mod out;

mod apart;
mod ask;
mod bench;
mod check;
mod checkpoint;
mod clock;
mod ctl;
mod doctor;
mod engines;
mod events;
mod failure;
mod history;
mod image;
mod inspect;
mod keep;
mod load;
mod report;
mod restore;
mod run;
mod serve;
mod sleepsort;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

use crate::engine::helper;

/// Makes a warmed-up server start instantly: checkpoint it once, restore it in milliseconds.
#[derive(Debug, Parser)]
#[command(name = "defrost", version, max_term_width = 100)]
struct Arguments<C: Subcommand> {
    /// Use this CRIU. Otherwise: DEFROST_CRIU, the one that scripts/setup installed, PATH
    #[arg(long, global = true, value_name = "PATH")]
    criu: Option<PathBuf>,
    /// Say more about what is done
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: C,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Arguments),
    Run(run::Arguments),
    Serve(serve::Arguments),
    Checkpoint(checkpoint::Arguments),
    Restore(restore::Arguments),
    /// Show who a running server is, and whether it is ready
    Status(ask::Arguments),
    /// List what a running server has registered
    Resources(ask::Arguments),
    Events(events::Arguments),
    Ctl(ctl::Arguments),
    Doctor(doctor::Arguments),
    Inspect(inspect::Arguments),
    Image(image::Arguments),
    Load(load::Arguments),
    Sleepsort(sleepsort::Arguments),
    History(history::Arguments),
    Bench(bench::Arguments),
    Report(report::Arguments),
    /// The process that `check` dumps and restores
    #[command(hide = true)]
    SelfTestSubject,
}

/// The command that is to start fast, alone: describing all of them takes longer than parsing it.
#[derive(Debug, Subcommand)]
enum Fast {
    Restore(restore::Arguments),
}

impl From<Fast> for Command {
    fn from(Fast::Restore(arguments): Fast) -> Self {
        Self::Restore(arguments)
    }
}

fn parse() -> Result<Arguments<Command>, ExitCode> {
    if std::env::args_os().nth(1).is_none_or(|first| first != "restore") {
        return Arguments::try_parse().map_err(answered);
    }
    let Arguments { criu, verbose, command } = Arguments::<Fast>::try_parse().map_err(answered)?;
    Ok(Arguments { criu, verbose, command: command.into() })
}

/// What was not a command: a request for help, or a mistake.
fn answered(error: clap::Error) -> ExitCode {
    match error.print() {
        Err(trouble) if !error.use_stderr() => out::missed(trouble),
        // As with whatever is told on standard error.
        _ => {}
    }
    let status = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::USAGE));
    out::failure().map_or(status, |failure| failure.report())
}

/// What all commands share.
#[derive(Debug)]
struct Options {
    criu: Option<PathBuf>,
    verbose: bool,
    /// When this process ran its first instruction, or nearly so.
    began: Instant,
}

/// Runs the command that this process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let began = Instant::now();
    helper::work::take_part();
    // A checkpoint of `defrost serve` starts this program as its helper.
    helper::start::own_executable_can_help();
    let Arguments { criu, verbose, command } = match parse() {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let options = Options { criu, verbose, began };
    let done = match command {
        Command::Check(arguments) => check::run(&options, &arguments),
        Command::Run(arguments) => run::run(&options, arguments),
        Command::Serve(arguments) => serve::run(&options, arguments),
        Command::Checkpoint(arguments) => checkpoint::run(&arguments),
        Command::Restore(arguments) => restore::run(&options, arguments),
        Command::Status(arguments) => ask::status(&arguments),
        Command::Resources(arguments) => ask::resources(&arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Ctl(arguments) => ctl::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Load(arguments) => load::run(arguments),
        Command::Sleepsort(arguments) => sleepsort::run(&options, &arguments),
        Command::History(arguments) => history::run(&options, &arguments),
        Command::Bench(arguments) => bench::run(&options, arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::SelfTestSubject => check::subject(),
    };
    let status = done.unwrap_or_else(|failure| failure.report());
    out::failure().map_or(status, |failure| failure.report())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_command_that_is_parsed_alone_is_the_same() {
        let help = |mut all: clap::Command| {
            all.build();
            all.find_subcommand_mut("restore").unwrap().render_long_help().to_string()
        };
        assert_eq!(help(Arguments::<Fast>::command()), help(Arguments::<Command>::command()));
    }
}
