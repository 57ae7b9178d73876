//! Where large blocks of the C library's allocator begin: a restore that maps the image keeps them from being
//! extended into it.
//!
//! glibc's malloc gives each block from 128 KiB on (more, once it has seen larger ones) a mapping of its own, with
//! a head of two words at the start of a page: 0, and the size with the second of the three lowest bits set
//! (malloc.c, `sysmalloc_mmap`: `struct malloc_chunk` and `IS_MMAPPED`). The kernel merges such mappings with
//! their neighbours, so the list of mappings does not tell. A page that only looks like such a head costs a restore
//! some microseconds and nothing else. Blocks of memalign(3) have their head elsewhere; C code that hands one
//! to realloc, which Rust's does not, is not seen to.

use std::fs::File;
use std::os::unix::fs::FileExt;

use criu_images::{ImageDir, PAGE_SIZE, Process, VmaStatus};

use super::{DescribeError, failed, is_alive};

/// More than so many blocks there cannot be: M_MMAP_MAX of mallopt(3).
const LIMIT: usize = 65_536;
const WORD: usize = size_of::<u64>();
/// The three lowest bits of a size are flags; of these, a block with a mapping of its own has this one.
const FLAGS: u64 = 7;
const OWN_MAPPING: u64 = 2;

/// The first pages of such blocks, by address.
///
/// # Errors
/// What cannot be read.
pub(super) fn seams(dir: &ImageDir, tree: &[Process]) -> Result<Vec<u64>, DescribeError> {
    let mut seams = Vec::new();
    // Only images of one process are mapped.
    let [process] = tree else { return Ok(seams) };
    if !is_alive(&dir.core(process.pid)?) {
        return Ok(seams);
    }
    let (memory, pagemap) = (dir.mm(process.pid)?, dir.pagemap(process.pid)?);
    let path = dir.path().join(pagemap.pages_file());
    let pages = File::open(&path).map_err(|source| failed("open", &path, source))?;
    let elsewhere = VmaStatus::HEAP | VmaStatus::STACK;
    let candidates = |area: VmaStatus| area.contains(VmaStatus::ANON_PRIVATE) && !area.intersects(elsewhere);
    for vma in memory.vmas.iter().filter(|vma| candidates(vma.area())) {
        let extents = pagemap.extents();
        let first = extents.partition_point(|extent| extent.end() <= vma.start);
        for extent in extents[first..].iter().take_while(|extent| extent.vaddr < vma.end) {
            let Some(offset) = extent.file_offset else { continue };
            let (start, end) = (extent.vaddr.max(vma.start), extent.end().min(vma.end));
            for page in (start..end).step_by(PAGE_SIZE as usize) {
                let mut head = [0; 2 * WORD];
                pages
                    .read_exact_at(&mut head, offset + (page - extent.vaddr))
                    .map_err(|source| failed("read", &path, source))?;
                if is_head(head, vma.end - page) && seams.len() < LIMIT {
                    seams.push(page);
                }
            }
        }
    }
    seams.sort_unstable();
    Ok(seams)
}

/// Whether a block with a mapping of its own begins so, with that much room.
fn is_head(head: [u8; 2 * WORD], room: u64) -> bool {
    let word =
        |at: usize| head[at..at + WORD].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let (before, size) = (word(0), word(WORD));
    let len = size & !FLAGS;
    before == 0 && size & FLAGS == OWN_MAPPING && len > 0 && len.is_multiple_of(PAGE_SIZE) && len <= room
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(before: u64, size: u64) -> [u8; 2 * WORD] {
        let mut head = [0; 2 * WORD];
        head[..WORD].copy_from_slice(&before.to_le_bytes());
        head[WORD..].copy_from_slice(&size.to_le_bytes());
        head
    }

    #[test]
    fn heads_are_told_from_other_contents() {
        assert!(is_head(head(0, 0x2_1002), 0x2_1000));
        assert!(!is_head(head(0, 0x2_1002), 0x2_0000), "longer than its mapping");
        assert!(!is_head(head(16, 0x2_1002), 0x3_0000), "something is before it");
        assert!(!is_head(head(0, 0x2_1001), 0x3_0000), "a block of the heap");
        assert!(!is_head(head(0, 0x2_1812), 0x3_0000), "no whole pages");
        assert!(!is_head(head(0, 2), 0x3_0000), "nothing");
        assert!(!is_head(head(u64::MAX, u64::MAX), 0x3_0000));
    }

    #[test]
    #[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
    fn the_c_librarys_own_blocks_begin_so() {
        // The test program's allocator is the C library's. Blocks this large always have a mapping.
        let block = vec![1_u8; 64 << 20];
        let memory = File::open("/proc/self/mem").unwrap();
        let mut found = [0; 2 * WORD];
        let at = block.as_ptr().addr() as u64 & !(PAGE_SIZE - 1);
        memory.read_exact_at(&mut found, at).unwrap();
        assert!(is_head(found, u64::MAX), "{found:x?}");
    }
}
