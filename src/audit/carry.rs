//! What a dump and a plain restore do to one descriptor.
//!
//! Three questions of it: can CRIU carry it at all, may it be carried although nobody answers for it, and is
//! there something to say. Pure; it must not know policies.

use super::blocker::BlockerKind as Kind;
use super::descriptors::Descriptor;
use super::kind::{CharDevice, DescriptorKind, FileName, RegularFile};
use super::rules::{Facts, GHOST_LIMIT, megabytes};
use super::sockets::{OtherSocket, TcpSocket, TcpState, UnixSocket, UnixState, UnixStyle};

/// `PIDFD_THREAD` is `O_EXCL` (`linux/pidfd.h`); CRIU refuses such a pidfd.
const PIDFD_THREAD: i32 = nix::libc::O_EXCL;

/// How many holders of a pipe are named.
const NAMED_HOLDERS: usize = 3;

type Obstacle = Option<(Kind, String)>;

/// What CRIU does not dump, or a plain restore does not bring back, whoever claims it.
pub(super) fn impossible(descriptor: &Descriptor, facts: &Facts<'_>) -> Obstacle {
    let text = || describe(descriptor);
    match &descriptor.kind {
        DescriptorKind::Regular(file) => lost_file(descriptor, file),
        DescriptorKind::CharDevice(CharDevice::Terminal) => Some((Kind::Terminal, text())),
        DescriptorKind::CharDevice(CharDevice::Other) | DescriptorKind::BlockDevice => {
            Some((Kind::Device, text()))
        }
        DescriptorKind::Pipe { .. } => {
            let peer = outside(descriptor, facts)?;
            Some((Kind::Pipe, format!("{}, {peer}", text())))
        }
        DescriptorKind::Unix(socket) => unix(descriptor, socket, facts),
        DescriptorKind::Tcp(socket) => tcp(descriptor, socket),
        DescriptorKind::Socket(socket) => other_socket(descriptor, socket),
        DescriptorKind::IoUring => Some((Kind::IoUring, "io_uring".to_owned())),
        DescriptorKind::UserFault => Some((Kind::UserFault, "userfaultfd".to_owned())),
        DescriptorKind::PerfEvent => Some((Kind::PerfEvent, "performance counter".to_owned())),
        // CRIU knows maps, no programs, links or types (`criu/bpfmap.c`).
        DescriptorKind::Bpf { object } if object != "bpf-map" => {
            Some((Kind::Bpf, format!("bpf object {object}")))
        }
        // The image does not tell it from others (eventfd_file_entry in CRIU's images/eventfd.proto).
        DescriptorKind::EventFd { semaphore: true, .. } => {
            Some((Kind::EventSemaphore, format!("{} as a semaphore", text())))
        }
        DescriptorKind::PidFd { pid } => pidfd(descriptor, *pid, facts),
        DescriptorKind::Anonymous { name } => Some((Kind::KernelObject, format!("kernel object {name}"))),
        _ => None,
    }
}

/// What CRIU carries, but nobody should be surprised by: it must have an owner that knows of it.
pub(super) fn unclaimed(descriptor: &Descriptor, facts: &Facts<'_>) -> Obstacle {
    let kind = match &descriptor.kind {
        DescriptorKind::Regular(file) if is_log(descriptor, file) => return None,
        DescriptorKind::Regular(_) => Kind::RegularFile,
        DescriptorKind::Directory => Kind::Directory,
        DescriptorKind::Path => Kind::PathDescriptor,
        DescriptorKind::Fifo { .. } => match outside(descriptor, facts) {
            Some(peer) => return Some((Kind::Fifo, format!("{}, {peer}", describe(descriptor)))),
            None if facts.open_ended.contains_key(&descriptor.fd) => Kind::Fifo,
            None => return None,
        },
        DescriptorKind::Unix(socket) if listens(socket) => Kind::UnixListener,
        DescriptorKind::Tcp(TcpSocket { state: TcpState::Listen, .. }) => Kind::TcpListener,
        DescriptorKind::Udp(socket) if socket.local.is_some() || socket.remote.is_some() => Kind::UdpSocket,
        DescriptorKind::Socket(socket) if socket.protocol != "NETLINK" => Kind::RawSocket,
        DescriptorKind::Bpf { .. } => Kind::Bpf,
        DescriptorKind::Fanotify => Kind::Fanotify,
        _ => return None,
    };
    Some((kind, describe(descriptor)))
}

