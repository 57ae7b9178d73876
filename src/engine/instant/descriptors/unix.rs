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

use criu_images::{FileTable, Packet, UnixSocket};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::nonblocking;
use super::sockets::{Options, set_send_buffer, shut_down};

/// The flag of CRIU's unix_sk_entry for its own service socket (criu/sk-unix.c).
pub(super) const SERVICE: u32 = 2;
const ESTABLISHED: u32 = 1;
const LISTENS: u32 = 10;
/// Most bytes of an address, `UNIX_PATH_MAX`.
const LONGEST: usize = 108;
/// Added to a send buffer while a queue is filled: what the kernel counts for a packet beside its bytes.
const OVERHEAD: usize = 1 << 20;

/// A packet that waits to be read, with its bytes.
type Waiting = (Packet, Vec<u8>);

/// How to make a socket, or both of a pair.
#[derive(Debug)]
pub(super) struct Unix {
    kind: SocketType,
    /// One, or two that are connected.
    ends: Vec<End>,
    backlog: Option<i32>,
    /// What one is connected to without being a pair: a datagram socket with a name.
    peer: Option<Name>,
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
    pub(super) fn of(files: &FileTable, queues: &[Waiting], socket: &UnixSocket) -> Result<Self, String> {
        let kind = match socket.kind {
            1 => SocketType::STREAM,
            2 => SocketType::DGRAM,
            5 => SocketType::SEQPACKET,
            other => return Err(format!("a unix socket of type {other}")),
        };
        if socket.peer != 0 {
            let mut sockets = files.entries().iter().filter_map(|entry| entry.unix.as_deref());
            let peer = sockets.find(|other| other.inode == socket.peer && other.kind == socket.kind);
            let peer = peer.filter(|peer| peer.inode != socket.inode);
            let peer = peer.ok_or("a unix socket that is connected to one outside")?;
            return Self::connected(queues, kind, socket, peer);
        }
        if socket.state == ESTABLISHED && kind != SocketType::DGRAM {
            return Err("a unix socket whose peer is gone".to_owned());
        }
        let end = End::of(queues, socket)?;
        if !end.queue.is_empty() && (kind != SocketType::DGRAM || end.name.is_none()) {
            return Err("a unix socket with data that nobody can send again".to_owned());
        }
        let backlog = (socket.state == LISTENS).then(|| i32::try_from(socket.backlog).unwrap_or(i32::MAX));
        Ok(Self { kind, ends: vec![end], backlog, peer: None })
    }

    /// Decides about one that is connected to another, which may be connected to it.
    fn connected(
        queues: &[Waiting],
        kind: SocketType,
        socket: &UnixSocket,
        peer: &UnixSocket,
    ) -> Result<Self, String> {
        let end = End::of(queues, socket)?;
        if peer.peer == socket.inode {
            return Ok(Self { kind, ends: vec![end, End::of(queues, peer)?], backlog: None, peer: None });
        }
        if kind != SocketType::DGRAM || peer.name.is_empty() || !end.queue.is_empty() {
            return Err("a unix socket that is connected to one that is not connected to it".to_owned());
        }
        Ok(Self { kind, ends: vec![end], backlog: None, peer: Some(Name::of(peer)?) })
    }

