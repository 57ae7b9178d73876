//! When the next checkpoint is begun, so that the last complete one is never older than the interval.
//!
//! Plain arithmetic: it must not know how a checkpoint is made.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many of the last checkpoints say how long the next may take.
pub(super) const REMEMBERED: usize = 8;
/// How much longer than the slowest of these it may take,
const MARGIN: u32 = 2;
/// and by how much more: what a busy host adds, which is no multiple of anything. At most one part in so many of the
/// interval.
const BUSY: Duration = Duration::from_millis(200);
const BUSY_PART: u32 = 5;
/// The part of the interval that is the server's own in any case, and for which the first attempt after a failed one
/// waits: one in so many.
const OWN: u32 = 10;
/// How long to wait before a server that is not ready is looked at again: a tenth of the interval, within these.
const EARLY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// When checkpoints are begun. What a crash loses is the age of the state in the last complete one; it counts here from
/// the moment when that was begun, a little before its dump, or from the moment when the server began to have anything
/// to lose.
#[derive(Debug)]
pub(super) struct Schedule {
    every: Duration,
    recent: VecDeque<Duration>,
    /// When the last complete one was begun, or the server.
    last: Instant,
}

impl Schedule {
    /// For a server that begins, or was restored, at this moment, with how long the last checkpoints of earlier lives took,
    /// the latest first.
    pub(super) fn new(every: Duration, now: Instant, took: impl Iterator<Item = Duration>) -> Self {
        Self { every, recent: took.take(REMEMBERED).collect(), last: now }
    }

    /// When the first of this life is to be begun, with the age of the last that there is: in half of what is left, as
    /// nobody knows yet how long it takes. A server that crashes again and again comes to its checkpoints all the same.
    pub(super) fn first(&self, age: Option<Duration>) -> Instant {
        let left = self.every.saturating_sub(age.unwrap_or_default());
        (self.last + left / 2).min(self.due())
    }

    /// The server is not ready at this moment, so there is nothing to lose yet. Gives when to look again.
    pub(super) fn not_yet(&mut self, now: Instant) -> Instant {
        self.last = now;
        now + (self.every / OWN).clamp(EARLY.0, EARLY.1)
    }

    /// One that was begun at this moment is complete now. Gives how much later that is than it should be: the last one
    /// was older than the interval for as long.
    pub(super) fn complete(&mut self, begun: Instant, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.last);
        self.last = begun;
        self.recent.truncate(REMEMBERED - 1);
        self.recent.push_front(now.saturating_duration_since(begun));
        age.saturating_sub(self.every)
    }

    /// When the next is to be begun, after one that was complete at this moment: so early that it is complete in time even
    /// if it takes twice as long as the slowest of the last ones. A tenth of the interval is always the server's own.
    pub(super) fn next(&self, complete: Instant) -> Instant {
        self.due().max(complete + self.every / OWN)
    }

    /// When to try again after so many failures in a row, the last of which was at this moment: soon, and then ever more
    /// rarely, as each attempt lets the server stand still for a moment. At the latest after an interval.
    pub(super) fn again(&self, failures: u32, now: Instant) -> Instant {
        let wait = (self.every / OWN)
            .saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        now + wait.min(self.every)
    }

    fn due(&self) -> Instant {
        let slowest = self.recent.iter().max().copied().unwrap_or_default();
        let early = slowest.saturating_mul(MARGIN).saturating_add(BUSY.min(self.every / BUSY_PART));
        self.last + self.every.saturating_sub(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    /// Runs checkpoints that take so long, and gives by how much each was late.
    fn lateness(took: &[u64]) -> Vec<Duration> {
        let start = Instant::now();
        let mut schedule = Schedule::new(EVERY, start, std::iter::empty());
        let mut begun = schedule.first(None);
        let mut late = Vec::new();
        for took in took {
            let now = begun + Duration::from_millis(*took);
            late.push(schedule.complete(begun, now));
            begun = schedule.next(now);
        }
        late
    }

    #[test]
    fn the_next_is_complete_before_the_last_is_older_than_the_interval() {
        let ever_longer = [100, 200, 400, 800, 1600, 3000, 3000];
        let up_and_down = [1500, 10, 20, 3000, 5, 6, 7, 8, 9, 3000, 2900];
        // The first of a life may take half of the interval, and what a busy host adds is no multiple of a few milliseconds.
        let busy = [5, 5, 205, 5, 5, 400];
        for took in [&[0, 0, 0][..], &[3000; 12], &[5000], &ever_longer, &up_and_down, &busy] {
            assert!(lateness(took).iter().all(Duration::is_zero), "{took:?}");
        }
    }

    #[test]
    fn one_that_is_slow_beyond_all_before_is_late_and_said_to_be() {
        let late = lateness(&[1000, 1000, 4500, 1000]);
        // It was to begin after 7.8 s, so it was complete after 12.3.
        assert_eq!(late, [0, 0, 2300, 0].map(Duration::from_millis));
        assert_eq!(lateness(&[5001]), [Duration::from_millis(1)]);
    }

    #[test]
    fn the_server_serves_in_between_all_the_same() {
        let begun = Instant::now();
        let mut schedule = Schedule::new(EVERY, begun, std::iter::empty());
        let now = begun + 3 * EVERY;
        schedule.complete(begun, now);
        assert_eq!(schedule.next(now), now + EVERY / OWN);
    }

    #[test]
    fn a_slow_one_is_forgotten_in_time() {
        let start = Instant::now();
        let mut schedule = Schedule::new(EVERY, start, std::iter::empty());
        schedule.complete(start, start + Duration::from_secs(4));
        for _ in 0..REMEMBERED {
            schedule.complete(start, start + Duration::from_millis(100));
        }
        assert_eq!(schedule.next(start), start + EVERY - Duration::from_millis(400));
    }

    #[test]
    fn the_first_of_a_life_is_due_in_half_of_what_is_left_or_earlier_where_they_are_slow() {
        let start = Instant::now();
        let fresh = Schedule::new(EVERY, start, std::iter::empty());
        assert_eq!(fresh.first(None), start + EVERY / 2);
        assert_eq!(fresh.first(Some(Duration::from_secs(6))), start + Duration::from_secs(2));
        assert_eq!(fresh.first(Some(EVERY * 2)), start);
        let slow = [3000, 100].map(Duration::from_millis);
        let slow = Schedule::new(EVERY, start, slow.into_iter());
        assert_eq!(slow.first(None), start + Duration::from_millis(3800));
    }

    #[test]
    fn a_server_that_warms_up_longer_than_the_interval_is_not_late() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(EVERY, now, std::iter::empty());
        for _ in 0..30 {
            let next = schedule.not_yet(now);
            assert_eq!(next, now + Duration::from_secs(1));
            now = next;
        }
        assert_eq!(schedule.complete(now, now + Duration::from_secs(8)), Duration::ZERO);
    }

    #[test]
    fn a_failed_one_is_tried_again_soon_and_then_more_rarely() {
        let now = Instant::now();
        let schedule = Schedule::new(EVERY, now, std::iter::empty());
        let waits = [1, 2, 3, 4, 5, 100].map(|failures| (schedule.again(failures, now) - now).as_secs());
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    }
}
