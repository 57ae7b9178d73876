//! The files that memory comes from, each opened once, under numbers that the process will not use.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use criu_images::{Vma, VmaStatus};
use rustix::fs::OFlags;

use super::memory::Backing;
use super::shared::{self, SharedMemory};
use super::source::Source;
use crate::sys::descriptors::above;

/// Open files for the restorer.
pub(super) struct Files<'a> {
    source: &'a Source,
    floor: i32,
    open: Vec<OwnedFd>,
    shared: &'a SharedMemory,
    /// By file id and access: its number, or why it is none to map.
    known: Vec<((u32, Access), Result<u64, String>)>,
    pages: u64,
}

/// What the descriptor of a mapped file allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl<'a> Files<'a> {
    /// No file yet but that of the pages. Numbers begin at `floor`.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn new(
        source: &'a Source,
        floor: i32,
        pages: &File,
        shared: &'a SharedMemory,
    ) -> std::io::Result<Self> {
        let mut files = Self { source, floor, open: Vec::new(), shared, known: Vec::new(), pages: 0 };
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

    /// The number of the file with this id, open for reading.
    ///
    /// # Errors
    /// Why it cannot be mapped.
    pub(super) fn readable(&mut self, id: u32) -> Result<u64, String> {
        self.number(id, Access::Read)
    }

    fn number(&mut self, id: u32, access: Access) -> Result<u64, String> {
        if let Some((_, known)) = self.known.iter().find(|(known, _)| *known == (id, access)) {
            return known.clone();
        }
        let opened = match shared::inode(self.source, id) {
            Some(inode) => self.memory(inode, access),
            None => self.by_path(id, access),
        };
        self.known.push(((id, access), opened.clone()));
        opened
    }

    fn memory(&mut self, inode: u32, access: Access) -> Result<u64, String> {
        let missing = "a memory file is not in the image";
        let number = match access {
            Access::Write => self.shared.writable(inode).ok_or(missing)?,
            Access::Read => {
                let file = self.shared.open(inode, OFlags::RDONLY).map_err(|_| missing)?;
                self.keep(&file).map_err(|error| format!("a memory file: {error}"))?
            }
        };
        Ok(u64::from(number.unsigned_abs()))
    }

    /// Opens a file by its path, with the checks that CRIU makes of it.
    fn by_path(&mut self, id: u32, access: Access) -> Result<u64, String> {
        let entry = self.source.files.get(id).and_then(|entry| entry.regular.as_deref());
        let entry = entry.ok_or("a mapped file has no path in the image")?;
        let path = entry.path();
        if self.source.is_nameless(id) {
            return Err(format!("{}, which is mapped, had lost its name", path.display()));
        }
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = File::options().read(true).write(access == Access::Write).open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(format!("{}, which is mapped, is no regular file", path.display()));
        }
        if entry.size.is_some_and(|size| size != meta.len()) {
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
    fn file(&mut self, vma: &Vma) -> Result<u64, String> {
        let id = vma.file_id().ok_or("a mapping is of no file")?;
        // What a shared mapping may be made to allow later depends on the descriptor (mprotect(2)). One that could
        // be written to would keep the seal against writing from being set.
        let opened = OFlags::from_bits_retain(vma.fdflags.unwrap_or(0)) & OFlags::RWMODE == OFlags::RDWR;
        let write = vma.area().contains(VmaStatus::FILE_SHARED)
            && (opened || vma.prot & libc::PROT_WRITE.cast_unsigned() != 0)
            && !shared::inode(self.source, id).is_some_and(|inode| self.shared.is_sealed(inode));
        self.number(id, if write { Access::Write } else { Access::Read })
    }

    fn pages(&self) -> u64 {
        self.pages
    }
}
