//! `defrost report`: records of benchmarks as a page.

use std::path::PathBuf;
use std::process::ExitCode;

use super::failure::{FAILED, Failure};
use crate::bench::record::{Record, RecordError};
use crate::report::{Run, runs, write};

/// Make one page of records of benchmarks: findings, figures and numbers, and the history across several
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Records that `defrost bench` wrote; the newest is shown in full
    #[arg(required = true, value_name = "RUN.json")]
    records: Vec<PathBuf>,
    /// Write the page to this file
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut read = Vec::new();
    for path in &arguments.records {
        let record = Record::read(path).map_err(|error| Failure::new(FAILED, &error, hint(&error)))?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        read.push(Run { name, record });
    }
    write(&arguments.html, &runs(&read)).map_err(|error| Failure::plain(FAILED, error))?;
    Ok(ExitCode::SUCCESS)
}

fn hint(error: &RecordError) -> Option<&'static str> {
    match error {
        RecordError::Io { .. } => None,
        RecordError::Version { .. } => {
            Some("make the record again, or read it with the command that made it")
        }
        _ => Some("name a file that `defrost bench … --json FILE` wrote, whole"),
    }
}
