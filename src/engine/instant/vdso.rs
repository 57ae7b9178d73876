//! The vDSO and its data pages, which the kernel maps into every program at an address of its own choice: where a
//! restored process expects them, and whether they are the same.

use std::fs::File;
use std::os::unix::fs::FileExt;

use criu_images::{Vma, VmaStatus};
use criu_restorer::plan::Move;

use super::source::Source;
use super::support::Reasons;

/// What the vDSO of another build could be found out by; no build so far has more.
const LARGEST: u64 = 64 * 1024;

/// Moves of the kernel's mappings to where the image has them. What keeps them from fitting is a reason against.
pub(super) fn moves(source: &Source, reasons: &mut Reasons) -> [Move; 3] {
    let none = [Move::default(); 3];
    let of = |status: VmaStatus| {
        let mut found = source.memory.vmas.iter().filter(move |vma| vma.area().contains(status));
        let first = found.next()?;
        Some((first.start, found.next_back().unwrap_or(first).end))
    };
    let (Some(code), Some(data)) = (of(VmaStatus::VDSO), of(VmaStatus::VVAR)) else {
        reasons.add("the image has no vDSO with data pages".to_owned());
        return none;
    };
    let Some(own) = own_parts() else {
        reasons.add("the kernel maps no vDSO that is known here".to_owned());
        return none;
    };
    let Some((_, vdso_start, vdso_len)) = own.last().copied() else { return none };
    let first = own.first().map_or(vdso_start, |(_, start, _)| *start);
    let same_layout = code.1 - code.0 == vdso_len
        && data.1 - data.0 == vdso_start - first
        && code.0.wrapping_sub(data.0) == vdso_start - first;
    reasons.add_if(!same_layout, "the vDSO or its data pages have another layout");
    if !same_layout || vdso_len > LARGEST {
        return none;
    }
    reasons.add_if(!same_code(source, code.0, vdso_start, vdso_len), "the vDSO is of another build");
    let mut moves = none;
    for (place, (_, start, len)) in moves.iter_mut().zip(own) {
        let offset = start.wrapping_sub(vdso_start);
        *place = Move { offset: offset.cast_signed(), len, target: code.0.wrapping_add(offset) };
    }
    moves
}

/// Name, start and length of each mapping of this process's own, adjacent and with the vDSO last. The restorer's
/// will be laid out in the same way, by the same kernel.
fn own_parts() -> Option<Vec<(&'static str, u64, u64)>> {
    parts_in(&std::fs::read_to_string("/proc/self/maps").ok()?)
}

/// Of proc_pid_maps(5), which is not parsed as a whole: this is on the way of every restore.
fn parts_in(maps: &str) -> Option<Vec<(&'static str, u64, u64)>> {
    let mut parts = Vec::new();
    for line in maps.lines() {
        let named = |name: &&&str| line.ends_with(**name);
        let Some(name) = ["[vvar]", "[vvar_vclock]", "[vdso]"].iter().find(named) else { continue };
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        parts.push((*name, start, u64::from_str_radix(end, 16).ok()?.checked_sub(start)?));
    }
    let adjacent = parts.windows(2).all(|pair| pair[0].1 + pair[0].2 == pair[1].1);
    (adjacent && (2..=3).contains(&parts.len()) && parts.last()?.0 == "[vdso]").then_some(parts)
}

/// Whether the code in the image is that of this kernel: CRIU dumps it for this comparison.
fn same_code(source: &Source, dumped: u64, own: u64, len: u64) -> bool {
    let Some(offset) = source.pagemap.extents().iter().find_map(|extent| {
        let within = extent.vaddr <= dumped && dumped + len <= extent.end();
        extent.file_offset.filter(|_| within).map(|offset| offset + (dumped - extent.vaddr))
    }) else {
        return false;
    };
    let Ok(size) = usize::try_from(len) else { return false };
    let read = |path: &std::path::Path, at: u64| {
        let mut bytes = vec![0; size];
        File::open(path).and_then(|file| file.read_exact_at(&mut bytes, at)).ok().map(|()| bytes)
    };
    let image = read(&source.folder.path().join(source.pagemap.pages_file()), offset);
    image.is_some() && image == read("/proc/self/mem".as_ref(), own)
}

/// Whether a mapping is the kernel's own, so that nothing is mapped for it.
pub(super) fn is_kernels(vma: &Vma) -> bool {
    vma.area().intersects(VmaStatus::VDSO | VmaStatus::VVAR | VmaStatus::VSYSCALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_found_and_must_lie_together() {
        let vvar = "7f00-8000 r--p 00000000 00:00 0                          [vvar]\n";
        let clock = "8000-9000 r--p 00000000 00:00 0                          [vvar_vclock]\n";
        let code = "9000-b000 r-xp 00000000 00:00 0                          [vdso]\n";
        let stack = "1000-2000 rw-p 00000000 00:00 0                          [stack]\n";
        let parts = parts_in(&[stack, vvar, clock, code].concat()).unwrap();
        assert_eq!(
            parts,
            [("[vvar]", 0x7f00, 0x100), ("[vvar_vclock]", 0x8000, 0x1000), ("[vdso]", 0x9000, 0x2000)]
        );
        assert_eq!(parts_in(&[vvar, code].concat()), None);
        assert_eq!(parts_in(stack), None);
        assert!(own_parts().is_some());
    }
}
