//! All kinds of what is behind descriptors: which of them a file of the table is, and making it. It must not know
//! the numbers that they will have.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use criu_images::{FileEntry, FileKind};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::PidfdFlags;

use super::super::shared::SharedMemory;
use super::super::source::Source;
use super::events::{Counter, Signals, Timer, Watcher};
use super::ghosts::Ghost;
use super::inet::Inet;
use super::netlink::Netlink;
use super::unix::{SERVICE, Unix};
use super::watches::Watches;
use super::{files, memory_files, nonblocking, pipes};
use crate::sys::descriptors::above;

/// CRIU's answer to a self-dump, as the restored process reads it: type DUMP, success, restored.
const RESTORED: [u8; 8] = [8, 1, 16, 1, 26, 2, 8, 1];

/// How to make what is behind one or more descriptors.
#[derive(Debug)]
pub(super) enum Make {
    File(files::Opened),
    Ghost(Ghost),
    MemoryFile(memory_files::Opened),
    Pipe(pipes::Unnamed),
    Fifo(pipes::Named),
    EventFd(Counter),
    Epoll(Watcher),
    SignalFd(Signals),
    TimerFd(Timer),
    Inotify(Watches),
    Unix(Unix),
    Inet(Box<Inet>),
    Netlink(Netlink),
    /// The process itself.
    PidFd {
        nonblocking: bool,
    },
    /// The socket that CRIU was asked at, with its answer waiting.
    Service {
        nonblocking: bool,
    },
    /// Given at the restore: one of the stand-ins, by its index.
    Given(usize),
}

/// What is made, before it has its number: by file id.
pub(super) type Made = BTreeMap<u32, OwnedFd>;

impl Make {
    /// Decides. `given` are inodes of pipes that are handed in.
    ///
    /// # Errors
    /// What the file is, if it cannot be made again: a phrase that follows "is".
    pub(super) fn of(source: &Source, entry: &FileEntry, given: &[u64]) -> Result<Self, String> {
        let missing = || "without a description in the image".to_owned();
        Ok(match entry.file_kind().ok_or("of a kind that is not known here")? {
            FileKind::Regular => {
                let file = entry.regular.as_deref().ok_or_else(missing)?;
                match Ghost::of(source, file)? {
                    Some(ghost) => Self::Ghost(ghost),
                    None => Self::File(files::Opened::of(file, source.process.pid)?),
                }
            }
            FileKind::Memfd => {
                Self::MemoryFile(memory_files::Opened::of(entry.memfd.as_deref().ok_or_else(missing)?))
            }
            FileKind::Pipe => {
                let pipe = entry.pipe.as_deref().ok_or_else(missing)?;
                match given.iter().position(|inode| *inode == u64::from(pipe.pipe_id)) {
                    Some(index) => Self::Given(index),
                    None => Self::Pipe(pipes::Unnamed::of(source, pipe)?),
                }
            }
            FileKind::Fifo => {
                Self::Fifo(pipes::Named::of(source, entry.fifo.as_deref().ok_or_else(missing)?)?)
            }
            FileKind::EventFd => Self::EventFd(Counter::of(entry.eventfd.as_deref().ok_or_else(missing)?)),
            FileKind::Epoll => {
                let epoll = entry.epoll.as_deref().ok_or_else(missing)?;
                Self::Epoll(Watcher { nonblocking: nonblocking(epoll.flags) })
            }
            FileKind::SignalFd => Self::SignalFd(Signals::of(entry.signalfd.as_deref().ok_or_else(missing)?)),
            FileKind::TimerFd => Self::TimerFd(Timer::of(entry.timerfd.as_deref().ok_or_else(missing)?)?),
            FileKind::Inotify => Self::Inotify(Watches::of(entry.inotify.as_deref().ok_or_else(missing)?)?),
            FileKind::UnixSocket => {
                let socket = entry.unix.as_deref().ok_or_else(missing)?;
                match socket.uflags {
                    SERVICE => Self::Service { nonblocking: nonblocking(socket.flags) },
                    _ => Self::Unix(Unix::of(&source.files, &source.queues, socket)?),
                }
            }
            FileKind::InetSocket => {
                Self::Inet(Box::new(Inet::of(entry.inet.as_deref().ok_or_else(missing)?)?))
            }
            FileKind::NetlinkSocket => {
                Self::Netlink(Netlink::of(entry.netlink.as_deref().ok_or_else(missing)?)?)
            }
            FileKind::PidFd => {
                let pidfd = entry.pidfd.as_deref().ok_or_else(missing)?;
                if u32::try_from(pidfd.pid) != Ok(source.process.pid) {
                    return Err("a pidfd of another process, or of one that has ended".to_owned());
                }
                Self::PidFd { nonblocking: nonblocking(pidfd.flags) }
            }
            kind => return Err(format!("of a kind that is not restored here: {kind}")),
        })
    }

    /// Whether it also makes this file of the table, beside the one that it was decided for.
    pub(super) fn also_makes(&self, id: u32) -> bool {
        match self {
            Self::Ghost(ghost) => ghost.files().any(|file| file == id),
            Self::Pipe(pipe) => pipe.files().any(|file| file == id),
            Self::Unix(sockets) => sockets.files().any(|file| file == id),
            _ => false,
        }
    }

    /// Whether it can only be made when others are there.
    pub(super) fn needs_others(&self) -> bool {
        matches!(self, Self::Unix(socket) if socket.connects())
    }

    /// Makes it, under numbers from `floor` on.
    ///
    /// # Errors
    /// The kernel's own; `Other` when a file is not what it was.
    pub(super) fn make(
        &self,
        id: u32,
        given: &[OwnedFd],
        memory: &SharedMemory,
        floor: i32,
        made: &mut Made,
    ) -> io::Result<()> {
        let mut keep = |id: u32, fd: &dyn AsFd| -> io::Result<()> {
            made.insert(id, above(fd.as_fd(), floor)?);
            Ok(())
        };
        match self {
            Self::File(file) => keep(id, &file.open()?),
            Self::Ghost(ghost) => ghost.make(|id, fd| keep(id, &fd)),
            Self::MemoryFile(file) => keep(id, &file.open(memory)?),
            Self::Pipe(pipe) => pipe.make(|id, fd| keep(id, &fd)),
            Self::Fifo(fifo) => keep(id, &fifo.open()?),
            Self::EventFd(counter) => keep(id, &counter.make()?),
            Self::Epoll(epoll) => keep(id, &epoll.make()?),
            Self::SignalFd(signals) => keep(id, &signals.make()?),
            Self::TimerFd(timer) => keep(id, &timer.make()?),
            Self::Inotify(watches) => keep(id, &watches.make()?),
            Self::Unix(sockets) => sockets.make(|id, fd| keep(id, &fd)),
            Self::Inet(socket) => keep(id, &socket.make()?),
            Self::Netlink(socket) => keep(id, &socket.make()?),
            Self::PidFd { nonblocking } => {
                let flags = if *nonblocking { PidfdFlags::NONBLOCK } else { PidfdFlags::empty() };
                keep(id, &rustix::process::pidfd_open(rustix::process::getpid(), flags)?)
            }
            Self::Service { nonblocking } => keep(id, &service(*nonblocking)?),
            Self::Given(index) => match given.get(*index) {
                Some(fd) => keep(id, fd),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }
}

fn service(nonblocking: bool) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::send(&pair.1, &RESTORED, SendFlags::NOSIGNAL)?;
    rustix::io::ioctl_fionbio(&pair.0, nonblocking)?;
    Ok(pair.0)
}
