//! The folder that CRIU writes its log to during a restore, in the folder for temporary files (`TMPDIR`): parallel
//! restores share the image's own, which may be read-only.
//!
//! That of a restore that fails stays, since the error names the log. They do not pile up: when one stays, all but the
//! last [`KEPT`] go, and those that are older than [`AGE`]; only folders of this user, and none that a restore still
//! uses.
//!
//! It must not know what CRIU writes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tempfile::TempDir;

const PREFIX: &str = "defrost-restore-";
/// How many of failed restores stay.
const KEPT: usize = 5;
/// How long they stay.
const AGE: Duration = Duration::from_secs(7 * 86_400);

/// The folder of one restore. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct WorkFolder {
    folder: TempDir,
    /// Locked as long as it is used.
    _used: File,
}

impl WorkFolder {
    /// Makes it.
    ///
    /// # Errors
    /// The kernel's own, with the path.
    pub(super) fn create() -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let used = open(folder.path())?;
        // Where there are no locks, those that are used are still the last ones.
        let _ = flock(&used, FlockOperation::NonBlockingLockShared);
        Ok(Self { folder, _used: used })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves it, and removes older ones.
    pub(super) fn keep(self) {
        let kept = self.folder.keep();
        if let Some(parent) = kept.parent() {
            sweep(parent, SystemTime::now());
        }
    }
}

fn open(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?.into())
}

/// Removes what has been left here long enough. What cannot be removed stays: it is no concern of a restore.
fn sweep(parent: &Path, now: SystemTime) {
    let own = rustix::process::geteuid().as_raw();
    let Ok(entries) = fs::read_dir(parent) else { return };
    let mut left: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter_map(|entry| {
            // Of the entry itself, should it be a link.
            let metadata = entry.metadata().ok()?;
            let is_own = metadata.is_dir() && metadata.uid() == own;
            Some((metadata.modified().ok()?, entry.path())).filter(|_| is_own)
        })
        .collect();
    left.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
    for (number, (modified, path)) in left.into_iter().enumerate() {
        let old = now.duration_since(modified).is_ok_and(|age| age > AGE);
        if number >= KEPT || old {
            remove_unless_used(&path);
        }
    }
}

fn remove_unless_used(folder: &Path) {
    let Ok(held) = open(folder) else { return };
    if flock(&held, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(parent: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_folder_of_a_restore_that_works_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let work = WorkFolder::create_in(parent.path()).unwrap();
        fs::write(work.path().join("restore.log"), "x").unwrap();
        drop(work);
        assert!(names(parent.path()).is_empty());
    }

    #[test]
    fn the_last_few_stay_and_those_that_are_used() {
        let parent = tempfile::tempdir().unwrap();
        let used = WorkFolder::create_in(parent.path()).unwrap();
        let (link, file) =
            (parent.path().join("defrost-restore-link"), parent.path().join("defrost-restore-x"));
        let strange = parent.path().join("strange");
        fs::create_dir(&strange).unwrap();
        std::os::unix::fs::symlink(&strange, &link).unwrap();
        fs::write(&file, "x").unwrap();
        let mut kept = Vec::new();
        for _ in 0..KEPT + 3 {
            let work = WorkFolder::create_in(parent.path()).unwrap();
            fs::write(work.path().join("restore.log"), "x").unwrap();
            kept.push(work.path().to_owned());
            work.keep();
            // Times are known to the tick of the kernel.
            std::thread::sleep(Duration::from_millis(15));
        }
        let last = &kept[kept.len() - KEPT..];
        let others = [used.path().to_owned(), link, file, strange];
        let mut expected: Vec<_> = last.iter().cloned().chain(others.clone()).collect();
        expected.sort();
        assert_eq!(names(parent.path()), expected);

        sweep(parent.path(), SystemTime::now() + AGE + Duration::from_secs(60));
        let mut expected = others.to_vec();
        expected.sort();
        assert_eq!(names(parent.path()), expected, "by their age");
    }
}
