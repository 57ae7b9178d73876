//! This process as the subject of a checkpoint: what it registered, and one cycle at a time.
//!
//! The way of a checkpoint: [`Subject::checkpoint`] → `cycle` (quiesce every resource) → `job` (audit, freeze,
//! [`Engine::dump`]) → `cycle` (wake every resource). A restored process continues in the middle of it, and
//! learns at the end that it is one. It must not know how a request arrived, nor any concrete resource.

mod arrive;
mod cycle;
mod error;
mod identity;
pub(crate) mod inherited;
mod job;
mod recorded;

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::context::{Context, HookFailure};
use crate::engine::criu::CriuEngine;
use crate::engine::{Complete, Engine, EngineName};
use crate::events::Recorder;
use crate::resource::{DEFAULT_HOOK_DEADLINE, HookError, locked};
use crate::wake::Restored;

pub use error::{Cause, CheckpointError, Phase};
pub use identity::Identity;

/// How long CRIU may take over a dump unless a request says otherwise: about a second for each gigabyte is
/// usual, on a slow disk ten times that.
pub const DEFAULT_DUMP_DEADLINE: Duration = Duration::from_secs(120);

type Probe = dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), HookError>> + Send>> + Send + Sync;

/// This process, as something that can be checkpointed. Clones are the same subject.
#[derive(Clone)]
pub struct Subject {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    /// Where relative image folders are taken from: the folder where the server was started.
    base: PathBuf,
    context: Context,
    engine: Box<dyn Engine>,
    events: Recorder,
    identity: Mutex<Identity>,
    last_restore: Mutex<Option<Restored>>,
    running: AtomicBool,
    /// Held from the end of a restore until its report has been read: until then, the pipe and a thread of ours are
    /// there, which a dump must not meet.
    reporting: tokio::sync::Mutex<()>,
    /// Whether the server says that it can serve.
    declared: AtomicBool,
    /// Whether no cycle runs, and none has left anything down.
    up: AtomicBool,
    /// Both of these.
    ready: tokio::sync::watch::Sender<bool>,
    socket: Mutex<Option<PathBuf>>,
    probe: Option<Box<Probe>>,
    stay: bool,
}

/// A subject in the making.
pub struct SubjectBuilder {
    name: String,
    engine: Option<Box<dyn Engine>>,
    events: Option<Recorder>,
    probe: Option<Box<Probe>>,
    stay: bool,
}

impl fmt::Debug for SubjectBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SubjectBuilder {
    /// Dumps with this engine instead of CRIU.
    #[must_use]
    pub fn engine(mut self, engine: impl Engine + 'static) -> Self {
        self.engine = Some(Box::new(engine));
        self
    }

    /// Records what happens here instead of in a [`Recorder`] of its own. [`Recorder::off`] has nothing recorded.
    #[must_use]
    pub fn events(mut self, events: Recorder) -> Self {
        self.events = Some(events);
        self
    }

    /// Asks this, after all hooks, whether a restored process can serve; it has 10 s. Until it says so the
    /// process is not ready.
    #[must_use]
    pub fn ready_probe<F, R>(mut self, probe: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        self.probe = Some(Box::new(move || Box::pin(probe())));
        self
    }

    /// Has a restored process stay, not ready, when a hook or the probe fails, instead of exiting with 1.
    #[must_use]
    pub fn stay_when_restore_fails(mut self) -> Self {
        self.stay = true;
        self
    }

    /// The subject.
    ///
    /// # Errors
    /// The current folder or random numbers cannot be had.
    pub fn build(self) -> io::Result<Subject> {
        let identity = Identity::original()?;
        let events = self.events.unwrap_or_default();
        events.set_origin(identity.instance, identity.generation);
        Ok(Subject {
            shared: Arc::new(Shared {
                name: self.name,
                base: std::env::current_dir()?,
                context: Context::new(),
                engine: self.engine.unwrap_or_else(|| Box::new(CriuEngine::new(None))),
                events,
                identity: Mutex::new(identity),
                last_restore: Mutex::new(None),
                running: AtomicBool::new(false),
                reporting: tokio::sync::Mutex::new(()),
                declared: AtomicBool::new(true),
                up: AtomicBool::new(true),
                ready: tokio::sync::watch::Sender::new(true),
                socket: Mutex::new(None),
                probe: self.probe,
                stay: self.stay,
            }),
        })
    }
}

impl Subject {
    /// This process, dumped by CRIU, under a name by which commands find it.
    ///
    /// # Errors
    /// As [`SubjectBuilder::build`].
    pub fn new(name: impl Into<String>) -> io::Result<Self> {
        Self::builder(name).build()
    }

    /// As [`Subject::new`], with choices.
    pub fn builder(name: impl Into<String>) -> SubjectBuilder {
        SubjectBuilder { name: name.into(), engine: None, events: None, probe: None, stay: false }
    }

    /// The name of this process.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Where resources register.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// The record of what happened, to add to it.
    #[must_use]
    pub fn events(&self) -> &Recorder {
        &self.shared.events
    }

