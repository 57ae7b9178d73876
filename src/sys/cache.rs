//! The page cache: what of a file is in memory already.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// cachestat(2), Linux 6.5, under its number on all architectures.
const CACHESTAT: libc::c_long = 451;
const PAGE: u64 = 4096;

/// `struct cachestat_range`: 0 bytes mean up to the end.
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

/// `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Cached {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether all of a file is in the page cache.
///
/// # Errors
/// The kernel's own: `ENOSYS` before Linux 6.5.
pub fn is_cached(file: &File) -> io::Result<bool> {
    let whole = Range { start: 0, len: 0 };
    let mut found = Cached::default();
    // SAFETY: both structures are laid out as the kernel has them, and live during the call.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const whole, &raw mut found, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.cached >= file.metadata()?.len().div_ceil(PAGE))
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    #[test]
    fn what_was_just_written_is_cached_and_a_hole_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        match is_cached(&file) {
            Ok(cached) => assert!(cached),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS)),
        }
        file.rewind().unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(!is_cached(&file).unwrap_or(false));
    }
}
