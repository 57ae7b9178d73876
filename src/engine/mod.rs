//! What dumps and restores. The subject hands an engine an order, and gets back which process it now is.
//!
//! Engines by name: [`criu`], which does everything that CRIU can do, [`instant`], which restores CRIU's images by
//! mapping them, and [`simulated`], which dumps nothing. [`auto`] takes the first that can. An engine must not know a resource: it is given descriptors to keep and a record to store, as plain data.

pub mod auto;
pub mod channel;
pub mod criu;
mod filling;
pub mod helper;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod instant;
pub mod keeper;
pub mod simulated;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::image::folder::{FolderError, Partial};
use crate::image::verify::Finding;
use crate::image::{Image, SubjectRecord, Users};
use crate::wake::{Origin, Params};
use channel::{Arrival, ReportReader};

/// The name of process 1 of a pid namespace that was made for a restored process, as `ps` shows it and as commands
/// know it by.
pub const INIT_NAME: &str = "defrost-init";

/// The name that an engine is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineName {
    /// CRIU dumps and restores.
    Criu,
    /// CRIU's images are restored by mapping them.
    Instant,
    /// The first of several that can.
    Auto,
    /// Hooks and audit run, nothing is dumped.
    Simulated,
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Criu => "criu",
            Self::Instant => "instant",
            Self::Auto => "auto",
            Self::Simulated => "simulated",
        })
    }
}

/// What dumps the process that calls it, and restores images.
pub trait Engine: Send + Sync + fmt::Debug {
    /// The name that this engine is chosen by.
    fn name(&self) -> EngineName;

    /// Gets ready for a dump to `target` before anything is quiesced, so that a bad target disturbs nobody.
    ///
    /// # Errors
    /// Why there cannot be an image of that name, or no dump at all. Nothing has changed then.
    fn prepare(&self, target: &Path) -> Result<Prepared, DumpError>;

    /// Dumps the calling process. Blocks, and must be called from a thread that no runtime needs. Returns once
    /// in the original, unless the dump ends it, and once in each restored process.
    fn dump(&self, prepared: Prepared, order: DumpOrder) -> Dump;

    /// Starts the process in the image, as a child of the calling process.
    ///
    /// # Errors
    /// Why not; no process of the image is left then, unless the error names it.
    fn restore(&self, order: &RestoreOrder<'_>) -> Result<RestoredProcess, RestoreError>;
}

/// A dump that can begin.
#[derive(Debug)]
pub enum Prepared {
    /// Into this folder, which becomes the image.
    Folder(Partial),
    /// Nowhere.
    Nothing,
}

impl Prepared {
    /// Takes the preparations back, when there will be no dump.
    pub fn discard(self) {
        if let Self::Folder(partial) = self {
            // An empty folder that cannot be removed is swept by the next checkpoint of this name.
            let _ = partial.discard(None);
        }
    }
}

/// What an engine is told about a dump.
#[derive(Debug)]
pub struct DumpOrder {
    /// Whether the process shall go on afterwards.
    pub leave_running: bool,
    /// What the process says of itself, for the manifest.
    pub subject: SubjectRecord,
    /// Descriptors to hold outside of the image, and to give back if this process goes on.
    pub kept: Vec<OwnedFd>,
    /// Which of the kept ones is to be told the outcome in one line, if this process does not go on.
    pub answer: Option<usize>,
    /// How long CRIU may take; it is killed then, which leaves this process unharmed.
    pub deadline: Duration,
}

/// Which process this is, after a dump.
#[derive(Debug)]
pub enum Dump {
    /// A new one, restored from the image.
    Restored(Arrival),
    /// The original.
    Original(Original),
}

/// Waits for the image, or for the reason why there is none.
type Finish = Box<dyn FnOnce() -> Result<Complete, DumpError> + Send>;

/// The original process after a dump.
pub struct Original {
    /// Whether its state was written. That does not make an image yet: see [`Original::finish`].
    pub dumped: bool,
    /// The kept descriptors in the order that they were given; empty if the process that held them is gone.
    pub kept: Vec<OwnedFd>,
    finish: Finish,
}

impl Original {
    /// An original whose image is finished, or whose failure is explained, by `finish`.
    pub fn new(
        dumped: bool,
        kept: Vec<OwnedFd>,
        finish: impl FnOnce() -> Result<Complete, DumpError> + Send + 'static,
    ) -> Self {
        Self { dumped, kept, finish: Box::new(finish) }
    }

