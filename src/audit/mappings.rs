//! The mappings of a process that matter to a dump.
//!
//! Reads `/proc/PID/maps` once; never `smaps`, which walks the page tables. It must not judge.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use serde::Serialize;

use super::descriptors::Home;

/// What the kernel appends to the path of a file without a name (`d_path` in `fs/d_path.c`).
const DELETED: &str = " (deleted)";

/// A file, segment or device that is mapped, in one or several pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mapping {
    /// The lowest address of its pieces.
    pub start: u64,
    /// What is mapped.
    pub kind: MappingKind,
    /// Its path, without the kernel's `(deleted)`.
    pub path: String,
    /// Size of the file in bytes; where it may not be asked, the least that the mapping proves.
    pub size: u64,
    /// It is the executable of the process.
    pub executable: bool,
}

/// What is mapped, if it matters. Current files mapped privately and anonymous memory do not: every process
/// has them, and CRIU carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MappingKind {
    /// A file without a name: removed, or replaced by a deploy.
    Deleted,
    /// A file whose name is gone, while another hard link keeps it.
    Elsewhere,
    /// A file that others can change under this process, or that this process changes: mapped shared.
    SharedFile {
        /// This process may write to it.
        writable: bool,
    },
    /// A memfd.
    MemFd,
    /// A System V shared memory segment.
    SysvShm,
    /// The rings of an io_uring.
    IoUring,
    /// A device.
    Device,
    /// Huge pages of hugetlbfs.
    HugePages,
    /// Memory of another kernel object: performance counters, packet rings.
    KernelObject,
}

/// All mappings that matter, by address. Pieces of one file are one entry.
pub(super) fn scan(home: &Home) -> io::Result<Vec<Mapping>> {
    let text = fs::read(home.folder.join("maps"))?;
    let executable = fs::read_link(home.folder.join("exe")).unwrap_or_default();
    let executable = executable.to_string_lossy();
    let mut files: BTreeMap<(String, u64), Option<Mapping>> = BTreeMap::new();
    for piece in String::from_utf8_lossy(&text).lines().filter_map(Piece::parse) {
        let known = files
            .entry((piece.target.to_owned(), piece.inode))
            .or_insert_with(|| mapping(home, &piece, piece.target == executable));
        match known {
            Some(known) => known.add(&piece),
            // A library is mapped privately several times, and its data may be mapped shared as well.
            None if piece.shared => *known = mapping(home, &piece, false),
            None => {}
        }
    }
    let mut mappings: Vec<_> = files.into_values().flatten().collect();
    mappings.sort_by_key(|mapping| mapping.start);
    Ok(mappings)
}

impl Mapping {
    fn add(&mut self, piece: &Piece<'_>) {
        self.size = self.size.max(piece.reach());
        if let MappingKind::SharedFile { writable } = &mut self.kind {
            *writable |= piece.shared && piece.writable;
        }
    }
}

/// The entry for the first piece of a file, if it matters.
fn mapping(home: &Home, piece: &Piece<'_>, executable: bool) -> Option<Mapping> {
    let (path, unnamed) = match piece.target.strip_suffix(DELETED) {
        // A file may be called so.
        Some(_) if fs::symlink_metadata(home.seen(piece.target)).is_ok() => (piece.target, false),
        Some(path) => (path, true),
        None => (piece.target, false),
    };
    let mut size = piece.reach();
    let kind = if path == "anon_inode:[io_uring]" {
        MappingKind::IoUring
    } else if path.starts_with("anon_inode:") {
        MappingKind::KernelObject
    } else if !path.starts_with('/') || (unnamed && carried_unnamed(path)) {
        return None;
    } else if unnamed && path.starts_with("/SYSV") {
        MappingKind::SysvShm
    } else if unnamed && path.starts_with("/memfd:") {
        MappingKind::MemFd
    } else if unnamed && path == "/anon_hugepage" {
        MappingKind::HugePages
    } else if unnamed {
        let meta = open_file(home, piece, executable);
        size = meta.as_ref().map_or(size, Metadata::size);
        if meta.is_some_and(|meta| meta.nlink() > 0) { MappingKind::Elsewhere } else { MappingKind::Deleted }
    } else if is_device(home, path) {
        MappingKind::Device
    } else if piece.shared {
        MappingKind::SharedFile { writable: piece.writable }
    } else {
        return None;
    };
    Some(Mapping { start: piece.start, kind, path: path.to_owned(), size, executable })
}

/// What the kernel calls a deleted file and CRIU knows as its own kind: shared anonymous memory and the rings
/// of asynchronous input and output.
fn carried_unnamed(path: &str) -> bool {
    path == "/dev/zero" || path == "/[aio]"
}

fn is_device(home: &Home, path: &str) -> bool {
    // Only what is below /dev is asked: a question for each library would cost more than all the rest.
    path.starts_with("/dev/")
        && fs::metadata(home.seen(path)).is_ok_and(|meta| {
            let kind = meta.file_type();
            kind.is_char_device() || kind.is_block_device()
        })
}

/// The file itself, though it has no name. The executable's may always be asked, another's only with
/// `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN` (`proc_map_files_get_link` in `fs/proc/base.c`).
fn open_file(home: &Home, piece: &Piece<'_>, executable: bool) -> Option<Metadata> {
    let link = if executable { "exe".to_owned() } else { format!("map_files/{}", piece.range) };
    fs::metadata(home.folder.join(link)).ok()
}

/// One line of `/proc/PID/maps`.
struct Piece<'a> {
    range: &'a str,
    start: u64,
    end: u64,
    offset: u64,
    writable: bool,
    shared: bool,
    inode: u64,
    target: &'a str,
}

impl<'a> Piece<'a> {
    /// Reads `start-end perms offset dev inode   path`; `None` for what has no path.
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let range = words.next()?;
        let (start, end) = range.split_once('-')?;
        let permissions = words.next()?.as_bytes();
        let offset = words.next()?;
        let inode = words.nth(1)?.parse().ok()?;
        let target = words.next()?.trim_start();
        let hex = |number: &str| u64::from_str_radix(number, 16).ok();
        Some(Self {
            range,
            start: hex(start)?,
            end: hex(end)?,
            offset: hex(offset)?,
            writable: permissions.get(1) == Some(&b'w'),
            shared: permissions.get(3) == Some(&b's'),
            inode,
            target: Some(target).filter(|target| !target.is_empty() && !target.starts_with('['))?,
        })
    }

    /// The file is at least this long, in bytes, rounded up to a page.
    fn reach(&self) -> u64 {
        self.offset.saturating_add(self.end.saturating_sub(self.start))
    }
}
