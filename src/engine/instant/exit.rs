//! The way out of the restorer: code of the restored process itself, so that no page of the restorer has to stay
//! mapped until its last instruction, nor after it.
//!
//! A thread makes its last system call through `syscall; ret`, and returns to the code that ends signal handlers,
//! which takes all registers from the frame on its stack. Both are in the C library of every program that has
//! installed a signal handler.

use std::fs::File;
use std::os::unix::fs::FileExt;

use criu_images::{PAGE_SIZE, Vma, VmaStatus};

use super::memory::Layout;
use super::source::Source;

/// What signal handlers return to: `mov $15, %rax; syscall`, as glibc and musl have it.
const RETURN_FROM_SIGNAL: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
/// `syscall; ret`.
const CALL_AND_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];
/// Bytes of a mapping that are searched at a time, and how many times: C libraries have it early.
const STEP: usize = 128 * 1024;
const STEPS: usize = 32;

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
        if let Some(gadget) = search(&file, vma).filter(|gadget| !changed(source, *gadget)) {
            return Some(Code { return_to, gadget });
        }
    }
    None
}

/// Whether the image has a page of its own around this address: then the file does not say what is there. CRIU
/// itself causes some, by the system calls that it has a process make.
fn changed(source: &Source, address: u64) -> bool {
    let near = address..address + PAGE_SIZE;
    source.pagemap.extents().iter().any(|extent| extent.vaddr < near.end && near.start < extent.end())
}

/// The file of a mapping that holds code.
fn mapped(source: &Source, vma: &Vma) -> Option<File> {
    let executable = vma.prot & libc::PROT_EXEC.cast_unsigned() != 0;
    let id = vma.file_id().filter(|_| executable && vma.area().contains(VmaStatus::FILE_PRIVATE))?;
    File::open(source.path(id)?).ok()
}

fn search(file: &File, vma: &Vma) -> Option<u64> {
    let overlap = CALL_AND_RETURN.len() - 1;
    let mut bytes = vec![0; STEP + overlap];
    for number in 0..STEPS {
        let skipped = (number * STEP) as u64;
        let left = usize::try_from(vma.len().saturating_sub(skipped)).ok()?;
        let wanted = bytes.len().min(left);
        let got = file.read_at(&mut bytes[..wanted], vma.offset + skipped).ok()?;
        let found = bytes[..got].windows(CALL_AND_RETURN.len()).position(|window| window == CALL_AND_RETURN);
        if let Some(found) = found {
            return Some(vma.start + skipped + found as u64);
        }
        if got < bytes.len() {
            return None;
        }
    }
    None
}
