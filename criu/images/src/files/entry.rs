//! What is open (`files.img`) and under which number (`fdinfo-FILESID.img`).

use std::fmt;
use std::path::Path;

use super::device::{BpfMapFile, ExternalFile, NamespaceFile, PidFd, TunFile};
use super::event::{Epoll, EventFd, SignalFd, TimerFd};
use super::inet::InetSocket;
use super::memfd::MemfdFile;
use super::netlink::NetlinkSocket;
use super::notify::{Fanotify, Inotify};
use super::packet::PacketSocket;
use super::pipe::{Fifo, Pipe};
use super::regular::RegularFile;
use super::tty::TtyFile;
use super::unix::UnixSocket;

/// One record of `files.img`: a kind, an id, and the one part that belongs to the kind.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FileEntry {
    /// Kind of file; [`FileKind`].
    #[prost(enumeration = "FileKind", required, tag = "1")]
    pub kind: i32,
    /// File id.
    #[prost(uint32, required, tag = "2")]
    pub id: u32,
    /// Something opened by path.
    #[prost(message, optional, boxed, tag = "3")]
    pub regular: Option<Box<RegularFile>>,
    /// Internet socket.
    #[prost(message, optional, boxed, tag = "4")]
    pub inet: Option<Box<InetSocket>>,
    /// Namespace.
    #[prost(message, optional, boxed, tag = "5")]
    pub namespace: Option<Box<NamespaceFile>>,
    /// Packet socket.
    #[prost(message, optional, boxed, tag = "6")]
    pub packet: Option<Box<PacketSocket>>,
    /// Netlink socket.
    #[prost(message, optional, boxed, tag = "7")]
    pub netlink: Option<Box<NetlinkSocket>>,
    /// Eventfd.
    #[prost(message, optional, boxed, tag = "8")]
    pub eventfd: Option<Box<EventFd>>,
    /// Epoll instance.
    #[prost(message, optional, boxed, tag = "9")]
    pub epoll: Option<Box<Epoll>>,
    /// Signalfd.
    #[prost(message, optional, boxed, tag = "10")]
    pub signalfd: Option<Box<SignalFd>>,
    /// Tun or tap device.
    #[prost(message, optional, boxed, tag = "11")]
    pub tun: Option<Box<TunFile>>,
    /// Timerfd.
    #[prost(message, optional, boxed, tag = "12")]
    pub timerfd: Option<Box<TimerFd>>,
    /// Inotify instance.
    #[prost(message, optional, boxed, tag = "13")]
    pub inotify: Option<Box<Inotify>>,
    /// Fanotify instance.
    #[prost(message, optional, boxed, tag = "14")]
    pub fanotify: Option<Box<Fanotify>>,
    /// File supplied at restore.
    #[prost(message, optional, boxed, tag = "15")]
    pub external: Option<Box<ExternalFile>>,
    /// Local socket.
    #[prost(message, optional, boxed, tag = "16")]
    pub unix: Option<Box<UnixSocket>>,
    /// Named pipe.
    #[prost(message, optional, boxed, tag = "17")]
    pub fifo: Option<Box<Fifo>>,
    /// Pipe.
    #[prost(message, optional, boxed, tag = "18")]
    pub pipe: Option<Box<Pipe>>,
    /// Terminal.
    #[prost(message, optional, boxed, tag = "19")]
    pub tty: Option<Box<TtyFile>>,
    /// Memory file.
    #[prost(message, optional, boxed, tag = "20")]
    pub memfd: Option<Box<MemfdFile>>,
    /// BPF map.
    #[prost(message, optional, boxed, tag = "21")]
    pub bpf: Option<Box<BpfMapFile>>,
    /// Pidfd.
    #[prost(message, optional, boxed, tag = "22")]
    pub pidfd: Option<Box<PidFd>>,
}

/// One record of `fdinfo-FILESID.img`: a descriptor number and the file behind it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Fdinfo {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Descriptor flags; 1 is close-on-exec.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Kind of file; [`FileKind`].
    #[prost(enumeration = "FileKind", required, tag = "3")]
    pub kind: i32,
    /// Descriptor number.
    #[prost(uint32, required, tag = "4")]
    pub fd: u32,
    /// SELinux label of a socket.
    #[prost(string, optional, tag = "5")]
    pub selinux_label: Option<String>,
}

