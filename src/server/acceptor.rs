//! The loop that takes connections from a listener and gives each a task.
//!
//! It must not know what is spoken on a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use crate::adapters::{StuckConnections, TcpListener, Tracked};

/// How many connections one listener serves at a time unless it is told otherwise; further ones wait in its backlog. Two
/// listeners of this size stay below 1024 open files, the usual soft limit, and leave some to the rest of the process.
pub const CONNECTION_LIMIT: usize = 480;

/// The pause after a failed accept: too many open files, say, does not pass by trying at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener at work. Dropping it stops the listening and leaves open connections to their handlers.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: Arc<TcpListener>,
    stop: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Acceptor {
    /// Has `serve` called with each connection, of which `limit` are served at a time. Must be called in a tokio runtime.
    pub(super) fn start<F, R>(listener: TcpListener, limit: usize, serve: F) -> Self
    where
        F: Fn(Tracked<TcpStream>) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = Arc::new(listener);
        let (stop, mut stopped) = watch::channel(());
        let accepting = Arc::clone(&listener);
        let task = tokio::spawn(async move {
            tokio::select! {
                () = accept(&accepting, limit, &serve) => {}
                _ = stopped.changed() => {}
            }
        });
        Self { listener, stop, task }
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Stops listening, and gives the open connections `limit` to finish.
    ///
    /// # Errors
    /// The connections that did not; they are of no more use to their peers.
    pub(super) async fn stop(self, limit: Duration) -> Result<(), StuckConnections> {
        let Self { listener, stop, task } = self;
        drop(stop);
        // It only ends by the sender that is gone now, or by a panic of tokio's own.
        let _ = task.await;
        let connections = listener.connections().clone();
        drop(listener);
        connections.drain(limit).await
    }
}

async fn accept<F, R>(listener: &TcpListener, limit: usize, serve: &F)
where
    F: Fn(Tracked<TcpStream>) -> R,
    R: Future<Output = ()> + Send + 'static,
{
    let seats = Arc::new(Semaphore::new(limit));
    loop {
        // Nobody closes the semaphore.
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(seated(seat, serve(stream)));
            }
            Err(error) => {
                tracing::warn!("a connection to {} was not accepted: {error}", listener.local_addr());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn seated(seat: OwnedSemaphorePermit, served: impl Future<Output = ()>) {
    served.await;
    drop(seat);
}
