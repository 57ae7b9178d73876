//! Sockets below the internet layer.

use super::owner::Owner;
use super::socket::SocketOptions;

/// A packet socket, see `packet(7)`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PacketSocket {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `SOCK_*` type.
    #[prost(uint32, required, tag = "2")]
    pub kind: u32,
    /// Protocol of the link layer, in network order.
    #[prost(uint32, required, tag = "3")]
    pub protocol: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "4")]
    pub flags: u32,
    /// Interface it is bound to.
    #[prost(uint32, required, tag = "5")]
    pub ifindex: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "6")]
    pub owner: Owner,
    /// Socket options.
    #[prost(message, required, tag = "7")]
    pub options: SocketOptions,
    /// `PACKET_VERSION`.
    #[prost(uint32, required, tag = "8")]
    pub version: u32,
    /// `PACKET_RESERVE`, in bytes.
    #[prost(uint32, required, tag = "9")]
    pub reserve: u32,
    /// `PACKET_AUXDATA`.
    #[prost(bool, required, tag = "10")]
    pub aux_data: bool,
    /// `PACKET_ORIGDEV`.
    #[prost(bool, required, tag = "11")]
    pub orig_dev: bool,
    /// `PACKET_VNET_HDR`.
    #[prost(bool, required, tag = "12")]
    pub vnet_hdr: bool,
    /// `PACKET_LOSS`.
    #[prost(bool, required, tag = "13")]
    pub loss: bool,
    /// `PACKET_TIMESTAMP`.
    #[prost(uint32, required, tag = "14")]
    pub timestamp: u32,
    /// `PACKET_COPY_THRESH`.
    #[prost(uint32, required, tag = "15")]
    pub copy_thresh: u32,
    /// Multicast memberships.
    #[prost(message, repeated, tag = "16")]
    pub memberships: Vec<PacketMembership>,
    /// `PACKET_FANOUT`, all ones if not set.
    #[prost(uint32, optional, default = "4294967295", tag = "17")]
    pub fanout: Option<u32>,
    /// Ring for receiving.
    #[prost(message, optional, tag = "18")]
    pub rx_ring: Option<PacketRing>,
    /// Ring for sending.
    #[prost(message, optional, tag = "19")]
    pub tx_ring: Option<PacketRing>,
    /// Network namespace it lives in.
    #[prost(uint32, optional, tag = "20")]
    pub ns_id: Option<u32>,
}

/// One multicast membership.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PacketMembership {
    /// Interface.
    #[prost(uint32, required, tag = "1")]
    pub index: u32,
    /// `PACKET_MR_*` type.
    #[prost(uint32, required, tag = "2")]
    pub kind: u32,
    /// Link layer address.
    #[prost(bytes = "vec", required, tag = "3")]
    pub address: Vec<u8>,
}

/// One mapped ring.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PacketRing {
    /// Bytes in a block.
    #[prost(uint32, required, tag = "1")]
    pub block_size: u32,
    /// Number of blocks.
    #[prost(uint32, required, tag = "2")]
    pub blocks: u32,
    /// Bytes in a frame.
    #[prost(uint32, required, tag = "3")]
    pub frame_size: u32,
    /// Number of frames.
    #[prost(uint32, required, tag = "4")]
    pub frames: u32,
    /// Time after which a block is handed over, in milliseconds.
    #[prost(uint32, required, tag = "5")]
    pub retire_timeout: u32,
    /// Private bytes in a block.
    #[prost(uint32, required, tag = "6")]
    pub private_size: u32,
    /// Feature flags.
    #[prost(uint32, required, tag = "7")]
    pub features: u32,
}
