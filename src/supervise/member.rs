//! One namespace of a restore's own as its supervisor outside knows it: its process 1, and what that has told.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::attend::Ending;
use super::link::{Failed, Link, Told};
use super::namespace::Namespaces;
use super::restore::RestoreFailure;
use super::subject::Supervised;
use crate::engine::channel::Report;
use crate::sys::process::Fork;
use crate::wake::Origin;

/// A process that runs in a namespace of its own.
#[derive(Clone, Debug)]
pub struct Up {
    /// Which of them: from 1 on.
    pub number: usize,
    /// Its pid, as this process sees it; 0 if it has ended already.
    pub pid: i32,
    /// What brought it back.
    pub origin: Origin,
    /// What it reported, if it was waited for and the image has a way to.
    pub report: Option<Report>,
}

impl Up {
    /// Its proportional share of memory in units of 1,024 bytes (`Pss` of proc_pid_smaps(5)): what it shares counts in parts, also
    /// what lies in the page cache and several have mapped. `None` if the kernel does not tell.
    #[must_use]
    pub fn proportional_kib(&self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    }
}

/// One namespace: its process 1, and what is known of what it restores.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) init: Supervised,
    pub(super) link: Link,
    pub(super) state: State,
    /// How process 1 ended, which then was reaped.
    pub(super) ended: Option<Ending>,
    pub(super) released: bool,
}

/// Which side of a fork into a namespace this is.
pub(super) enum Forked {
    /// Process 1 of the namespace, with its end of the link to its supervisor.
    Inside(Link),
    /// The supervisor.
    Outside(Box<Member>),
}

#[derive(Debug)]
pub(super) enum State {
    Waiting,
    Up(Up),
    NotReady {
        failures: Vec<String>,
        alive: Option<i32>,
    },
    Failed(RestoreFailure),
    /// It ended without a word.
    Silent,
}

impl Member {
    /// Forks into these namespaces. Watched signals must be held back, and the caller must have one thread.
    pub(super) fn fork(number: usize, namespaces: Namespaces) -> Result<Forked, RestoreFailure> {
        let (link, inner) = Link::pair()?;
        match namespaces.fork()? {
            Fork::Child => Ok(Forked::Inside(inner)),
            Fork::Parent(pid) => {
                let init = Supervised::new(pid.as_raw())?;
                let (state, ended, released) = (State::Waiting, None, false);
                Ok(Forked::Outside(Box::new(Self { number, init, link, state, ended, released })))
            }
        }
    }

    /// Takes what process 1 has told, if it has by now.
    pub(super) fn hear(&mut self) -> io::Result<()> {
        self.state = match self.link.told() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
            Ok(None) => {
                self.end();
                State::Silent
            }
            Ok(Some((told, process))) => {
                let pid = process.as_ref().and_then(pid_behind).unwrap_or(0);
                match told {
                    Told::Up { origin, report } => State::Up(Up { number: self.number, pid, origin, report }),
                    Told::NotReady { failures, alive } => {
                        State::NotReady { failures, alive: alive.then_some(pid) }
                    }
                    Told::Failed(Failed { text, hint, of_the_host }) => {
                        State::Failed(RestoreFailure::Within { text, hint, of_the_host })
                    }
                }
            }
        };
        Ok(())
    }

    pub(super) fn release(&mut self) {
        self.link.release();
        self.released = true;
    }

    /// Ends process 1, and with it all of its namespace.
    pub(super) fn end(&mut self) -> Ending {
        // It may be about to end by itself: its link is closed by that, and its status is known then.
        if !super::link::is_gone(&self.link) {
            self.init.signal(Signal::SIGKILL);
        }
        self.reap(None).unwrap_or(Ending::Signaled(Signal::SIGKILL))
    }

    /// Takes its exit status, if it has ended, and waits for that without WNOHANG.
    pub(super) fn reap(&mut self, flags: Option<WaitPidFlag>) -> Option<Ending> {
        if self.ended.is_some() {
            return self.ended;
        }
        let pid = Pid::from_raw(self.init.pid());
        self.ended = loop {
            match waitpid(pid, flags) {
                Ok(WaitStatus::Exited(_, status)) => break Some(Ending::Exited(status)),
                Ok(WaitStatus::Signaled(_, signal, _)) => break Some(Ending::Signaled(signal)),
                Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => break None,
                // Nobody else waits for it, so this is as good as its end.
                Err(_) => break Some(Ending::Signaled(Signal::SIGKILL)),
            }
        };
        self.ended
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.released && self.ended.is_none() {
            self.init.signal(Signal::SIGKILL);
            self.reap(None);
        }
    }
}

/// The pid of the process behind a pidfd, as this process sees it: the kernel says it in fdinfo, as -1 once it is
/// gone.
fn pid_behind(pidfd: &OwnedFd) -> Option<i32> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_descriptor() {
        let own = Supervised::new(std::process::id().cast_signed()).unwrap();
        assert_eq!(pid_behind(&own.pidfd().unwrap()), Some(own.pid()));
    }

    #[test]
    fn memory_is_counted() {
        let pid = std::process::id().cast_signed();
        let up = Up { number: 1, pid, origin: Origin::default(), report: None };
        assert!(up.proportional_kib().is_some_and(|kib| kib > 4));
        assert_eq!(Up { pid: 0, ..up }.proportional_kib(), None);
    }
}
