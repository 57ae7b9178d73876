//! What became of the messages: counted while the clients run, told at the end.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::memory::Memory;
use crate::resource::locked;

/// The longest latency that is told apart, in microseconds: an hour.
const LONGEST: u64 = 3_600_000_000;

/// Significant digits of a latency.
const DIGITS: u8 = 3;

/// What can happen to a connection or a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Trouble {
    /// Nobody listens.
    Refused,
    /// The server ended the connection before the answer.
    Closed,
    /// The connection was reset.
    Reset,
    /// The time was up.
    Late,
    /// The answer was not what had been sent.
    Wrong,
    /// No more descriptors here.
    Descriptors,
    /// No more local ports for this server.
    Ports,
    /// Anything else.
    Other,
}

impl Trouble {
    /// Of a failed call.
    pub(super) fn of(error: &io::Error) -> Self {
        use io::ErrorKind;
        match (error.kind(), error.raw_os_error()) {
            (_, Some(libc::EMFILE | libc::ENFILE)) => Self::Descriptors,
            (_, Some(libc::EADDRNOTAVAIL)) => Self::Ports,
            (ErrorKind::ConnectionRefused, _) => Self::Refused,
            (ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted, _) => Self::Reset,
            (ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof | ErrorKind::NotConnected, _) => Self::Closed,
            (ErrorKind::TimedOut, _) => Self::Late,
            _ => Self::Other,
        }
    }

    /// The same in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Late => "late",
            Self::Wrong => "wrong",
            Self::Descriptors => "no descriptors",
            Self::Ports => "no local ports",
            Self::Other => "other",
        }
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::Refused | Self::Closed | Self::Reset => Some(
                "if the server was checkpointed meanwhile, --through-checkpoint sends again what it had not answered",
            ),
            Self::Late => Some(
                "a server serves no more connections than its limit at a time (defrost serve --connections N); --timeout \
                 gives it longer",
            ),
            Self::Ports => Some(
                "wait a minute for the ports of earlier connections, or widen net.ipv4.ip_local_port_range",
            ),
            Self::Wrong | Self::Descriptors | Self::Other => None,
        }
    }
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "they are what they are called")]
pub struct Latency {
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// How many messages there should have been.
    pub messages: u64,
    /// How many came back as they were sent.
    pub answered: u64,
    /// How many came back as something else.
    pub wrong: u64,
    /// How many were lost: not answered, or not even sent because their client had given up.
    pub lost: u64,
    /// What went wrong, and was not made good.
    pub errors: BTreeMap<Trouble, u64>,
    /// What happened to the connections of messages that were answered all the same, by another attempt.
    pub interruptions: BTreeMap<Trouble, u64>,
    /// Connections that took the place of an earlier one.
    pub reconnects: u64,
    /// Messages that were sent more than once.
    pub resent: u64,
    /// From a message to its answer, with all attempts; `None` without any answer.
    pub latency_us: Option<Latency>,
    /// Each latency in microseconds, to three digits, and how often it was. Empty unless it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latencies_us: Vec<(u64, u64)>,
    /// The waits of the client that waited longest, in seconds, those that were over: no run is shorter.
    pub longest_wait: f64,
    /// Whether it was given up before its end; then `lost` counts those only that had failed by then.
    pub interrupted: bool,
    /// In all, in seconds.
    pub seconds: f64,
    /// Answers a second.
    pub per_second: f64,
    /// What a connection costs; `None` if none was open long enough to be looked at.
    pub memory: Option<Memory>,
}

impl Outcome {
    /// Whether each message came back as it was sent.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.answered == self.messages && self.wrong == 0
    }
}

#[derive(Debug)]
pub(super) struct Tally {
    answered: AtomicU64,
    open: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// Made by the first answer.
    latency: Option<Histogram<u64>>,
    errors: BTreeMap<Trouble, u64>,
    interruptions: BTreeMap<Trouble, u64>,
    reconnects: u64,
    resent: u64,
    longest_wait: Duration,
    memory: Option<Memory>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let counts = Counts {
            // It refuses bounds that make no sense only.
            latency: Histogram::new_with_bounds(1, LONGEST, DIGITS).ok(),
            errors: BTreeMap::new(),
            interruptions: BTreeMap::new(),
            reconnects: 0,
            resent: 0,
            longest_wait: Duration::ZERO,
            memory: None,
        };
        Self { answered: AtomicU64::new(0), open: AtomicU64::new(0), counts: Mutex::new(counts) }
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    pub(super) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn answer(&self, latency: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(latency.as_micros()).unwrap_or(LONGEST);
        if let Some(histogram) = &mut locked(&self.counts).latency {
            histogram.saturating_record(micros);
        }
    }

    pub(super) fn error(&self, trouble: Trouble) {
        *locked(&self.counts).errors.entry(trouble).or_default() += 1;
    }

    pub(super) fn made_good(&self, trouble: Trouble) {
        *locked(&self.counts).interruptions.entry(trouble).or_default() += 1;
    }

    pub(super) fn reconnected(&self) {
        locked(&self.counts).reconnects += 1;
    }

    pub(super) fn resent(&self) {
        locked(&self.counts).resent += 1;
    }

    /// A client has waited so long in all by now, because it was to.
    pub(super) fn waited(&self, waited: Duration) {
        let mut counts = locked(&self.counts);
        counts.longest_wait = counts.longest_wait.max(waited);
    }

    /// What a connection costs, as far as that can be told.
    pub(super) fn costs(&self, memory: Option<Memory>) {
        locked(&self.counts).memory = memory;
    }

    pub(super) fn outcome(&self, messages: u64, took: Duration) -> Outcome {
        let counts = locked(&self.counts);
        let answered = self.answered();
        let wrong = counts.errors.get(&Trouble::Wrong).copied().unwrap_or(0);
        let latency = counts.latency.as_ref().filter(|all| !all.is_empty()).map(|all| Latency {
            min: all.min(),
            p50: all.value_at_quantile(0.5),
            p90: all.value_at_quantile(0.9),
            p99: all.value_at_quantile(0.99),
            p999: all.value_at_quantile(0.999),
            max: all.max(),
        });
        let each = |all: &Histogram<u64>| {
            all.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
        };
        Outcome {
            messages,
            answered,
            wrong,
            lost: messages.saturating_sub(answered + wrong),
            errors: counts.errors.clone(),
            interruptions: counts.interruptions.clone(),
            reconnects: counts.reconnects,
            resent: counts.resent,
            latency_us: latency,
            latencies_us: counts.latency.as_ref().map(each).unwrap_or_default(),
            longest_wait: counts.longest_wait.as_secs_f64(),
            interrupted: false,
            seconds: took.as_secs_f64(),
            per_second: answered as f64 / took.as_secs_f64(),
            memory: counts.memory,
        }
    }
}
