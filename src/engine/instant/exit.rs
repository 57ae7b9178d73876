//! The way out of the restorer: code of the restored process itself, so that no page of the restorer has to stay
//! mapped until its last instruction, nor after it.
//!
//! A thread makes its last system call through `syscall; ret`, and returns to the code that ends signal handlers,
//! which takes all registers from the frame on its stack. Both are in the C library of every program that has
//! installed a signal handler.

use std::fs::File;
use std::os::unix::fs::FileExt;

use criu_images::{PAGE_SIZE, Vma, VmaStatus};

use super::layout::Layout;
use super::source::Source;

/// What signal handlers return to: `mov $15, %rax; syscall`, as glibc and musl have it.
const RETURN_FROM_SIGNAL: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
/// `syscall; ret`.
const CALL_AND_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];
/// Bytes of a mapping that are searched at a time: what stays in the processor's first cache.
const STEP: usize = 16 * 1024;
/// Most bytes that are searched: C libraries have both close to each other.
const LIMIT: u64 = 8 * 1024 * 1024;

/// Addresses in restored code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    /// Of code that calls rt_sigreturn(2).
    pub(super) return_to: u64,
    /// Of `syscall; ret`.
    pub(super) gadget: u64,
}

/// Finds both, if they are in code that is mapped from a file and was never written to.
pub(super) fn code(source: &Source, layout: &Layout) -> Option<Code> {
    let mut tried = Vec::new();
    for action in source.task.sigactions.iter().filter(|action| action.restorer != 0) {
        let return_to = action.restorer;
        if tried.contains(&return_to) || changed(source, return_to) {
            continue;
        }
        tried.push(return_to);
        let Some((vma, file)) = layout.at(return_to).and_then(|vma| Some((vma, mapped(source, vma)?))) else {
            continue;
        };
        let mut bytes = [0; RETURN_FROM_SIGNAL.len()];
        let at = vma.offset + (return_to - vma.start);
        if file.read_exact_at(&mut bytes, at).is_err() || bytes != RETURN_FROM_SIGNAL {
            continue;
        }
        if let Some(gadget) = search(&file, vma, return_to).filter(|gadget| !changed(source, *gadget)) {
            return Some(Code { return_to, gadget });
        }
    }
    None
}

/// Whether the image has a page of its own around this address: then the file does not say what is there. CRIU
/// itself causes some, by the system calls that it has a process make.
fn changed(source: &Source, address: u64) -> bool {
    let near = address..address.saturating_add(PAGE_SIZE);
    source.pagemap.extents().iter().any(|extent| extent.vaddr < near.end && near.start < extent.end())
}

/// The file of a mapping that holds code.
fn mapped(source: &Source, vma: &Vma) -> Option<File> {
    let executable = vma.prot & libc::PROT_EXEC.cast_unsigned() != 0;
    let id = vma.file_id().filter(|_| executable && vma.area().contains(VmaStatus::FILE_PRIVATE))?;
    File::open(source.path(id)?).ok()
}

/// Looks behind this address first, then before it.
fn search(file: &File, vma: &Vma, near: u64) -> Option<u64> {
    search_between(file, vma, near, vma.end).or_else(|| search_between(file, vma, vma.start, near))
}

fn search_between(file: &File, vma: &Vma, start: u64, end: u64) -> Option<u64> {
    let overlap = CALL_AND_RETURN.len() - 1;
    let mut bytes = [0; STEP];
    let mut at = start;
    while at < end.min(start + LIMIT) {
        let wanted = usize::try_from(end - at).map_or(STEP, |left| left.min(STEP));
        let got = file.read_at(&mut bytes[..wanted], vma.offset + (at - vma.start)).ok()?;
        if let Some(found) = position(&bytes[..got]) {
            return Some(at + found as u64);
        }
        if got < STEP {
            return None;
        }
        at += (STEP - overlap) as u64;
    }
    None
}

/// Where `syscall; ret` begins. Blocks of a fixed size are looked at as a whole and without branches, which the
/// compiler turns into a few instructions for each.
fn position(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 64;
    const OVERLAP: usize = CALL_AND_RETURN.len() - 1;
    let [first, second, third] = CALL_AND_RETURN;
    let mut start = 0;
    while let Some(block) = bytes[start..].first_chunk::<{ BLOCK + OVERLAP }>() {
        let at = |place: usize| {
            (block[place] == first) & (block[place + 1] == second) & (block[place + 2] == third)
        };
        if (0..BLOCK).fold(false, |any, place| any | at(place)) {
            break;
        }
        start += BLOCK;
    }
    let found = bytes[start..].windows(CALL_AND_RETURN.len()).position(|window| window == CALL_AND_RETURN);
    found.map(|found| start + found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file_with(len: usize, places: &[usize]) -> (File, Vma) {
        let mut bytes = vec![0x0f; len];
        places.iter().for_each(|place| bytes[*place..place + 3].copy_from_slice(&CALL_AND_RETURN));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        (file, Vma { start: 0x7000_0000, end: 0x7000_0000 + len as u64, ..Vma::default() })
    }

    #[test]
    fn code_behind_the_address_is_taken_before_code_ahead_of_it() {
        let (file, vma) = file_with(200_000, &[100, 70_000, 150_000]);
        assert_eq!(search(&file, &vma, vma.start + 1000), Some(vma.start + 70_000));
        assert_eq!(search(&file, &vma, vma.start + 160_000), Some(vma.start + 100));
    }

    #[test]
    fn code_across_two_steps_and_at_the_very_end_is_found() {
        for place in [STEP - 1, STEP - 2, 2 * STEP - 3, 3 * STEP - 3, 63, 64, 0] {
            let (file, vma) = file_with(3 * STEP, &[place]);
            assert_eq!(search(&file, &vma, vma.start), Some(vma.start + place as u64), "{place}");
        }
    }

    #[test]
    fn there_may_be_none() {
        let (file, vma) = file_with(100_000, &[]);
        assert_eq!(search(&file, &vma, vma.start + 5), None);
        assert_eq!(position(&[0x0f, 0x05]), None);
        assert_eq!(position(&[]), None);
    }
}
