//! Unix sockets: listening, bound, new, and connected pairs, with what waits in them.
//!
//! A socket whose peer is in another process, or gone, is none of them. As with CRIU, ends of a connection that
//! was accepted come back without the name of their listener, and a path that is taken by a socket is taken over.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use criu_images::{Packet, UnixSocket};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::super::source::Source;
use super::nonblocking;
use super::sockets::{Options, shut_down};

/// The flag of CRIU's unix_sk_entry for its own service socket (criu/sk-unix.c).
pub(super) const SERVICE: u32 = 2;
const ESTABLISHED: u32 = 1;
const LISTENS: u32 = 10;
/// Most bytes of an address, `UNIX_PATH_MAX`.
const LONGEST: usize = 108;
/// Added to a send buffer while a queue is filled: what the kernel counts for a packet beside its bytes.
const OVERHEAD: usize = 1 << 20;

/// How to make a socket, or both of a pair.
#[derive(Debug)]
pub(super) struct Unix {
    kind: SocketType,
    /// One, or two that are connected.
    ends: Vec<End>,
    backlog: Option<i32>,
}

/// One socket.
#[derive(Debug)]
struct End {
    file: u32,
    nonblocking: bool,
    options: Options,
    shutdown: Option<rustix::net::Shutdown>,
    name: Option<Name>,
    /// What waits to be read from it.
    queue: Vec<Vec<u8>>,
}

/// What a socket is bound to.
#[derive(Debug)]
struct Name {
    address: SocketAddrUnix,
    path: Option<PathBuf>,
    /// Where a relative path starts.
    folder: Option<PathBuf>,
    /// Mode, user, group.
    permissions: Option<(u32, u32, u32)>,
}

impl Unix {
    /// Decides. A pair is decided about by either of its ends.
    ///
    /// # Errors
    /// What the socket is, if it cannot be made again.
    pub(super) fn of(source: &Source, socket: &UnixSocket) -> Result<Self, String> {
        let kind = match socket.kind {
            1 => SocketType::STREAM,
            2 => SocketType::DGRAM,
            5 => SocketType::SEQPACKET,
            other => return Err(format!("a unix socket of type {other}")),
        };
        if socket.peer != 0 {
            let mut sockets = source.files.entries().iter().filter_map(|entry| entry.unix.as_deref());
            let peer = sockets.find(|other| other.inode == socket.peer && other.peer == socket.inode);
            let peer = peer.filter(|peer| peer.inode != socket.inode && peer.kind == socket.kind);
            let Some(peer) = peer else {
                return Err(
                    "a unix socket that is connected to one outside, or to one with a name".to_owned()
                );
            };
            let ends = vec![End::of(source, socket)?, End::of(source, peer)?];
            return Ok(Self { kind, ends, backlog: None });
        }
        if socket.state == ESTABLISHED && kind != SocketType::DGRAM {
            return Err("a unix socket whose peer is gone".to_owned());
        }
        let end = End::of(source, socket)?;
        if !end.queue.is_empty() && (kind != SocketType::DGRAM || end.name.is_none()) {
            return Err("a unix socket with data that nobody can send again".to_owned());
        }
        let backlog = (socket.state == LISTENS).then(|| i32::try_from(socket.backlog).unwrap_or(i32::MAX));
        Ok(Self { kind, ends: vec![end], backlog })
    }

    /// The files of the table that it makes.
    pub(super) fn files(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().map(|end| end.file)
    }

    /// Makes it, and hands over each socket with its file.
    ///
    /// # Errors
    /// The kernel's own: `AddrInUse` when somebody else has its name.
    pub(super) fn make(&self, mut keep: impl FnMut(u32, OwnedFd) -> io::Result<()>) -> io::Result<()> {
        let sockets = match self.ends.as_slice() {
            [_] => {
                let flags = SocketFlags::CLOEXEC;
                vec![rustix::net::socket_with(AddressFamily::UNIX, self.kind, flags, None)?]
            }
            _ => {
                let flags = SocketFlags::CLOEXEC;
                let pair = rustix::net::socketpair(AddressFamily::UNIX, self.kind, flags, None)?;
                vec![pair.0, pair.1]
            }
        };
        for (end, socket) in self.ends.iter().zip(&sockets) {
            if let Some(name) = &end.name {
                name.bind(socket)?;
            }
        }
        if let (Some(backlog), [socket]) = (self.backlog, sockets.as_slice()) {
            rustix::net::listen(socket, backlog)?;
        }
        match (self.ends.as_slice(), sockets.as_slice()) {
            ([first, second], [one, other]) => {
                send(&first.queue, other)?;
                send(&second.queue, one)?;
            }
            ([end], _) if !end.queue.is_empty() => {
                let flags = SocketFlags::CLOEXEC;
                let sender = rustix::net::socket_with(AddressFamily::UNIX, self.kind, flags, None)?;
                end.name.as_ref().map_or(Ok(()), |name| name.connect(&sender))?;
                send(&end.queue, &sender)?;
            }
            _ => {}
        }
        // Last, as each may keep the other end from sending.
        for (end, socket) in self.ends.iter().zip(&sockets) {
            end.options.apply(socket)?;
            if let Some(how) = end.shutdown {
                rustix::net::shutdown(socket, how)?;
            }
            rustix::io::ioctl_fionbio(socket, end.nonblocking)?;
        }
        self.ends.iter().zip(sockets).try_for_each(|(end, socket)| keep(end.file, socket))
    }
}

