//! `defrost run`

use std::ffi::OsString;
use std::process::ExitCode;

use super::Options;
use super::engines::EngineArguments;
use super::failure::{FAILED, Failure};
use super::keep::KeepArguments;
use crate::supervise::Ending;
use crate::supervise::run::{Launch, RunError, run as supervise};

/// Start any server under a supervisor, which forwards signals, reaps, and exits with the server's status
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The name for the server's control socket, handed over as DEFROST_NAME
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    keep: KeepArguments,
    #[command(flatten, next_help_heading = "How --on-crash restore does it")]
    how: EngineArguments,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(options: &Options, arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, keep, how, command } = arguments;
    let mut words = command.into_iter();
    let program = words.next().unwrap_or_default();
    let launch = Launch { program, arguments: words.collect(), name };
    keep.run(options, &how, &launch).unwrap_or_else(|| ended(supervise(&launch)))
}

/// The exit status of a server that has ended, or why there was none.
pub(super) fn ended(done: Result<Ending, RunError>) -> Result<ExitCode, Failure> {
    match done {
        Ok(ending) => Ok(ExitCode::from(ending.status())),
        Err(error @ RunError::Start { .. }) => {
            Err(Failure::new(FAILED, error, Some("check the name of the program; nothing runs")))
        }
        Err(error) => Err(Failure::plain(FAILED, error)),
    }
}
