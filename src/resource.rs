//! The contract: what takes part in a checkpoint, and what it is handed.
//!
//! A [`Resource`] puts itself down before the dump and comes back afterwards. It must not know which engine
//! dumps, what else is registered, or where the image goes.

use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::wake::Wake;

/// How long one hook may take unless the resource says otherwise.
pub const DEFAULT_HOOK_DEADLINE: Duration = Duration::from_secs(10);

/// Why a hook failed: any error of the resource's own.
pub type HookError = Box<dyn Error + Send + Sync>;

/// Something that must be put down before a dump and taken up again afterwards: a listener, a file, a pool.
///
/// Both hooks run on a task of their own, one resource after the other: `before_checkpoint` in reverse order
/// of registration, `after_restore` in order of registration. A hook that returns an error, panics or misses
/// its [`deadline`](Self::deadline) fails the cycle; the other resources are still asked, and each resource
/// that was asked to quiesce is woken, the failed one too.
#[async_trait]
pub trait Resource: Send + Sync + 'static {
    /// Puts the resource down: afterwards it holds no descriptor that it does not [claim](Self::claims) and
    /// starts nothing new. An error means that there will be no dump.
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let _ = cycle;
        Ok(())
    }

    /// Takes the resource up again. An error in a restored process means that it is not ready; after
    /// [`Wake::Resumed`] and [`Wake::Aborted`] it is reported and the process goes on.
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let _ = wake;
        Ok(())
    }

    /// How long each hook may take.
    fn deadline(&self) -> Duration {
        DEFAULT_HOOK_DEADLINE
    }

    /// The descriptors that the resource still holds while it is quiesced and answers for: the audit names
    /// the resource as their owner and lets them pass.
    fn claims(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// The TCP addresses that the resource binds again after a restore, so that it can be seen beforehand
    /// whether they are free.
    fn listens(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// The TCP addresses that clients can reach it at, once it is up: told to whoever restores the process. Other
    /// than those that it [`listens`](Self::listens) at, they need not be free before.
    fn reached_at(&self) -> Vec<SocketAddr> {
        self.listens()
    }

    /// What the resource is, for people: `tcp 127.0.0.1:80, 3 connections`.
    fn describe(&self) -> String {
        String::new()
    }
}

/// A resource whose hooks block: for code outside tokio. [`Blocking`] makes a [`Resource`] of it, and runs
/// each hook on a thread of its own.
pub trait BlockingResource: Send + Sync + 'static {
    /// As [`Resource::before_checkpoint`].
    ///
    /// # Errors
    /// Whatever keeps the resource from being put down; there is no dump then.
    fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let _ = cycle;
        Ok(())
    }

    /// As [`Resource::after_restore`].
    ///
    /// # Errors
    /// Whatever keeps the resource from working again.
    fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let _ = wake;
        Ok(())
    }

    /// Does what [`after_restore`](Self::after_restore) does, if that cannot block this time, as it is called on a
    /// thread of the runtime: a thread of its own for it takes longer than most hooks. `None` has
    /// [`after_restore`](Self::after_restore) called on one.
    fn after_restore_at_once(&self, wake: &Wake) -> Option<Result<(), HookError>> {
        let _ = wake;
        None
    }

    /// As [`Resource::deadline`]. A thread cannot be stopped: a late hook goes on behind the cycle's back.
    fn deadline(&self) -> Duration {
        DEFAULT_HOOK_DEADLINE
    }

    /// As [`Resource::claims`].
    fn claims(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// As [`Resource::listens`].
    fn listens(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// As [`Resource::reached_at`].
    fn reached_at(&self) -> Vec<SocketAddr> {
        self.listens()
    }

    /// As [`Resource::describe`].
    fn describe(&self) -> String {
        String::new()
    }
}

/// Makes a [`Resource`] of a [`BlockingResource`].
#[derive(Debug)]
pub struct Blocking<R>(Arc<R>);

impl<R: BlockingResource> Blocking<R> {
    /// Wraps a blocking resource; the caller may keep the other reference.
    #[must_use]
    pub fn new(resource: Arc<R>) -> Self {
        Self(resource)
    }
}

/// Runs a blocking hook on a thread of its own. Tokio's pool is not used: a hook that never returns would
/// hold the runtime's shutdown for ever.
async fn on_thread<F>(hook: F) -> Result<(), HookError>
where
    F: FnOnce() -> Result<(), HookError> + Send + 'static,
{
    let (answer, answered) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("defrost-hook".into()).spawn(move || {
        let _ = answer.send(hook());
    })?;
    // The sender is only ever dropped unused when the hook panics.
    answered.await.unwrap_or_else(|_| Err("the hook panicked".into()))
}

#[async_trait]
impl<R: BlockingResource> Resource for Blocking<R> {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let (resource, cycle) = (Arc::clone(&self.0), cycle.clone());
        on_thread(move || resource.before_checkpoint(&cycle)).await
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if let Some(outcome) = self.0.after_restore_at_once(wake) {
            return outcome;
        }
        let (resource, wake) = (Arc::clone(&self.0), wake.clone());
        on_thread(move || resource.after_restore(&wake)).await
    }

    fn deadline(&self) -> Duration {
        self.0.deadline()
    }

    fn claims(&self) -> Vec<RawFd> {
        self.0.claims()
    }

    fn listens(&self) -> Vec<SocketAddr> {
        self.0.listens()
    }

    fn reached_at(&self) -> Vec<SocketAddr> {
        self.0.reached_at()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// Something that must stand still for the very moment of the dump: called on the thread that dumps, after
/// every hook, so that no task of the runtime has to make progress between the two calls.
pub trait AtFreeze: Send + Sync + 'static {
    /// The dump is about to start. Must return at once, and may make other threads wait until
    /// [`thaw`](Self::thaw).
    fn freeze(&self);
    /// The dump is over. Runs in the restored process before anything else does.
    fn thaw(&self, wake: &Wake);
}

/// One cycle, as a resource sees it.
#[derive(Clone, Debug)]
pub struct Cycle {
    shared: Arc<CycleShared>,
}

struct CycleShared {
    leave_running: bool,
    started: u64,
    kept: Mutex<Vec<Arc<KeepSlot>>>,
    at_freeze: Mutex<Vec<Arc<dyn AtFreeze>>>,
}

impl std::fmt::Debug for CycleShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cycle").field("leave_running", &self.leave_running).finish_non_exhaustive()
    }
}

