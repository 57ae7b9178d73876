//! The address space: which mappings to make, and how their pages come back.
//!
//! Large pieces of private memory are mapped from the pages file, or left empty for a pager to fill, or, where copying
//! was chosen, read like all the rest: small pieces, stacks, and code.

use std::ops::Range;

use criu_images::{Vma, VmaStatus};
use criu_restorer::plan::{Call, Step, Writer};

use super::fill::{self, Filling};
use super::large::{Large, divide};
use super::layout::{Layout, SPACE_END};
use super::locks;
use super::pager::{self, Run};
use super::plan::{any, exactly};
use super::source::Source;
use super::support::Reasons;
use super::{prefetch, vdso};
use crate::image::working_set::TouchedRun;

/// madvise(2).
const MADV_GUARD_INSTALL: u64 = 102;
/// mmap(2), Linux 6.11: memory that the kernel may take back, which then reads as zeros.
const MAP_DROPPABLE: libc::c_int = 8;
/// What a mapping may be made of beside its kind.
const CARRIED_FLAGS: u32 = (libc::MAP_PRIVATE
    | libc::MAP_SHARED
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_GROWSDOWN
    | libc::MAP_DENYWRITE
    | libc::MAP_LOCKED
    | libc::MAP_EXECUTABLE
    | MAP_DROPPABLE)
    .cast_unsigned();

/// Where the descriptors are that memory comes from.
pub(super) trait Backing {
    /// The number of a descriptor for what a mapping is of, which is opened for it.
    ///
    /// # Errors
    /// Why there is none, as a reason against the restore.
    fn file(&mut self, vma: &Vma) -> Result<u64, String>;
    /// The number of the pages file.
    fn pages(&self) -> u64;
}

/// A piece of memory whose pages are in the pages file, within one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) offset: u64,
    pub(super) vma: usize,
}

/// Memory that comes back.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Calls that make mappings, and have the faults of some told.
    pub(super) maps: Vec<Call>,
    /// How pages are read into them.
    pub(super) filling: Filling,
    /// Calls that do the rest.
    pub(super) calls: Vec<Call>,
    /// Pieces that are mapped, or left to be filled.
    pub(super) large: Vec<Run>,
    /// Where faults are told to the pager.
    pub(super) handled: Vec<Range<u64>>,
}

/// Brings all memory back; of what is mapped, the `wanted` pages at once.
pub(super) fn memory(
    source: &Source,
    layout: &Layout,
    way: Large<'_>,
    wanted: &[TouchedRun],
    backing: &mut dyn Backing,
    writer: &mut Writer,
    reasons: &mut Reasons,
) -> Memory {
    for vma in &source.memory.vmas {
        if let Some(what) = unsupported(vma) {
            reasons.add(format!("the mapping at {:x} is {what}", vma.start));
        }
    }
    locks::check(source, reasons);
    let pieces = pieces(source, layout, reasons);
    let (large, read) = divide(pieces, layout.vmas(), way);
    let mut filled = vec![false; layout.vmas().len()];
    read.iter().for_each(|piece| filled[piece.vma] = true);
    let mut maps = Vec::new();
    for (vma, filled) in layout.vmas().iter().zip(&filled).filter(|(vma, _)| !vdso::is_kernels(vma)) {
        match mapping(vma, *filled, backing) {
            Ok(call) => maps.push(call),
            Err(reason) => reasons.add(reason),
        }
    }
    let pages = backing.pages();
    let mapped = if matches!(way, Large::Mapped(_)) { &large[..] } else { &[] };
    for piece in mapped {
        let vma = &layout.vmas()[piece.vma];
        let prot = u64::from(vma.prot);
        // Accounted for as it was.
        let reserve = vma.flags & libc::MAP_NORESERVE.cast_unsigned();
        let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED).cast_unsigned() | reserve;
        let arguments = [piece.start, piece.len, prot, flags.into(), pages, piece.offset];
        maps.push(exactly(Step::Map, libc::SYS_mmap, &arguments, piece.start));
    }
    let mut handled: Vec<Range<u64>> = Vec::new();
    if let Large::Filled(handing) = way {
        handled
            .extend(large.iter().map(|piece| layout.vmas()[piece.vma].start..layout.vmas()[piece.vma].end));
        handled.dedup();
        // Before anything is read: until its faults are told, the kernel may make a mapping one with its neighbour,
        // and what is read there a huge page with zeros for what is to be filled.
        maps.extend(pager::calls(handing, &handled, writer));
    }
    let small = source.memory.thp_disabled == Some(true);
    let filling = fill::filling(&read, layout.vmas(), small, pages, writer);
    let mut calls = Vec::new();
    for (vma, filled) in layout.vmas().iter().zip(&filled).filter(|(vma, _)| !vdso::is_kernels(vma)) {
        finish(vma, *filled, &mut calls);
    }
    for guard in source.memory.vmas.iter().filter(|vma| vma.area().contains(VmaStatus::GUARD)) {
        let arguments = [guard.start, guard.len(), MADV_GUARD_INSTALL];
        calls.push(any(Step::Protect, libc::SYS_madvise, &arguments));
    }
    let run = |piece: &Piece| Run { start: piece.start, end: piece.start + piece.len, offset: piece.offset };
    let protected = |piece: &Piece| (run(piece), layout.vmas()[piece.vma].prot);
    calls.extend(prefetch::calls(wanted, mapped.iter().map(protected)));
    Memory { maps, filling, calls, large: large.iter().map(run).collect(), handled }
}

