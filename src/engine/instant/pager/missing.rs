//! What is still missing of an address space, and where it is in the pages file. It must not know who asks.

use std::collections::BTreeMap;
use std::ops::Range;

/// Memory that goes on in the file as it does in the address space. Addresses and offsets are of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::instant) struct Run {
    pub(in crate::engine::instant) start: u64,
    pub(in crate::engine::instant) end: u64,
    /// Of its first page in the file.
    pub(in crate::engine::instant) offset: u64,
}

impl Run {
    /// The part of it within these addresses, if there is any.
    fn within(self, range: &Range<u64>) -> Option<Self> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        (start < end).then_some(Self { start, end, offset: self.offset + (start - self.start) })
    }
}

/// Runs by address, none of which overlap. Neighbours stay apart: they may be of different mappings, and no copy may
/// cross from one to another.
#[derive(Clone, Debug, Default)]
struct Runs(BTreeMap<u64, Run>);

impl Runs {
    fn add(&mut self, run: Run) {
        self.0.insert(run.start, run);
    }

    /// The first that ends behind this address.
    fn from(&self, address: u64) -> Option<Run> {
        let before = self.0.range(..=address).next_back().map(|(_, run)| *run);
        before.filter(|run| run.end > address).or_else(|| self.0.range(address..).next().map(|(_, run)| *run))
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.from(range.start).is_some_and(|run| run.start < range.end)
    }

    /// Takes out what lies within.
    fn cut(&mut self, range: &Range<u64>) -> Vec<Run> {
        let mut taken = Vec::new();
        while let Some(run) = self.from(range.start).filter(|run| run.start < range.end) {
            self.0.remove(&run.start);
            for outside in [0..range.start, range.end..u64::MAX] {
                if let Some(rest) = run.within(&outside) {
                    self.add(rest);
                }
            }
            taken.extend(run.within(range));
        }
        taken
    }
}

/// A range that has moved.
#[derive(Clone, Copy, Debug)]
struct Move {
    from: u64,
    to: u64,
    len: u64,
}

/// The missing pages of one address space.
#[derive(Clone, Debug, Default)]
pub(super) struct Missing {
    /// All memory whose faults are told, as far as it is known.
    handled: Runs,
    runs: Runs,
    /// Moves to where something is still known to be. The kernel tells the changes of several threads in no certain
    /// order (fs/userfaultfd.c takes the latest first), so that is told next.
    parked: Vec<Move>,
}

impl Missing {
    /// All of these runs, within memory that is handled.
    pub(super) fn new(handled: &[Range<u64>], runs: &[Run]) -> Self {
        let mut missing = Self::default();
        for range in handled {
            missing.handled.add(Run { start: range.start, end: range.end, offset: 0 });
        }
        runs.iter().for_each(|run| missing.runs.add(*run));
        missing
    }

