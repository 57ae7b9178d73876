//! Reads CRIU's log and finds the cause of a failure in it. Knows no operation and no process.
//!
//! The first error is almost never the cause: without CAP_SYS_RESOURCE every log opens with a complaint about
//! RLIMIT_NOFILE. The last ones are consequences (`Unable to open fd=1`, `Restoring FAILED`). So each error is looked up
//! in a table of known causes, and the last one found there counts.

mod table;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

pub use table::CauseKind;
use table::{Strength, TABLE};

/// Bytes of a log that are read, from its end. A hanging restore has written gigabytes; the cause is among the last
/// lines, and a whole log at the debug level of a small process has about 100 KiB.
pub const LOG_LIMIT: u64 = 1 << 20;

/// Bytes of one message that are kept. CRIU's own buffer for a line has 1024.
const TEXT_LIMIT: usize = 1024;

/// Why CRIU failed, as far as its log tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// What kind of cause, for a program.
    pub kind: CauseKind,
    /// CRIU's own words, without time and place in its source.
    pub text: String,
    /// The whole line of the log; empty when the text is not from a log.
    pub line: String,
    /// What to do about it, as a sentence without a full stop.
    pub remedy: Option<&'static str>,
}

impl Diagnosis {
    /// Recognises a single message.
    fn of(text: &str, line: &str) -> Diagnosis {
        let row = TABLE.iter().find(|row| row.matches(text));
        Diagnosis {
            kind: row.map_or(CauseKind::Unknown, |row| row.kind),
            text: clip(text),
            line: clip(line),
            remedy: row.map(|row| row.remedy),
        }
    }

    /// A cause told by CRIU's errno alone, for a failure without a log.
    pub(crate) fn from_errno(errno: i32) -> Option<Diagnosis> {
        // The numbers that CRIU sets in cr_errno (criu/cr-errno.c and its callers).
        let text = match errno {
            3 => "No such process",
            17 => "Can't fork: File exists",
            56 => "Bad options",
            _ => return None,
        };
        Some(Diagnosis::of(text, ""))
    }

    /// Nothing is known.
    pub(crate) fn unknown() -> Diagnosis {
        Diagnosis {
            kind: CauseKind::Unknown,
            text: "criu gave no reason".to_owned(),
            line: String::new(),
            remedy: Some("run it again with the log level at debug, and read the log"),
        }
    }

    /// Nothing is known, as there is no room for a log.
    pub(crate) fn no_room() -> Diagnosis {
        let text = "No space left on device, neither for images nor for criu's log";
        Diagnosis::of(text, "")
    }

    /// The message that came with an answer: CRIU's first error, which counts only if it is a known cause.
    pub(crate) fn from_first_error(text: &str) -> Option<Diagnosis> {
        let text = text.trim();
        (!text.is_empty() && !is_harmless(text)).then(|| Diagnosis::of(text, ""))
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Finds the cause in the log at `path`. `None` when no error stands there.
///
/// # Errors
/// When the file cannot be read.
pub fn diagnose(path: &Path) -> io::Result<Option<Diagnosis>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(LOG_LIMIT);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG_LIMIT).read_to_end(&mut bytes)?;
    Ok(diagnose_text(&String::from_utf8_lossy(&bytes)))
}

/// Finds the cause in the text of a log. `None` when no error stands there.
#[must_use]
pub fn diagnose_text(log: &str) -> Option<Diagnosis> {
    let entries: Vec<Entry<'_>> = log.lines().filter_map(Entry::parse).collect();
    let errors = || entries.iter().rev().filter(|entry| entry.severity == Severity::Error);
    let warnings = || entries.iter().rev().filter(|entry| entry.severity == Severity::Warning);
    let found = errors()
        .find(|entry| entry.is(Strength::Cause))
        .or_else(|| warnings().find(|entry| entry.is(Strength::Warning)))
        .or_else(|| errors().find(|entry| entry.is(Strength::Weak)))
        .or_else(|| errors().find(|entry| !is_harmless(entry.text) && !is_consequence(entry.text)))
        .or_else(|| errors().find(|entry| !is_harmless(entry.text) && !is_trailer(entry.text)))?;
    Some(Diagnosis::of(found.text, found.line))
}

/// How bad a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
}

/// A line of the log that says something is wrong.
struct Entry<'a> {
    severity: Severity,
    text: &'a str,
    line: &'a str,
}

impl<'a> Entry<'a> {
    /// Takes `(00.01) 7: Error (criu/x.c:9): text` apart; the time and the process are absent in early messages.
    fn parse(line: &'a str) -> Option<Entry<'a>> {
        let (mark, severity) = [("Error (", Severity::Error), ("Warn  (", Severity::Warning)]
            .into_iter()
            .filter_map(|(word, severity)| Some((line.find(word)? + word.len(), severity)))
            .min_by_key(|(mark, _)| *mark)?;
        let (_, text) = line.get(mark..)?.split_once("): ")?;
        Some(Entry { severity, text: text.trim(), line: line.trim() })
    }

    fn is(&self, strength: Strength) -> bool {
        !is_harmless(self.text) && TABLE.iter().any(|row| row.strength == strength && row.matches(self.text))
    }
}

/// Errors that are logged by operations which succeed.
fn is_harmless(text: &str) -> bool {
    // CRIU raises its own limit at start; without CAP_SYS_RESOURCE it says so as an error, and goes on.
    text.contains("Can't setup RLIMIT_NOFILE for self")
}

/// The last line of every failure.
fn is_trailer(text: &str) -> bool {
    ["Dumping FAILED", "Restoring FAILED", "Pre-dumping FAILED"].iter().any(|trailer| text.contains(trailer))
}

/// Errors that follow from another one above them.
fn is_consequence(text: &str) -> bool {
    const FOLLOWING: [&str; 8] = [
        "Unable to open fd=",
        "Can't open vma",
        "Dump files (pid:",
        "Couldn't open image dir",
        "exited, status=",
        "killed by signal",
        "Failed to wait",
        "Can't dump file ",
    ];
    is_trailer(text) || FOLLOWING.iter().any(|following| text.contains(following))
}

fn clip(text: &str) -> String {
    let mut end = text.len().min(TEXT_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
