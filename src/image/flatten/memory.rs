//! What becomes of an address space whose pages are spread over several images, when it becomes whole.
//!
//! Decides only. A private mapping of an ancestor's pages file was anonymous memory before it was mapped from there,
//! and becomes that again: its pages are those of the file, but for those that the image itself has.

use criu_images::{Memory, PAGE_SIZE, PageFlags, Pagemap, Run, Vma, VmaStatus};

/// Pages of one record: CRIU cuts its own at 1 MiB too, so that no reader meets what it has not met before.
const RECORD_PAGES: u64 = 256;

/// Where the contents of pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// In the image's own pages file.
    Own,
    /// In a file that was mapped, by its id in the file table.
    Mapped(u32),
}

/// A run of pages with its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) run: Run,
    pub(super) origin: Origin,
    /// Where the contents begin there, in bytes.
    pub(super) offset: u64,
}

impl Piece {
    fn end(&self) -> u64 {
        self.run.vaddr + self.len()
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.run.pages * PAGE_SIZE
    }
}

/// Makes the mappings of these files anonymous, and says where each page of the process then is, by ascending
/// address. `size_of` gives the size of a file that is to vanish, `None` for any other. `None` if there is nothing
/// to do.
pub(super) fn flatten(
    memory: &mut Memory,
    pagemap: &Pagemap,
    size_of: impl Fn(u32) -> Option<u64>,
) -> Option<Vec<Piece>> {
    let mut pieces: Vec<Piece> = pagemap.extents().iter().filter_map(own).collect();
    let mut covered: Vec<(u64, u64)> = pieces.iter().map(|piece| (piece.run.vaddr, piece.end())).collect();
    // What lies under a guard was given back, and reads as zeros if the guard is taken away.
    let guards = memory.vmas.iter().filter(|vma| vma.area().contains(VmaStatus::GUARD));
    covered.extend(guards.map(|vma| (vma.start, vma.end)));
    covered.sort_unstable();
    let heap = memory.start_brk..memory.brk;
    let mut found = false;
    for vma in &mut memory.vmas {
        let private = vma.area().contains(VmaStatus::FILE_PRIVATE);
        let Some(id) = vma.file_id().filter(|_| private) else { continue };
        let Some(size) = size_of(id) else { continue };
        found = true;
        // Pages beyond the end of the file could never be read.
        let contents = size.saturating_sub(vma.offset) / PAGE_SIZE * PAGE_SIZE;
        let filled = (vma.start, vma.end.min(vma.start.saturating_add(contents)));
        for (start, end) in gaps(filled, &covered) {
            fill(vma, id, start, end, &mut pieces);
        }
        make_anonymous(vma, &heap);
    }
    pieces.sort_by_key(|piece| piece.run.vaddr);
    found.then_some(pieces)
}

fn own(extent: &criu_images::Extent) -> Option<Piece> {
    let run = Run { vaddr: extent.vaddr, pages: extent.pages, flags: extent.flags };
    extent.file_offset.map(|offset| Piece { run, origin: Origin::Own, offset })
}

/// The parts of a range that none of these sorted ranges covers.
fn gaps((start, end): (u64, u64), covered: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut at = start;
    for &(from, to) in covered {
        if from >= end || at >= end {
            break;
        }
        if from > at {
            gaps.push((at, from));
        }
        at = at.max(to);
    }
    if at < end {
        gaps.push((at, end));
    }
    gaps
}

fn fill(vma: &Vma, id: u32, start: u64, end: u64, pieces: &mut Vec<Piece>) {
    let mut at = start;
    while at < end {
        let pages = ((end - at) / PAGE_SIZE).min(RECORD_PAGES);
        let run = Run { vaddr: at, pages, flags: flags(vma) };
        pieces.push(Piece { run, origin: Origin::Mapped(id), offset: vma.offset + (at - vma.start) });
        at += pages * PAGE_SIZE;
    }
}

/// As CRIU flags anonymous pages: they may come on demand, unless they are locked (`vma_entry_can_be_lazy`).
fn flags(vma: &Vma) -> PageFlags {
    let locked = vma.flags & libc::MAP_LOCKED.cast_unsigned() != 0;
    if locked { PageFlags::PRESENT } else { PageFlags::PRESENT | PageFlags::LAZY }
}

