//! The server's end of control: starts every way in that was asked for, and ends them together.
//!
//! It must not know what any of the lines says.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::{AbortHandle, JoinSet};

use super::answer::Answer;
use super::client::Client;
use super::connection::{Connection, refuse, stranger};
use super::error::ControlError;
use super::fifo::Fifo;
use super::name::Name;
use super::options::{ControlOptions, SocketPlace};
use super::pattern::Pattern;
use super::place;
use super::responder::Responder;
use super::signals::Signals;
use super::stdin::Stdin;
use super::stop::StopOrigin;
use crate::adapters::{ListenError, UnixListener, UnixOptions};
use crate::resource::{Cycle, HookError};
use crate::wake::Wake;
use crate::{Context, Registration, Resource, Subject};

/// The name that control is registered under; `control.listen=PATH` moves its socket at restore.
const NAME: &str = "control";

/// How many clients the socket serves at once.
const MOST_CLIENTS: usize = 64;

/// How long clients get to finish before a dump: answers are short, so only the one that audits needs time.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// The pause after a failed accept, such as for too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long to look for who holds a name.
const GLANCE: Duration = Duration::from_millis(200);

/// How many hexadecimal digits of its instance a clone adds to its socket's name.
const MARK: usize = 8;

/// The ways in by which a server is told what to do, open until this is dropped.
///
/// Start it before the server registers its own resources: what is registered first is the last to quiesce, and
/// the first to be there again.
#[must_use = "the server can be told nothing once it is dropped"]
pub struct Control {
    responder: Arc<Responder>,
    listener: Option<Arc<UnixListener>>,
    tasks: Vec<AbortHandle>,
    _registrations: Vec<Registration>,
}

impl Control {
    /// Opens every way in that the options name, and registers all of it as one resource named `control`.
    ///
    /// In a restored process whose socket's path is held by another live one, such as the original or another
    /// clone, the socket is `NAME-XXXXXXXX.sock`, by the first digits of the instance. Clones that are restored at
    /// once are given `NAME-1.sock`, `NAME-2.sock` and so on.
    ///
    /// # Errors
    /// [`ControlError`]. Nothing is left open then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time.
    pub fn start(subject: &Subject, options: ControlOptions) -> Result<Self, ControlError> {
        let pattern = options.checkpoint_to.as_deref().map(Pattern::parse).transpose()?;
        let responder = Arc::new(Responder::new(subject.clone()));
        let inner = Context::new();
        let mut control = Self {
            responder: Arc::clone(&responder),
            listener: None,
            tasks: Vec::new(),
            _registrations: Vec::new(),
        };
        if let Some((path, name)) = place_of(subject, &options.socket)? {
            let listener = Arc::new(listen(&inner, subject, &path, name)?);
            subject.set_socket(Some(listener.path()));
            let accepting = accept(Arc::clone(&listener), Arc::clone(&responder), options.idle_limit);
            control.tasks.push(tokio::spawn(accepting).abort_handle());
            control.listener = Some(listener);
        }
        if let Some(path) = &options.fifo {
            let (registration, task) = Fifo::start(&inner, path, Arc::clone(&responder))?;
            control.tasks.push(task);
            control._registrations.push(registration);
        }
        if options.stdin {
            let registration = Stdin::start(&inner, Arc::clone(&responder));
            control._registrations.push(registration.map_err(|source| ControlError::Stdin { source })?);
        }
        if let Some(signals) = Signals::chosen(&options, pattern) {
            let task =
                signals.start(Arc::clone(&responder)).map_err(|source| ControlError::Signals { source })?;
            control.tasks.push(task);
        }
        let ways = Ways { inner, listener: control.listener.clone(), subject: subject.clone() };
        control._registrations.push(subject.context().register(NAME, Arc::new(ways)));
        Ok(control)
    }

    /// Completes when the process shall end: by the line `stop`, by SIGTERM or SIGINT where these are caught, or
    /// by [`request_stop`](Self::request_stop). Cancel safe; any number of tasks may wait.
    pub async fn stopped(&self) -> StopOrigin {
        self.responder.stopped().await
    }

    /// Says that the process shall end.
    pub fn request_stop(&self) {
        self.responder.request_stop(StopOrigin::Program);
    }

    /// The path of the control socket, if there is one; it may be another after a restore.
    #[must_use]
    pub fn socket(&self) -> Option<PathBuf> {
        self.listener.as_ref().map(|listener| listener.path())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.responder.subject().set_socket(None);
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("socket", &self.socket()).finish_non_exhaustive()
    }
}

/// The path of the socket, and the name that it was chosen by.
fn place_of(subject: &Subject, place: &SocketPlace) -> Result<Option<(PathBuf, Option<Name>)>, ControlError> {
    Ok(match place {
        SocketPlace::None => None,
        SocketPlace::Path(path) => Some((path.clone(), None)),
        SocketPlace::Default => {
            let name = Name::new(subject.name())?;
            Some((place::socket_path(&name)?, Some(name)))
        }
    })
}

fn listen(
    context: &Context,
    subject: &Subject,
    path: &Path,
    name: Option<Name>,
) -> Result<UnixListener, ControlError> {
    let (beside, of_whom) = (path.to_owned(), subject.clone());
    let fallback = move || {
        let mut instance = of_whom.identity().instance.to_string();
        instance.truncate(MARK);
        place::beside(&beside, &instance)
    };
    let options = UnixOptions::new().mode(0o600).drain_limit(DRAIN_LIMIT).fallback(fallback);
    options.bind(context, NAME, path).map_err(|source| taken(path, name, source))
}

fn taken(path: &Path, name: Option<Name>, source: io::Error) -> ControlError {
    let cause = source.get_ref().and_then(|inner| inner.downcast_ref());
    if !matches!(cause, Some(ListenError::InUse { .. })) {
        return ControlError::Socket { source };
    }
    let pid = Client::connect(path, GLANCE).ok().and_then(|client| client.peer_pid());
    match name {
        Some(name) => ControlError::NameTaken { name: name.to_string(), pid },
        None => ControlError::PathTaken { path: path.to_owned(), pid },
    }
}

async fn accept(listener: Arc<UnixListener>, responder: Arc<Responder>, idle_limit: Duration) {
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("control socket: no connection could be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Some(answer) = stranger(&stream) {
            refuse(&stream, &answer);
        } else if clients.len() >= MOST_CLIENTS {
            let hint = ["close some of them".to_owned()];
            refuse(&stream, &Answer::error(format!("there are {MOST_CLIENTS} connections already"), &hint));
        } else {
            let (connections, responder) = (listener.connections().clone(), Arc::clone(&responder));
            let connection = Connection { responder, connections, idle_limit };
            clients.spawn(connection.serve(stream));
        }
    }
}

/// All ways in as one resource.
struct Ways {
    inner: Context,
    listener: Option<Arc<UnixListener>>,
    subject: Subject,
}

#[async_trait]
impl Resource for Ways {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        self.inner.before_checkpoint(cycle).await
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let woken = self.inner.after_restore(wake).await;
        self.subject.set_socket(self.listener.as_ref().map(|listener| listener.path()));
        woken
    }

    fn deadline(&self) -> Duration {
        self.inner.deadline()
    }

    fn claims(&self) -> Vec<std::os::fd::RawFd> {
        self.inner.claims()
    }

    fn describe(&self) -> String {
        let ways = self.inner.resources();
        let ways: Vec<String> = ways.into_iter().map(|way| way.description).collect();
        ways.join("; ")
    }
}
