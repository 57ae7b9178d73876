//! Everything that can go wrong with CRIU, by what the reader can do about it. Knows no operation's inner workings.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::log::Diagnosis;
use crate::version::{FLOOR, Version};

/// What CRIU was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Start a worker.
    Start,
    /// Tell the version.
    Version,
    /// Check the kernel.
    Check,
    /// Check optional features of the kernel.
    FeatureCheck,
    /// Dump another process.
    Dump,
    /// Dump the requester.
    SelfDump,
    /// Restore.
    Restore,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Start => "start of a worker",
            Operation::Version => "version request",
            Operation::Check => "check",
            Operation::FeatureCheck => "feature check",
            Operation::Dump => "dump",
            Operation::SelfDump => "self-dump",
            Operation::Restore => "restore",
        })
    }
}

/// A failure of this crate. Unless a variant says otherwise, nothing that this crate started is alive any more, and a
/// process that was to be dumped goes on unharmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No place has a usable CRIU.
    #[error("criu was not found; tried: {}", list(tried))]
    NotFound {
        /// Each place, and what was wrong there.
        tried: Vec<Candidate>,
    },
    /// The CRIU that was asked for by name is older than [`FLOOR`].
    #[error("criu at {} is too old: version {found}, and at least {FLOOR} is needed", path.display())]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
    /// The CRIU that was asked for by name does not work.
    #[error("criu at {} cannot be used: {defect}", path.display())]
    Unusable {
        /// The program.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        defect: Defect,
    },
    /// A process could not be started.
    #[error("{} could not be started: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder could not be used.
    #[error("folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something that is not an answer came back, or the request could not be sent.
    #[error("{operation}: no proper exchange with criu: {problem}")]
    Protocol {
        /// What was asked for.
        operation: Operation,
        /// What was wrong.
        #[source]
        problem: Problem,
    },
    /// CRIU was not done in time. It was killed, with all that it had restored, where this crate had started it; in a
    /// self-dump that is up to whoever started the worker.
    #[error("{operation}: criu was not done within {limit:?}")]
    Deadline {
        /// What was asked for.
        operation: Operation,
        /// The time that it had.
        limit: Duration,
    },
    /// CRIU ended without an answer. A process that was being dumped goes on.
    #[error("{operation}: criu ended without an answer{}{}", ending(status), because(cause.as_ref()))]
    Died {
        /// What was asked for.
        operation: Operation,
        /// How it ended, where this process is its parent.
        status: Option<ExitStatus>,
        /// What its log or its standard error says.
        cause: Option<Diagnosis>,
    },
    /// CRIU answered that it failed. A process that was being dumped goes on; what was restored has been killed.
    #[error("{operation} failed: {cause}")]
    Failed {
        /// What was asked for.
        operation: Operation,
        /// The cause, chosen from the log.
        cause: Diagnosis,
        /// CRIU's errno, which only a few failures have.
        errno: Option<i32>,
        /// The log, where there is one.
        log_path: Option<PathBuf>,
    },
    /// After a failed restore some of the processes that it had made could not be killed.
    #[error("{failure}; still alive: {}", numbers(alive))]
    LeftAlive {
        /// The failure itself.
        #[source]
        failure: Box<Error>,
        /// The processes.
        alive: Vec<i32>,
    },
    /// The subject of the self-test did not do its part.
    #[error("self-test: {0}")]
    Subject(#[source] SubjectFault),
}

impl Error {
    /// What the reader can do about it, as a sentence without a full stop.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::NotFound { .. } => {
                Some("install criu 4.2 or later, or name one with the environment variable DEFROST_CRIU")
            }
            Error::TooOld { .. } => Some(
                "install criu 4.2 or later: older ones cannot dump TCP sockets on kernels from 6.16 on, or do not start from 6.13 on",
            ),
            Error::Unusable { defect, .. } => Some(defect.hint()),
            Error::Spawn { .. } => {
                Some("check that the file exists, may be executed, and has its interpreter")
            }
            Error::Folder { .. } => Some("check the path of the folder and who may enter it"),
            Error::Protocol { problem, .. } => Some(problem.hint()),
            Error::Deadline { operation: Operation::Restore, .. } => Some(
                "verify the image: a truncated pages file makes criu spin for ever, and missing capabilities make it wait for ever",
            ),
            Error::Deadline { .. } => {
                Some("allow more time; big images need about a second for each gigabyte")
            }
            Error::Died { cause: Some(cause), .. } | Error::Failed { cause, .. } => cause.remedy,
            Error::Died { .. } => {
                Some("look for a crash or an out-of-memory kill of criu in the kernel's log")
            }
            Error::LeftAlive { .. } => Some("end these processes by hand before the next restore"),
            Error::Subject(_) => Some("this is a fault of the program under test, not of criu"),
        }
    }
}

