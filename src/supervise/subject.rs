//! The supervised process, held by a descriptor, so that a reused pid is never signalled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags};

/// A child of this process.
#[derive(Debug)]
pub struct Supervised {
    pid: i32,
    pidfd: OwnedFd,
}

impl Supervised {
    /// Takes a child of this process that has not been waited for.
    ///
    /// # Errors
    /// `NotFound` when there is no such process; else the kernel's own.
    pub fn new(pid: i32) -> io::Result<Self> {
        let known = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self { pid, pidfd: rustix::process::pidfd_open(known, PidfdFlags::empty())? })
    }

    /// Its pid, as this process sees it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends it a signal; one that has ended already is no error.
    pub fn signal(&self, signal: Signal) {
        send(&self.pidfd, signal);
    }

    /// A second hold on the same process.
    pub(super) fn pidfd(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }
}

/// Sends a signal to the process behind a pidfd; one that has ended already is no error.
pub(super) fn send(pidfd: &OwnedFd, signal: Signal) {
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
        let _ = rustix::process::pidfd_send_signal(pidfd, signal);
    }
}

impl AsFd for Supervised {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
