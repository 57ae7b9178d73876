//! What a descriptor can be, as far as a dump cares.
//!
//! Plain data with a noun for each kind. It must not know where the data came from, nor what is allowed.

use std::fmt;

use serde::Serialize;

use super::sockets::{OtherSocket, TcpSocket, UdpSocket, UnixSocket};

/// What one descriptor refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DescriptorKind {
    /// A regular file.
    Regular(RegularFile),
    /// A directory.
    Directory,
    /// Opened with `O_PATH`: a name without access.
    Path,
    /// A character device.
    CharDevice(CharDevice),
    /// A block device.
    BlockDevice,
    /// An anonymous pipe.
    Pipe {
        /// What this descriptor may do with it.
        end: PipeEnd,
    },
    /// A named pipe.
    Fifo {
        /// What this descriptor may do with it.
        end: PipeEnd,
    },
    /// An event counter.
    EventFd {
        /// The kernel's number of the counter, the same in every duplicate. Shown since Linux 5.2.
        id: Option<u64>,
        /// Whether a read takes one from it, not all: `EFD_SEMAPHORE`. Shown since Linux 6.6.
        semaphore: bool,
    },
    /// An epoll instance.
    Epoll {
        /// The descriptors registered in it, by the numbers they had then.
        watched: Vec<Watched>,
    },
    /// A timer.
    TimerFd,
    /// Signals as reads.
    SignalFd,
    /// File system events.
    Inotify,
    /// File system events with permission to answer.
    Fanotify,
    /// An io_uring instance.
    IoUring,
    /// Page faults handled in user space.
    UserFault,
    /// A performance counter.
    PerfEvent,
    /// A handle of a process.
    PidFd {
        /// The process, in the pid namespace of the audit's `/proc`; −1 once it has been reaped.
        pid: i32,
    },
    /// Anonymous memory as a file.
    MemFd,
    /// A BPF map, program or link.
    Bpf {
        /// The kernel's name, such as `bpf-map`.
        object: String,
    },
    /// A namespace.
    Namespace,
    /// A Unix socket.
    Unix(UnixSocket),
    /// A TCP socket.
    Tcp(TcpSocket),
    /// A UDP socket.
    Udp(UdpSocket),
    /// A socket of any other protocol.
    Socket(OtherSocket),
    /// Another object without a file: `/dev/kvm` machines, seccomp listeners, file system contexts.
    Anonymous {
        /// The kernel's name.
        name: String,
    },
}

/// A regular file, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RegularFile {
    /// Size in bytes.
    pub size: u64,
    /// Opened `O_WRONLY|O_APPEND`: the only way in which CRIU does not check the size at restore.
    pub append_only: bool,
    /// Whether the file can be found by its name.
    pub name: FileName,
}

/// Whether an open file can still be found under the name by which it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileName {
    /// The name leads to this very file.
    Current,
    /// It was removed or replaced and has no name left: CRIU stores the content, up to its ghost limit.
    Deleted,
    /// The name is gone, but another hard link keeps the file.
    Elsewhere,
}

/// Character devices that matter to a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CharDevice {
    /// `/dev/null`
    Null,
    /// `/dev/zero`
    Zero,
    /// `/dev/full`
    Full,
    /// `/dev/random`
    Random,
    /// `/dev/urandom`
    Urandom,
    /// A terminal, real or pseudo.
    Terminal,
    /// Any other.
    Other,
}

impl CharDevice {
    /// Tells a device by its number. Source: the kernel's `admin-guide/devices.txt`.
    #[must_use]
    pub fn from_number(major: u32, minor: u32) -> Self {
        match (major, minor) {
            (1, 3) => Self::Null,
            (1, 5) => Self::Zero,
            (1, 7) => Self::Full,
            (1, 8) => Self::Random,
            (1, 9) => Self::Urandom,
            // 4: consoles and serial lines, 5: /dev/tty and ptmx, 136..=143: pseudo terminals, 204: serial lines.
            (4 | 5 | 136..=143 | 204, _) => Self::Terminal,
            _ => Self::Other,
        }
    }
}

/// What a descriptor may do with a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PipeEnd {
    /// Read only.
    Read,
    /// Write only.
    Write,
    /// Both: it is its own peer.
    Both,
}

impl PipeEnd {
    /// Whether it can read.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether it can write.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

impl fmt::Display for PipeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read end",
            Self::Write => "write end",
            Self::Both => "both ends",
        })
    }
}

/// One registration in an epoll instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Watched {
    /// The descriptor's number at registration.
    pub fd: i32,
    /// The inode behind it.
    pub inode: u64,
}

impl DescriptorKind {
    /// The noun for people: `pipe`, `unix listener`.
    #[must_use]
    pub fn noun(&self) -> &str {
        match self {
            Self::Regular(_) => "file",
            Self::Directory => "directory",
            Self::Path => "path descriptor",
            Self::CharDevice(CharDevice::Terminal) => "terminal",
            Self::CharDevice(_) | Self::BlockDevice => "device",
            Self::Pipe { .. } => "pipe",
            Self::Fifo { .. } => "named pipe",
            Self::EventFd { .. } => "eventfd",
            Self::Epoll { .. } => "epoll",
            Self::TimerFd => "timerfd",
            Self::SignalFd => "signalfd",
            Self::Inotify => "inotify",
            Self::Fanotify => "fanotify",
            Self::IoUring => "io_uring",
            Self::UserFault => "userfaultfd",
            Self::PerfEvent => "perf event",
            Self::PidFd { .. } => "pidfd",
            Self::MemFd => "memfd",
            Self::Bpf { .. } => "bpf object",
            Self::Namespace => "namespace",
            Self::Unix(socket) => socket.noun(),
            Self::Tcp(socket) => socket.noun(),
            Self::Udp(_) => "udp socket",
            Self::Socket(_) => "socket",
            Self::Anonymous { .. } => "kernel object",
        }
    }
}
