//! Random generators that no two restores of one image share.
//!
//! A generator is memory, and every restore has the same memory: without reseeding, all of them draw the same
//! "random" values. It must not know what the values are for.
//!
//! # What cannot be reached from here
//!
//! State that belongs to a thread can be changed by that thread only, and state that a library hides by nobody. Each
//! restore of an image has these as they were at the dump, all clones alike:
//!
//! | what | remedy |
//! |---|---|
//! | rand's thread-local generator (`rand::rng()`, `random()`) | draw from a registered [`Rng`], or split a [`SplitRng`](super::SplitRng) for each task. Where code cannot be changed: `rand::rng().reseed()` on each thread that draws, in a restored process, before it draws |
//! | fastrand's thread-local generator | `fastrand::seed` in the same way, or a `fastrand::Rng` of your own with [`reseed_with`] |
//! | the keys of `HashMap` and `HashSet` (`RandomState`): those of a thread come from the kernel once, when it makes its first map, and count up from there. So clones hash and iterate alike, and who learns the keys of one can choose colliding keys for all | a `BTreeMap` for what strangers choose, or a hasher with keys of a registered generator, with the map made anew after a restore. A thread that was started after the restore has fresh keys |
//! | generators of C libraries (`rand(3)`, OpenSSL's) | [`reseed_with`], which hands a seed to `srandom` or `RAND_seed` |
//! | values that were drawn before the dump: session keys, tokens, boot ids, the seeds of other things | register a [`Resource`] that draws them anew |
//!
//! Not concerned is what asks the kernel each time: getrandom, `OsRng` or `SysRng`, ring, and uuid as it comes.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::rand_core::UnwrapErr;
use rand::rngs::StdRng;
use rand::{SeedableRng, TryCryptoRng, TryRng};

use super::kernel_rng::KernelRng;
use crate::context::{Context, Registration};
use crate::resource::{AtFreeze, Cycle, HookError, Resource, locked};
use crate::wake::{InstanceId, Wake};

#[cfg(test)]
mod tests;

/// How long a draw waits for the end of a dump. Past it the value comes from the kernel, which is slower and
/// just as good: no dump, however long or lost, can hold a thread for ever.
const FREEZE_LIMIT: Duration = Duration::from_secs(60);

/// How many bytes are drawn at once, so that a large request does not keep a dump waiting.
const CHUNK: usize = 64 * 1024;

/// A handle to a cryptographically secure generator, rand's [`StdRng`], registered with a [`Context`] until the
/// last clone is dropped. Clones draw from the same sequence.
///
/// From the moment of the dump on, draws wait; in a restored process they go on when the generator has new key
/// material from the kernel. So a value is drawn before the dump and known to every restore, or after it and
/// known to one. Only a value that a thread has drawn just before the dump and still holds can be seen twice.
///
/// # Panics
/// A draw panics if the generator has to be reseeded and the kernel gives no random bytes, as rand's own do.
#[derive(Clone)]
pub struct Rng {
    source: Arc<Source>,
    _registration: Arc<Registration>,
}

struct Source {
    state: Mutex<State>,
    thawed: Condvar,
}

struct State {
    generator: StdRng,
    /// The dump is under way.
    frozen: bool,
    /// Other restores know this sequence.
    stale: bool,
    seeded_for: Option<InstanceId>,
}

impl Rng {
    /// A generator with a seed from the kernel.
    ///
    /// # Errors
    /// The kernel has no random bytes; nothing is registered then.
    pub fn register(context: &Context, name: impl Into<Arc<str>>) -> io::Result<Self> {
        let generator = StdRng::try_from_rng(&mut KernelRng)?;
        let state = State { generator, frozen: false, stale: false, seeded_for: None };
        let source = Arc::new(Source { state: Mutex::new(state), thawed: Condvar::new() });
        let registration = context.register(name, Arc::new(Registered(Arc::clone(&source))));
        Ok(Self { source, _registration: Arc::new(registration) })
    }

    /// Fills a buffer with random bytes.
    pub fn fill(&self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(CHUNK) {
            self.source.draw(|generator| generator.fill_bytes(chunk));
        }
    }
}

impl fmt::Debug for Rng {
    /// Without the state, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rng").finish_non_exhaustive()
    }
}

