//! What the files of an image hold: mappings with their pages, and descriptors.
//!
//! It reads page maps and tables, and no page. It must not know how they are shown.

use std::collections::{BTreeMap, BTreeSet};

use criu_images::{FileEntry, FileKind, FileTable, ImageDir, Memfd, Pagemap, ReadError, Vma, VmaStatus};

use super::living;
use super::open::Image;

/// What an image holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Of all processes, by address.
    pub mappings: Vec<Mapping>,
    /// Of all processes, by number.
    pub descriptors: Vec<Descriptor>,
}

/// Mappings of one kind together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// How much of them is in the image, in bytes.
    pub stored: u64,
    /// Their length in bytes.
    pub length: u64,
    /// How many there are.
    pub mappings: usize,
}

/// One mapping of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Of the process.
    pub pid: u32,
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
    /// `PROT_*`.
    pub prot: u32,
    /// `heap`, `anonymous`, `stack`, `file NAME`.
    pub kind: String,
    /// How much of it is in the image, in bytes.
    pub stored: u64,
}

/// One open descriptor of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Of the process.
    pub pid: u32,
    /// Its number.
    pub number: u32,
    /// What it is: `file`, `epoll`, `inet socket`.
    pub kind: String,
    /// Its path or addresses, if it has any.
    pub what: String,
}

/// What mappings are named by.
struct Names {
    files: FileTable,
    memfds: Vec<Memfd>,
}

impl Contents {
    /// Reads them.
    ///
    /// # Errors
    /// When a file of the image is missing or damaged. Nothing was changed.
    pub fn read(image: &Image) -> Result<Self, ReadError> {
        let dir = ImageDir::open(image.path())?;
        let names = Names { files: dir.files()?, memfds: dir.memfds()? };
        let mut contents = Self::default();
        // Processes may share memory or descriptors, and so do the files of the image.
        let (mut memories, mut tables, mut shared) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for pid in living::pids(&dir, &dir.pstree()?)? {
            let ids = dir.ids(pid)?;
            if memories.insert(ids.vm_id) {
                contents.mappings.extend(mappings(&dir, pid, &names, &mut shared)?);
            }
            if tables.insert(ids.files_id) {
                let mut descriptors = dir.fdinfo(ids.files_id)?;
                descriptors.sort_by_key(|descriptor| descriptor.fd);
                contents.descriptors.extend(descriptors.iter().map(|descriptor| {
                    let entry = names.files.get(descriptor.id);
                    let kind = FileKind::try_from(descriptor.kind).unwrap_or(FileKind::Undefined);
                    let what = entry.map(target).unwrap_or_default();
                    Descriptor { pid, number: descriptor.fd, kind: kind.to_string(), what }
                }));
            }
        }
        Ok(contents)
    }

    /// The mappings of each kind together.
    #[must_use]
    pub fn kinds(&self) -> BTreeMap<&str, Sum> {
        let mut kinds: BTreeMap<&str, Sum> = BTreeMap::new();
        for mapping in &self.mappings {
            let sum = kinds.entry(&mapping.kind).or_default();
            sum.stored = sum.stored.saturating_add(mapping.stored);
            sum.length = sum.length.saturating_add(mapping.length);
            sum.mappings += 1;
        }
        kinds
    }
}

fn mappings(
    dir: &ImageDir,
    pid: u32,
    names: &Names,
    shared: &mut BTreeSet<u64>,
) -> Result<Vec<Mapping>, ReadError> {
    let mut vmas = dir.mm(pid)?.vmas;
    vmas.sort_by_key(|vma| vma.start);
    let stored = stored(&vmas, &dir.pagemap(pid)?);
    let mut mappings = Vec::with_capacity(vmas.len());
    for (vma, mut stored) in vmas.iter().zip(stored) {
        // The pages of shared memory are stored once, whoever maps them.
        if let Some(id) = names.shared(vma).filter(|id| shared.insert(*id)) {
            stored = stored.saturating_add(dir.shared_pagemap(id)?.present_bytes());
        }
        mappings.push(Mapping {
            pid,
            start: vma.start,
            length: vma.len(),
            prot: vma.prot,
            kind: names.kind(vma),
            stored,
        });
    }
    Ok(mappings)
}

