//! Sockets by inode: protocol, addresses, state and peer.
//!
//! Plain data with its text. It must not know how the kernel is asked (see `sock_diag`), nor what is allowed.

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

/// A TCP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TcpSocket {
    /// Where the connection is.
    pub state: TcpState,
    /// The own address; absent when the socket is not bound.
    pub local: Option<SocketAddr>,
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// Bytes not yet read; on a listener, connections not yet accepted.
    pub queued: u32,
}

/// The state of a TCP socket, from the kernel's `include/net/tcp_states.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpState {
    /// Accepting.
    Listen,
    /// Not connected.
    Closed,
    /// Connected.
    Established,
    /// Connecting, or being closed by either side: still a connection to the kernel and to CRIU.
    Passing,
    /// The kernel could not be asked: the socket is in another network namespace.
    Unknown,
}

/// A UDP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UdpSocket {
    /// The own address; absent when the socket is not bound.
    pub local: Option<SocketAddr>,
    /// The address it is connected to.
    pub remote: Option<SocketAddr>,
    /// Bytes of datagrams not yet read. They are dropped by CRIU.
    pub queued: u32,
}

/// A Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnixSocket {
    /// Stream, datagram or packets in sequence.
    pub style: UnixStyle,
    /// What it is connected to.
    pub state: UnixState,
    /// Its path, or its abstract name with a leading `@`.
    pub name: Option<String>,
}

/// The type of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnixStyle {
    /// `SOCK_STREAM`
    Stream,
    /// `SOCK_DGRAM`
    Datagram,
    /// `SOCK_SEQPACKET`
    Packet,
}

/// What a Unix socket is connected to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum UnixState {
    /// Accepting.
    Listening {
        /// Connections not yet accepted.
        pending: u32,
    },
    /// Connected.
    Connected {
        /// The peer's inode.
        peer: u64,
        /// The peer's own name, where it has one: for a client, the path of the server.
        peer_name: Option<String>,
    },
    /// Was connected; the other end is closed, or waits in the queue of a listener to be accepted.
    PeerGone,
    /// Not connected.
    Unconnected,
    /// The kernel could not be asked: the socket is in another network namespace.
    Unknown,
}

/// A socket that is neither Unix, TCP nor UDP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OtherSocket {
    /// The kernel's name of the protocol: `RAW`, `PACKET`, `NETLINK`, `MPTCP`, `AF_VSOCK`.
    pub protocol: String,
    /// Bytes not yet read, where the kernel tells (netlink).
    pub queued: u32,
}

impl TcpSocket {
    /// A socket of which nothing but the protocol is known.
    #[must_use]
    pub fn in_state(state: TcpState) -> Self {
        Self { state, local: None, remote: None, queued: 0 }
    }

    /// The noun for people.
    #[must_use]
    pub fn noun(&self) -> &'static str {
        match self.state {
            TcpState::Listen => "tcp listener",
            TcpState::Established | TcpState::Passing => "tcp connection",
            TcpState::Closed | TcpState::Unknown => "tcp socket",
        }
    }
}

impl UnixSocket {
    /// The noun for people.
    #[must_use]
    pub fn noun(&self) -> &'static str {
        match (&self.state, self.style) {
            (UnixState::Listening { .. }, _) => "unix listener",
            (_, UnixStyle::Stream) => "unix stream",
            (_, UnixStyle::Datagram) => "unix datagram socket",
            (_, UnixStyle::Packet) => "unix packet socket",
        }
    }

    /// The inode of the peer, when there is one.
    #[must_use]
    pub fn peer(&self) -> Option<u64> {
        match self.state {
            UnixState::Connected { peer, .. } => Some(peer),
            _ => None,
        }
    }
}

impl fmt::Display for TcpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            TcpState::Listen => write_address(f, self.local),
            TcpState::Closed => f.write_str("not connected"),
            TcpState::Unknown => f.write_str("in another network namespace"),
            TcpState::Established | TcpState::Passing => {
                write_address(f, self.local)?;
                f.write_str(" -> ")?;
                write_address(f, self.remote)?;
                f.write_str(if self.state == TcpState::Passing {
                    " (opening or closing)"
                } else {
                    " (established)"
                })
            }
        }
    }
}

impl fmt::Display for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.local.is_none() && self.remote.is_none() {
            return f.write_str("not bound");
        }
        write_address(f, self.local)?;
        if self.remote.is_some() {
            f.write_str(" -> ")?;
            write_address(f, self.remote)?;
        }
        Ok(())
    }
}

impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("without a name");
        match &self.state {
            UnixState::Listening { .. } | UnixState::Unconnected => f.write_str(name),
            UnixState::Connected { peer_name: Some(peer), .. } => write!(f, "to {peer}"),
            UnixState::Connected { peer_name: None, .. } => f.write_str(name),
            UnixState::PeerGone => write!(f, "{name}, its peer is gone"),
            UnixState::Unknown => f.write_str("in another network namespace"),
        }
    }
}

fn write_address(f: &mut fmt::Formatter<'_>, address: Option<SocketAddr>) -> fmt::Result {
    match address {
        Some(address) => write!(f, "{address}"),
        None => f.write_str("?"),
    }
}
