//! What follows upon a crash: which checkpoint comes back, after which pause, or whether it starts cold.
//!
//! It decides only, from numbers.

use std::collections::BTreeSet;
use std::time::Duration;

/// The pause before the second try; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Restore this checkpoint.
    Restore(u64),
    /// Start it as at first.
    Cold,
    /// Leave it.
    End,
}

/// The crashes so far.
#[derive(Debug)]
pub(super) struct Course {
    limit: u32,
    /// Crashes in a row, without a new checkpoint in between.
    row: u32,
    /// Cold starts among them.
    colds: u32,
    /// Checkpoints up to this one are of another start, and do not count.
    floor: u64,
    /// The newest that there was at the last crash.
    newest: u64,
    /// Those that could not be restored.
    failed: BTreeSet<u64>,
}

impl Course {
    /// `limit` crashes in a row lead to a cold start; checkpoints up to `floor` were there before.
    pub(super) fn new(limit: u32, floor: u64) -> Self {
        Self { limit, row: 0, colds: 0, floor, newest: floor, failed: BTreeSet::new() }
    }

    /// A crash, or a step that failed: what to do, and after how long. `complete` are the numbers of the
    /// checkpoints there are.
    pub(super) fn next(&mut self, complete: &[u64]) -> (Step, Duration) {
        self.learn(complete);
        let pause = pause(self.row);
        self.row += 1;
        let usable =
            complete.iter().filter(|number| **number > self.floor && !self.failed.contains(number)).max();
        if let Some(number) = usable.filter(|_| self.row <= self.limit) {
            return (Step::Restore(*number), pause);
        }
        if self.colds >= self.limit {
            return (Step::End, Duration::ZERO);
        }
        self.colds += 1;
        self.floor = self.newest;
        (Step::Cold, pause)
    }

    /// Counts anew if one of these checkpoints is new.
    pub(super) fn learn(&mut self, complete: &[u64]) {
        let newest = complete.iter().copied().max().unwrap_or(0);
        if newest > self.newest {
            (self.row, self.colds) = (0, 0);
            self.newest = newest;
        }
    }

    /// This one could not be restored, and will not be tried again.
    pub(super) fn unusable(&mut self, number: u64) {
        self.failed.insert(number);
    }

    /// How many crashes and failed steps there were in a row.
    pub(super) fn row(&self) -> u32 {
        self.row
    }
}

fn pause(row: u32) -> Duration {
    match row {
        0 => Duration::ZERO,
        _ => FIRST_PAUSE.saturating_mul(1 << (row - 1).min(16)).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(course: &mut Course, complete: &[u64], count: usize) -> Vec<Step> {
        (0..count).map(|_| course.next(complete).0).collect()
    }

    #[test]
    fn the_last_one_comes_back_until_it_is_too_often() {
        let mut course = Course::new(2, 3);
        assert_eq!(
            steps(&mut course, &[3, 4, 5], 4),
            [Step::Restore(5), Step::Restore(5), Step::Cold, Step::Cold]
        );
        assert_eq!(course.next(&[3, 4, 5]).0, Step::End);
        assert_eq!(course.next(&[3, 4, 5, 6]).0, Step::Restore(6), "one that was made after the cold start");
    }

    #[test]
    fn a_new_checkpoint_in_between_begins_anew() {
        let mut course = Course::new(2, 0);
        for number in 1..20 {
            assert_eq!(course.next(&[number]), (Step::Restore(number), Duration::ZERO));
        }
    }

    #[test]
    fn the_pause_grows() {
        let mut course = Course::new(9, 0);
        let pauses: Vec<_> = (0..9).map(|_| course.next(&[1]).1.as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
    }

    #[test]
    fn what_cannot_be_restored_leads_to_an_older_one() {
        let mut course = Course::new(5, 1);
        assert_eq!(course.next(&[1, 2, 3]).0, Step::Restore(3));
        course.unusable(3);
        assert_eq!(course.next(&[1, 2, 3]).0, Step::Restore(2));
        course.unusable(2);
        assert_eq!(course.next(&[1, 2, 3]).0, Step::Cold, "1 was there before the start");
        assert_eq!(Course::new(3, 4).next(&[]).0, Step::Cold);
    }
}
