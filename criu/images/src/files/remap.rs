//! Files that had lost their name at the dump (`remap-fpath.img`), and copies of them (`ghost-file-ID.img`).

use crate::time::Timeval;

/// One record of `remap-fpath.img`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Remap {
    /// File id of the entry whose path is gone.
    #[prost(uint32, required, tag = "1")]
    pub file_id: u32,
    /// Suffix (hexadecimal) of `ghost-file-ID.img`, file id of a link, or pid, by kind.
    #[prost(uint32, required, tag = "2")]
    pub remap_id: u32,
    /// What stands in for the file; absent in old images. See [`Remap::stand_in`].
    #[prost(enumeration = "RemapKind", optional, tag = "3")]
    pub kind: Option<i32>,
}

/// Marks a ghost in records without a kind (`REMAP_GHOST` in CRIU's `image.h`).
const OLD_GHOST: u32 = 1 << 31;

impl Remap {
    /// What stands in for the file, and its id; `None` for a kind this crate does not know.
    #[must_use]
    pub fn stand_in(&self) -> Option<(RemapKind, u32)> {
        match self.kind {
            Some(kind) => Some((RemapKind::try_from(kind).ok()?, self.remap_id)),
            None if self.remap_id & OLD_GHOST != 0 => Some((RemapKind::Ghost, self.remap_id & !OLD_GHOST)),
            None => Some((RemapKind::Linked, self.remap_id)),
        }
    }
}

/// What stands in for a file without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum RemapKind {
    /// A hard link CRIU made.
    Linked = 0,
    /// A copy in the image.
    Ghost = 1,
    /// A process's folder in `/proc`.
    Procfs = 2,
}

/// The record of `ghost-file-ID.img`; the contents follow it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GhostFile {
    /// User.
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, required, tag = "2")]
    pub gid: u32,
    /// File type and permissions.
    #[prost(uint32, required, tag = "3")]
    pub mode: u32,
    /// Device that it was on.
    #[prost(uint32, optional, tag = "4")]
    pub device: Option<u32>,
    /// Inode that it was.
    #[prost(uint64, optional, tag = "5")]
    pub inode: Option<u64>,
    /// Device that it is, if it is one.
    #[prost(uint32, optional, tag = "6")]
    pub own_device: Option<u32>,
    /// Last access.
    #[prost(message, optional, tag = "7")]
    pub accessed: Option<Timeval>,
    /// Last change.
    #[prost(message, optional, tag = "8")]
    pub modified: Option<Timeval>,
    /// The contents are in pieces, each behind a record of its own, and not read here.
    #[prost(bool, optional, tag = "9")]
    pub in_pieces: Option<bool>,
    /// Size in bytes, if the contents are in pieces.
    #[prost(uint64, optional, tag = "10")]
    pub size: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_in_its_field_or_in_the_top_bit() {
        let stand_in = |remap_id, kind| Remap { file_id: 1, remap_id, kind }.stand_in();
        assert_eq!(stand_in(7, Some(1)), Some((RemapKind::Ghost, 7)));
        assert_eq!(stand_in(7, Some(9)), None);
        assert_eq!(stand_in(7, None), Some((RemapKind::Linked, 7)));
        assert_eq!(stand_in(OLD_GHOST | 7, None), Some((RemapKind::Ghost, 7)));
    }
}
