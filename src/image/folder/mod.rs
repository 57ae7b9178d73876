//! The image folder as a transaction: written beside its final name, renamed when complete.
//!
//! Whatever happens, kill -9 included, there is under the target either what lay there before or the complete
//! new image. This module must not know what an image consists of, but for the manifest, which is written last.

mod error;
mod removal;
mod stale;
mod target;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};
use nix::unistd::geteuid;

pub use error::FolderError;
pub use removal::remove;
use target::{Occupant, Target, contents, partial_creator};

use super::manifest::{MANIFEST_NAME, Manifest};

/// A new image folder that does not have its name yet: `.NAME.partial-PID-RANDOM` beside the target.
///
/// Dropping it changes nothing on disk, as one process begins it and another completes it; what nobody
/// completes or discards is removed by the next [`Partial::create`] of the same target.
#[derive(Debug)]
#[must_use]
pub struct Partial {
    target: Target,
    path: PathBuf,
    /// Keeps other processes from sweeping the folder. Not held by the creator: it is dumped, and a
    /// descriptor on the folder would be dumped with it and pin its name.
    _lock: Option<Flock<File>>,
}

impl Partial {
    /// Begins an image for this target: checks that it may be put there, removes what killed checkpoints of
    /// the same target left behind, and creates the partial folder with mode 0700. No descriptor stays open.
    ///
    /// The target may be absent, an empty folder, or hold a defrost or CRIU image, which stays until
    /// [`Partial::complete`]. A relative target counts from the current folder.
    ///
    /// # Errors
    /// See [`FolderError`]; nothing was created.
    pub fn create(target: &Path) -> Result<Self, FolderError> {
        let (target, _) = Target::examine(target)?;
        stale::sweep(&target);
        Ok(Self { path: temporary(&target)?, target, _lock: None })
    }

    /// Takes over a partial folder that another process created, and locks it.
    ///
    /// # Errors
    /// [`FolderError::NotPartial`] if it is none of this target, [`FolderError::InUse`] if it is locked.
    pub fn reopen(partial: &Path, target: &Path) -> Result<Self, FolderError> {
        let target = Target::resolve(target)?;
        let stranger = || FolderError::NotPartial { partial: partial.into(), target: target.path() };
        let path = fs::canonicalize(partial).map_err(|source| failed("open", partial, source))?;
        let beside = path.parent() == Some(&target.parent);
        let named = path.file_name().and_then(|name| partial_creator(&target.name, name)).is_some();
        if !beside || !named || !path.is_dir() {
            return Err(stranger());
        }
        let folder = File::open(&path).map_err(|source| failed("open", &path, source))?;
        let lock = Flock::lock(folder, FlockArg::LockExclusiveNonblock)
            .map_err(|_| FolderError::InUse { partial: path.clone() })?;
        Ok(Self { target, path, _lock: Some(lock) })
    }

    /// Where the engine writes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The final name, absolute.
    #[must_use]
    pub fn target(&self) -> PathBuf {
        self.target.path()
    }

    /// Makes the image complete: all files readable by the owner only and, if it is to be [durable](Manifest::durable),
    /// on disk, the manifest last, then the final name in one step. An image of that name is replaced and removed.
    /// Returns the final name.
    ///
    /// # Errors
    /// See [`FolderError`]. Under the target lies what lay there before, and the partial folder is still
    /// there: [`Partial::discard`] it.
    pub fn complete(&self, manifest: &Manifest) -> Result<PathBuf, FolderError> {
        let bytes = manifest.to_bytes()?;
        seal_files(&self.path)?;
        write(&self.path.join(MANIFEST_NAME), &bytes)?;
        if manifest.durable {
            put_on_disk(&self.path)?;
        }
        let target = self.target.path();
        match self.target.occupant()? {
            Occupant::Nothing | Occupant::EmptyFolder => {
                fs::rename(&self.path, &target).map_err(|source| failed("create", &target, source))?;
                self.settle(manifest.durable, || fs::rename(&target, &self.path))?;
            }
            Occupant::Image => self.replace(&target, manifest.durable)?,
        }
        Ok(target)
    }

    /// Removes the partial folder. If it holds a file named as `log`, that is kept as `NAME.dump-failed.log`
    /// beside the target, readable by the owner only, in the place of an earlier one; its path is returned.
    ///
    /// # Errors
    /// [`FolderError::Io`] if something could not be moved or removed: the partial folder may be left.
    pub fn discard(self, log: Option<&str>) -> Result<Option<PathBuf>, FolderError> {
        let kept = log.map(|name| self.keep_log(name)).transpose();
        fs::remove_dir_all(&self.path).map_err(|source| failed("remove", &self.path, source))?;
        Ok(kept?.flatten())
    }

