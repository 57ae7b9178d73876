//! Memory that is shared: memory files, and anonymous memory that several mappings or processes may have, which
//! CRIU records as memory files too (named `/dev/zero`).
//!
//! Each is made once, so that all mappings and descriptors of it see the same bytes. They are made empty, under
//! numbers that the process will not use, when the plan is written; filled in the new process; and sealed by the
//! plan, when all is mapped, since some seals forbid what mapping and filling take.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use criu_images::{FileKind, Memfd};
use criu_restorer::plan::{Call, Step};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use super::plan::any;
use super::source::Source;
use super::support::Reasons;
use crate::sys::descriptors::above;

/// fcntl(2).
const F_ADD_SEALS: u64 = 1033;
/// Bits of a mode that allow to execute.
const EXECUTE: u32 = 0o111;

/// All shared memory of a process.
#[derive(Debug, Default)]
pub(super) struct SharedMemory {
    objects: Vec<Object>,
}

/// One memory file.
#[derive(Debug)]
struct Object {
    record: Memfd,
    /// Open for reading and writing.
    file: OwnedFd,
    pages: PathBuf,
    extents: Vec<Extent>,
}

/// Bytes of a memory file that are in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    offset: u64,
    len: u64,
    /// Where they are in the pages file.
    from: u64,
}

impl SharedMemory {
    /// Makes all that the image has, empty, from the number `floor` on.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn of(source: &Source, floor: i32, reasons: &mut Reasons) -> io::Result<Self> {
        let mut memory = Self::default();
        for record in &source.memfds {
            match extents(source, record) {
                Ok((pages, extents)) => {
                    let file = above(create(record)?, floor)?;
                    memory.objects.push(Object { record: record.clone(), file, pages, extents });
                }
                Err(what) => reasons.add(format!("{} {what}", shown(record))),
            }
        }
        Ok(memory)
    }

    /// The one that files of the table refer to by this number.
    fn object(&self, inode: u32) -> Option<&Object> {
        self.objects.iter().find(|object| object.record.inode_id == u64::from(inode))
    }

    /// Its number, for mappings that may be written to.
    pub(super) fn writable(&self, inode: u32) -> Option<i32> {
        self.object(inode).map(|object| object.file.as_raw_fd())
    }

    /// Whether it will be sealed against writing, which a mapping that allows it would prevent.
    pub(super) fn is_sealed(&self, inode: u32) -> bool {
        self.object(inode).is_some_and(|object| seals(&object.record).contains(SealFlags::WRITE))
    }

    /// Opens it anew, with a position of its own.
    ///
    /// # Errors
    /// The kernel's own; `NotFound` if the image has none of this number.
    pub(super) fn open(&self, inode: u32, flags: OFlags) -> io::Result<OwnedFd> {
        let number = self.writable(inode).ok_or(io::ErrorKind::NotFound)?;
        let path = format!("/proc/self/fd/{number}");
        Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Brings the bytes back, and has the next program inherit the files. For the new process.
    ///
    /// # Errors
    /// The kernel's own; `UnexpectedEof` when the pages file is too short.
    pub(super) fn fill(&self) -> io::Result<()> {
        self.objects.iter().try_for_each(Object::fill)
    }

    /// The calls that seal them again.
    pub(super) fn calls(&self) -> Vec<Call> {
        let sealed = self.objects.iter().filter(|object| is_sealable(&object.record));
        let wanted = sealed.filter(|object| object.record.seals != 0);
        let call = |object: &Object| {
            let number = u64::from(object.file.as_raw_fd().unsigned_abs());
            any(Step::Protect, libc::SYS_fcntl, &[number, F_ADD_SEALS, object.record.seals.into()])
        };
        wanted.map(call).collect()
    }
}

impl Object {
    fn fill(&self) -> io::Result<()> {
        let Self { record, file, .. } = self;
        rustix::fs::ftruncate(file, record.size)?;
        let pages = if self.extents.is_empty() { None } else { Some(File::open(&self.pages)?) };
        for extent in &self.extents {
            rustix::fs::seek(file, rustix::fs::SeekFrom::Start(extent.offset))?;
            pages.iter().try_for_each(|pages| copy(pages, extent, file))?;
        }
        let meta = File::from(file.try_clone()?).metadata()?;
        if (meta.uid(), meta.gid()) != (record.uid, record.gid) {
            std::os::unix::fs::fchown(file, Some(record.uid), Some(record.gid))?;
        }
        let wanted = record.mode.unwrap_or(meta.mode()) & 0o7777;
        if meta.mode() & 0o7777 != wanted {
            rustix::fs::fchmod(file, Mode::from_raw_mode(wanted))?;
        }
        Ok(rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?)
    }
}

/// Copies an extent to where the file stands, within the kernel.
fn copy(pages: impl AsFd, extent: &Extent, file: impl AsFd) -> io::Result<()> {
    let (mut from, end) = (extent.from, extent.from + extent.len);
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX);
        // `from` is moved on by what was sent.
        if rustix::fs::sendfile(&file, &pages, Some(&mut from), left)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn seals(record: &Memfd) -> SealFlags {
    SealFlags::from_bits_retain(record.seals)
}