/// What to say of a descriptor that passes, if anything.
pub(super) fn remark(descriptor: &Descriptor, facts: &Facts<'_>, claimed: bool) -> Option<String> {
    let text = describe(descriptor);
    match &descriptor.kind {
        DescriptorKind::Epoll { watched } => {
            let gone = watched.iter().find(|watched| {
                let same = |other: &&Descriptor| other.fd == watched.fd && other.inode == watched.inode;
                facts.scan.descriptors.iter().find(same).is_none()
            });
            match gone {
                Some(watched) => {
                    Some(format!("epoll, still watches descriptor {}, which is closed", watched.fd))
                }
                None if claimed || facts.runtime.contains(&descriptor.fd) => None,
                None => Some("epoll of no known runtime, restored as it is".to_owned()),
            }
        }
        DescriptorKind::EventFd { .. } if !claimed && !facts.runtime.contains(&descriptor.fd) => {
            Some("eventfd of no known runtime, restored as it is".to_owned())
        }
        DescriptorKind::TimerFd | DescriptorKind::SignalFd if !claimed => {
            Some(format!("{text}, restored as it is"))
        }
        DescriptorKind::Namespace if !claimed => Some(format!("{text}, restored as it is")),
        DescriptorKind::Inotify => Some("inotify, restored without the events that wait".to_owned()),
        DescriptorKind::PidFd { pid: -1 } => Some("pidfd of a process that has ended".to_owned()),
        DescriptorKind::Udp(socket) if socket.queued > 0 => {
            Some(format!("{text}, {} bytes of datagrams wait and are dropped", socket.queued))
        }
        DescriptorKind::Regular(RegularFile { name: FileName::Deleted, .. }) => {
            Some(format!("{text}, its content is stored"))
        }
        DescriptorKind::Pipe { .. } if facts.open_ended.contains_key(&descriptor.fd) => {
            Some(format!("{text}, its other end is closed"))
        }
        DescriptorKind::Tcp(_) | DescriptorKind::Udp(_) | DescriptorKind::Socket(_) if !claimed => {
            Some(format!("{text}, restored as it is"))
        }
        DescriptorKind::Unix(UnixSocket { state: UnixState::Unconnected, .. }) if !claimed => {
            Some(format!("{text}, not connected"))
        }
        _ => None,
    }
}

fn lost_file(descriptor: &Descriptor, file: &RegularFile) -> Obstacle {
    match file.name {
        FileName::Deleted if file.size > GHOST_LIMIT => {
            Some((Kind::DeletedFile, format!("{} ({})", describe(descriptor), megabytes(file.size))))
        }
        FileName::Elsewhere => Some((Kind::RenamedFile, describe(descriptor))),
        FileName::Deleted | FileName::Current => None,
    }
}

fn unix(descriptor: &Descriptor, socket: &UnixSocket, facts: &Facts<'_>) -> Obstacle {
    let text = describe(descriptor);
    match &socket.state {
        UnixState::Listening { pending: 0 } | UnixState::Unconnected => None,
        UnixState::Listening { pending } => {
            Some((Kind::InFlight, format!("{text}, {pending} to be accepted")))
        }
        UnixState::Connected { .. } => {
            let peer = outside(descriptor, facts).or_else(|| {
                facts.open_ended.get(&descriptor.fd).map(|_| "its peer is in no process".to_owned())
            })?;
            Some((Kind::UnixPeer, format!("{text}, {peer}")))
        }
        UnixState::PeerGone | UnixState::Unknown => Some((Kind::UnixPeer, text)),
    }
}

