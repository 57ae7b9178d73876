//! Sockets that talk to the kernel: netlink. What the kernel has sent and nobody read is lost, with CRIU too.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use criu_images::NetlinkSocket;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RawProtocol, SocketFlags, SocketType};

use super::nonblocking;
use super::sockets::{Options, Setting};

/// setsockopt(2) of netlink(7).
const SOL_NETLINK: i32 = 270;
const NETLINK_ADD_MEMBERSHIP: i32 = 1;

/// How to make one.
#[derive(Debug)]
pub(super) struct Netlink {
    /// `None` for the first, `NETLINK_ROUTE`.
    protocol: Option<Protocol>,
    port: u32,
    memberships: Vec<Setting>,
    peer: Option<(u32, u32)>,
    options: Options,
    nonblocking: bool,
}

impl Netlink {
    /// Decides.
    ///
    /// # Errors
    /// What the socket is, if it cannot be made again.
    pub(super) fn of(socket: &NetlinkSocket) -> Result<Self, String> {
        let groups = (1..).zip(socket.groups.iter().flat_map(|word| (0..32).map(move |bit| word >> bit & 1)));
        let member = groups.filter(|(_, member)| *member != 0);
        let membership = |(group, _): (u32, u32)| Setting::number(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group);
        let peer = (socket.dst_portid, socket.dst_group);
        Ok(Self {
            protocol: NonZeroU32::new(socket.protocol)
                .map(|number| Protocol::from_raw(RawProtocol::from(number))),
            port: socket.portid,
            memberships: member.map(membership).collect(),
            peer: Some(peer).filter(|peer| *peer != (0, 0)),
            options: Options::of(&socket.options)?,
            nonblocking: nonblocking(socket.flags),
        })
    }

    /// Makes it.
    ///
    /// # Errors
    /// The kernel's own: `AddrInUse` when another socket has its port.
    pub(super) fn make(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, self.protocol)?;
        if self.port != 0 {
            rustix::net::bind(&socket, &SocketAddrNetlink::new(self.port, 0))?;
        }
        if let Some((port, group)) = self.peer {
            rustix::net::connect(&socket, &SocketAddrNetlink::new(port, group))?;
        }
        self.memberships.iter().try_for_each(|membership| membership.apply(&socket))?;
        self.options.apply(&socket)?;
        rustix::io::ioctl_fionbio(&socket, self.nonblocking)?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use criu_images::SocketOptions;

    use super::*;

    #[test]
    fn it_has_its_port_and_groups() {
        let options =
            SocketOptions { send_buffer: 212_992, receive_buffer: 212_992, ..SocketOptions::default() };
        // A port that no process has for its own.
        let port = 0x7000_0000 + std::process::id();
        let socket =
            NetlinkSocket { portid: port, groups: vec![1 << 4], options, ..NetlinkSocket::default() };
        let fd = Netlink::of(&socket).unwrap().make().unwrap();
        let name = SocketAddrNetlink::try_from(rustix::net::getsockname(&fd).unwrap()).unwrap();
        assert_eq!((name.pid(), name.groups()), (port, 1 << 4));
    }
}
