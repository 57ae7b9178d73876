//! The pager's work: whoever waits for a page gets it at once, and in between the rest is filled.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use criu_images::PAGE_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::missing::Run;
use super::space::{Progress, Round, Space, Touch};
use crate::sys::userfault::Pages;

/// What a fault brings besides its page: what is missing of the 64 KiB around it, as much as the kernel maps around a
/// fault of a file (mm/memory.c, `fault_around_pages`).
const AROUND: u64 = 64 * 1024;
/// What is copied between two looks at who waits, so that nobody does for long.
const STRIDE: u64 = 256 * 1024;
/// Most copies between two looks, of pieces however small.
const MOST_COPIES: usize = 64;
/// How long nobody must have waited for a page before the rest is filled on: who waits comes in bursts.
const QUIET: Duration = Duration::from_millis(1);
/// After this long it is filled on all the same.
const TURN: Duration = Duration::from_millis(20);
/// How long an address space may stay in the middle of a change. One system call of another process lies between.
const STUCK: Duration = Duration::from_secs(10);

/// How the work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing is missing any more, or nobody is left who could miss it.
    Done,
    /// Whoever watches over the pager has.
    Unwatched,
}

/// What there is to do.
pub(super) struct Work<'a> {
    /// The restored process's.
    pub(super) space: Space,
    pub(super) pages: &'a Pages,
    /// Ranges to fill before anything else.
    pub(super) first: &'a [Range<u64>],
    /// Until when only what is asked for is filled, page by page, so that it can be recorded.
    pub(super) recording: Option<Instant>,
    /// The restored process, and whoever watches: each readable when it has ended.
    pub(super) process: BorrowedFd<'a>,
    pub(super) watch: BorrowedFd<'a>,
}

/// What the work came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Pages that somebody waited for while that was recorded, in order, each once or more.
    pub(super) touched: Vec<Touch>,
    /// How many faults there were.
    pub(super) faults: u64,
}

impl Work<'_> {
    /// Does it. `recorded` is called with what was touched, when the time for that is over or the process has ended.
    ///
    /// # Errors
    /// The kernel's own, `TimedOut` when a change does not come to its end. Threads may wait for pages then, for
    /// ever.
    pub(super) fn run(self, recorded: &mut dyn FnMut(&[Touch])) -> io::Result<(End, Account)> {
        let (pages, first) = (self.pages, self.first);
        let mut rounds = Rounds {
            spaces: vec![self.space],
            pages,
            first: first.iter().rev().cloned().collect(),
            recording: self.recording,
            ended: false,
            last_fault: None,
            last_turn: Instant::now(),
            held_since: None,
            account: Account::default(),
        };
        let end = loop {
            rounds.let_go();
            if rounds.spaces.is_empty() {
                break End::Done;
            }
            if rounds.wait(self.process, self.watch)? {
                break End::Unwatched;
            }
            let told = rounds.events()?;
            if rounds.recording.is_some_and(|until| rounds.ended || Instant::now() >= until) {
                rounds.recording = None;
                recorded(&rounds.account.touched);
            }
            if told == 0 && rounds.recording.is_none() {
                rounds.fill()?;
            }
        };
        if rounds.recording.is_some() {
            recorded(&rounds.account.touched);
        }
        Ok((end, rounds.account))
    }
}

/// The work in progress.
struct Rounds<'a> {
    /// The first is the restored process's until it is whole.
    spaces: Vec<Space>,
    pages: &'a Pages,
    /// In reverse order.
    first: Vec<Range<u64>>,
    recording: Option<Instant>,
    /// The process has ended. Those that it has forked may live, and their memory is filled all the same.
    ended: bool,
    last_fault: Option<Instant>,
    last_turn: Instant,
    held_since: Option<Instant>,
    account: Account,
}

