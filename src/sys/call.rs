//! System calls for code that runs in the middle of an allocator: no allocation, no lock, and `errno` stays as it
//! is, since the C library's own functions leave it alone when they succeed.

use std::ffi::{c_int, c_long, c_void};

/// Bytes of a page; x86-64 has no other.
pub(super) const PAGE: usize = 4096;

/// Makes a system call; gives its result, or the error number.
///
/// # Safety
/// As the call itself.
pub(super) unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: it takes nothing and gives an address.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address of this thread's errno is valid for as long as the thread lives.
    let errno = unsafe { &mut *errno };
    let before = *errno;
    // SAFETY: the caller vouches for number and arguments.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 {
        return Err(std::mem::replace(errno, before));
    }
    Ok(result.cast_unsigned() as usize)
}

/// Leaves an error number in `errno`, as the C library's functions do.
pub(super) fn set_errno(number: c_int) {
    // SAFETY: the address of this thread's errno is valid for as long as the thread lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above, and nobody else writes to it.
    unsafe { errno.write(number) };
}

/// What mmap(2) is to make: private memory that belongs to no file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fresh {
    /// Where, or 0 for anywhere.
    pub(super) at: usize,
    pub(super) len: usize,
    /// As `PROT_*`.
    pub(super) protection: usize,
    /// `MAP_FIXED`, `MAP_FIXED_NOREPLACE` or 0.
    pub(super) placement: c_int,
}

/// Maps fresh memory; gives its address. It is accounted for, as what is around it mostly is, so that the kernel
/// can make one mapping of both.
///
/// # Safety
/// With `MAP_FIXED`, whatever was there is gone.
pub(super) unsafe fn map(fresh: Fresh) -> Result<usize, c_int> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fresh.placement;
    let flags = flags.cast_unsigned() as usize;
    let arguments = [fresh.at, fresh.len, fresh.protection, flags, usize::MAX, 0];
    // SAFETY: by the contract of this function.
    unsafe { call(libc::SYS_mmap, arguments) }
}

/// This address rounded up to a page; `None` past the end of the address space.
pub(super) fn page_up(address: usize) -> Option<usize> {
    address.checked_next_multiple_of(PAGE)
}

/// Whether this is the address of a page.
pub(super) fn is_page(address: *mut c_void) -> bool {
    address.addr().is_multiple_of(PAGE)
}
