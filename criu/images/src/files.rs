//! Everything open: the table of `files.img`, and one type for each kind of file in the modules
//! below. Knows nothing of processes; descriptor numbers are in [`Fdinfo`].

mod device;
mod entry;
mod event;
mod inet;
mod memfd;
mod netlink;
mod notify;
mod owner;
mod packet;
mod pipe;
mod queue;
mod regular;
mod remap;
mod socket;
mod tty;
mod unix;

use std::collections::HashMap;
use std::net::SocketAddr;

pub use device::{BpfMapFile, ExternalFile, NamespaceFile, PidFd, TunFile};
pub use entry::{Fdinfo, FileEntry, FileKind};
pub use event::{Epoll, EpollWatch, EventFd, SignalFd, TimerFd};
pub use inet::{InetSocket, IpOptions, RawOptions};
pub use memfd::{Memfd, MemfdFile};
pub use netlink::NetlinkSocket;
pub use notify::{
    Fanotify, FanotifyMark, FileHandle, Inotify, InotifyWatch, MarkTarget, MarkedInode, MarkedMount,
};
pub use owner::Owner;
pub use packet::{PacketMembership, PacketRing, PacketSocket};
pub use pipe::{Fifo, Pipe, PipeData};
pub use queue::{ControlMessage, Packet, SenderCredentials};
pub use regular::RegularFile;
pub use remap::{GhostFile, Remap, RemapKind};
pub use socket::{Shutdown, SocketOptions, TcpOptions};
pub use tty::{PtyIndex, Terminal, Termios, TtyFile, TtyKind, WindowSize};
pub use unix::{FilePermissions, UnixSocket};

/// All records of `files.img`, found by file id.
#[derive(Clone, Debug, Default)]
pub struct FileTable {
    entries: Vec<FileEntry>,
    by_id: HashMap<u32, usize>,
}

/// A socket that accepts TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// File id.
    pub file_id: u32,
    /// Address it is bound to.
    pub address: SocketAddr,
    /// Length of the accept queue.
    pub backlog: u32,
    /// Whether an IPv6 socket takes no IPv4 connections.
    pub v6only: bool,
}

impl FileTable {
    /// A table of these records. Of records with the same id the first is found.
    #[must_use]
    pub fn new(entries: Vec<FileEntry>) -> Self {
        let mut by_id = HashMap::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            by_id.entry(entry.id).or_insert(index);
        }
        Self { entries, by_id }
    }

    /// The record with a file id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&FileEntry> {
        self.by_id.get(&id).and_then(|&index| self.entries.get(index))
    }

    /// All records, in their order in the file.
    #[must_use]
    pub fn entries(&self) -> &[FileEntry] {
        &self.entries
    }

    /// Sockets that accept TCP connections. Their ports have to be free at restore.
    pub fn listeners(&self) -> impl Iterator<Item = Listener> + '_ {
        self.inet_sockets().filter(|s| s.is_listening()).filter_map(|s| {
            Some(Listener {
                file_id: s.id,
                address: s.local()?,
                backlog: s.backlog,
                v6only: s.v6only.unwrap_or(false),
            })
        })
    }

    /// Established TCP connections, which a restore needs an option for.
    pub fn connections(&self) -> impl Iterator<Item = &InetSocket> + '_ {
        self.inet_sockets().filter(|s| s.is_established())
    }

    fn inet_sockets(&self) -> impl Iterator<Item = &InetSocket> + '_ {
        self.entries.iter().filter_map(|e| e.inet.as_deref())
    }
}