/// What the mapping is no more is cleared, all else stays: CRIU writes an anonymous mapping with no object, no offset
/// and no flags of a file, and marks what the kernel calls the heap.
fn make_anonymous(vma: &mut Vma, heap: &std::ops::Range<u64>) {
    let mut area = (vma.area() - VmaStatus::FILE_PRIVATE) | VmaStatus::ANON_PRIVATE;
    area.set(VmaStatus::HEAP, vma.start < heap.end && vma.end > heap.start);
    vma.status = area.bits();
    vma.flags |= libc::MAP_ANONYMOUS.cast_unsigned();
    (vma.object, vma.offset, vma.fdflags) = (0, 0, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u32 = 7;

    fn vma(pages: std::ops::Range<u64>, status: VmaStatus, object: u32) -> Vma {
        Vma {
            start: pages.start * PAGE_SIZE,
            end: pages.end * PAGE_SIZE,
            offset: 3 * PAGE_SIZE,
            object: object.into(),
            flags: (libc::MAP_PRIVATE | libc::MAP_NORESERVE).cast_unsigned(),
            status: (VmaStatus::REGULAR | status).bits(),
            fd: -1,
            fdflags: Some(0),
            ..Vma::default()
        }
    }

    fn run(start: u64, pages: u64, flags: PageFlags) -> Run {
        Run { vaddr: start * PAGE_SIZE, pages, flags }
    }

    /// Address, pages and origin with offset of each piece, all in pages.
    fn short(pieces: &[Piece]) -> Vec<(u64, u64, Option<u32>, u64)> {
        let origin = |piece: &Piece| match piece.origin {
            Origin::Own => None,
            Origin::Mapped(id) => Some(id),
        };
        pieces
            .iter()
            .map(|p| (p.run.vaddr / PAGE_SIZE, p.run.pages, origin(p), p.offset / PAGE_SIZE))
            .collect()
    }

    #[test]
    fn changed_pages_lie_over_those_of_the_file() {
        let mut memory = Memory {
            vmas: vec![
                vma(0..4, VmaStatus::ANON_PRIVATE, 0),
                vma(10..20, VmaStatus::FILE_PRIVATE, FILE),
                vma(30..31, VmaStatus::FILE_PRIVATE, FILE + 1),
                vma(40..42, VmaStatus::FILE_SHARED, FILE),
            ],
            ..Memory::default()
        };
        let before = memory.clone();
        let present = PageFlags::PRESENT;
        let map = Pagemap::of(1, [run(1, 2, present), run(9, 2, present), run(14, 1, present)]).unwrap();
        let pieces = flatten(&mut memory, &map, |id| (id == FILE).then_some(100 * PAGE_SIZE)).unwrap();
        assert_eq!(
            short(&pieces),
            [
                (1, 2, None, 0),
                (9, 2, None, 2),
                (11, 3, Some(FILE), 4),
                (14, 1, None, 4),
                (15, 5, Some(FILE), 8)
            ]
        );
        assert!(
            pieces[2].run.flags == PageFlags::PRESENT | PageFlags::LAZY && pieces[3].run.flags == present
        );
        let changed = &memory.vmas[1];
        assert_eq!(changed.area(), VmaStatus::REGULAR | VmaStatus::ANON_PRIVATE);
        assert_eq!(
            changed.flags,
            (libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_ANONYMOUS).cast_unsigned()
        );
        assert_eq!((changed.object, changed.offset, changed.fdflags, changed.fd), (0, 0, None, -1));
        assert_eq!((changed.start, changed.end), (before.vmas[1].start, before.vmas[1].end));
        for other in [0, 2, 3] {
            assert_eq!(memory.vmas[other], before.vmas[other]);
        }
    }

    #[test]
    fn what_is_whole_stays_as_it_is() {
        let mut memory =
            Memory { vmas: vec![vma(10..20, VmaStatus::FILE_PRIVATE, FILE)], ..Memory::default() };
        let before = memory.clone();
        let map = Pagemap::of(1, [run(11, 1, PageFlags::PRESENT)]).unwrap();
        assert_eq!(flatten(&mut memory, &map, |_| None), None);
        assert_eq!(memory, before);
    }

    #[test]
    fn the_heap_is_marked_and_guards_and_ends_of_files_are_not_filled() {
        let guard = Vma { status: VmaStatus::GUARD.bits(), ..vma(12..14, VmaStatus::empty(), 0) };
        let mut memory = Memory {
            start_brk: 5 * PAGE_SIZE,
            brk: 11 * PAGE_SIZE,
            vmas: vec![vma(10..20, VmaStatus::FILE_PRIVATE, FILE), guard],
            ..Memory::default()
        };
        let map = Pagemap::of(1, []).unwrap();
        let pieces = flatten(&mut memory, &map, |_| Some(9 * PAGE_SIZE)).unwrap();
        assert_eq!(short(&pieces), [(10, 2, Some(FILE), 3), (14, 2, Some(FILE), 7)]);
        assert!(memory.vmas[0].area().contains(VmaStatus::HEAP));
        let mut beyond =
            Memory { vmas: vec![vma(10..20, VmaStatus::FILE_PRIVATE, FILE)], ..Memory::default() };
        assert_eq!(flatten(&mut beyond, &map, |_| Some(PAGE_SIZE)), Some(Vec::new()));
    }

    #[test]
    fn long_runs_are_cut_as_criu_cuts_them_and_locked_ones_are_not_lazy() {
        let mut locked = vma(0..600, VmaStatus::FILE_PRIVATE, FILE);
        locked.flags |= libc::MAP_LOCKED.cast_unsigned();
        let mut memory = Memory { vmas: vec![locked], ..Memory::default() };
        let map = Pagemap::of(1, []).unwrap();
        let pieces = flatten(&mut memory, &map, |_| Some(u64::MAX)).unwrap();
        assert_eq!(
            short(&pieces),
            [(0, 256, Some(FILE), 3), (256, 256, Some(FILE), 259), (512, 88, Some(FILE), 515)]
        );
        assert!(pieces.iter().all(|piece| piece.run.flags == PageFlags::PRESENT));
    }

    #[test]
    fn gaps_are_what_is_not_covered() {
        assert_eq!(gaps((10, 20), &[]), [(10, 20)]);
        assert_eq!(gaps((10, 20), &[(0, 10), (12, 13), (13, 15), (19, 30)]), [(10, 12), (15, 19)]);
        assert_eq!(gaps((10, 20), &[(5, 25)]), []);
        assert_eq!(gaps((10, 10), &[]), []);
    }
}
