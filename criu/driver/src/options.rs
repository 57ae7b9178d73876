//! What CRIU is told to do. Dump and restore have their own structs, each with the fields that it takes and no other,
//! and each can be written as an RPC message or as arguments. Knows no process and no socket.

mod dump;
mod restore;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::error::Error;
pub use crate::message::{ManageCgroups, NetworkLock};
pub use dump::{DumpOptions, DumpTarget};
pub use restore::{InheritFd, RestoreOptions};

/// How the RPC names the images folder: the worker's working folder, whatever its name is now or later.
///
/// A descriptor of the requester (`images_dir_fd`) would be dumped with it, and then the folder could not be renamed.
pub(crate) const WORKING_DIRECTORY: &str = "/proc/self/cwd";

/// Where the images are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImagesFolder {
    /// This folder. It must exist.
    Path(PathBuf),
    /// The working folder of the CRIU process. For a self-dump, where somebody else starts that process.
    WorkingDirectory,
}

impl ImagesFolder {
    /// The folder, seen from the process that starts CRIU.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            ImagesFolder::Path(path) => path,
            ImagesFolder::WorkingDirectory => Path::new("."),
        }
    }
}

impl From<PathBuf> for ImagesFolder {
    fn from(path: PathBuf) -> ImagesFolder {
        ImagesFolder::Path(path)
    }
}

impl From<&Path> for ImagesFolder {
    fn from(path: &Path) -> ImagesFolder {
        ImagesFolder::Path(path.to_owned())
    }
}

/// How much CRIU logs. Everything from `Error` on keeps the cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LogLevel {
    /// Almost nothing; a failure then has no cause. Saves some milliseconds.
    Silent = 0,
    /// Errors.
    Error = 1,
    /// Warnings too: CRIU's own default. A process that is being traced is only told by a warning.
    #[default]
    Warning = 2,
    /// Steps.
    Info = 3,
    /// Everything; costs 2 to 5 ms on a small image. A hanging restore can write gigabytes.
    Debug = 4,
}

/// The name that the command line has for a mode.
fn cgroups_argument(mode: ManageCgroups) -> &'static str {
    match mode {
        ManageCgroups::Ignore => "ignore",
        ManageCgroups::None => "none",
        ManageCgroups::Props => "props",
        ManageCgroups::Soft => "soft",
        ManageCgroups::Full => "full",
        ManageCgroups::Strict => "strict",
        ManageCgroups::Default => "default",
    }
}

/// `Some(true)` or nothing: an absent field leaves CRIU's default, as an absent switch does.
fn switch(on: bool) -> Option<bool> {
    on.then_some(true)
}

/// The log, seen from the process that starts CRIU.
fn log_path(images: &ImagesFolder, work_folder: Option<&Path>, log_file: &str) -> PathBuf {
    work_folder.unwrap_or_else(|| images.path()).join(log_file)
}

/// Opens the work folder, which the RPC takes as a descriptor of the requester only.
pub(crate) fn open_work_folder(folder: Option<&Path>) -> Result<Option<OwnedFd>, Error> {
    let open = |path: &Path| {
        let opened = std::fs::File::open(path).map(OwnedFd::from);
        opened.map_err(|source| Error::Folder { path: path.to_owned(), source })
    };
    folder.map(open).transpose()
}
