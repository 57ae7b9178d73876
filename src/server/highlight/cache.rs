//! What was highlighted before, as far as there is room for it.
//!
//! It must not know how HTML is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use super::render::{Request, Style};
use crate::resource::{Cycle, HookError, Resource};

/// What an entry takes beside its HTML, about, in bytes.
const ENTRY: usize = 256;

/// A request by its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn of(request: &Request) -> Self {
        let mut hasher = blake3::Hasher::new();
        // Classes are the same in every theme.
        let theme = if request.style == Style::Inline { request.theme } else { "" };
        for part in [&request.language, theme, &request.text] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Self(hasher.finalize().into())
    }
}

/// The cache, bounded by bytes; what is used least goes first.
#[derive(Debug)]
pub(super) struct Cache {
    held: moka::sync::Cache<Key, Arc<str>>,
    limit: u64,
    keep: bool,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Cache {
    pub(super) fn new(limit: u64, keep: bool) -> Self {
        let weigh = |_: &Key, html: &Arc<str>| u32::try_from(html.len() + ENTRY).unwrap_or(u32::MAX);
        let held = moka::sync::Cache::builder().max_capacity(limit).weigher(weigh).build();
        Self { held, limit, keep, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<str>> {
        let found = self.held.get(key);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    pub(super) fn put(&self, key: Key, html: &Arc<str>) {
        if self.limit > 0 {
            self.held.insert(key, Arc::clone(html));
        }
    }

    /// Entries, and the bytes that they take.
    pub(super) fn size(&self) -> (u64, u64) {
        // What was put in or thrown out lately is counted too.
        self.held.run_pending_tasks();
        (self.held.entry_count(), self.held.weighted_size())
    }

    /// How often something was found, and not found.
    pub(super) fn uses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

#[async_trait]
impl Resource for Cache {
    async fn before_checkpoint(&self, _cycle: &Cycle) -> Result<(), HookError> {
        if !self.keep {
            self.held.invalidate_all();
        }
        self.held.run_pending_tasks();
        Ok(())
    }

    fn describe(&self) -> String {
        let kept = if self.keep { "kept" } else { "dropped" };
        let (entries, bytes) = (self.held.entry_count(), self.held.weighted_size());
        format!("{entries} results of {bytes} bytes, {kept} at a checkpoint")
    }
}
