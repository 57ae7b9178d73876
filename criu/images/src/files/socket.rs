//! Options that sockets of every family have.

/// Options of `SOL_SOCKET`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SocketOptions {
    /// Send buffer, in bytes.
    #[prost(uint32, required, tag = "1")]
    pub send_buffer: u32,
    /// Receive buffer, in bytes.
    #[prost(uint32, required, tag = "2")]
    pub receive_buffer: u32,
    /// Send time limit, seconds.
    #[prost(uint64, required, tag = "3")]
    pub send_timeout_sec: u64,
    /// Send time limit, microseconds within the second.
    #[prost(uint64, required, tag = "4")]
    pub send_timeout_usec: u64,
    /// Receive time limit, seconds.
    #[prost(uint64, required, tag = "5")]
    pub receive_timeout_sec: u64,
    /// Receive time limit, microseconds within the second.
    #[prost(uint64, required, tag = "6")]
    pub receive_timeout_usec: u64,
    /// `SO_REUSEADDR`.
    #[prost(bool, optional, tag = "7")]
    pub reuse_address: Option<bool>,
    /// `SO_PRIORITY`.
    #[prost(uint32, optional, tag = "8")]
    pub priority: Option<u32>,
    /// `SO_RCVLOWAT`, in bytes.
    #[prost(uint32, optional, tag = "9")]
    pub receive_low_water: Option<u32>,
    /// `SO_MARK`.
    #[prost(uint32, optional, tag = "10")]
    pub mark: Option<u32>,
    /// `SO_PASSCRED`.
    #[prost(bool, optional, tag = "11")]
    pub pass_credentials: Option<bool>,
    /// `SO_PASSSEC`.
    #[prost(bool, optional, tag = "12")]
    pub pass_label: Option<bool>,
    /// `SO_DONTROUTE`.
    #[prost(bool, optional, tag = "13")]
    pub dont_route: Option<bool>,
    /// `SO_NO_CHECK`.
    #[prost(bool, optional, tag = "14")]
    pub no_checksum: Option<bool>,
    /// `SO_BINDTODEVICE`.
    #[prost(string, optional, tag = "15")]
    pub bound_device: Option<String>,
    /// Classic packet filter, one instruction a word.
    #[prost(fixed64, repeated, packed = "false", tag = "16")]
    pub filter: Vec<u64>,
    /// `SO_REUSEPORT`.
    #[prost(bool, optional, tag = "17")]
    pub reuse_port: Option<bool>,
    /// `SO_BROADCAST`.
    #[prost(bool, optional, tag = "18")]
    pub broadcast: Option<bool>,
    /// `SO_KEEPALIVE`.
    #[prost(bool, optional, tag = "19")]
    pub keepalive: Option<bool>,
    /// `TCP_KEEPCNT` in images before CRIU 4.0.
    #[prost(uint32, optional, tag = "20")]
    pub keepalive_count: Option<u32>,
    /// `TCP_KEEPIDLE` in images before CRIU 4.0.
    #[prost(uint32, optional, tag = "21")]
    pub keepalive_idle: Option<u32>,
    /// `TCP_KEEPINTVL` in images before CRIU 4.0.
    #[prost(uint32, optional, tag = "22")]
    pub keepalive_interval: Option<u32>,
    /// `SO_OOBINLINE`.
    #[prost(uint32, optional, tag = "23")]
    pub oob_inline: Option<u32>,
    /// `SO_LINGER`, in seconds; absent when off.
    #[prost(uint32, optional, tag = "24")]
    pub linger: Option<u32>,
    /// `SO_BUF_LOCK`.
    #[prost(uint32, optional, tag = "25")]
    pub buffer_lock: Option<u32>,
}

/// Options of TCP.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TcpOptions {
    /// `TCP_CORK`.
    #[prost(bool, optional, tag = "1")]
    pub cork: Option<bool>,
    /// `TCP_NODELAY`.
    #[prost(bool, optional, tag = "2")]
    pub nodelay: Option<bool>,
    /// `TCP_KEEPCNT`.
    #[prost(uint32, optional, tag = "3")]
    pub keepalive_count: Option<u32>,
    /// `TCP_KEEPIDLE`, in seconds.
    #[prost(uint32, optional, tag = "4")]
    pub keepalive_idle: Option<u32>,
    /// `TCP_KEEPINTVL`, in seconds.
    #[prost(uint32, optional, tag = "5")]
    pub keepalive_interval: Option<u32>,
}

/// Directions of a socket that were shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Shutdown {
    /// None.
    None = 0,
    /// Reading.
    Read = 1,
    /// Writing.
    Write = 2,
    /// Both.
    Both = 3,
}