impl FileEntry {
    /// Kind of file; `None` for a number this crate does not know.
    #[must_use]
    pub fn file_kind(&self) -> Option<FileKind> {
        FileKind::try_from(self.kind).ok()
    }

    /// Path it was opened by or is bound to, if it has one of its own.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match (&self.regular, &self.unix) {
            (Some(file), _) => Some(file.path()),
            (None, Some(socket)) => socket.path(),
            (None, None) => None,
        }
    }

    /// Id inside the part that belongs to the kind; `None` if that part is absent. CRIU looks
    /// files up by it, so it must equal [`FileEntry::id`].
    #[must_use]
    pub fn part_id(&self) -> Option<u32> {
        match self.file_kind()? {
            FileKind::Regular => self.regular.as_ref().map(|p| p.id),
            FileKind::Pipe => self.pipe.as_ref().map(|p| p.id),
            FileKind::Fifo => self.fifo.as_ref().map(|p| p.id),
            FileKind::InetSocket => self.inet.as_ref().map(|p| p.id),
            FileKind::UnixSocket => self.unix.as_ref().map(|p| p.id),
            FileKind::EventFd => self.eventfd.as_ref().map(|p| p.id),
            FileKind::Epoll => self.epoll.as_ref().map(|p| p.id),
            FileKind::Inotify => self.inotify.as_ref().map(|p| p.id),
            FileKind::SignalFd => self.signalfd.as_ref().map(|p| p.id),
            FileKind::PacketSocket => self.packet.as_ref().map(|p| p.id),
            FileKind::Tty => self.tty.as_ref().map(|p| p.id),
            FileKind::Fanotify => self.fanotify.as_ref().map(|p| p.id),
            FileKind::NetlinkSocket => self.netlink.as_ref().map(|p| p.id),
            FileKind::Namespace => self.namespace.as_ref().map(|p| p.id),
            FileKind::Tun => self.tun.as_ref().map(|p| p.id),
            FileKind::External => self.external.as_ref().map(|p| p.id),
            FileKind::TimerFd => self.timerfd.as_ref().map(|p| p.id),
            FileKind::Memfd => self.memfd.as_ref().map(|p| p.id),
            FileKind::BpfMap => self.bpf.as_ref().map(|p| p.id),
            FileKind::PidFd => self.pidfd.as_ref().map(|p| p.id),
            FileKind::Undefined => None,
        }
    }
}

/// Kinds of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FileKind {
    /// Never written.
    Undefined = 0,
    /// Something opened by path.
    Regular = 1,
    /// Pipe.
    Pipe = 2,
    /// Named pipe.
    Fifo = 3,
    /// Internet socket.
    InetSocket = 4,
    /// Local socket.
    UnixSocket = 5,
    /// Eventfd.
    EventFd = 6,
    /// Epoll instance.
    Epoll = 7,
    /// Inotify instance.
    Inotify = 8,
    /// Signalfd.
    SignalFd = 9,
    /// Packet socket.
    PacketSocket = 10,
    /// Terminal.
    Tty = 11,
    /// Fanotify instance.
    Fanotify = 12,
    /// Netlink socket.
    NetlinkSocket = 13,
    /// Namespace.
    Namespace = 14,
    /// Tun or tap device.
    Tun = 15,
    /// File supplied at restore.
    External = 16,
    /// Timerfd.
    TimerFd = 17,
    /// Memory file.
    Memfd = 18,
    /// BPF map.
    BpfMap = 19,
    /// Pidfd.
    PidFd = 20,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Undefined => "undefined",
            Self::Regular => "file",
            Self::Pipe => "pipe",
            Self::Fifo => "fifo",
            Self::InetSocket => "inet socket",
            Self::UnixSocket => "unix socket",
            Self::EventFd => "eventfd",
            Self::Epoll => "epoll",
            Self::Inotify => "inotify",
            Self::SignalFd => "signalfd",
            Self::PacketSocket => "packet socket",
            Self::Tty => "tty",
            Self::Fanotify => "fanotify",
            Self::NetlinkSocket => "netlink socket",
            Self::Namespace => "namespace",
            Self::Tun => "tun",
            Self::External => "external file",
            Self::TimerFd => "timerfd",
            Self::Memfd => "memfd",
            Self::BpfMap => "bpf map",
            Self::PidFd => "pidfd",
        })
    }
}
