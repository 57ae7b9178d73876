//! The contents of memory: every byte of two images, with what their files say where the images say nothing.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use criu_images::{Extent, ImageDir, PAGE_SIZE, Vma, VmaStatus};

const PAGE: usize = 4096;
/// MAP_DROPPABLE of mmap(2).
const DROPPABLE: u32 = 8;
/// What may be in dead memory: a signal frame with all registers, at the most.
const FRAME: u64 = PAGE_SIZE;
/// Code may use this much below its stack pointer (System V ABI for x86-64, 3.2.2).
const RED_ZONE: u64 = 128;

/// The memory of a dumped process.
pub struct Contents {
    vmas: Vec<Vma>,
    extents: Vec<Extent>,
    pages: File,
    files: HashMap<u32, PathBuf>,
    opened: HashMap<u32, File>,
}

impl Contents {
    pub fn open(folder: &Path, pid: u32) -> Self {
        let image = ImageDir::open(folder).unwrap();
        let map = image.pagemap(pid).unwrap();
        // Guards lie inside of mappings, and have no pages.
        let mut vmas = image.mm(pid).unwrap().vmas;
        vmas.retain(|vma| !vma.area().contains(VmaStatus::GUARD));
        let table = image.files().unwrap();
        let named = |entry: &criu_images::FileEntry| Some((entry.id, entry.path()?.to_owned()));
        Self {
            vmas,
            extents: map.extents().to_vec(),
            pages: File::open(folder.join(map.pages_file())).unwrap(),
            files: table.entries().iter().filter_map(named).collect(),
            opened: HashMap::new(),
        }
    }

    /// The file that a mapping is of. What has no name is shared memory, which the subjects look at themselves.
    fn path(&self, vma: &Vma) -> Option<&PathBuf> {
        self.files.get(&vma.file_id()?)
    }

    /// Addresses of the pages that are in the image, or in a file that is mapped. All others are clear.
    fn pages_that_say_something(&self) -> BTreeSet<u64> {
        let kernels = VmaStatus::VDSO | VmaStatus::VVAR | VmaStatus::VSYSCALL;
        let known = |vma: &&Vma| !vma.area().intersects(kernels) && vma.flags & DROPPABLE == 0;
        let mapped = |address: &u64| self.vma(*address).is_some_and(|vma| known(&vma));
        let dumped = self.extents.iter().flat_map(|extent| (extent.vaddr..extent.end()).step_by(PAGE));
        let of_files = self.vmas.iter().filter(known).filter(|vma| self.path(vma).is_some());
        let in_files = of_files.flat_map(|vma| (vma.start..vma.end).step_by(PAGE));
        dumped.filter(mapped).chain(in_files).collect()
    }

    fn vma(&self, address: u64) -> Option<&Vma> {
        let index = self.vmas.partition_point(|vma| vma.end <= address);
        self.vmas.get(index).filter(|vma| vma.start <= address)
    }

    fn extent(&self, address: u64) -> Option<&Extent> {
        let index = self.extents.partition_point(|extent| extent.end() <= address);
        self.extents.get(index).filter(|extent| extent.vaddr <= address)
    }

    /// Reads the page at an address. Where there is none, it says so.
    fn page(&mut self, address: u64, page: &mut [u8; PAGE]) -> Result<(), String> {
        page.fill(0);
        if let Some(extent) = self.extent(address) {
            let offset = extent.file_offset.ok_or("a page that is not in the image")?;
            return self
                .pages
                .read_exact_at(page, offset + (address - extent.vaddr))
                .map_err(|error| error.to_string());
        }
        let vma = self.vma(address).ok_or("no mapping")?;
        let Some(id) = vma.file_id() else { return Ok(()) };
        let path = self.files.get(&id).ok_or("a file without a name")?;
        let offset = vma.offset + (address - vma.start);
        let file = self.opened.entry(id).or_insert_with(|| File::open(path).unwrap());
        // Zeros follow the end of a file.
        let mut filled = 0;
        while filled < PAGE {
            match file.read_at(&mut page[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        Ok(())
    }

    /// Whether two images have the same file at this address, with no page of their own.
    fn is_plain_file(&self, address: u64) -> Option<(&Path, u64)> {
        let vma = self.vma(address).filter(|_| self.extent(address).is_none())?;
        Some((self.files.get(&vma.file_id()?)?, vma.offset + (address - vma.start)))
    }
}

/// Where memory may differ: see [`super::explained`].
pub fn dead_ranges(folder: &Path, pid: u32) -> Vec<Range<u64>> {
    let image = ImageDir::open(folder).unwrap();
    let threads = image.pstree().unwrap().remove(0).threads;
    let mut ranges = Vec::new();
    for tid in threads.into_iter().chain([pid]) {
        let core = image.core(tid).unwrap();
        if let Some(rseq) = core.thread.and_then(|thread| thread.rseq) {
            ranges.push(rseq.address..rseq.address + u64::from(rseq.size));
        }
        if let Some(info) = core.thread_info {
            let top = info.general.sp - RED_ZONE;
            ranges.push(top - FRAME..top);
        }
    }
    ranges
}

/// Compares all memory; tells the differences, and how many pages were looked at.
pub fn compare(one: &mut Contents, other: &mut Contents, dead: &[Range<u64>]) -> (Vec<String>, usize) {
    let mut differences = Vec::new();
    let mut count = 0;
    let mut pages = one.pages_that_say_something();
    pages.append(&mut other.pages_that_say_something());
    let (mut left, mut right) = ([0; PAGE], [0; PAGE]);
    for address in pages {
        // Areas have been compared, but for how far a stack has grown.
        if one.vma(address).is_none() || other.vma(address).is_none() {
            continue;
        }
        let plain = one.is_plain_file(address);
        if plain.is_some() && plain == other.is_plain_file(address) {
            continue;
        }
        count += 1;
        let read = one.page(address, &mut left).and_then(|()| other.page(address, &mut right));
        if let Err(what) = read {
            differences.push(format!("page {address:x}: {what}"));
            continue;
        }
        if left == right {
            continue;
        }
        let differs = |offset: &usize| {
            let at = address + *offset as u64;
            left[*offset] != right[*offset] && !dead.iter().any(|range| range.contains(&at))
        };
        let offsets: Vec<usize> = (0..PAGE).filter(differs).collect();
        if let Some(first) = offsets.first() {
            differences.push(format!(
                "{} bytes from {:x} on, the first is {:02x} and {:02x}",
                offsets.len(),
                address + *first as u64,
                left[*first],
                right[*first]
            ));
        }
    }
    (differences, count)
}
