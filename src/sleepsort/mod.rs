//! Sleep sort: one task for each number, which sleeps that long and then says it. The honest test of what a
//! checkpoint does to timers, since any sleeper that wakes too early, too late or never shows in the output.
//!
//! # Time in a restored process
//!
//! Tokio's timers, `Instant` and timeouts count by `CLOCK_MONOTONIC`. A restore goes on where that clock stood at the
//! dump, in a time namespace: so do CRIU and the instant engine, for root and for an ordinary user in namespaces of his
//! own. So a sleeper has the time left that it had, and an [`interval`](tokio::time::interval) ticks on as if nothing had
//! been, whatever its [`MissedTickBehavior`](tokio::time::MissedTickBehavior).
//!
//! Where there are no time namespaces (a kernel without `CONFIG_TIME_NS`, or an image that was dumped under one) the
//! clock is the host's. Then
//! - on the host of the dump it has gone on meanwhile: what was due in the gap is due at once, in its order, and what was
//!   due later wakes at its old time, too early by the length of the gap as the process sees it;
//! - after a reboot or on another host it may have gone back: what sleeps then sleeps longer, by as much.
//!
//! An interval whose ticks fell into the gap then does as it does after any long stall:
//!
//! | `MissedTickBehavior` | after a gap of 1000 periods |
//! |---|---|
//! | `Burst`, tokio's default | 1000 ticks at once, then as before |
//! | `Delay` | one tick at once, the next a period after it |
//! | `Skip` | one tick at once, the next at a multiple of the period from the start |
//!
//! So choose `Delay` or `Skip` in a server that may run on such a host, as for one that may be suspended.
//!
//! The wall clock has jumped in any case: what expires by the calendar is [`Expiring`](crate::server::Expiring)'s concern.
//!
//! It must not know checkpoints, nor where numbers come from or go to.

mod input;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

pub use input::{InputError, LARGEST, MOST, read};

/// How many sleepers that are awake may be ahead of what is done with them; the others wait for their turn.
const AHEAD: usize = 1024;

/// The shortest unit: tokio's timers tick so often, and do not tell apart what is due in one tick.
pub const SHORTEST_UNIT: Duration = Duration::from_millis(1);

/// How much longer than to come up all of them may take to begin their sleep, before the first moment counts.
const LEAD: u32 = 2;
/// At least so long.
const LEAST_LEAD: Duration = Duration::from_millis(10);

/// A sleeper that is awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Woken {
    /// Its number.
    pub number: u32,
    /// How long it has slept, by the clock that timers use.
    pub slept: Duration,
    /// The same by the wall clock; zero if that went back.
    pub passed: Duration,
}

/// The sleepers, in the order in which they wake. Dropping it ends the others.
#[derive(Debug)]
pub struct Sleepers {
    awake: mpsc::Receiver<Woken>,
    left: usize,
    common: Arc<Common>,
    // Aborts them when dropped.
    _tasks: tokio::task::JoinSet<()>,
}

impl Sleepers {
    /// Puts a task to sleep for each number, for that many units. All count from the same moment, which comes when all
    /// of them are there and have had time to begin: some tenth of a second for a hundred thousand.
    ///
    /// They wake in order of their numbers, however late that is, if the runtime has one thread (two would overtake each
    /// other), the unit is at least [`SHORTEST_UNIT`], and none was late to begin: see [`overran`](Self::overran).
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    #[must_use]
    pub fn start(numbers: &[u32], unit: Duration) -> Self {
        let (say, awake) = mpsc::channel(AHEAD);
        let common = Arc::new(Common {
            unit,
            first: unit * numbers.iter().min().copied().unwrap_or_default(),
            called: Instant::now(),
            missing: AtomicUsize::new(numbers.len()),
            begin: watch::Sender::new(None),
            overran: AtomicBool::new(false),
        });
        let mut tasks = tokio::task::JoinSet::new();
        for &number in numbers {
            let (say, common) = (say.clone(), Arc::clone(&common));
            tasks.spawn(async move {
                let woken = common.sleep(number).await;
                // Nobody listens any more when all of it is given up.
                let _ = say.send(woken).await;
            });
        }
        Self { awake, left: numbers.len(), common, _tasks: tasks }
    }

    /// Whether one began to sleep when the first was due already: then the order may be wrong.
    #[must_use]
    pub fn overran(&self) -> bool {
        self.common.overran.load(Ordering::Relaxed)
    }

    /// The next one that wakes; `None` when all have. Cancel safe.
    pub async fn next(&mut self) -> Option<Woken> {
        let woken = self.awake.recv().await;
        self.left -= usize::from(woken.is_some());
        woken
    }

    /// Whether another one is awake already, so that it may be worth to say them together.
    #[must_use]
    pub fn are_waiting(&self) -> bool {
        !self.awake.is_empty()
    }

    /// How many have not been told of.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }
}

/// What all sleepers share.
#[derive(Debug)]
struct Common {
    unit: Duration,
    /// When the first is due, from the common moment on.
    first: Duration,
    /// When they were asked to come up.
    called: Instant,
    /// How many have not come up yet.
    missing: AtomicUsize,
    /// The moment from which all count, by both clocks, once it is known.
    begin: watch::Sender<Option<(Instant, SystemTime)>>,
    overran: AtomicBool,
}

impl Common {
    async fn sleep(&self, number: u32) -> Woken {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            let lead = LEAST_LEAD.max(self.called.elapsed() * LEAD);
            self.begin.send_replace(Some((Instant::now() + lead, SystemTime::now() + lead)));
        }
        let mut begin = self.begin.subscribe();
        // The sender is in this very structure.
        let Some((start, wall)) = begin.wait_for(Option::is_some).await.ok().and_then(|begin| *begin) else {
            return std::future::pending().await;
        };
        drop(begin);
        let mut asleep = pin!(sleep_until(start + self.unit * number));
        let is_due = poll_fn(|context| Poll::Ready(asleep.as_mut().poll(context).is_ready())).await;
        if Instant::now() > start + self.first {
            self.overran.store(true, Ordering::Relaxed);
        }
        if !is_due {
            asleep.await;
        }
        Woken { number, slept: start.elapsed(), passed: wall.elapsed().unwrap_or_default() }
    }
}
