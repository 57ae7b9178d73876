//! Asks the kernel about sockets by inode (`sock_diag(7)`), as CRIU does.
//!
//! Works for any process in the caller's network namespace. It must not know which descriptors the answers
//! are for.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId};
use netlink_packet_sock_diag::unix::{
    self, ShowFlags, UnixRequest, UnixResponse, nlas::Nla, nlas::UnixDiagName,
};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, SockDiagMessage, TCP_CLOSE, TCP_ESTABLISHED, TCP_LISTEN,
    TCP_SYN_RECV, TCP_TIME_WAIT, inet,
};
use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::TimeVal;

use super::sockets::{TcpSocket, TcpState, UdpSocket, UnixSocket, UnixState, UnixStyle};

/// How long all questions together may take. The kernel answers each from memory, in microseconds; a host with
/// a hundred thousand connections needs tens of milliseconds for the list.
const DEADLINE: Duration = Duration::from_secs(2);

/// The kernel fills at most 32 KiB of a dump at a time (`netlink_dump` in `net/netlink/af_netlink.c`).
const ANSWER: usize = 64 * 1024;

/// Any socket of that inode (`INET_DIAG_NOCOOKIE`).
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// A connection to the kernel's socket lists.
pub(super) struct SockDiag {
    socket: Socket,
    deadline: Instant,
    sequence: u32,
    buffer: Vec<u8>,
}

impl SockDiag {
    /// Opens the connection. Its deadline counts from now.
    pub(super) fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_SOCK_DIAG)?;
        let seconds = i64::try_from(DEADLINE.as_secs()).unwrap_or(1);
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(seconds, 0))?;
        Ok(Self { socket, deadline: Instant::now() + DEADLINE, sequence: 0, buffer: vec![0; ANSWER] })
    }

    /// The TCP sockets of these inodes. One that is missing in the answer is neither bound nor connected.
    pub(super) fn tcp(&mut self, inodes: &HashSet<u64>) -> io::Result<HashMap<u64, TcpSocket>> {
        let found = self.inet(IPPROTO_TCP, inodes)?;
        let socket = |answer: &InetResponseHeader| {
            let state = match answer.state {
                TCP_LISTEN => TcpState::Listen,
                TCP_ESTABLISHED => TcpState::Established,
                TCP_CLOSE => TcpState::Closed,
                _ => TcpState::Passing,
            };
            let (local, remote) = addresses(&answer.socket_id);
            TcpSocket { state, local, remote, queued: answer.recv_queue }
        };
        Ok(found.iter().map(|(inode, answer)| (*inode, socket(answer))).collect())
    }

    /// The UDP sockets of these inodes. One that is missing in the answer is not bound.
    pub(super) fn udp(&mut self, inodes: &HashSet<u64>) -> io::Result<HashMap<u64, UdpSocket>> {
        let found = self.inet(IPPROTO_UDP, inodes)?;
        let socket = |answer: &InetResponseHeader| {
            let (local, remote) = addresses(&answer.socket_id);
            UdpSocket { local, remote, queued: answer.recv_queue }
        };
        Ok(found.iter().map(|(inode, answer)| (*inode, socket(answer))).collect())
    }

    /// One Unix socket; `None` when there is none of that inode in this network namespace.
    pub(super) fn unix(&mut self, inode: u64) -> io::Result<Option<UnixSocket>> {
        let Ok(number) = u32::try_from(inode) else { return Ok(None) };
        let request = UnixRequest {
            state_flags: unix::StateFlags::all(),
            inode: number,
            show_flags: ShowFlags::NAME | ShowFlags::PEER | ShowFlags::RQLEN,
            cookie: NO_COOKIE,
        };
        let mut answer = None;
        self.ask(SockDiagMessage::UnixRequest(request), 0, |message| {
            if let SockDiagMessage::UnixResponse(response) = message {
                answer = Some(unix_answer(&response));
            }
        })?;
        Ok(answer)
    }

    fn inet(&mut self, protocol: u8, inodes: &HashSet<u64>) -> io::Result<HashMap<u64, InetResponseHeader>> {
        // Neither half-open nor lingering connections belong to a descriptor, and a busy host has very many.
        let unowned = (1 << TCP_SYN_RECV) | (1 << TCP_TIME_WAIT);
        let mut found = HashMap::new();
        for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
            let request = InetRequest {
                family,
                protocol,
                extensions: ExtensionFlags::empty(),
                states: inet::StateFlags::from_bits_retain(!unowned),
                socket_id,
            };
            self.ask(SockDiagMessage::InetRequest(request), NLM_F_DUMP, |message| {
                if let SockDiagMessage::InetResponse(response) = message {
                    let inode = u64::from(response.header.inode);
                    if inodes.contains(&inode) {
                        found.insert(inode, response.header);
                    }
                }
            })?;
        }
        Ok(found)
    }

    /// Sends one question and hands over each part of the answer. No such socket, or no such list in this
    /// kernel (both `ENOENT`), is an empty answer.
    fn ask(
        &mut self,
        question: SockDiagMessage,
        flags: u16,
        mut each: impl FnMut(SockDiagMessage),
    ) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(question));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            if Instant::now() > self.deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let length = match self.socket.recv(&mut &mut self.buffer[..], 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            if self.parts(length, flags == 0, &mut each)? {
                return Ok(());
            }
        }
    }

    /// Reads one datagram of an answer; true when the answer is complete.
    fn parts(&self, length: usize, single: bool, each: &mut impl FnMut(SockDiagMessage)) -> io::Result<bool> {
        let mut rest = &self.buffer[..length];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
            // Messages are aligned to four bytes (`NLMSG_ALIGN`).
            let aligned = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(aligned.max(4)..).unwrap_or_default();
            if message.header.sequence_number != self.sequence {
                continue;
            }
            match message.payload {
                NetlinkPayload::InnerMessage(inner) => {
                    each(inner);
                    if single {
                        return Ok(true);
                    }
                }
                NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::Error(error) => {
                    return match error.to_io() {
                        missing if missing.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(true),
                        other => Err(other),
                    };
                }
                _ => {}
            }
        }
        Ok(false)
    }
}

