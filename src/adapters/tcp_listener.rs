//! A TCP listener that goes through a cycle: clients see no refusal while the process goes on, and a restored
//! process listens at the same address, or at one given at restore.
//!
//! It must not know what is spoken on its connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};

use super::accepting::{Accepting, DEFAULT_BACKLOG, DEFAULT_DRAIN_LIMIT, Endpoint};
use super::listen_error::ListenError;
use super::tracking::{Connections, Peer, Tracked};
use crate::context::{Context, Registration};
use crate::resource::locked;

#[cfg(test)]
mod tests;

/// A listening TCP socket, registered with a [`Context`] until it is dropped.
///
/// Before a checkpoint it stops accepting, and its connections are [drained](Connections::drain). The socket
/// itself is held outside of the image meanwhile, so that connections go on queueing up in its backlog. When
/// the process goes on, it accepts them; a restored process binds anew.
///
/// In a restored process the address is the one it had, its port included if that was chosen by the kernel, or
/// what `NAME.listen=ADDR` says: `IP:PORT`, or `:PORT` for the same IP. Port 0 takes a free port. With
/// `NAME.share=yes` it shares the port as by [`TcpOptions::reuse_port`]. Of the socket's options, only those of
/// [`TcpOptions`] are set again.
///
/// ```no_run
/// # async fn server() -> std::io::Result<()> {
/// use defrost::{Context, adapters::TcpListener};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let context = Context::new();
/// let listener = TcpListener::bind(&context, "http", "127.0.0.1:8080")?;
/// loop {
///     let (mut stream, _) = listener.accept().await?;
///     tokio::spawn(async move {
///         let mut message = [0; 512];
///         // End of file comes when the peer is done, and when a checkpoint wants the connection gone.
///         while let Ok(length @ 1..) = stream.read(&mut message).await {
///             if stream.write_all(&message[..length]).await.is_err() {
///                 break;
///             }
///         }
///     });
/// }
/// # }
/// ```
#[must_use = "it stops listening when it is dropped"]
pub struct TcpListener {
    accepting: Arc<Accepting<TcpEndpoint>>,
    _registration: Registration,
}

impl TcpListener {
    /// Listens on the first of the addresses that can be bound, with the default options. A host name is looked
    /// up on this very thread.
    ///
    /// # Errors
    /// Those of the look-up, of `socket(2)`, `bind(2)` and `listen(2)`. Nothing is registered then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O, as tokio's own.
    pub fn bind(
        context: &Context,
        name: impl Into<Arc<str>>,
        address: impl ToSocketAddrs,
    ) -> io::Result<Self> {
        TcpOptions::new().bind(context, name, address)
    }

    /// Takes the next connection. Waits through a cycle, and never fails because of it; it also waits when the
    /// wake could not bind, until a later one can. Cancel safe; any number of tasks may wait at once.
    ///
    /// # Errors
    /// Those of `accept(2)`, such as too many open files. The listener can still be used.
    pub async fn accept(&self) -> io::Result<(Tracked<TcpStream>, SocketAddr)> {
        self.accepting.accept().await
    }

    /// Where it listens, or did until the cycle that runs right now.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        *locked(&self.accepting.endpoint.address)
    }

    /// The connections that it has accepted.
    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.accepting.connections
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.accepting.close();
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("address", &self.local_addr()).finish_non_exhaustive()
    }
}

/// How a [`TcpListener`] shall listen.
#[derive(Clone, Debug)]
#[must_use]
pub struct TcpOptions {
    drain_limit: Duration,
    backlog: u32,
    reuse_port: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self { drain_limit: DEFAULT_DRAIN_LIMIT, backlog: DEFAULT_BACKLOG, reuse_port: false }
    }
}

impl TcpOptions {
    /// The defaults: 5 s to drain, a backlog of 1024, the port for itself.
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

