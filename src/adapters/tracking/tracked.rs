//! The stream that its handler holds, and the signal that asks it to finish.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::{Connection, Peer};
use crate::resource::locked;

/// A stream that is tracked until it is dropped. Reading and writing go straight to the stream.
pub struct Tracked<S> {
    // Dropped in this order: out of the register, closed, counted out.
    seat: Seat,
    stream: S,
    _place: Place,
}

/// A place in the register: while it is there, the register may use the descriptor.
pub(super) struct Seat(pub(super) Arc<Connection>);

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = locked(&self.0.register.seats);
        seats.live.remove(&self.0.id);
        if seats.quiescing && !self.0.forced.load(Ordering::SeqCst) {
            seats.drained += 1;
        }
    }
}

/// Counted as open: given up when the descriptor is closed.
pub(super) struct Place(pub(super) Arc<Connection>);

impl Drop for Place {
    fn drop(&mut self) {
        let register = &self.0.register;
        if register.active.fetch_sub(1, Ordering::Release) == 1 {
            register.emptied.notify_waiters();
        }
    }
}

impl<S> Tracked<S> {
    pub(super) fn new(seat: Seat, stream: S, place: Place) -> Self {
        Self { seat, stream, _place: place }
    }

    /// Completes when the connection shall be finished: the handler then sends what it owes and drops it.
    ///
    /// From its first poll on the handler is trusted to do so, and its reads do not end before the drain limit.
    pub fn quiescing(&self) -> impl Future<Output = ()> + Send + 'static + use<S> {
        let connection = Arc::clone(&self.seat.0);
        async move { Quiescing::new(connection).wait().await }
    }

    /// The same as a handle, for code that does not hold the stream. From now on the handler is trusted to
    /// finish when told.
    #[must_use]
    pub fn quiescing_handle(&self) -> Quiescing {
        Quiescing::new(Arc::clone(&self.seat.0))
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.seat.0.peer
    }

    /// The stream, for its options and addresses.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl Tracked<TcpStream> {
    /// Both halves, to be used at the same time; they cost nothing.
    pub fn split(&mut self) -> (tokio::net::tcp::ReadHalf<'_>, tokio::net::tcp::WriteHalf<'_>) {
        self.stream.split()
    }
}

impl Tracked<UnixStream> {
    /// Both halves, to be used at the same time; they cost nothing.
    pub fn split(&mut self) -> (tokio::net::unix::ReadHalf<'_>, tokio::net::unix::WriteHalf<'_>) {
        self.stream.split()
    }
}

impl<S: fmt::Debug> fmt::Debug for Tracked<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracked").field(&self.stream).finish()
    }
}

impl<S: AsFd> AsFd for Tracked<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Tells one handler when to finish its connection. Clones are cheap, and share no lock with other connections.
#[derive(Clone)]
pub struct Quiescing(Arc<Connection>);

impl Quiescing {
    fn new(connection: Arc<Connection>) -> Self {
        connection.asked.store(true, Ordering::SeqCst);
        Self(connection)
    }

    /// Whether the connection shall be finished.
    #[must_use]
    pub fn is_quiescing(&self) -> bool {
        self.0.quiescing.load(Ordering::SeqCst)
    }

    /// Completes when the connection shall be finished. Cancel safe.
    pub async fn wait(&self) {
        let signal = self.0.signal.notified();
        if !self.is_quiescing() {
            signal.await;
        }
    }
}

impl fmt::Debug for Quiescing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quiescing").field(&self.is_quiescing()).finish()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tracked<S> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tracked<S> {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, data)
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
