//! A random generator that splits: each task draws from a stream of its own, and each restore from others.
//!
//! A tree of streams. Each has a key; the key of a stream that is split off, and that of the same stream in a restored
//! process, are derived from it by a hash (BLAKE3's key derivation), so that no two streams of any two processes have
//! anything in common. It must not know what the values are for.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{SeedableRng, TryRng};

use super::kernel_rng::KernelRng;
use crate::context::{Context, Registration};
use crate::resource::{AtFreeze, Cycle, HookError, Resource, locked};
use crate::wake::{InstanceId, Wake};

#[cfg(test)]
mod tests;

/// How long a draw waits for the end of a dump, as of [`Rng`](super::Rng).
const FREEZE_LIMIT: Duration = Duration::from_secs(60);

/// How many bytes are drawn at once, so that a large request does not keep a dump waiting.
const CHUNK: usize = 64 * 1024;

/// What the keys are derived for. Another text gives other values to the same seed.
const SPLIT: &str = "defrost 2026-11 SplitRng: the key of a stream that is split off";
const RESTORED: &str = "defrost 2026-11 SplitRng: the key of a stream in a restored process";
const VALUES: &str = "defrost 2026-11 SplitRng: the seed of a stream's generator";

type Key = [u8; 32];

/// One stream of random values, rand's [`StdRng`], registered with a [`Context`] until the last stream of its tree is
/// dropped. [`split`](Self::split) gives another task its own, so that they do not wait for each other.
///
/// In a restored process every stream goes on as another one, derived from what it was and from the fresh instance id:
/// each clone of an image draws other values. As with [`Rng`](super::Rng), draws wait for the moment of the dump, so
/// that no value is drawn by two processes; only one that a thread has drawn just before the dump and still holds can be
/// seen twice.
///
/// It is for simulation, sampling, jitter and the like. It is no source of keys and tokens: a
/// [seeded](Self::register_seeded) one can be computed by whoever knows the seed and the instance id, which is no secret.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rand::RngExt;
///
/// let context = defrost::Context::new();
/// let root = defrost::adapters::SplitRng::register(&context, "jitter")?;
/// let mut own = root.split();
/// std::thread::spawn(move || own.random_range(0..10)).join().expect("a number");
/// # Ok(())
/// # }
/// ```
pub struct SplitRng {
    stream: Arc<Stream>,
    tree: Arc<Tree>,
    _registration: Arc<Registration>,
}

struct Stream {
    state: Mutex<State>,
    thawed: Condvar,
}

struct State {
    key: Key,
    /// How many streams were split off.
    children: u64,
    generator: StdRng,
    /// The dump is under way.
    frozen: bool,
}

/// All streams that live.
struct Tree {
    streams: Mutex<Streams>,
    thawed: Condvar,
    /// Whether only the seed and the instance id decide.
    repeatable: bool,
}

struct Streams {
    all: Vec<Weak<Stream>>,
    /// At this length, those that have been dropped are removed.
    prune_at: usize,
    frozen: bool,
    derived_for: Option<InstanceId>,
}

/// The fewest entries that are looked through for streams that have been dropped.
const FEWEST: usize = 64;

impl SplitRng {
    /// A first stream with a key from the kernel.
    ///
    /// # Errors
    /// The kernel has no random bytes; nothing is registered then.
    pub fn register(context: &Context, name: impl Into<Arc<str>>) -> io::Result<Self> {
        let mut key = Key::default();
        KernelRng.try_fill_bytes(&mut key)?;
        Ok(Self::first(context, name, key, false))
    }

    /// A first stream whose values, and those of all that are split off it, follow from the seed: in a restored process
    /// from the seed and the instance id, which is in the server's log and status, so that a run can be repeated. The same
    /// program gives the same values; another version of rand may not.
    ///
    /// A draw that waits for longer than a minute for the end of a dump takes its value from the kernel instead.
    #[must_use]
    pub fn register_seeded(context: &Context, name: impl Into<Arc<str>>, seed: [u8; 32]) -> Self {
        Self::first(context, name, seed, true)
    }

    fn first(context: &Context, name: impl Into<Arc<str>>, key: Key, repeatable: bool) -> Self {
        let stream = Arc::new(Stream::new(key));
        let streams = Streams {
            all: vec![Arc::downgrade(&stream)],
            prune_at: FEWEST,
            frozen: false,
            derived_for: None,
        };
        let tree = Arc::new(Tree { streams: Mutex::new(streams), thawed: Condvar::new(), repeatable });
        let registration = context.register(name, Arc::new(Registered(Arc::clone(&tree))));
        Self { stream, tree, _registration: Arc::new(registration) }
    }

