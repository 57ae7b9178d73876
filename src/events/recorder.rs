//! Where events are recorded: a ring in memory, bounded by count and by bytes.
//!
//! The ring is part of the process, so it is in an image and goes on in whatever is restored from that. Readers
//! keep nothing in it: each remembers the sequence number that it wants next, and learns how many events went by
//! when it comes too late. It must not know readers, files or what the events mean.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use super::custom::{About, Kind, KindError, Typed};
use super::event::{Draft, Event, Origin};
use crate::resource::locked;
use crate::wake::InstanceId;

/// How much a [`Recorder`] keeps; the oldest event goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most events.
    pub events: usize,
    /// The most bytes of memory, about.
    pub bytes: usize,
}

impl Default for Limits {
    /// 4,096 events, 2 MiB.
    fn default() -> Self {
        Self { events: 4096, bytes: 2 << 20 }
    }
}

/// The most kinds of events that can be registered.
const MOST_KINDS: usize = 1000;

/// A handle to a ring of events. Clones share the ring; each costs as much as an [`Arc`] does.
///
/// Recording never fails and never waits for a reader, a file or a disk: it takes a lock for as long as one event
/// takes to be put into the ring.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    on: AtomicBool,
    ring: Mutex<Ring>,
    recorded: Notify,
    /// Events that were to be written to a file and were not.
    unwritten: AtomicU64,
    kinds: Mutex<BTreeMap<&'static str, About>>,
}

struct Ring {
    limits: Limits,
    origin: Origin,
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// The sequence number of the next event.
    next: u64,
}

/// What a reader was given.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Batch {
    /// The events, oldest first.
    pub events: Vec<Arc<Event>>,
    /// How many went by before these, unread by this reader.
    pub missed: u64,
    /// What to ask for next.
    pub next: u64,
}

/// How many events there are, and were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// In the ring now.
    pub kept: u64,
    /// Bytes that these take, about.
    pub bytes: u64,
    /// Ever recorded, by this process and the ones that it was restored from.
    pub recorded: u64,
    /// Dropped from the ring, to make room. A file may have them.
    pub dropped: u64,
    /// Not written to the file that they were meant for: the disk was full, or so many came at once.
    pub unwritten: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Recorder {
    /// A recorder that is on. With no room for a single event it is [off](Self::off).
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let origin = Origin { pid: std::process::id(), ..NOBODY };
        let ring = Ring { limits, origin, events: VecDeque::new(), bytes: 0, next: 0 };
        let shared = Shared {
            on: AtomicBool::new(limits.events > 0 && limits.bytes > 0),
            ring: Mutex::new(ring),
            recorded: Notify::new(),
            unwritten: AtomicU64::new(0),
            kinds: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A recorder that records nothing: each event costs one load of an atomic then.
    #[must_use]
    pub fn off() -> Self {
        Self::new(Limits { events: 0, bytes: 0 })
    }

    /// Whether anything is recorded.
    #[must_use]
    #[inline]
    pub fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }

    /// Records what `draft` makes; it is not called when the recorder is off.
    #[inline]
    pub fn record(&self, draft: impl FnOnce() -> Draft) {
        if self.is_on() {
            self.put(draft());
        }
    }

    /// Registers an event of the program's own, to record it by its type.
    ///
    /// # Errors
    /// [`KindError`]: its name is none, is taken, or is one of defrost's own.
    pub fn register<T: Typed>(&self) -> Result<Kind<T>, KindError> {
        let about = About::of::<T>()?;
        let mut kinds = locked(&self.shared.kinds);
        if kinds.contains_key(T::NAME) {
            return Err(KindError::Taken { name: T::NAME });
        }
        if kinds.len() >= MOST_KINDS {
            return Err(KindError::TooMany { limit: MOST_KINDS });
        }
        kinds.insert(T::NAME, about);
        Ok(Kind::new(self.clone()))
    }

    /// What has been registered, by name.
    #[must_use]
    pub fn kinds(&self) -> Vec<About> {
        locked(&self.shared.kinds).values().copied().collect()
    }

    /// How many events there are, and were.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let ring = locked(&self.shared.ring);
        let kept = ring.events.len() as u64;
        Counts {
            kept,
            bytes: ring.bytes as u64,
            recorded: ring.next,
            dropped: ring.next - kept,
            unwritten: self.shared.unwritten.load(Ordering::Relaxed),
        }
    }

    /// At most `most` of the events from the sequence number `from` on, which is 0 for all that are kept.
    #[must_use]
    pub fn read(&self, from: u64, most: usize) -> Batch {
        locked(&self.shared.ring).read(from, most)
    }

    /// Waits until there is an event with this sequence number, or a later one. Cancel safe.
    pub async fn reached(&self, sequence: u64) {
        loop {
            let recorded = self.shared.recorded.notified();
            let mut recorded = std::pin::pin!(recorded);
            // Before the look, so that what is recorded in between is not missed.
            recorded.as_mut().enable();
            if locked(&self.shared.ring).next > sequence {
                return;
            }
            recorded.await;
        }
    }

    /// Says which process this is, from the next event on.
    pub(crate) fn set_origin(&self, instance: InstanceId, generation: u64) {
        locked(&self.shared.ring).origin = Origin { instance, generation, pid: std::process::id() };
    }

    /// Counts events that a file should have and has not.
    pub(super) fn count_unwritten(&self, count: u64) {
        self.shared.unwritten.fetch_add(count, Ordering::Relaxed);
    }

    fn put(&self, draft: Draft) {
        let Draft { name, label, fields, at } = draft;
        let at = at.unwrap_or_else(SystemTime::now);
        let unix_ns = nanoseconds(at.duration_since(UNIX_EPOCH).unwrap_or_default());
        let monotonic_ns = nanoseconds(monotonic());
        let origin = NOBODY;
        let event = Event { sequence: 0, unix_ns, monotonic_ns, origin, name, label, fields };
        let event = Arc::new(event);
        locked(&self.shared.ring).push(event);
        self.shared.recorded.notify_waiters();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("on", &self.is_on()).finish_non_exhaustive()
    }
}

