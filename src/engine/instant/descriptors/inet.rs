//! Sockets of the internet protocols that are connected to nobody: listening, bound or new TCP, and UDP.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use criu_images::{InetSocket, IpOptions, TcpOptions};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, sockopt};

use super::nonblocking;
use super::sockets::{Options, Setting, shut_down};

const LISTENS: u32 = 10;
const CLOSED: u32 = 7;
const ESTABLISHED: u32 = 1;
/// `IPPROTO_*`, as the image has them; the default of the type is recorded by its number.
const TCP: u32 = 6;
const UDP: u32 = 17;

/// How to make one.
#[derive(Debug)]
pub(super) struct Inet {
    family: AddressFamily,
    udp: bool,
    /// Set before it is bound.
    before: Vec<Setting>,
    address: Option<SocketAddr>,
    backlog: Option<i32>,
    peer: Option<SocketAddr>,
    /// Set when it is where it was, if the socket does not have them by itself.
    after: Vec<Setting>,
    ttl: Option<u32>,
    options: Options,
    shutdown: Option<rustix::net::Shutdown>,
    nonblocking: bool,
}

impl Inet {
    /// Decides.
    ///
    /// # Errors
    /// What the socket is, if it cannot be made again.
    pub(super) fn of(socket: &InetSocket) -> Result<Self, String> {
        let udp = match (socket.kind, socket.protocol) {
            (1, 0 | TCP) => false,
            (2, 0 | UDP) => true,
            (_, protocol) => return Err(format!("an internet socket of protocol {protocol}")),
        };
        match socket.state {
            LISTENS | CLOSED if !udp => {}
            ESTABLISHED | CLOSED if udp => {}
            _ => return Err("a tcp connection".to_owned()),
        }
        let v6 = match socket.family {
            2 => false,
            10 => true,
            family => return Err(format!("an internet socket of family {family}")),
        };
        let odd = || "an internet socket with an impossible address".to_owned();
        let bound = socket.src_port != 0;
        let address = bound.then(|| scoped(socket, socket.local().ok_or_else(odd)?)).transpose()?;
        let connected = socket.dst_port != 0;
        if connected && !udp {
            return Err("a tcp connection".to_owned());
        }
        let peer = connected.then(|| scoped(socket, socket.peer().ok_or_else(odd)?)).transpose()?;
        let mut made = Self {
            family: if v6 { AddressFamily::INET6 } else { AddressFamily::INET },
            udp,
            before: Vec::new(),
            address,
            backlog: (socket.state == LISTENS).then(|| i32::try_from(socket.backlog).unwrap_or(i32::MAX)),
            peer,
            after: Vec::new(),
            ttl: None,
            options: Options::of(&socket.options)?,
            shutdown: shut_down(socket.shutdown)?.filter(|_| connected),
            nonblocking: nonblocking(socket.flags),
        };
        made.choose_reuse(socket);
        if v6 {
            let only = socket.v6only.unwrap_or(false).into();
            made.before.push(Setting::number(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only));
        }
        made.internet(socket.ip_options.as_ref(), v6)?;
        made.transmission(socket);
        Ok(made)
    }

    /// A TCP port whose last connections have not timed out is taken with SO_REUSEADDR only, whatever the socket
    /// had when it was first bound; nobody who listens there is robbed of it. Of UDP two sockets would share it.
    fn choose_reuse(&mut self, socket: &InetSocket) {
        let had = socket.options.reuse_address == Some(true);
        if had || !self.udp {
            self.before.push(Setting::number(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1));
        }
        if !had && !self.udp {
            self.after.push(Setting::number(libc::SOL_SOCKET, libc::SO_REUSEADDR, 0));
        }
        if socket.options.reuse_port == Some(true) {
            self.before.push(Setting::number(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1));
        }
    }

    fn internet(&mut self, options: Option<&IpOptions>, v6: bool) -> Result<(), String> {
        let Some(options) = options else { return Ok(()) };
        if options.raw.is_some() {
            return Err("a raw internet socket".to_owned());
        }
        if options.freebind == Some(true) {
            self.before.push(Setting::number(libc::IPPROTO_IP, libc::IP_FREEBIND, 1));
        }
        if options.pktinfo == Some(true) {
            let (level, name) = match v6 {
                true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
                false => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            };
            self.after.push(Setting::number(level, name, 1));
        }
        let tos = options.tos.filter(|tos| *tos != 0);
        self.after.extend(tos.map(|tos| Setting::number(libc::IPPROTO_IP, libc::IP_TOS, tos)));
        self.ttl = options.ttl.filter(|ttl| *ttl != 0);
        Ok(())
    }

