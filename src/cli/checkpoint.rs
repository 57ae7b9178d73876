//! `defrost checkpoint`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::ask::{connect, said};
use super::failure::{FAILED, Failure};
use crate::control::Request;

/// Checkpoint a running server into a folder, and end it once the image is complete
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The server: its name, its pid, or the path of its control socket
    target: OsString,
    /// The folder that becomes the image; an image that is there already is replaced when the new one is complete
    dir: PathBuf,
    /// Let the server go on afterwards
    #[arg(long)]
    leave_running: bool,
    /// How long to wait for the outcome
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = super::restore::seconds)]
    timeout: f64,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // The server takes a relative folder from where it was started; the one typed here is meant from here.
    let dir = std::path::absolute(&arguments.dir)
        .map_err(|error| Failure::plain(FAILED, format!("{}: {error}", arguments.dir.display())))?;
    let mut client = connect(&arguments.target)?;
    let line = Request::Checkpoint { dir, leave_running: arguments.leave_running, durable: true }.to_line();
    let answer = client.request(&line, Duration::from_secs_f64(arguments.timeout));
    let answer = answer.map_err(|error| Failure::new(FAILED, &error, error.hint()))?;
    said(&answer)?;
    say!("{}", answer.text);
    Ok(ExitCode::SUCCESS)
}
