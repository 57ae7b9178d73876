//! `madvise(2)` as the program calls it: right for memory that a file stands in for.
//!
//! `MADV_DONTNEED` of anonymous memory gives zeros, and allocators count on that. Of a private mapping of a file it
//! gives the file again: here, what the memory held when it was dumped. So the program gets its own function of
//! this name, which its linker prefers to the C library's, for all objects that are linked into it and all shared
//! libraries. In a process without a [`ledger`] entry it is the plain system call after one load.
//!
//! | advice | on memory that a file stands in for |
//! |---|---|
//! | `MADV_DONTNEED`, `MADV_DONTNEED_LOCKED` | fresh memory takes its place, under the same protection |
//! | `MADV_FREE` | the same: as if the kernel had taken the pages at once, which it may; on a file it is an error |
//! | `MADV_GUARD_INSTALL` | the same, and then the guard: so that nothing shows when it is removed |
//! | `MADV_WIPEONFORK` | `EINVAL`, as for every file |
//! | all others | the kernel's own: they change no contents, or (`MADV_REMOVE`) fail for both |
//!
//! It takes no lock and no memory, may be called from signal handlers and between fork and exec, and does what a
//! program may expect while other threads call it for other addresses: a range that another thread unmaps and maps
//! again meanwhile is as lost as it is with the kernel's. Advice that was given for the memory before (huge pages,
//! `MADV_DONTFORK`) does not pass to the fresh memory. `posix_madvise(3)` needs nothing: the C libraries ignore the
//! one advice that would matter.
//!
//! In a process with an entry, the advice of the table's first lines costs more each time, since it may take several
//! system calls.
//!
//! Not covered, and only right where memory is copied: code that makes the system call by itself (the Go runtime,
//! the crate rustix), io_uring's form of it, and `process_madvise(2)` on the process itself. The C library's own
//! calls, which do not come by here, do not count on zeros: `free` and `malloc_trim` cut off what its calloc clears
//! (see the engine's choice of memory), and a thread's stack that is kept for the next thread is cleared where it
//! matters (thread-local variables: allocatestack.c, get_cached_stack, by `_dl_allocate_tls_init`).

use std::ffi::{c_int, c_void};

use super::areas::{Area, Areas};
use super::call::{self, Fresh};
use super::ledger;

/// In Linux since 5.18 and 6.13; the C library may not know them.
pub(super) const DONTNEED_LOCKED: c_int = 24;
pub(super) const GUARD_INSTALL: c_int = 102;

/// `madvise(2)`.
///
/// # Safety
/// As the system call: pages of the range may lose their contents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let start = address.addr();
    let plain = ledger::is_empty() || !discards(advice) || !call::is_page(address);
    let end = start.checked_add(len).and_then(call::page_up).filter(|end| !plain && *end > start);
    let result = match end {
        // SAFETY: by the contract of this function.
        Some(end) => unsafe { discard(start, end, advice) },
        // SAFETY: by the contract of this function.
        None => unsafe { kernel(start, len, advice) },
    };
    match result {
        Ok(()) => 0,
        Err(errno) => {
            call::set_errno(errno);
            -1
        }
    }
}

fn discards(advice: c_int) -> bool {
    [libc::MADV_DONTNEED, libc::MADV_FREE, DONTNEED_LOCKED, GUARD_INSTALL].contains(&advice)
}

/// The system call.
///
/// # Safety
/// As the system call.
unsafe fn kernel(start: usize, len: usize, advice: c_int) -> Result<(), c_int> {
    // SAFETY: by the contract of this function.
    unsafe { call::call(libc::SYS_madvise, [start, len, advice.cast_unsigned() as usize, 0, 0, 0]) }.map(drop)
}

/// # Safety
/// As for [`madvise`].
unsafe fn discard(start: usize, end: usize, advice: c_int) -> Result<(), c_int> {
    // What the kernel frees is anonymous, so its own discarding is right there. This is how it ends mostly, and
    // opens no descriptor.
    // SAFETY: by the contract: the contents are given up.
    match unsafe { kernel(start, end - start, libc::MADV_FREE) } {
        // Not all of it is anonymous, or some is locked.
        Err(libc::EINVAL) => {}
        result if advice == libc::MADV_FREE => return result,
        // SAFETY: by the contract of this function.
        Ok(()) | Err(libc::ENOMEM) => return unsafe { kernel(start, end - start, advice) },
        result => return result,
    }
    // An error is better than wrong contents.
    let areas = Areas::open().ok_or(libc::ENOMEM)?;
    // As the kernel does, go on behind a hole and tell of it in the end: madvise(2), ENOMEM.
    let mut hole = Ok(());
    let mut at = start;
    while at < end {
        let lent = ledger::next(&areas, at, end)?;
        let stop = lent.map_or(end, |area| area.start);
        if at < stop {
            // SAFETY: by the contract of this function.
            match unsafe { kernel(at, stop - at, advice) } {
                Err(libc::ENOMEM) => hole = Err(libc::ENOMEM),
                result => result?,
            }
        }
        if let Some(area) = lent {
            // SAFETY: the area is within the range.
            unsafe { replace(area, advice) }?;
        }
        at = lent.map_or(end, |area| area.end);
    }
    hole
}

/// Puts fresh memory in the place of an area that a file stands in for.
///
/// # Safety
/// The contents of the area must be given up.
unsafe fn replace(area: Area, advice: c_int) -> Result<(), c_int> {
    if advice != DONTNEED_LOCKED {
        // The kernel discards no locked memory, and refuses this as well; otherwise it only ages pages.
        // SAFETY: this changes no contents.
        unsafe { kernel(area.start, area.len(), libc::MADV_COLD) }?;
    }
    let fresh =
        Fresh { at: area.start, len: area.len(), protection: area.protection, placement: libc::MAP_FIXED };
    // SAFETY: the area is the caller's, and its contents are given up.
    match unsafe { call::map(fresh) } {
        // SAFETY: as above; what is guarded now is the fresh memory.
        Ok(_) if advice == GUARD_INSTALL => unsafe { kernel(area.start, area.len(), advice) },
        Ok(_) => Ok(()),
        // One mapping becomes three, and there may be too many: vm.max_map_count. Nothing has changed then.
        Err(_) if advice == libc::MADV_FREE => Ok(()),
        Err(_) if advice != GUARD_INSTALL && area.protection & libc::PROT_WRITE as usize != 0 => {
            // SAFETY: the area is mapped, writable, and the caller's; its contents are given up.
            unsafe { std::ptr::write_bytes(area.start as *mut u8, 0, area.len()) };
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}
