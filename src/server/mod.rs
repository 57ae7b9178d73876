//! The server that ships with defrost: a line echo, and an HTTP server with something to warm up.
//!
//! It is the first user of the library, and the program under test: all that it holds through a checkpoint is
//! registered with the subject's context, in this order: `random`, `motd`, `cycles`, `highlighted`, `highlighting`,
//! `http`, `echo`, `memory`, `grammars`. So a checkpoint first waits for everything to be warm, then lets the clients
//! finish, and a restored process listens when everything behind it is in order.
//!
//! It must not know the command line, signals or the control socket, and it prints nothing.

mod acceptor;
mod cycles;
pub mod echo;
pub mod expiring;
#[cfg(feature = "highlight")]
pub mod highlight;
mod http;
pub mod log_events;
mod metrics;
pub mod motd;
mod readiness;
mod routes;
mod views;
pub mod warm;
pub mod warmed;
pub mod warming;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::adapters::{DEFAULT_DRAIN_LIMIT, Rng, StuckConnections, TcpListener, TcpOptions};
use crate::events::KindError;
use crate::sys::limits::{TooFewDescriptors, allow_descriptors};
use crate::{Registration, Subject};
use acceptor::Acceptor;
pub use acceptor::CONNECTION_LIMIT;
use cycles::Cycles;
pub use expiring::{Expiring, WallClock};
#[cfg(feature = "highlight")]
use highlight::{Highlight, HighlightOptions};
pub use log_events::LogEvents;
use metrics::Metrics;
use motd::Motd;
pub use motd::MotdOptions;
use readiness::Warmers;
use routes::App;
use views::PageView;
use warm::Warm;
pub use warm::WarmOptions;
pub use warmed::{Warmed, WarmedError};
use warming::Warming;
pub use warming::{Progress, Unit, WarmError};

/// Descriptors beside those of connections: files, sockets, the runtime's, and what a checkpoint opens for a moment.
const OTHER_DESCRIPTORS: usize = 64;

/// What to serve.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where to echo lines: `HOST:PORT`; port 0 takes a free one.
    pub echo: Option<String>,
    /// Where to serve HTTP.
    pub http: Option<String>,
    /// Memory to fill at the start.
    pub warm: Option<WarmOptions>,
    /// Whether and how to highlight source text.
    #[cfg(feature = "highlight")]
    pub highlight: Option<HighlightOptions>,
    /// A file to serve at `/motd`.
    pub motd: Option<MotdOptions>,
    /// How long connections may take to finish, before a checkpoint and when the server stops.
    pub drain: Duration,
    /// How many connections each listener serves at a time; further ones wait in its backlog.
    pub connections: usize,
    /// Whether the ports may be shared with clones (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// What tells the age of the message of the day.
    pub clock: WallClock,
}

impl Default for ServerOptions {
    /// Nothing served, 5 s to drain, [`CONNECTION_LIMIT`], the system's clock.
    fn default() -> Self {
        Self {
            echo: None,
            http: None,
            warm: None,
            #[cfg(feature = "highlight")]
            highlight: None,
            motd: None,
            drain: DEFAULT_DRAIN_LIMIT,
            connections: CONNECTION_LIMIT,
            reuse_port: false,
            clock: WallClock::default(),
        }
    }
}

/// Which of the two protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The line echo, registered as `echo`.
    Echo,
    /// HTTP, registered as `http`.
    Http,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Http => "http",
        }
    }
}

