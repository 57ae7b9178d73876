//! Memory that is filled at the start: what a warmed-up server would lose by a cold start.
//!
//! The pattern is pseudo-random, so that no layer below can leave out or compress a page, and has a checksum,
//! so that a restore that loses one is seen. It must not know who waits for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use tokio::sync::watch;

use crate::resource::{Cycle, HookError, Resource};

/// How much is filled between two looks at whether to go on, in bytes.
const CHUNK: usize = 1 << 20;

/// Bytes of a page.
const PAGE: usize = 4096;

/// How long a checkpoint waits for the warm-up before it gives up and says so.
const WAIT: Duration = Duration::from_secs(60);

/// How much to warm, and with what.
#[derive(Debug, Clone, Copy)]
pub struct WarmOptions {
    /// In MiB.
    pub mib: u32,
    /// Chooses the pattern.
    pub seed: u64,
    /// How often each byte is computed over: real warm-ups cost more than filling their memory does.
    pub rounds: u32,
}

impl WarmOptions {
    /// So much memory, computed once.
    #[must_use]
    pub fn new(mib: u32) -> Self {
        Self { mib, seed: 1, rounds: 1 }
    }
}

/// Why there is no warm memory. The server serves without it, and is not ready.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WarmError {
    /// The address space is too small.
    #[error("{mib} MiB to warm cannot be had: {cause}")]
    Memory {
        /// How much was asked for, in MiB.
        mib: u32,
        /// The allocator's answer.
        cause: String,
    },
    /// The thread that fills did not start, or panicked.
    #[error("the warm-up failed: {cause}")]
    Thread {
        /// Why.
        cause: String,
    },
    /// The server was stopped meanwhile.
    #[error("the warm-up was stopped")]
    Stopped,
}

impl WarmError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Memory { .. } => Some("warm less, or raise the limit on memory: ulimit -v"),
            Self::Thread { .. } => Some("look at the limits on threads and memory"),
            Self::Stopped => None,
        }
    }
}

/// How far the warm-up is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Filled by now.
    pub done: u64,
    /// In all.
    pub total: u64,
}

/// The memory, while it is filled and afterwards.
#[derive(Debug)]
pub(super) struct Warm {
    options: WarmOptions,
    done: AtomicU64,
    stopped: AtomicBool,
    filled: OnceLock<Filled>,
    outcome: watch::Sender<Option<Result<(), WarmError>>>,
}

#[derive(Debug)]
struct Filled {
    bytes: Vec<u8>,
    checksum: blake3::Hash,
}

/// The checksum of the warm-up, and of the memory now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checked {
    pub(super) bytes: usize,
    pub(super) expected: blake3::Hash,
    pub(super) found: blake3::Hash,
}

impl Warm {
    /// Starts filling, on a thread that ends with it, and has `warmed` called there when it is done.
    pub(super) fn start(options: WarmOptions, warmed: impl FnOnce() + Send + 'static) -> Arc<Self> {
        let warm = Arc::new(Self {
            options,
            done: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            filled: OnceLock::new(),
            outcome: watch::Sender::new(None),
        });
        let filling = Arc::clone(&warm);
        let spawned = std::thread::Builder::new().name("warm-up".into()).spawn(move || {
            let outcome = filling.fill();
            if outcome.is_ok() {
                warmed();
            }
            filling.outcome.send_replace(Some(outcome));
        });
        if let Err(error) = spawned {
            warm.outcome.send_replace(Some(Err(WarmError::Thread { cause: error.to_string() })));
        }
        warm
    }

    fn total(&self) -> usize {
        usize::try_from(self.options.mib).unwrap_or(usize::MAX).saturating_mul(1 << 20)
    }

    fn fill(&self) -> Result<(), WarmError> {
        let mut bytes: Vec<u8> = Vec::new();
        let refused = |cause| WarmError::Memory { mib: self.options.mib, cause };
        bytes.try_reserve_exact(self.total()).map_err(|error| refused(error.to_string()))?;
        // BLAKE3's extended output: pseudo-random, and quick in a debug build too.
        let mut pattern = blake3::Hasher::new().update(&self.options.seed.to_le_bytes()).finalize_xof();
        let mut hasher = blake3::Hasher::new();
        while bytes.len() < self.total() {
            let start = bytes.len();
            bytes.resize(start + CHUNK, 0);
            for _ in 0..self.options.rounds {
                if self.stopped.load(Ordering::Relaxed) {
                    return Err(WarmError::Stopped);
                }
                pattern.fill(&mut bytes[start..]);
            }
            hasher.update(&bytes[start..]);
            self.done.store(bytes.len() as u64, Ordering::Relaxed);
        }
        let filled = Filled { bytes, checksum: hasher.finalize() };
        // It is filled once, by the thread that calls this.
        let _ = self.filled.set(filled);
        Ok(())
    }

