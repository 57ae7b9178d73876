//! What a benchmark leaves behind: every sample, with the host that it was taken on. Read by the report.
//!
//! It knows neither how the samples were taken nor how they are shown. Times are in milliseconds, sizes in bytes.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The version of this form. A reader refuses others.
pub const FORMAT: u32 = 1;
/// The phase of a start before its command runs its first instruction: fork, exec and the dynamic linker.
pub const SPAWN: &str = "spawn the command";
/// The longest record that is read, in bytes.
pub const LONGEST: u64 = 64 << 20;

/// A whole run: one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// Where and with what it was taken.
    pub host: Host,
    /// The services that were started, each in several ways.
    pub services: Vec<Service>,
}

/// The machine and the programs, read at the start of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// When, as RFC 3339 in UTC.
    pub date: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub machine: String,
    /// The model name of the first processor.
    pub cpu: String,
    /// How many processors this process may use.
    pub cores: u32,
    /// All memory, in MiB.
    pub memory_mib: u64,
    /// The load averages before the run.
    pub load: [f64; 3],
    /// CRIU's version, if there is one.
    pub criu: Option<String>,
    /// The version of this command.
    pub defrost: String,
    /// The commit of the source tree, where the caller says it.
    pub commit: Option<String>,
    /// Whether that tree had changes.
    pub dirty: bool,
    /// Anything else that a reader should know, by name: compiler, Python.
    pub notes: BTreeMap<String, String>,
}

/// A service, and the ways in which it was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// As the reader knows it: `echo, 256 MiB`.
    pub name: String,
    /// The question that was asked, on one line, and what a correct answer is.
    pub question: String,
    /// The image that the restoring ways restore.
    pub image: Option<Image>,
    /// How many rounds were asked for. Each round starts every way once.
    pub rounds: u32,
    /// How many rounds were run again because others took too much of the processors.
    pub repeated: u32,
    /// In the order of each round.
    pub ways: Vec<Way>,
}

/// An image, as it was when it was restored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// The sum of its files.
    pub bytes: u64,
    /// Resident memory of the process that was dumped, if its manifest says so.
    pub resident: Option<u64>,
    /// The phases of its checkpoint.
    pub checkpoint: Vec<Phase>,
    /// The bytes of its pages by kind of mapping: `heap`, `anonymous`, `stack`, `file NAME`.
    pub mappings: BTreeMap<String, u64>,
}

/// How a service comes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// From nothing, with whatever warm-up its command does before it answers.
    Cold,
    /// From nothing, warming up when first asked.
    ColdLazy,
    /// Forked from a warm parent.
    Fork,
    /// By CRIU's own command.
    Criu,
    /// By `defrost restore`.
    Defrost,
    /// The least that a process can do: a bound for all others.
    Floor,
}

/// One way to start it, with all that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// Unique in its service: `cold`, `criu`, `defrost map`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The command.
    pub command: Vec<String>,
    /// Whether the image's pages were taken out of the page cache before each start.
    pub evicted: bool,
    /// Whether CRIU found its cache of what the kernel can do; nothing where CRIU has no part.
    pub kerndat: Option<bool>,
    /// How many processes one start brings up.
    pub clones: u32,
    /// One for each round.
    pub starts: Vec<Start>,
    /// Latencies of the requests that followed a start, in their order, one list for each start measured so.
    pub requests: Vec<Vec<f64>>,
    /// Memory at named moments: `started`, `after 1000 requests`.
    pub memory: Vec<Memory>,
}

/// One start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// When it was answered; nothing if it failed.
    pub answer: Option<Answer>,
    /// Why it failed, with the cause and what to do.
    pub failure: Option<String>,
    /// Connection attempts.
    pub attempts: u32,
    /// Attempts that got no answer at all within 3 ms, and were given up.
    pub lost_syns: u32,
    /// Answers that were right in form and said that it is not ready yet.
    pub not_yet: u32,
    /// The longest time between two attempts: the error of the figures.
    pub worst_gap: f64,
    /// The share of all processors that others took meanwhile, 0 to 1.
    pub others: f64,
    /// The parts of the start, where the command tells them.
    pub phases: Vec<Phase>,
}