/// How many bytes of each mapping are in the image. The mappings are by ascending address.
fn stored(vmas: &[Vma], pages: &Pagemap) -> Vec<u64> {
    let mut stored = vec![0; vmas.len()];
    for extent in pages.extents().iter().filter(|extent| extent.is_present()) {
        let first = vmas.partition_point(|vma| vma.end <= extent.vaddr);
        for (vma, sum) in vmas.iter().zip(&mut stored).skip(first) {
            if vma.start >= extent.end() {
                break;
            }
            let length = vma.end.min(extent.end()).saturating_sub(vma.start.max(extent.vaddr));
            *sum = u64::saturating_add(*sum, length);
        }
    }
    stored
}

impl Names {
    fn memfd(&self, vma: &Vma) -> Option<&Memfd> {
        let inode = self.files.get(vma.file_id()?)?.memfd.as_ref()?.inode_id;
        self.memfds.iter().find(|memfd| memfd.inode_id == u64::from(inode))
    }

    /// The number of the page map that a mapping shares with others.
    fn shared(&self, vma: &Vma) -> Option<u64> {
        vma.shared_memory_id().or_else(|| Some(self.memfd(vma)?.shared_memory_id.into()))
    }

    fn kind(&self, vma: &Vma) -> String {
        let area = vma.area();
        if area.contains(VmaStatus::HEAP) {
            return "heap".to_owned();
        }
        if area.contains(VmaStatus::STACK) {
            return "stack".to_owned();
        }
        if area.intersects(VmaStatus::VDSO | VmaStatus::VVAR | VmaStatus::VSYSCALL | VmaStatus::UPROBES) {
            return "the kernel's own".to_owned();
        }
        if let Some(memfd) = self.memfd(vma) {
            return format!("memfd {}", String::from_utf8_lossy(&memfd.name));
        }
        if let Some(id) = vma.file_id() {
            let path = self.files.get(id).and_then(FileEntry::path);
            return path.map_or_else(|| format!("file {id}"), |path| format!("file {}", path.display()));
        }
        let shared = VmaStatus::ANON_SHARED | VmaStatus::SYSVIPC;
        if area.intersects(shared) { "shared memory".to_owned() } else { "anonymous".to_owned() }
    }
}

/// Where a descriptor leads.
fn target(entry: &FileEntry) -> String {
    if let Some(path) = entry.path() {
        return path.display().to_string();
    }
    if let Some(socket) = &entry.inet {
        let local = socket.local().map(|address| address.to_string()).unwrap_or_default();
        return match socket.peer() {
            _ if socket.is_listening() => format!("listens at {local}"),
            Some(peer) if socket.is_established() => format!("{local} to {peer}"),
            _ => local,
        };
    }
    entry.pipe.as_ref().map(|pipe| format!("pipe {}", pipe.pipe_id)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use criu_images::{PageFlags, Run};

    use super::*;

    #[test]
    fn pages_belong_to_the_mappings_that_they_lie_in() {
        let vma = |start, end| Vma { start, end, ..Vma::default() };
        let vmas = [vma(0x1000, 0x4000), vma(0x4000, 0x5000), vma(0x9000, 0xa000)];
        let run = |vaddr, pages, flags| Run { vaddr, pages, flags };
        let runs = [
            run(0x2000, 3, PageFlags::PRESENT),
            run(0x6000, 1, PageFlags::PRESENT),
            run(0x9000, 1, PageFlags::PARENT),
        ];
        let pages = Pagemap::of(1, runs).unwrap();
        assert_eq!(stored(&vmas, &pages), [0x2000, 0x1000, 0]);
    }
}
