//! Sockets that talk to the kernel.

use super::owner::Owner;
use super::socket::SocketOptions;

/// A netlink socket.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NetlinkSocket {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Socket inode, the number in `socket:[N]`.
    #[prost(uint32, required, tag = "2")]
    pub inode: u32,
    /// `NETLINK_*` protocol.
    #[prost(uint32, required, tag = "3")]
    pub protocol: u32,
    /// Kernel's socket state.
    #[prost(uint32, required, tag = "4")]
    pub state: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "6")]
    pub flags: u32,
    /// Own port.
    #[prost(uint32, required, tag = "7")]
    pub portid: u32,
    /// Multicast groups, one bit each.
    #[prost(uint32, repeated, packed = "false", tag = "8")]
    pub groups: Vec<u32>,
    /// Peer's port.
    #[prost(uint32, required, tag = "9")]
    pub dst_portid: u32,
    /// Peer's group.
    #[prost(uint32, required, tag = "10")]
    pub dst_group: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "11")]
    pub owner: Owner,
    /// Socket options.
    #[prost(message, required, tag = "12")]
    pub options: SocketOptions,
    /// Network namespace it lives in.
    #[prost(uint32, optional, tag = "13")]
    pub ns_id: Option<u32>,
}
