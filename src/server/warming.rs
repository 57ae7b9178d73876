//! The course of a warm-up: how far it is, how it ended, and who waits for that.
//!
//! It must not know what is warmed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// How long a checkpoint waits for a warm-up before it gives up and says so.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Why a server is not warm. It serves all the same, and is not ready.
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
    /// The thread that warms did not start, or panicked.
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

/// What a warm-up is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Bytes of memory.
    Bytes,
    /// Patterns of grammars.
    Patterns,
}

/// How far a warm-up is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Warm by now.
    pub done: u64,
    /// In all; it may grow while it is found out.
    pub total: u64,
    /// Of what.
    pub unit: Unit,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            Unit::Bytes => write!(f, "{} of {} MiB", self.done >> 20, self.total >> 20),
            Unit::Patterns => write!(f, "{} of {} patterns", self.done, self.total),
        }
    }
}

/// One warm-up, under way or ended.
#[derive(Debug)]
pub(super) struct Warming {
    unit: Unit,
    done: AtomicU64,
    total: AtomicU64,
    stopped: AtomicBool,
    outcome: watch::Sender<Option<Result<(), WarmError>>>,
}

impl Warming {
    pub(super) fn new(unit: Unit, total: u64) -> Arc<Self> {
        Arc::new(Self {
            unit,
            done: AtomicU64::new(0),
            total: AtomicU64::new(total),
            stopped: AtomicBool::new(false),
            outcome: watch::Sender::new(None),
        })
    }

    /// Has `work` done on a thread that ends with it, and `warmed` called there when it has succeeded.
    pub(super) fn run(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<(), WarmError> + Send + 'static,
        warmed: impl FnOnce() + Send + 'static,
    ) {
        let warming = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("warm-up".into()).spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|_| Err(WarmError::Thread { cause: "it panicked; the log says why".into() }));
            if outcome.is_ok() {
                warmed();
            }
            warming.end(outcome);
        });
        if let Err(error) = spawned {
            self.end(Err(WarmError::Thread { cause: error.to_string() }));
        }
    }

    /// It has ended so.
    pub(super) fn end(&self, outcome: Result<(), WarmError>) {
        self.outcome.send_replace(Some(outcome));
    }

    /// So much more is warm.
    pub(super) fn advance(&self, by: u64) {
        self.done.fetch_add(by, Ordering::Relaxed);
    }

    /// It has turned out how much there is to warm.
    #[cfg_attr(not(feature = "highlight"), expect(dead_code, reason = "memory has a size from the start"))]
    pub(super) fn set_total(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// Gives the warm-up up, if it has not ended.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether to give it up.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether it has ended well.
    pub(super) fn is_warm(&self) -> bool {
        matches!(&*self.outcome.borrow(), Some(Ok(())))
    }

    pub(super) fn progress(&self) -> Progress {
        Progress {
            done: self.done.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
            unit: self.unit,
        }
    }

    /// Why it is not warm, unless it is.
    pub(super) fn why_not(&self) -> Option<String> {
        match &*self.outcome.borrow() {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("warming up: {}", self.progress())),
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> Result<(), WarmError> {
        let mut outcome = self.outcome.subscribe();
        let ended = outcome.wait_for(Option::is_some).await;
        // The sender lives as long as `self`.
        ended.ok().and_then(|outcome| outcome.clone()).unwrap_or(Err(WarmError::Stopped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_outcome() {
        let warming = Warming::new(Unit::Bytes, 1);
        warming.run(|| panic!("on purpose"), || {});
        assert!(matches!(warming.ended().await, Err(WarmError::Thread { .. })));
        assert!(!warming.is_warm() && warming.why_not().is_some());
    }
}
