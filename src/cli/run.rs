//! `defrost run`

use std::ffi::OsString;
use std::process::ExitCode;

use super::failure::{FAILED, Failure};
use crate::supervise::run::{Launch, RunError, run as supervise};

/// Start any server under a supervisor, which forwards signals, reaps, and exits with the server's status
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The name for the server's control socket, handed over as DEFROST_NAME
    #[arg(long)]
    name: Option<String>,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut words = arguments.command.into_iter();
    let program = words.next().unwrap_or_default();
    let launch = Launch { program, arguments: words.collect(), name: arguments.name };
    match supervise(&launch) {
        Ok(ending) => Ok(ExitCode::from(ending.status())),
        Err(error @ RunError::Start { .. }) => {
            Err(Failure::new(FAILED, error, Some("check the name of the program; nothing runs")))
        }
        Err(error) => Err(Failure::plain(FAILED, error)),
    }
}
