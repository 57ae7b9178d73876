//! Whether the numbers of an image can be a process's at all. What is computed from them later stays in range then,
//! and needs no look of its own.

use criu_images::{Fdinfo, Memory, PAGE_SIZE, VmaStatus};

/// No address is higher, in any mode of paging (arch/x86 TASK_SIZE_MAX, five levels), but for the vsyscall page.
const SPACE_LIMIT: u64 = 1 << 56;
/// No descriptor has a higher number (fs/file.c, `sysctl_nr_open_max`).
const DESCRIPTOR_LIMIT: u32 = 1 << 30;

/// The first thing that cannot be, as a sentence without a full stop.
pub(super) fn defect(memory: &Memory, descriptors: &[Fdinfo]) -> Option<String> {
    let mut free = 0;
    for vma in &memory.vmas {
        let area = vma.area();
        let at = vma.start;
        let limit = if area.contains(VmaStatus::VSYSCALL) { u64::MAX } else { SPACE_LIMIT };
        let aligned = vma.start.is_multiple_of(PAGE_SIZE) && vma.end.is_multiple_of(PAGE_SIZE);
        if vma.start >= vma.end || vma.end > limit || !aligned {
            return Some(format!("the mapping at {at:x} ends at {:x}, which no mapping does", vma.end));
        }
        let reach = vma.offset.checked_add(vma.len());
        if reach.is_none_or(|reach| i64::try_from(reach).is_err()) {
            return Some(format!("the mapping at {at:x} begins at an offset that no file has"));
        }
        // Guards lie inside of other mappings.
        if !area.contains(VmaStatus::GUARD) {
            if vma.start < free {
                return Some(format!("the mapping at {at:x} overlaps the one before"));
            }
            free = vma.end;
        }
    }
    let number = descriptors.iter().map(|descriptor| descriptor.fd).find(|fd| *fd >= DESCRIPTOR_LIMIT)?;
    Some(format!("descriptor {number} has a number that none has"))
}

#[cfg(test)]
mod tests {
    use criu_images::Vma;

    use super::*;

    fn memory(ranges: &[(u64, u64)]) -> Memory {
        let status = (VmaStatus::REGULAR | VmaStatus::ANON_PRIVATE).bits();
        let vma = |(start, end): &(u64, u64)| Vma { start: *start, end: *end, status, ..Vma::default() };
        Memory { vmas: ranges.iter().map(vma).collect(), ..Memory::default() }
    }

    #[test]
    fn what_a_process_has_is_sound() {
        assert_eq!(defect(&memory(&[(0x1000, 0x3000), (0x3000, 0x4000)]), &[]), None);
        let mut guarded = memory(&[(0x1000, 0x9000), (0x2000, 0x3000), (0x9000, 0xa000)]);
        guarded.vmas[1].status |= VmaStatus::GUARD.bits();
        assert_eq!(defect(&guarded, &[]), None);
        let mut vsyscall = memory(&[(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000)]);
        vsyscall.vmas[0].status |= VmaStatus::VSYSCALL.bits();
        assert_eq!(defect(&vsyscall, &[]), None);
    }

    #[test]
    fn numbers_that_cannot_be_are_told() {
        for ranges in [
            &[(0x2000, 0x1000)][..],
            &[(0x1000, 0x1000)],
            &[(0x1001, 0x2000)],
            &[(0x1000, 0xffff_ffff_ffff_f000)],
            &[(0x3000, 0x5000), (0x4000, 0x6000)],
            &[(0x3000, 0x4000), (0x1000, 0x2000)],
        ] {
            assert!(defect(&memory(ranges), &[]).is_some(), "{ranges:x?}");
        }
        let mut far = memory(&[(0x1000, 0x2000)]);
        far.vmas[0].offset = i64::MAX.cast_unsigned() & !0xfff;
        assert!(defect(&far, &[]).is_some());
        let high = Fdinfo { fd: u32::MAX, ..Fdinfo::default() };
        assert!(defect(&memory(&[]), &[high]).is_some());
    }
}
