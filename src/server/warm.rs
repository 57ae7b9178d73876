//! Memory that is filled at the start: what a warmed-up server would lose by a cold start.
//!
//! The pattern is pseudo-random, so that no layer below can leave out or compress a page, and has a checksum,
//! so that a restore that loses one is seen. It must not know who waits for it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::warming::{LONGEST_WAIT, Unit, WarmError, Warming};
use crate::resource::{Cycle, HookError, Resource};
use async_trait::async_trait;
use rand::SeedableRng;
use rand::seq::IndexedRandom;

/// How much is filled between two looks at whether to go on, in bytes.
const CHUNK: usize = 1 << 20;

/// Bytes of a page.
const PAGE: usize = 4096;

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

/// The memory, while it is filled and afterwards.
#[derive(Debug)]
pub(super) struct Warm {
    options: WarmOptions,
    warming: Arc<Warming>,
    filled: OnceLock<Filled>,
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
        let warm = Arc::new(Self::new(options));
        let filling = Arc::clone(&warm);
        warm.warming.run(move || filling.fill(), warmed);
        warm
    }

    /// Fills it on this thread.
    pub(super) fn now(options: WarmOptions) -> Result<Arc<Self>, WarmError> {
        let warm = Arc::new(Self::new(options));
        warm.fill()?;
        warm.warming.end(Ok(()));
        Ok(warm)
    }

    fn new(options: WarmOptions) -> Self {
        let warming = Warming::new(Unit::Bytes, u64::from(options.mib) << 20);
        Self { options, warming, filled: OnceLock::new() }
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
                if self.warming.is_stopped() {
                    return Err(WarmError::Stopped);
                }
                pattern.fill(&mut bytes[start..]);
            }
            hasher.update(&bytes[start..]);
            self.warming.advance(CHUNK as u64);
        }
        let filled = Filled { bytes, checksum: hasher.finalize() };
        // It is filled once, by the thread that calls this.
        let _ = self.filled.set(filled);
        Ok(())
    }

    /// The course of filling it.
    pub(super) fn warming(&self) -> &Arc<Warming> {
        &self.warming
    }

    pub(super) fn is_warm(&self) -> bool {
        self.filled.get().is_some()
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
        Ok(self.warming.ended().await?)
    }

    fn deadline(&self) -> Duration {
        LONGEST_WAIT
    }

    fn describe(&self) -> String {
        let state = if self.is_warm() { "warmed memory" } else { "memory to warm" };
        format!("{} MiB of {state}", self.options.mib)
    }
}

#[cfg(test)]
mod tests {
    use super::super::warming::Progress;
    use super::*;

    #[tokio::test]
    async fn the_checksum_matches_and_depends_on_the_seed() {
        let mut found = Vec::new();
        for seed in [1, 1, 2] {
            let warm = Warm::start(WarmOptions { seed, ..WarmOptions::new(2) }, || {});
            warm.warming.ended().await.unwrap();
            let checked = warm.check().unwrap();
            assert_eq!(checked.expected, checked.found);
            assert_eq!(checked.bytes, 2 << 20);
            assert_eq!(
                warm.warming.progress(),
                Progress { done: 2 << 20, total: 2 << 20, unit: Unit::Bytes }
            );
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
            warm.warming.ended().await.unwrap();
            sums.push(warm.touch(100, choice).unwrap());
        }
        assert_eq!(sums[0], sums[1]);
        assert!(sums[0] != sums[2] && sums[0] != sums[3]);
    }

    #[test]
    fn a_lost_page_is_seen() {
        let mut warm = Warm::new(WarmOptions { seed: 7, ..WarmOptions::new(1) });
        warm.fill().unwrap();
        warm.filled.get_mut().unwrap().bytes[4096..8192].fill(0);
        let checked = warm.check().unwrap();
        assert_ne!(checked.expected, checked.found);
    }

    #[tokio::test]
    async fn a_stopped_warm_up_ends_and_is_not_warm() {
        let warm = Warm::start(WarmOptions::new(1 << 12), || panic!("it was stopped"));
        warm.warming.stop();
        assert!(matches!(warm.warming.ended().await, Err(WarmError::Stopped)));
        assert!(!warm.is_warm() && warm.check().is_none());
    }

    #[tokio::test]
    async fn a_checkpoint_waits_for_the_warm_up() {
        let warm = Warm::start(WarmOptions::new(16), || {});
        warm.before_checkpoint(&Cycle::new(true)).await.unwrap();
        assert!(warm.is_warm());
    }
}
