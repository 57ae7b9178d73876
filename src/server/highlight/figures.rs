//! What the service has done, counted.
//!
//! It must not know how the counts are asked for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

use super::{Failure, Highlight};

/// What happened to requests.
#[derive(Debug, Default)]
pub(super) struct Counters {
    asked: AtomicU64,
    busy: AtomicU64,
    slow: AtomicU64,
}

impl Counters {
    pub(super) fn asked(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, failure: &Failure) {
        match failure {
            Failure::Busy => self.busy.fetch_add(1, Ordering::Relaxed),
            Failure::Slow => self.slow.fetch_add(1, Ordering::Relaxed),
            Failure::Large | Failure::Broken(_) => 0,
        };
    }
}

/// The counts, in the original and in all that it was restored to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Texts that were to be highlighted, and could be read.
    pub requests: u64,
    /// Of these, refused since too many were waiting.
    pub refused: u64,
    /// Of these, given up since they took too long.
    pub given_up: u64,
    /// Jobs under way.
    pub jobs: usize,
    /// Patterns that the warm-up has compiled.
    pub patterns: u64,
    /// Results in the cache.
    pub cache_entries: u64,
    /// What they take, in bytes.
    pub cache_bytes: u64,
    /// Requests that the cache answered.
    pub cache_hits: u64,
    /// Requests that it did not.
    pub cache_misses: u64,
}

impl Figures {
    pub(super) fn of(highlight: &Highlight) -> Self {
        let (cache_entries, cache_bytes) = highlight.cache.size();
        let (cache_hits, cache_misses) = highlight.cache.uses();
        let counters = &highlight.counters;
        Self {
            requests: counters.asked.load(Ordering::Relaxed),
            refused: counters.busy.load(Ordering::Relaxed),
            given_up: counters.slow.load(Ordering::Relaxed),
            jobs: highlight.jobs.under_way(),
            patterns: highlight.warmup.as_ref().map_or(0, |warmup| warmup.warming().progress().done),
            cache_entries,
            cache_bytes,
            cache_hits,
            cache_misses,
        }
    }
}

/// The counts when they are asked for.
pub(super) struct Live(Arc<Highlight>);

impl Live {
    pub(super) fn new(highlight: Arc<Highlight>) -> Self {
        Self(highlight)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Live")
    }
}

impl Collector for Live {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let figures = self.0.count();
        let counters = [
            ("highlight_requests", "Texts that were to be highlighted.", figures.requests),
            ("highlight_refused", "Texts refused since too many were waiting.", figures.refused),
            ("highlight_given_up", "Texts given up since they took too long.", figures.given_up),
            ("highlight_cache_hits", "Texts answered from the cache.", figures.cache_hits),
            ("highlight_cache_misses", "Texts that were not in the cache.", figures.cache_misses),
        ];
        for (name, help, value) in counters {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        let gauges = [
            ("highlight_jobs", "Texts that are being highlighted.", figures.jobs as u64),
            ("highlight_patterns_warmed", "Patterns that the warm-up has compiled.", figures.patterns),
            ("highlight_cache_entries", "Results in the cache.", figures.cache_entries),
            ("highlight_cache_bytes", "What the results in the cache take.", figures.cache_bytes),
        ];
        gauges.iter().try_for_each(|(name, help, value)| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX)).encode(metric)
        })
    }
}
