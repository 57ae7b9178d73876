//! One address space that is being filled: its faults answered, its changes followed.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use criu_images::PAGE_SIZE;

use super::missing::{Missing, Run};
use crate::sys::userfault::{Event, Filled, Pages, Userfault};

/// Most events that are taken at once: others wait too.
const EVENTS: usize = 256;

/// A page that somebody waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    pub(super) page: u64,
    pub(super) write: bool,
}

/// How far filling a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it is there.
    Whole,
    /// The address space is being changed, which is told by an event.
    Held,
    /// The address space is gone.
    Gone,
}

/// What a round of events brought.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) touched: Vec<Touch>,
    /// Address spaces of new processes.
    pub(super) forked: Vec<Space>,
    /// How many events there were.
    pub(super) events: usize,
}

/// An address space.
#[derive(Debug)]
pub(super) struct Space {
    /// Open until the space is let go, whatever fails before: where it is closed, missing pages read as zeros.
    fault: ManuallyDrop<Userfault>,
    pub(super) missing: Missing,
}

impl Space {
    /// With the descriptor of its faults, and what is missing.
    pub(super) fn new(fault: Userfault, missing: Missing) -> Self {
        Self { fault: ManuallyDrop::new(fault), missing }
    }

    /// Closes the descriptor, when nothing is missing, or the address space is gone.
    pub(super) fn let_go(self) {
        drop(ManuallyDrop::into_inner(self.fault));
    }

    /// The descriptor, to wait for events.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fault.as_fd()
    }

    /// Handles the events that are there. A fault is answered by all that is missing in the `around` bytes that it
    /// lies in, which is a power of two.
    ///
    /// # Errors
    /// The kernel's own: whoever waits goes on waiting then.
    pub(super) fn events(&mut self, pages: &Pages, around: u64) -> io::Result<Round> {
        let mut round = Round::default();
        while let Some(event) = self.fault.event()? {
            round.events += 1;
            match event {
                Event::Fault { address, write } => {
                    let page = address & !(PAGE_SIZE - 1);
                    round.touched.push(Touch { page, write });
                    self.answer(page, pages, around)?;
                }
                Event::Fork(fault) => round.forked.push(Self::new(fault, self.missing.forked())),
                Event::Moved { from, to, len } => self.missing.moved(from, to, len),
                // Whoever reads it next is told of a fault that is not missing here, and gets zeros.
                Event::Removed { start, end } => self.missing.done(&(start..end)),
                Event::Unmapped { start, end } => self.missing.unmapped(&(start..end)),
            }
            if round.events == EVENTS {
                break;
            }
        }
        Ok(round)
    }

    fn answer(&mut self, page: u64, pages: &Pages, around: u64) -> io::Result<()> {
        let first = page & !(around - 1);
        match self.missing.around(page, &(first..first + around)) {
            Some(run) => self.fill(run, pages).map(drop)?,
            None => self.fault.zero(page, PAGE_SIZE).map(drop)?,
        }
        // Where that could not be done, because of a change that is not known yet or because somebody else has done
        // it, the thread looks again, and asks again if it must. Otherwise it is awake already.
        self.fault.wake(page, PAGE_SIZE);
        Ok(())
    }

    /// Copies a run that is missing.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn fill(&mut self, run: Run, pages: &Pages) -> io::Result<Progress> {
        let mut at = run.start;
        let mut most = run.end - run.start;
        while at < run.end {
            let len = most.min(run.end - at);
            match self.fault.copy(at, pages, run.offset + (at - run.start), len)? {
                Filled::Bytes(count) => {
                    self.missing.done(&(at..at + count));
                    at += count;
                }
                Filled::Present => {
                    self.missing.done(&(at..at + PAGE_SIZE));
                    at += PAGE_SIZE;
                }
                // mprotect(2) and the like cut mappings without an event, and a copy must not cross from one to
                // another.
                Filled::Outside if len > PAGE_SIZE => most = PAGE_SIZE,
                Filled::Outside | Filled::Changing => return Ok(Progress::Held),
                Filled::Gone => return Ok(Progress::Gone),
            }
        }
        Ok(Progress::Whole)
    }

    /// The first part, of at most `most` bytes, of what is missing in this range.
    pub(super) fn first_of(&self, range: &Range<u64>, most: u64) -> Option<Run> {
        let run = self.missing.from(range.start).filter(|run| run.start < range.end)?;
        Some(Run { end: run.end.min(range.end).min(run.start + most), ..run })
    }
}
