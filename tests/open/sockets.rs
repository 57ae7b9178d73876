//! Sockets that are connected to nobody outside: listening, bound, new, paired.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::scene::Scene;

const LOCAL: [u8; 4] = [127, 0, 0, 1];

pub fn set(scene: &mut Scene) {
    listeners(scene);
    both_families(scene);
    tcp_to_nobody(scene);
    datagrams(scene);
    unix_listeners(scene);
    unix_datagrams(scene);
    netlink(scene);
    pairs(scene);
    a_pair_half_closed(scene);
}

fn tcp(family: AddressFamily) -> OwnedFd {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A client is accepted, and hears what is sent.
#[track_caller]
fn accepts(listener: &TcpListener, address: SocketAddr) {
    let mut client = TcpStream::connect(address).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"hi").unwrap();
    client.read_exact(&mut [0; 2]).unwrap();
    drop(client);
    ends(&server);
}

/// The client has closed it, and did so first: the port is free for the next restore.
#[track_caller]
fn ends(server: &TcpStream) {
    server.set_nonblocking(false).unwrap();
    assert_eq!({ server }.read(&mut [0; 1]).unwrap(), 0);
}

fn listeners(scene: &mut Scene) {
    let socket = tcp(AddressFamily::INET);
    sockopt::set_socket_keepalive(&socket, true).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 50_000).unwrap();
    sockopt::set_tcp_nodelay(&socket, true).unwrap();
    sockopt::set_tcp_keepidle(&socket, Duration::from_secs(99)).unwrap();
    sockopt::set_ip_tos(&socket, 16).unwrap();
    sockopt::set_ip_ttl(&socket, 33).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((LOCAL, 0))).unwrap();
    rustix::net::listen(&socket, 7).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    scene.add("tcp_listener", move || {
        assert_eq!(listener.local_addr().unwrap(), address);
        accepts(&listener, address);
        assert!(sockopt::socket_keepalive(&listener).unwrap() && sockopt::tcp_nodelay(&listener).unwrap());
        assert!(!sockopt::socket_reuseaddr(&listener).unwrap(), "as it was");
        assert_eq!(sockopt::tcp_keepidle(&listener).unwrap(), Duration::from_secs(99));
        assert_eq!(sockopt::socket_recv_buffer_size(&listener).unwrap(), 100_000);
        assert_eq!((sockopt::ip_tos(&listener).unwrap(), sockopt::ip_ttl(&listener).unwrap()), (16, 33));
    });

    let shared = |address: SocketAddr| {
        let socket = tcp(AddressFamily::INET);
        sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 9).unwrap();
        TcpListener::from(socket)
    };
    let one = shared(SocketAddr::from((LOCAL, 0)));
    let address = one.local_addr().unwrap();
    let two = shared(address);
    one.set_nonblocking(true).unwrap();
    two.set_nonblocking(true).unwrap();
    scene.add("reuseport", move || {
        let client = TcpStream::connect(address).unwrap();
        let accepted: Vec<_> =
            [&one, &two].into_iter().filter_map(|listener| listener.accept().ok()).collect();
        assert_eq!(accepted.len(), 1, "one of them has it");
        drop(client);
        ends(&accepted[0].0);
        assert!(sockopt::socket_reuseport(&one).unwrap() && sockopt::socket_reuseport(&two).unwrap());
    });
}

fn both_families(scene: &mut Scene) {
    let listen = |only: bool| {
        let socket = tcp(AddressFamily::INET6);
        sockopt::set_ipv6_v6only(&socket, only).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([0_u16; 8], 0))).unwrap();
        rustix::net::listen(&socket, 5).unwrap();
        TcpListener::from(socket)
    };
    let (both, six) = (listen(false), listen(true));
    scene.add("tcp6", move || {
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        accepts(&both, SocketAddr::from((LOCAL, port(&both))));
        accepts(&six, SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port(&six))));
        assert!(TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port(&six))).is_err());
        assert!(sockopt::socket_reuseaddr(&six).unwrap());
        assert_eq!(
            (sockopt::ipv6_v6only(&both).unwrap(), sockopt::ipv6_v6only(&six).unwrap()),
            (false, true)
        );
    });
}

