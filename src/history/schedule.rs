//! When the next checkpoint is begun, so that the last complete one is never older than the interval.
//!
//! Plain arithmetic: it must not know how a checkpoint is made.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many of the last checkpoints say how long the next may take.
const REMEMBERED: usize = 8;
/// How much longer than the slowest of these it may take.
const MARGIN: u32 = 2;
/// The part of the interval that is the server's own in any case: one in so many.
const OWN: u32 = 10;

/// When checkpoints are begun. What a crash loses is the age of the state in the last complete one; it counts here from
/// the moment when that was begun, a little before its dump.
#[derive(Debug)]
pub(super) struct Schedule {
    every: Duration,
    recent: VecDeque<Duration>,
    /// When the last complete one was begun.
    last: Option<Instant>,
}

impl Schedule {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, recent: VecDeque::new(), last: None }
    }

    /// One that was begun at this moment is complete now. Gives how much later that is than it should be: the last one
    /// was older than the interval for as long.
    pub(super) fn complete(&mut self, begun: Instant, now: Instant) -> Duration {
        let age = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last = Some(begun);
        self.recent.truncate(REMEMBERED - 1);
        self.recent.push_front(now.saturating_duration_since(begun));
        age.saturating_sub(self.every)
    }

    /// When the next is to be begun: so early that it is complete in time even if it takes twice as long as the slowest
    /// of the last ones. A tenth of the interval is always the server's own.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let slowest = self.recent.iter().max().copied().unwrap_or_default();
        let early = slowest.saturating_mul(MARGIN);
        let due = self.last.map_or(now, |last| last + self.every.saturating_sub(early));
        due.max(now + self.every / OWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    /// Runs checkpoints that take so long, and gives by how much each was late.
    fn lateness(took: &[u64]) -> Vec<Duration> {
        let mut schedule = Schedule::new(EVERY);
        let mut begun = Instant::now();
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
        for took in [&[0, 0, 0][..], &[3000; 12], &ever_longer, &up_and_down] {
            assert!(lateness(took).iter().all(Duration::is_zero), "{took:?}");
        }
    }

    #[test]
    fn one_that_is_slow_beyond_all_before_is_late_and_said_to_be() {
        let late = lateness(&[1000, 1000, 4500, 1000]);
        // It was to begin after 8 s, so it was complete after 12.5.
        assert_eq!(late, [0, 0, 2500, 0].map(Duration::from_millis));
    }

    #[test]
    fn the_server_serves_in_between_all_the_same() {
        let mut schedule = Schedule::new(EVERY);
        let begun = Instant::now();
        let now = begun + 3 * EVERY;
        schedule.complete(begun, now);
        assert_eq!(schedule.next(now), now + EVERY / OWN);
    }

    #[test]
    fn a_slow_one_is_forgotten_in_time() {
        let mut schedule = Schedule::new(EVERY);
        let start = Instant::now();
        schedule.complete(start, start + Duration::from_secs(4));
        for _ in 0..REMEMBERED {
            schedule.complete(start, start + Duration::from_millis(100));
        }
        assert_eq!(schedule.next(start), start + EVERY - Duration::from_millis(200));
    }
}
