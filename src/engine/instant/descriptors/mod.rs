//! Descriptors: which to make, and making them.
//!
//! They are made in the new process, before it becomes the restorer, in two steps: each under a number of its own
//! above all that the process will have, then all at once under the right ones. What refers to a descriptor by its
//! number, the epoll registrations, is left to the plan.

mod make;

use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use criu_images::{
    Epoll, EventFd, Fdinfo, FileEntry, FileKind, Owner, Pipe, RegularFile, SocketOptions, UnixSocket,
};
use criu_restorer::plan::{Call, Step, Writer};
use rustix::fs::OFlags;
use rustix::net::SocketType;

use self::make::{Made, Make};
use super::plan::any;
use super::source::Source;
use super::support::Reasons;

/// The flag of CRIU's unix_sk_entry for its own service socket (criu/sk-unix.c).
const SERVICE: u32 = 2;
const UNIX_ESTABLISHED: u32 = 1;
/// What open(2) shall not do again.
const ONCE: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::TRUNC).union(OFlags::CLOEXEC);

/// What to make, and under which numbers.
#[derive(Debug)]
pub(super) struct Descriptors {
    /// By file id; a pair or pipe stands under the first of its files.
    make: Vec<(u32, Make)>,
    /// Number, file id, close-on-exec.
    numbers: Vec<(i32, u32, bool)>,
    registrations: Vec<(i32, Epoll)>,
}

/// Decides about all descriptors. `given` are inodes of pipes that are handed in, in the order of the stand-ins.
pub(super) fn descriptors(source: &Source, given: &[u64], reasons: &mut Reasons) -> Descriptors {
    let mut made = Descriptors { make: Vec::new(), numbers: Vec::new(), registrations: Vec::new() };
    for Fdinfo { id, flags, fd, .. } in &source.descriptors {
        let Ok(number) = i32::try_from(*fd) else {
            reasons.add(format!("descriptor {fd} has an impossible number"));
            continue;
        };
        made.numbers.push((number, *id, flags & 1 != 0));
        let Some(entry) = source.files.get(*id) else {
            reasons.add(format!("descriptor {fd} is of no known file"));
            continue;
        };
        if let Some(epoll) = entry.epoll.as_deref().filter(|_| !made.has(*id)) {
            made.registrations.push((number, epoll.clone()));
        }
        if made.has(*id) {
            continue;
        }
        match decide(source, entry, given) {
            Ok(make) => made.make.push((*id, make)),
            Err(what) => reasons.add(format!("descriptor {fd} is {what}")),
        }
    }
    for (_, epoll) in &made.registrations {
        for watch in &epoll.watched {
            let open = made.numbers.iter().any(|(number, ..)| u32::try_from(*number) == Ok(watch.fd));
            reasons.add_if(!open, "an epoll instance watches something that is not open under its number");
        }
    }
    made
}

fn decide(source: &Source, entry: &FileEntry, given: &[u64]) -> Result<Make, String> {
    let missing = || "without a description in the image".to_owned();
    match entry.file_kind() {
        Some(FileKind::Regular) => regular(entry.regular.as_deref().ok_or_else(missing)?),
        Some(FileKind::EventFd) => {
            let EventFd { counter, flags, owner, .. } = entry.eventfd.as_deref().ok_or_else(missing)?;
            signals_nobody(owner)?;
            Ok(Make::EventFd { counter: *counter, flags: *flags })
        }
        Some(FileKind::Epoll) => {
            signals_nobody(&entry.epoll.as_deref().ok_or_else(missing)?.owner)?;
            Ok(Make::Epoll)
        }
        Some(FileKind::TimerFd) => {
            let timer = entry.timerfd.as_deref().ok_or_else(missing)?;
            signals_nobody(&timer.owner)?;
            if timer.ticks != 0 || timer.settime_flags != 0 {
                return Err("a timerfd that has expired, or is set to a point in time".to_owned());
            }
            Ok(Make::TimerFd(Box::new(timer.clone())))
        }
        Some(FileKind::Pipe) => pipe(source, entry.pipe.as_deref().ok_or_else(missing)?, given),
        Some(FileKind::UnixSocket) => unix(source, entry.unix.as_deref().ok_or_else(missing)?),
        Some(kind) => Err(format!("a {kind}")),
        None => Err("of a kind that is not known here".to_owned()),
    }
}

