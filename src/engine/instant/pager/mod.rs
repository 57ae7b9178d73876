//! Filling memory on demand: `--memory fault`.
//!
//! Large anonymous memory of the restored process is empty at first, and its faults are told to a *pager*, a process
//! that copies the pages from the image, those that somebody waits for first. When all are there the pager ends, and
//! the memory is like any other.
//!
//! While pages are missing the process depends on the pager: were the kernel to lose the descriptor of the faults,
//! missing pages would read as zeros. So there are two processes with one table of descriptors, which the kernel
//! keeps until both have ended: the pager, and a *keeper*, whose child it is. Each watches the other. When one dies
//! before its time, the other ends the restored process, with all processes of its session, and the keeper's exit
//! status says so ([`LOST`](crate::engine::keeper::LOST)), for a supervisor to tell; the system log gets a line as well. Both are detached: in a
//! session of their own, without standard streams, in `/`. They end by themselves when the process has ended.
//!
//! | module | what |
//! |---|---|
//! | `handing` | the calls of the plan by which the restorer hands the descriptor over |
//! | `keeper` | starting both, and watching |
//! | `serve` | the pager's loop |
//! | `space` | one address space: its events, its fills |
//! | `missing` | what is missing of it |
//!
//! A forked process is filled too, after its parent. One that left the session and whose pager dies reads zeros.

mod handing;
mod keeper;
mod missing;
mod serve;
mod space;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;

pub(super) use handing::{Handing, calls};
pub(super) use missing::Run;

use crate::image::manifest::ImageId;
use crate::sys::userfault::Userfault;

/// Whether this process may have memory filled on demand.
///
/// # Errors
/// Why not: a phrase.
pub fn possible() -> Result<(), String> {
    let error = match Userfault::open() {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let reason = match error.kind() {
        // The kernel makes both conditions of one privilege: fs/userfaultfd.c, userfaultfd_syscall_allowed and
        // userfaultfd_api.
        io::ErrorKind::PermissionDenied => {
            "it takes cap_sys_ptrace: without it the kernel tells of no fault within itself unless \
             vm.unprivileged_userfaultfd is 1, and even then, or by /dev/userfaultfd, of no fork, after which the \
             child would read zeros"
        }
        io::ErrorKind::Unsupported => "this kernel has no userfaultfd (CONFIG_USERFAULTFD)",
        _ => return Err(format!("userfaultfd: {error}")),
    };
    Err(reason.to_owned())
}

/// What a pager is to do.
#[derive(Debug)]
pub(super) struct Pager {
    /// Where the descriptor of the faults comes out.
    socket: OwnedFd,
    /// Where the restorer puts it in, and the pager says that it has it.
    entrance: OwnedFd,
    /// The file that pages come from.
    pages: File,
    /// What there is to fill.
    runs: Vec<Run>,
    /// All memory whose faults it is told.
    handled: Vec<Range<u64>>,
    /// What is to be filled first.
    first: Vec<Range<u64>>,
    /// What is asked for is to be recorded.
    record: Option<Record>,
}

/// Where the pages that were touched are to be recorded.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// The image folder, an absolute path.
    pub(super) folder: PathBuf,
    /// The image's identity.
    pub(super) image: ImageId,
    /// For how long.
    pub(super) time: Duration,
}

impl Pager {
    /// One that has nothing to do yet, with this file of pages.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn new(pages: File) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (entrance, socket) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let (handled, runs, first) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { socket, entrance, pages, handled, runs, first, record: None })
    }

    /// Has it fill these runs, within mappings of which all are `handled`: those in `first` before all others, unless
    /// it is to `record` what is asked for.
    pub(super) fn fill(
        &mut self,
        runs: Vec<Run>,
        handled: Vec<Range<u64>>,
        first: Vec<Range<u64>>,
        record: Option<Record>,
    ) {
        (self.runs, self.handled) = (runs, handled);
        (self.first, self.record) = (first, record);
    }

    /// The socket that the restorer hands the descriptor over by.
    pub(super) fn entrance(&self) -> BorrowedFd<'_> {
        self.entrance.as_fd()
    }

    /// Starts pager and keeper for this child of the calling process, which must have one thread. They wait for the
    /// descriptor of the faults.
    ///
    /// # Errors
    /// The kernel's own; nothing was started then.
    pub(super) fn start(&self, pid: i32) -> io::Result<OwnedFd> {
        let keeper = keeper::start(self, pid)?;
        let keeper = rustix::process::Pid::from_raw(keeper.as_raw()).ok_or(io::ErrorKind::NotFound)?;
        Ok(rustix::process::pidfd_open(keeper, PidfdFlags::empty())?)
    }

    /// Waits until the pager has the descriptor: from then on it takes both processes to let the process down. Until
    /// then this `Pager` must live, or be the last that does.
    ///
    /// # Errors
    /// `BrokenPipe` when the keeper has ended before, `TimedOut` at the deadline; else the kernel's own. The process
    /// must be ended then, before this `Pager` is dropped.
    pub(super) fn is_ready(&self, keeper: &OwnedFd, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit =
                Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            let mut waiting =
                [PollFd::new(&self.entrance, PollFlags::IN), PollFd::new(keeper, PollFlags::IN)];
            match rustix::event::poll(&mut waiting, Some(&limit)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) if !waiting[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