fn tcp_to_nobody(scene: &mut Scene) {
    let (new, bound) = (tcp(AddressFamily::INET), tcp(AddressFamily::INET));
    sockopt::set_tcp_nodelay(&new, true).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from((LOCAL, 0))).unwrap();
    let local = |socket: &OwnedFd| rustix::net::getsockname(socket).unwrap();
    let (address, nowhere) = (local(&bound), local(&new));
    scene.add("tcp_to_nobody", move || {
        assert_eq!((local(&bound), local(&new)), (address, nowhere));
        assert!(sockopt::tcp_nodelay(&new).unwrap());
        rustix::net::listen(&bound, 1).unwrap();
        let address = SocketAddr::try_from(local(&bound)).unwrap();
        rustix::net::connect(&new, &address).unwrap();
        let (server, _) = TcpListener::from(bound).accept().unwrap();
        drop(new);
        ends(&server);
    });
}

fn datagrams(scene: &mut Scene) {
    let (one, two) =
        (UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap(), UdpSocket::bind("[::1]:0").unwrap());
    one.set_broadcast(true).unwrap();
    one.set_nonblocking(true).unwrap();
    let (address, six) = (one.local_addr().unwrap(), two.local_addr().unwrap());
    let client = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    client.connect(address).unwrap();
    one.connect(client.local_addr().unwrap()).unwrap();
    let new = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    scene.add("udp", move || {
        assert!(one.broadcast().unwrap());
        assert_eq!((one.local_addr().unwrap(), two.local_addr().unwrap()), (address, six));
        assert_eq!(client.peer_addr().unwrap(), address);
        client.send(b"to").unwrap();
        let mut bytes = [0; 9];
        assert_eq!(one.recv(&mut bytes).unwrap(), 2);
        one.send(b"fro").unwrap();
        assert_eq!(client.recv(&mut bytes).unwrap(), 3);
        let other = UdpSocket::bind("[::1]:0").unwrap();
        other.send_to(b"four", six).unwrap();
        assert_eq!(two.recv(&mut bytes).unwrap(), 4);
        assert_eq!(sockopt::socket_type(&new).unwrap(), SocketType::DGRAM);
    });
}

#[track_caller]
fn connects(listener: &UnixListener, address: &UnixAddress) {
    let mut client = UnixStream::connect_addr(address).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"hi").unwrap();
    client.read_exact(&mut [0; 2]).unwrap();
    assert_eq!(listener.local_addr().unwrap().as_pathname(), address.as_pathname());
}

