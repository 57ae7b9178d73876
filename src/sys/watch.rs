//! What inotify(7) watches are made again of: file handles, and the number of the next watch.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Most bytes of a handle: `MAX_HANDLE_SZ` of name_to_handle_at(2).
const LONGEST_HANDLE: usize = 128;
/// ioctl(2) of an inotify instance, for kernels that can checkpoint (`include/uapi/linux/inotify.h`).
const INOTIFY_IOC_SETNEXTWD: libc::c_ulong = 0x4004_4900;

/// `struct file_handle` with room for any handle.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; LONGEST_HANDLE],
}

/// Opens what a handle refers to, on the file system that `mount` is on, as a mere path: open_by_handle_at(2), which
/// needs CAP_DAC_READ_SEARCH.
///
/// # Errors
/// `InvalidInput` for a handle that is too long; else the kernel's own, `ESTALE` when there is no such file any more.
pub fn open_by_handle(mount: impl AsFd, kind: i32, handle: &[u8]) -> io::Result<OwnedFd> {
    let mut wanted = Handle { bytes: 0, kind, handle: [0; LONGEST_HANDLE] };
    let place = wanted.handle.get_mut(..handle.len()).ok_or(io::ErrorKind::InvalidInput)?;
    place.copy_from_slice(handle);
    wanted.bytes = u32::try_from(handle.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mount = mount.as_fd().as_raw_fd();
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the structure is laid out as the kernel's, and is as long as it says; the kernel only reads it.
    let fd = unsafe { libc::open_by_handle_at(mount, (&raw mut wanted).cast(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a number that the kernel has just returned is open and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the next watch of an inotify instance get this number.
///
/// # Errors
/// The kernel's own: `EINVAL` for a number that no watch has, `ENOTTY` where the kernel is not built to checkpoint.
pub fn set_next_watch(inotify: impl AsFd, number: i32) -> io::Result<()> {
    let fd = inotify.as_fd().as_raw_fd();
    // SAFETY: the argument of this request is a number, and no memory is touched.
    let result = unsafe { libc::ioctl(fd, INOTIFY_IOC_SETNEXTWD, libc::c_long::from(number)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_is_too_long_or_unknown_is_an_error() {
        let root = std::fs::File::open("/").unwrap();
        let error = open_by_handle(&root, 1, &[0; LONGEST_HANDLE + 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(open_by_handle(&root, 77, &[0; 8]).is_err());
    }
}