/// What a mapping is, if it is nothing that can be made again here.
fn unsupported(vma: &Vma) -> Option<&'static str> {
    let area = vma.area();
    if vma.end > SPACE_END && !area.contains(VmaStatus::VSYSCALL) {
        return Some("beyond the usual address space");
    }
    if vdso::is_kernels(vma) || area.contains(VmaStatus::GUARD) {
        return None;
    }
    for (status, what) in [
        (VmaStatus::ANON_SHARED, "shared memory, as an older CRIU records it"),
        (VmaStatus::SYSVIPC, "system V shared memory"),
        (VmaStatus::SOCKET, "a socket's"),
        (VmaStatus::AIO_RING, "a ring of native asynchronous input and output"),
        (VmaStatus::SHADOW_STACK, "a shadow stack"),
        (VmaStatus::UPROBES, "made for uprobes"),
    ] {
        if area.contains(status) {
            return Some(what);
        }
    }
    let plain = VmaStatus::REGULAR
        | VmaStatus::STACK
        | VmaStatus::HEAP
        | VmaStatus::FILE_PRIVATE
        | VmaStatus::FILE_SHARED
        | VmaStatus::MEMFD
        | VmaStatus::ANON_PRIVATE;
    let kinds = VmaStatus::FILE_PRIVATE | VmaStatus::FILE_SHARED | VmaStatus::ANON_PRIVATE;
    let known = plain.contains(area) && area.intersection(kinds).bits().count_ones() == 1;
    (!known || vma.flags & !CARRIED_FLAGS != 0).then_some("of a kind that is not known here (huge pages)")
}

/// All pages of the image by mapping, in the order of the pages file.
fn pieces(source: &Source, layout: &Layout, reasons: &mut Reasons) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for extent in source.pagemap.extents() {
        let Some(offset) = extent.file_offset else {
            reasons.add(format!("the pages at {:x} are not in the image", extent.vaddr));
            continue;
        };
        let mut at = extent.vaddr;
        let first = layout.vmas().partition_point(|vma| vma.end <= at);
        for (index, vma) in layout.vmas().iter().enumerate().skip(first) {
            if at >= extent.end() || vma.start > at {
                break;
            }
            let end = extent.end().min(vma.end);
            // What may be dropped is: the C library's random numbers to come would be the same in every restore.
            let dropped = vma.flags & MAP_DROPPABLE.cast_unsigned() != 0;
            if vma.area().contains(VmaStatus::FILE_SHARED) {
                reasons.add(format!("the pages at {at:x} are those of a shared mapping"));
            } else if !vdso::is_kernels(vma) && !dropped {
                let piece =
                    Piece { start: at, len: end - at, offset: offset + (at - extent.vaddr), vma: index };
                push(&mut pieces, piece);
            }
            at = end;
        }
        if at < extent.end() {
            reasons.add(format!("the pages at {at:x} belong to no mapping"));
        }
    }
    pieces
}

/// CRIU cuts extents at 1 MiB: what goes on in memory and in the file is one piece.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last)
            if last.vma == piece.vma
                && last.start + last.len == piece.start
                && last.offset + last.len == piece.offset =>
        {
            last.len += piece.len;
        }
        _ => pieces.push(piece),
    }
}

/// Makes one mapping, writable if pages will be read into it.
fn mapping(vma: &Vma, filled: bool, backing: &mut dyn Backing) -> Result<Call, String> {
    let (fd, offset) = match vma.file_id() {
        Some(_) => (backing.file(vma)?, vma.offset),
        None => (u64::MAX, 0),
    };
    let write = if filled { libc::PROT_READ | libc::PROT_WRITE } else { 0 };
    let prot = vma.prot | write.cast_unsigned();
    // CRIU records shared anonymous memory as a file of its own, with the flags that it had (criu/proc_parse.c).
    let anonymous = if fd == u64::MAX { 0 } else { libc::MAP_ANONYMOUS.cast_unsigned() };
    let flags = (vma.flags & CARRIED_FLAGS & !anonymous) | libc::MAP_FIXED_NOREPLACE.cast_unsigned();
    let arguments = [vma.start, vma.len(), prot.into(), flags.into(), fd, offset];
    Ok(exactly(Step::Map, libc::SYS_mmap, &arguments, vma.start))
}

/// Protects and advises on a mapping whose pages are in place.
fn finish(vma: &Vma, filled: bool, calls: &mut Vec<Call>) {
    let write = libc::PROT_WRITE.cast_unsigned();
    if filled && vma.prot & write == 0 {
        let arguments = [vma.start, vma.len(), vma.prot.into()];
        calls.push(any(Step::Protect, libc::SYS_mprotect, &arguments));
    }
    let advice = vma.madv.unwrap_or(0);
    for number in (0..64).filter(|number| advice >> number & 1 != 0) {
        calls.push(any(Step::Protect, libc::SYS_madvise, &[vma.start, vma.len(), number]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::instant::layout::tests::vma;

    #[test]
    fn mappings_of_other_kinds_are_told() {
        assert_eq!(unsupported(&vma(0x1000, 0x2000, 0)), None);
        assert!(unsupported(&vma(0x1000, 0x2000, libc::MAP_HUGETLB)).is_some());
        let kind = |status: VmaStatus| Vma { status: status.bits(), ..vma(0x1000, 0x2000, 0) };
        assert!(unsupported(&kind(VmaStatus::ANON_SHARED)).is_some());
        assert!(unsupported(&kind(VmaStatus::MEMFD)).is_some(), "neither private nor shared");
        assert_eq!(unsupported(&kind(VmaStatus::REGULAR | VmaStatus::MEMFD | VmaStatus::FILE_SHARED)), None);
        assert!(unsupported(&vma(SPACE_END, SPACE_END + 0x1000, 0)).is_some());
    }
}
