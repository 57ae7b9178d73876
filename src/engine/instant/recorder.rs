//! Recording which mapped pages a restored process touches: those that its page tables have after a while.
//!
//! The kernel maps what lies around a page that is read as well, as far as it is in memory (mm/memory.c,
//! `do_fault_around`), so more is recorded than was touched: at most 64 KiB for each page.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use criu_images::PAGE_SIZE;
use nix::unistd::Pid;
use procfs::process::{MemoryPageFlags, PageInfo, Process};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::PidfdFlags;

use super::aside::{self, tell};
use super::pager::{Record, Run};
use crate::image::working_set::WorkingSet;

const NAME: &CStr = c"defrost-record";
/// Pages that are looked up at a time, 8 bytes each.
const STEP: u64 = 64 * 1024;

/// Starts a process that records the pages of these runs for this child of the calling process.
///
/// # Errors
/// The kernel's own; nothing is recorded then.
pub(super) fn start(pid: i32, runs: &[Run], record: &Record) -> io::Result<Pid> {
    let known = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    let process = rustix::process::pidfd_open(known, PidfdFlags::empty())?;
    aside::start(NAME, [process.as_fd()], |kept| {
        let done = kept.and_then(|[process]| watch(pid, &process, runs, record));
        if let Err(error) = &done {
            tell(&format!("the working set of process {pid} was not recorded: {error}"));
        }
        i32::from(done.is_err())
    })
}

fn watch(pid: i32, process: &OwnedFd, runs: &[Run], record: &Record) -> io::Result<()> {
    let limit =
        Timespec { tv_sec: record.time.as_secs().cast_signed(), tv_nsec: record.time.subsec_nanos().into() };
    // All signals are blocked, so nothing interrupts it.
    if rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit))? > 0 {
        return Err(io::Error::other("it ended before the time was over"));
    }
    let touched = touched(pid, runs).map_err(io::Error::other)?;
    WorkingSet::of(record.image, touched).store(&record.folder)
}

/// The pages that are in the page tables: a page of the file was read, one of its own was written.
fn touched(pid: i32, runs: &[Run]) -> procfs::ProcResult<Vec<(u64, bool)>> {
    let mut table = Process::new(pid)?.pagemap()?;
    let mut touched = Vec::new();
    for run in runs {
        let (mut first, end) = (run.start / PAGE_SIZE, run.end / PAGE_SIZE);
        while first < end {
            let last = end.min(first + STEP);
            // Addresses of this machine fit.
            let infos = table.get_range_info(first as usize..last as usize)?;
            for (page, info) in (first..).zip(infos) {
                match info {
                    PageInfo::MemoryPage(flags) if flags.contains(MemoryPageFlags::PRESENT) => {
                        touched.push((page * PAGE_SIZE, !flags.contains(MemoryPageFlags::FILE)));
                    }
                    // What was written and swapped out since was touched too.
                    PageInfo::SwapPage(_) => touched.push((page * PAGE_SIZE, true)),
                    PageInfo::MemoryPage(_) => {}
                }
            }
            first = last;
        }
    }
    Ok(touched)
}
