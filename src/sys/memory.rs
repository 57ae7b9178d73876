//! The allocator of the C library.

/// Gives freed memory back to the kernel, so that the image does not carry it: `malloc_trim(3)`. Does nothing
/// with other C libraries, and nothing for other allocators.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the locks of the arenas itself and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