    /// Gives the warm-up up, if it has not ended.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_warm(&self) -> bool {
        self.filled.get().is_some()
    }

    pub(super) fn progress(&self) -> Progress {
        Progress { done: self.done.load(Ordering::Relaxed), total: self.total() as u64 }
    }

    /// Why it is not warm, unless it is.
    pub(super) fn why_not(&self) -> Option<String> {
        if self.is_warm() {
            return None;
        }
        if let Some(Err(error)) = &*self.outcome.borrow() {
            return Some(error.to_string());
        }
        let Progress { done, total } = self.progress();
        Some(format!("warming up: {} of {} MiB", done >> 20, total >> 20))
    }

    /// Waits for the end of the warm-up.
    pub(super) async fn ended(&self) -> Result<(), WarmError> {
        let mut outcome = self.outcome.subscribe();
        let ended = outcome.wait_for(Option::is_some).await;
        // The sender lives as long as `self`.
        ended.ok().and_then(|outcome| outcome.clone()).unwrap_or(Err(WarmError::Stopped))
    }

    /// Computes the checksum over the memory again; `None` before the end of the warm-up.
    pub(super) fn check(&self) -> Option<Checked> {
        let filled = self.filled.get()?;
        let found = blake3::hash(&filled.bytes);
        Some(Checked { bytes: filled.bytes.len(), expected: filled.checksum, found })
    }

    /// Adds up the first words of this many pages, chosen by the seed: what a request does that needs a little of
    /// everything. The same in every process with the same memory; `None` before the end of the warm-up.
    pub(super) fn touch(&self, pages: u32, seed: u64) -> Option<u64> {
        let bytes = &self.filled.get()?.bytes;
        let (pages_in_all, _) = bytes.as_chunks::<PAGE>();
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let mut sum = 0_u64;
        for _ in 0..pages {
            let page = pages_in_all.choose(&mut random)?;
            let word = page.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            sum = sum.wrapping_add(word);
        }
        Some(sum)
    }
}

#[async_trait]
impl Resource for Warm {
    /// Half-warmed memory is worth no image: the checkpoint waits for the rest, and everything that was
    /// registered before serves meanwhile.
    async fn before_checkpoint(&self, _cycle: &Cycle) -> Result<(), HookError> {
        Ok(self.ended().await?)
    }

    fn deadline(&self) -> Duration {
        WAIT
    }

    fn describe(&self) -> String {
        let state = if self.is_warm() { "warmed memory" } else { "memory to warm" };
        format!("{} MiB of {state}", self.options.mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_checksum_matches_and_depends_on_the_seed() {
        let mut found = Vec::new();
        for seed in [1, 1, 2] {
            let warm = Warm::start(WarmOptions { seed, ..WarmOptions::new(2) }, || {});
            warm.ended().await.unwrap();
            let checked = warm.check().unwrap();
            assert_eq!(checked.expected, checked.found);
            assert_eq!(checked.bytes, 2 << 20);
            assert_eq!(warm.progress(), Progress { done: 2 << 20, total: 2 << 20 });
            found.push(checked.found);
        }
        assert_eq!(found[0], found[1]);
        assert_ne!(found[0], found[2]);
    }

    #[tokio::test]
    async fn pages_are_touched_alike_wherever_the_memory_is_the_same() {
        let mut sums = Vec::new();
        for (seed, choice) in [(1, 5), (1, 5), (1, 6), (2, 5)] {
            let warm = Warm::start(WarmOptions { seed, ..WarmOptions::new(2) }, || {});
            warm.ended().await.unwrap();
            sums.push(warm.touch(100, choice).unwrap());
        }
        assert_eq!(sums[0], sums[1]);
        assert!(sums[0] != sums[2] && sums[0] != sums[3]);
    }

    #[test]
    fn a_lost_page_is_seen() {
        let warm = Warm {
            options: WarmOptions { seed: 7, ..WarmOptions::new(1) },
            done: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            filled: OnceLock::new(),
            outcome: watch::Sender::new(None),
        };
        warm.fill().unwrap();
        let mut warm = warm;
        warm.filled.get_mut().unwrap().bytes[4096..8192].fill(0);
        let checked = warm.check().unwrap();
        assert_ne!(checked.expected, checked.found);
    }

    #[tokio::test]
    async fn a_stopped_warm_up_ends_and_is_not_warm() {
        let warm = Warm::start(WarmOptions::new(1 << 12), || panic!("it was stopped"));
        warm.stop();
        assert!(matches!(warm.ended().await, Err(WarmError::Stopped)));
        assert!(!warm.is_warm() && warm.check().is_none());
    }

    #[tokio::test]
    async fn a_checkpoint_waits_for_the_warm_up() {
        let warm = Warm::start(WarmOptions::new(16), || {});
        warm.before_checkpoint(&Cycle::new(true)).await.unwrap();
        assert!(warm.is_warm());
    }
}
