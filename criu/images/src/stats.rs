//! Figures CRIU leaves about a dump or restore (`stats-dump`, `stats-restore`).

/// The one record of a stats file.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Stats {
    /// Figures of a dump.
    #[prost(message, optional, tag = "1")]
    pub dump: Option<DumpStats>,
    /// Figures of a restore.
    #[prost(message, optional, tag = "2")]
    pub restore: Option<RestoreStats>,
}

/// Figures of a dump. Times are in microseconds.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DumpStats {
    /// Time to stop all threads.
    #[prost(uint32, required, tag = "1")]
    pub freezing_time: u32,
    /// Time all threads were stopped.
    #[prost(uint32, required, tag = "2")]
    pub frozen_time: u32,
    /// Time to collect memory into pipes.
    #[prost(uint32, required, tag = "3")]
    pub memdump_time: u32,
    /// Time to write memory.
    #[prost(uint32, required, tag = "4")]
    pub memwrite_time: u32,
    /// Pages looked at.
    #[prost(uint64, required, tag = "5")]
    pub pages_scanned: u64,
    /// Pages left to the parent image.
    #[prost(uint64, required, tag = "6")]
    pub pages_skipped_parent: u64,
    /// Pages written.
    #[prost(uint64, required, tag = "7")]
    pub pages_written: u64,
    /// Time to find paths of watched inodes.
    #[prost(uint32, optional, tag = "8")]
    pub irmap_resolve: Option<u32>,
    /// Pages that may be restored on demand.
    #[prost(uint64, required, tag = "9")]
    pub pages_lazy: u64,
    /// Page pipes used.
    #[prost(uint64, optional, tag = "10")]
    pub page_pipes: Option<u64>,
    /// Buffers in them.
    #[prost(uint64, optional, tag = "11")]
    pub page_pipe_bufs: Option<u64>,
    /// Pages of shared memory looked at.
    #[prost(uint64, optional, tag = "12")]
    pub shpages_scanned: Option<u64>,
    /// Pages of shared memory left to the parent image.
    #[prost(uint64, optional, tag = "13")]
    pub shpages_skipped_parent: Option<u64>,
    /// Pages of shared memory written.
    #[prost(uint64, optional, tag = "14")]
    pub shpages_written: Option<u64>,
}

/// Figures of a restore. Times are in microseconds.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RestoreStats {
    /// Pages compared with an inherited copy.
    #[prost(uint64, required, tag = "1")]
    pub pages_compared: u64,
    /// Pages that were equal and stayed shared.
    #[prost(uint64, required, tag = "2")]
    pub pages_skipped_cow: u64,
    /// Time to create the processes.
    #[prost(uint32, required, tag = "3")]
    pub forking_time: u32,
    /// Time of the whole restore.
    #[prost(uint32, required, tag = "4")]
    pub restore_time: u32,
    /// Pages copied in.
    #[prost(uint64, optional, tag = "5")]
    pub pages_restored: Option<u64>,
}
