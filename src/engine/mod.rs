//! What dumps and restores. The subject hands an engine an order, and gets back which process it now is.
//!
//! Engines by name: [`criu`], which does everything that CRIU can do, [`instant`], which restores CRIU's images by
//! mapping them, and [`simulated`], which dumps nothing. [`auto`] takes the first that can. An engine must not know a resource: it is given descriptors to keep and a record to store, as plain data.

pub mod auto;
pub mod channel;
pub mod criu;
mod error;
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

pub use error::{DumpError, RestoreError};

use crate::image::folder::Partial;
use crate::image::manifest::Phase;
use crate::image::{Image, SubjectRecord};
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
    /// Whether the image is to be on disk before it is complete.
    pub durable: bool,
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
    /// What made the restore necessary, for the same: a phrase.
    pub cause: Option<&'a str>,
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
    /// What the engine's time went into, in order.
    pub phases: Vec<Phase>,
}
