//! What the tests on real descriptors share: audits, what they find of one descriptor, and processes to audit.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal;
use nix::unistd::Pid;

use crate::audit::{Audit, Blocker, Claims, Descriptor, DescriptorKind, Note, Report};

pub(super) fn audit() -> Report {
    Audit::of_self(&Claims::default()).unwrap()
}

pub(super) fn kind_of(fd: &impl AsRawFd) -> DescriptorKind {
    entry(&audit(), fd.as_raw_fd()).kind.clone()
}

pub(super) fn entry(report: &Report, fd: RawFd) -> &Descriptor {
    report.descriptors.iter().find(|descriptor| descriptor.fd == fd).unwrap()
}

pub(super) fn blocker(report: &Report, fd: RawFd) -> Option<&Blocker> {
    report.blockers.iter().find(|blocker| blocker.fd == Some(fd))
}

pub(super) fn note(report: &Report, fd: RawFd) -> Option<&Note> {
    report.notes.iter().find(|note| note.fd == Some(fd))
}

/// Whether the condition holds within five seconds. What is closed here may live a little longer in a child that
/// another test has just started and that has not yet become another program.
pub(super) fn eventually(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// A child that is ended with the test, its process group with it.
pub(super) struct Subject(pub(super) Child);

impl Subject {
    pub(super) fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).spawn().unwrap())
    }

    pub(super) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    /// Audits it until the condition holds, for at most five seconds.
    pub(super) fn audit_until(&self, condition: impl Fn(&Report) -> bool) -> Report {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let report = Audit::of_process(self.pid(), &Claims::default()).unwrap();
            if condition(&report) || Instant::now() > deadline {
                return report;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = signal::killpg(Pid::from_raw(self.pid()), signal::Signal::SIGKILL);
        let _ = self.0.wait();
    }
}
