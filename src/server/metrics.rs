//! The figures for Prometheus.
//!
//! Counters go on counting in a restored process from where they stood at the dump; the generation and the time
//! since the restore tell copies apart. It must not know how it is asked, nor what is served.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::cycles::Cycles;
use crate::Subject;
use crate::adapters::{Connections, Counts};

/// The type of the text.
pub(super) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The figures, which all begin with `defrost_`.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
}

/// The path is that of a route, or `other`: what clients make up must not become a time series each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    path: String,
    status: u16,
}

impl Metrics {
    /// The figures of the subject, its cycles, and the connections of the named listeners.
    pub(super) fn new(
        subject: Subject,
        cycles: Arc<Cycles>,
        listeners: Vec<(&'static str, Connections)>,
    ) -> Self {
        let mut registry = Registry::with_prefix("defrost");
        let requests = Family::default();
        registry.register("http_requests", "Answered requests by route and status", requests.clone());
        registry.register_collector(Box::new(Live { subject, cycles, listeners }));
        Self { registry, requests }
    }

    /// These, and what another part of the server counts.
    #[cfg(feature = "highlight")]
    pub(super) fn and(mut self, more: Box<dyn Collector>) -> Self {
        self.registry.register_collector(more);
        self
    }

    /// Counts an answered request.
    pub(super) fn count(&self, route: Option<&str>, status: u16) {
        let path = route.unwrap_or("other").to_owned();
        self.requests.get_or_create(&RequestLabels { path, status }).inc();
    }

    /// All figures, in the text format 0.0.4.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail, and no encoder here makes up an error of its own.
        let _ = prometheus_text::encode(&mut text, &self.registry);
        text
    }
}

/// What is asked for when it is needed.
struct Live {
    subject: Subject,
    cycles: Arc<Cycles>,
    listeners: Vec<(&'static str, Connections)>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Live {
    fn connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts: Vec<_> =
            self.listeners.iter().map(|(name, connections)| (*name, connections.counts())).collect();
        let mut counter = |name, help, value: fn(&Counts) -> u64| {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counts.iter().try_for_each(|(listener, counts)| {
                let labels = [("listener", *listener)];
                ConstCounter::new(value(counts)).encode(metric.encode_family(&labels)?)
            })
        };
        counter("connections_accepted", "Connections that were ever accepted.", |counts| counts.accepted)?;
        counter("connections_drained", "Connections that finished when a checkpoint asked.", |counts| {
            counts.drained
        })?;
        counter("connections_forced", "Connections that a checkpoint had to shut down.", |counts| {
            counts.forced
        })?;
        let help = "Connections that are open.";
        let mut metric = encoder.encode_descriptor("connections_active", help, None, MetricType::Gauge)?;
        counts.iter().try_for_each(|(listener, counts)| {
            let active = i64::try_from(counts.active).unwrap_or(i64::MAX);
            ConstGauge::new(active).encode(metric.encode_family(&[("listener", *listener)])?)
        })
    }

    fn checkpoints(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.cycles.counts();
        let help = "Checkpoint cycles by how they ended.";
        let mut metric = encoder.encode_descriptor("checkpoint_cycles", help, None, MetricType::Counter)?;
        let ends = [("restored", counts.restored), ("resumed", counts.resumed), ("aborted", counts.aborted)];
        ends.iter().try_for_each(|(end, count)| {
            ConstCounter::new(*count).encode(metric.encode_family(&[("outcome", *end)])?)
        })
    }

    fn identity(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let identity = self.subject.identity();
        let mut gauge = |name, help, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 restores")]
        gauge("generation", "How often this state has been restored.", identity.generation as f64)?;
        gauge("ready", "Whether the server is ready.", f64::from(u8::from(self.subject.is_ready())))?;
        gauge("uptime_seconds", "Time since the cold start.", identity.uptime().as_secs_f64())?;
        let Some(since) = identity.since_restore() else { return Ok(()) };
        gauge("since_restore_seconds", "Time since the last restore.", since.as_secs_f64())
    }
}

impl Collector for Live {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.connections(&mut encoder)?;
        self.checkpoints(&mut encoder)?;
        self.identity(&mut encoder)
    }
}