    /// Whether it connects to another by its name.
    pub(super) fn connects(&self) -> bool {
        self.peer.is_some()
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
        if let (Some(peer), [socket]) = (&self.peer, sockets.as_slice()) {
            peer.connect(socket)?;
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
    fn of(queues: &[Waiting], socket: &UnixSocket) -> Result<Self, String> {
        if socket.uflags != 0 {
            return Err("a unix socket that something outside takes part in".to_owned());
        }
        // CRIU does not bind an end of a connection either (`bind_unix_sk` in criu/sk-unix.c).
        let named = !socket.name.is_empty() && (socket.peer == 0 || socket.kind == 2);
        let waiting = queues.iter().filter(|(packet, _)| packet.file_id == socket.id);
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
    if queue.is_empty() {
        return Ok(());
    }
    let room = bytes.saturating_add(OVERHEAD).min(i32::MAX as usize / 2);
    set_send_buffer(socket, room)?;
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

#[cfg(test)]
mod tests {
    use criu_images::{ControlMessage, FileEntry, FileKind, SenderCredentials, SocketOptions};
    use rustix::net::RecvFlags;

    use super::*;

    fn socket(id: u32, kind: u32, state: u32, peer: u32) -> UnixSocket {
        let options =
            SocketOptions { send_buffer: 212_992, receive_buffer: 212_992, ..SocketOptions::default() };
        UnixSocket { id, inode: 100 + id, kind, state, peer, options, ..UnixSocket::default() }
    }

    fn table(sockets: &[UnixSocket]) -> FileTable {
        let entry = |socket: &UnixSocket| FileEntry {
            kind: FileKind::UnixSocket as i32,
            id: socket.id,
            unix: Some(Box::new(socket.clone())),
            ..FileEntry::default()
        };
        FileTable::new(sockets.iter().map(entry).collect())
    }

    fn waiting(file_id: u32, bytes: &[u8]) -> Waiting {
        let length = u32::try_from(bytes.len()).unwrap();
        (Packet { file_id, length, ..Packet::default() }, bytes.to_vec())
    }

    #[test]
    fn a_pair_is_made_by_either_end_with_what_waits_in_it() {
        let first = UnixSocket { shutdown: Some(2), ..socket(1, 1, ESTABLISHED, 102) };
        let sockets = [first, socket(2, 1, ESTABLISHED, 101)];
        let queues = [waiting(2, b"last "), waiting(1, b"back"), waiting(2, b"words")];
        for decided_by in &sockets {
            let unix = Unix::of(&table(&sockets), &queues, decided_by).unwrap();
            let mut ends = std::collections::BTreeMap::new();
            let mut keep = |file, fd| {
                ends.insert(file, fd);
                Ok(())
            };
            unix.make(&mut keep).unwrap();
            let read = |file: u32| {
                let mut bytes = [0; 20];
                let (count, _) = rustix::net::recv(&ends[&file], &mut bytes, RecvFlags::DONTWAIT).unwrap();
                String::from_utf8(bytes[..count].to_vec()).unwrap()
            };
            assert_eq!([read(2), read(2), read(1)], ["last words", "", "back"], "shut down after the words");
        }
    }

    #[test]
    fn what_cannot_be_sent_again_is_a_reason() {
        let sockets = [socket(1, 1, ESTABLISHED, 102), socket(2, 1, ESTABLISHED, 101)];
        let passed = ControlMessage { kind: 1, file_ids: vec![3] };
        let passing = (Packet { control: vec![passed], ..waiting(1, b"x").0 }, b"x".to_vec());
        let sender = Some(SenderCredentials::default());
        let signed = (Packet { sender, ..waiting(2, b"x").0 }, b"x".to_vec());
        for (queue, reason) in [(passing, "descriptors on their way"), (signed, "tells its sender")] {
            let error = Unix::of(&table(&sockets), &[queue], &sockets[0]).unwrap_err();
            assert!(error.ends_with(reason), "{error}");
        }
        let alone = socket(3, 2, 7, 0);
        let error = Unix::of(&table(&[]), &[waiting(3, b"x")], &alone).unwrap_err();
        assert!(error.contains("nobody can send again"), "{error}");
    }

    #[test]
    fn peers_elsewhere_and_lost_names_are_reasons() {
        let named = |name: &[u8]| UnixSocket { name: name.to_vec(), ..socket(1, 1, LISTENS, 0) };
        for (socket, reason) in [
            (socket(1, 1, ESTABLISHED, 0), "peer is gone"),
            (socket(1, 2, ESTABLISHED, 999), "one outside"),
            (UnixSocket { uflags: 1, ..socket(1, 1, LISTENS, 0) }, "something outside"),
            (UnixSocket { deleted: Some(true), ..named(b"/tmp/x") }, "was removed"),
            (named(b"/dev/null"), "taken by something else"),
            (named(&[b'x'; 200]), "too long"),
            (socket(1, 3, 7, 0), "type 3"),
        ] {
            let error = Unix::of(&table(std::slice::from_ref(&socket)), &[], &socket).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_listener_takes_its_path_from_a_socket_that_is_left_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let permissions = criu_images::FilePermissions { mode: 0o140_600, uid: 0, gid: 0 };
        let permissions = nix::unistd::geteuid().is_root().then_some(permissions);
        let name = path.as_os_str().as_bytes().to_vec();
        let listener = UnixSocket { name, permissions, backlog: 3, ..socket(1, 1, LISTENS, 0) };
        let unix = Unix::of(&table(&[]), &[], &listener).unwrap();
        let mut made = Vec::new();
        let mut keep = |_, fd| {
            made.push(fd);
            Ok(())
        };
        unix.make(&mut keep).unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }
}
