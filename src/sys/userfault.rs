//! Faults of another process, handled by this one: userfaultfd(2).
//!
//! The structures and numbers are those of the crate linux-raw-sys. (The crate userfaultfd would do more, and needs
//! libclang to build.) Only missing pages are ever handled, and never in user mode only: there, a system call that
//! meets a missing page fails with EFAULT.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use linux_raw_sys::general as raw;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_WAKE, UFFDIO_ZEROPAGE};

/// Flags of userfaultfd(2): reading an event must not block.
pub const OPEN_FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// Whatever changes which memory is there is told: a page that was given back is zero, one that was moved is
/// elsewhere, and a forked process has an address space of its own.
const FEATURES: u32 = raw::UFFD_FEATURE_EVENT_FORK
    | raw::UFFD_FEATURE_EVENT_REMAP
    | raw::UFFD_FEATURE_EVENT_REMOVE
    | raw::UFFD_FEATURE_EVENT_UNMAP;

/// Bytes of `struct uffd_msg`.
const MESSAGE: usize = size_of::<raw::uffd_msg>();

/// An ioctl(2) for whoever makes it by itself: its number, and the bytes that its argument points to.
pub type Request = (u64, Vec<u8>);

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// The first request to a new descriptor, which the kernel answers in place.
#[must_use]
pub fn handshake() -> Request {
    // struct uffdio_api: version, features, ioctls.
    (UFFDIO_API.into(), words([raw::UFFD_API.into(), FEATURES.into(), 0]))
}

/// The request to handle missing pages of a range, which the kernel answers in place.
#[must_use]
pub fn registration(start: u64, len: u64) -> Request {
    // struct uffdio_register: start and length, mode, ioctls.
    (UFFDIO_REGISTER.into(), words([start, len, raw::UFFDIO_REGISTER_MODE_MISSING.into(), 0]))
}

/// The faults and changes of one address space.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

