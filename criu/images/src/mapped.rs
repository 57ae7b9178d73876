//! Mapped files of a process: its mappings joined with the file table.

use std::path::Path;

use crate::files::{FileTable, RegularFile};
use crate::memory::{Memory, Vma};

/// A mapping of a file that has a path. CRIU opens the path at restore and compares what is
/// recorded here.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    /// The mapping.
    pub vma: &'a Vma,
    /// The file.
    pub file: &'a RegularFile,
}

impl<'a> MappedFile<'a> {
    /// Absolute path in the dumped mount namespace.
    #[must_use]
    pub fn path(&self) -> &'a Path {
        self.file.path()
    }

    /// Size in bytes, if recorded.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.file.size
    }

    /// File type and permissions, if recorded.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        self.file.mode
    }

    /// GNU build-id, empty if not recorded.
    #[must_use]
    pub fn build_id(&self) -> Vec<u8> {
        self.file.build_id()
    }
}

impl Memory {
    /// Mapped files by ascending address, one item a mapping. Mapped memfds have no path and are
    /// left out.
    pub fn mapped_files<'a>(&'a self, files: &'a FileTable) -> impl Iterator<Item = MappedFile<'a>> + 'a {
        self.vmas.iter().filter_map(|vma| {
            let file = files.get(vma.file_id()?)?.regular.as_deref()?;
            Some(MappedFile { vma, file })
        })
    }
}