impl Rounds<'_> {
    /// Lets those go that are whole.
    fn let_go(&mut self) {
        let (whole, rest): (Vec<_>, Vec<_>) =
            self.spaces.drain(..).partition(|space| space.missing.is_empty());
        whole.into_iter().for_each(Space::let_go);
        self.spaces = rest;
    }

    /// Waits for events, or for the time to fill on. Says whether whoever watches has ended.
    fn wait(&mut self, process: BorrowedFd<'_>, watch: BorrowedFd<'_>) -> io::Result<bool> {
        let faults: Vec<_> = self.spaces.iter().map(Space::as_fd).collect();
        let mut waiting = vec![PollFd::new(&process, PollFlags::IN), PollFd::new(&watch, PollFlags::IN)];
        waiting.extend(faults.iter().map(|fault| PollFd::new(fault, PollFlags::IN)));
        let pause = self.pause();
        let limit = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
        match rustix::event::poll(&mut waiting, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [ended, unwatched] = [0, 1].map(|index| !waiting[index].revents().is_empty());
        self.ended |= ended;
        Ok(unwatched)
    }

    /// How long to wait for an event before something else is done.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        if self.ended {
            return Duration::ZERO;
        }
        if let Some(until) = self.recording {
            return until.saturating_duration_since(now);
        }
        if self.held_since.is_some() {
            return QUIET;
        }
        if !self.first.is_empty() {
            return Duration::ZERO;
        }
        let quiet = self.last_fault.map_or(now, |fault| fault + QUIET);
        quiet.min(self.last_turn + TURN).saturating_duration_since(now)
    }

    /// Handles what is told of every address space; says how much that was.
    fn events(&mut self) -> io::Result<usize> {
        let around = if self.recording.is_some() { PAGE_SIZE } else { AROUND };
        let mut told = 0;
        let mut forked = Vec::new();
        for (index, space) in self.spaces.iter_mut().enumerate() {
            let round: Round = space.events(self.pages, around)?;
            told += round.events;
            forked.extend(round.forked);
            if round.touched.is_empty() {
                continue;
            }
            self.account.faults += round.touched.len() as u64;
            self.last_fault = Some(Instant::now());
            if index == 0 && self.recording.is_some() {
                self.account.touched.extend(round.touched);
            }
        }
        self.spaces.extend(forked);
        if told > 0 {
            self.held_since = None;
        }
        Ok(told)
    }

    /// Fills one stride: of what is to come first, then of the restored process, then of those that it has forked.
    fn fill(&mut self) -> io::Result<()> {
        self.last_turn = Instant::now();
        let mut room = STRIDE;
        for _ in 0..MOST_COPIES {
            let Some(space) = self.spaces.first_mut().filter(|_| room > 0) else { return Ok(()) };
            let run = next(space, &mut self.first, room);
            let progress = match run {
                Some(run) => space.fill(run, self.pages)?,
                None if space.missing.is_empty() => return Ok(()),
                None if self.ended => Progress::Gone,
                // A change that is not told in full yet keeps it here.
                None => Progress::Held,
            };
            match progress {
                Progress::Whole => {
                    self.held_since = None;
                    room -= run.map_or(0, |run| run.end - run.start);
                }
                Progress::Gone => self.spaces.remove(0).let_go(),
                Progress::Held => {
                    let since = *self.held_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > STUCK {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// What to fill next, at most `room` bytes: of the ranges that come first, the last of which is the next, or of all
/// that is missing.
fn next(space: &Space, first: &mut Vec<Range<u64>>, room: u64) -> Option<Run> {
    while let Some(range) = first.last() {
        if let Some(run) = space.first_of(range, room) {
            return Some(run);
        }
        first.pop();
    }
    space.first_of(&(0..u64::MAX), room)
}

/// Waits for a message; `false` when the process ends before.
///
/// # Errors
/// The kernel's own.
pub(super) fn comes(message: &OwnedFd, process: BorrowedFd<'_>) -> io::Result<bool> {
    loop {
        let mut waiting =
            [PollFd::new(message, PollFlags::IN), PollFd::from_borrowed_fd(process, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, None) {
            Ok(_) => return Ok(!waiting[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
