//! A Unix listener that goes through a cycle: its path stays while the process goes on, and is bound again,
//! with the same owner and permissions, in a restored process.
//!
//! It must not know what is spoken on its connections.

use std::fmt;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, fchmod};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixSocket, UnixStream};

use super::accepting::{Accepting, DEFAULT_BACKLOG, DEFAULT_DRAIN_LIMIT, Endpoint};
use super::listen_error::ListenError;
use super::tracking::{Connections, Peer, Tracked};
use super::turn::Turn;
use crate::context::{Context, Registration};
use crate::resource::locked;

#[cfg(test)]
mod tests;

/// A Unix socket that listens at a path, registered with a [`Context`] until it is dropped. Its path is removed
/// then, if it still is this socket's.
///
/// It goes through a cycle as a [`TcpListener`](super::TcpListener) does. `NAME.listen=PATH` moves it at
/// restore. A socket left at the path is replaced if nobody listens on it; a file of any other kind never is.
/// Of several processes that replace the same left-over at the very same moment, one gets it.
#[must_use = "it stops listening when it is dropped"]
pub struct UnixListener {
    accepting: Arc<Accepting<UnixEndpoint>>,
    _registration: Registration,
}

impl UnixListener {
    /// Listens at a path with the default options. A relative path is taken from the current folder now, and
    /// stays what it is.
    ///
    /// # Errors
    /// A [`ListenError`] inside of the I/O error. Nothing is registered then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O, as tokio's own.
    pub fn bind(context: &Context, name: impl Into<Arc<str>>, path: impl AsRef<Path>) -> io::Result<Self> {
        UnixOptions::new().bind(context, name, path)
    }

    /// Takes the next connection. Waits through a cycle, and never fails because of it; it also waits when the
    /// wake could not bind, until a later one can. Cancel safe; any number of tasks may wait at once.
    ///
    /// # Errors
    /// Those of `accept(2)`, such as too many open files. The listener can still be used.
    pub async fn accept(&self) -> io::Result<(Tracked<UnixStream>, SocketAddr)> {
        self.accepting.accept().await
    }

    /// Where it listens, or did until the cycle that runs right now.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        locked(&self.accepting.endpoint.place).path.clone()
    }

    /// The connections that it has accepted.
    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.accepting.connections
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        self.accepting.close();
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixListener").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// How a [`UnixListener`] shall listen.
#[derive(Clone)]
#[must_use]
pub struct UnixOptions {
    drain_limit: Duration,
    backlog: u32,
    mode: Option<u32>,
    fallback: Option<Fallback>,
}

type Fallback = Arc<dyn Fn() -> PathBuf + Send + Sync>;

impl fmt::Debug for UnixOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drain_limit, backlog, mode, fallback } = self;
        f.debug_struct("UnixOptions")
            .field("drain_limit", drain_limit)
            .field("backlog", backlog)
            .field("mode", mode)
            .field("fallback", &fallback.is_some())
            .finish()
    }
}

impl Default for UnixOptions {
    fn default() -> Self {
        Self { drain_limit: DEFAULT_DRAIN_LIMIT, backlog: DEFAULT_BACKLOG, mode: None, fallback: None }
    }
}

impl UnixOptions {
    /// The defaults: 5 s to drain, a backlog of 1024, permissions by the umask.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long connections get to finish before they are shut down.
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// How many connections may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// The permission bits of the path, whatever the umask. They hold before the first client can connect.
    pub fn mode(mut self, bits: u32) -> Self {
        self.mode = Some(bits & 0o7777);
        self
    }

    /// Where to listen in a restored process when another live one holds the path: an absolute path, asked for at
    /// that moment. At the next restore the first path is tried again. Without this the restore fails then.
    pub fn fallback(mut self, path: impl Fn() -> PathBuf + Send + Sync + 'static) -> Self {
        self.fallback = Some(Arc::new(path));
        self
    }

    /// As [`UnixListener::bind`], with these options.
    ///
    /// # Errors
    /// As [`UnixListener::bind`].
    ///
    /// # Panics
    /// As [`UnixListener::bind`].
    pub fn bind(
        self,
        context: &Context,
        name: impl Into<Arc<str>>,
        path: impl AsRef<Path>,
    ) -> io::Result<UnixListener> {
        let path = std::path::absolute(path)?;
        let access = Access { mode: self.mode, owner: None };
        let endpoint = UnixEndpoint {
            backlog: self.backlog,
            fallback: self.fallback,
            place: Mutex::new(Place { home: path.clone(), path: path.clone(), inode: None, access }),
        };
        let listener = endpoint.listen(path)?;
        let name = name.into();
        let accepting = Arc::new(Accepting::new(Arc::clone(&name), endpoint, listener, self.drain_limit));
        let registration = context.register(name, Arc::clone(&accepting) as _);
        Ok(UnixListener { accepting, _registration: registration })
    }
}

struct UnixEndpoint {
    backlog: u32,
    fallback: Option<Fallback>,
    place: Mutex<Place>,
}

struct Place {
    /// Where it is to be, as its owner or the last restore said.
    home: PathBuf,
    /// Where it is, which is elsewhere when somebody else held its home.
    path: PathBuf,
    /// Device and inode of the path when it was bound: what it is when it is ours to remove.
    inode: Option<(u64, u64)>,
    access: Access,
}

