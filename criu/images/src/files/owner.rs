//! Who is told by signal that a descriptor is ready.

/// Receiver of a file's signals, see `F_SETOWN` in `fcntl(2)`; all zero if there is none.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Owner {
    /// Real user of who set it.
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    /// Effective user of who set it.
    #[prost(uint32, required, tag = "2")]
    pub euid: u32,
    /// Signal to send.
    #[prost(uint32, required, tag = "3")]
    pub signal: u32,
    /// Whether `pid` is a thread, process or group.
    #[prost(uint32, required, tag = "4")]
    pub pid_type: u32,
    /// Receiver.
    #[prost(uint32, required, tag = "5")]
    pub pid: u32,
}
