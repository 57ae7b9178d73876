//! A child process that cannot outlive its use. Knows nothing of CRIU.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::deadline::Deadline;

/// How long a killed process may take to be gone. Longer, and it hangs in the kernel.
pub(crate) const DYING: Duration = Duration::from_secs(2);

/// A child that is killed and reaped on drop.
#[derive(Debug)]
pub(crate) struct Guarded {
    child: Child,
    exit: OwnedFd,
    ended: bool,
}

impl Guarded {
    /// Starts it, with SIGCHLD unblocked: CRIU notices by that signal that a task which it restores has died, and a
    /// blocked one is inherited (libcriu unblocks it likewise). Unblocks it in this thread for the moment of the fork.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Guarded> {
        let mut awake = SigSet::empty();
        awake.add(Signal::SIGCHLD);
        let before = awake.thread_swap_mask(SigmaskHow::SIG_UNBLOCK)?;
        let child = command.spawn();
        before.thread_set_mask()?;
        let mut child = child?;
        match watch(pid_of(&child)) {
            Ok(exit) => Ok(Guarded { child, exit, ended: false }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> Pid {
        pid_of(&self.child)
    }

    /// Another descriptor that can be read once it has ended.
    pub(crate) fn exit(&self) -> io::Result<OwnedFd> {
        self.exit.try_clone()
    }

    /// The pipe to its standard output, the first time.
    pub(crate) fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits until it has ended, and reaps it. `Ok(None)` when the deadline passed first.
    ///
    /// `Err` when something else in this process has reaped it (it has ended then too).
    pub(crate) fn wait(&mut self, deadline: &Deadline) -> io::Result<Option<ExitStatus>> {
        if !self.ended && !deadline.readable(&self.exit)? {
            return Ok(None);
        }
        let status = self.child.try_wait();
        self.ended = !matches!(status, Ok(None));
        status
    }

    /// Stops it for the moment.
    pub(crate) fn stop(&self) {
        if !self.ended {
            // Fails only for a process that is gone.
            let _ = kill(self.pid(), Signal::SIGSTOP);
        }
    }

    /// Kills it with its process group, which it must lead, and reaps it. What it has forked may outlive it otherwise.
    pub(crate) fn kill_group(&mut self) {
        // Fails only when nobody is left in the group, whose number is not given away while somebody is.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        self.kill();
    }

    /// Kills it and reaps it.
    pub(crate) fn kill(&mut self) {
        if self.ended {
            return;
        }
        // Both fail only for a process that is gone, and then all is well.
        let _ = self.child.kill();
        let _ = self.wait(&Deadline::after(DYING));
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pid_of(child: &Child) -> Pid {
    // A pid is below 2^22 (PID_MAX_LIMIT), so the cast keeps its value.
    Pid::from_raw(child.id().cast_signed())
}

/// A descriptor that can be read once the process has ended.
pub(crate) fn watch(pid: Pid) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(Errno::ESRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Kills a process that need not be a child, waits until it has ended, and reaps it if it is one. `false` when it is
/// still there afterwards.
pub(crate) fn end(pid: Pid) -> bool {
    let Ok(exit) = watch(pid) else { return true };
    // Fails only for a process that is gone.
    let _ = kill(pid, Signal::SIGKILL);
    let gone = Deadline::after(DYING).readable(exit.as_fd()).unwrap_or(false);
    reap(pid);
    gone
}

/// Reaps a child that has ended. How it ended, or `None`: it runs, or is not a child (any more).
pub(crate) fn reap(pid: Pid) -> Option<WaitStatus> {
    match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) | Err(_) => None,
        Ok(status) => Some(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn sleeper() -> Guarded {
        Guarded::spawn(Command::new("sleep").arg("60")).unwrap()
    }

    #[test]
    fn waits_with_a_deadline_and_leaves_nothing_behind() {
        let mut child = sleeper();
        let proc = format!("/proc/{}", child.pid());
        assert!(child.wait(&Deadline::after(Duration::from_millis(20))).unwrap().is_none());
        assert!(Path::new(&proc).exists());
        drop(child);
        assert!(!Path::new(&proc).exists());
    }

    #[test]
    fn takes_its_group_along() {
        use std::io::Read;
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 60 & kill -KILL $$"])
            .process_group(0)
            .stdout(std::process::Stdio::piped());
        let mut child = Guarded::spawn(&mut command).unwrap();
        assert!(child.wait(&Deadline::after(Duration::from_secs(5))).unwrap().is_some());
        child.kill_group();
        // End of file comes when nobody holds the pipe any more.
        assert_eq!(child.take_stdout().unwrap().read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn tells_how_a_child_ended() {
        let mut child = Guarded::spawn(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        let status = child.wait(&Deadline::after(Duration::from_secs(5))).unwrap().unwrap();
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    fn gives_the_child_an_unblocked_sigchld_and_keeps_the_own_mask() {
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGCHLD);
        blocked.thread_block().unwrap();
        let child = sleeper();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        assert_eq!(u64::from_str_radix(mask, 16).unwrap() & (1 << (Signal::SIGCHLD as u64 - 1)), 0);
        assert!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGCHLD));
        blocked.thread_unblock().unwrap();
    }
}