/// Whether it was made to be sealed: the others have the seal against seals from the start (memfd_create(2)).
fn is_sealable(record: &Memfd) -> bool {
    seals(record) != SealFlags::SEAL
}

fn create(record: &Memfd) -> io::Result<OwnedFd> {
    let sealing = if is_sealable(record) { MemfdFlags::ALLOW_SEALING } else { MemfdFlags::empty() };
    let flags = MemfdFlags::CLOEXEC | sealing;
    let executable = record.mode.is_none_or(|mode| mode & EXECUTE != 0);
    let kind = if executable { MemfdFlags::EXEC } else { MemfdFlags::empty() };
    match rustix::fs::memfd_create(record.name.as_slice(), flags | kind) {
        // Linux before 6.3 does not know the flag, and makes all of them executable.
        Err(rustix::io::Errno::INVAL) => Ok(rustix::fs::memfd_create(record.name.as_slice(), flags)?),
        made => Ok(made?),
    }
}

/// Where its bytes are.
///
/// # Errors
/// Why not all of them are where they must be, in words that follow its name.
fn extents(source: &Source, record: &Memfd) -> Result<(PathBuf, Vec<Extent>), String> {
    if record.hugetlb_flag.is_some() {
        return Err("is of huge pages".to_owned());
    }
    let map = source.folder.shared_pagemap(record.shared_memory_id.into());
    let map = match map {
        // CRIU writes none for a memory file of no size.
        Err(criu_images::ReadError::Missing { .. }) if record.size == 0 => {
            return Ok((PathBuf::new(), Vec::new()));
        }
        map => map.map_err(|error| format!("has no contents: {error}"))?,
    };
    let mut extents = Vec::new();
    for extent in map.extents() {
        let Some(from) = extent.file_offset else { return Err("has pages in another image".to_owned()) };
        // The last page is there as a whole.
        let Some(len) = record.size.checked_sub(extent.vaddr).map(|left| left.min(extent.len())) else {
            return Err("has pages beyond its end".to_owned());
        };
        extents.push(Extent { offset: extent.vaddr, len, from });
    }
    Ok((source.folder.path().join(map.pages_file()), extents))
}

fn shown(record: &Memfd) -> String {
    match record.name.as_slice() {
        b"/dev/zero" => "shared memory".to_owned(),
        name => format!("memory file {}", String::from_utf8_lossy(name)),
    }
}

/// The memory file that an open file or a mapping is of, by its file id.
pub(super) fn inode(source: &Source, file_id: u32) -> Option<u32> {
    let entry = source.files.get(file_id).filter(|entry| entry.file_kind() == Some(FileKind::Memfd))?;
    entry.memfd.as_deref().map(|file| file.inode_id)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn object(record: Memfd, pages: &[u8], extents: Vec<Extent>) -> (tempfile::TempDir, SharedMemory) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages");
        std::fs::write(&path, pages).unwrap();
        let file = above(create(&record).unwrap(), 3).unwrap();
        (folder, SharedMemory { objects: vec![Object { record, file, pages: path, extents }] })
    }

    fn record(size: u64, seals: SealFlags) -> Memfd {
        Memfd { name: b"x".to_vec(), size, seals: seals.bits(), inode_id: 4, ..Memfd::default() }
    }

    #[test]
    fn its_bytes_size_and_mode_come_back() {
        let pages = [[1; 4096], [2; 4096]].concat();
        let extents =
            vec![Extent { offset: 0, len: 4096, from: 4096 }, Extent { offset: 8192, len: 100, from: 0 }];
        let wanted = Memfd { mode: Some(0o100_640), ..record(8292, SealFlags::empty()) };
        let (_folder, memory) = object(wanted, &pages, extents);
        memory.fill().unwrap();
        let file = File::from(memory.open(4, OFlags::RDONLY).unwrap());
        let meta = file.metadata().unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (8292, 0o640));
        let byte = |at| {
            let mut byte = [9];
            file.read_exact_at(&mut byte, at).unwrap();
            byte[0]
        };
        assert_eq!([byte(0), byte(4095), byte(4096), byte(8192), byte(8291)], [2, 2, 0, 1, 1]);
        assert!(memory.open(5, OFlags::RDONLY).is_err());
    }

    #[test]
    fn a_pages_file_that_is_too_short_is_an_error() {
        let extents = vec![Extent { offset: 0, len: 8192, from: 0 }];
        let (_folder, memory) = object(record(8192, SealFlags::empty()), &[1; 4096], extents);
        assert_eq!(memory.fill().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn seals_are_left_to_the_plan() {
        let seals = SealFlags::WRITE | SealFlags::SEAL;
        let (_folder, memory) = object(record(1, seals), &[], Vec::new());
        memory.fill().unwrap();
        assert!(memory.is_sealed(4) && memory.calls().len() == 1);
        let (_folder, memory) = object(record(1, SealFlags::SEAL), &[], Vec::new());
        assert!(memory.calls().is_empty(), "it has that seal already");
        assert_eq!(rustix::fs::fcntl_get_seals(&memory.objects[0].file).unwrap(), SealFlags::SEAL);
    }
}