    /// Splits another stream off, which has nothing in common with this one. The first, second and so on of a stream are
    /// the same in each run of a seed.
    #[must_use]
    pub fn split(&self) -> Self {
        // Held to the end, so that the freeze meets the stream either not at all or in its list.
        let mut streams = wait(&self.tree.thawed, locked(&self.tree.streams), |streams| streams.frozen);
        let mut parent = locked(&self.stream.state);
        let key = blake3::derive_key(SPLIT, &[&parent.key[..], &parent.children.to_le_bytes()].concat());
        parent.children += 1;
        drop(parent);
        let stream = Arc::new(Stream::new(key));
        // Past the limit of the wait the dump may still come.
        locked(&stream.state).frozen = streams.frozen;
        streams.add(&stream);
        drop(streams);
        Self { stream, tree: Arc::clone(&self.tree), _registration: Arc::clone(&self._registration) }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut dyn rand::Rng) -> T) -> T {
        let mut state = wait(&self.stream.thawed, locked(&self.stream.state), |state| state.frozen);
        if state.frozen {
            drop(state);
            return draw(&mut rand::rand_core::UnwrapErr(KernelRng));
        }
        draw(&mut state.generator)
    }
}

/// Waits, within the limit, as long as this is frozen.
fn wait<'a, T>(thawed: &Condvar, state: MutexGuard<'a, T>, frozen: fn(&T) -> bool) -> MutexGuard<'a, T> {
    if !frozen(&state) {
        return state;
    }
    let waited = thawed.wait_timeout_while(state, FREEZE_LIMIT, |state| frozen(state));
    waited.unwrap_or_else(PoisonError::into_inner).0
}

impl fmt::Debug for SplitRng {
    /// Without the state, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitRng").finish_non_exhaustive()
    }
}

impl TryRng for SplitRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.draw(|generator| generator.next_u32()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.draw(|generator| generator.next_u64()))
    }

    fn try_fill_bytes(&mut self, buffer: &mut [u8]) -> Result<(), Infallible> {
        for chunk in buffer.chunks_mut(CHUNK) {
            self.draw(|generator| generator.fill_bytes(chunk));
        }
        Ok(())
    }
}

impl Stream {
    fn new(key: Key) -> Self {
        Self { state: Mutex::new(State::new(key)), thawed: Condvar::new() }
    }
}

impl State {
    fn new(key: Key) -> Self {
        let generator = StdRng::from_seed(blake3::derive_key(VALUES, &key));
        Self { key, children: 0, generator, frozen: false }
    }

    /// Becomes the stream that it is in this process.
    fn derive(&mut self, instance: InstanceId, secret: &[u8]) {
        let key = blake3::derive_key(RESTORED, &[&self.key[..], instance.as_bytes(), secret].concat());
        *self = Self { children: self.children, frozen: self.frozen, ..Self::new(key) };
    }
}

impl Streams {
    fn add(&mut self, stream: &Arc<Stream>) {
        if self.all.len() >= self.prune_at {
            self.all.retain(|stream| stream.strong_count() > 0);
            self.prune_at = FEWEST.max(2 * self.all.len());
        }
        self.all.push(Arc::downgrade(stream));
    }
}

impl Tree {
    /// Derives all streams once for each restore, and lets waiting draws go on. An error says that the kernel had no
    /// random bytes to add; the streams are other ones all the same, by the instance id.
    fn thaw(&self, wake: &Wake) -> io::Result<()> {
        let mut streams = locked(&self.streams);
        let fresh = wake.restored().map(|restored| restored.instance);
        let fresh = fresh.filter(|instance| streams.derived_for != Some(*instance));
        let (mut secret, mut outcome) = (Vec::new(), Ok(()));
        if fresh.is_some() && !self.repeatable {
            secret = vec![0; 32];
            outcome = KernelRng.try_fill_bytes(&mut secret);
        }
        for stream in streams.all.iter().filter_map(Weak::upgrade) {
            let mut state = locked(&stream.state);
            if let Some(instance) = fresh {
                state.derive(instance, &secret);
            }
            state.frozen = false;
            stream.thawed.notify_all();
        }
        streams.derived_for = fresh.or(streams.derived_for);
        streams.frozen = false;
        self.thawed.notify_all();
        outcome
    }
}

impl AtFreeze for Tree {
    fn freeze(&self) {
        let mut streams = locked(&self.streams);
        streams.frozen = true;
        for stream in streams.all.iter().filter_map(Weak::upgrade) {
            locked(&stream.state).frozen = true;
        }
    }

    fn thaw(&self, wake: &Wake) {
        if let Err(error) = Self::thaw(self, wake) {
            tracing::warn!("a split generator goes on without fresh random bytes of the kernel: {error}");
        }
    }
}

/// The tree as its context sees it.
struct Registered(Arc<Tree>);

#[async_trait]
impl Resource for Registered {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        cycle.at_freeze(Arc::clone(&self.0) as _);
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        // The thaw of the dump has done this; it costs little to be sure that no draw waits for ever.
        Ok(self.0.thaw(wake)?)
    }

    fn describe(&self) -> String {
        let count = locked(&self.0.streams).all.iter().filter(|stream| stream.strong_count() > 0).count();
        format!("split random generator, {count} stream{}", if count == 1 { "" } else { "s" })
    }
}
