//! What prevents a checkpoint, and what is worth naming without preventing it.
//!
//! Data and its one-line text. It must not know how blockers are found.

use std::fmt;
use std::os::fd::RawFd;

use serde::{Serialize, Serializer};

use super::remedy;

/// Something that prevents a checkpoint. `Display` is one line; the remedy is apart, for `hint:`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// The descriptor, unless it is a mapping or the process as a whole.
    pub fd: Option<RawFd>,
    /// What kind of obstacle it is.
    pub kind: BlockerKind,
    /// Noun, path or addresses, and the peer: `tcp listener 127.0.0.1:9090`.
    pub target: String,
    /// Who answers for it.
    pub owner: Owner,
    /// What to do about it.
    pub remedy: String,
}

/// Who answers for a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Owner {
    /// The resource of this name.
    Resource(String),
    /// Whoever started the process: it was there at start-up.
    Inherited,
    /// Nobody.
    Unregistered,
    /// The process as a whole, or one of its mappings: nobody can claim that.
    Process,
}

/// The kinds of obstacle. The name in text, JSON and policies is [`BlockerKind::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BlockerKind {
    /// A regular file that nobody registered.
    RegularFile,
    /// A deleted file above CRIU's ghost limit.
    DeletedFile,
    /// A file under another name than the one by which it was opened.
    RenamedFile,
    /// A directory that nobody registered.
    Directory,
    /// An `O_PATH` descriptor that nobody registered.
    PathDescriptor,
    /// A file lock.
    FileLock,
    /// A terminal as a descriptor.
    Terminal,
    /// A device.
    Device,
    /// A pipe whose other end is not in the process.
    Pipe,
    /// A named pipe that nobody registered.
    Fifo,
    /// A listening or bound Unix socket that nobody registered.
    UnixListener,
    /// A Unix socket connected to another process.
    UnixPeer,
    /// A TCP listener that nobody registered.
    TcpListener,
    /// A TCP connection.
    TcpConnection,
    /// A listener with connections that nobody has accepted yet.
    InFlight,
    /// A bound or connected UDP socket that nobody registered.
    UdpSocket,
    /// A raw or packet socket that nobody registered.
    RawSocket,
    /// A netlink socket with messages that nobody has read yet.
    NetlinkQueue,
    /// A socket of a protocol that CRIU does not know.
    OtherSocket,
    /// An io_uring, as a descriptor or mapped.
    IoUring,
    /// A userfaultfd.
    UserFault,
    /// A BPF object.
    Bpf,
    /// A performance counter.
    PerfEvent,
    /// A fanotify group that nobody registered.
    Fanotify,
    /// A handle of another process or of a thread.
    PidFd,
    /// An eventfd that counts as a semaphore does.
    EventSemaphore,
    /// An object that CRIU does not know.
    KernelObject,
    /// A deleted file that is mapped, above CRIU's ghost limit.
    DeletedMapping,
    /// A System V shared memory segment.
    SysvShm,
    /// A mapped device.
    DeviceMapping,
    /// The process is being traced.
    Traced,
    /// The process does not lead its session.
    Session,
    /// The process has a controlling terminal.
    ControllingTerminal,
    /// The process has a living child.
    Child,
    /// Orphans become children of the process, and CRIU with them.
    Reaper,
}

impl BlockerKind {
    /// The name in policies and JSON: `tcp-listener`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RegularFile => "regular-file",
            Self::DeletedFile => "deleted-file",
            Self::RenamedFile => "renamed-file",
            Self::Directory => "directory",
            Self::PathDescriptor => "path-descriptor",
            Self::FileLock => "file-lock",
            Self::Terminal => "terminal",
            Self::Device => "device",
            Self::Pipe => "pipe",
            Self::Fifo => "fifo",
            Self::UnixListener => "unix-listener",
            Self::UnixPeer => "unix-peer",
            Self::TcpListener => "tcp-listener",
            Self::TcpConnection => "tcp-connection",
            Self::InFlight => "in-flight",
            Self::UdpSocket => "udp-socket",
            Self::RawSocket => "raw-socket",
            Self::NetlinkQueue => "netlink-queue",
            Self::OtherSocket => "other-socket",
            Self::IoUring => "io-uring",
            Self::UserFault => "user-fault",
            Self::Bpf => "bpf",
            Self::PerfEvent => "perf-event",
            Self::Fanotify => "fanotify",
            Self::PidFd => "pid-fd",
            Self::EventSemaphore => "event-semaphore",
            Self::KernelObject => "kernel-object",
            Self::DeletedMapping => "deleted-mapping",
            Self::SysvShm => "sysv-shm",
            Self::DeviceMapping => "device-mapping",
            Self::Traced => "traced",
            Self::Session => "session",
            Self::ControllingTerminal => "controlling-terminal",
            Self::Child => "child",
            Self::Reaper => "reaper",
        }
    }
}

impl Blocker {
    pub(super) fn of_descriptor(fd: RawFd, kind: BlockerKind, target: String, owner: Owner) -> Self {
        let remedy = remedy::for_descriptor(fd, kind, &owner);
        Self { fd: Some(fd), kind, target, owner, remedy }
    }

    pub(super) fn of_process(kind: BlockerKind, target: String) -> Self {
        Self { fd: None, kind, target, owner: Owner::Process, remedy: remedy::general(kind).to_owned() }
    }
}

/// Something that does not prevent a checkpoint but may surprise after a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The descriptor, unless it is a mapping or the process as a whole.
    pub fd: Option<RawFd>,
    /// What it is, and what a restore does to it.
    pub text: String,
    /// Who answers for it.
    pub owner: Owner,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, self.fd, &self.target, &self.owner)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, self.fd, &self.text, &self.owner)
    }
}

impl Serialize for BlockerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for BlockerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(name) => write!(f, "claimed by {name}"),
            Self::Inherited => f.write_str("inherited at start-up"),
            Self::Unregistered => f.write_str("registered by nobody"),
            Self::Process => f.write_str("of the process"),
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, fd: Option<RawFd>, what: &str, owner: &Owner) -> fmt::Result {
    if let Some(fd) = fd {
        write!(f, "descriptor {fd}: ")?;
    }
    f.write_str(what)?;
    if *owner != Owner::Process {
        write!(f, ", {owner}")?;
    }
    Ok(())
}
