//! Memory files: open ones (`files.img`) and the memory behind them (`memfd.img`).

use super::owner::Owner;

/// An open memfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemfdFile {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Offset, in bytes.
    #[prost(uint64, required, tag = "3")]
    pub position: u64,
    /// Who gets its signals.
    #[prost(message, required, tag = "4")]
    pub owner: Owner,
    /// Id in `memfd.img`.
    #[prost(uint32, required, tag = "5")]
    pub inode_id: u32,
}

/// One record of `memfd.img`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Memfd {
    /// Name given at creation.
    #[prost(bytes = "vec", required, tag = "1")]
    pub name: Vec<u8>,
    /// User.
    #[prost(uint32, required, tag = "2")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, required, tag = "3")]
    pub gid: u32,
    /// Size in bytes.
    #[prost(uint64, required, tag = "4")]
    pub size: u64,
    /// Suffix of its `pagemap-shmem-ID.img`.
    #[prost(uint32, required, tag = "5")]
    pub shared_memory_id: u32,
    /// `F_SEAL_*` flags.
    #[prost(uint32, required, tag = "6")]
    pub seals: u32,
    /// Id that open memfds refer to.
    #[prost(uint64, required, tag = "7")]
    pub inode_id: u64,
    /// Huge page size it was created with.
    #[prost(uint32, optional, tag = "8")]
    pub hugetlb_flag: Option<u32>,
    /// File type and permissions.
    #[prost(uint32, optional, tag = "9")]
    pub mode: Option<u32>,
}
