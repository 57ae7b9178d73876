//! A text becomes a file, whole or not at all. It must not know what is in it.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use thiserror::Error;

/// A text was not written. A file of that name is still what it was.
#[derive(Debug, Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// Where a text is to go. It is made before the text is, so that no long work is done for a place that cannot be
/// written.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    /// None for what is no file of its own: a device, a FIFO, the standard output by its name.
    beside: Option<NamedTempFile>,
}

impl Destination {
    /// Makes an empty file beside the name. A link is followed.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn new(path: &Path) -> Result<Self, WriteError> {
        let failed = |source| WriteError { path: path.into(), source };
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        // Its name stands for more than its contents.
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            return Ok(Self { path: path.into(), beside: None });
        }
        let path = if found.is_some() { fs::canonicalize(path).map_err(failed)? } else { path.into() };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".defrost-").permissions(Permissions::from_mode(0o666));
        let beside = builder.tempfile_in(folder).map_err(failed)?;
        Ok(Self { path, beside: Some(beside) })
    }

    /// Writes the text, and gives the file its name when all of it is on the disk. Others may read it, as far as the
    /// umask lets them.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write(self, text: &str) -> Result<(), WriteError> {
        let Self { path, beside } = self;
        let written = match beside {
            Some(mut file) => file
                .write_all(text.as_bytes())
                .and_then(|()| file.as_file().sync_all())
                .and_then(|()| file.persist(&path).map(drop).map_err(|error| error.error)),
            None => fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|mut file| file.write_all(text.as_bytes())),
        };
        written.map_err(|source| WriteError { path, source })
    }
}

/// Writes a page to a file.
///
/// # Errors
/// See [`WriteError`].
pub fn write(path: &Path, page: &str) -> Result<(), WriteError> {
    Destination::new(path)?.write(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_by_a_whole_one_and_nothing_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        write(&path, "one").unwrap();
        write(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        write(folder.path(), "three").unwrap_err();
        write(&folder.path().join("none/page.html"), "three").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    #[test]
    fn a_link_is_followed_and_a_device_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let [real, link, null] = ["real", "link", "null"].map(|name| folder.path().join(name));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        write(&link, "new").unwrap();
        write(&null, "gone").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(link.is_symlink() && null.is_symlink() && fs::read_to_string(&null).unwrap().is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_is_not_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        drop(Destination::new(&path).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