fn signals_nobody(owner: &Owner) -> Result<(), String> {
    let nobody = owner.pid == 0 && owner.signal == 0;
    if nobody { Ok(()) } else { Err("one that signals its owner".to_owned()) }
}

fn regular(file: &RegularFile) -> Result<Make, String> {
    signals_nobody(&file.owner)?;
    if file.external == Some(true) {
        return Err("supplied from outside".to_owned());
    }
    let flags = OFlags::from_bits_retain(file.flags) - ONCE;
    if flags.intersects(OFlags::PATH) {
        return Err("a mere path".to_owned());
    }
    let path = file.path().to_owned();
    let (size, mode) = (file.size, file.mode);
    let meta = std::fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    same(&meta, size, mode).map_err(|what| format!("{}, {what}", path.display()))?;
    Ok(Make::Open { path, flags, position: file.position, size, mode })
}

/// CRIU's own checks of a file that is opened again.
fn same(meta: &Metadata, size: Option<u64>, mode: Option<u32>) -> Result<(), String> {
    let kind = meta.file_type();
    if !(kind.is_file() || kind.is_dir() || kind.is_char_device()) {
        return Err("which is no file, folder or device".to_owned());
    }
    match (size, mode) {
        (Some(size), _) if kind.is_file() && meta.len() != size => {
            Err(format!("which has {} bytes and had {size}", meta.len()))
        }
        (_, Some(mode)) if meta.mode() != mode => {
            Err(format!("which has mode {:o} and had {mode:o}", meta.mode()))
        }
        _ => Ok(()),
    }
}

fn pipe(source: &Source, pipe: &Pipe, given: &[u64]) -> Result<Make, String> {
    signals_nobody(&pipe.owner)?;
    if let Some(index) = given.iter().position(|inode| *inode == u64::from(pipe.pipe_id)) {
        return Ok(Make::Given(index));
    }
    let mut ends = [None, None];
    let mut all_flags = [OFlags::empty(); 2];
    let others = source.files.entries().iter().filter_map(|entry| entry.pipe.as_deref());
    for end in others.filter(|other| other.pipe_id == pipe.pipe_id) {
        let flags = OFlags::from_bits_retain(end.flags);
        let which = match flags & OFlags::RWMODE {
            OFlags::RDONLY => 0,
            OFlags::WRONLY => 1,
            _ => return Err("an end of a pipe that reads and writes".to_owned()),
        };
        if ends[which].replace(end.id).is_some() {
            return Err("an end of a pipe that was opened anew".to_owned());
        }
        all_flags[which] = flags - OFlags::RWMODE;
    }
    let data = source.pipes.iter().find(|(data, _)| data.pipe_id == pipe.pipe_id);
    Ok(Make::Pipe {
        files: ends,
        flags: all_flags,
        capacity: data.and_then(|(data, _)| data.capacity),
        contents: data.map(|(_, contents)| contents.clone()).unwrap_or_default(),
    })
}

