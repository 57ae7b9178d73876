//! Descriptors that exist in few servers: namespaces, external files, tunnels, BPF maps, pidfds.

use super::owner::Owner;

/// An open namespace.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NamespaceFile {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Namespace.
    #[prost(uint32, required, tag = "2")]
    pub ns_id: u32,
    /// `CLONE_NEW*` flag of its kind.
    #[prost(uint32, required, tag = "3")]
    pub clone_flag: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "4")]
    pub flags: u32,
}

/// A file that a plugin supplies at restore.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExternalFile {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "5")]
    pub owner: Owner,
}

/// An open tun or tap device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TunFile {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Network device.
    #[prost(string, optional, tag = "2")]
    pub device: Option<String>,
    /// Detached from the device.
    #[prost(bool, optional, tag = "3")]
    pub detached: Option<bool>,
    /// Network namespace it lives in.
    #[prost(uint32, optional, tag = "4")]
    pub ns_id: Option<u32>,
}

/// An open BPF map.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BpfMapFile {
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
    /// `BPF_MAP_TYPE_*` number.
    #[prost(uint32, required, tag = "5")]
    pub map_type: u32,
    /// Bytes in a key.
    #[prost(uint32, required, tag = "6")]
    pub key_size: u32,
    /// Bytes in a value.
    #[prost(uint32, required, tag = "7")]
    pub value_size: u32,
    /// Kernel's id of the map.
    #[prost(uint32, required, tag = "8")]
    pub map_id: u32,
    /// Entries it can hold.
    #[prost(uint32, required, tag = "9")]
    pub max_entries: u32,
    /// `BPF_F_*` flags.
    #[prost(uint32, required, tag = "10")]
    pub map_flags: u32,
    /// Locked memory, in bytes.
    #[prost(uint64, required, tag = "11")]
    pub memlock: u64,
    /// The program cannot change it.
    #[prost(bool, required, tag = "12")]
    pub frozen: bool,
    /// Name of the map.
    #[prost(bytes = "vec", required, tag = "13")]
    pub map_name: Vec<u8>,
    /// Interface of an offloaded map.
    #[prost(uint32, required, tag = "14")]
    pub ifindex: u32,
    /// Mount it is pinned on, -1 if not recorded.
    #[prost(sint32, optional, default = "-1", tag = "15")]
    pub mount_id: Option<i32>,
    /// Extra parameter of the type.
    #[prost(uint64, optional, tag = "16")]
    pub map_extra: Option<u64>,
}

/// A pidfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PidFd {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Inode in the pid file system.
    #[prost(uint32, required, tag = "2")]
    pub inode: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "3")]
    pub flags: u32,
    /// Process it refers to, -1 if that has ended.
    #[prost(int32, required, tag = "4")]
    pub pid: i32,
    /// Who gets its signals.
    #[prost(message, required, tag = "5")]
    pub owner: Owner,
}
