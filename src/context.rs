//! The ordered registry of resources, and how it is quiesced and woken.
//!
//! Registration is strong: what is registered lives until its [`Registration`] is dropped. A context is itself
//! a resource, so contexts nest. It must not know why a cycle runs, what is dumped, or where to.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::resource::{Cycle, HookError, Resource, locked, next_sequence};
use crate::wake::Wake;

/// A list of resources in the order of their registration. Clones share the list.
#[derive(Clone, Default)]
pub struct Context {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    entries: Mutex<Vec<Entry>>,
    /// What the running cycle has asked to quiesce, in order of registration: these, and no others, are woken.
    quiesced: Mutex<Vec<Entry>>,
}

#[derive(Clone)]
struct Entry {
    sequence: u64,
    name: Arc<str>,
    resource: Arc<dyn Resource>,
}

impl Context {
    /// An empty context.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a resource behind all others: it is the first to quiesce and the last to wake. It stays
    /// registered until the guard is dropped. Registered from a hook, it takes part from the next cycle on.
    pub fn register(&self, name: impl Into<Arc<str>>, resource: Arc<dyn Resource>) -> Registration {
        let entry = Entry { sequence: next_sequence(), name: name.into(), resource };
        let registration = Registration { context: Arc::downgrade(&self.shared), sequence: entry.sequence };
        locked(&self.shared.entries).push(entry);
        registration
    }

    /// Name and description of each resource, in order of registration.
    #[must_use]
    pub fn resources(&self) -> Vec<ResourceInfo> {
        let entries = locked(&self.shared.entries).clone();
        entries
            .iter()
            .map(|entry| ResourceInfo {
                name: entry.name.to_string(),
                description: entry.resource.describe(),
                deadline: entry.resource.deadline(),
            })
            .collect()
    }

    /// The descriptors that resources answer for, each with the resource's name.
    #[must_use]
    pub fn claimed(&self) -> Vec<(RawFd, String)> {
        let entries = locked(&self.shared.entries).clone();
        let claims_of = |entry: &Entry| {
            entry.resource.claims().into_iter().map(|fd| (fd, entry.name.to_string())).collect()
        };
        entries.iter().flat_map(|entry| -> Vec<_> { claims_of(entry) }).collect()
    }

    /// The addresses that resources bind again after a restore, each with the resource's name.
    #[must_use]
    pub fn listens(&self) -> Vec<(String, SocketAddr)> {
        let entries = locked(&self.shared.entries).clone();
        let listens_of = |entry: &Entry| {
            entry.resource.listens().into_iter().map(|address| (entry.name.to_string(), address)).collect()
        };
        entries.iter().flat_map(|entry| -> Vec<_> { listens_of(entry) }).collect()
    }

    /// The addresses that resources can be reached at, each with the resource's name.
    #[must_use]
    pub fn reached_at(&self) -> Vec<(String, SocketAddr)> {
        let entries = locked(&self.shared.entries).clone();
        let places_of = |entry: &Entry| {
            entry.resource.reached_at().into_iter().map(|address| (entry.name.to_string(), address)).collect()
        };
        entries.iter().flat_map(|entry| -> Vec<_> { places_of(entry) }).collect()
    }

    /// Runs every `before_checkpoint`, in reverse order of registration, whatever fails on the way.
    pub(crate) async fn quiesce(&self, cycle: &Cycle) -> Vec<HookRun> {
        let entries: Vec<Entry> = {
            let all = locked(&self.shared.entries);
            all.iter().filter(|entry| cycle.includes(entry.sequence)).cloned().collect()
        };
        locked(&self.shared.quiesced).clone_from(&entries);
        let mut runs = Vec::with_capacity(entries.len());
        for entry in entries.into_iter().rev() {
            let (resource, cycle) = (Arc::clone(&entry.resource), cycle.clone());
            let hook = async move { resource.before_checkpoint(&cycle).await };
            runs.extend(run(entry, Hook::BeforeCheckpoint, hook).await);
        }
        runs
    }

    /// Runs `after_restore` of everything that [`quiesce`](Self::quiesce) asked, in order of registration,
    /// whatever fails on the way.
    pub(crate) async fn wake(&self, wake: &Wake) -> Vec<HookRun> {
        let entries = std::mem::take(&mut *locked(&self.shared.quiesced));
        let mut runs = Vec::with_capacity(entries.len());
        for entry in entries {
            let (resource, wake) = (Arc::clone(&entry.resource), wake.clone());
            let hook = async move { resource.after_restore(&wake).await };
            runs.extend(run(entry, Hook::AfterRestore, hook).await);
        }
        runs
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            locked(&self.shared.entries).iter().map(|entry| Arc::clone(&entry.name)).collect();
        f.debug_struct("Context").field("resources", &names).finish_non_exhaustive()
    }
}

