//! The descriptors of a process, each with its kind.
//!
//! Reads `/proc/PID/fd` and `/proc/PID/fdinfo`; of sockets it knows the protocol, the rest is filled in by
//! `resolve`. It must not judge what it finds.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, major, minor};
use serde::Serialize;

use super::fdinfo::FdInfo;
use super::kind::{CharDevice, DescriptorKind, FileName, RegularFile};
use super::sockets::{OtherSocket, TcpSocket, TcpState, UdpSocket, UnixSocket, UnixState, UnixStyle};

/// One open descriptor of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Descriptor {
    /// Its number.
    pub fd: RawFd,
    /// What it refers to.
    pub kind: DescriptorKind,
    /// The text of the link in `/proc/PID/fd`: a path, or `pipe:[123]`.
    pub target: String,
    /// Access mode and status flags, as for `open(2)`.
    pub flags: i32,
    /// The inode behind it.
    pub inode: u64,
    /// File locks held through it: `FLOCK ADVISORY WRITE`.
    pub locks: Vec<String>,
}

/// Where to look: `/proc/self` or `/proc/PID`.
pub(super) struct Home {
    /// The folder in `/proc`.
    pub(super) folder: PathBuf,
    /// Whether it is the own process.
    pub(super) own: bool,
}

impl Home {
    /// The path by which this process sees a file that the examined process names so.
    pub(super) fn seen(&self, path: &str) -> PathBuf {
        if self.own {
            return PathBuf::from(path);
        }
        self.folder.join("root").join(path.trim_start_matches('/'))
    }
}