/// Why the server did not start. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It cannot listen where it should.
    #[error("{protocol} {address}: {source}")]
    Listen {
        /// For what.
        protocol: Protocol,
        /// Where, as it was given.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The message of the day cannot be read.
    #[error("motd {}: {source}", path.display())]
    Motd {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// This process may not have that many connections.
    #[error("{connections} connections at a time: {source}")]
    Descriptors {
        /// How many each listener was to serve.
        connections: usize,
        /// The limit.
        source: TooFewDescriptors,
    },
    /// The record of events that it was given has one of its own already.
    #[error(transparent)]
    Events(KindError),
    /// A language to warm has no grammar.
    #[cfg(feature = "highlight")]
    #[error("warm: {0}")]
    Language(#[from] highlight::UnknownLanguage),
    /// The kernel has no random numbers.
    #[error("random numbers: {0}")]
    Random(#[source] io::Error),
}

impl ServerError {
    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::Listen { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => {
                    "end the process that listens there, or choose another port; port 0 takes a free one"
                }
                io::ErrorKind::AddrNotAvailable => "give an address of this host",
                io::ErrorKind::PermissionDenied => "take a port from 1024 on",
                _ => "give IP:PORT, [IP6]:PORT or HOST:PORT",
            },
            Self::Motd { .. } => "give a readable text file of at most 64 KiB",
            #[cfg(feature = "highlight")]
            Self::Language(_) => {
                "give all, common, or names as GET /languages lists them, with commas between them"
            }
            Self::Descriptors { source, .. } => return Some(source.hint().into()),
            Self::Events(_) => "start one server for each subject",
            Self::Random(_) => return None,
        };
        Some(hint.into())
    }
}

/// A server at work. Dropping it ends the listening; [`stop`](Self::stop) ends it gracefully.
#[derive(Debug)]
pub struct Server {
    echo: Option<Acceptor>,
    http: Option<Acceptor>,
    app: Arc<App>,
    drain: Duration,
    _warming: Vec<Registration>,
}

/// What was left of the connections when a server stopped: `None` of a listener whose connections all finished.
pub type Stopped = Vec<StuckConnections>;

impl Server {
    /// Starts serving, and warming up if that is asked for: until it is done the subject is not ready.
    ///
    /// # Errors
    /// [`ServerError`]
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time.
    pub fn start(options: ServerOptions, subject: &Subject) -> Result<Self, ServerError> {
        Self::start_warmed(options, Warmed::default(), subject)
    }

    /// The same, of a server whose warm-up has been done: `warmed` is of the same options.
    ///
    /// # Errors
    /// [`ServerError`]
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time.
    pub fn start_warmed(
        options: ServerOptions,
        warmed: Warmed,
        subject: &Subject,
    ) -> Result<Self, ServerError> {
        allow_connections(&options)?;
        let context = subject.context();
        let random = Rng::register(context, "random").map_err(ServerError::Random)?;
        let motd = options.motd.as_ref().map(|motd| {
            let registered = Motd::register(context, motd, options.clock.clone());
            registered.map_err(|source| ServerError::Motd { path: motd.file.clone(), source })
        });
        let motd = motd.transpose()?;
        let cycles = Arc::new(Cycles::register(context));
        #[cfg(feature = "highlight")]
        let highlight = options
            .highlight
            .clone()
            .map(|highlight| Highlight::register(subject, highlight, warmed.grammars));
        #[cfg(feature = "highlight")]
        let highlight = highlight.transpose()?;
        let http = listen(&options, subject, Protocol::Http, options.http.as_deref())?;
        let echo = listen(&options, subject, Protocol::Echo, options.echo.as_deref())?;

        let warmers = Warmers::new(subject, &options);
        let mut registered = Vec::new();
        let mut warmings: Vec<Arc<Warming>> = Vec::new();
        let warm = warmed.memory.inspect(|_| warmers.one()());
        let warm = warm.or_else(|| options.warm.map(|warm| Warm::start(warm, warmers.one())));
        if let Some(warm) = &warm {
            registered.push(context.register("memory", Arc::clone(warm) as _));
            warmings.push(Arc::clone(warm.warming()));
        }
        #[cfg(feature = "highlight")]
        if let Some(warming) = highlight.as_ref().and_then(|highlight| highlight.warm(warmers.one())) {
            registered.push(context.register("grammars", Arc::clone(&warming) as _));
            warmings.push(Arc::clone(warming.warming()));
        }

        let listeners = [(Protocol::Http, &http), (Protocol::Echo, &echo)].into_iter();
        let connections = listeners
            .filter_map(|(protocol, listener)| {
                Some((protocol.name(), listener.as_ref()?.connections().clone()))
            })
            .collect();
        let metrics = Metrics::new(subject.clone(), Arc::clone(&cycles), connections);
        #[cfg(feature = "highlight")]
        let metrics = match &highlight {
            Some(highlight) => metrics.and(highlight.figures()),
            None => metrics,
        };
        let app = App {
            views: subject.events().register::<PageView>().map_err(ServerError::Events)?,
            subject: subject.clone(),
            random,
            cycles,
            motd,
            warm,
            warmings,
            #[cfg(feature = "highlight")]
            highlight,
            metrics,
            checking: Semaphore::new(1),
        };
        let app = Arc::new(app);
        let router = routes::router(Arc::clone(&app));
        let limit = options.connections;
        Ok(Self {
            echo: echo.map(|listener| Acceptor::start(listener, limit, echo::serve)),
            http: http.map(|listener| {
                Acceptor::start(listener, limit, move |stream| http::serve(stream, router.clone()))
            }),
            app,
            drain: options.drain,
            _warming: registered,
        })
    }

    /// Where it listens for `protocol`, if it does.
    #[must_use]
    pub fn address(&self, protocol: Protocol) -> Option<SocketAddr> {
        let acceptor = match protocol {
            Protocol::Echo => &self.echo,
            Protocol::Http => &self.http,
        };
        acceptor.as_ref().map(Acceptor::address)
    }

    /// How far the first unfinished warm-up is, or the last one; none if there is none.
    #[must_use]
    pub fn warming(&self) -> Option<Progress> {
        let mut warmings = self.app.warmings.iter();
        let unfinished = warmings.find(|warming| !warming.is_warm()).or(self.app.warmings.last());
        unfinished.map(|warming| warming.progress())
    }

    /// Waits until all warm-ups have ended; returns at once without one. Cancel safe.
    ///
    /// # Errors
    /// [`WarmError`]. The server serves all the same, but is not ready.
    pub async fn warmed(&self) -> Result<(), WarmError> {
        for warming in &self.app.warmings {
            warming.ended().await?;
        }
        Ok(())
    }

    /// Stops accepting, gives the open connections the time to finish that the options say, and shuts down the
    /// rest. Gives up an unfinished warm-up.
    ///
    /// What is returned names connections whose handlers did not even then let go; the end of the runtime ends
    /// them.
    pub async fn stop(self) -> Stopped {
        let Self { echo, http, app, drain, .. } = self;
        app.subject.set_ready(false);
        for warming in &app.warmings {
            warming.stop();
        }
        let stop = |acceptor: Option<Acceptor>| async move {
            match acceptor {
                Some(acceptor) => acceptor.stop(drain).await.err(),
                None => None,
            }
        };
        let (echo, http) = tokio::join!(stop(echo), stop(http));
        echo.into_iter().chain(http).collect()
    }
}

/// Raises the soft limit on descriptors where the connections would not leave some to the rest of the process.
fn allow_connections(options: &ServerOptions) -> Result<(), ServerError> {
    let listeners = usize::from(options.echo.is_some()) + usize::from(options.http.is_some());
    let needed = (listeners * options.connections + OTHER_DESCRIPTORS) as u64;
    let connections = options.connections;
    allow_descriptors(needed).map_err(|source| ServerError::Descriptors { connections, source })
}

fn listen(
    options: &ServerOptions,
    subject: &Subject,
    protocol: Protocol,
    address: Option<&str>,
) -> Result<Option<TcpListener>, ServerError> {
    let Some(address) = address else { return Ok(None) };
    let tcp = TcpOptions::new().drain_limit(options.drain).reuse_port(options.reuse_port);
    let bound = tcp.bind(subject.context(), protocol.name(), address);
    bound.map(Some).map_err(|source| ServerError::Listen { protocol, address: address.to_owned(), source })
}