fn unix_answer(response: &UnixResponse) -> UnixSocket {
    let name = response.name().map(|name| match name {
        UnixDiagName::Pathname(path) => path.to_string_lossy().into_owned(),
        UnixDiagName::Abstract(bytes) => format!("@{}", String::from_utf8_lossy(bytes)),
    });
    let queued = response.nlas.iter().find_map(|nla| match nla {
        Nla::ReceiveQueueLength(first, _) => Some(*first),
        _ => None,
    });
    let state = match (response.header.state, response.peer()) {
        (TCP_LISTEN, _) => UnixState::Listening { pending: queued.unwrap_or(0) },
        // The kernel names a peer without an inode 0: it is closed, or not yet accepted (`sk_diag_dump_peer`).
        (_, Some(0)) => UnixState::PeerGone,
        (_, Some(peer)) => UnixState::Connected { peer: u64::from(peer), peer_name: None },
        (_, None) => UnixState::Unconnected,
    };
    let style = match i32::from(response.header.kind) {
        libc::SOCK_DGRAM => UnixStyle::Datagram,
        libc::SOCK_SEQPACKET => UnixStyle::Packet,
        _ => UnixStyle::Stream,
    };
    UnixSocket { style, state, name }
}

/// Own and remote address; an all-zero one is none.
fn addresses(id: &SocketId) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let address = |ip: IpAddr, port: u16| {
        (port != 0 || !ip.is_unspecified()).then(|| SocketAddr::new(ip.to_canonical(), port))
    };
    (address(id.source_address, id.source_port), address(id.destination_address, id.destination_port))
}
