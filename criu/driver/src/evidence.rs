//! What is left to explain a failure: the log, the standard error, the answer. Knows no way to start CRIU.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use crate::capture::Capture;
use crate::child::Guarded;
use crate::deadline::Deadline;
use crate::error::{Error, Operation, Problem};
use crate::log::{Diagnosis, diagnose, diagnose_text};
use crate::message::Response;

/// Collects for one operation.
#[derive(Debug)]
pub(crate) struct Evidence {
    operation: Operation,
    log_path: PathBuf,
    /// The log of an earlier operation. CRIU empties it, unless it fails before that.
    stale: Option<Stamp>,
    output: Capture,
}

type Stamp = (u64, u64, i64, i64);

impl Evidence {
    /// Before CRIU starts.
    pub(crate) fn new(operation: Operation, log_path: PathBuf) -> Result<Evidence, Error> {
        let output = Capture::new().map_err(|source| no_descriptor(operation, source))?;
        let stale = stamp(&log_path);
        Ok(Evidence { operation, log_path, stale, output })
    }

    /// For CRIU's standard error.
    pub(crate) fn output(&self) -> Result<Stdio, Error> {
        self.output.stdio().map_err(|source| no_descriptor(self.operation, source))
    }

    /// CRIU answered that it failed, or ended saying so.
    pub(crate) fn failed(&self, response: Option<&Response>) -> Error {
        let errno = response.and_then(|response| response.errno);
        let first = response.and_then(|response| response.first_error.as_deref());
        let cause = self
            .cause()
            .or_else(|| errno.and_then(Diagnosis::from_errno))
            .or_else(|| first.and_then(Diagnosis::from_first_error))
            .or_else(|| self.log_has_no_room().then(Diagnosis::no_room))
            .unwrap_or_else(Diagnosis::unknown);
        let log_path = self.log_is_new().then(|| self.log_path.clone());
        Error::Failed { operation: self.operation, cause, errno, log_path }
    }

    /// CRIU ended without an answer.
    pub(crate) fn died(&self, status: Option<ExitStatus>) -> Error {
        Error::Died { operation: self.operation, status, cause: self.cause() }
    }

    /// Waits for CRIU's exit code, which is its verdict where nobody reads an answer. CRIU that is late is still there
    /// afterwards.
    pub(crate) fn verdict(&self, child: &mut Guarded, limit: Duration) -> Result<(), Error> {
        match child.wait(&Deadline::after(limit)) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) if status.code().is_some() => Err(self.failed(None)),
            Ok(Some(status)) => Err(self.died(Some(status))),
            Ok(None) => Err(Error::Deadline { operation: self.operation, limit }),
            // Something else in this process has reaped it, and with it went the verdict.
            Err(_) => Err(self.died(None)),
        }
    }

    /// From the log; from the standard error for what goes wrong before there is one.
    fn cause(&self) -> Option<Diagnosis> {
        let logged = self.log_is_new().then(|| diagnose(&self.log_path).ok()).flatten().flatten();
        logged.or_else(|| diagnose_text(&self.output.text()))
    }

    /// Whether CRIU cannot have written why it failed, as the disk is full.
    fn log_has_no_room(&self) -> bool {
        let folder = self.log_path.parent().unwrap_or(&self.log_path);
        statvfs(folder).is_ok_and(|disk| disk.blocks_available() * disk.fragment_size() <= FULL)
    }

    fn log_is_new(&self) -> bool {
        stamp(&self.log_path).is_some_and(|now| Some(now) != self.stale)
    }
}

/// A file system that CRIU has filled has no more than this left, in bytes: it writes through pipes, which hold up to
/// 1 MiB (pipe(7)).
const FULL: u64 = 1 << 20;

fn no_descriptor(operation: Operation, source: io::Error) -> Error {
    Error::Protocol { operation, problem: Problem::Descriptor(source) }
}

fn stamp(path: &PathBuf) -> Option<Stamp> {
    fs::metadata(path).ok().map(|data| (data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::CauseKind;

    fn evidence(log: &std::path::Path) -> Evidence {
        Evidence::new(Operation::Restore, log.to_owned()).unwrap()
    }

    fn cause(error: Error) -> (CauseKind, Option<PathBuf>) {
        let Error::Failed { cause, log_path, .. } = error else { panic!("{error}") };
        (cause.kind, log_path)
    }

    #[test]
    fn the_log_of_an_earlier_failure_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("restore.log");
        fs::write(&log, "Error (criu/x.c:1): File a has bad size 1 (expect 2)\n").unwrap();
        let evidence = evidence(&log);
        let taken = Response { errno: Some(17), ..Response::default() };
        assert_eq!(cause(evidence.failed(Some(&taken))), (CauseKind::PidTaken, None));
        assert_eq!(cause(evidence.failed(None)), (CauseKind::Unknown, None));
        fs::write(&log, "Error (criu/x.c:1): Can't open dir /nowhere\n").unwrap();
        assert_eq!(cause(evidence.failed(None)), (CauseKind::ImagesFolder, Some(log)));
    }

    #[test]
    fn the_harmless_first_error_is_never_the_cause() {
        let harmless = "rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted";
        let response = Response { first_error: Some(harmless.into()), ..Response::default() };
        let error = evidence("/nowhere/log".as_ref()).failed(Some(&response));
        assert_eq!(error.to_string(), "restore failed: criu gave no reason");
        let response = Response { first_error: Some("Can't open dir x".into()), ..Response::default() };
        assert_eq!(
            cause(evidence("/nowhere/log".as_ref()).failed(Some(&response))).0,
            CauseKind::ImagesFolder
        );
    }
}
