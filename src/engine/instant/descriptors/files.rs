//! Files, folders and devices that are opened by path, and mere paths.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use criu_images::RegularFile;
use rustix::fs::{Mode, OFlags, SeekFrom};

/// What open(2) shall not do again, or not by itself: O_ASYNC takes effect by fcntl(2) only.
const ONCE: OFlags =
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::TRUNC).union(OFlags::CLOEXEC).union(ASYNC);
/// fcntl(2).
pub(super) const ASYNC: OFlags = OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned());

/// How to open one again.
#[derive(Debug)]
pub(super) struct Opened {
    path: PathBuf,
    flags: OFlags,
    position: u64,
    size: Option<u64>,
    mode: Option<u32>,
}

impl Opened {
    /// Decides, and makes CRIU's own checks of the file as it is now. `pid` is the process's.
    ///
    /// # Errors
    /// What the file is, if it cannot be opened again.
    pub(super) fn of(file: &RegularFile, pid: u32) -> Result<Self, String> {
        if file.external == Some(true) {
            return Err("supplied from outside".to_owned());
        }
        // Such files show the memory that the process has when they are opened, which the restorer replaces.
        if file.path().starts_with(format!("/proc/{pid}")) {
            return Err(format!("{}, in which the process looks at itself", file.path().display()));
        }
        let (path, flags) = (file.path().to_owned(), flags(file));
        let (size, mode) = (file.size, file.mode);
        let wanted = Self { path, flags, position: file.position, size, mode };
        let meta = match flags.contains(OFlags::PATH | OFlags::NOFOLLOW) {
            true => std::fs::symlink_metadata(&wanted.path),
            false => std::fs::metadata(&wanted.path),
        };
        let shown = wanted.path.display();
        let meta = meta.map_err(|error| format!("{shown}: {error}"))?;
        wanted.same(&meta).map_err(|what| format!("{shown}, {what}"))?;
        Ok(wanted)
    }

    /// Opens it.
    ///
    /// # Errors
    /// The kernel's own; `Other` when the file is not what it was.
    pub(super) fn open(&self) -> io::Result<File> {
        let flags = self.flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        let meta = file.metadata()?;
        self.same(&meta).map_err(io::Error::other)?;
        if !self.flags.contains(OFlags::PATH) && (meta.is_file() || meta.is_dir() && self.position != 0) {
            rustix::fs::seek(&file, SeekFrom::Start(self.position))?;
        }
        Ok(file)
    }

    fn same(&self, meta: &Metadata) -> Result<(), String> {
        let kind = meta.file_type();
        let usual = kind.is_file() || kind.is_dir() || kind.is_char_device();
        if !usual && !self.flags.contains(OFlags::PATH) {
            return Err("which is no file, folder or device".to_owned());
        }
        same(meta, self.size, self.mode)
    }
}

/// CRIU's own checks of a file that is opened again.
pub(super) fn same(meta: &Metadata, size: Option<u64>, mode: Option<u32>) -> Result<(), String> {
    match (size, mode) {
        (Some(size), _) if meta.is_file() && meta.len() != size => {
            Err(format!("which has {} bytes and had {size}", meta.len()))
        }
        (_, Some(mode)) if meta.mode() != mode => {
            Err(format!("which has mode {:o} and had {mode:o}", meta.mode()))
        }
        _ => Ok(()),
    }
}

/// How it is opened again.
pub(super) fn flags(file: &RegularFile) -> OFlags {
    OFlags::from_bits_retain(file.flags) - ONCE
}

/// Whether this is still a named pipe.
pub(super) fn is_fifo(path: &Path, mode: Option<u32>) -> Result<(), String> {
    let shown = path.display();
    let meta = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
    if !meta.file_type().is_fifo() {
        return Err(format!("{shown}, which is no named pipe any more"));
    }
    same(&meta, None, mode).map_err(|what| format!("{shown}, {what}"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn recorded(path: &Path, flags: libc::c_int, position: u64) -> RegularFile {
        use std::os::unix::ffi::OsStrExt;
        let meta = std::fs::symlink_metadata(path).unwrap();
        RegularFile {
            name: path.as_os_str().as_bytes().to_vec(),
            flags: flags.cast_unsigned(),
            position,
            size: Some(meta.len()).filter(|_| meta.is_file()),
            mode: Some(meta.mode()),
            ..RegularFile::default()
        }
    }

    #[test]
    fn a_file_goes_on_at_its_position_and_is_not_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, "0123456789").unwrap();
        let file = recorded(&path, libc::O_RDWR | libc::O_TRUNC | libc::O_CREAT, 4);
        let mut open = Opened::of(&file, 7).unwrap().open().unwrap();
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut open, &mut rest).unwrap();
        assert_eq!(rest, "456789");
        std::fs::write(&path, "more than before").unwrap();
        let reason = Opened::of(&file, 7).unwrap_err();
        assert!(reason.ends_with("which has 16 bytes and had 10"), "{reason}");
    }

    #[test]
    fn a_mere_path_may_lead_to_anything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        let file = recorded(&path, libc::O_PATH | libc::O_NOFOLLOW, 0);
        let open = Opened::of(&file, 7).unwrap().open().unwrap();
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
        assert_eq!(shown, path);
        assert!(open.metadata().unwrap().is_symlink());
    }

    #[test]
    fn what_shows_the_processs_own_memory_is_a_reason() {
        let pid = std::process::id();
        let path = format!("/proc/{pid}/maps");
        let file = recorded(Path::new(&path), libc::O_RDONLY, 0);
        assert!(Opened::of(&file, pid).unwrap_err().contains("looks at itself"));
        assert!(Opened::of(&file, pid + 1).is_ok());
    }
}
