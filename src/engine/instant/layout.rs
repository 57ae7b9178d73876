//! The address space to come: what is mapped where, and where there is room. It must not know how memory comes back.

use criu_images::{PAGE_SIZE, Vma, VmaStatus};

use super::source::Source;

/// Where a hole for the restorer is looked for: far from where the kernel puts programs, heaps and stacks.
const HOLES: std::ops::Range<u64> = 0x1000_0000_0000..0x5000_0000_0000;
/// Programs do not get addresses from here on unless they ask for them (arch/x86 TASK_SIZE_MAX, four levels).
pub(super) const SPACE_END: u64 = 0x7fff_ffff_f000;
/// What the kernel keeps free below a stack, unless it is told otherwise (stack_guard_gap: 256 pages), and a page.
const STACK_GUARD: u64 = 257 * PAGE_SIZE;

/// The address space to come.
#[derive(Debug)]
pub(super) struct Layout {
    vmas: Vec<Vma>,
}

impl Layout {
    pub(super) fn of(source: &Source) -> Self {
        let mut vmas = source.memory.vmas.clone();
        vmas.retain(|vma| !vma.area().intersects(VmaStatus::VSYSCALL | VmaStatus::GUARD));
        vmas.sort_by_key(|vma| vma.start);
        Self { vmas }
    }

    /// The mappings, by address: neither guards nor what belongs to the kernel alone.
    pub(super) fn vmas(&self) -> &[Vma] {
        &self.vmas
    }

    #[cfg(test)]
    pub(super) fn with(vmas: Vec<Vma>) -> Self {
        Self { vmas }
    }

    /// Whether all of this is private memory that can be written, in one mapping or several that lie together: of a
    /// stack, some may have been mapped from an earlier image. Or it grows to it: a stack does so when it is written
    /// below, as for a signal. `longest` is how long a stack may become, in bytes.
    pub(super) fn is_writable(&self, start: u64, end: u64, longest: u64) -> bool {
        let writable = (libc::PROT_READ | libc::PROT_WRITE).cast_unsigned();
        let (mut at, mut below) = (start, 0);
        for vma in &self.vmas {
            let fits = vma.prot & writable == writable
                && vma.area().intersects(VmaStatus::ANON_PRIVATE | VmaStatus::FILE_PRIVATE);
            let free = below + STACK_GUARD <= start && vma.end.saturating_sub(start) <= longest;
            let grows = vma.flags & libc::MAP_GROWSDOWN.cast_unsigned() != 0 && free;
            let grown = grows && at == start && (start..=end).contains(&vma.start);
            if at < end && fits && (grown || (vma.start..vma.end).contains(&at)) {
                at = vma.end;
            }
            below = vma.end;
        }
        at >= end
    }

    /// The mapping at this address.
    pub(super) fn at(&self, address: u64) -> Option<&Vma> {
        self.vmas.iter().find(|vma| (vma.start..vma.end).contains(&address))
    }

    /// Start of a hole of this many bytes.
    pub(super) fn hole(&self, len: u64) -> Option<u64> {
        let mut start = HOLES.start;
        for vma in &self.vmas {
            if vma.end > start && vma.start < start + len {
                start = vma.end;
            }
        }
        (start + len <= HOLES.end).then_some(start)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Private anonymous memory that can be read and written.
    pub(in super::super) fn vma(start: u64, end: u64, flags: libc::c_int) -> Vma {
        let status = VmaStatus::REGULAR | VmaStatus::ANON_PRIVATE;
        Vma {
            start,
            end,
            prot: 3,
            flags: (flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned(),
            status: status.bits(),
            ..Vma::default()
        }
    }

    #[test]
    fn a_hole_is_found_between_mappings() {
        let layout = Layout { vmas: vec![vma(0x1000, 0x2000, 0), vma(HOLES.start, HOLES.start + 0x5000, 0)] };
        assert_eq!(layout.hole(0x10_0000), Some(HOLES.start + 0x5000));
        let full = Layout { vmas: vec![vma(HOLES.start, HOLES.end, 0)] };
        assert_eq!(full.hole(0x1000), None);
    }

    #[test]
    fn room_for_a_frame_is_in_private_memory_that_can_be_written() {
        let of_file = Vma { status: VmaStatus::FILE_PRIVATE.bits(), ..vma(0x3000, 0x4000, 0) };
        let mut layout = Layout { vmas: vec![vma(0x1000, 0x3000, 0), of_file, vma(0x5000, 0x6000, 0)] };
        assert!(layout.is_writable(0x1000, 0x3000, 0));
        assert!(layout.is_writable(0x2000, 0x3800, 0));
        assert!(!layout.is_writable(0x3800, 0x5800, 0), "there is a hole");
        assert!(!layout.is_writable(0x800, 0x2000, 0));
        layout.vmas[1].status = VmaStatus::FILE_SHARED.bits();
        assert!(!layout.is_writable(0x2000, 0x3800, 0));
        layout.vmas[0].prot = 1;
        assert!(!layout.is_writable(0x1000, 0x2000, 0));
    }

    #[test]
    fn a_stack_grows_as_far_as_it_may() {
        let top = 0x100_0000;
        let mut layout =
            Layout { vmas: vec![vma(0x1000, 0x2000, 0), vma(top - 0x2000, top, libc::MAP_GROWSDOWN)] };
        let (start, end) = (top - 0x2800, top - 0x1800);
        assert!(layout.is_writable(start, end, 0x2800));
        assert!(!layout.is_writable(start, end, 0x2000));
        assert!(!layout.is_writable(start, top - 0x2100, 0x2800), "nothing of it is in the stack yet");
        layout.vmas[0].end = start - 0x1000;
        assert!(!layout.is_writable(start, end, 0x2800), "another mapping is too near");
    }
}