    /// Whether nothing is missing, nor in doubt.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.0.is_empty() && self.parked.is_empty()
    }

    /// The first run at or behind this address, from there on.
    pub(super) fn from(&self, address: u64) -> Option<Run> {
        self.runs.from(address)?.within(&(address..u64::MAX))
    }

    /// What is missing around this address, and within this range, in one piece.
    pub(super) fn around(&self, address: u64, range: &Range<u64>) -> Option<Run> {
        self.runs.from(address).filter(|run| run.start <= address)?.within(range)
    }

    /// These pages are no longer missing: they are there, or zero.
    pub(super) fn done(&mut self, range: &Range<u64>) {
        self.runs.cut(range);
    }

    /// This range is no longer mapped.
    pub(super) fn unmapped(&mut self, range: &Range<u64>) {
        self.runs.cut(range);
        self.handled.cut(range);
        self.settle();
    }

    /// A range is elsewhere.
    pub(super) fn moved(&mut self, from: u64, to: u64, len: u64) {
        self.parked.push(Move { from, to, len });
        self.settle();
    }

    /// The same in a process that was forked, which is told of none of the changes before.
    pub(super) fn forked(&self) -> Self {
        let mut copy = self.clone();
        for Move { from, to, len } in std::mem::take(&mut copy.parked) {
            copy.unmapped(&(to..to + len));
            copy.moved(from, to, len);
        }
        copy
    }

    /// Carries out the moves whose target is free.
    fn settle(&mut self) {
        let is_free = |handled: &Runs, at: &Move| !handled.overlaps(&(at.to..at.to + at.len));
        while let Some(index) = self.parked.iter().position(|parked| is_free(&self.handled, parked)) {
            let Move { from, to, len } = self.parked.swap_remove(index);
            for runs in [&mut self.handled, &mut self.runs] {
                for run in runs.cut(&(from..from + len)) {
                    let start = run.start - from + to;
                    runs.add(Run { start, end: start + (run.end - run.start), ..run });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn run(start: u64, pages: u64, offset: u64) -> Run {
        Run { start: start * PAGE, end: (start + pages) * PAGE, offset: offset * PAGE }
    }

    fn pages(range: Range<u64>) -> Range<u64> {
        range.start * PAGE..range.end * PAGE
    }

    fn missing() -> Missing {
        Missing::new(&[pages(10..20), pages(20..30)], &[run(12, 4, 0), run(20, 10, 4)])
    }

    fn left(missing: &Missing) -> Vec<Run> {
        missing.runs.0.values().copied().collect()
    }

    #[test]
    fn what_is_done_is_cut_out_and_offsets_follow() {
        let mut missing = missing();
        missing.done(&pages(13..14));
        missing.done(&pages(15..22));
        assert_eq!(left(&missing), [run(12, 1, 0), run(14, 1, 2), run(22, 8, 6)]);
        missing.done(&pages(0..100));
        assert!(missing.is_empty());
    }

    #[test]
    fn a_cluster_stays_within_one_run() {
        let missing = missing();
        assert_eq!(missing.around(15 * PAGE, &pages(0..16)), Some(run(12, 4, 0)));
        assert_eq!(missing.around(21 * PAGE, &pages(16..32)), Some(run(20, 10, 4)));
        assert_eq!(missing.around(21 * PAGE, &pages(21..22)), Some(run(21, 1, 5)));
        assert_eq!(missing.around(16 * PAGE, &pages(16..32)), None, "it is not missing, so it is zero");
    }

    #[test]
    fn the_next_run_is_found_from_anywhere() {
        let missing = missing();
        assert_eq!(missing.from(0), Some(run(12, 4, 0)));
        assert_eq!(missing.from(14 * PAGE), Some(run(14, 2, 2)));
        assert_eq!(missing.from(17 * PAGE), Some(run(20, 10, 4)));
        assert_eq!(missing.from(30 * PAGE), None);
    }

    #[test]
    fn memory_that_moves_is_missing_where_it_went() {
        let mut missing = missing();
        missing.moved(10 * PAGE, 100 * PAGE, 10 * PAGE);
        assert_eq!(left(&missing), [run(20, 10, 4), run(102, 4, 0)]);
        missing.unmapped(&pages(10..20));
        missing.unmapped(&pages(103..200));
        assert_eq!(left(&missing), [run(20, 10, 4), run(102, 1, 0)]);
    }

    #[test]
    fn changes_that_are_told_in_the_wrong_order_come_out_right() {
        // One thread unmaps 10..20, another moves 20..30 there; the latter is told first.
        let mut missing = missing();
        missing.moved(20 * PAGE, 10 * PAGE, 10 * PAGE);
        assert!(left(&missing).contains(&run(12, 4, 0)), "it waits");
        missing.unmapped(&pages(10..20));
        assert_eq!(left(&missing), [run(10, 10, 4)]);
        // One moves 10..20 away, another 20..30 to where it was.
        let mut missing = super::tests::missing();
        missing.moved(20 * PAGE, 10 * PAGE, 10 * PAGE);
        missing.moved(10 * PAGE, 50 * PAGE, 10 * PAGE);
        assert_eq!(left(&missing), [run(10, 10, 4), run(52, 4, 0)]);
        assert!(missing.parked.is_empty());
    }
}
