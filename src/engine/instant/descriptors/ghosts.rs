//! Open files that had lost their name: the image has a copy of each, and they come back without one.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use criu_images::{GhostFile, RegularFile, RemapKind};
use rustix::fs::{Mode, OFlags, SeekFrom};

use super::super::source::Source;
use super::files;

/// How to make one file, with all that it was opened for.
#[derive(Debug)]
pub(super) struct Ghost {
    folder: PathBuf,
    record: GhostFile,
    contents: Vec<u8>,
    /// File of the table, flags, position.
    opened: Vec<(u32, OFlags, u64)>,
}

impl Ghost {
    /// Decides, if this file had lost its name; it is then decided about all files of the table that are the same.
    ///
    /// # Errors
    /// What the file is, if it cannot be made again.
    pub(super) fn of(source: &Source, file: &RegularFile) -> Result<Option<Self>, String> {
        let Some(remap) = source.remaps.iter().find(|remap| remap.file_id == file.id) else {
            return Ok(None);
        };
        let Some((RemapKind::Ghost, id)) = remap.stand_in() else {
            return Err("a file that had lost its name, and is not in the image".to_owned());
        };
        let (record, contents) = source
            .folder
            .ghost_file(id)
            .map_err(|error| format!("a file that had lost its name: {error}"))?;
        if record.mode & libc::S_IFMT != libc::S_IFREG || record.in_pieces == Some(true) {
            return Err("something that had lost its name, and is no file".to_owned());
        }
        let folder = file.path().parent().filter(|folder| folder.is_dir());
        let folder = folder.ok_or("a file that had lost its name, and its folder")?.to_owned();
        let same = source.remaps.iter().filter(|remap| remap.stand_in() == Some((RemapKind::Ghost, id)));
        let entries = same.filter_map(|remap| source.files.get(remap.file_id)?.regular.as_deref());
        let opened = entries.map(|file| (file.id, files::flags(file), file.position)).collect();
        Ok(Some(Self { folder, record, contents, opened }))
    }

    /// The files of the table that it makes.
    pub(super) fn files(&self) -> impl Iterator<Item = u32> {
        self.opened.iter().map(|(file, ..)| *file)
    }

    /// Makes it, and hands over what it was opened for.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn make(&self, mut keep: impl FnMut(u32, OwnedFd) -> io::Result<()>) -> io::Result<()> {
        // Where it was: the file system, and its quota, stay the same.
        let mut file = tempfile::tempfile_in(&self.folder)?;
        file.write_all(&self.contents)?;
        std::os::unix::fs::fchown(&file, Some(self.record.uid), Some(self.record.gid))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(self.record.mode & 0o7777))?;
        self.set_times(&file)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        for (id, flags, position) in &self.opened {
            let opened = rustix::fs::open(&path, *flags | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::seek(&opened, SeekFrom::Start(*position))?;
            keep(*id, opened)?;
        }
        Ok(())
    }

    fn set_times(&self, file: &File) -> io::Result<()> {
        let (Some(accessed), Some(modified)) = (&self.record.accessed, &self.record.modified) else {
            return Ok(());
        };
        let [accessed, modified] = [accessed, modified].map(|time| {
            let since = Duration::from_secs(time.sec).saturating_add(Duration::from_micros(time.usec));
            SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
        });
        file.set_times(std::fs::FileTimes::new().set_accessed(accessed).set_modified(modified))
    }
}