fn unix(source: &Source, socket: &UnixSocket) -> Result<Make, String> {
    signals_nobody(&socket.owner)?;
    let nonblocking = |socket: &UnixSocket| OFlags::from_bits_retain(socket.flags).contains(OFlags::NONBLOCK);
    if socket.uflags == SERVICE {
        return Ok(Make::Service { nonblocking: nonblocking(socket) });
    }
    let mut sockets = source.files.entries().iter().filter_map(|entry| entry.unix.as_deref());
    let peer = sockets.find(|other| other.inode == socket.peer && other.peer == socket.inode);
    let Some(peer) = peer else { return Err("a unix socket without its peer".to_owned()) };
    for end in [socket, peer] {
        let open = end.shutdown.unwrap_or(0) == 0 && end.uflags == 0 && end.state == UNIX_ESTABLISHED;
        if !open || !end.name.is_empty() || end.kind != socket.kind || !plain(&end.options) {
            return Err("a unix socket with a name, or with options of its own".to_owned());
        }
    }
    let kind = match socket.kind {
        1 => SocketType::STREAM,
        2 => SocketType::DGRAM,
        5 => SocketType::SEQPACKET,
        other => return Err(format!("a unix socket of type {other}")),
    };
    Ok(Make::Pair {
        kind,
        files: [socket.id, peer.id],
        nonblocking: [nonblocking(socket), nonblocking(peer)],
        options: Box::new([socket.options.clone(), peer.options.clone()]),
    })
}

/// Whether a socket has no options but those that are set again.
fn plain(options: &SocketOptions) -> bool {
    let off = |option: Option<bool>| option != Some(true);
    let zero = |option: Option<u32>| option.unwrap_or(0) == 0;
    options.send_timeout_sec + options.send_timeout_usec == 0
        && options.receive_timeout_sec + options.receive_timeout_usec == 0
        && [options.pass_credentials, options.pass_label, options.dont_route].into_iter().all(off)
        && [options.broadcast, options.keepalive, options.reuse_port, options.reuse_address]
            .into_iter()
            .all(off)
        && [options.priority, options.mark, options.linger, options.oob_inline, options.buffer_lock]
            .into_iter()
            .all(zero)
        && options.receive_low_water.unwrap_or(1) == 1
        && options.bound_device.is_none()
        && options.filter.is_empty()
}

impl Descriptors {
    fn has(&self, id: u32) -> bool {
        self.make.iter().any(|(known, make)| {
            *known == id
                || match make {
                    Make::Pipe { files, .. } => files.contains(&Some(id)),
                    Make::Pair { files, .. } => files.contains(&id),
                    _ => false,
                }
        })
    }

    /// The number above which nothing will be open in the process.
    pub(super) fn floor(&self) -> i32 {
        self.numbers.iter().map(|(number, ..)| number + 1).max().unwrap_or(0).max(3)
    }

    /// Calls that refer to descriptors by their numbers, for the plan.
    pub(super) fn calls(&self, writer: &mut Writer) -> Vec<Call> {
        let mut calls = Vec::new();
        for (number, epoll) in &self.registrations {
            for watch in &epoll.watched {
                // struct epoll_event is packed on x86-64.
                let mut event = watch.events.to_ne_bytes().to_vec();
                event.extend(watch.data.to_ne_bytes());
                let at = writer.data(&event);
                let arguments =
                    [u64::from(number.unsigned_abs()), libc::EPOLL_CTL_ADD as u64, u64::from(watch.fd), at];
                calls.push(any(Step::Descriptors, libc::SYS_epoll_ctl, &arguments));
            }
        }
        for (number, ..) in self.numbers.iter().filter(|(.., close)| *close) {
            let arguments = [u64::from(number.unsigned_abs()), libc::F_SETFD as u64, libc::FD_CLOEXEC as u64];
            calls.push(any(Step::Descriptors, libc::SYS_fcntl, &arguments));
        }
        calls
    }

    /// Makes all of them; `given` are the stand-ins. The numbers are not the right ones yet, but above `floor`.
    ///
    /// # Errors
    /// The kernel's own, with the file id of what could not be made.
    pub(super) fn make(&self, given: &[OwnedFd]) -> Result<Made, (u32, io::Error)> {
        let mut made = Made::new();
        for (id, make) in &self.make {
            make::one(*id, make, given, self.floor(), &mut made).map_err(|error| (*id, error))?;
        }
        Ok(made)
    }

    /// Each number with what is to be behind it.
    pub(super) fn numbered<'a>(&self, made: &'a Made) -> Vec<(i32, &'a OwnedFd)> {
        self.numbers.iter().filter_map(|(number, id, _)| Some((*number, made.get(id)?))).collect()
    }
}