/// Times since the command was spawned.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The connection was accepted by the kernel.
    pub connect: f64,
    /// The first byte of the answer came.
    pub first_byte: f64,
    /// The answer was there, whole and correct.
    pub whole: f64,
}

/// A part of a checkpoint or restore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// As the command calls it.
    pub name: String,
    /// When it began, counted from the beginning of the whole.
    pub began: f64,
    /// How long it took.
    pub took: f64,
}

/// The memory of all processes of a start together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The moment.
    pub at: String,
    /// How many processes.
    pub processes: u32,
    /// Resident, in bytes; what is shared counts for each.
    pub rss: u64,
    /// Proportional, in bytes: what is shared counts once.
    pub pss: u64,
    /// Anonymous, in bytes.
    pub anonymous: u64,
}

/// Why a record cannot be read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It is longer than [`LONGEST`].
    #[error("{path}: {bytes} bytes, and a record has at most {LONGEST}")]
    TooLong {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// It is no record.
    #[error("{path}: no record of a benchmark: {source}")]
    Form {
        /// The file.
        path: String,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// It is of another version.
    #[error("{path}: a record in form {found}, and this command reads form {FORMAT}")]
    Version {
        /// The file.
        path: String,
        /// What it says; 0 for the first ones, which say nothing.
        found: u32,
    },
}

/// What tells a record of another version.
#[derive(Debug, Deserialize)]
struct Numbered {
    format: Option<u32>,
    host: Option<serde::de::IgnoredAny>,
}

impl Record {
    /// Reads a file.
    ///
    /// # Errors
    /// [`RecordError`]
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let name = || path.display().to_string();
        let io = |source| RecordError::Io { path: name(), source };
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > LONGEST {
            return Err(RecordError::TooLong { path: name(), bytes });
        }
        let text = std::fs::read(path).map_err(io)?;
        let form = |source| RecordError::Form { path: name(), source };
        // What else stands there depends on it.
        let Numbered { format, host } = serde_json::from_slice(&text).map_err(form)?;
        match format {
            Some(FORMAT) => serde_json::from_slice(&text).map_err(form),
            Some(found) => Err(RecordError::Version { path: name(), found }),
            // The first records had none.
            None if host.is_some() => Err(RecordError::Version { path: name(), found: 0 }),
            None => serde_json::from_slice(&text).map_err(form),
        }
    }
}

impl Way {
    /// The times to the whole answer of all starts that came up, in rising order.
    #[must_use]
    pub fn answers(&self) -> Vec<f64> {
        let mut times: Vec<f64> = self.starts.iter().filter_map(|start| Some(start.answer?.whole)).collect();
        times.sort_by(f64::total_cmp);
        times
    }
}

/// The value below which the share `part` (0 to 1) of these values lies, which are in rising order; by the nearest
/// rank. Nothing of nothing.
#[must_use]
pub fn quantile(rising: &[f64], part: f64) -> Option<f64> {
    let last = rising.len().checked_sub(1)?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank between nothing and the length of a list"
    )]
    let rank = ((part * rising.len() as f64).ceil() as usize).saturating_sub(1);
    rising.get(rank.min(last)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&values, 0.5), Some(2.0));
        assert_eq!(quantile(&values, 0.99), Some(4.0));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        assert!(matches!(Record::read(&path), Err(RecordError::Io { .. })));
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(Record::read(&path), Err(RecordError::Form { .. })));
        let record = Record { format: 9, host: Host::default(), services: Vec::new() };
        std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        assert!(matches!(Record::read(&path), Err(RecordError::Version { found: 9, .. })));
        for (text, number) in [("{\"format\": 2, \"other\": 1}", 2), ("{\"host\": {}}", 0)] {
            std::fs::write(&path, text).unwrap();
            let error = Record::read(&path).unwrap_err();
            assert!(matches!(&error, RecordError::Version { found, .. } if *found == number), "{error}");
        }
    }
}