    fn keep_log(&self, name: &str) -> Result<Option<PathBuf>, FolderError> {
        let from = self.path.join(name);
        if !fs::symlink_metadata(&from).is_ok_and(|meta| meta.is_file()) {
            return Ok(None);
        }
        let to = self.target.parent.join(self.target.sibling("", ".dump-failed.log"));
        fs::set_permissions(&from, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&from, &to))
            .map_err(|source| failed("keep the log as", &to, source))?;
        Ok(Some(to))
    }

    /// Swaps the new folder with the image under the target, then removes the old one. While the swap is one
    /// step of the kernel, what lies under the target may have been changed up to it: look at what came out.
    fn replace(&self, target: &Path, durable: bool) -> Result<(), FolderError> {
        let swap = || {
            renameat2(AT_FDCWD, &self.path, AT_FDCWD, target, RenameFlags::RENAME_EXCHANGE)
                .map_err(io::Error::from)
        };
        swap().map_err(|source| FolderError::Exchange { target: target.into(), source })?;
        if let Err(error) = contents(&self.path) {
            swap().map_err(|source| FolderError::Exchange { target: target.into(), source })?;
            return Err(match error {
                FolderError::Foreign { .. } => FolderError::Foreign { target: target.into() },
                other => other,
            });
        }
        self.settle(durable, swap)?;
        if let Err(error) = fs::remove_dir_all(&self.path) {
            // The new image is complete and has its name; the sweep of the next checkpoint tries again.
            tracing::warn!(folder = %self.path.display(), %error, "previous image could not be removed");
        }
        Ok(())
    }

    /// Puts the new name on disk, if it is to be there; where that fails, takes it back.
    fn settle(&self, durable: bool, take_back: impl FnOnce() -> io::Result<()>) -> Result<(), FolderError> {
        if !durable {
            return Ok(());
        }
        let synced = sync(&self.target.parent);
        if synced.is_err() {
            take_back().map_err(|source| failed("put back", &self.path, source))?;
        }
        synced
    }
}

/// Removes the partial folders of this target that nobody works on, as the next [`Partial::create`] would.
pub fn sweep(target: &Path) {
    if let Ok(target) = Target::resolve(target) {
        stale::sweep(&target);
    }
}

/// A new folder beside the target, of a name that is swept once nobody works on it.
fn temporary(target: &Target) -> Result<PathBuf, FolderError> {
    let prefix = target.sibling(".", &format!(".partial-{}-", std::process::id()));
    let made = tempfile::Builder::new()
        .prefix(&prefix)
        .rand_bytes(12)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&target.parent)
        .map_err(|source| failed("create a folder in", &target.parent, source))?;
    Ok(made.keep())
}

/// Whether we, or root, own what has this metadata, and nobody else may write to it.
pub(super) fn is_private(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    const GROUP_AND_OTHERS_WRITE: u32 = 0o022;
    (meta.uid() == 0 || meta.uid() == geteuid().as_raw()) && meta.mode() & GROUP_AND_OTHERS_WRITE == 0
}

/// Files as private as the folder, so that a copy in a public folder is, too: they hold the server's memory, and
/// CRIU makes them readable by everybody.
fn seal_files(folder: &Path) -> Result<(), FolderError> {
    for_each_file(folder, |file| file.set_permissions(Permissions::from_mode(0o600)))
}

/// All files of the folder, and their names.
pub(super) fn put_on_disk(folder: &Path) -> Result<(), FolderError> {
    for_each_file(folder, File::sync_all)?;
    sync(folder)
}

fn for_each_file(folder: &Path, act: impl Fn(&File) -> io::Result<()>) -> Result<(), FolderError> {
    for entry in fs::read_dir(folder).map_err(|source| failed("list", folder, source))? {
        let entry = entry.map_err(|source| failed("list", folder, source))?;
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let path = entry.path();
            File::open(&path)
                .and_then(|file| act(&file))
                .map_err(|source| failed("put on disk", &path, source))?;
        }
    }
    Ok(())
}

pub(super) fn sync(path: &Path) -> Result<(), FolderError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|source| failed("put on disk", path, source))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|source| failed("write", path, source))
}

pub(super) fn failed(action: &'static str, path: &Path, source: io::Error) -> FolderError {
    FolderError::Io { action, path: path.into(), source }
}
