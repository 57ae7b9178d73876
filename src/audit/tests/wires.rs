//! The scan on real sockets.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::subject::{Subject, audit, blocker, entry, eventually, kind_of, note};
use crate::audit::{
    BlockerKind as Kind, DescriptorKind, TcpSocket, TcpState, UnixSocket, UnixState, UnixStyle,
};

fn tcp_of(fd: &impl AsRawFd) -> TcpSocket {
    match kind_of(fd) {
        DescriptorKind::Tcp(socket) => socket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tcp_addresses_and_states() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else {
            println!("skipped: {address}: not available");
            continue;
        };
        let local = listener.local_addr().unwrap();
        let found = tcp_of(&listener);
        assert_eq!((found.state, found.local, found.queued), (TcpState::Listen, Some(local), 0));
        let report = audit();
        assert_eq!(
            blocker(&report, listener.as_raw_fd()).unwrap().to_string(),
            format!("descriptor {}: tcp listener {local}, registered by nobody", listener.as_raw_fd())
        );

        let client = TcpStream::connect(local).unwrap();
        assert_eq!(tcp_of(&listener).queued, 1);
        let (server, _) = listener.accept().unwrap();
        let found = tcp_of(&client);
        assert_eq!(found.state, TcpState::Established);
        assert_eq!((found.local, found.remote), (Some(client.local_addr().unwrap()), Some(local)));
        drop(server);
        assert!(eventually(|| tcp_of(&client).state == TcpState::Passing));
    }
    let fresh = raw(AddressFamily::Inet, SockType::Stream).unwrap();
    assert_eq!(tcp_of(&fresh).state, TcpState::Closed);
}

#[test]
fn udp_sockets() {
    let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(bound.local_addr().unwrap()).unwrap();
    sender.send(b"queued").unwrap();
    match kind_of(&bound) {
        DescriptorKind::Udp(socket) => {
            assert_eq!(socket.local, Some(bound.local_addr().unwrap()));
            assert!(socket.queued > 0 && socket.remote.is_none());
        }
        other => panic!("{other:?}"),
    }
    let report = audit();
    let line = blocker(&report, sender.as_raw_fd()).unwrap().to_string();
    assert!(line.contains(&format!(" -> {}", bound.local_addr().unwrap())), "{line}");
    let fresh = raw(AddressFamily::Inet6, SockType::Datagram).unwrap();
    assert!(blocker(&audit(), fresh.as_raw_fd()).is_none());
}

fn raw(family: AddressFamily, kind: SockType) -> nix::Result<OwnedFd> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC, None)
}

fn unix_of(fd: &impl AsRawFd) -> UnixSocket {
    match kind_of(fd) {
        DescriptorKind::Unix(socket) => socket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unix_sockets() {
    let (one, two) = UnixStream::pair().unwrap();
    assert!(matches!(unix_of(&one).state, UnixState::Connected { .. }));
    let report = audit();
    assert!(blocker(&report, one.as_raw_fd()).is_none() && note(&report, one.as_raw_fd()).is_none());
    drop(two);
    assert!(eventually(|| unix_of(&one).state == UnixState::PeerGone));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listener");
    let listener = UnixListener::bind(&path).unwrap();
    let found = unix_of(&listener);
    assert_eq!(found.name.as_deref(), path.to_str());
    assert_eq!(found.state, UnixState::Listening { pending: 0 });
    let _client = UnixStream::connect(&path).unwrap();
    assert_eq!(unix_of(&listener).state, UnixState::Listening { pending: 1 });

    let name = format!("defrost-audit-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let datagram = UnixDatagram::bind_addr(&address).unwrap();
    let found = unix_of(&datagram);
    assert_eq!((found.style, found.name), (UnixStyle::Datagram, Some(format!("@{name}"))));
    let report = audit();
    assert_eq!(blocker(&report, datagram.as_raw_fd()).unwrap().kind, Kind::UnixListener);
}

#[test]
fn a_unix_peer_in_another_process_is_named() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let cat =
        Subject::start(Command::new("cat").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()));
    cat.audit_until(|report| report.process.process.name == "cat");
    let report = audit();
    let blocker = blocker(&report, ours.as_raw_fd()).unwrap();
    assert_eq!(blocker.kind, Kind::UnixPeer);
    assert!(blocker.target.contains(&format!("shared with cat (pid {}, /", cat.pid())), "{blocker}");
}

#[test]
fn sockets_of_other_protocols() {
    let cases = [
        (AddressFamily::Netlink, SockType::Raw, "NETLINK", None),
        (AddressFamily::Packet, SockType::Raw, "PACKET", Some(Kind::RawSocket)),
        (AddressFamily::Vsock, SockType::Stream, "AF_VSOCK", Some(Kind::OtherSocket)),
    ];
    for (family, style, protocol, kind) in cases {
        match raw(family, style) {
            Ok(socket) => {
                let report = audit();
                match &entry(&report, socket.as_raw_fd()).kind {
                    DescriptorKind::Socket(found) => assert_eq!(found.protocol, protocol),
                    other => panic!("{other:?}"),
                }
                assert_eq!(blocker(&report, socket.as_raw_fd()).map(|blocker| blocker.kind), kind);
            }
            Err(refused) => println!("skipped: {protocol}: {refused}"),
        }
    }
}