/// Who may connect.
#[derive(Clone, Copy)]
struct Access {
    mode: Option<u32>,
    /// User and group, where they were seen at a path of ours.
    owner: Option<(u32, u32)>,
}

fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl UnixEndpoint {
    fn listen(&self, path: PathBuf) -> Result<tokio::net::UnixListener, ListenError> {
        let access = locked(&self.place).access;
        let _turn = Turn::at(&path);
        vacate(&path)?;
        let failed = |source| ListenError::bind(&place_of(&path), source);
        let socket = UnixSocket::new_stream().map_err(failed)?;
        if let Some(mode) = access.mode {
            // The path gets the mode of the socket, less the umask (unix_bind in Linux): never wider than it.
            fchmod(&socket, Mode::from_bits_truncate(mode)).map_err(|errno| failed(errno.into()))?;
        }
        socket.bind(&path).map_err(failed)?;
        let open = || {
            let bound = fs::symlink_metadata(&path)?;
            access.apply(&path, &bound)?;
            // Only now can anybody connect.
            Ok((inode(&bound), socket.listen(self.backlog)?))
        };
        let opened: io::Result<_> = open();
        let (inode, listener) = opened.map_err(|source| {
            // What was bound a moment ago is of no use; the first error is the one to report.
            let _ = fs::remove_file(&path);
            failed(source)
        })?;
        let mut place = locked(&self.place);
        place.inode = Some(inode);
        place.path = path;
        Ok(listener)
    }
}

impl Access {
    fn apply(self, path: &Path, bound: &Metadata) -> io::Result<()> {
        if let Some((user, group)) = self.owner
            && (user, group) != (bound.uid(), bound.gid())
        {
            lchown(path, Some(user), Some(group))?;
        }
        match self.mode {
            Some(mode) => fs::set_permissions(path, Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

fn place_of(path: &Path) -> String {
    format!("unix {}", path.display())
}

/// Makes room at the path: nothing is there, or a socket that nobody listens on, which is removed.
fn vacate(path: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::bind(&place_of(path), source);
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match probe(path) {
        // connect(2): nobody listens. Or the path went away by itself.
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => {}
        // A full backlog (EAGAIN) and a socket of another type (EPROTOTYPE) are in use, too.
        Ok(()) | Err(Errno::EAGAIN | Errno::EPROTOTYPE) => {
            return Err(ListenError::InUse { place: place_of(path) });
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    match fs::symlink_metadata(path) {
        // Somebody else has replaced it meanwhile.
        Ok(now) if inode(&now) != inode(&found) => Err(ListenError::InUse { place: place_of(path) }),
        Ok(_) => fs::remove_file(path).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Connects without waiting for room in the backlog.
fn probe(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(probe.as_raw_fd(), &UnixAddr::new(path)?)
}

impl Endpoint for UnixEndpoint {
    type Listener = tokio::net::UnixListener;
    type Stream = UnixStream;
    type Address = SocketAddr;

    fn poll_accept(
        listener: &Self::Listener,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<io::Result<(UnixStream, SocketAddr)>> {
        listener.poll_accept(cx)
    }

    fn peer(stream: &UnixStream, _address: &SocketAddr) -> Peer {
        Peer::Process(stream.peer_cred().ok().and_then(|credentials| credentials.pid()))
    }

    fn put_down(&self, listener: Self::Listener) -> io::Result<OwnedFd> {
        let mut place = locked(&self.place);
        // Somebody may have changed them since; a path that is gone or not ours tells nothing.
        if let Ok(now) = fs::symlink_metadata(&place.path)
            && Some(inode(&now)) == place.inode
        {
            place.access = Access { mode: Some(now.mode() & 0o7777), owner: Some((now.uid(), now.gid())) };
        }
        listener.into_std().map(OwnedFd::from)
    }

    fn take_up(&self, descriptor: OwnedFd) -> io::Result<Self::Listener> {
        tokio::net::UnixListener::from_std(descriptor.into())
    }

    fn bind_again(
        &self,
        _name: &str,
        given: Option<&str>,
        _shared: bool,
    ) -> Result<Self::Listener, ListenError> {
        let (home, before) = {
            let mut place = locked(&self.place);
            if let Some(given) = given {
                place.home = std::path::absolute(given)
                    .map_err(|source| ListenError::bind(&place_of(Path::new(given)), source))?;
            }
            (place.home.clone(), place.path.clone())
        };
        let listener = match (self.listen(home), &self.fallback) {
            (Err(ListenError::InUse { .. }), Some(fallback)) if given.is_none() => self.listen(fallback()),
            (outcome, _) => outcome,
        }?;
        if before != locked(&self.place).path {
            let _turn = Turn::at(&before);
            // Of no use to anybody, unless another process listens there: then it stays.
            let _ = vacate(&before);
        }
        Ok(listener)
    }

    /// Removes the path if it is still the one that was bound.
    fn retire(&self) {
        let mut place = locked(&self.place);
        let ours = place.inode.take();
        if ours.is_some() && fs::symlink_metadata(&place.path).ok().as_ref().map(inode) == ours {
            // Whoever removed it in between has done the work.
            let _ = fs::remove_file(&place.path);
        }
    }

    fn describe(&self) -> String {
        place_of(&locked(&self.place).path)
    }
}
