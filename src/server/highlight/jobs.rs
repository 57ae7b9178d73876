//! The work under way: so much at a time, so much waiting, and none of it through a checkpoint.
//!
//! It must not know what the work is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::HighlightOptions;
use crate::resource::{Cycle, HookError, Resource, locked};
use crate::wake::Wake;

/// How much longer than its limit work is waited for, which looks at its limit now and then.
const GRACE: Duration = Duration::from_secs(1);

/// Work on threads for blocking work, which the runtime starts when it needs them and ends when they have been idle
/// for a while; there are never more of them than jobs.
#[derive(Debug)]
pub(super) struct Jobs {
    /// Working.
    places: Arc<Semaphore>,
    /// Working or waiting.
    seats: Arc<Semaphore>,
    count: u32,
    time_limit: Duration,
    drain: Duration,
    /// All places, during a checkpoint.
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Why there is no outcome.
#[derive(Debug)]
pub(super) enum Refused {
    /// Too many wait, or it was never its turn.
    Busy,
    /// It did not end when it should. It goes on, and keeps its place.
    Stuck,
    /// It panicked.
    Panicked(String),
}

/// Tells the work when it is dropped.
struct Waiter(Arc<AtomicBool>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Jobs {
    pub(super) fn new(options: &HighlightOptions) -> Self {
        let count = options.jobs.clamp(1, 1024);
        Self {
            places: Arc::new(Semaphore::new(count)),
            seats: Arc::new(Semaphore::new(count + options.queue.min(1 << 16))),
            count: u32::try_from(count).unwrap_or(u32::MAX),
            time_limit: options.time_limit,
            drain: options.drain,
            held: Mutex::new(None),
        }
    }

    /// How many work, and how many wait.
    pub(super) fn under_way(&self) -> usize {
        self.places_in_all().saturating_sub(self.places.available_permits())
    }

    fn places_in_all(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Has it done, and tells it, when it asks, whether anybody still waits for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let seat = Arc::clone(&self.seats).try_acquire_owned().map_err(|_| Refused::Busy)?;
        // Whoever is before it may each take the whole of its time.
        let wait = self.time_limit + self.drain;
        let place = timeout(wait, Arc::clone(&self.places).acquire_owned()).await;
        // Nobody closes the semaphore.
        let Ok(Ok(place)) = place else { return Err(Refused::Busy) };
        let abandoned = Arc::new(AtomicBool::new(false));
        let _waiter = Waiter(Arc::clone(&abandoned));
        let job = tokio::task::spawn_blocking(move || {
            let done = work(&|| abandoned.load(Ordering::Relaxed));
            drop((place, seat));
            done
        });
        match timeout(self.time_limit + GRACE, job).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(Refused::Panicked(error.to_string())),
            Err(_) => Err(Refused::Stuck),
        }
    }
}

#[async_trait]
impl Resource for Jobs {
    async fn before_checkpoint(&self, _cycle: &Cycle) -> Result<(), HookError> {
        let all = timeout(self.drain, Arc::clone(&self.places).acquire_many_owned(self.count)).await;
        let Ok(all) = all else {
            let text = format!("{} jobs still run after {:?}", self.under_way(), self.drain);
            return Err(text.into());
        };
        *locked(&self.held) = Some(all?);
        Ok(())
    }

    async fn after_restore(&self, _wake: &Wake) -> Result<(), HookError> {
        *locked(&self.held) = None;
        Ok(())
    }

    fn deadline(&self) -> Duration {
        self.drain + GRACE
    }

    fn describe(&self) -> String {
        // A cycle takes all places when nobody works any more.
        let under_way = if locked(&self.held).is_some() { 0 } else { self.under_way() };
        format!("{} jobs at a time, {under_way} under way", self.count)
    }
}