impl End {
    fn of(source: &Source, socket: &UnixSocket) -> Result<Self, String> {
        if socket.uflags != 0 {
            return Err("a unix socket that something outside takes part in".to_owned());
        }
        // CRIU does not bind an end of a connection either (`bind_unix_sk` in criu/sk-unix.c).
        let named = !socket.name.is_empty() && (socket.peer == 0 || socket.kind == 2);
        let waiting = source.queues.iter().filter(|(packet, _)| packet.file_id == socket.id);
        let queue = waiting.map(|(packet, bytes)| plain(packet).map(|()| bytes.clone()));
        Ok(Self {
            file: socket.id,
            nonblocking: nonblocking(socket.flags),
            options: Options::of(&socket.options)?,
            shutdown: shut_down(socket.shutdown)?,
            name: named.then(|| Name::of(socket)).transpose()?,
            queue: queue.collect::<Result<_, _>>()?,
        })
    }
}

fn plain(packet: &Packet) -> Result<(), String> {
    if !packet.control.is_empty() {
        return Err("a unix socket with descriptors on their way".to_owned());
    }
    if packet.sender.is_some() {
        return Err("a unix socket with data that tells its sender".to_owned());
    }
    Ok(())
}

/// Has these packets wait at the other end.
fn send(queue: &[Vec<u8>], socket: &OwnedFd) -> io::Result<()> {
    let bytes: usize = queue.iter().map(Vec::len).sum();
    if bytes == 0 && queue.is_empty() {
        return Ok(());
    }
    let room = bytes.saturating_add(OVERHEAD).min(i32::MAX as usize / 2);
    sockopt::set_socket_send_buffer_size_force(socket, room)?;
    for packet in queue {
        let sent = rustix::net::send(socket, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent != packet.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

impl Name {
    fn of(socket: &UnixSocket) -> Result<Self, String> {
        if socket.deleted == Some(true) {
            return Err("a unix socket whose path was removed".to_owned());
        }
        if socket.name.len() > LONGEST {
            return Err("a unix socket with a name that is too long".to_owned());
        }
        let odd = |error: rustix::io::Errno| format!("a unix socket with an impossible name: {error}");
        let Some(path) = socket.path() else {
            let address = SocketAddrUnix::new_abstract_name(&socket.name[1..]).map_err(odd)?;
            return Ok(Self { address, path: None, folder: None, permissions: None });
        };
        // The folder may end with a zero byte, as all texts of CRIU's.
        let folder =
            socket.folder.as_ref().map(|folder| folder.split(|byte| *byte == 0).next().unwrap_or(&[]));
        let folder =
            folder.filter(|_| path.is_relative()).map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
        let name = Self {
            address: SocketAddrUnix::new(path).map_err(odd)?,
            path: Some(path.to_owned()),
            folder,
            permissions: socket.permissions.as_ref().map(|own| (own.mode, own.uid, own.gid)),
        };
        let full = name.folder.as_ref().map_or_else(|| path.to_owned(), |folder| folder.join(path));
        // What a relative path without a folder leads to is not known before the process is there.
        let there =
            Some(&full).filter(|full| full.is_absolute()).and_then(|full| full.symlink_metadata().ok());
        match there {
            Some(meta) if !meta.file_type().is_socket() => {
                Err(format!("a unix socket whose path {} is taken by something else", full.display()))
            }
            _ => Ok(name),
        }
    }

    /// Takes the name, from a socket that left it behind too.
    fn bind(&self, socket: &OwnedFd) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(rustix::net::bind(socket, &self.address)?) };
        self.within_its_folder(|| {
            if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
                std::fs::remove_file(path)?;
            }
            rustix::net::bind(socket, &self.address)?;
            if let Some((mode, uid, gid)) = self.permissions {
                std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
                let mode = Mode::from_raw_mode(mode & 0o7777);
                rustix::fs::chmodat(rustix::fs::CWD, path, mode, AtFlags::empty())?;
            }
            Ok(())
        })
    }

    fn connect(&self, socket: &OwnedFd) -> io::Result<()> {
        self.within_its_folder(|| Ok(rustix::net::connect(socket, &self.address)?))
    }

    /// A relative address stays one: getsockname(2) tells it.
    fn within_its_folder(&self, action: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(folder) = &self.folder else { return action() };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let before = rustix::fs::open(".", flags, Mode::empty())?;
        rustix::process::chdir(folder)?;
        let done = action();
        rustix::process::fchdir(&before)?;
        done
    }
}
