//! A value that expires by wall time: names, certificates, credentials.
//!
//! The monotonic clock stands still while a process is an image, so an age measured by it says "fresh" after a
//! week in a folder. It must not know what the value is, nor where it comes from.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::resource::{HookError, Resource, locked};
use crate::wake::Wake;

/// What tells the wall time; another one than the system's is for tests.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// A clock that asks this.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl Default for WallClock {
    /// The system's.
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallClock").finish_non_exhaustive()
    }
}

/// A cached value with a greatest age by wall time. It is a [`Resource`]: a restored process forgets at once what
/// has expired in the gap.
#[derive(Debug)]
pub struct Expiring<T> {
    max_age: Duration,
    clock: WallClock,
    held: Mutex<Option<Held<T>>>,
}

#[derive(Debug)]
struct Held<T> {
    value: Arc<T>,
    loaded: SystemTime,
}

impl<T> Expiring<T> {
    /// Nothing yet.
    #[must_use]
    pub fn new(max_age: Duration, clock: WallClock) -> Self {
        Self { max_age, clock, held: Mutex::new(None) }
    }

    /// The value that is held, unless it has expired; else what `load` gives, which is held from then on. Its age
    /// counts from before the loading. Callers at the same time may each load.
    ///
    /// # Errors
    /// That of `load`. An expired value is never given out instead.
    pub fn get_or_load<E>(&self, load: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let now = self.clock.now();
        if let Some(value) = self.fresh(now) {
            return Ok(value);
        }
        let value = Arc::new(load()?);
        *locked(&self.held) = Some(Held { value: Arc::clone(&value), loaded: now });
        Ok(value)
    }

    /// Forgets a value that has expired, and says whether there was one. When the clock has gone back behind the
    /// loading, the age cannot be known, and counts as too high.
    fn expire(&self, now: SystemTime) -> bool {
        let mut held = locked(&self.held);
        let is_fresh =
            |held: &mut Held<T>| now.duration_since(held.loaded).is_ok_and(|age| age < self.max_age);
        held.take_if(|held| !is_fresh(held)).is_some()
    }

    fn fresh(&self, now: SystemTime) -> Option<Arc<T>> {
        self.expire(now);
        locked(&self.held).as_ref().map(|held| Arc::clone(&held.value))
    }
}

#[async_trait]
impl<T: Send + Sync + 'static> Resource for Expiring<T> {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if self.expire(self.clock.now()) {
            tracing::info!(%wake, "a cached value has expired by wall time");
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let held = if locked(&self.held).is_some() { "held" } else { "not held" };
        format!("value that expires after {:?} by wall time, {held}", self.max_age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn value_and_clock(max_age: u64) -> (Expiring<u32>, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(1_000));
        let told = Arc::clone(&seconds);
        let clock = WallClock::new(move || {
            SystemTime::UNIX_EPOCH + Duration::from_secs(told.load(Ordering::Relaxed))
        });
        (Expiring::new(Duration::from_secs(max_age), clock), seconds)
    }

    fn get(value: &Expiring<u32>, new: u32) -> u32 {
        *value.get_or_load(|| Ok::<_, Infallible>(new)).unwrap()
    }

    #[test]
    fn it_is_loaded_once_within_its_age_and_again_after_it() {
        let (value, seconds) = value_and_clock(10);
        assert_eq!(get(&value, 1), 1);
        seconds.store(1_009, Ordering::Relaxed);
        assert_eq!(get(&value, 2), 1);
        seconds.store(1_010, Ordering::Relaxed);
        assert_eq!(get(&value, 3), 3);
    }

    #[test]
    fn a_clock_that_went_back_means_expired() {
        let (value, seconds) = value_and_clock(10);
        assert_eq!(get(&value, 1), 1);
        seconds.store(999, Ordering::Relaxed);
        assert_eq!(get(&value, 2), 2);
    }

    #[test]
    fn a_failed_load_gives_no_expired_value() {
        let (value, seconds) = value_and_clock(10);
        assert_eq!(get(&value, 1), 1);
        seconds.store(2_000, Ordering::Relaxed);
        assert_eq!(value.get_or_load(|| Err("gone")), Err("gone"));
        assert_eq!(get(&value, 2), 2);
    }

    #[tokio::test]
    async fn a_wake_forgets_what_has_expired_and_keeps_the_rest() {
        let (value, seconds) = value_and_clock(10);
        assert_eq!(get(&value, 1), 1);
        value.after_restore(&Wake::Resumed).await.unwrap();
        assert!(value.describe().ends_with(", held"));
        seconds.store(5_000, Ordering::Relaxed);
        value.after_restore(&Wake::Resumed).await.unwrap();
        assert!(value.describe().ends_with("not held"));
    }
}
