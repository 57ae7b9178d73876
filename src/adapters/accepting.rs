//! A listening socket that goes through a cycle: what TCP and Unix sockets have in common.
//!
//! It stops accepting, drains the connections, hands the listening descriptor out of the image's way, and comes
//! back with it, or with a new one in a restored process. It must not know addresses or paths: an [`Endpoint`]
//! does.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::listen_error::ListenError;
use super::tracking::{Connections, GRACE, Peer, Tracked};
use crate::resource::{Cycle, HookError, Keep, Resource, locked};
use crate::wake::Wake;

/// How long connections get to finish unless the owner says otherwise.
pub const DEFAULT_DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// The length of the accept queue unless the owner says otherwise: tokio's own.
pub const DEFAULT_BACKLOG: u32 = 1024;

/// How long an address may stay in use by a predecessor that is ending. Where PID 1 reaps slowly, a killed
/// original took up to 2 s to be gone.
const IN_USE_LIMIT: Duration = Duration::from_secs(2);

/// The first pause between two attempts to bind; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// What a hook needs beside the drain: at most `IN_USE_LIMIT` is spent waiting.
const MARGIN: Duration = Duration::from_secs(2);

/// One kind of listening socket, and where it listens.
pub(super) trait Endpoint: Send + Sync + 'static {
    type Listener: Send + Sync;
    type Stream: AsFd;
    type Address;

    /// Takes a connection, or has the waker called when there may be one.
    fn poll_accept(
        listener: &Self::Listener,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(Self::Stream, Self::Address)>>;
    /// Who has connected.
    fn peer(stream: &Self::Stream, address: &Self::Address) -> Peer;
    /// Deregisters the listener from the runtime.
    fn put_down(&self, listener: Self::Listener) -> io::Result<OwnedFd>;
    /// Registers a listening descriptor with the runtime.
    fn take_up(&self, descriptor: OwnedFd) -> io::Result<Self::Listener>;
    /// Binds at the same place as before, or at the place `given` for the listener `name`; one attempt. With `shared`
    /// others may bind there too.
    fn bind_again(
        &self,
        name: &str,
        given: Option<&str>,
        shared: bool,
    ) -> Result<Self::Listener, ListenError>;
    /// The address that clients can reach it at, if it is one of TCP.
    fn tcp_reached_at(&self) -> Option<SocketAddr> {
        self.tcp_address()
    }
    /// The TCP address that is bound again after a restore.
    fn tcp_address(&self) -> Option<SocketAddr> {
        None
    }
    /// Leaves nothing behind of a listener that is closed for good.
    fn retire(&self) {}
    /// The kind and the place: `tcp 127.0.0.1:80`.
    fn describe(&self) -> String;
}

/// An accepted connection, and where it comes from.
type Accepted<E> = (Tracked<<E as Endpoint>::Stream>, <E as Endpoint>::Address);

/// The listener of an endpoint, and the connections it has accepted.
pub(super) struct Accepting<E: Endpoint> {
    name: Arc<str>,
    pub(super) endpoint: E,
    pub(super) connections: Connections,
    drain_limit: Duration,
    /// Held for reading while a connection is taken and tracked, never across an await: once it was held for
    /// writing, whatever has been accepted is also tracked.
    listener: RwLock<Option<E::Listener>>,
    away: Mutex<Option<Keep>>,
    closed: AtomicBool,
    ready: Arc<Ready>,
    /// Tokio remembers only the waker of the last task that polled. This one wakes all that wait.
    waker: Waker,
    runtime: Handle,
}

#[derive(Default)]
struct Ready(Notify);

impl std::task::Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.notify_waiters();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_waiters();
    }
}

