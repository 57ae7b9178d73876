//! `defrost status` and `defrost resources`: one question to a running server.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::failure::{FAILED, Failure, USAGE};
use crate::control::{Answer, Client, Status, Target, TargetError, resolve};

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a server may take over a question.
const QUESTION: Duration = Duration::from_secs(10);

/// Which server, and in which form.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The server: its name, its pid, or the path of its control socket
    target: OsString,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// `defrost resources`
pub(super) fn resources(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let line = if arguments.json { "resources json" } else { "resources" };
    say!("{}", inquire(&arguments.target, line, QUESTION)?.text);
    Ok(ExitCode::SUCCESS)
}

/// `defrost status`, with the pid that the server has here: it does not know it if it is in another namespace.
pub(super) fn status(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (answer, pid) = inquire_of(&arguments.target, "status json", QUESTION)?;
    let unintelligible = |error| Failure::plain(FAILED, format!("the status is not understood: {error}"));
    let status: Status = serde_json::from_str(&answer.text).map_err(unintelligible)?;
    let status = match pid.and_then(|pid| u32::try_from(pid).ok()) {
        Some(pid) => status.seen_as(pid),
        None => status,
    };
    match arguments.json {
        true => say!("{}", serde_json::to_string(&status).map_err(unintelligible)?),
        false => say!("{status}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the server that a command names what changes nothing.
pub(super) fn inquire(target: &OsString, line: &str, limit: Duration) -> Result<Answer, Failure> {
    inquire_of(target, line, limit).map(|(answer, _)| answer)
}

fn inquire_of(target: &OsString, line: &str, limit: Duration) -> Result<(Answer, Option<i32>), Failure> {
    let answered = Client::inquire_of(&place(target)?, line.as_bytes(), limit);
    let answered = answered.map_err(|error| Failure::new(FAILED, &error, error.hint()))?;
    said(&answered.0)?;
    Ok(answered)
}

/// Connects to the server that a command names.
pub(super) fn connect(target: &OsString) -> Result<Client, Failure> {
    Client::connect(&place(target)?, CONNECT).map_err(|error| Failure::new(FAILED, &error, error.hint()))
}

/// Where the control socket is of the server that a command names.
fn place(target: &OsString) -> Result<PathBuf, Failure> {
    let refused = |error: TargetError, status| Failure::new(status, &error, error.hint());
    let target = Target::parse(target).map_err(|error| refused(error, USAGE))?;
    resolve(&target).map_err(|error| refused(error, FAILED))
}

/// Turns a refusal of the server's into a failure of the command.
pub(super) fn said(answer: &Answer) -> Result<(), Failure> {
    if answer.ok { Ok(()) } else { Err(Failure::new(FAILED, &answer.text, answer.hint.as_ref())) }
}
