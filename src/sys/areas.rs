//! What the kernel says of this process's mappings, one at a time: the PROCMAP_QUERY request on
//! /proc/self/maps (include/uapi/linux/fs.h, Linux 6.11).
//!
//! Made for the middle of an allocator: no allocation, no lock. The descriptor is open for the few microseconds of
//! one question and its answers only: one that stayed would be in the way of a dump, and of a program that closes
//! what it does not know. A dump that hits these microseconds fails and names it, and the process goes on; they come
//! once for each piece of memory, since what takes its place need not be asked about.

use std::ffi::{c_int, c_ulong};

use super::call::call;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: c_ulong = 3 << 30 | (size_of::<Query>() as c_ulong) << 16 | 0x66 << 8 | 17;
/// As `PROT_*`.
const ACCESS: u64 = 7;
const SHARED: u64 = 0x08;
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    access: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// A file as the kernel tells it in a list of mappings, which need not be what stat(2) says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: [u32; 2],
    inode: u64,
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) start: usize,
    pub(super) end: usize,
    /// As `PROT_*`.
    pub(super) protection: usize,
    pub(super) kind: Kind,
}

/// What a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Anonymous,
    PrivateFile(FileId),
    Shared,
}

impl Area {
    /// The part of it within these bounds.
    pub(super) fn within(self, start: usize, end: usize) -> Self {
        Self { start: self.start.max(start), end: self.end.min(end), ..self }
    }

    pub(super) fn len(self) -> usize {
        self.end - self.start
    }
}

/// The mappings of this process.
#[derive(Debug)]
pub(super) struct Areas {
    fd: usize,
}

impl Areas {
    /// `None` where the kernel cannot be asked: no /proc, no free descriptor.
    pub(super) fn open() -> Option<Self> {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC).cast_unsigned() as usize;
        let arguments = [libc::AT_FDCWD as usize, c"/proc/self/maps".as_ptr().addr(), flags, 0, 0, 0];
        // SAFETY: the path is a text with a zero byte at its end.
        let fd = unsafe { call(libc::SYS_openat, arguments) }.ok()?;
        Some(Self { fd })
    }

    /// The mapping that covers this address, or else the next one.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.11.
    pub(super) fn from(&self, address: usize) -> Result<Option<Area>, c_int> {
        self.query(address, COVERING_OR_NEXT)
    }

    /// The same among the mappings of files.
    ///
    /// # Errors
    /// As [`Areas::from`].
    pub(super) fn of_file_from(&self, address: usize) -> Result<Option<Area>, c_int> {
        self.query(address, COVERING_OR_NEXT | FILE_BACKED)
    }

    fn query(&self, address: usize, flags: u64) -> Result<Option<Area>, c_int> {
        let mut query =
            Query { size: size_of::<Query>() as u64, flags, address: address as u64, ..Query::default() };
        let arguments = [self.fd, PROCMAP_QUERY as usize, (&raw mut query).addr(), 0, 0, 0];
        // SAFETY: the structure is as long as it says, and asks for neither name nor build-id.
        match unsafe { call(libc::SYS_ioctl, arguments) } {
            Ok(_) => {}
            Err(libc::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let kind = match query.inode {
            _ if query.access & SHARED != 0 => Kind::Shared,
            0 => Kind::Anonymous,
            inode => Kind::PrivateFile(FileId { device: query.device, inode }),
        };
        Ok(Some(Area {
            start: query.start as usize,
            end: query.end as usize,
            protection: (query.access & ACCESS) as usize,
            kind,
        }))
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own. There is nothing to do if that fails.
        let _ = unsafe { call(libc::SYS_close, [self.fd, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_code_and_of_data() {
        let areas = Areas::open().unwrap();
        let code = Areas::open as *const () as usize;
        let area = areas.from(code).unwrap().unwrap();
        assert!((area.start..area.end).contains(&code));
        assert_eq!(area.protection, 5);
        assert!(matches!(area.kind, Kind::PrivateFile(_)));
        assert_eq!(areas.of_file_from(code).unwrap(), Some(area));
        let local = 0_u8;
        let stack = areas.from((&raw const local).addr()).unwrap().unwrap();
        assert_eq!((stack.protection, stack.kind), (3, Kind::Anonymous));
        assert_eq!(areas.from(usize::MAX & !0xfff).unwrap(), None);
    }
}