/// Runs one hook under its deadline, on a task of its own: then a hook that blocks its thread is late like any
/// other. A nested context comes back as the runs of its own resources.
async fn run<F>(entry: Entry, hook: Hook, future: F) -> Vec<HookRun>
where
    F: Future<Output = Result<(), HookError>> + Send + 'static,
{
    let started = Instant::now();
    let deadline = entry.resource.deadline();
    let mut task = tokio::spawn(future);
    let outcome = match tokio::time::timeout(deadline, &mut task).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(HookCause::Failed(error)),
        Ok(Err(error)) => Err(HookCause::Panicked(panic_text(error))),
        Err(_) => {
            task.abort();
            Err(HookCause::Late(deadline))
        }
    };
    let outcome = match outcome {
        Err(HookCause::Failed(error)) => match error.downcast::<NestedFailure>() {
            Ok(nested) => return nested.0.into_iter().map(|run| run.under(&entry.name)).collect(),
            Err(error) => Err(HookCause::Failed(error)),
        },
        other => other,
    };
    vec![HookRun { resource: entry.name.to_string(), hook, took: started.elapsed(), outcome }]
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(payload) = error.try_into_panic() else {
        return "the hook's task was cancelled".to_owned();
    };
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[async_trait]
impl Resource for Context {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        NestedFailure::check(self.quiesce(cycle).await)
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        NestedFailure::check(self.wake(wake).await)
    }

    /// The sum of what its resources may take: they run one after the other.
    fn deadline(&self) -> Duration {
        let entries = locked(&self.shared.entries).clone();
        let sum: Duration = entries.iter().map(|entry| entry.resource.deadline()).sum();
        sum + Duration::from_secs(1)
    }

    fn claims(&self) -> Vec<RawFd> {
        self.claimed().into_iter().map(|(fd, _)| fd).collect()
    }

    fn listens(&self) -> Vec<SocketAddr> {
        Self::listens(self).into_iter().map(|(_, address)| address).collect()
    }

    fn reached_at(&self) -> Vec<SocketAddr> {
        Self::reached_at(self).into_iter().map(|(_, address)| address).collect()
    }

    fn describe(&self) -> String {
        format!("context of {}", locked(&self.shared.entries).len())
    }
}

/// How the runs of a nested context travel through the plain error of its hook.
#[derive(Debug)]
struct NestedFailure(Vec<HookRun>);

impl NestedFailure {
    fn check(runs: Vec<HookRun>) -> Result<(), HookError> {
        if runs.iter().all(|run| run.outcome.is_ok()) { Ok(()) } else { Err(Box::new(Self(runs))) }
    }
}

impl fmt::Display for NestedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} hooks of a nested context failed",
            self.0.iter().filter(|run| run.outcome.is_err()).count()
        )
    }
}

impl std::error::Error for NestedFailure {}

/// Keeps a resource registered; dropping it unregisters. A cycle that runs just then still wakes the resource.
#[derive(Debug)]
#[must_use = "the resource is unregistered when this is dropped"]
pub struct Registration {
    context: Weak<Shared>,
    sequence: u64,
}

impl Registration {
    /// Keeps the resource registered for as long as the context lives.
    pub fn forever(self) {
        std::mem::forget(self);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(shared) = self.context.upgrade() {
            locked(&shared.entries).retain(|entry| entry.sequence != self.sequence);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context")
    }
}

/// One registered resource, for status and manifest.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResourceInfo {
    /// The name that it was registered under.
    pub name: String,
    /// What it says of itself; may be empty.
    pub description: String,
    /// How long each of its hooks may take.
    pub deadline: Duration,
}

/// Which hook ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `before_checkpoint`
    BeforeCheckpoint,
    /// `after_restore`
    AfterRestore,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeforeCheckpoint => "before_checkpoint",
            Self::AfterRestore => "after_restore",
        })
    }
}

/// One hook that ran, and what came of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct HookRun {
    /// The resource's name; `outer/inner` in a nested context.
    pub resource: String,
    /// Which of its hooks.
    pub hook: Hook,
    /// How long it took.
    pub took: Duration,
    /// Whether it worked.
    pub outcome: Result<(), HookCause>,
}

impl HookRun {
    fn under(mut self, outer: &str) -> Self {
        self.resource = format!("{outer}/{}", self.resource);
        self
    }

    /// The failure, if it failed; the times of those that worked are kept by whoever asked.
    pub(crate) fn failure(self) -> Option<HookFailure> {
        let Self { resource, hook, outcome, .. } = self;
        outcome.err().map(|cause| HookFailure { resource, hook, cause })
    }
}

/// A hook that failed: the resource, which hook, and why.
#[derive(Debug, thiserror::Error)]
#[error("{resource}: {hook} {cause}")]
#[non_exhaustive]
pub struct HookFailure {
    /// The resource's name; `outer/inner` in a nested context.
    pub resource: String,
    /// Which of its hooks.
    pub hook: Hook,
    /// Why.
    #[source]
    pub cause: HookCause,
}

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookCause {
    /// It returned an error.
    #[error("failed: {0}")]
    Failed(#[source] HookError),
    /// It had not returned by its deadline, and was stopped.
    #[error("did not return within {0:?}")]
    Late(Duration),
    /// It panicked.
    #[error("panicked: {0}")]
    Panicked(String),
}
