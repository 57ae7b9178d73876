//! Sockets of the internet protocols.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::owner::Owner;
use super::socket::{Shutdown, SocketOptions, TcpOptions};

/// `AF_INET`.
const FAMILY_V4: u32 = 2;
/// `AF_INET6`.
const FAMILY_V6: u32 = 10;
/// `SOCK_STREAM`.
const STREAM: u32 = 1;
/// `IPPROTO_TCP`.
const TCP: u32 = 6;
/// `TCP_LISTEN` of the kernel's socket states.
const STATE_LISTEN: u32 = 10;
/// `TCP_ESTABLISHED` of the kernel's socket states.
const STATE_ESTABLISHED: u32 = 1;

/// A TCP, UDP, raw or ICMP socket.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InetSocket {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Socket inode, the number in `socket:[N]`.
    #[prost(uint32, required, tag = "2")]
    pub inode: u32,
    /// `AF_INET` or `AF_INET6`.
    #[prost(uint32, required, tag = "3")]
    pub family: u32,
    /// `SOCK_*` type.
    #[prost(uint32, required, tag = "4")]
    pub kind: u32,
    /// `IPPROTO_*` number.
    #[prost(uint32, required, tag = "5")]
    pub protocol: u32,
    /// Kernel's socket state; 1 established, 7 closed, 10 listening.
    #[prost(uint32, required, tag = "6")]
    pub state: u32,
    /// Own port, in host order.
    #[prost(uint32, required, tag = "7")]
    pub src_port: u32,
    /// Peer's port, in host order.
    #[prost(uint32, required, tag = "8")]
    pub dst_port: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "9")]
    pub flags: u32,
    /// Length of the accept queue.
    #[prost(uint32, required, tag = "10")]
    pub backlog: u32,
    /// Own address, words in memory order; see [`InetSocket::local`].
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub src_addr: Vec<u32>,
    /// Peer's address, words in memory order; see [`InetSocket::peer`].
    #[prost(uint32, repeated, packed = "false", tag = "12")]
    pub dst_addr: Vec<u32>,
    /// Who gets its signals.
    #[prost(message, required, tag = "13")]
    pub owner: Owner,
    /// Socket options.
    #[prost(message, required, tag = "14")]
    pub options: SocketOptions,
    /// Takes no IPv4 connections.
    #[prost(bool, optional, tag = "15")]
    pub v6only: Option<bool>,
    /// Options of the internet layer.
    #[prost(message, optional, tag = "16")]
    pub ip_options: Option<IpOptions>,
    /// Interface of a link-local address.
    #[prost(string, optional, tag = "17")]
    pub interface: Option<String>,
    /// Network namespace it lives in.
    #[prost(uint32, optional, tag = "18")]
    pub ns_id: Option<u32>,
    /// Directions shut down.
    #[prost(enumeration = "Shutdown", optional, tag = "19")]
    pub shutdown: Option<i32>,
    /// Options of TCP.
    #[prost(message, optional, tag = "20")]
    pub tcp_options: Option<TcpOptions>,
}

/// Options of the internet layer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct IpOptions {
    /// May bind an address the host does not have.
    #[prost(bool, optional, tag = "1")]
    pub freebind: Option<bool>,
    /// Options of raw sockets.
    #[prost(message, optional, tag = "4")]
    pub raw: Option<RawOptions>,
    /// Delivers the destination of datagrams.
    #[prost(bool, optional, tag = "5")]
    pub pktinfo: Option<bool>,
    /// Type of service.
    #[prost(uint32, optional, tag = "6")]
    pub tos: Option<u32>,
    /// Time to live.
    #[prost(uint32, optional, tag = "7")]
    pub ttl: Option<u32>,
}

/// Options of raw sockets.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RawOptions {
    /// The program writes IP headers.
    #[prost(bool, optional, tag = "1")]
    pub hdrincl: Option<bool>,
    /// Fragments are not put together.
    #[prost(bool, optional, tag = "2")]
    pub nodefrag: Option<bool>,
    /// Kernel computes checksums.
    #[prost(bool, optional, tag = "3")]
    pub checksum: Option<bool>,
    /// ICMP types not delivered.
    #[prost(uint32, repeated, packed = "false", tag = "4")]
    pub icmp_filter: Vec<u32>,
}

impl InetSocket {
    /// Own address; `None` if family or length is not of an internet address.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        address(self.family, &self.src_addr, self.src_port)
    }

    /// Peer's address; `None` as above. Unconnected sockets give the unspecified address.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        address(self.family, &self.dst_addr, self.dst_port)
    }

    /// Whether it accepts connections. Only TCP sockets have the state.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.is_tcp() && self.state == STATE_LISTEN
    }

    /// Whether it is an established TCP connection, which a restore needs an option for.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.is_tcp() && self.state == STATE_ESTABLISHED
    }

    fn is_tcp(&self) -> bool {
        // Protocol 0 asks for the default of the type.
        self.kind == STREAM && matches!(self.protocol, 0 | TCP)
    }
}

/// CRIU copies the kernel's network-order words into a host-order field, so the bytes of each word
/// in memory are the address.
fn address(family: u32, words: &[u32], port: u32) -> Option<SocketAddr> {
    let port = u16::try_from(port).ok()?;
    let ip = match (family, words) {
        (FAMILY_V4, [word]) => IpAddr::from(Ipv4Addr::from(word.to_le_bytes())),
        (FAMILY_V6, [a, b, c, d]) => {
            let mut octets = [0; 16];
            for (chunk, word) in octets.chunks_exact_mut(4).zip([a, b, c, d]) {
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            IpAddr::from(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}