impl<E: Endpoint> Accepting<E> {
    /// Must be called in the runtime that the listener is registered with.
    pub(super) fn new(name: Arc<str>, endpoint: E, listener: E::Listener, drain_limit: Duration) -> Self {
        let ready = Arc::new(Ready::default());
        Self {
            name,
            endpoint,
            connections: Connections::new(),
            drain_limit,
            listener: RwLock::new(Some(listener)),
            away: Mutex::default(),
            closed: AtomicBool::new(false),
            waker: Waker::from(Arc::clone(&ready)),
            ready,
            runtime: Handle::current(),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted<E>> {
        loop {
            // The shared waker spends tokio's budget without yielding, so the task has to yield by itself.
            tokio::task::coop::consume_budget().await;
            // Created before the attempt: a notice in between is not lost.
            let ready = self.ready.0.notified();
            if let Some(accepted) = self.try_accept() {
                return accepted;
            }
            ready.await;
        }
    }

    /// `None` when there is no connection, or no listener at the moment.
    fn try_accept(&self) -> Option<io::Result<Accepted<E>>> {
        let listener = self.listener.read().unwrap_or_else(PoisonError::into_inner);
        let mut cx = Context::from_waker(&self.waker);
        let Poll::Ready(accepted) = E::poll_accept(listener.as_ref()?, &mut cx) else {
            return None;
        };
        Some(accepted.map(|(stream, address)| {
            let peer = E::peer(&stream, &address);
            (self.connections.track(stream, peer), address)
        }))
    }

    /// Ends listening for good, also if a cycle is about to take it up again.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.replace(None);
        *locked(&self.away) = None;
        self.endpoint.retire();
    }

    fn replace(&self, listener: Option<E::Listener>) -> Option<E::Listener> {
        let mut place = self.listener.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, listener)
    }

    async fn bind_again(&self, given: Option<&str>, shared: bool) -> Result<E::Listener, ListenError> {
        let deadline = Instant::now() + IN_USE_LIMIT;
        let mut pause = FIRST_PAUSE;
        loop {
            let attempt = {
                let _runtime = self.runtime.enter();
                self.endpoint.bind_again(&self.name, given, shared)
            };
            match attempt {
                Err(error) if error.may_pass() && Instant::now() + pause < deadline => {
                    sleep(pause).await;
                    pause *= 2;
                }
                outcome => return outcome,
            }
        }
    }

    async fn come_back(&self, wake: &Wake) -> Result<E::Listener, ListenError> {
        let kept = locked(&self.away).take().and_then(Keep::take);
        if let Some(restored) = wake.restored() {
            drop(kept);
            let params = &restored.params;
            return self.bind_again(params.listen(&self.name), params.shares(&self.name)).await;
        }
        // Without one, whoever held it died.
        let Some(descriptor) = kept else { return self.bind_again(None, false).await };
        let _runtime = self.runtime.enter();
        let listener = self.endpoint.take_up(descriptor);
        listener.map_err(|source| ListenError::bind(&self.endpoint.describe(), source))
    }
}

#[async_trait]
impl<E: Endpoint> Resource for Accepting<E> {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        if let Some(listener) = self.replace(None) {
            // Kept before the drain: should that fail, the listener comes back by the same way.
            let kept = cycle.keep(self.endpoint.put_down(listener)?);
            *locked(&self.away) = Some(kept);
        }
        Ok(self.connections.drain(self.drain_limit).await?)
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        self.connections.reopen();
        let listening = self.listener.read().unwrap_or_else(PoisonError::into_inner).is_some();
        if listening || self.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let listener = self.come_back(wake).await?;
        self.replace(Some(listener));
        if self.closed.load(Ordering::SeqCst) {
            // It was closed while this hook was binding.
            self.close();
        }
        self.ready.0.notify_waiters();
        Ok(())
    }

    fn deadline(&self) -> Duration {
        self.drain_limit.saturating_add(GRACE).saturating_add(MARGIN)
    }

    fn listens(&self) -> Vec<SocketAddr> {
        self.endpoint.tcp_address().into_iter().collect()
    }

    fn reached_at(&self) -> Vec<SocketAddr> {
        self.endpoint.tcp_reached_at().into_iter().collect()
    }

    fn describe(&self) -> String {
        let active = self.connections.active();
        format!("{}, {active} connection{}", self.endpoint.describe(), if active == 1 { "" } else { "s" })
    }
}
