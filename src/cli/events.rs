//! `defrost events`: what happened in a server, from the server itself, from its file or from its history.

mod file;
mod live;
mod output;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::failure::{FAILED, Failure, USAGE};
use super::history::failed;
use crate::events::{Filter, Format, format, older, stored};
use crate::history::{History, HistoryError};
use output::{Form, Output};

/// List what happened in a server: checkpoints with each hook, restores, requests, log lines, events of its own
///
/// A live server tells what it has in memory, which also covers the time before it was restored. A FILE is what
/// `defrost serve --events FILE` writes. A HISTORY is the folder of `run --history DIR`: it has a record of the
/// supervisor's, of each crash, what came back, and the checkpoints. Events that are missing are counted on standard
/// error.
///
/// A file that is followed is followed by its name: when it is moved away, as by log rotation, the rest of it is shown
/// and then the new file, which the server begins by itself, without a signal. One that is truncated is read from its
/// beginning again, but what was not read before is lost, and not noticed if it grows as long again within 200 ms: let
/// it be renamed instead.
///
/// A PATTERN has placeholders: {time} {unix} {monotonic} {name} {label} {fields} {message} {origin} {instance}
/// {generation} {pid} {sequence}, and {.NAME} for one field; {{ and }} are braces, \t and \n a tab and a new line. The
/// usual one is '{time} {origin} {name} {fields} {message}'.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The server: its name, its pid, or the path of its control socket; or a file of events, or the folder of a
    /// history. A path with a slash in it never means a name
    #[arg(value_name = "TARGET|FILE|HISTORY")]
    target: OsString,
    /// Go on with what happens from now on, until interrupted or the server ends
    #[arg(short, long)]
    follow: bool,
    /// Only events whose name fits, such as 'cycle.*'; may be given more than once
    #[arg(long, value_name = "GLOB")]
    name: Vec<String>,
    /// Only events that are not older than this: 10m, 2h 30min, 1day
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    since: Option<String>,
    /// Only count them: how many of each name, and how many bytes
    #[arg(long, conflicts_with_all = ["follow", "format"])]
    summary: bool,
    /// Print each event in this form
    #[arg(long, value_name = "PATTERN", conflicts_with = "json")]
    format: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let age = arguments.since.as_deref().map(age).transpose()?;
    let filter = Filter::new(&arguments.name, age)
        .map_err(|error| Failure::new(USAGE, format!("--name: {error}"), Some(error.hint())))?;
    let pattern = arguments.format.as_deref().unwrap_or(format::USUAL);
    let line = Format::parse(pattern)
        .map_err(|error| Failure::new(USAGE, format!("--format: {error}"), Some(error.hint())))?;
    let form = if arguments.json { Form::Json } else { Form::Line(line) };
    let mut output = Output::new(filter, form, arguments.summary);
    let target = Path::new(&arguments.target);
    refuse_another_path(&arguments.target)?;
    let status = if let Some(history) = history(target)? {
        let path = events_of(&history)?;
        file::list(&path, Some(&older(&path)), arguments.follow, &mut output)?
    } else if is_file(&arguments.target) {
        file::list(target, None, arguments.follow, &mut output)?
    } else if arguments.follow {
        live::follow(&arguments.target, &mut output)?
    } else {
        live::list(&arguments.target, &mut output)?
    };
    output.end();
    Ok(ExitCode::from(status))
}

/// The history in this folder, if it is one.
fn history(dir: &Path) -> Result<Option<History>, Failure> {
    match History::open(dir) {
        Ok(history) => Ok(Some(history)),
        Err(error @ HistoryError::NotPrivate { .. }) => Err(failed(&error)),
        Err(_) => Ok(None),
    }
}

fn events_of(history: &History) -> Result<PathBuf, Failure> {
    let path = history.events_path();
    if path.exists() {
        return Ok(path);
    }
    let text = format!("{} has no record of events", history.path().display());
    let hint = "defrost run --history DIR --checkpoint-every TIME keeps one";
    Err(Failure::new(FAILED, text, Some(hint)))
}

fn age(text: &str) -> Result<Duration, Failure> {
    humantime::parse_duration(text).map_err(|error| {
        let text = format!("--since: '{text}' is no duration: {error}");
        Failure::new(USAGE, text, Some("give a number with its unit: 90s, 10m, 2h, 1day"))
    })
}

/// A path that leads to nothing that can tell events.
fn refuse_another_path(target: &OsStr) -> Result<(), Failure> {
    if !target.as_encoded_bytes().contains(&b'/') {
        return Ok(());
    }
    let path = Path::new(target);
    let what = match std::fs::metadata(path).map(|meta| meta.file_type()) {
        Ok(kind) if kind.is_file() || kind.is_socket() => return Ok(()),
        Ok(kind) if kind.is_dir() => match history(path)? {
            Some(_) => return Ok(()),
            None => format!("{} is a folder, but no history", path.display()),
        },
        Ok(_) => format!("{} is no regular file, no history and no control socket", path.display()),
        Err(error) => format!("{}: {error}", path.display()),
    };
    let hint = "give a file of serve --events FILE, the DIR of run --history DIR, or a server's name";
    Err(Failure::new(FAILED, what, Some(hint)))
}

/// Whether a file is meant. A word without a slash is the name of a server, unless it is a file of events.
fn is_file(target: &OsStr) -> bool {
    let path = Path::new(target);
    if !path.is_file() {
        return false;
    }
    let mut begin = [0; stored::KIND.magic.len()];
    target.as_encoded_bytes().contains(&b'/')
        || std::fs::File::open(path)
            .and_then(|mut file| file.read_exact(&mut begin))
            .is_ok_and(|()| begin == stored::KIND.magic)
}
