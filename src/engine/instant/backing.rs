//! The files that memory comes from, each opened once, under numbers that the process will not use.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::memory::Backing;
use super::source::Source;
use crate::sys::descriptors::above;

/// Open files for the restorer.
pub(super) struct Files<'a> {
    source: &'a Source,
    floor: i32,
    open: Vec<OwnedFd>,
    /// By file id: its number, or why it is none to map.
    known: Vec<(u32, Result<u64, String>)>,
    pages: u64,
}

impl<'a> Files<'a> {
    /// No file yet but that of the pages. Numbers begin at `floor`.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn new(source: &'a Source, floor: i32, pages: &File) -> std::io::Result<Self> {
        let mut files = Self { source, floor, open: Vec::new(), known: Vec::new(), pages: 0 };
        files.pages = u64::from(files.keep(pages)?.unsigned_abs());
        Ok(files)
    }

    /// Keeps a copy of this open; gives its number.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn keep(&mut self, file: impl AsFd) -> std::io::Result<i32> {
        let fd = above(file.as_fd(), self.floor)?;
        let number = fd.as_raw_fd();
        self.open.push(fd);
        Ok(number)
    }

    /// All that is open.
    pub(super) fn into_open(self) -> Vec<OwnedFd> {
        self.open
    }

    /// Opens a file by its path, with the checks that CRIU makes of it.
    fn open(&mut self, id: u32) -> Result<u64, String> {
        let entry = self.source.files.get(id).and_then(|entry| entry.regular.as_deref());
        let entry = entry.ok_or("a mapped file has no path in the image")?;
        let path = entry.path();
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() || entry.size.is_some_and(|size| size != meta.len()) {
            return Err(format!("{} has another size than when it was dumped", path.display()));
        }
        if entry.mode.is_some_and(|mode| mode != meta.mode()) {
            return Err(format!("{} has another mode than when it was dumped", path.display()));
        }
        let number = self.keep(&file).map_err(failed)?;
        Ok(u64::from(number.unsigned_abs()))
    }
}

impl Backing for Files<'_> {
    fn file(&mut self, id: u32) -> Result<u64, String> {
        if let Some((_, known)) = self.known.iter().find(|(known, _)| *known == id) {
            return known.clone();
        }
        let opened = self.open(id);
        self.known.push((id, opened.clone()));
        opened
    }

    fn pages(&self) -> u64 {
        self.pages
    }
}
