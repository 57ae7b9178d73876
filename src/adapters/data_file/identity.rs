//! Whether a file is still the one it was. It must not know what follows from that.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// What a file has in common with itself, as long as nobody writes to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    /// Device and inode.
    pub(super) inode: (u64, u64),
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// What has changed, the plainest first.
    pub(super) fn change_to(self, now: Self) -> Option<Change> {
        if self.inode != now.inode {
            Some(Change::Replaced)
        } else if self.size != now.size {
            Some(Change::Resized { was: self.size, is: now.size })
        } else if self.modified != now.modified {
            Some(Change::Modified)
        } else {
            None
        }
    }
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Nothing is at the path any more.
    Missing,
    /// Another file is at the path: another device or inode.
    Replaced,
    /// It has another size, in bytes.
    Resized {
        /// The size at the dump.
        was: u64,
        /// The size now.
        is: u64,
    },
    /// It was written to, by its time of modification.
    Modified,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it is missing"),
            Self::Replaced => f.write_str("another file is in its place"),
            Self::Resized { was, is } => write!(f, "its size was {was} bytes and is {is}"),
            Self::Modified => f.write_str("it has been written to"),
        }
    }
}