impl TryRng for Rng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.source.draw(|generator| generator.next_u32()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.source.draw(|generator| generator.next_u64()))
    }

    fn try_fill_bytes(&mut self, buffer: &mut [u8]) -> Result<(), Infallible> {
        self.fill(buffer);
        Ok(())
    }
}

impl TryCryptoRng for Rng {}

impl Source {
    fn draw<T>(&self, draw: impl FnOnce(&mut dyn rand::Rng) -> T) -> T {
        let mut state = locked(&self.state);
        if state.frozen {
            let waited = self.thawed.wait_timeout_while(state, FREEZE_LIMIT, |state| state.frozen);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.frozen || state.stale {
            drop(state);
            return draw(&mut UnwrapErr(KernelRng));
        }
        draw(&mut state.generator)
    }

    /// Reseeds once for each restore, and lets waiting draws go on.
    fn thaw(&self, wake: &Wake) -> io::Result<()> {
        let mut state = locked(&self.state);
        let reseeded = match wake.restored() {
            Some(restored) => state.reseed(restored.instance),
            None => Ok(()),
        };
        state.frozen = false;
        self.thawed.notify_all();
        reseeded
    }
}

impl State {
    fn reseed(&mut self, instance: InstanceId) -> io::Result<()> {
        if self.seeded_for == Some(instance) {
            return Ok(());
        }
        self.stale = true;
        self.generator = StdRng::try_from_rng(&mut KernelRng)?;
        self.stale = false;
        self.seeded_for = Some(instance);
        Ok(())
    }
}

impl AtFreeze for Source {
    fn freeze(&self) {
        locked(&self.state).frozen = true;
    }

    fn thaw(&self, wake: &Wake) {
        // A failure leaves it stale, and is reported by the hook, which tries again.
        let _ = Source::thaw(self, wake);
    }
}

/// The generator as its context sees it: a handle of its own would keep it registered for ever.
struct Registered(Arc<Source>);

#[async_trait]
impl Resource for Registered {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        cycle.at_freeze(Arc::clone(&self.0) as _);
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        // The thaw of the dump has done this; it costs nothing to be sure that no draw waits for ever.
        Ok(self.0.thaw(wake)?)
    }

    fn describe(&self) -> String {
        "random generator".to_owned()
    }
}

/// Has `reseed` called with 32 random bytes of the kernel in every restored process, before any hook runs and
/// anything is served: for generators of other libraries. It runs on the thread that dumps, and must return at
/// once. Threads that draw meanwhile are its own concern: [`Rng`] makes them wait.
pub fn reseed_with(
    context: &Context,
    name: impl Into<Arc<str>>,
    reseed: impl FnMut([u8; 32]) + Send + 'static,
) -> Registration {
    let foreign = Foreign(Mutex::new(ForeignState { reseed: Box::new(reseed), seeded_for: None }));
    context.register(name, Arc::new(RegisteredForeign(Arc::new(foreign))))
}

struct Foreign(Mutex<ForeignState>);

struct ForeignState {
    reseed: Box<dyn FnMut([u8; 32]) + Send>,
    seeded_for: Option<InstanceId>,
}

impl Foreign {
    fn reseed(&self, wake: &Wake) -> io::Result<()> {
        let Some(restored) = wake.restored() else { return Ok(()) };
        let mut state = locked(&self.0);
        if state.seeded_for != Some(restored.instance) {
            let mut seed = [0; 32];
            KernelRng.try_fill_bytes(&mut seed)?;
            (state.reseed)(seed);
            state.seeded_for = Some(restored.instance);
        }
        Ok(())
    }
}

impl AtFreeze for Foreign {
    fn freeze(&self) {}

    fn thaw(&self, wake: &Wake) {
        // A failure is reported by the hook, which tries again.
        let _ = self.reseed(wake);
    }
}

struct RegisteredForeign(Arc<Foreign>);

#[async_trait]
impl Resource for RegisteredForeign {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        cycle.at_freeze(Arc::clone(&self.0) as _);
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        Ok(self.0.reseed(wake)?)
    }

    fn describe(&self) -> String {
        "random generator of another library".to_owned()
    }
}