    fn transmission(&mut self, socket: &InetSocket) {
        let Some(TcpOptions { cork, nodelay, keepalive_count, keepalive_idle, keepalive_interval }) =
            socket.tcp_options.as_ref()
        else {
            return;
        };
        let on = |option: &Option<bool>| option.filter(|on| *on).map(u32::from);
        let set = |option: &Option<u32>| option.filter(|value| *value != 0);
        for (name, value) in [
            (libc::TCP_CORK, on(cork)),
            (libc::TCP_NODELAY, on(nodelay)),
            (libc::TCP_KEEPCNT, set(keepalive_count)),
            (libc::TCP_KEEPIDLE, set(keepalive_idle)),
            (libc::TCP_KEEPINTVL, set(keepalive_interval)),
        ] {
            self.after.extend(value.map(|value| Setting::number(libc::IPPROTO_TCP, name, value)));
        }
    }

    /// Makes it.
    ///
    /// # Errors
    /// The kernel's own: `AddrInUse` when somebody else has its port.
    pub(super) fn make(&self) -> io::Result<OwnedFd> {
        let (kind, protocol): (SocketType, Protocol) =
            if self.udp { (SocketType::DGRAM, ipproto::UDP) } else { (SocketType::STREAM, ipproto::TCP) };
        let socket = rustix::net::socket_with(self.family, kind, SocketFlags::CLOEXEC, Some(protocol))?;
        self.before.iter().try_for_each(|setting| setting.apply(&socket))?;
        if let Some(address) = &self.address {
            rustix::net::bind(&socket, address)?;
        }
        if let Some(backlog) = self.backlog {
            rustix::net::listen(&socket, backlog)?;
        }
        if let Some(peer) = &self.peer {
            rustix::net::connect(&socket, peer)?;
        }
        self.options.apply(&socket)?;
        self.after.iter().try_for_each(|setting| setting.apply(&socket))?;
        if let Some(ttl) = self.ttl
            && sockopt::ip_ttl(&socket)? != ttl
        {
            sockopt::set_ip_ttl(&socket, ttl)?;
        }
        if let Some(how) = self.shutdown {
            rustix::net::shutdown(&socket, how)?;
        }
        rustix::io::ioctl_fionbio(&socket, self.nonblocking)?;
        Ok(socket)
    }
}

/// An address with the interface that it is valid on.
fn scoped(socket: &InetSocket, address: SocketAddr) -> Result<SocketAddr, String> {
    match (address, socket.interface.as_deref()) {
        (SocketAddr::V6(mut address), Some(name)) => {
            let index = nix::net::if_::if_nametoindex(name);
            address.set_scope_id(index.map_err(|error| format!("bound to interface {name}: {error}"))?);
            Ok(address.into())
        }
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use criu_images::SocketOptions;

    use super::*;

    fn socket(kind: u32, protocol: u32, state: u32) -> InetSocket {
        InetSocket {
            family: 2,
            kind,
            protocol,
            state,
            backlog: 5,
            src_addr: vec![u32::from_le_bytes([127, 0, 0, 1])],
            dst_addr: vec![0],
            options: SocketOptions {
                send_buffer: 16_384,
                receive_buffer: 131_072,
                keepalive: Some(true),
                ..SocketOptions::default()
            },
            ..InetSocket::default()
        }
    }

    #[test]
    fn connections_and_other_protocols_are_reasons() {
        for (kind, protocol, state, reason) in [
            (1, TCP, ESTABLISHED, "a tcp connection"),
            (1, TCP, 8, "a tcp connection"),
            (3, 1, CLOSED, "an internet socket of protocol 1"),
            (2, 136, CLOSED, "an internet socket of protocol 136"),
        ] {
            assert_eq!(Inet::of(&socket(kind, protocol, state)).unwrap_err(), reason);
        }
        let raw = IpOptions { raw: Some(criu_images::RawOptions::default()), ..IpOptions::default() };
        let raw = InetSocket { ip_options: Some(raw), ..socket(2, UDP, CLOSED) };
        assert!(Inet::of(&raw).unwrap_err().contains("raw"));
    }

    #[test]
    fn a_listener_takes_its_port_and_has_its_options() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listening = InetSocket { src_port: free.port().into(), flags: 0x802, ..socket(1, TCP, LISTENS) };
        let made = Inet::of(&listening).unwrap();
        let fd = made.make().unwrap();
        assert!(sockopt::socket_acceptconn(&fd).unwrap());
        assert!(sockopt::socket_keepalive(&fd).unwrap());
        assert!(!sockopt::socket_reuseaddr(&fd).unwrap(), "as it was");
        assert!(rustix::fs::fcntl_getfl(&fd).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        assert_eq!(made.make().unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