/// All descriptors in the order of their numbers, without the one that reads the list. One that is closed
/// meanwhile is left out.
pub(super) fn scan(home: &Home) -> io::Result<Vec<Descriptor>> {
    let numbers = numbers(home)?;
    let mut descriptors = Vec::with_capacity(numbers.len());
    for fd in numbers {
        match descriptor(home, fd) {
            Ok(descriptor) => descriptors.push(descriptor),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(descriptors)
}

fn numbers(home: &Home) -> io::Result<Vec<RawFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut list = Dir::open(&home.folder.join("fd"), flags, Mode::empty())?;
    let own = home.own.then(|| list.as_raw_fd());
    let mut numbers = Vec::new();
    for entry in list.iter() {
        let fd = entry?.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok());
        numbers.extend(fd.filter(|fd| Some(*fd) != own));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn descriptor(home: &Home, fd: RawFd) -> io::Result<Descriptor> {
    let link = home.folder.join("fd").join(fd.to_string());
    let target = fs::read_link(&link)?.to_string_lossy().into_owned();
    let info = FdInfo::parse(&fs::read_to_string(home.folder.join("fdinfo").join(fd.to_string()))?);
    let (kind, inode) = if target.starts_with('/') {
        let meta = fs::metadata(&link)?;
        (named(home, &target, &info, &meta), meta.ino())
    } else {
        let inode = info.inode.map_or_else(|| fs::metadata(&link).map(|meta| meta.ino()), Ok)?;
        (nameless(&link, &target, &info), inode)
    };
    Ok(Descriptor { fd, kind, target, flags: info.flags, inode, locks: info.locks })
}

/// What has a path, or looks as if it had.
fn named(home: &Home, target: &str, info: &FdInfo, meta: &fs::Metadata) -> DescriptorKind {
    let file_type = meta.file_type();
    if info.path_only() {
        DescriptorKind::Path
    } else if target.starts_with("/memfd:") && meta.nlink() == 0 {
        DescriptorKind::MemFd
    } else if file_type.is_fifo() {
        DescriptorKind::Fifo { end: info.pipe_end() }
    } else if file_type.is_char_device() {
        DescriptorKind::CharDevice(char_device(meta))
    } else if file_type.is_block_device() {
        DescriptorKind::BlockDevice
    } else if file_type.is_dir() {
        DescriptorKind::Directory
    } else {
        let name = file_name(home, target, meta);
        DescriptorKind::Regular(RegularFile { size: meta.size(), append_only: info.append_only(), name })
    }
}

/// What the kernel names by its type: `pipe:[123]`, `anon_inode:[eventfd]`.
fn nameless(link: &Path, target: &str, info: &FdInfo) -> DescriptorKind {
    if info.path_only() {
        return DescriptorKind::Path;
    }
    match target.split_once(':') {
        Some(("anon_inode", name)) => anonymous(name.trim_matches(['[', ']']), info),
        Some(("pidfd", _)) => DescriptorKind::PidFd { pid: info.pid.unwrap_or(-1) },
        Some(("pipe", _)) => DescriptorKind::Pipe { end: info.pipe_end() },
        Some(("socket", _)) => socket(link),
        // The names of /proc/PID/ns.
        Some(("cgroup" | "ipc" | "mnt" | "net" | "pid" | "time" | "user" | "uts", _)) => {
            DescriptorKind::Namespace
        }
        _ => DescriptorKind::Anonymous { name: target.to_owned() },
    }
}

fn anonymous(name: &str, info: &FdInfo) -> DescriptorKind {
    match name {
        "eventfd" => DescriptorKind::EventFd { id: info.eventfd, semaphore: info.semaphore },
        "eventpoll" => DescriptorKind::Epoll { watched: info.watched.clone() },
        "timerfd" => DescriptorKind::TimerFd,
        "signalfd" => DescriptorKind::SignalFd,
        "inotify" => DescriptorKind::Inotify,
        "fanotify" => DescriptorKind::Fanotify,
        "io_uring" => DescriptorKind::IoUring,
        "userfaultfd" => DescriptorKind::UserFault,
        "perf_event" => DescriptorKind::PerfEvent,
        "pidfd" => DescriptorKind::PidFd { pid: info.pid.unwrap_or(-1) },
        bpf if bpf.starts_with("bpf") => DescriptorKind::Bpf { object: bpf.to_owned() },
        other => DescriptorKind::Anonymous { name: other.to_owned() },
    }
}

fn char_device(meta: &fs::Metadata) -> CharDevice {
    let number = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
    CharDevice::from_number(number(major(meta.rdev())), number(minor(meta.rdev())))
}

/// Whether the path still leads to the file. CRIU asks the same: no name left is a ghost file, another file
/// under the name is a link to remap (`check_path_remap` in `criu/files-reg.c`).
fn file_name(home: &Home, target: &str, meta: &fs::Metadata) -> FileName {
    if meta.nlink() == 0 {
        return FileName::Deleted;
    }
    match fs::symlink_metadata(home.seen(target)) {
        Ok(named) if named.dev() == meta.dev() && named.ino() == meta.ino() => FileName::Current,
        _ => FileName::Elsewhere,
    }
}

/// The protocol of a socket. Its name is an attribute of the descriptor (`sockfs_xattr_get` in `net/socket.c`),
/// so that the kernel's lists need to be read only for protocols that are there.
fn socket(link: &Path) -> DescriptorKind {
    let mut name = [0_u8; 64];
    let length = rustix::fs::getxattr(link, "system.sockprotoname", &mut name[..]).unwrap_or(0);
    let name = String::from_utf8_lossy(&name[..length]);
    match name.trim_end_matches('\0') {
        "TCP" | "TCPv6" => DescriptorKind::Tcp(TcpSocket::in_state(TcpState::Unknown)),
        "UDP" | "UDPv6" => DescriptorKind::Udp(UdpSocket { local: None, remote: None, queued: 0 }),
        "UNIX" | "UNIX-STREAM" => DescriptorKind::Unix(UnixSocket {
            style: UnixStyle::Stream,
            state: UnixState::Unknown,
            name: None,
        }),
        protocol => DescriptorKind::Socket(OtherSocket { protocol: protocol.to_owned(), queued: 0 }),
    }
}