fn unix_listeners(scene: &mut Scene) {
    let path = scene.folder.join("listener.sock");
    let by_path = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    let relative = UnixListener::bind("relative.sock").unwrap();
    let name = format!("defrost-test-{}\0x", std::process::id());
    let abstracted = UnixAddress::from_abstract_name(name).unwrap();
    let by_name = UnixListener::bind_addr(&abstracted).unwrap();
    scene.add("unix_listeners", move || {
        connects(&by_path, &UnixAddress::from_pathname(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o620);
        connects(&relative, &UnixAddress::from_pathname("relative.sock").unwrap());
        connects(&by_name, &abstracted);
        assert_eq!(by_name.local_addr().unwrap().as_abstract_name(), abstracted.as_abstract_name());
    });
}

fn unix_datagrams(scene: &mut Scene) {
    let path = scene.folder.join("datagram.sock");
    let bound = UnixDatagram::bind(&path).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    for text in ["first", "second"] {
        sender.send_to(text.as_bytes(), &path).unwrap();
    }
    bound.set_nonblocking(true).unwrap();
    let client = UnixDatagram::unbound().unwrap();
    client.connect(&path).unwrap();
    let name = format!("defrost-test-{}-datagram", std::process::id());
    let abstracted = UnixAddress::from_abstract_name(name).unwrap();
    let named = UnixDatagram::bind_addr(&abstracted).unwrap();
    scene.add("unix_datagrams", move || {
        let mut bytes = [0; 9];
        let sizes = [(); 2].map(|()| bound.recv(&mut bytes).unwrap());
        assert_eq!((sizes, &bytes[..6]), ([5, 6], b"second".as_slice()));
        assert!(bound.recv(&mut bytes).is_err(), "that is all");
        client.send(b"by the other").unwrap();
        assert_eq!(bound.recv(&mut [0; 20]).unwrap(), 12, "it is connected");
        sender.send_to_addr(b"more", &abstracted).unwrap();
        assert_eq!(named.recv(&mut bytes).unwrap(), 4);
    });
}

/// One that is told of changes of addresses, and asks the kernel for its links.
fn netlink(scene: &mut Scene) {
    use rustix::net::netlink::SocketAddrNetlink;
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 1 << 4)).unwrap();
    let name = |socket: &OwnedFd| {
        let name = SocketAddrNetlink::try_from(rustix::net::getsockname(socket).unwrap()).unwrap();
        (name.pid(), name.groups())
    };
    let before = name(&socket);
    scene.add("netlink", move || {
        assert_eq!(name(&socket), before);
        // struct nlmsghdr and rtgenmsg: RTM_GETLINK, a request for all.
        let mut request = [0; 20];
        request[0] = 20;
        request[4..8].copy_from_slice(&[18, 0, 1, 3]);
        rustix::net::send(&socket, &request, SendFlags::empty()).unwrap();
        let mut answer = [0; 8192];
        let (count, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).unwrap();
        assert!(count > 16);
    });
}

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

#[track_caller]
fn received(socket: impl AsFd) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let (count, _) = rustix::net::recv(socket, bytes.as_mut_slice(), RecvFlags::DONTWAIT).unwrap();
    bytes.truncate(count);
    bytes
}

fn pairs(scene: &mut Scene) {
    let (one, other) = pair(SocketType::STREAM);
    // More than a new socket takes at once.
    sockopt::set_socket_send_buffer_size_force(&one, 400_000).unwrap();
    let much = vec![5; 300_000];
    assert_eq!(rustix::net::send(&one, &much, SendFlags::DONTWAIT).unwrap(), much.len());
    rustix::net::send(&other, b"back", SendFlags::empty()).unwrap();
    sockopt::set_socket_timeout(&other, sockopt::Timeout::Recv, Some(Duration::from_millis(1500))).unwrap();
    let (packets, sender) = pair(SocketType::SEQPACKET);
    for packet in [b"one".as_slice(), b"two packets"] {
        rustix::net::send(&sender, packet, SendFlags::empty()).unwrap();
    }
    scene.add("unix_pairs", move || {
        let mut got = 0;
        while got < much.len() {
            let piece = received(&other);
            assert!(piece.iter().all(|byte| *byte == 5));
            got += piece.len();
        }
        assert_eq!(got, much.len());
        assert_eq!(received(&one), b"back");
        assert_eq!(sockopt::socket_send_buffer_size(&one).unwrap(), 800_000);
        let limit = sockopt::socket_timeout(&other, sockopt::Timeout::Recv).unwrap();
        assert!(limit.is_some_and(|limit| limit.as_millis().abs_diff(1500) < 20), "{limit:?}");
        assert_eq!((received(&packets), received(&packets)), (b"one".to_vec(), b"two packets".to_vec()));
        rustix::net::send(&packets, b"x", SendFlags::empty()).unwrap();
        assert_eq!(received(&sender), b"x");
    });
}

fn a_pair_half_closed(scene: &mut Scene) {
    let (mut one, mut other) = UnixStream::pair().unwrap();
    one.write_all(b"last words").unwrap();
    one.shutdown(std::net::Shutdown::Write).unwrap();
    scene.add("unix_shutdown", move || {
        let mut text = String::new();
        other.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last words");
        other.write_all(b"y").unwrap();
        one.read_exact(&mut [0; 1]).unwrap();
        assert!(one.write_all(b"no").is_err(), "it is shut down");
    });
}
