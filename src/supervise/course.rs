//! What follows upon a crash: which checkpoint comes back, after which pause, or whether it starts cold.
//!
//! It decides only, from numbers.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The pause before the second try; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// As many failures of its own as may be in a row may be within this time, whatever checkpoints there are in between:
/// a server that fails again soon after each return may have what it fails by in its memory.
const WINDOW: Duration = Duration::from_secs(60);

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
    /// When it failed by itself, since it was last started cold, the last ones.
    recent: VecDeque<Instant>,
    /// Whether it had run for longer than the window when it crashed.
    steady: bool,
}

impl Course {
    /// `limit` crashes in a row lead to a cold start; checkpoints up to `floor` were there before.
    pub(super) fn new(limit: u32, floor: u64) -> Self {
        let (failed, recent) = (BTreeSet::new(), VecDeque::new());
        Self { limit, row: 0, colds: 0, floor, newest: floor, failed, recent, steady: true }
    }

    /// It has crashed at this moment, after it ran for so long; by itself, or because somebody killed it, which says
    /// nothing of its state.
    pub(super) fn crashed(&mut self, at: Instant, ran: Duration, by_itself: bool) {
        self.steady = ran >= WINDOW;
        self.recent.retain(|then| at.saturating_duration_since(*then) < WINDOW);
        if by_itself {
            self.recent.push_back(at);
        }
    }

    /// Whether it fails again and again in what comes back.
    fn is_hopeless(&self) -> bool {
        self.recent.len() > self.limit as usize
    }

    /// A crash, or a step that failed: what to do, and after how long. `complete` are the numbers of the
    /// checkpoints there are.
    pub(super) fn next(&mut self, complete: &[u64]) -> (Step, Duration) {
        self.learn(complete);
        // Where it fails after each cold start, checkpoints do not make it try faster.
        let pause = pause(self.row.max(self.colds));
        self.row += 1;
        let usable =
            complete.iter().filter(|number| **number > self.floor && !self.failed.contains(number)).max();
        if let Some(number) = usable.filter(|_| self.row <= self.limit && !self.is_hopeless()) {
            return (Step::Restore(*number), pause);
        }
        if self.colds >= self.limit {
            return (Step::End, Duration::ZERO);
        }
        self.colds += 1;
        self.floor = self.newest;
        self.recent.clear();
        (Step::Cold, pause)
    }

    /// Counts anew if one of these checkpoints is new; the cold starts too, unless they keep failing.
    pub(super) fn learn(&mut self, complete: &[u64]) {
        let newest = complete.iter().copied().max().unwrap_or(0);
        if newest > self.newest {
            self.row = 0;
            if self.steady || self.recent.is_empty() {
                self.colds = 0;
            }
            self.newest = newest;
        }
    }

    /// This one could not be restored, and will not be tried again. Nothing is gained by a pause before the next.
    pub(super) fn unusable(&mut self, number: u64) {
        self.failed.insert(number);
        self.row = self.row.saturating_sub(1);
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
    fn a_state_that_fails_again_and_again_is_left_for_a_cold_start() {
        let short = Duration::from_millis(1500);
        let mut course = Course::new(2, 0);
        let (start, mut number) = (Instant::now(), 0);
        let mut crash = |course: &mut Course, at: Duration, by_itself: bool| {
            number += 1;
            course.crashed(start + at, short, by_itself);
            (course.next(&[number]).0, number)
        };
        // Killed by others, it comes back however often.
        for turn in 0..20 {
            let (step, last) = crash(&mut course, short * turn, false);
            assert_eq!(step, Step::Restore(last));
        }
        // By itself, with a new checkpoint each time: two come back, the third does not.
        let mut at = short * 20;
        for cold in 0..2 {
            for _ in 0..2 {
                let (step, last) = crash(&mut course, at, true);
                assert_eq!(step, Step::Restore(last), "{cold}");
                at += short;
            }
            assert_eq!(crash(&mut course, at, true).0, Step::Cold, "{cold}");
            at += short;
        }
        // Neither does it help to begin anew for ever.
        assert!((0..3).map(|_| crash(&mut course, at, true).0).any(|step| step == Step::End));

        // Rarely, it is another matter.
        let mut course = Course::new(2, 0);
        for turn in 0..20 {
            let (step, last) = crash(&mut course, WINDOW * turn / 2, true);
            assert_eq!(step, Step::Restore(last), "{turn}");
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
        assert_eq!(course.next(&[1, 2, 3]), (Step::Restore(2), Duration::ZERO));
        course.unusable(2);
        assert_eq!(course.next(&[1, 2, 3]), (Step::Cold, Duration::ZERO), "1 was there before the start");
        assert_eq!(Course::new(3, 4).next(&[]).0, Step::Cold);
    }
}
