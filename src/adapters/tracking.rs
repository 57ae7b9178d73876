//! Connections that can be drained: each tells when it is gone, and can be asked to go.
//!
//! A dump must find no connection open. Draining asks each handler to finish, in growing earnest, and names
//! those that did not. This module must not know who accepts the connections, or why they have to go.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{Shutdown, SockaddrStorage, getsockname, shutdown};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::resource::locked;

mod tracked;

#[cfg(test)]
mod tests;

use tracked::{Place, Seat};
pub use tracked::{Quiescing, Tracked};

/// How long a handler has to drop a connection that was shut down in both directions. It needs no answer from
/// the peer for that, only to be scheduled.
pub const GRACE: Duration = Duration::from_secs(1);

/// How many stuck connections an error's text names; the rest is counted.
const NAMED: usize = 32;

/// The open connections of one server. Clones share them.
#[derive(Clone, Default)]
pub struct Connections {
    register: Arc<Register>,
}

#[derive(Default)]
struct Register {
    seats: Mutex<Seats>,
    /// Streams not yet closed. A stream leaves `seats` before its descriptor is closed, and this after.
    active: AtomicUsize,
    emptied: Notify,
}

#[derive(Default)]
struct Seats {
    quiescing: bool,
    live: HashMap<u64, Arc<Connection>>,
    accepted: u64,
    drained: u64,
    forced: u64,
}

struct Connection {
    id: u64,
    /// Valid for as long as the connection is in `Seats::live`, and used only under that lock.
    fd: RawFd,
    peer: Peer,
    /// The handler wants to be told, so its reads are left alone while it finishes.
    asked: AtomicBool,
    quiescing: AtomicBool,
    forced: AtomicBool,
    signal: Notify,
    register: Arc<Register>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// An address of the network.
    Address(SocketAddr),
    /// A process of this machine, if the kernel tells which.
    Process(Option<i32>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Process(Some(pid)) => write!(f, "pid {pid}"),
            Self::Process(None) => f.write_str("a process out of sight"),
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// What became of the connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// All that were ever tracked.
    pub accepted: u64,
    /// Those open now.
    pub active: usize,
    /// Those that their handlers closed while a cycle was draining.
    pub drained: u64,
    /// Those that a cycle had to shut down in both directions.
    pub forced: u64,
}

impl Connections {
    /// No connections.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tracks a stream until the returned wrapper is dropped. One that comes while the others are drained is
    /// asked to go at once.
    pub fn track<S: AsFd>(&self, stream: S, peer: impl Into<Peer>) -> Tracked<S> {
        let fd = stream.as_fd().as_raw_fd();
        self.register.active.fetch_add(1, Ordering::Relaxed);
        let mut seats = locked(&self.register.seats);
        seats.accepted += 1;
        let connection = Arc::new(Connection {
            id: seats.accepted,
            fd,
            peer: peer.into(),
            asked: AtomicBool::new(false),
            quiescing: AtomicBool::new(false),
            forced: AtomicBool::new(false),
            signal: Notify::new(),
            register: Arc::clone(&self.register),
        });
        seats.live.insert(connection.id, Arc::clone(&connection));
        if seats.quiescing {
            connection.ask();
        }
        drop(seats);
        Tracked::new(Seat(Arc::clone(&connection)), stream, Place(connection))
    }

    /// What became of the connections so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let seats = locked(&self.register.seats);
        Counts {
            accepted: seats.accepted,
            active: self.active(),
            drained: seats.drained,
            forced: seats.forced,
        }
    }

    /// How many are open now.
    #[must_use]
    pub fn active(&self) -> usize {
        self.register.active.load(Ordering::Acquire)
    }

    /// Gets every connection closed. Handlers that await [`Tracked::quiescing`] finish at their next message
    /// boundary. The others read what has already arrived and then end of file, so that an idle one closes at
    /// once and a busy one answers first. What is left after `limit` is shut down in both directions, and has
    /// [`GRACE`] to be dropped.
    ///
    /// Until [`reopen`](Self::reopen), new connections are asked to go as well.
    ///
    /// # Errors
    /// The connections that are still open then. They are of no more use to their peers.
    pub async fn drain(&self, limit: Duration) -> Result<(), StuckConnections> {
        self.ask_all();
        if timeout(limit, self.emptied()).await.is_ok() {
            return Ok(());
        }
        self.force_all();
        if timeout(GRACE, self.emptied()).await.is_ok() {
            return Ok(());
        }
        let stuck = self.names();
        // The last may have gone since the time ran out.
        if stuck.is_empty() {
            Ok(())
        } else {
            Err(StuckConnections { waited: limit.saturating_add(GRACE), connections: stuck })
        }
    }

    /// Takes new connections as usual again. Those that [`drain`](Self::drain) has asked to go still go.
    pub fn reopen(&self) {
        locked(&self.register.seats).quiescing = false;
    }

    fn ask_all(&self) {
        let mut seats = locked(&self.register.seats);
        seats.quiescing = true;
        seats.live.values().for_each(|connection| connection.ask());
    }

    fn force_all(&self) {
        let mut seats = locked(&self.register.seats);
        let forced = seats.live.values().filter(|connection| connection.force()).count();
        seats.forced += forced as u64;
    }

    async fn emptied(&self) {
        loop {
            // Created before the count is read: a notice in between is not lost.
            let emptied = self.register.emptied.notified();
            if self.active() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn names(&self) -> Vec<String> {
        let seats = locked(&self.register.seats);
        let mut live: Vec<_> = seats.live.values().collect();
        live.sort_by_key(|connection| connection.id);
        live.into_iter().map(|connection| connection.name()).collect()
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connections").field(&self.counts()).finish()
    }
}

impl Connection {
    /// Called under the lock of the seats, as is `force`: the descriptor is still this connection's.
    fn ask(&self) {
        self.quiescing.store(true, Ordering::SeqCst);
        self.signal.notify_waiters();
        if !self.asked.load(Ordering::SeqCst) {
            // tcp(7), unix(7) and Linux' own behaviour: queued data is still delivered, then end of file.
            // It fails when the peer has already reset the connection, which its handler sees by itself.
            let _ = shutdown(self.fd, Shutdown::Read);
        }
    }

    /// Whether this is what shut the connection down.
    fn force(&self) -> bool {
        let _ = shutdown(self.fd, Shutdown::Both);
        !self.forced.swap(true, Ordering::SeqCst)
    }

    fn name(&self) -> String {
        match getsockname::<SockaddrStorage>(self.fd) {
            Ok(local) => format!("{} to {local}", self.peer),
            Err(_) => self.peer.to_string(),
        }
    }
}

/// Connections whose handlers did not drop them. The process still holds them, and cannot be dumped.
#[derive(Debug, thiserror::Error)]
pub struct StuckConnections {
    waited: Duration,
    connections: Vec<String>,
}

impl StuckConnections {
    /// `PEER to LOCAL` of each.
    #[must_use]
    pub fn connections(&self) -> &[String] {
        &self.connections
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "let the handler return on end of file or an error, or await `Tracked::quiescing` beside its own work"
    }
}

impl fmt::Display for StuckConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, connection) in self.connections.iter().take(NAMED).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}connection from {connection} was not closed by its handler")?;
        }
        if let Some(more @ 1..) = self.connections.len().checked_sub(NAMED) {
            write!(f, "; nor were {more} more")?;
        }
        write!(f, " within {:?}, the last of it after being shut down", self.waited)
    }
}
