//! The process tree, the kernel objects processes share, and their folders (`pstree.img`,
//! `ids-PID.img`, `fs-PID.img`). Knows nothing of what is inside a process.

/// One process of `pstree.img`; parents come before their children.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Process {
    /// Process id inside the dumped pid namespace.
    #[prost(uint32, required, tag = "1")]
    pub pid: u32,
    /// Parent, 0 for the root of the tree.
    #[prost(uint32, required, tag = "2")]
    pub ppid: u32,
    /// Process group.
    #[prost(uint32, required, tag = "3")]
    pub pgid: u32,
    /// Session.
    #[prost(uint32, required, tag = "4")]
    pub sid: u32,
    /// All thread ids, the leader among them. Means nothing for a dead process: CRIU 4.2.1 writes
    /// one number that was never set.
    #[prost(uint32, repeated, packed = "false", tag = "5")]
    pub threads: Vec<u32>,
}

/// The one record of `ids-PID.img`. Processes with an equal id share the object.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KernelIds {
    /// Address space.
    #[prost(uint32, required, tag = "1")]
    pub vm_id: u32,
    /// Descriptor table, the suffix of `fdinfo-FILESID.img`.
    #[prost(uint32, required, tag = "2")]
    pub files_id: u32,
    /// Working folder, root and umask.
    #[prost(uint32, required, tag = "3")]
    pub fs_id: u32,
    /// Signal handlers.
    #[prost(uint32, required, tag = "4")]
    pub sighand_id: u32,
    /// Process id namespace.
    #[prost(uint32, optional, tag = "5")]
    pub pid_ns_id: Option<u32>,
    /// Network namespace.
    #[prost(uint32, optional, tag = "6")]
    pub net_ns_id: Option<u32>,
    /// System V IPC namespace.
    #[prost(uint32, optional, tag = "7")]
    pub ipc_ns_id: Option<u32>,
    /// Host name namespace.
    #[prost(uint32, optional, tag = "8")]
    pub uts_ns_id: Option<u32>,
    /// Mount namespace.
    #[prost(uint32, optional, tag = "9")]
    pub mnt_ns_id: Option<u32>,
    /// User namespace.
    #[prost(uint32, optional, tag = "10")]
    pub user_ns_id: Option<u32>,
    /// Control group namespace.
    #[prost(uint32, optional, tag = "11")]
    pub cgroup_ns_id: Option<u32>,
    /// Time namespace.
    #[prost(uint32, optional, tag = "12")]
    pub time_ns_id: Option<u32>,
}

/// The one record of `fs-PID.img`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FsInfo {
    /// File id of the working folder.
    #[prost(uint32, required, tag = "1")]
    pub cwd_id: u32,
    /// File id of the root folder.
    #[prost(uint32, required, tag = "2")]
    pub root_id: u32,
    /// File mode creation mask.
    #[prost(uint32, optional, tag = "3")]
    pub umask: Option<u32>,
}