impl Ring {
    fn push(&mut self, mut event: Arc<Event>) {
        // Nobody else has it yet.
        if let Some(event) = Arc::get_mut(&mut event) {
            event.sequence = self.next;
            event.origin = self.origin;
        }
        self.next += 1;
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.events.len() > self.limits.events
            || (self.bytes > self.limits.bytes && self.events.len() > 1)
        {
            let Some(gone) = self.events.pop_front() else { return };
            self.bytes -= gone.bytes();
        }
    }

    fn read(&self, from: u64, most: usize) -> Batch {
        let oldest = self.next - self.events.len() as u64;
        let start = from.clamp(oldest, self.next);
        let skipped = usize::try_from(start - oldest).unwrap_or(usize::MAX);
        let events: Vec<_> = self.events.iter().skip(skipped).take(most).cloned().collect();
        Batch { missed: start.saturating_sub(from), next: start + events.len() as u64, events }
    }
}

/// The origin of an event that is not in the ring yet.
const NOBODY: Origin = Origin { instance: InstanceId::from_bytes([0; 16]), generation: 0, pid: 0 };

fn monotonic() -> Duration {
    // This clock is always there.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(events: usize) -> Recorder {
        Recorder::new(Limits { events, ..Limits::default() })
    }

    fn record(recorder: &Recorder, count: u64) {
        (0..count).for_each(|n| recorder.record(|| Draft::new("n").with("n", n)));
    }

    #[test]
    fn what_is_recorded_late_has_its_own_time() {
        let (recorder, then) = (recorder(3), UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000));
        recorder.record(|| Draft::new("n").at(then));
        assert_eq!(recorder.read(0, 1).events[0].time(), then);
    }

    #[test]
    fn the_oldest_goes_and_is_counted() {
        let recorder = recorder(3);
        record(&recorder, 5);
        let batch = recorder.read(0, 10);
        let sequences: Vec<u64> = batch.events.iter().map(|event| event.sequence).collect();
        assert_eq!((sequences, batch.missed, batch.next), (vec![2, 3, 4], 2, 5));
        let counts = recorder.counts();
        assert_eq!((counts.kept, counts.recorded, counts.dropped), (3, 5, 2));
        assert_eq!(counts.bytes, batch.events.iter().map(|event| event.bytes() as u64).sum::<u64>());
        let batch = recorder.read(3, 1);
        assert_eq!((batch.events[0].sequence, batch.missed, batch.next), (3, 0, 4));
        assert_eq!(recorder.read(99, 10).next, 5, "a reader who is ahead is brought back");
    }

    #[test]
    fn bytes_are_bounded_too() {
        let recorder = Recorder::new(Limits { events: 1000, bytes: 10_000 });
        for _ in 0..100 {
            recorder.record(|| Draft::new("big").message("x".repeat(1000)));
        }
        let counts = recorder.counts();
        assert!(counts.bytes <= 10_000 && counts.kept > 3, "{counts:?}");
        assert_eq!(counts.kept + counts.dropped, 100);
        let tiny = Recorder::new(Limits { events: 10, bytes: 1 });
        record(&tiny, 2);
        assert_eq!(tiny.counts().kept, 1, "the last one stays");
    }

    #[test]
    fn off_does_not_even_make_them() {
        let recorder = Recorder::off();
        recorder.record(|| panic!("it is off"));
        assert_eq!(recorder.counts(), Counts::default());
    }

    #[test]
    fn each_says_which_process_it_is_from() {
        let recorder = recorder(3);
        record(&recorder, 1);
        recorder.set_origin(InstanceId::from_bytes([7; 16]), 2);
        record(&recorder, 1);
        let origins: Vec<u64> =
            recorder.read(0, 9).events.iter().map(|event| event.origin.generation).collect();
        assert_eq!(origins, [0, 2]);
    }

    #[tokio::test]
    async fn a_reader_is_woken() {
        let recorder = recorder(3);
        let waiting = tokio::spawn({
            let recorder = recorder.clone();
            async move { recorder.reached(1).await }
        });
        for _ in 0..2 {
            tokio::task::yield_now().await;
            record(&recorder, 1);
        }
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    }
}
