//! A small process that ends the supervised one when the supervisor is killed.
//!
//! PR_SET_PDEATHSIG would be simpler, but belongs to a thread of the supervised process: a restored process
//! cannot be given it from outside, and an image that carries it dies when `criu restore -d` exits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

use super::subject::{self, Supervised};
use crate::sys::process::{Fork, exit_now, fork};

/// How long the supervised process has to stop by itself, once its supervisor was killed.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The name of the process, as `ps` shows it.
const PROCESS_NAME: &std::ffi::CStr = c"defrost-guard";

/// The guard of one supervised process. Dropping it ends the guard and leaves the supervised process alone.
#[derive(Debug)]
pub struct Guard {
    pid: Pid,
    /// Closed by the kernel when this process dies, however it dies: that is the guard's sign.
    _alive: OwnedFd,
}

impl Guard {
    /// Starts the guard of `supervised`. This process must have one thread.
    ///
    /// # Errors
    /// Those of pipe(2) and fork(2); the supervised process is then unguarded.
    pub fn start(supervised: &Supervised) -> io::Result<Self> {
        let (sign, alive) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let pidfd = supervised.pidfd()?;
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let forked = fork();
        if let Ok(Fork::Child) = forked {
            drop(alive);
            watch(&sign, &pidfd);
            exit_now(0);
        }
        before.thread_set_mask()?;
        match forked? {
            Fork::Parent(pid) => Ok(Self { pid, _alive: alive }),
            Fork::Child => exit_now(0),
        }
    }

    /// The guard's pid.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if nix::sys::signal::kill(self.pid, Signal::SIGKILL).is_ok() {
            let _ = waitpid(self.pid, None);
        }
    }
}

/// The guard's life. All signals are blocked: a group's or a session's end must not reach it before the
/// supervisor's.
fn watch(sign: &OwnedFd, pidfd: &OwnedFd) {
    let _ = nix::unistd::setsid();
    let _ = rustix::thread::set_name(PROCESS_NAME);
    loop {
        let mut waiting = [PollFd::new(sign, PollFlags::IN), PollFd::new(pidfd, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
            Ok(_) => {}
        }
        if !waiting[1].revents().is_empty() {
            return;
        }
        break;
    }
    subject::send(pidfd, Signal::SIGTERM);
    // It may be stopped, for a dump that was never finished.
    subject::send(pidfd, Signal::SIGCONT);
    if !ends_within(pidfd, GRACE) {
        subject::send(pidfd, Signal::SIGKILL);
    }
}

/// Whether the process behind `pidfd` ends within this time.
pub(super) fn ends_within(pidfd: impl AsFd, time: Duration) -> bool {
    let limit = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    let pidfd = pidfd.as_fd();
    let mut waiting = [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut waiting, Some(&limit)), Ok(1..))
}
