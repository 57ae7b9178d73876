//! Descriptors of this process: closing what was inherited, standing in for the standard ones.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// Closes every descriptor from 3 upwards, except those in `spared`.
///
/// Nothing in this process may own one of them: meant for the first lines of `main`, where the Rust runtime
/// owns none. Uses close_range(2), Linux 5.9.
///
/// # Errors
/// The kernel's own, before anything was closed.
pub fn close_inherited(spared: Option<RangeInclusive<RawFd>>) -> io::Result<()> {
    let close = |first: RawFd, last: libc::c_uint| -> io::Result<()> {
        if last < first.unsigned_abs() {
            return Ok(());
        }
        // SAFETY: the caller vouches that nothing owns these numbers; the call touches no memory.
        let result = unsafe { libc::close_range(first.unsigned_abs(), last, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    match spared {
        None => close(3, libc::c_uint::MAX),
        Some(spared) => {
            let (first, last) = spared.into_inner();
            close(3, first.unsigned_abs().saturating_sub(1))?;
            close(last.saturating_add(1), libc::c_uint::MAX)
        }
    }
}

/// A copy of this descriptor with the lowest free number from `floor` on, close-on-exec.
///
/// # Errors
/// The kernel's own, `InvalidInput` when `floor` is beyond RLIMIT_NOFILE.
pub fn above(descriptor: impl AsFd, floor: RawFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(descriptor, floor)?)
}

/// Makes these, and nothing else, what is open below `floor`, under the numbers given, and not close-on-exec. The
/// descriptors themselves must be at `floor` or above.
///
/// Meant for the last lines before exec(2): whatever this process owned below `floor` is gone.
///
/// # Errors
/// `InvalidInput` when a number or descriptor is on the wrong side of `floor`; else the kernel's own. Nothing that
/// was below `floor` is open then.
pub fn install(table: &[(RawFd, &OwnedFd)], floor: RawFd) -> io::Result<()> {
    let fits = |(number, fd): &(RawFd, &OwnedFd)| (0..floor).contains(number) && fd.as_raw_fd() >= floor;
    if floor < 1 || !table.iter().all(fits) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the caller vouches that nothing below `floor` is used any more; the call touches no memory.
    if unsafe { libc::close_range(0, floor.unsigned_abs() - 1, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for (number, fd) in table {
        // SAFETY: the number was closed above or is one of the table's, so nothing owns it; no memory is touched.
        if unsafe { libc::dup2(fd.as_raw_fd(), *number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes `number` (0, 1 or 2) refer to what `descriptor` refers to. The number is never closed in between.
///
/// # Errors
/// The kernel's own; the number then still refers to what it did.
pub fn replace_standard(number: RawFd, descriptor: impl AsFd) -> io::Result<()> {
    let descriptor = descriptor.as_fd();
    match number {
        0 => rustix::stdio::dup2_stdin(descriptor)?,
        1 => rustix::stdio::dup2_stdout(descriptor)?,
        2 => rustix::stdio::dup2_stderr(descriptor)?,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
    Ok(())
}

/// Takes over a descriptor that was handed to this program by number, as the documented protocol between two
/// processes of ours says. `None` when the number is not open.
#[must_use]
pub fn adopt(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD reads one flag of one number and touches no memory.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    // SAFETY: the number is open, and by the protocol nothing else in this process owns it.
    open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// A copy of standard descriptor `number`, close-on-exec. `None` when it is closed.
#[must_use]
pub fn copy_of_standard(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC makes a new number and touches no memory.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: a number that the kernel has just returned is open and owned by nobody else.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// An anonymous file with these bytes, which nobody can change any more: memfd_create(2) with all seals.
///
/// # Errors
/// The kernel's own.
pub fn sealed_memfd(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    sealed(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?, bytes)
}

/// As [`sealed_memfd`], for a program to execute: where the administrator has set `vm.memfd_noexec` to 1, a memory
/// file is executable only if it is asked for.
///
/// # Errors
/// The kernel's own.
pub fn sealed_program(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
        // Linux before 6.3 does not know the flag, and makes all of them executable.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        made => made?,
    };
    sealed(memfd, bytes)
}

/// A descriptor that takes these signals, of which the lowest bit is signal 1, with close-on-exec: signalfd4(2).
///
/// # Errors
/// The kernel's own.
pub fn signalfd(signals: u64) -> io::Result<OwnedFd> {
    // The C library's wrapper takes a set of its own, which cannot be made of a number.
    // SAFETY: the kernel reads 8 bytes of the number, and keeps no reference to it.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const signals, 8, libc::SFD_CLOEXEC) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: a number that the kernel has just returned is open and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn sealed(memfd: OwnedFd, bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    let mut file = File::from(memfd);
    file.write_all(bytes)?;
    file.rewind()?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file.into())
}
