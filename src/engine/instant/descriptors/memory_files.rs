//! Descriptors of memory files. The memory itself is made elsewhere: others may share it.

use std::io;
use std::os::fd::OwnedFd;

use criu_images::MemfdFile;
use rustix::fs::{OFlags, SeekFrom};

use super::super::shared::SharedMemory;
use super::files::ASYNC;

/// How to open one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    inode: u32,
    flags: OFlags,
    position: u64,
}

impl Opened {
    pub(super) fn of(file: &MemfdFile) -> Self {
        let flags = OFlags::from_bits_retain(file.flags) - ASYNC;
        Self { inode: file.inode_id, flags, position: file.position }
    }

    /// Opens it.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn open(self, memory: &SharedMemory) -> io::Result<OwnedFd> {
        let file = memory.open(self.inode, self.flags)?;
        rustix::fs::seek(&file, SeekFrom::Start(self.position))?;
        Ok(file)
    }
}