/// Counts registrations and cycles, so that a cycle knows what was registered before it began.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);

pub(crate) fn next_sequence() -> u64 {
    SEQUENCE.fetch_add(1, Ordering::Relaxed)
}

impl Cycle {
    pub(crate) fn new(leave_running: bool) -> Self {
        Self {
            shared: Arc::new(CycleShared {
                leave_running,
                started: next_sequence(),
                kept: Mutex::default(),
                at_freeze: Mutex::default(),
            }),
        }
    }

    /// Whether the process is meant to go on after the dump.
    #[must_use]
    pub fn leave_running(&self) -> bool {
        self.shared.leave_running
    }

    /// Takes a descriptor out of the image's way without closing it: a process outside of the image holds
    /// it during the dump. After [`Wake::Resumed`] and [`Wake::Aborted`] the token gives it back, with what
    /// has queued up in it meanwhile; in a restored process there is nothing to give back.
    #[must_use]
    pub fn keep(&self, descriptor: OwnedFd) -> Keep {
        let slot = Arc::new(KeepSlot(Mutex::new(Some(descriptor))));
        locked(&self.shared.kept).push(Arc::clone(&slot));
        Keep(slot)
    }

    /// Has `hook` called at the very moment of the dump, and right after it.
    pub fn at_freeze(&self, hook: Arc<dyn AtFreeze>) {
        locked(&self.shared.at_freeze).push(hook);
    }

    /// Whether something registered under this sequence number takes part.
    pub(crate) fn includes(&self, registered: u64) -> bool {
        registered < self.shared.started
    }

    pub(crate) fn kept(&self) -> Vec<Arc<KeepSlot>> {
        locked(&self.shared.kept).clone()
    }

    pub(crate) fn freeze_hooks(&self) -> Vec<Arc<dyn AtFreeze>> {
        locked(&self.shared.at_freeze).clone()
    }
}

/// The claim to a descriptor that was handed to [`Cycle::keep`].
#[derive(Debug)]
pub struct Keep(Arc<KeepSlot>);

impl Keep {
    /// The descriptor, if this process is the one that handed it over. `None` in a restored process, and when
    /// the process that held it died.
    #[must_use]
    pub fn take(self) -> Option<OwnedFd> {
        self.0.take()
    }
}

#[derive(Debug)]
pub(crate) struct KeepSlot(Mutex<Option<OwnedFd>>);

impl KeepSlot {
    pub(crate) fn take(&self) -> Option<OwnedFd> {
        locked(&self.0).take()
    }

    pub(crate) fn put(&self, descriptor: OwnedFd) {
        *locked(&self.0) = Some(descriptor);
    }

    pub(crate) fn number(&self) -> Option<RawFd> {
        use std::os::fd::AsRawFd;
        locked(&self.0).as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// Locks, and goes on with the value of a holder that panicked: every critical section here is one statement.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