/// What has happened in it.
#[derive(Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// An address in it.
        address: u64,
        /// It waits to write.
        write: bool,
    },
    /// It was copied, as it is, to a new process.
    Fork(Userfault),
    /// A range is elsewhere now.
    Moved {
        /// Where it was.
        from: u64,
        /// Where it is.
        to: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The pages of a range were given back: they are zero from now on.
    Removed {
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
    /// A range is no longer mapped.
    Unmapped {
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
}

/// What became of a range to be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// That many bytes of it are there, at least one page.
    Bytes(u64),
    /// Its first page was there already.
    Present,
    /// The address space is being changed: read events, and try again.
    Changing,
    /// It is not, or not as a whole, within one mapping that is handled.
    Outside,
    /// The address space is gone.
    Gone,
}

impl Userfault {
    /// Opens one for this process.
    ///
    /// # Errors
    /// `PermissionDenied` where the kernel would tell of forks to processes with CAP_SYS_PTRACE only, or of faults
    /// in the kernel (`vm.unprivileged_userfaultfd`); else the kernel's own.
    pub fn open() -> io::Result<Self> {
        // SAFETY: the call takes flags and touches no memory.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, OPEN_FLAGS) };
        let number = RawFd::try_from(number).ok().filter(|number| *number >= 0);
        let number = number.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a number that the kernel has just returned is open and owned by nobody else.
        let fault = Self(unsafe { OwnedFd::from_raw_fd(number) });
        let mut api = raw::uffdio_api { api: raw::UFFD_API.into(), features: FEATURES.into(), ioctls: 0 };
        fault.request(UFFDIO_API, &mut api)?;
        Ok(fault)
    }

    /// One that another process has opened, made its handshake, and sent.
    #[must_use]
    pub fn adopt(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// The next event, if there is one. Faults come first, changes in no certain order.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn event(&self) -> io::Result<Option<Event>> {
        let mut bytes = [0; MESSAGE];
        loop {
            match rustix::io::read(&self.0, &mut bytes) {
                Ok(MESSAGE) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error.into()),
            }
            if let Some(event) = decode(&bytes) {
                return Ok(Some(event));
            }
        }
    }

    /// Copies bytes of `pages`, from `offset` on, to pages that are missing, and wakes who waits for them.
    ///
    /// # Errors
    /// `InvalidInput` when `pages` has no such bytes; else the kernel's own, such as `OutOfMemory`.
    pub fn copy(&self, to: u64, pages: &Pages, offset: u64, len: u64) -> io::Result<Filled> {
        if offset.checked_add(len).is_none_or(|end| end > pages.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut copy = raw::uffdio_copy { dst: to, src: pages.address + offset, len, mode: 0, copy: 0 };
        let done = self.request(UFFDIO_COPY, &mut copy);
        filled(done, copy.copy)
    }

    /// Makes missing pages zero, and wakes who waits for them.
    ///
    /// # Errors
    /// The kernel's own, such as `OutOfMemory`.
    pub fn zero(&self, start: u64, len: u64) -> io::Result<Filled> {
        let range = raw::uffdio_range { start, len };
        let mut zero = raw::uffdio_zeropage { range, mode: 0, zeropage: 0 };
        let done = self.request(UFFDIO_ZEROPAGE, &mut zero);
        filled(done, zero.zeropage)
    }

    /// Has who waits for pages of this range look again.
    pub fn wake(&self, start: u64, len: u64) {
        // It fails for a range that cannot be only.
        let _ = self.request(UFFDIO_WAKE, &mut raw::uffdio_range { start, len });
    }

    /// An ioctl of this kind of descriptor, all of which take one of its structures.
    fn request<T: Copy>(&self, number: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: private, and each caller passes the structure that ioctl_userfaultfd(2) gives for the number. What
        // the kernel writes besides is pages that no process has touched yet.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), number.into(), std::ptr::from_mut(argument)) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `count` is what the kernel stored: bytes done, or an error number, negated.
fn filled(done: io::Result<()>, count: i64) -> io::Result<Filled> {
    if count > 0 {
        return Ok(Filled::Bytes(count.cast_unsigned()));
    }
    let Err(error) = done else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    match error.raw_os_error() {
        Some(libc::EEXIST) => Ok(Filled::Present),
        Some(libc::EAGAIN) => Ok(Filled::Changing),
        Some(libc::ENOENT) => Ok(Filled::Outside),
        Some(libc::ESRCH) => Ok(Filled::Gone),
        _ => Err(error),
    }
}

/// What a `struct uffd_msg` says; `None` for what was not asked for.
fn decode(bytes: &[u8; MESSAGE]) -> Option<Event> {
    let word = |index: usize| {
        let at = 8 + index * 8;
        bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
    };
    let (first, second, third) = (word(0)?, word(1)?, word(2)?);
    Some(match bytes[0].into() {
        raw::UFFD_EVENT_PAGEFAULT => {
            Event::Fault { address: second, write: first & u64::from(raw::UFFD_PAGEFAULT_FLAG_WRITE) != 0 }
        }
        raw::UFFD_EVENT_FORK => {
            let number = RawFd::try_from(first & u64::from(u32::MAX)).ok()?;
            // SAFETY: the kernel has opened it for this message, and nobody else owns it.
            Event::Fork(Userfault(unsafe { OwnedFd::from_raw_fd(number) }))
        }
        raw::UFFD_EVENT_REMAP => Event::Moved { from: first, to: second, len: third },
        raw::UFFD_EVENT_REMOVE => Event::Removed { start: first, end: second },
        raw::UFFD_EVENT_UNMAP => Event::Unmapped { start: first, end: second },
        _ => return None,
    })
}

/// A file that pages are copied from. This process itself never reads them.
#[derive(Debug)]
pub struct Pages {
    address: u64,
    len: u64,
}

impl Pages {
    /// The whole of this file. It may be empty.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn of(file: &File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if size == 0 {
            return Ok(Self { address: 0, len });
        }
        let (any, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; it is never dereferenced here, so a file that
        // is cut short is an error of the ioctl, and no SIGBUS.
        let address = unsafe { libc::mmap(any, size, libc::PROT_READ, shared, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address: address as u64, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range was mapped by `of`, and nothing refers to it.
            unsafe { libc::munmap(self.address as *mut libc::c_void, self.len as usize) };
        }
    }
}

/// Memory of a test's own, whose missing pages are handled.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handled {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

#[cfg(test)]
impl Handled {
    /// New memory; it stays until the end of the test program.
    pub(crate) fn new(fault: &Userfault, len: u64) -> Self {
        let (read_write, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, read_write, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let range = raw::uffdio_range { start: start as u64, len };
        let mode = raw::UFFDIO_REGISTER_MODE_MISSING.into();
        let mut register = raw::uffdio_register { range, mode, ioctls: 0 };
        fault.request(UFFDIO_REGISTER, &mut register).expect("memory of ours can be registered");
        Self { start: start as u64, len }
    }

    /// The byte at this place of it. Waits for it to be there.
    pub(crate) fn read(self, at: u64) -> u8 {
        assert!(at < self.len);
        // SAFETY: it is mapped and in range; volatile, since it changes behind the compiler's back.
        unsafe { ((self.start + at) as *const u8).read_volatile() }
    }

    /// Gives pages back: madvise(2), MADV_DONTNEED.
    pub(crate) fn give_back(self, at: u64, len: u64) {
        assert!(at + len <= self.len);
        // SAFETY: the range is this memory's, and no reference to it exists.
        let done = unsafe { libc::madvise((self.start + at) as *mut _, len as usize, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }

    /// Moves all of it elsewhere: mremap(2), to another place.
    pub(crate) fn moved(self) -> Self {
        let len = self.len as usize;
        // SAFETY: the range is this memory's, and it is known by the new address alone from here on.
        let hole = unsafe {
            libc::mmap(std::ptr::null_mut(), len, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: as above; the hole was mapped for this.
        let start = unsafe { libc::mremap(self.start as *mut _, len, len, flags, hole) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start as u64, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: u32, words: [u64; 3]) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[0] = u8::try_from(event).unwrap();
        bytes[8..].copy_from_slice(&super::words(words));
        bytes
    }

    #[test]
    fn messages_are_read_as_the_kernel_lays_them_out() {
        assert_eq!(MESSAGE, 32);
        let fault = decode(&message(raw::UFFD_EVENT_PAGEFAULT, [1, 0x5000, 0]));
        assert!(matches!(fault, Some(Event::Fault { address: 0x5000, write: true })));
        let moved = decode(&message(raw::UFFD_EVENT_REMAP, [1, 2, 3]));
        assert!(matches!(moved, Some(Event::Moved { from: 1, to: 2, len: 3 })));
        let removed = decode(&message(raw::UFFD_EVENT_REMOVE, [1, 2, 0]));
        assert!(matches!(removed, Some(Event::Removed { start: 1, end: 2 })));
        let unmapped = decode(&message(raw::UFFD_EVENT_UNMAP, [1, 2, 0]));
        assert!(matches!(unmapped, Some(Event::Unmapped { start: 1, end: 2 })));
        assert!(decode(&message(99, [0; 3])).is_none());
    }

    #[test]
    fn what_a_request_did_is_told() {
        let failed = |errno| Err(io::Error::from_raw_os_error(errno));
        assert_eq!(filled(Ok(()), 4096).unwrap(), Filled::Bytes(4096));
        assert_eq!(filled(failed(libc::EAGAIN), 8192).unwrap(), Filled::Bytes(8192), "a part was done");
        assert_eq!(filled(failed(libc::EAGAIN), -11).unwrap(), Filled::Changing);
        assert_eq!(filled(failed(libc::EEXIST), -17).unwrap(), Filled::Present);
        assert_eq!(filled(failed(libc::ENOENT), 0).unwrap(), Filled::Outside);
        assert_eq!(filled(failed(libc::ESRCH), -3).unwrap(), Filled::Gone);
        assert!(filled(failed(libc::ENOMEM), -12).is_err());
    }

    #[test]
    fn structures_have_the_size_that_their_requests_carry() {
        assert_eq!(handshake().1.len(), size_of::<raw::uffdio_api>());
        assert_eq!(registration(0, 4096).1.len(), size_of::<raw::uffdio_register>());
        for (number, bytes) in [handshake(), registration(0, 4096)] {
            // ioctl numbers carry the size of their argument in bits 16 to 29.
            assert_eq!(number >> 16 & 0x3fff, bytes.len() as u64);
        }
    }
}