    /// Waits until the image is complete. Blocks, with a deadline of the engine's own.
    ///
    /// # Errors
    /// Why there is no image. This process goes on all the same.
    pub fn finish(self) -> Result<Complete, DumpError> {
        (self.finish)()
    }
}

impl fmt::Debug for Original {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original").field("dumped", &self.dumped).finish_non_exhaustive()
    }
}

/// A checkpoint that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// The image folder; `None` from an engine that dumps nothing.
    pub image: Option<PathBuf>,
    /// The size of its files together, in bytes.
    pub bytes: u64,
    /// How long the process stood still, in microseconds, as CRIU measured it.
    pub frozen_us: u64,
    /// From the start of the dump to the complete folder, in microseconds.
    pub took_us: u64,
}

/// Why there is no image. The process that was to be dumped goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The image's place is no good.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// CRIU is missing, or too old, or does not work here.
    #[error(transparent)]
    Criu(#[from] criu_driver::Error),
    /// The target holds memory that this process still uses: it was restored by mapping that image.
    #[error("{} cannot be replaced: this process uses memory of it", target.display())]
    InUse {
        /// The image folder.
        target: PathBuf,
    },
    /// The target is an image that others need.
    #[error("{} cannot be replaced: it is needed by {users}", target.display())]
    Needed {
        /// The image folder.
        target: PathBuf,
        /// Images that depend on it, and other processes that use memory of it.
        users: Users,
    },
    /// The process was restored a short while ago, and its memory is not all there yet.
    #[error("the memory of this process is not all there yet: {0}")]
    Filling(#[source] std::io::Error),
    /// The process that should have driven the dump did not start, or was killed.
    #[error("the helper process {problem}: {source}")]
    Helper {
        /// What it failed at.
        problem: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The dump, or the completion of its folder, failed; this is what the helper reported.
    #[error("{cause}")]
    Reported {
        /// The cause, chosen from CRIU's log where that is where it is.
        cause: String,
        /// What to do about it.
        hint: Option<String>,
        /// CRIU's log, kept for reading.
        log: Option<PathBuf>,
    },
}

impl DumpError {
    /// What the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Folder(error) => error.hint(),
            Self::Criu(error) => error.hint().map(str::to_owned),
            Self::InUse { .. } => {
                let whole = "images that `defrost image flatten` made whole";
                Some(format!("name another folder, or restore {whole} with --memory copy from now on"))
            }
            Self::Needed { users, .. } => Some(format!("name another folder, or {}", users.hint())),
            Self::Filling(_) => Some("try again when its pager has ended".to_owned()),
            Self::Helper { .. } => {
                Some("look for a kill or an out-of-memory event in the kernel's log".to_owned())
            }
            Self::Reported { hint, log, .. } => with_log(hint.clone(), log.as_deref()),
        }
    }
}

/// A hint that also says where CRIU's log is.
fn with_log(hint: Option<String>, log: Option<&Path>) -> Option<String> {
    match (hint, log) {
        (Some(hint), Some(log)) => Some(format!("{hint}; criu's log: {}", log.display())),
        (None, Some(log)) => Some(format!("read criu's log: {}", log.display())),
        (hint, None) => hint,
    }
}

/// The log of a failure of CRIU, where there is one.
fn log_of(error: &criu_driver::Error) -> Option<&Path> {
    match error {
        criu_driver::Error::Failed { log_path, .. } => log_path.as_deref(),
        criu_driver::Error::LeftAlive { failure, .. } => log_of(failure),
        _ => None,
    }
}

/// What an engine is told about a restore.
#[derive(Debug)]
pub struct RestoreOrder<'a> {
    /// The image, verified already.
    pub image: &'a Image,
    /// What the restored process is given.
    pub params: &'a Params,
    /// Whether the report will be read. A process that cannot deliver it then ends: whoever restored it was killed,
    /// and neither watches nor knows it.
    pub awaited: bool,
    /// Whether the caller stays the process's parent until it ends. Otherwise it ends before, and a thread that asked
    /// for a signal then would get it.
    pub stays: bool,
    /// How long it may take until the process runs.
    pub deadline: Duration,
    /// Why this engine was taken, for whoever asks the restored process: a phrase.
    pub why: &'a str,
}