/// A place where CRIU was looked for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The program.
    pub path: PathBuf,
    /// Why it was not taken.
    pub defect: Defect,
}

/// What is wrong with a program that should be CRIU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// There is no such file.
    #[error("no such file")]
    Missing,
    /// It is not a file that may be executed.
    #[error("not an executable file")]
    NotExecutable,
    /// It could not be started.
    #[error("could not be started: {0}")]
    Start(#[source] io::Error),
    /// It runs, and is too old.
    #[error("version {0} is older than {FLOOR}")]
    Old(Version),
    /// `--version` ended badly.
    #[error("--version ended with {0}")]
    Ended(ExitStatus),
    /// `--version` did not end.
    #[error("--version did not end within {0:?}")]
    Hung(Duration),
    /// `--version` printed something else.
    #[error("--version printed no version")]
    NoVersion,
}

impl Defect {
    fn hint(&self) -> &'static str {
        match self {
            Defect::Missing | Defect::NotExecutable => "check the path that was given",
            Defect::Start(_) => "check that the file has its interpreter and fits this machine",
            Defect::Old(_) => "install criu 4.2 or later",
            Defect::Ended(_) | Defect::Hung(_) => {
                "run it by hand with --version; criu before 4.0 crashes on new kernels"
            }
            Defect::NoVersion => "check that this program is criu",
        }
    }
}

/// What was wrong with an exchange.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The socket failed.
    #[error("socket: {0}")]
    Socket(#[source] io::Error),
    /// Not a message.
    #[error("answer cannot be decoded: {0}")]
    Undecodable(#[source] prost::DecodeError),
    /// A message larger than any answer of CRIU.
    #[error("answer has {size} bytes, more than {limit}")]
    Oversize {
        /// Its size in bytes.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// An answer to another question.
    #[error("answer is of kind {0}, which was not asked for")]
    Unexpected(i32),
    /// An answer that lacks what it is for.
    #[error("answer has no {0}")]
    Incomplete(&'static str),
    /// The options name another target than the method is for.
    #[error("this way of dumping cannot have that target")]
    Target,
    /// A descriptor could not be made, or handed on.
    #[error("descriptor: {0}")]
    Descriptor(#[source] io::Error),
}

impl Problem {
    fn hint(&self) -> &'static str {
        match self {
            Problem::Socket(_) | Problem::Descriptor(_) => {
                "check the limits of this process (descriptors, memory)"
            }
            Problem::Target => "use self_dump for the requester, and a pid for any other process",
            _ => "check that the program is an unmodified criu 4.2 or later",
        }
    }
}

/// How the subject of a self-test failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectFault {
    /// It did not say where it listens before the deadline, or at all.
    #[error("the subject did not print `listening on port N`")]
    Silent,
    /// It said so, and kept its standard output open.
    #[error("the subject did not put its standard output on /dev/null")]
    OutputOpen,
    /// Nobody answered after the restore.
    #[error("the restored subject does not accept a connection: {0}")]
    Deaf(#[source] io::Error),
    /// It was restored and ended.
    #[error("the restored subject ended by itself")]
    Ended,
    /// Its output could not be read.
    #[error("output of the subject: {0}")]
    Output(#[source] io::Error),
}

fn list(tried: &[Candidate]) -> String {
    if tried.is_empty() {
        return "no place at all".to_owned();
    }
    let each = tried.iter().map(|candidate| format!("{} ({})", candidate.path.display(), candidate.defect));
    each.collect::<Vec<_>>().join(", ")
}

fn numbers(pids: &[i32]) -> String {
    pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}

fn ending(status: &Option<ExitStatus>) -> String {
    status.map(|status| format!(" ({status})")).unwrap_or_default()
}

fn because(cause: Option<&Diagnosis>) -> String {
    cause.map(|cause| format!(": {cause}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_names_every_place() {
        let tried = vec![
            Candidate { path: "/a/criu".into(), defect: Defect::Missing },
            Candidate { path: "/b/criu".into(), defect: Defect::Old(Version::parse("3.17.1").unwrap()) },
        ];
        let error = Error::NotFound { tried };
        let text =
            "criu was not found; tried: /a/criu (no such file), /b/criu (version 3.17.1 is older than 4.2)";
        assert_eq!(error.to_string(), text);
        assert!(error.hint().unwrap().contains("DEFROST_CRIU"));
    }

    #[test]
    fn survivors_are_named_with_the_failure() {
        let failure =
            Box::new(Error::Deadline { operation: Operation::Restore, limit: Duration::from_secs(5) });
        let error = Error::LeftAlive { failure, alive: vec![7, 8] };
        assert_eq!(error.to_string(), "restore: criu was not done within 5s; still alive: 7, 8");
    }

    #[test]
    fn stays_small_enough_to_return() {
        assert!(size_of::<Error>() <= 128, "{}", size_of::<Error>());
    }
}
