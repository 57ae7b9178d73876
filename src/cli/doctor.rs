//! `defrost doctor`: what would block a checkpoint of a process, and what to do about it.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::ask::said;
use super::failure::{FAILED, Failure};
use crate::audit::{Audit, AuditError, Claims, Report};
use crate::control::{Client, ClientError, Target, resolve};

/// How long a server may take to accept a connection and to answer.
const QUESTION: Duration = Duration::from_secs(10);

/// What no examination of a process can find.
pub(super) const ALIKE: &str = "in a server of your own, draw from a generator that is registered (adapters::Rng, adapters::SplitRng): the \
                                thread-local generators of rand and fastrand and the keys of HashMap cannot be reseeded from outside, and \
                                are the same in every restore; the documentation of adapters::rng names the remedy for each";

/// Find out what would block a checkpoint of a process, and what to do about it
///
/// The process goes on undisturbed. A server that takes checkpoints by itself is asked, since it puts its listeners,
/// files and connections down before a dump; of any other process, everything that it has open counts. The exit status
/// is 1 if something blocks.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// What was found in a process from outside.
#[derive(Debug, Serialize)]
struct Findings {
    clear: bool,
    #[serde(flatten)]
    report: Report,
    advice: Vec<&'static str>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(answer) = asked(arguments)? {
        return Ok(answer);
    }
    let report = Audit::of_process(arguments.pid, &Claims::default()).map_err(|error| unread(&error))?;
    let findings = Findings { clear: report.is_clear(), report, advice: vec![ALIKE] };
    if arguments.json {
        let text = serde_json::to_string_pretty(&findings).map_err(|error| Failure::plain(FAILED, error))?;
        say!("{text}");
    } else {
        findings.print();
    }
    Ok(if findings.clear { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn unread(error: &AuditError) -> Failure {
    let cause = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    Failure::new(FAILED, format!("{error}{cause}"), error.hint())
}

/// What a server says of itself, if the process is one: it is asked over its control socket.
fn asked(arguments: &Arguments) -> Result<Option<ExitCode>, Failure> {
    let Ok(socket) = resolve(&Target::Pid(arguments.pid)) else { return Ok(None) };
    let failed = |error: ClientError| Failure::new(FAILED, &error, error.hint());
    let answer = Client::inquire(&socket, b"audit json", QUESTION).map_err(failed)?;
    said(&answer)?;
    let read: serde_json::Value =
        serde_json::from_str(&answer.text).map_err(|error| Failure::plain(FAILED, error))?;
    if arguments.json {
        say!("{}", answer.text);
    } else {
        say!("{}\nadvice: {ALIKE}", read["summary"].as_str().unwrap_or(&answer.text));
    }
    let clear = read["blockers"].as_array().is_some_and(Vec::is_empty);
    Ok(Some(if clear { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }))
}

impl Findings {
    fn print(&self) {
        let Report { process, blockers, notes, descriptors, .. } = &self.report;
        let name = &process.process;
        match blockers.len() {
            0 => say!("{} (pid {}): nothing blocks a checkpoint", name.name, name.pid),
            1 => say!("{} (pid {}): 1 thing blocks a checkpoint", name.name, name.pid),
            count => say!("{} (pid {}): {count} things block a checkpoint", name.name, name.pid),
        }
        say!("threads: {}, descriptors: {}", process.threads, descriptors.len());
        for blocker in blockers {
            say!("blocker: {blocker}\n  hint: {}", blocker.remedy);
        }
        for note in notes {
            say!("note: {note}");
        }
        for advice in &self.advice {
            say!("advice: {advice}");
        }
    }
}