    /// Shares the port with other sockets that say so too (`SO_REUSEPORT`), such as clones of one image.
    pub fn reuse_port(mut self, shared: bool) -> Self {
        self.reuse_port = shared;
        self
    }

    /// As [`TcpListener::bind`], with these options.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    ///
    /// # Panics
    /// As [`TcpListener::bind`].
    pub fn bind(
        self,
        context: &Context,
        name: impl Into<Arc<str>>,
        address: impl ToSocketAddrs,
    ) -> io::Result<TcpListener> {
        let mut outcome = Err(io::Error::new(io::ErrorKind::InvalidInput, "the name has no address"));
        for address in address.to_socket_addrs()? {
            outcome = self
                .listen(address, false)
                .map_err(|source| ListenError::bind(&format!("tcp {address}"), source).into());
            if outcome.is_ok() {
                break;
            }
        }
        let listener = outcome?;
        let name = name.into();
        let endpoint = TcpEndpoint { address: Mutex::new(listener.local_addr()?), options: self.clone() };
        let accepting = Arc::new(Accepting::new(Arc::clone(&name), endpoint, listener, self.drain_limit));
        let registration = context.register(name, Arc::clone(&accepting) as _);
        Ok(TcpListener { accepting, _registration: registration })
    }

    fn listen(&self, address: SocketAddr, shared: bool) -> io::Result<tokio::net::TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Else connections of the predecessor in TIME_WAIT keep the port: socket(7).
        socket.set_reuseaddr(true)?;
        if self.reuse_port || shared {
            socket.set_reuseport(true)?;
        }
        socket.bind(address)?;
        socket.listen(self.backlog)
    }
}

struct TcpEndpoint {
    address: Mutex<SocketAddr>,
    options: TcpOptions,
}

impl TcpEndpoint {
    fn address(&self, name: &str, given: Option<&str>) -> Result<SocketAddr, ListenError> {
        let current = *locked(&self.address);
        let Some(given) = given else { return Ok(current) };
        let unreadable =
            |why: String| ListenError::Unreadable { name: name.to_owned(), given: given.to_owned(), why };
        match given.strip_prefix(':') {
            Some(port) => {
                let port =
                    port.parse().map_err(|error: std::num::ParseIntError| unreadable(error.to_string()))?;
                Ok(SocketAddr::new(current.ip(), port))
            }
            None => given.parse().map_err(|error: std::net::AddrParseError| unreadable(error.to_string())),
        }
    }
}

impl Endpoint for TcpEndpoint {
    type Listener = tokio::net::TcpListener;
    type Stream = TcpStream;
    type Address = SocketAddr;

    fn poll_accept(
        listener: &Self::Listener,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        listener.poll_accept(cx)
    }

    fn peer(_stream: &TcpStream, address: &SocketAddr) -> Peer {
        Peer::Address(*address)
    }

    fn put_down(&self, listener: Self::Listener) -> io::Result<OwnedFd> {
        listener.into_std().map(OwnedFd::from)
    }

    fn take_up(&self, descriptor: OwnedFd) -> io::Result<Self::Listener> {
        tokio::net::TcpListener::from_std(descriptor.into())
    }

    fn bind_again(
        &self,
        name: &str,
        given: Option<&str>,
        shared: bool,
    ) -> Result<Self::Listener, ListenError> {
        let address = self.address(name, given)?;
        let bound =
            self.options.listen(address, shared).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) =
            bound.map_err(|source| ListenError::bind(&format!("tcp {address}"), source))?;
        *locked(&self.address) = address;
        Ok(listener)
    }

    /// None where the port may be shared: then it need not be free.
    fn tcp_address(&self) -> Option<SocketAddr> {
        (!self.options.reuse_port).then(|| *locked(&self.address))
    }

    fn tcp_reached_at(&self) -> Option<SocketAddr> {
        Some(*locked(&self.address))
    }

    fn describe(&self) -> String {
        format!("tcp {}", locked(&self.address))
    }
}