/// A process that runs again.
#[derive(Debug)]
pub struct RestoredProcess {
    /// Its pid, as the caller sees it. It is a child of the caller, who must wait for it.
    pub pid: i32,
    /// Where it reports when it serves, if the image has a way to.
    pub report: Option<ReportReader>,
    /// What brought it back, and why that.
    pub origin: Origin,
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// CRIU is missing, or failed.
    #[error(transparent)]
    Criu(#[from] criu_driver::Error),
    /// The pipes to the restored process could not be made.
    #[error("the parameters could not be handed over: {0}")]
    Parameters(#[source] std::io::Error),
    /// The image was made without a way to hand parameters in.
    #[error("the image takes no parameters: it was not made by a defrost server's own checkpoint")]
    NoParameters,
    /// The image has something that the engine cannot restore. Nothing was started.
    #[error("the instant engine cannot restore this image: {}", .0.join("; "))]
    Unsupported(Vec<String>),
    /// A file of the image cannot be read. Nothing was started.
    #[error(transparent)]
    Image(#[from] criu_images::ReadError),
    /// The process could not be made; it has been ended.
    #[error("the process could not be restored: {step}: {source}")]
    Start {
        /// At what, and which of several.
        step: String,
        /// Why.
        source: std::io::Error,
    },
    /// The process did not run in time; it has been killed.
    #[error("the process was not restored within {0:?} and was killed")]
    Late(Duration),
    /// The engine restores nothing.
    #[error("the {0} engine restores nothing")]
    NotRestoring(EngineName),
    /// The CRIU that is here must not restore this image.
    #[error("{}", .0.what)]
    Misfit(Finding),
    /// One engine did not restore the image, and the one that was taken instead failed.
    #[error("{failure} (criu was taken because {reason})")]
    Fallback {
        /// Why the first did not.
        reason: String,
        /// What the second failed at.
        failure: Box<RestoreError>,
    },
}

impl RestoreError {
    /// What the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Criu(error) => with_log(error.hint().map(str::to_owned), log_of(error)),
            Self::Parameters(_) => Some("check the limits on descriptors and pipes".to_owned()),
            Self::NoParameters => Some("restore it without arguments, --set and --env".to_owned()),
            Self::Unsupported(_) | Self::Start { .. } => {
                Some("use --engine criu, which restores the same image".to_owned())
            }
            Self::Image(_) => {
                Some("look at the image with `defrost inspect`, or restore another one".to_owned())
            }
            Self::Late(_) => Some("allow more time by --timeout".to_owned()),
            Self::NotRestoring(_) => Some("use --engine criu".to_owned()),
            Self::Misfit(finding) => Some(finding.remedy.clone()),
            Self::Fallback { failure, .. } => failure.hint(),
        }
    }

    /// Whether this host cannot do it, rather than this restore.
    #[must_use]
    pub fn is_of_the_host(&self) -> bool {
        use criu_driver::Error;
        match self {
            Self::Misfit(_) => true,
            Self::Fallback { failure, .. } => failure.is_of_the_host(),
            Self::Criu(error) => matches!(
                error,
                Error::NotFound { .. } | Error::TooOld { .. } | Error::Unusable { .. } | Error::Spawn { .. }
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_restore_says_where_the_log_is() {
        let cause =
            criu_driver::log::diagnose_text("Error (criu/cr-restore.c:1): Can't fork for 7: File exists\n");
        let failure = criu_driver::Error::Failed {
            operation: criu_driver::Operation::Restore,
            cause: cause.expect("it is a known cause"),
            errno: Some(17),
            log_path: Some("/tmp/x/restore.log".into()),
        };
        let hint = RestoreError::Criu(failure).hint().unwrap();
        assert!(hint.ends_with("; criu's log: /tmp/x/restore.log"), "{hint}");
        let failure = criu_driver::Error::Died {
            operation: criu_driver::Operation::Restore,
            status: None,
            cause: None,
        };
        assert!(!RestoreError::Criu(failure).hint().unwrap().contains("log:"));
    }
}
