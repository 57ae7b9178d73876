//! Watches on the file system: inotify and fanotify.

use super::owner::Owner;

/// An inotify instance.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Inotify {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "4")]
    pub owner: Owner,
    /// Its watches.
    #[prost(message, repeated, tag = "5")]
    pub watches: Vec<InotifyWatch>,
}

/// One watch.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InotifyWatch {
    /// File id of the instance.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Watched inode.
    #[prost(uint64, required, tag = "2")]
    pub inode: u64,
    /// `IN_*` events.
    #[prost(uint32, required, tag = "3")]
    pub mask: u32,
    /// Events left out.
    #[prost(uint32, required, tag = "4")]
    pub ignored_mask: u32,
    /// Device of the inode.
    #[prost(uint32, required, tag = "5")]
    pub device: u32,
    /// Watch descriptor.
    #[prost(uint32, required, tag = "6")]
    pub wd: u32,
    /// How to find the inode again.
    #[prost(message, required, tag = "7")]
    pub handle: FileHandle,
}

/// A handle of `name_to_handle_at(2)`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FileHandle {
    /// Bytes used of the handle.
    #[prost(uint32, required, tag = "1")]
    pub length: u32,
    /// File system's type of handle.
    #[prost(uint32, required, tag = "2")]
    pub kind: u32,
    /// The handle, padded with zero words.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub handle: Vec<u64>,
    /// Path of the inode, if CRIU found it.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub path: Option<Vec<u8>>,
    /// Mount of the path.
    #[prost(uint32, optional, tag = "5")]
    pub mount_id: Option<u32>,
}

/// A fanotify instance.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Fanotify {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "3")]
    pub owner: Owner,
    /// `FAN_*` flags of `fanotify_init(2)`.
    #[prost(uint32, required, tag = "4")]
    pub init_flags: u32,
    /// `O_*` flags of descriptors in events.
    #[prost(uint32, required, tag = "5")]
    pub event_flags: u32,
    /// Its marks.
    #[prost(message, repeated, tag = "6")]
    pub marks: Vec<FanotifyMark>,
}

/// One mark.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FanotifyMark {
    /// File id of the instance.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// What is marked; [`MarkTarget`].
    #[prost(enumeration = "MarkTarget", required, tag = "2")]
    pub target: i32,
    /// `FAN_MARK_*` flags.
    #[prost(uint32, required, tag = "3")]
    pub flags: u32,
    /// `FAN_*` events.
    #[prost(uint32, required, tag = "4")]
    pub mask: u32,
    /// Events left out.
    #[prost(uint32, required, tag = "5")]
    pub ignored_mask: u32,
    /// Device of the marked inode or mount.
    #[prost(uint32, required, tag = "6")]
    pub device: u32,
    /// The marked inode.
    #[prost(message, optional, tag = "7")]
    pub inode: Option<MarkedInode>,
    /// The marked mount.
    #[prost(message, optional, tag = "8")]
    pub mount: Option<MarkedMount>,
}

/// An inode with a mark.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MarkedInode {
    /// Inode number.
    #[prost(uint64, required, tag = "1")]
    pub inode: u64,
    /// How to find the inode again.
    #[prost(message, required, tag = "2")]
    pub handle: FileHandle,
}

/// A mount with a mark.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MarkedMount {
    /// Mount id.
    #[prost(uint32, required, tag = "1")]
    pub mount_id: u32,
    /// Path of the mount.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub path: Option<Vec<u8>>,
}

/// What a fanotify mark is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum MarkTarget {
    /// One inode.
    Inode = 1,
    /// A whole mount.
    Mount = 2,
}