    /// Which instance this is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        *locked(&self.shared.identity)
    }

    /// The facts of the last restore: `None` in an original.
    #[must_use]
    pub fn last_restore(&self) -> Option<Restored> {
        locked(&self.shared.last_restore).clone()
    }

    /// The engine that dumps.
    #[must_use]
    pub fn engine(&self) -> EngineName {
        self.shared.engine.name()
    }

    /// Whether it serves: not while a cycle runs, nor after one that left something down.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.shared.ready.borrow()
    }

    /// Says that the server is not ready, or ready, for reasons of its own: while it warms up.
    pub fn set_ready(&self, ready: bool) {
        self.shared.declared.store(ready, Ordering::SeqCst);
        self.shared.tell_readiness();
    }

    /// Follows the readiness.
    #[must_use]
    pub fn readiness(&self) -> tokio::sync::watch::Receiver<bool> {
        self.shared.ready.subscribe()
    }

    /// Whether a cycle runs.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.shared.running.load(Ordering::Acquire)
    }

    /// Says where the control socket is, for whoever restores this process.
    pub(crate) fn set_socket(&self, socket: Option<PathBuf>) {
        *locked(&self.shared.socket) = socket;
    }

    /// Checkpoints this process into `dir` and ends it, as `defrost checkpoint` does; so in the original this
    /// returns only if that fails. In each restored process it returns [`Outcome::Restored`].
    ///
    /// A relative `dir` is taken from the folder where the process was started. Needs a tokio runtime with more
    /// than one thread, or hooks that never block. Dropping the future does not stop the cycle.
    ///
    /// # Errors
    /// [`CheckpointError`]: there is no image, and this process goes on.
    pub async fn checkpoint_restore(&self, dir: impl AsRef<Path>) -> Result<Outcome, CheckpointError> {
        self.checkpoint(Request::new(dir.as_ref())).await.outcome
    }

    /// As [`Subject::checkpoint_restore`], for code outside tokio: blocks this thread. Hooks run on a runtime
    /// made for the cycle.
    ///
    /// # Errors
    /// [`CheckpointError`]; also when called from within a tokio runtime.
    pub fn checkpoint_restore_blocking(&self, dir: impl AsRef<Path>) -> Result<Outcome, CheckpointError> {
        let internal =
            |what, source| CheckpointError::new(Phase::Request, vec![Cause::Internal { what, source }]);
        if tokio::runtime::Handle::try_current().is_ok() {
            let source = io::Error::other("use checkpoint_restore there");
            return Err(internal("the blocking variant was called within a tokio runtime", source));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|source| internal("no runtime for the hooks", source))?;
        runtime.block_on(self.checkpoint_restore(dir))
    }

    /// Runs one cycle as the request says.
    pub async fn checkpoint(&self, mut request: Request) -> Finished {
        request.target = self.shared.base.join(&request.target);
        let cycle = tokio::spawn(cycle::run(Arc::clone(&self.shared), request));
        match cycle.await {
            Ok(finished) => finished,
            Err(error) => {
                let cause =
                    Cause::Internal { what: "the cycle was broken off", source: io::Error::other(error) };
                Finished { outcome: Err(CheckpointError::new(Phase::Dump, vec![cause])), answer: None }
            }
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Shared {
    fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::SeqCst);
        self.tell_readiness();
    }

    fn tell_readiness(&self) {
        // Read within the sender's lock, so that the last one to tell tells the latest.
        self.ready.send_modify(|ready| {
            *ready = self.declared.load(Ordering::SeqCst) && self.up.load(Ordering::SeqCst);
        });
    }

    /// Begins a cycle, unless one runs; it ends when the guard is dropped.
    fn begin(self: &Arc<Self>) -> Option<Running> {
        let began = self.running.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok();
        began.then(|| Running(Arc::clone(self)))
    }

    async fn probe(&self) -> Result<(), HookError> {
        let Some(probe) = &self.probe else { return Ok(()) };
        match tokio::time::timeout(DEFAULT_HOOK_DEADLINE, probe()).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("the probe did not answer within {DEFAULT_HOOK_DEADLINE:?}").into()),
        }
    }
}

struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// What a checkpoint is asked to do.
#[derive(Debug)]
#[non_exhaustive]
pub struct Request {
    /// The folder that becomes the image. A relative one is taken from where the process was started.
    pub target: PathBuf,
    /// Whether the process goes on afterwards; else it ends once the image is complete.
    pub leave_running: bool,
    /// Whether the image is put on disk before it is complete. One that is not takes less time, is left to the kernel to
    /// write, and is good until the host is started anew.
    pub durable: bool,
    /// How long CRIU may take.
    pub deadline: Duration,
    /// A connection, or a file, that is told the outcome in one line when this process does not live to tell
    /// it. It comes back in [`Finished`] when it does.
    pub answer: Option<OwnedFd>,
}

impl Request {
    /// A checkpoint into `target` that ends the process.
    #[must_use]
    pub fn new(target: &Path) -> Self {
        Self {
            target: target.to_owned(),
            leave_running: false,
            durable: true,
            deadline: DEFAULT_DUMP_DEADLINE,
            answer: None,
        }
    }

    /// The same, with the process going on afterwards.
    #[must_use]
    pub fn leave_running(mut self) -> Self {
        self.leave_running = true;
        self
    }
}

/// A cycle that has ended, in the process that goes on or in a restored one.
#[derive(Debug)]
pub struct Finished {
    /// What came of it.
    pub outcome: Result<Outcome, CheckpointError>,
    /// The connection that was to be told, unless this is a restored process.
    pub answer: Option<OwnedFd>,
}

/// Which process this is, after a cycle that worked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The original, which goes on.
    Resumed {
        /// What was made.
        image: Complete,
        /// Resources that could not be taken up again: these do not work.
        failures: Vec<HookFailure>,
    },
    /// A new one, restored from the image.
    Restored {
        /// The facts of the restore.
        restored: Restored,
        /// What failed. Empty unless the subject was told to stay then; else the process exits.
        failures: Vec<String>,
    },
}
