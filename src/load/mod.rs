//! Many clients of a line echo, each of which checks every answer: what a server does under load, and through a
//! checkpoint.
//!
//! Each client is a task. It waits up to a second before its first message and up to two between messages, sends a line
//! with a timestamp, its own number and the message's, and sees that this very line comes back.
//!
//! It must not know that the server is one of defrost's, nor print anything.

mod client;
mod memory;
mod pace;
mod tally;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::sys::limits::{TooFewDescriptors, allow_descriptors};
pub use memory::Memory;
pub use pace::Pace;
pub use tally::{Latency, Outcome, Trouble};

/// Descriptors of a process beside its connections: standard streams, the runtime, and what `/proc` is read by.
const OTHER_DESCRIPTORS: u64 = 64;

/// How many clients may be at once between the beginning of a connection and its first answer. A listener's backlog is
/// at most 1024 long where nothing else is asked for, and what does not fit is tried again by the kernel only after a
/// second.
const ARRIVING: usize = 256;

/// How long a name may take to resolve.
const RESOLVE: Duration = Duration::from_secs(10);

/// How often the memory is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What load to make.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The server: a name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How many clients, each with a connection of its own.
    pub clients: u32,
    /// How many messages each of them sends.
    pub messages: u32,
    /// When they do.
    pub pace: Pace,
    /// Chooses the waits: the same number gives the same ones.
    pub seed: u64,
    /// How long a message may take to be answered, all attempts together.
    pub limit: Duration,
    /// Whether a connection that ends is made again, and the unanswered message sent again.
    pub through_checkpoint: bool,
    /// The pid of the server, to tell its memory too.
    pub server: Option<i32>,
}

/// Why there was no load. No message was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There are more clients than this process may have connections.
    #[error("{clients} clients: {source}")]
    Descriptors {
        /// How many clients were asked for.
        clients: u32,
        /// The limit.
        source: TooFewDescriptors,
    },
    /// The name has no address.
    #[error("{host}: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// Why not.
        source: io::Error,
    },
    /// Nobody takes connections there.
    #[error("{address}: {source}")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// There is no such process.
    #[error("process {pid}: {cause}")]
    Process {
        /// The pid that was given.
        pid: i32,
        /// Why its memory cannot be read.
        cause: String,
    },
}

impl LoadError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Descriptors { source, .. } => source.hint(),
            Self::Resolve { .. } => "give the name or the address of a host".to_owned(),
            Self::Unreachable { .. } => {
                "start the server first: defrost serve --echo PORT --connections N".to_owned()
            }
            Self::Process { .. } => "give the pid of the server, which `defrost status` tells".to_owned(),
        }
    }
}

/// How far it is, for whoever waits.
#[derive(Debug, Clone)]
pub struct Progress(Arc<tally::Tally>, Instant);

impl Progress {
    /// For one run.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(tally::Tally::new()), Instant::now())
    }

    /// Messages answered by now.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.0.answered()
    }

    /// How it went so far, of so many messages, for who gives up.
    #[must_use]
    pub fn so_far(&self, messages: u64) -> Outcome {
        let outcome = self.0.outcome(messages, self.1.elapsed());
        let failed = outcome.errors.values().sum::<u64>().saturating_sub(outcome.wrong);
        Outcome { interrupted: true, lost: failed, ..outcome }
    }

    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.0.open()
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes the load, and returns when each client has ended. Each message has a deadline, so that this has one too. If the
/// future is dropped all clients end.
///
/// # Errors
/// [`LoadError`]: nothing was sent. What goes wrong later is counted in the [`Outcome`].
///
/// # Panics
/// Outside of a tokio runtime with I/O and time.
pub async fn run(options: LoadOptions, progress: &Progress) -> Result<Outcome, LoadError> {
    let clients = options.clients;
    allow_descriptors(u64::from(clients) + OTHER_DESCRIPTORS)
        .map_err(|source| LoadError::Descriptors { clients, source })?;
    let address = reach(&options).await?;
    let mut memory = memory::Watch::start(options.server)
        .map_err(|cause| LoadError::Process { pid: options.server.unwrap_or_default(), cause })?;
    let tally = Arc::clone(&progress.0);
    let start = Instant::now();
    let plan = Arc::new(client::Plan {
        address,
        start,
        arriving: Semaphore::new(ARRIVING),
        tally: Arc::clone(&tally),
        options,
    });
    let mut running = JoinSet::new();
    for number in 0..clients {
        running.spawn(client::run(Arc::clone(&plan), number));
    }
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(Ok(())) => {}
                // A client that panicked has left its messages unanswered, which is counted.
                Some(Err(error)) => tracing::error!("a client failed: {error}"),
                None => break,
            },
            _ = looks.tick() => tally.costs(memory.look(tally.open())),
        }
    }
    let planned = u64::from(clients) * u64::from(plan.options.messages);
    Ok(tally.outcome(planned, start.elapsed()))
}

/// Finds the server, and sees that it takes connections: ten thousand clients of nobody would say it less clearly.
async fn reach(options: &LoadOptions) -> Result<SocketAddr, LoadError> {
    // An IPv6 address may have the brackets that it has in front of a port.
    let bare = options.host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let name = (bare.unwrap_or(&options.host), options.port);
    let failed = |source| LoadError::Resolve { host: options.host.clone(), source };
    let found = match timeout(RESOLVE, tokio::net::lookup_host(name)).await {
        Ok(found) => found.map_err(failed)?.collect::<Vec<_>>(),
        Err(late) => return Err(failed(late.into())),
    };
    let mut last = failed(io::Error::new(io::ErrorKind::NotFound, "it has no address"));
    for address in found {
        match timeout(options.limit, tokio::net::TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(address),
            Ok(Err(source)) => last = LoadError::Unreachable { address, source },
            Err(late) => last = LoadError::Unreachable { address, source: late.into() },
        }
    }
    Err(last)
}
