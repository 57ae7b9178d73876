//! `defrost history`: the checkpoints of a server, one after the other.

mod last_crash;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::Options;
use super::failure::{FAILED, Failure, IMAGE, USAGE};
use super::inspect::size;
use super::keep::{self, Beside};
use crate::history::{History, HistoryError, Spec};

/// List the checkpoints of a history, as `defrost run --checkpoint-every` makes them
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: Option<List>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write a checkpoint as a plain image, which `criu restore` takes
    Checkout(Checkout),
    /// Store an image as the next checkpoint; it stays where it is, and is made whole if it depends on others
    Add(Addition),
    /// Remove all checkpoints but the last ones
    Prune(Pruning),
    /// The process beside a server that has checkpoints made
    #[command(hide = true)]
    Beside(Beside),
}

#[derive(Debug, clap::Args)]
struct List {
    /// The folder of the history
    dir: PathBuf,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
    /// Read all that is stored, name each checkpoint that is lost, and fail if there is one
    #[arg(long)]
    check: bool,
}

#[derive(Debug, clap::Args)]
struct Checkout {
    /// The checkpoint: DIR@3 by its number, DIR@-1 the last, DIR@-2 the one before
    #[arg(value_name = "DIR@N")]
    checkpoint: PathBuf,
    /// The folder that becomes the image
    out: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Addition {
    /// The folder of the history, which is begun if it is not there
    dir: PathBuf,
    /// The image folder
    image: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Pruning {
    /// The folder of the history
    dir: PathBuf,
    /// How many stay
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
}

/// A checkpoint in the list.
#[derive(Debug, Serialize)]
struct Entry {
    number: u64,
    #[serde(flatten)]
    about: Option<About>,
    /// What is wrong with it; nothing if it can be had.
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct About {
    created_unix_ns: u64,
    server: String,
    generation: u64,
    memory_bytes: u64,
    image_bytes: u64,
    written_bytes: u64,
    pause_us: u64,
    took_us: u64,
}

pub(super) fn run(options: &Options, arguments: &Arguments) -> Result<ExitCode, Failure> {
    match (&arguments.command, &arguments.list) {
        (Some(Command::Checkout(checkout)), _) => check_out(checkout),
        (Some(Command::Add(addition)), _) => add(addition),
        (Some(Command::Prune(pruning)), _) => prune(pruning),
        (Some(Command::Beside(beside)), _) => keep::beside(options, beside),
        (None, Some(list)) => ls(list),
        (None, None) => Err(Failure::new(
            USAGE,
            "a history has to be named",
            Some("defrost history DIR lists its checkpoints"),
        )),
    }
}

fn ls(list: &List) -> Result<ExitCode, Failure> {
    let history = History::open(&list.dir).map_err(|error| failed(&error))?;
    let numbers = history.numbers();
    let entries = numbers.iter().filter_map(|number| entry(&history, *number, list.check).transpose());
    let entries: Vec<Entry> = entries.collect::<Result<_, _>>().map_err(|error| failed(&error))?;
    let text = if list.json {
        serde_json::to_string_pretty(&entries).map_err(|error| Failure::plain(FAILED, error))? + "\n"
    } else {
        describe(&entries).unwrap_or_default() + &last_crash::describe(&history).unwrap_or_default()
    };
    put!("{text}");
    if !list.check {
        return Ok(ExitCode::SUCCESS);
    }
    let damaged = entries.iter().filter(|entry| !entry.problems.is_empty());
    let mut lost: Vec<(u64, u64)> = damaged.map(|entry| (entry.number, entry.number)).collect();
    // One that was about to be pruned may have been seen beside one that was pruned already.
    let gaps: Vec<(u64, u64)> =
        gaps(&numbers).filter(|gap| self::gaps(&history.numbers()).any(|now| now == *gap)).collect();
    let count = |of: &[(u64, u64)]| of.iter().map(|(first, last)| last - first + 1).sum::<u64>();
    let all = entries.len() as u64 + count(&gaps);
    lost.extend(gaps);
    lost.sort_unstable();
    if lost.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let named = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    let text = format!(
        "lost: {} of {all} checkpoints ({})",
        count(&lost),
        lost.iter().map(named).collect::<Vec<_>>().join(", ")
    );
    Err(Failure::new(IMAGE, text, Some("all others can be restored; copy the files of these from a backup")))
}

/// The first and the last of the numbers that are missing in between. Only the oldest ones are ever left.
fn gaps(numbers: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
    numbers.windows(2).filter(|pair| pair[1] - pair[0] > 1).map(|pair| (pair[0] + 1, pair[1] - 1))
}

/// None if it is pruned by now.
fn entry(history: &History, number: u64, contents: bool) -> Result<Option<Entry>, HistoryError> {
    let problems = match history.losses(number, contents) {
        Err(HistoryError::Unknown { .. }) => return Ok(None),
        // One that others may change is no more than that one.
        Err(error @ HistoryError::NotPrivate { .. }) => vec![error.to_string()],
        other => other?,
    };
    let about = history.index(number).ok().map(|index| About {
        created_unix_ns: index.created_unix_ns,
        server: index.server,
        generation: index.generation,
        memory_bytes: index.memory_bytes,
        image_bytes: index.image_bytes,
        written_bytes: index.written_bytes,
        pause_us: index.pause_us,
        took_us: index.took_us,
    });
    Ok(Some(Entry { number, about, problems }))
}

fn describe(entries: &[Entry]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for Entry { number, about, problems } in entries {
        match about {
            Some(about) => {
                let made = SystemTime::UNIX_EPOCH + Duration::from_nanos(about.created_unix_ns);
                writeln!(
                    text,
                    "{number:>6}  {}  {}, generation {}, {} stored as {}, pause {} ms",
                    humantime::format_rfc3339_millis(made),
                    about.server,
                    about.generation,
                    size(about.image_bytes),
                    size(about.written_bytes),
                    about.pause_us / 1000,
                )?;
            }
            None => writeln!(text, "{number:>6}")?,
        }
        for problem in problems {
            writeln!(text, "        lost: {problem}")?;
        }
    }
    Ok(text)
}

fn check_out(checkout: &Checkout) -> Result<ExitCode, Failure> {
    let (history, number) = find(&checkout.checkpoint)?.ok_or_else(|| {
        let text = format!("{} names no checkpoint of a history", checkout.checkpoint.display());
        Failure::new(USAGE, text, Some("name it as DIR@3 or DIR@-1"))
    })?;
    let image = history.checkout(number, &checkout.out).map_err(|error| failed(&error))?;
    say!("{} is checkpoint {number} of {}", image.display(), history.path().display());
    Ok(ExitCode::SUCCESS)
}

fn add(addition: &Addition) -> Result<ExitCode, Failure> {
    let history = History::create(&addition.dir).map_err(|error| failed(&error))?;
    let _claim = history.claim().map_err(|error| failed(&error))?;
    let index = history.add(&addition.image).map_err(|error| failed(&error))?;
    say!(
        "{} is checkpoint {} of {}: {} stored as {}",
        addition.image.display(),
        index.number,
        history.path().display(),
        size(index.image_bytes),
        size(index.written_bytes)
    );
    Ok(ExitCode::SUCCESS)
}

fn prune(pruning: &Pruning) -> Result<ExitCode, Failure> {
    let history = History::open(&pruning.dir).map_err(|error| failed(&error))?;
    let _claim = history.claim().map_err(|error| failed(&error))?;
    history.clear_incoming();
    let pruned = history.prune(pruning.keep as usize).map_err(|error| failed(&error))?;
    say!("{} checkpoints were removed", pruned.removed.len());
    Ok(ExitCode::SUCCESS)
}

/// The checkpoint that a path names; none if it is no more than a path.
pub(super) fn find(path: &Path) -> Result<Option<(History, u64)>, Failure> {
    let spec = Spec::parse(path).map_err(|error| failed(&error))?;
    spec.map(|spec| spec.find()).transpose().map_err(|error| failed(&error))
}

pub(super) fn failed(error: &HistoryError) -> Failure {
    let status = match error {
        HistoryError::Unparsable { .. } => USAGE,
        error if error.is_of_the_image() => IMAGE,
        _ => FAILED,
    };
    Failure::new(status, error, error.hint())
}