fn tcp(descriptor: &Descriptor, socket: &TcpSocket) -> Obstacle {
    let text = describe(descriptor);
    match socket.state {
        TcpState::Listen if socket.queued > 0 => {
            Some((Kind::InFlight, format!("{text}, {} to be accepted", socket.queued)))
        }
        TcpState::Listen | TcpState::Closed => None,
        TcpState::Established | TcpState::Passing | TcpState::Unknown => Some((Kind::TcpConnection, text)),
    }
}

fn other_socket(descriptor: &Descriptor, socket: &OtherSocket) -> Obstacle {
    match socket.protocol.as_str() {
        "RAW" | "RAWv6" | "PACKET" => None,
        "NETLINK" if socket.queued == 0 => None,
        "NETLINK" => Some((
            Kind::NetlinkQueue,
            format!("{}, {} bytes of messages wait", describe(descriptor), socket.queued),
        )),
        _ => Some((Kind::OtherSocket, describe(descriptor))),
    }
}

/// CRIU carries handles of processes that it dumps and of ended ones (`dump_one_pidfd` in `criu/pidfd.c`).
fn pidfd(descriptor: &Descriptor, pid: i32, facts: &Facts<'_>) -> Obstacle {
    if descriptor.flags & PIDFD_THREAD != 0 {
        return Some((Kind::PidFd, format!("pidfd of a thread of process {pid}")));
    }
    let carried = pid == -1 || pid == facts.scan.process.process.pid;
    (!carried).then(|| (Kind::PidFd, format!("pidfd of process {pid}")))
}

/// A log as standard input or output: not size-checked at restore, and the name must be there.
fn is_log(descriptor: &Descriptor, file: &RegularFile) -> bool {
    (0..=2).contains(&descriptor.fd) && file.append_only && file.name == FileName::Current
}

/// Reachable by others: listening, or a datagram socket with a name.
fn listens(socket: &UnixSocket) -> bool {
    match socket.state {
        UnixState::Listening { .. } => true,
        UnixState::Unconnected => socket.style == UnixStyle::Datagram && socket.name.is_some(),
        _ => false,
    }
}

/// Who is at the other end, if it is not in the process; `None` also if it is certain that nobody is.
fn outside(descriptor: &Descriptor, facts: &Facts<'_>) -> Option<String> {
    let target = facts.open_ended.get(&descriptor.fd)?;
    let holders = &facts.scan.holders;
    match holders.found.get(target) {
        Some(found) => {
            let named: Vec<_> = found.iter().take(NAMED_HOLDERS).map(ToString::to_string).collect();
            let more = if found.len() > NAMED_HOLDERS { ", …" } else { "" };
            Some(format!("shared with {}{more}", named.join(", ")))
        }
        None if holders.complete => None,
        None => Some("its other end was not found: not every process may be looked at".to_owned()),
    }
}

/// Noun, name or addresses.
fn describe(descriptor: &Descriptor) -> String {
    let noun = descriptor.kind.noun();
    let target = &descriptor.target;
    match &descriptor.kind {
        DescriptorKind::Regular(file) => {
            let path = target.strip_suffix(" (deleted)").unwrap_or(target);
            let state = match file.name {
                FileName::Current => return format!("{noun} {target}"),
                FileName::Deleted => "deleted",
                FileName::Elsewhere => "renamed",
            };
            format!("{state} {noun} {path}")
        }
        DescriptorKind::Pipe { end } => format!("{target} ({end})"),
        DescriptorKind::Fifo { end } => format!("{noun} {target} ({end})"),
        DescriptorKind::Unix(socket) => format!("{noun} {socket}"),
        DescriptorKind::Tcp(socket) => format!("{noun} {socket}"),
        DescriptorKind::Udp(socket) => format!("{noun} {socket}"),
        DescriptorKind::Socket(socket) => format!("{} {noun}", socket.protocol.to_lowercase()),
        DescriptorKind::EventFd { .. }
        | DescriptorKind::Epoll { .. }
        | DescriptorKind::TimerFd
        | DescriptorKind::SignalFd => noun.to_owned(),
        _ => format!("{noun} {target}"),
    }
}
